"""``declog report``: a run as one HTML file that needs no server and no network. See ``page``.

Reads the run with ``declog.read``. Imports numpy and pyarrow, and takes the files of ``assets/``.
"""
