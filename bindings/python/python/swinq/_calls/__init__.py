"""Calls of a live Swin: arguments, outputs, records of the calibration, the match with the float engine, times."""
