"""Warnings about the rows of a run: what does not come, or is probably not what its loop means. Each is told once."""
