"""``declog report``: writes a run as one HTML file that needs no server and no network. See ``page``.

Reads the run with ``declog.read``. The page contains the files of ``assets/``. Imports numpy and pyarrow.
"""
