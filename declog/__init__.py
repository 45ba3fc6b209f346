"""declog: a declarative logging language for RL post-training.

The pipeline is ``compose`` -> ``validate`` -> ``compile`` -> ``start`` -> sinks, one function per arrow;
``start`` runs them all. See README.md.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from declog.with_hydra import register as _register

if TYPE_CHECKING:
    from declog.active import current, log_extra, log_metric, merge, observe, timer
    from declog.adapters.trl import attach
    from declog.columns import column
    from declog.compiler import compile
    from declog.compose import compose, presets, profile_of
    from declog.errors import (
        CommError,
        CompositionError,
        ConfigError,
        DeclogError,
        InputError,
        MissingSignalError,
        PlanMismatchError,
        SinkError,
        UnknownSignalError,
        UsageError,
    )
    from declog.functions import function
    from declog.plan import Plan
    from declog.planning import plan
    from declog.recorder import Recorder
    from declog.reducers import reducer
    from declog.rewards import reward
    from declog.run import start
    from declog.spec import LogSpec
    from declog.validation import validate

_HOMES = {
    "attach": "adapters.trl",
    "column": "columns", "compile": "compiler", "compose": "compose", "presets": "compose", "profile_of": "compose",
    "CommError": "errors", "CompositionError": "errors", "ConfigError": "errors", "DeclogError": "errors",
    "InputError": "errors", "MissingSignalError": "errors", "PlanMismatchError": "errors", "SinkError": "errors",
    "UnknownSignalError": "errors", "UsageError": "errors",
    "function": "functions", "Plan": "plan", "Recorder": "recorder", "current": "active", "log_extra": "active",
    "log_metric": "active", "merge": "active", "observe": "active", "timer": "active", "reducer": "reducers",
    "reward": "rewards", "plan": "planning", "start": "run",
    "LogSpec": "spec", "validate": "validation",
}  # fmt: skip

__all__ = [
    "CommError", "CompositionError", "ConfigError", "DeclogError", "InputError", "LogSpec", "MissingSignalError",
    "Plan", "PlanMismatchError", "Recorder", "SinkError", "UnknownSignalError", "UsageError", "attach", "column",
    "compile", "compose", "current", "function", "log_extra", "log_metric", "merge", "observe", "plan", "presets",
    "profile_of", "reducer", "reward", "start", "timer", "validate",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: ``import declog`` imports neither torch nor pydantic."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'declog' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"declog.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps ``declog.plan`` and ``declog.compose`` the functions: importing a submodule would set the module there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """By name, as other modules: Ray sends functions that use ``declog`` to other processes."""
        return importlib.import_module, (__name__,)


sys.modules[__name__].__class__ = _Package
_register()
