"""The draft that the passes work on: the config, the results of earlier passes, and the problems so far."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from declog.errors import Path, Problem, UsageError, in_flow
from declog.language.dtypes import AXES, NUMERIC, Axis, DType, Type, any_of, per
from declog.language.fixes.tracker_names import Shown, metric_of
from declog.language.fixes.wrong_calls import of_chosen
from declog.language.functions import Functions
from declog.language.functions.rules import of_quotient, of_text, of_type
from declog.language.model import Model
from declog.language.nodes import COMBINED, LOGGED, SIGNAL, Graph, Node, walk
from declog.language.parser import body_of, tree_of
from declog.language.phases import join, latest
from declog.language.reductions import Reductions
from declog.language.row_functions import RowFunctions
from declog.language.spec import DerivedSpec, LogSpec, MetricSpec, Observed
from declog.language.syntax import ExpressionError
from declog.plans import ops

Constant = bool | int | float | str
Op = TypeVar("Op")
NAME = re.compile(r"[a-z_]\w*")  # a name in a text that is not parsed
# Every pass may read the config and the arguments of `compile`, use typed expressions, and report problems.
ALWAYS = frozenset(
    {"spec", "functions", "reductions", "offered", "requested", "columns", "imports"}
    | {"graph", "nodes", "typing", "problems", "warnings"}
)


class SwitchedOff(Exception):
    """An expression reads an entry that is off: whatever reads the expression is off, too, without an error."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True)
class Signal:
    """A signal of the config, observed or derived: its entry, the entry's path, and its phases."""

    spec: Observed | DerivedSpec
    path: Path
    homes: tuple[str, ...] = ()  # the phases that declare the signal; empty for `any`

    def comes_in(self, phase: str) -> bool:
        """Whether a phase may observe the signal."""
        return not self.homes or phase in self.homes

    @property
    def declaration(self) -> str:
        """The declaration in short: `completion int`, `{axis: completion, from: scores}`; `...` if it is derived."""
        if not isinstance(self.spec, Observed):
            return "..."
        keys = self.spec.model_dump(include={*Observed.model_fields}, exclude_defaults=True, by_alias=True, mode="json")
        words = str(keys["axis"]) if self.spec.type is DType.FLOAT else f"{keys['axis']} {self.spec.type.value}"
        return in_flow(keys) if keys.keys() - {"axis", "type"} else words


@dataclass
class Draft:
    """The state of one compilation. Every pass reads the results of earlier ones, and reports to ``problems``."""

    spec: LogSpec
    functions: Functions
    reductions: Reductions
    offered: Mapping[str, Constant]  # constants from an integration
    requested: frozenset[str]  # profiles of sinks that were passed in Python
    columns: RowFunctions
    imports: frozenset[str]  # modules whose classes a sink's `kind` may name
    modes: dict[str, ops.ModeOp] = field(default_factory=dict)
    graph: Graph = field(default_factory=Graph)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    inactive: dict[str, str] = field(default_factory=dict)  # the reason, by entry such as "metrics.kl"
    constants: dict[str, Constant] = field(default_factory=dict)
    signals: dict[str, Signal] = field(default_factory=dict)
    nodes: dict[str, Node | Problem | SwitchedOff] = field(default_factory=dict)
    typing: list[str] = field(default_factory=list)  # derived signals that are being typed, outermost first
    default_phase: str = "default"
    # the order of named phases; below 0: a phase without rows
    phase_order: dict[str, int] = field(default_factory=dict)
    grouping: ops.Grouping | None = None
    metrics: list[ops.MetricOp] = field(default_factory=list)
    formulas: list[ops.FormulaOp] = field(default_factory=list)
    tables: list[ops.TableOp] = field(default_factory=list)
    filters: dict[str, ops.FilterOp] = field(default_factory=dict)
    alerts: list[ops.AlertOp] = field(default_factory=list)
    sinks: list[ops.SinkOp] = field(default_factory=list)
    profiles: dict[str, ops.ProfileOp] = field(default_factory=dict)
    phases: dict[str, ops.PhaseOp] = field(default_factory=dict)
    joins: list[ops.JoinOp] = field(default_factory=list)
    previous: list[ops.PreviousOp] = field(default_factory=list)
    logged: ops.SignalOp | None = None
    unseen: tuple[str, ...] = ()
    extra: str | None = None

    @property
    def period(self) -> int:
        """The steps from one log event to the next; 0 if the trainer decides."""
        return self.spec.every if isinstance(self.spec.every, int) else 0

    def order(self, phase: str) -> int:
        """The position of a phase in a step; a phase that is not named comes last."""
        return self.phase_order.get(phase, 3)

    def window(self, every: int | None, *path: str | int) -> int:
        """The window of a metric or table in steps; with a path, a wrong `every` is reported there."""
        if every is not None and path and self.period and every % self.period:
            near, least = self.period * max(1, round(every / self.period)), math.gcd(every, self.period)
            more = f"or at the top `every: {least}`, and `every: {self.period}` for what shall have fewer values"
            self.report("DL202.every_multiple", path, period=self.period, fix=f"every: {near}\n{more}")
        return self.period if every is None else every

    @property
    def registered(self) -> frozenset[str]:
        """The names of all functions and reductions."""
        return frozenset({*self.functions.names(), *self.reductions.names()})

    def report(self, key: str, path: str | Path, /, *, related: tuple[Path, ...] = (), **facts: Any) -> None:
        """Report a problem at a path of the config; ``related`` are other paths that its message names."""
        self.problems.append(Problem.of(key, path, related=related, **facts))

    def report_first(self, problem: Problem, path: Path) -> None:
        """Report a problem at a path, unless this path has a problem already."""
        if all(reported.path != path for reported in self.problems):
            self.problems.append(replace(problem, path=path))

    def latest(self, phases: Iterable[str], path: Path) -> str:
        """The last of these phases. A value that reads them all has its rows. Phases without an order are reported."""
        try:
            return latest(phases, self.order)
        except ExpressionError as error:
            self.report_first(error.problem, path)
            return max(phases)

    def joined(self, node: Node, phase: str) -> Node:
        """A value for the rows of a phase; a value of an earlier phase is looked up for them."""
        return join(self.graph, node, phase, self.order)

    def warn(self, message: str) -> None:
        """Note something that is allowed but probably a mistake."""
        if message not in self.warnings:
            self.warnings.append(message)

    @contextmanager
    def at(self, *path: str | int, off: str | None = None) -> Iterator[None]:
        """Report errors of the expression at ``path``.

        If the expression reads an entry that is switched off, the entry ``off`` becomes inactive; without ``off``,
        ``SwitchedOff`` is raised.
        """
        try:
            yield
        except ExpressionError as error:
            self.problems.append(replace(error.problem, path=path))
        except UsageError as error:  # a function that an installed package fails to provide
            self.problems.append(Problem(error.code, error.message, path, error.fix))
        except SwitchedOff as error:
            if off is None:
                raise
            self.inactive[off] = error.reason

    @property
    def observed(self) -> dict[str, Observed]:
        """The signals that the training code observes, by name."""
        return {name: signal.spec for name, signal in self.signals.items() if isinstance(signal.spec, Observed)}

    @property
    def signal_names(self) -> list[str]:
        """The signals that the config declares, for suggestions, without the helpers of another signal.

        Helpers of a derived `length` are `given_length`, which is observed as `length`, and a derived `counted_length`.
        """
        preferred = {(id, entry.prefer) for id, entry in self.spec.metrics.items()}
        inside = {
            name: str(observed) for name, signal in self.signals.items()
            if (observed := getattr(signal.spec, "from_", None)) not in (None, name)
            and (observed in self.signals or (observed, name) in preferred)
        }  # fmt: skip
        endings = tuple(f"_{observed}" for observed in inside.values())
        return [
            name for name, signal in self.signals.items()
            if signal.path != ("signals", LOGGED) and name not in inside
            and not (signal.path[0] == "derived" and name.endswith(endings))
        ]  # fmt: skip

    @property
    def output_keys(self) -> list[str]:
        """The metrics that the config declares, for suggestions."""
        return [op.key for op in self.outputs if not self.implicit(op.id) and not op.id.endswith(ops.PREFERRED)]

    def active(self, section: str) -> dict[str, Any]:
        """The entries of a section that are on."""
        entries = getattr(self.spec, section)
        return {name: entry for name, entry in entries.items() if f"{section}.{name}" not in self.inactive}

    @property
    def split_groups(self) -> bool:
        """Whether groups are spread over ranks."""
        return self.grouping is not None and self.grouping.split == "ranks"

    @property
    def per_rank(self) -> bool:
        """Whether each rank has its own values."""
        return self.spec.axes.rank == "each"

    def implicit(self, id: str) -> bool:
        """Whether a metric is the implicit one of `log_metric`, whose names may be anything."""
        return id == LOGGED and LOGGED not in self.spec.metrics

    def deleted(self, entry: str) -> bool:
        """Whether the config deletes an entry, such as ``metrics.kl``."""
        return entry in self.spec.deleted

    def metric_shown(self, name: str) -> Shown | None:
        """The metric that trackers show under this name, or None."""
        read = {"name", "alias", "reduce", "by"}
        families = {op.id for op in self.metrics if op.family}
        entries = {
            id: {**metric.model_dump(include=read), "family": id in families}
            for id, metric in self.spec.metrics.items()
        }
        return metric_of(entries, name)

    @property
    def outputs(self) -> list[ops.MetricOp | ops.FormulaOp]:
        """Metrics and formulas together."""
        return [*self.metrics, *self.formulas]

    @property
    def known_phases(self) -> frozenset[str]:
        """The phases of all observed signals, also of those that the plan does not need."""
        named = [phase for name in self.observed for phase in self.signals[name].homes or (self.default_phase,)]
        return frozenset({*named, *self.phases})


def as_written(spec: Model, op: type[Any]) -> dict[str, Any]:
    """The fields of an op that its model has under the same names, with the model's values."""
    return {item.name: getattr(spec, item.name) for item in fields(op) if item.name in type(spec).model_fields}


def op_of(op: type[Op], spec: Model, **facts: Any) -> Op:
    """An op with the values that its model has under the same names; ``facts`` are added, or replace them."""
    return op(**as_written(spec, op) | facts)


def has_type(draft: Draft, node: Node, path: Path, dtypes: Sequence[DType]) -> bool:
    """Whether the values of an expression have one of these types; if not, that is reported at the key ``path``."""
    fits = node.type.dtype in dtypes
    if not fits:
        needed, dtype, fix = any_of(dtypes), node.type.dtype, of_quotient(node, dtypes) or of_type(node, dtypes)
        if (written := of_text(node, dtypes, draft.functions)) is not None:
            fix = f"{written}, or {fix}" if fix else written
        draft.report("DL305.needs", path, name=_key(path), needed=needed, node=node, dtype=dtype, fix=fix)
    return fits


def fits(draft: Draft, node: Node, path: Path, dtypes: Sequence[DType], axis: Axis, what: str) -> bool:
    """Whether a key accepts an expression: one of these types, no finer axis than ``axis``, and no family.

    If not, that is reported. ``what`` begins the sentence about the axis: "the expression is".
    """
    if not has_type(draft, node, path, dtypes):
        return False
    type, key = node.type, _key(path)
    if type.axis is not None and not needs_axis(type, axis):
        ways = ["any", "all"] if type.dtype is DType.BOOL else ["mean" if type.dtype in NUMERIC else "first"]
        ways = {"by": ["first"], "within": ["first"], "weight": ["sum"]}.get(key, ways)
        fix = _edits(path, [_of_each(node, way, axis) for way in ways])
        fix = f"{chosen}  or  {fix}" if (chosen := _of_chosen_rows(draft, path, node)) else fix
        if path[0] == "metrics" and key in ("by", "where"):
            fix = of_counted_rows(str(path[1]), draft.spec.metrics.get(str(path[1]))) or fix
        draft.report("DL310.finer", path, key=key, finer=per(type.axis), what=what, axis=per(axis), fix=fix)
    elif type.family:
        named = (str(inner.param("name")) for inner in walk(node) if inner.op == SIGNAL and inner.type.family)
        family = next(named, "family")
        calls = f"sum({family}, over=member)", f"member({family}, ...)"
        fix = _edits(path, [re.sub(rf"\b{family}\b", call, str(node)) for call in calls])
        draft.report("DL305.family", path, key=key, fix=fix)
    else:
        return True
    return False


def _of_chosen_rows(draft: Draft, path: Path, node: Node) -> str | None:
    """The metric for ``{expr: "max(x, over=completion)", where: c}`` if c is finer: only rows with c are reduced.

    None for another key, and for any other expression.
    """
    spec = draft.spec.metrics.get(str(path[1])) if path[0] == "metrics" and path[-1] == "where" else None
    match body_of(str(spec.expr)) if spec is not None else None:
        case ast.Call(args=[_], keywords=[ast.keyword("over", ast.Name(axis))]) as call:
            if node.type.axis is not AXES.get(axis) or spec is None:
                return None
            entry = spec.model_dump(include=spec.model_fields_set - {"expr", "where"}, by_alias=True)
            entry = {"expr": of_chosen(call, tree_of(str(node)).body), **entry, "where": None}
            return in_flow({path[1]: entry})[1:-1]
    return None


def of_counted_rows(id: str, spec: MetricSpec | None) -> str | None:
    """The metric for ``{expr: count(*), where: c}``, the sum of its condition, and for the rows of each label, `by`.

    None for a metric that counts anything else than rows, or all rows.
    """
    counted = "" if spec is None else f"{spec.reduce}({spec.expr})" if spec.reduce else str(spec.expr)
    if spec is None or not re.fullmatch(r"count\s*\(\s*[*1]?\s*\)|sum\(1\)", counted):
        return None
    entry = spec.model_dump(include=spec.model_fields_set - {"expr", "reduce"}, by_alias=True)
    if isinstance(spec.by, str):
        return in_flow({id: {"expr": f"present({spec.by})", "reduce": "count", **entry}})[1:-1]
    condition = entry.pop("where", None)
    value = {"expr": condition, "reduce": "sum", **entry} if entry else f"sum({condition})"
    return None if condition is None else in_flow({id: value})[1:-1]


def _of_each(node: Node, way: str, axis: Axis) -> str | list[str]:
    """An expression whose finer values are reduced to one for each value of ``axis``; for several labels, a list."""
    if node.op == COMBINED:
        return [str(_of_each(part, way, axis)) for part in node.args]
    finer = node.type.axis
    return str(node) if finer is None or needs_axis(node.type, axis) else f"{way}({node}, over={finer.label})"


def _edits(path: Path, values: Sequence[Any]) -> str:
    """The values that a key may have instead, in YAML: each with the key, and for an item of a list without it."""
    keyed = [in_flow({path[-1]: value})[1:-1] if isinstance(path[-1], str) else in_flow(value) for value in values]
    return "  or  ".join(keyed)


def _key(path: Path) -> str:
    """The key to which a path leads; for an item of a list, the list's key."""
    return next(part for part in reversed(path) if isinstance(part, str))


def needs_axis(type: Type, axis: Axis) -> bool:
    """Whether a value can be used where there is one value per ``axis``: it has this axis, or a coarser one."""
    return type.axis is None or type.axis <= axis
