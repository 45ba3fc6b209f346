"""From frames to records, and from records to sinks: names, profiles, alerts. Rank 0 only; no torch."""

from __future__ import annotations

import fnmatch
import logging
import re
import string
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from declog.engine import formulas
from declog.engine.cell_values import row_bytes
from declog.engine.cells import Cells, cells_of, labelled, reduce_one
from declog.engine.evaluator import View
from declog.engine.frame import Frame
from declog.engine.over_run import OverRun
from declog.engine.partials import state_of
from declog.engine.reduce import Reductions
from declog.engine.tables import Tables
from declog.engine.window_state import WindowState
from declog.errors import RuntimeFailure, error_text
from declog.language.dtypes import DType
from declog.language.functions import DEFAULT, Functions
from declog.language.functions.text import BETWEEN
from declog.language.nodes import Node
from declog.language.segmented import present
from declog.plans.meaning import meanings
from declog.plans.needs import needs, ordered, read
from declog.plans.ops import AlertOp, FormulaOp, MetricOp, Plan, ProfileOp, TableOp
from declog.records import RANKS, SELF, Alert, Histogram, Records, Scalar, Table

log = logging.getLogger("declog")
NO_FIGURES: Mapping[str, float] = {}
SKIPPED = "declog/skipped"
DROPPED, LATE = "declog/dropped", "declog/late"  # rows that are in no window
LOST = (DROPPED, LATE)
NONFINITE = "nonfinite/"  # of a metric's id: how many of its values are NaN where that is no gap, or infinite
Report = Callable[[BaseException], None]


@dataclass(frozen=True)
class Route:
    """Where one sink's records go, and which it takes.

    ``local`` are the tables of which each rank writes its own rows to it; ``most`` is how many bytes of a table without
    a filter it is given at once. ``last``: where a run ends between its turns, it is given the last values.
    """

    id: str
    profile: str
    every: int
    prefix: str
    accepts: frozenset[str]
    submit: Callable[[int, Records], None]
    local: frozenset[str] = frozenset()
    most: int | None = None
    last: bool = False


class _Output(NamedTuple):
    """A scalar or histogram with what profiles ask of it."""

    key: str
    alias: bool
    record: Scalar | Histogram


@dataclass(frozen=True)
class _Event:
    """What one log event has for all sinks: of it each takes a share."""

    blank: Records  # of its mode and time, without values
    prefix: str
    cells: Mapping[str, Cells]
    outputs: Sequence[_Output]
    tables: Sequence[Table]
    alerts: tuple[Alert, ...]
    broken: Sequence[Scalar]  # of metrics that are NaN or infinite, how many values are
    own: Sequence[Scalar]  # what declog itself cost
    partial: int | None  # of how many ranks there are rows, where some are missing


class Dispatcher:
    """Evaluates log events and sends each sink its share."""

    def __init__(self, plan: Plan, routes: Sequence[Route], functions: Functions = DEFAULT) -> None:
        self._plan = plan
        self._routes = routes
        self._functions = functions
        self._streaks: Counter[tuple[str, str]] = Counter()  # log events in a row that an alert held, by mode
        self._events: Counter[str] = Counter()  # log events by mode
        self._untaken: dict[tuple[str, int], tuple[int, list[_Event]]] = {}  # the last step's, by mode and route
        self._over_run = OverRun()
        self._facts: Mapping[str, float] = {}  # of the window that is evaluated, by the names of expressions
        self._combine = {op.key: op.combine if op.over_run is None else "mean" for op in plan.outputs}
        self._reported: set[str] = set()
        self._samples = Tables(functions)
        self._gaps: set[str] = set()  # metrics whose missing values are reported already
        self._outputs_by_key = {op.key: op for op in plan.outputs}
        self._shown = {
            period: [op for op in plan.outputs if op.shown and op.every == period] for period in plan.periods
        }
        self._integers = {op.key for op in plan.outputs if _of_integers(op)}
        self._periods = {op.key: op.every for op in plan.outputs}
        self._metric_ops = {period: [op for op in plan.metrics if op.every == period] for period in plan.periods}
        self._reductions = {period: Reductions(_at_once(ops)) for period, ops in self._metric_ops.items()}
        self._made = _made(plan)  # formulas, and what has a condition, in the order in which they need each other
        self._declared = {
            item.template for op in plan.outputs if op.shown for item in op.names if "{" not in item.template
        } | {NONFINITE + op.id for op in plan.outputs}
        self._owners: dict[str, tuple[str, bool]] = {}  # of each name as trackers show it, what wrote it

    def state(self) -> dict[str, Any]:
        """For a checkpoint: totals, and where alerts and sinks are in their counts."""
        return {
            "streaks": [[mode, alert, count] for (mode, alert), count in self._streaks.items()],
            "events": dict(self._events),
            "tables": self._samples.state(),
            "over_run": self._over_run.plain(),
            "meanings": meanings(self._plan),
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; what this plan does not have, or computes otherwise, is left out."""
        self._streaks.update({(mode, alert): count for mode, alert, count in data["streaks"]})
        self._events.update(data["events"])
        self._samples.load(data["tables"])
        before = data.get("meanings", {})  # states of earlier versions have none
        other = {key for key, text in meanings(self._plan).items() if before.get(key, text) != text}
        if other:
            log.warning(
                "over the run these begin anew, as they are computed otherwise now: %s", ", ".join(sorted(other))
            )
        kept = {key: op for key, op in self._outputs_by_key.items() if key not in other}
        self._over_run.load(data["over_run"], kept)

    def dispatch(
        self,
        step: int,
        due: Mapping[int, WindowState],
        report: Report,
        *,
        mode: str = "train",
        figures: Mapping[str, float] = NO_FIGURES,
    ) -> dict[str, float]:
        """Evaluate the metrics and tables whose windows end here, hand the records to the sinks, return the scalars.

        Where ranks are missing from a window, every sink learns how many there are rows of. ``figures`` are what
        declog itself cost, for the profiles that ask.
        """
        if not any(due.values()):
            return {}  # nothing came since the last log event
        partial = min((held.partial for held in due.values() if held.partial is not None), default=None)
        prefix = self._plan.modes[mode].prefix
        outputs: list[_Output] = []
        picked: list[Table] = []
        everything: dict[str, Cells] = {}
        for period, held in sorted(due.items()):  # a condition may read metrics of shorter windows
            self._facts = _facts(step, held)
            found = self._metrics(period, held, everything, (mode, step), report)
            everything.update(found)
            outputs += self._outputs(period, found, held.partial is not None, report, prefix)
            picked += self._tables(period, held.table_rows, report)
        self._facts = _facts(step, due.get(self._plan.every, held))
        own = [Scalar(name, figures[name], name) for name in LOST if figures.get(name)]
        if figures and due.get(self._plan.every):  # not where slower windows alone end with the run
            skipped = sum(item.skipped for item in everything.values())
            cost = {name: value for name, value in figures.items() if not (value and name in LOST)}
            own += [Scalar(name, value, name) for name, value in {**cost, SKIPPED: skipped}.items()]
        alerts = tuple(self._alerts(mode, everything, due.keys(), report))
        event = _Event(
            Records(mode, time.time()),
            prefix,
            everything,
            outputs,
            picked,
            alerts,
            self._broken(everything),
            own,
            partial,
        )
        self._events[mode] += 1
        for place, route in enumerate(self._routes):
            if self._events[mode] % route.every == 0:  # as windows count, so that a table of this period is seen
                records = self._share(route, event, report)
                if self._untaken.get((mode, place), (step, []))[0] != step:  # others of this step are not shown yet
                    del self._untaken[mode, place]
            else:  # an alert waits for no sink's turn
                records = replace(event.blank, alerts=alerts if "alert" in route.accepts else ())
                if route.last:
                    self._keep((mode, place), step, event)
            _submit(route, step, records, report)
        scalars = [item.record for item in outputs if isinstance(item.record, Scalar)]
        logged = {prefix + scalar.name: scalar.value for scalar in scalars}
        return logged if partial is None else {**logged, RANKS: partial}

    def close(self, report: Report) -> None:
        """The run is over: sinks that show its last values get those that came after their last turn."""
        for (_, place), (step, events) in sorted(self._untaken.items(), key=lambda item: item[1][0]):
            route = self._routes[place]
            shares = [self._share(route, event, report) for event in events]
            scalars = {item.name: item for share in shares for item in share.scalars}
            histograms = {item.name: item for share in shares for item in share.histograms}
            tables = tuple(table for share in shares for table in share.tables)
            last = replace(
                shares[-1], scalars=tuple(scalars.values()), histograms=tuple(histograms.values()), tables=tables
            )
            _submit(route, step, last, report)
        self._untaken.clear()

    def _keep(self, key: tuple[str, int], step: int, event: _Event) -> None:
        """Keep an event that a sink does not take, in case it is the run's last; slower windows end at its step too."""
        route = self._routes[key[1]]
        outputs = self._plan.profiles[route.profile].outputs
        tables = [table for table in event.tables if self._takes(route, table.table)]
        if not tables and all((item.key, item.alias) not in outputs for item in event.outputs):
            return  # nothing of it is shown there: the values before it are the last ones
        before, events = self._untaken.get(key, (step, []))
        rest = replace(event, tables=tables, alerts=())  # its alerts were shown
        self._untaken[key] = step, [*events, rest] if before == step else [rest]

    # -- values

    def _metrics(
        self, period: int, held: WindowState, known: Mapping[str, Cells], at: tuple[str, int], report: Report
    ) -> dict[str, Cells]:
        views = {name: View(frame, self._functions) for name, frame in held.rows.items()}
        ops, reductions = self._metric_ops[period], self._reductions[period]
        if held.folded:  # of most metrics there are states instead of rows
            reductions = Reductions(op for op in _at_once(ops) if not op.reduction.foldable)
        try:
            found = {**reductions.run(views), **held.cells()}
        except BaseException:  # noqa: BLE001  (found out, and reported, one by one)
            found = held.cells()
            for op in _at_once(ops) if not held.folded else [op for op in _at_once(ops) if not op.reduction.foldable]:
                # one that fails does not take the others with it
                try:
                    found.update(Reductions([op]).run(views))
                except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
                    report(_failure(f"the metric `{op.key}`", error))
        for op in ops:
            if op.over_run is not None:
                try:
                    self._go_on(op, at, held, views, found)
                except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
                    found.pop(op.key, None)
                    report(_failure(f"the metric `{op.key}`", error))
        for op in ops:
            if op.instead is not None and op.instead in found and found[op.instead].there.any():
                found[op.key] = found[op.instead]
        for op in ops:
            if op.key in found and found[op.key].skipped and op.nan != "propagate":
                self._skipped(op, found[op.key], report)
        self._compute(period, found, known, at, report)
        return found

    def _compute(
        self, period: int, found: dict[str, Cells], known: Mapping[str, Cells], at: tuple[str, int], report: Report
    ) -> None:
        """Add the formulas; take away what a condition hides, so that all that reads it finds it absent."""
        for group in self._made[period]:
            for op in group:
                if isinstance(op, FormulaOp):
                    try:
                        whole = formulas.formula(op, found, self._functions, self._facts)
                        whole = whole if op.over_run is None else self._over_run.of(op, *at, whole)
                    except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
                        report(_failure(f"the metric `{op.key}`", error))
                    else:
                        found |= {} if whole is None else {op.key: whole}
            when = group[0].when
            if when is not None and not self._holds(when, {**known, **found}, f"the metric `{group[0].id}`", report):
                found |= {op.key: found[op.key].hidden() for op in group if op.key in found}

    def _broken(self, found: Mapping[str, Cells]) -> list[Scalar]:
        """Of the metrics that are NaN or infinite, how many values are."""
        return [
            Scalar(NONFINITE + op.id, n, op.key)
            for op in self._plan.outputs
            if op.shown and op.key in found and (n := _infinite(found[op.key], op))
        ]

    def _go_on(
        self, op: MetricOp, at: tuple[str, int], held: WindowState, views: Mapping[str, View], found: dict[str, Cells]
    ) -> None:
        """A metric over the run is what it was at the last log event, with this window."""
        whole_window = op.over_run == "moments" and op.pool == "window"
        state, view, window = None, views.get(op.phase), found.get(op.key)
        if op.reduction.foldable and (op.by is not None or whole_window):
            state = held.states.get(op.key)
            state = state_of(op, view) if state is None and view is not None and not held.folded else state
        if op.by is not None:
            names = self._over_run.names(op, at[0])
            if state is not None:
                state, rest = labelled(op, state, names)
                window = cells_of(op, state, rest)
            elif view is not None:
                window = reduce_one(op, view, names)
        whole = self._over_run.of(op, *at, window, state if whole_window else None)
        if whole is not None:
            found[op.key] = whole

    def _holds(self, condition: Node, found: Mapping[str, Cells], what: str, report: Report) -> formulas.Place | None:
        """The cell in which a condition holds; None: it does not."""
        try:
            return formulas.first_place(condition, found, self._combine, self._functions, self._facts)
        except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
            report(_failure(what, error))
            return None

    def _hidden(self, profile: ProfileOp, found: Mapping[str, Cells], report: Report) -> set[tuple[str, bool, str]]:
        """The names that the profile's conditions hide at this log event."""
        what = f"a condition of the profile `{profile.name}`"
        return {
            item
            for outputs, node, hides in profile.conditions
            if (self._holds(node, found, what, report) is not None) is hides
            for item in outputs
        }

    def _skipped(self, op: MetricOp, whole: Cells, report: Report) -> None:
        count = whole.skipped
        if op.nan == "raise":
            report(RuntimeFailure.of("DL605.nan", metric=op.key, count=count))
        elif op.id not in self._gaps and present(whole.values).any():  # what is missing altogether is no gap
            self._gaps.add(op.id)
            log.warning(
                "the metric `%s` leaves out missing values (%d at its first log event with any); "
                "`nan: propagate` shows them",
                op.id,
                count,
            )

    def _outputs(
        self, period: int, found: Mapping[str, Cells], partial: bool, report: Report, prefix: str
    ) -> list[_Output]:
        made: list[_Output] = []
        taken = set(self._declared)
        for op in self._shown[period]:
            whole = found.get(op.key)
            if whole is None or (op.family and not whole.members):
                continue  # a family that never came has no names
            for member, label, value in _present(whole, self._combine[op.key]):
                number = float(value)
                if op.key in self._integers and number.is_integer() and abs(number) < 2.0**53:
                    number = int(number)
                for item in op.names:
                    name = _filled(op, item.template, whole, member, label)
                    if name == item.template:
                        self._owners[prefix + name] = op.key, item.alias
                    elif name in taken or name.startswith(SELF) or not self._owns(prefix + name, op, item.alias):
                        self._shadow(name, op, report)
                        continue
                    taken.add(name)
                    made.append(_Output(op.key, item.alias, Scalar(name, number, op.key, partial)))
            for (member, label), (counts, edges) in whole.histograms.items():
                for item in op.names:
                    name = _filled(op, item.template, whole, member, label)
                    whole_counts, numbers = [int(n) for n in counts], [float(edge) for edge in edges]
                    made.append(_Output(op.key, item.alias, Histogram(name, whole_counts, numbers, op.key)))
        return made

    def _owns(self, name: str, op: MetricOp | FormulaOp, alias: bool) -> bool:
        """Whether a run-time name is this output's: it belongs to the first that writes it, of any window and mode."""
        return self._owners.setdefault(name, (op.key, alias)) == (op.key, alias)

    def _shadow(self, name: str, op: MetricOp | FormulaOp, report: Report) -> None:
        if name not in self._reported:
            self._reported.add(name)
            report(RuntimeFailure.of("DL508.metric", key=op.key, name=name))

    # -- tables and alerts

    def _tables(self, period: int, frames: Mapping[str, Frame], report: Report) -> list[Table]:
        made = []
        for op in self._plan.tables:
            if op.every == period and op.phase in frames and any(self._takes(route, op.id) for route in self._routes):
                table = self._table(op, frames[op.phase], report)
                if table is not None:
                    made.append(table)
        return made

    def _table(self, op: TableOp, frame: Frame, report: Report) -> Table | None:
        try:
            return self._samples.build(op, frame, report)
        except RuntimeFailure as error:
            report(error)
        except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
            report(_failure(f"the table `{op.id}`", error))
        return None

    def _takes(self, route: Route, table: str) -> bool:
        if table not in self._plan.profiles[route.profile].tables or table in route.local:
            return False
        return route.id == CODE or any(op.id == table and route.id in op.sinks for op in self._plan.tables)

    def _too_large(self, route: Route, table: Table, report: Report) -> bool:
        """Whether a table without a filter is more than the sink is given at once: that is reported."""
        bounded = any(op.id == table.table and op.filter is None and op.max_bytes is None for op in self._plan.tables)
        if route.most is None or not bounded:
            return False
        if int(row_bytes(table.columns, table.data, table.rows).sum()) <= route.most:
            return False
        message = f"the table `{table.table}` has no filter, and more than {route.most} bytes in one log event"
        report(RuntimeFailure.of("DL405.size", message=message, sink=route.id))
        return True

    def _alerts(self, mode: str, found: Mapping[str, Cells], due: Collection[int], report: Report) -> Iterable[Alert]:
        """The alerts that fire; one whose metrics are not logged at this event waits for those that are."""
        for op in self._plan.alerts:
            if not all(self._periods[key] in due for key in read(op.when)):
                continue
            here = any(key in found for key in read(op.when))  # else nothing of them is of this mode
            place = self._holds(op.when, found, f"the alert `{op.id}`", report) if here else None
            self._streaks[mode, op.id] = 0 if place is None else self._streaks[mode, op.id] + 1
            if place is not None and self._streaks[mode, op.id] == op.patience:
                yield Alert(op.id, op.level, _worded(op, formulas.shown(dict(op.fields), found, self._combine, place)))

    # -- sinks

    def _share(self, route: Route, event: _Event, report: Report) -> Records:
        """What the route's profile shows of a log event, as far as its sink accepts it."""
        profile, prefix = self._plan.profiles[route.profile], route.prefix + event.prefix
        hidden = self._hidden(profile, event.cells, report)
        some = {item[:2] for item in profile.only}
        outputs = [item for item in event.outputs if (item.key, item.alias) in profile.outputs]
        if hidden or some or profile.without:
            outputs = [
                item
                for item in outputs
                if not _named(item, hidden)
                and ((item.key, item.alias) not in some or _named(item, profile.only))
                and not _named(item, profile.without)
            ]
        shown = [_prefixed(item.record, prefix) for item in outputs]
        counts = {
            item.name: _prefixed(item, prefix)
            for item in event.broken
            if (item.metric, False) in profile.outputs and (item.metric, False, "*") not in hidden
        }
        shown = [*counts.values(), *shown]  # first: what shows a few shows them
        if shown and event.partial is not None:
            shown.append(Scalar(route.prefix + RANKS, event.partial, RANKS))
        lost = [item for item in event.own if item.name in LOST and item.value]  # whatever the profile shows
        shown += [_prefixed(item, route.prefix) for item in (event.own if profile.self_metrics else lost)]
        tables = [
            _prefixed(table, prefix)
            for table in event.tables
            if self._takes(route, table.table) and not self._too_large(route, table, report)
        ]
        accepts = route.accepts
        return replace(
            event.blank,
            scalars=tuple(item for item in shown if isinstance(item, Scalar)) if "scalar" in accepts else (),
            histograms=tuple(item for item in shown if isinstance(item, Histogram)) if "histogram" in accepts else (),
            tables=tuple(tables) if "table" in accepts else (),
            alerts=event.alerts if "alert" in accepts else (),
        )


FIELD = re.compile(r"\{(\w+)\}")
CODE = "<code>"  # the route of sinks that are given in code


def _at_once(ops: Iterable[MetricOp]) -> list[MetricOp]:
    """The metrics that are reduced together: not those whose labels keep names over the run."""
    return [op for op in ops if op.over_run is None or op.by is None]


def _facts(step: int, held: WindowState) -> dict[str, float]:
    """What formulas and conditions can read of a window besides metrics; what is not known is not there."""
    known = {"elapsed": held.elapsed, "seconds": held.seconds}
    return {"step": float(step), **{name: value for name, value in known.items() if value}}


def _submit(route: Route, step: int, records: Records, report: Report) -> None:
    if records:
        try:
            route.submit(step, records)
        except RuntimeFailure as error:  # `on_error: raise` of one sink does not take the others with it
            report(error)


def _infinite(whole: Cells, op: MetricOp | FormulaOp) -> int:
    if isinstance(op, MetricOp):
        return whole.broken
    return int(np.isinf(whole.values).sum()) + (0 if whole.kept is None else int(whole.kept.sum()))


def _failure(what: str, error: BaseException) -> RuntimeFailure:
    """An error while something was evaluated, saying what it was; its own cause is kept."""
    if isinstance(error, RuntimeFailure):
        return RuntimeFailure(error.code, f"{what}: {error.args[0].split('] ', 1)[-1]}")
    failure = RuntimeFailure.of("DL605.failed", what=what, error=error_text(error))
    failure.__cause__ = error
    return failure


def _present(whole: Cells, how: str) -> Iterable[tuple[int, int, float]]:
    """The values that there are: (member, label, value)."""
    if whole.values.size == 1 and whole.kept is None and how != "var":  # most metrics
        value = whole.values.item()
        return ((0, 0, value),) if value == value else ()
    values, there = whole.combined(how)
    return [(member, label, values[member, label]) for member, label in np.argwhere(there).tolist()]


def _named(item: _Output, names: Collection[tuple[str, bool, str]]) -> bool:
    """Whether an output's name is among some."""
    return any(
        (key, alias) == (item.key, item.alias) and (word == "*" or fnmatch.fnmatchcase(item.record.name, word))
        for key, alias, word in names
    )


def _prefixed(record: Any, prefix: str) -> Any:
    return replace(record, name=prefix + record.name) if prefix else record


def _filled(op: MetricOp | FormulaOp, template: str, whole: Cells, member: int, label: int) -> str:
    """The name of a cell. A label may have several parts, each with a field of its own; the rest has one for all."""
    if "{" not in template:
        return template
    fields = {"column": whole.members[member]} if whole.members else {}
    if whole.labels:
        parts = whole.labels[label].split(BETWEEN) if len(op.labels) > 1 else [whole.labels[label]]
        fields |= {"label": "/".join(parts)}
        fields |= dict(zip(op.labels, parts if len(parts) > 1 else parts * len(op.labels), strict=True))
    return FIELD.sub(lambda found: fields.get(found[1], found[0]), template)


def _of_integers(op: MetricOp | FormulaOp) -> bool:
    """Whether an output's whole numbers are integers."""
    return (
        isinstance(op, MetricOp)
        and op.dtype is DType.INT
        and op.combine in ("sum", "min", "max", "last", "mean")
        and op.pool == "window"
        and op.ema is None
    )


def _worded(op: AlertOp, values: Mapping[str, float | None]) -> str:
    """The alert's text with its metrics' values; a text that cannot be filled is shown as it is."""
    try:
        return _Text().vformat(op.text, (), values)
    except (KeyError, ValueError):
        return op.text


class _Text(string.Formatter):
    """``{length.max}`` is one name, and no attribute."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        return kwargs[field_name], field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        return "absent" if value is None else str(super().format_field(value, format_spec))


def _made(plan: Plan) -> dict[int, list[list[MetricOp | FormulaOp]]]:
    """By period, the formulas and what has a condition: each with its reductions, after what it needs."""
    outputs = {id: [op for op in plan.outputs if op.id == id] for id in ordered(needs(plan.outputs))[0]}
    some = [ops for ops in outputs.values() if isinstance(ops[0], FormulaOp) or ops[0].when is not None]
    return {period: [ops for ops in some if ops[0].every == period] for period in plan.periods}
