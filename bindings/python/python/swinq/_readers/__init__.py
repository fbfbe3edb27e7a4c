"""Readers of live modules: which class or structure a Swin has, its architecture, its preprocessing and its parameters."""
