"""Folds of per-token values to statistics per completion, on the device of the values."""
