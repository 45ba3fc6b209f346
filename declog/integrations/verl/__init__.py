"""verl: ``VERL_USE_EXTERNAL_MODULES=declog.integrations.verl``, and no change of code.

verl imports this package in each of its processes. The wrapped functions do nothing until verl constructs a
``Tracking``, in the one process that drives training. ``hooks.py`` wraps verl's functions, ``columns.py`` reads a
``DataProto``, and ``run.py`` records the run of one ``Tracking``. Nothing here imports verl.
"""

from __future__ import annotations

from declog.integrations.verl import hooks

__all__: list[str] = []

hooks.install()
