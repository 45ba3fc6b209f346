"""Scopes, steps and batches: they hold the recorded rows until a log event takes them."""
