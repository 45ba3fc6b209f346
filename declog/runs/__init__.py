"""Reads runs back from disk: the files of the parquet and jsonl sinks as Arrow, pandas or polars. See ``run``.

``report/`` shows runs, ``row_conditions`` filters their samples in the language of `where`, and ``adoption`` reads logs
of other loggers. Imports pyarrow, pandas and polars at their first use only, and no torch.
"""
