"""A stand-in for the module ``wandb`` that passes its numbers through declog: change one import.

    from declog.integrations import wandb           # was: import wandb

The config is the preset ``tee``, or the project's own preset of that name. ``declog.tee`` of ``tee.py`` does the rest.
"""

from __future__ import annotations

from typing import Any

import wandb as _wandb

import declog

_tee: Any = None


def __getattr__(name: str) -> Any:
    """The tee's attribute, else wandb's own. The first use of an attribute starts the tee, and reads its config."""
    global _tee
    if name.startswith("__"):
        return getattr(_wandb, name)
    if _tee is None:
        _tee = declog.tee(_wandb)
    return getattr(_tee, name)


def __dir__() -> list[str]:
    return dir(_wandb)
