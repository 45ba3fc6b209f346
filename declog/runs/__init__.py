"""Runs on disk, read back: what the parquet and jsonl sinks wrote, as Arrow, pandas or polars. See ``run``.

``report/`` shows them, ``row_conditions`` asks their samples in the language of `where`, ``adoption`` reads the logs of
others. Imports no torch, and pyarrow, pandas and polars only where they are asked for.
"""
