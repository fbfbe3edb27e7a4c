"""Searches by the metric of a program: sensitivity, tuning; and the gain of INT8 over float."""
