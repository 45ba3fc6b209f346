"""verl: ``VERL_USE_EXTERNAL_MODULES=declog.integrations.verl``, and no change of code.

verl imports this in each of its processes; what it wraps there does nothing until verl makes a ``Tracking``, which it
does in the one process that drives training. ``hooks.py`` is what of verl calls declog, ``columns.py`` reads a
DataProto, ``run.py`` is the run of one ``Tracking``. Uses declog's public API as a stranger would, and imports verl
nowhere.
"""

from __future__ import annotations

from declog.integrations.verl import hooks

__all__: list[str] = []

hooks.install()
