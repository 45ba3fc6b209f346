"""Runs on disk, read back: what the parquet and jsonl sinks wrote, as Arrow, pandas or polars. See ``run``.

Imports no torch, and pyarrow, pandas and polars only where they are asked for.
"""
