"""Compile a ``LogSpec`` to a ``Plan``, in the small passes that ``PASSES`` lists.

Each pass reads the fields of the draft that earlier passes added, and reports every problem that it finds. The
compilation stops after the first group of passes that reported a problem. Only this package knows both the models of
the YAML and the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from declog.compiler import (
    alerts,
    captures,
    checks,
    filters,
    formulas,
    lowering,
    metrics,
    names,
    outputs,
    signals,
    tables,
)
from declog.compiler.draft import Constant, Draft, as_written
from declog.errors import ConfigError, Problem, Where
from declog.language import functions as _functions
from declog.language import reductions as _reducers
from declog.language import row_functions as _columns
from declog.language.functions.reduced import FunctionsAndReductions
from declog.language.nodes import walk
from declog.language.spec import LogSpec, ModeSpec, SignalSpec
from declog.plans.fingerprint import expressions
from declog.plans.ops import Plan


@dataclass(frozen=True)
class Pass:
    """A step of the compiler.

    ``reads`` names the fields of the draft that the pass reads, which earlier passes added. ``adds`` names the fields
    that it writes. Neither lists the fields in ``draft.ALWAYS``. A test compares both with the fields that a pass uses.
    """

    run: Callable[[Draft], None]
    reads: str = ""
    adds: str = ""


PASSES: tuple[tuple[Pass, ...], ...] = (
    (
        Pass(signals.constants, adds="constants"),
        Pass(signals.switches, reads="constants", adds="inactive"),
    ),
    (
        Pass(signals.modes, adds="modes"),
        Pass(signals.declarations, reads="inactive", adds="signals"),
        Pass(signals.default_phase, reads="signals", adds="default_phase phase_order"),
        Pass(signals.groups, reads="signals", adds="grouping"),
        Pass(signals.masks, reads="signals"),
        Pass(signals.typing, reads="constants signals default_phase phase_order grouping", adds="inactive"),
        Pass(metrics.metrics, reads="constants signals default_phase phase_order grouping", adds="inactive metrics"),
        Pass(names.about),
        Pass(formulas.formulas, reads="modes constants signals metrics", adds="inactive formulas"),
        Pass(formulas.conditions, reads="modes", adds="inactive metrics formulas"),
        Pass(outputs.names, reads="metrics formulas"),
        Pass(outputs.modes, reads="modes metrics formulas"),
        Pass(outputs.destinations, adds="sinks"),
        Pass(outputs.places, reads="sinks"),
        Pass(outputs.profiles, reads="modes inactive signals metrics formulas sinks", adds="profiles"),
        Pass(filters.filters, reads="constants signals default_phase phase_order grouping", adds="inactive filters"),
        Pass(
            tables.tables,
            reads="constants signals default_phase phase_order grouping filters sinks profiles",
            adds="inactive tables",
        ),
        Pass(alerts.alerts, reads="modes constants signals metrics formulas", adds="inactive alerts"),
    ),
    (
        Pass(outputs.unseen, reads="metrics formulas sinks profiles", adds="unseen"),
        Pass(outputs.selection, reads="alerts profiles", adds="inactive metrics formulas"),
        Pass(checks.empty),
        Pass(checks.quantiles, reads="metrics tables"),
        Pass(checks.surprises, reads="metrics tables"),
        Pass(checks.draws, reads="metrics tables"),
        Pass(checks.comparisons, reads="metrics tables alerts"),
        Pass(checks.escapes, reads="metrics tables"),
        Pass(checks.constants),
        Pass(checks.conditions, reads="metrics formulas alerts"),
        Pass(checks.glued, reads="metrics formulas modes sinks"),
        Pass(checks.turns, reads="metrics formulas tables sinks"),
        Pass(checks.functions, reads="metrics tables"),
        Pass(checks.reducers, reads="metrics tables"),
    ),
    (
        Pass(
            lowering.lower,
            reads="inactive signals default_phase phase_order grouping constants",
            adds="metrics tables phases joins previous logged extra",
        ),
    ),
)


def compile(
    spec: LogSpec,
    *,
    constants: Mapping[str, Constant] | None = None,
    profiles: Iterable[str] = (),
    functions: _functions.Functions = _functions.DEFAULT,
    reductions: _reducers.Reductions = _reducers.DEFAULT,
    columns: _columns.RowFunctions = _columns.DEFAULT,
    config: Mapping[str, Any] | None = None,
    imports: Iterable[str] = (),
) -> Plan:
    """The plan of a config that ``declog.validate`` returned; raises ``ConfigError`` with every mistake.

    ``constants`` are the values that an adapter takes from its trainer. ``profiles`` are the profiles that sinks passed
    in Python use. ``config`` is the plain config as it may be written down, for the run's metadata. ``imports`` are the
    modules whose classes a sink's `kind` may name, ``module:Class``.
    """
    if not isinstance(spec, LogSpec):
        raise ConfigError([Problem.of("DL202.not_validated", where=Where(name="spec"), type=type(spec).__name__)])
    aggregating = FunctionsAndReductions(functions, reductions)
    draft = Draft(spec, aggregating, reductions, constants or {}, frozenset(profiles), columns, frozenset(imports))
    for stage in PASSES:
        for one in stage:
            one.run(draft)
        if draft.problems:
            raise ConfigError(list(dict.fromkeys(draft.problems)))
    observed = [(signal.from_ or name, name, signal) for name, signal in draft.observed.items()]
    names = {item.name for item in fields(Plan)}
    of_draft = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(draft).items()}
    run = (config or {}).get("run")
    facts: dict[str, Any] = {
        **as_written(spec, Plan),  # from the config, from its `run`, and from the passes
        **as_written(spec.run, Plan),
        **{name: value for name, value in of_draft.items() if name in names},
        "name": spec.run.name or spec.run.project,
        "every": draft.period,
        "ids": spec.axes.completion.ids,
        "homes": {source: homes[0] for source, name, _ in observed if len(homes := draft.signals[name].homes) == 1},
        "inactive": tuple(draft.inactive.items()),
        "renamed": {
            old: source for source, _, signal in observed if isinstance(signal, SignalSpec) for old in signal.before
        },
        "signal_names": frozenset(source for source, _, _ in observed),
        "extras": frozenset(source for source, _, signal in observed if signal.from_log_extra),
        "known_phases": draft.known_phases,
        "run_config": (run.get("config") or {}) if isinstance(run, Mapping) else spec.run.config,
        "config": {key: value for key, value in (config or {}).items() if key != "tests"},
        "in_code": bool(draft.requested),
        "first": spec.modes.get("train", ModeSpec()).first or 0,
        "capture": captures.capture(spec.run.capture),
        "redactions": captures.redactions(draft),
        "offered": dict(draft.offered),
    }
    plan = Plan(**facts)
    return replace(plan, functions=_foreign(plan, aggregating))


def _foreign(plan: Plan, functions: _functions.Functions) -> dict[str, _functions.Function]:
    """The functions that a plan's expressions call and declog does not have built in, by name."""
    names = sorted({node.op for node in walk(*expressions(plan)) if node.op not in _functions.BUILTIN})
    return {name: function.compiled for name in names if (function := functions.get(name)) is not None}
