"""``declog report``: a run as one HTML file that needs no server and no network. See ``page``.

Reads what ``declog.read`` gives and what the run's folder says; numpy, pyarrow and the files of ``assets/``.
"""
