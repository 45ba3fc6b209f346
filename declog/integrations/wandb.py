"""The module ``wandb``, whose numbers go through declog: change one import.

    from declog.integrations import wandb           # was: import wandb

The config is the preset ``tee``, or the file of that name among the project's own presets. ``tee.py`` has the rest.
"""

from __future__ import annotations

from typing import Any

import wandb as _wandb

import declog

_tee: Any = None


def __getattr__(name: str) -> Any:
    """Everything that wandb has; its runs, ``log`` and ``finish`` are the tee's. The config is read at first use."""
    global _tee
    if name.startswith("__"):
        return getattr(_wandb, name)
    if _tee is None:
        _tee = declog.tee(_wandb)
    return getattr(_tee, name)


def __dir__() -> list[str]:
    return dir(_wandb)
