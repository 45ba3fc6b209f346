"""Runs read back from disk: the files of the parquet and jsonl sinks as Arrow, pandas or polars. See ``run``.

``report/`` shows runs, ``row_conditions`` filters their samples in the language of `where`, ``adoption`` reads logs of
other loggers. Imports no torch, and pyarrow, pandas and polars only at their first use.
"""
