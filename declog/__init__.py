"""declog: a declarative logging language for RL post-training.

The pipeline is ``compose`` -> ``validate`` -> ``compile`` -> ``start`` -> sinks, one function per arrow;
``start`` runs them all. See README.md.
"""

from __future__ import annotations

import atexit
import importlib
import sys
from typing import TYPE_CHECKING, Any

from declog.distribution import VERSION as _VERSION

if TYPE_CHECKING:
    from declog.api import plan, start
    from declog.compiler import compile
    from declog.config.compose import compose, config_of, presets
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
    from declog.integrations.shadow import shadow
    from declog.integrations.tee import tee
    from declog.integrations.trainers import callback
    from declog.integrations.trl import attach, detach
    from declog.language.functions import function
    from declog.language.reductions import reducer
    from declog.language.row_functions import column
    from declog.language.spec import LogSpec
    from declog.language.validation import validate
    from declog.plans.ops import Plan
    from declog.runs.report.page import report
    from declog.runs.run import read
    from declog.runtime.recording.recorder import Recorder
    from declog.runtime.recording.rewards import reward
    from declog.runtime.rows.context import current, keep, log_extra, log_metric, merge, observe, scalars, timer
    from declog.runtime.rows.packets import Packet, rows
    from declog.runtime.rows.scopes import bind

_HOMES = {
    name: home
    for home, names in {
        "api": ("plan start"),
        "compiler": ("compile"),
        "config.compose": ("compose config_of presets"),
        "errors": (
            "CommError CompositionError ConfigError DeclogError InputError MissingSignalError "
            "PlanMismatchError SinkError UnknownSignalError UsageError"
        ),
        "integrations.shadow": ("shadow"),
        "integrations.tee": ("tee"),
        "integrations.trainers": ("callback"),
        "integrations.trl": ("attach detach"),
        "language.functions": ("function"),
        "language.reductions": ("reducer"),
        "language.row_functions": ("column"),
        "language.spec": ("LogSpec"),
        "language.validation": ("validate"),
        "plans.ops": ("Plan"),
        "runtime.rows.context": ("current keep log_extra log_metric merge observe scalars timer"),
        "runtime.rows.packets": ("Packet rows"),
        "runtime.recording.recorder": ("Recorder"),
        "runtime.recording.rewards": ("reward"),
        "runtime.rows.scopes": ("bind"),
        "runs.report.page": ("report"),
        "runs.run": ("read"),
    }.items()
    for name in names.split()
}

__version__ = _VERSION

if any(word.startswith(("--declog.", "--declog=")) for word in sys.argv[1:]):
    # an application of Hydra ends with argparse's error, before it asks any plugin
    atexit.register(lambda: importlib.import_module("declog.config.plugin").explain_flags(sys.argv[1:]))

__all__ = [
    "CommError", "CompositionError", "ConfigError", "DeclogError", "InputError", "LogSpec", "MissingSignalError",
    "Packet", "Plan", "PlanMismatchError", "Recorder", "SinkError", "UnknownSignalError", "UsageError", "attach",
    "bind", "callback", "column", "compile", "compose", "config_of", "current", "detach", "function", "keep",
    "log_extra", "log_metric", "merge", "observe", "plan", "presets", "read", "reducer", "report", "reward", "rows",
    "scalars", "shadow", "start", "tee", "timer", "validate",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: ``import declog`` imports neither torch nor pydantic."""
    if name in ("records", "testing"):
        return importlib.import_module(f"declog.{name}")
    home = _HOMES.get(name)
    if home is None:
        from declog.errors.habits import meant, no_attribute

        scopes = sys.modules.get("declog.runtime.rows.scopes")  # where a run is open
        fix = meant(name, __all__, "declog", in_step=scopes is not None and scopes.in_step())
        raise no_attribute(f"module 'declog' has no attribute {name!r}{fix}")
    value = getattr(importlib.import_module(f"declog.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
