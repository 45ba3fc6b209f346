"""Evaluates the metrics, tables and alerts of a log event, and hands each sink its share. Runs on rank 0 only."""

from __future__ import annotations

import fnmatch
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from declog.engine import formulas
from declog.engine.alert_texts import FiredAlert, is_chosen
from declog.engine.cells import Cells, MetricValues
from declog.engine.evaluator import View
from declog.engine.held_rows import KEPT
from declog.engine.log_event import EventFacts
from declog.engine.metrics import Metrics
from declog.engine.naming import Named, Naming, Output, shown_name
from declog.engine.reduce import Report
from declog.engine.tables.cell_values import row_bytes
from declog.engine.tables.table import Tables
from declog.engine.warnings.inactive import Inactive
from declog.engine.warnings.unseen_labels import UnseenLabels
from declog.engine.window_state import WindowState
from declog.errors import RuntimeFailure
from declog.errors.messages import listed
from declog.language.nodes import METRIC, Node, label_of
from declog.plans.meaning import meanings
from declog.plans.needs import judged, read
from declog.plans.ops import AlertOp, Plan, ProfileOp
from declog.records import RANKS, THEIRS, Alert, Beside, Histogram, Records, Scalar, Table, other_numbers

log = logging.getLogger("declog")
NO_FIGURES: Mapping[str, float] = {}
SKIPPED = "declog/skipped"
DROPPED, LATE = "declog/dropped", "declog/late"  # counts of rows that are in no window
LOST = (DROPPED, LATE)
FIRED = -1  # in place of a count of log events: the alert has fired and still holds
CODE = "<code>"  # the route of sinks that were passed in Python
Word = tuple[str, bool, str]  # an output, and a glob pattern of its names
Record = TypeVar("Record", Scalar, Histogram, Table)


@dataclass(frozen=True)
class Route:
    """The records that one sink takes, and the function that submits them.

    ``local`` names the tables whose rows each rank writes itself. ``most`` limits the bytes of a table without a filter
    in one log event. ``last``: if the run ends between two turns of the sink, it still gets the last values.
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


@dataclass(frozen=True)
class _Event:
    """All records of one log event, from which each sink gets its share."""

    blank: Records  # the mode and time, without values
    prefix: str
    results: MetricValues
    named: Named
    tables: Sequence[Table]
    alerts: Sequence[FiredAlert]
    nonfinite: Sequence[Scalar]  # how many values of each metric are NaN or infinite
    costs: Sequence[Scalar]  # declog's own costs
    partial: int | None  # how many ranks delivered rows, if some are missing
    exact: Sequence[tuple[Output, Scalar]]  # numbers whose names do not get the mode's prefix


class Dispatcher:
    """Evaluates log events and sends each sink its share.

    ``inactive`` is called with the reasons why metrics have no values, ``fired`` with each alert that fires.
    """

    def __init__(
        self,
        plan: Plan,
        routes: Sequence[Route],
        report: Report,
        inactive: Callable[[Mapping[str, str]], None] = lambda reasons: None,
        fired: Callable[[int, AlertOp, Alert], None] = lambda step, op, alert: None,
    ) -> None:
        self._plan = plan
        self._routes = routes
        self._report = report
        # both by mode and alert: for how many log events in a row it held (or FIRED), and for how many it stays silent
        self._streaks: Counter[tuple[str, str]] = Counter()
        self._silent: Counter[tuple[str, str]] = Counter()
        # the values of both before each log event that changed them, for a run that goes back
        self._earlier: deque[tuple[int, tuple[str, str], int, int]] = deque(maxlen=KEPT)
        self._latest = -1  # the step of training's latest log event
        self._told_of_rewind = False
        self._fired = fired
        self._events: Counter[str] = Counter()  # the number of log events by mode
        # by mode and route: the latest step and its events that the route did not take
        self._untaken: dict[tuple[str, int], tuple[int, list[_Event]]] = {}
        self._metrics = Metrics(plan, report)
        self._naming = Naming(plan, self._metrics.combine, report)
        self._samples = Tables(report, plan)
        self._outputs = {op.key: op for op in plan.outputs}
        self._alert_periods = [(op, judged(plan, op)) for op in plan.alerts]
        self.inactive = Inactive(plan, inactive)
        self._unseen_labels = UnseenLabels(plan)

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint: values over the run, and the counts of alerts and sinks."""
        return {
            "streaks": [[mode, alert, count] for (mode, alert), count in self._streaks.items()],
            "silent": [[mode, alert, count] for (mode, alert), count in self._silent.items()],
            "earlier": [[step, *key, *counts] for step, key, *counts in self._earlier],
            "events": dict(self._events),
            "tables": self._samples.state(),
            "over_run": self._metrics.over_run.plain(),
            "meanings": meanings(self._plan),
            "without_value": self.inactive.silent.state(),
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore a checkpoint; metrics that this plan does not have, or computes differently, start over."""
        self._streaks.update({(mode, alert): count for mode, alert, count in data["streaks"]})
        self._silent.update({(mode, alert): count for mode, alert, count in data.get("silent", ())})
        self._earlier.extend((step, (mode, alert), *counts) for step, mode, alert, *counts in data.get("earlier", ()))
        self._events.update(data["events"])
        self._samples.load(data["tables"])
        self.inactive.silent.load(data.get("without_value", {}))  # a checkpoint of an earlier version has no counts
        before = data.get("meanings", {})  # checkpoints of earlier versions have no meanings
        other = {key for key, text in meanings(self._plan).items() if before.get(key, text) != text}
        if other:
            log.warning(
                "over the run these begin anew, as they are computed otherwise now: %s", ", ".join(sorted(other))
            )
        kept = {key: op for key, op in self._outputs.items() if key not in other}
        self._metrics.over_run.load(data["over_run"], kept)

    def rewind(self, step: int, *, restart: bool = False) -> None:
        """Take the run back to an earlier step; it continues after that step, and its alerts fire again.

        A warning names once the shown metrics over the run that keep later values; not at a ``restart``.
        """
        going_on = [key for key in self._metrics.over_run.going_on("train") if self._outputs[key].shown]
        late, self._latest = step < self._latest, min(step, self._latest)
        if going_on and late and not restart and not self._told_of_rewind:
            self._told_of_rewind = True
            log.warning(
                "the run goes back to the end of step %d, but what came behind it stays in the values over the run, %s;"
                " a new `declog.start(..., resume=state)`, with the state of that step, has them as they were then",
                step, listed(going_on, 4),
            )  # fmt: skip
        for mode in self._plan.modes:
            self._metrics.over_run.rewind(mode, step)
        for at, key, streak, silent in reversed(self._earlier):
            if at > step:
                self._streaks[key], self._silent[key] = streak, silent
        self._earlier = deque((item for item in self._earlier if item[0] <= step), KEPT)
        self._untaken = {key: events for key, events in self._untaken.items() if events[0] <= step}

    def dispatch(
        self, facts: EventFacts, due: Mapping[int, WindowState], *,
        figures: Mapping[str, float] = NO_FIGURES, beside: Beside | None = None,
    ) -> dict[str, float]:  # fmt: skip
        """Evaluate the metrics and tables whose windows end here, hand the records to the sinks, return the scalars.

        If ranks are missing from a window, every sink gets the number of ranks that delivered rows. ``figures`` has
        declog's own costs, for profiles that show them; ``beside`` has the trainer's own numbers.
        """
        step, mode = facts.step, facts.mode
        partial = min((window.partial for window in due.values() if window.partial is not None), default=None)
        prefix = self._plan.modes[mode].prefix
        named, results, built = Named(), MetricValues(), dict[str, Table | None]()
        for period, window in sorted(due.items()):  # a condition may read metrics of shorter windows
            of_period = self._metrics.of(period, window, results, (mode, step))
            results.join(of_period)
            self._naming.add(named, period, of_period, window.partial is not None, prefix)
            built |= self._tables(period, window.table_views) if self._plan.tables else {}
        tables = [table for table in built.values() if table is not None]
        self.inactive.judge(facts, due.keys(), results, [op.id for op in self._plan.tables if built.get(op.id) is None])
        self._unseen_labels.judge(results)
        beside = beside or Beside()
        if partial is None and beside.compared:
            differing = other_numbers(beside.compared, {scalar.name: scalar.value for _, scalar in named.scalars})
            shown = {f"{THEIRS}{name}": value for name, value in differing.items()}
            named.scalars += self._naming.passed_through(shown, partial=False)
        self._metrics.at(step, due.get(self._plan.every, window))
        costs = _lost(figures)
        if figures and due.get(self._plan.every):  # not if only slower windows end, at the end of the run
            skipped = sum(results.skipped().values())
            cost = {name: value for name, value in figures.items() if not (value and name in LOST)}
            costs += [Scalar(name, value, name) for name, value in {**cost, SKIPPED: skipped}.items()]
        alerts = tuple(self._alerts(mode, step, results, due))
        nonfinite = self._naming.nonfinite(results)
        exact = self._naming.passed_through(beside.exact, partial=partial is not None)
        blank = Records(mode, facts.time)
        event = _Event(blank, prefix, results, named, tables, alerts, nonfinite, costs, partial, exact)
        self._events[mode] += 1
        self._latest = facts.step if mode == "train" else self._latest
        for number, route in enumerate(self._routes):
            if self._has_turn(route, mode):
                records = self._share(route, event)
                if self._untaken.get((mode, number), (step, []))[0] != step:  # not yet: this step may be the last
                    del self._untaken[mode, number]
            else:  # alerts do not wait for the sink's turn
                records = replace(event.blank, alerts=self._alerts_of(route, event))
                if route.last:
                    self._keep((mode, number), step, event)
            submit(route, step, records, self._report)
        logged = {prefix + scalar.name: scalar.value for _, scalar in named.scalars}
        return logged if partial is None else {**logged, RANKS: partial}

    def pass_through(self, step: int, mode: str, beside: Beside, figures: Mapping[str, float] = NO_FIGURES) -> None:
        """Hand each sink the trainer's numbers and the counts of lost rows, without metrics of the config."""
        alone = beside.alone
        named = Named(self._naming.passed_through(beside.numbers, partial=alone))
        exact = self._naming.passed_through(beside.exact, partial=alone)
        blank, prefix, lost = Records(mode, time.time()), self._plan.modes[mode].prefix, _lost(figures)
        event = _Event(blank, prefix, MetricValues(), named, (), (), (), lost, 0 if alone else None, exact)
        for route in self._routes:
            if self._has_turn(route, mode):
                submit(route, step, self._share(route, event), self._report)

    def close(self) -> None:
        """End the run: sinks that show the last values get the events that came after their last turn."""
        for (_, number), (step, events) in sorted(self._untaken.items(), key=lambda item: item[1][0]):
            route = self._routes[number]
            shares = [self._share(route, event) for event in events]
            scalars = {item.name: item for share in shares for item in share.scalars}
            histograms = {item.name: item for share in shares for item in share.histograms}
            tables = tuple(table for share in shares for table in share.tables)
            last = replace(
                shares[-1], scalars=tuple(scalars.values()), histograms=tuple(histograms.values()), tables=tables
            )
            submit(route, step, last, self._report)
        self._untaken.clear()

    def _has_turn(self, route: Route, mode: str) -> bool:
        """Whether it is a sink's turn. A sink takes every log event of a mode that logs once per block (evaluation)."""
        if mode != "train" and not self._plan.modes[mode].every:
            return True
        return self._events[mode] % route.every == 0  # counted like windows: tables of long windows meet their sinks

    def _keep(self, key: tuple[str, int], step: int, event: _Event) -> None:
        """Keep an event that is not the sink's turn, with others of the same step, in case it is the run's last."""
        route = self._routes[key[1]]
        outputs = self._plan.profiles[route.profile].outputs
        tables = [table for table in event.tables if self._takes(route, table.table)]
        named = (*event.named.scalars, *event.named.histograms)
        if not tables and all(output not in outputs for output, _ in named):
            return  # the sink shows nothing of this event, so the values before it stay the last ones
        before, events = self._untaken.get(key, (step, []))
        rest = replace(event, tables=tables, alerts=())  # its alerts have been shown already
        self._untaken[key] = step, [*events, rest] if before == step else [rest]

    # -- tables and alerts

    def _tables(self, period: int, views: Mapping[str, View]) -> dict[str, Table | None]:
        """The tables that are due, by id; None for those without rows."""
        due = [op for op in self._plan.tables if op.every == period and op.phase in views]
        shown = [op for op in due if any(self._takes(route, op.id) for route in self._routes)]
        return {op.id: self._samples.build(op, views[op.phase]) for op in shown}

    def _takes(self, route: Route, table: str) -> bool:
        if table not in self._plan.profiles[route.profile].tables or table in route.local:
            return False
        return route.id == CODE or any(op.id == table and route.id in op.sinks for op in self._plan.tables)

    def _too_large(self, route: Route, table: Table) -> bool:
        """Whether a table without a filter exceeds the sink's limit; if so, that is reported."""
        bounded = any(op.id == table.table and op.filter is None and op.max_bytes is None for op in self._plan.tables)
        if route.most is None or not bounded:
            return False
        if int(row_bytes(table.columns, table.data, table.rows).sum()) <= route.most:
            return False
        message = f"the table `{table.table}` has no filter, and more than {route.most} bytes in one log event"
        self._report(RuntimeFailure.of("DL405.size", message=message, sink=route.id))
        return True

    def _alerts(
        self, mode: str, step: int, results: MetricValues, due: Mapping[int, WindowState]
    ) -> Iterator[FiredAlert]:
        """The alerts that fire. An alert is judged at log events at which all its metrics are due.

        While none of them has a value, it is not judged where no step ended, nor before its first judgement in a mode;
        but in training a metric that came without a value is enough for the first judgement.
        """
        for op, periods in self._alert_periods:
            if not periods.issubset(due):
                continue
            key, metrics = (mode, op.id), read(op.when)
            cells = self._metrics.logged(metrics, results)
            stepless = all(due[period].stepless for period in periods)
            came = bool(cells) if mode == "train" and not stepless else any(item.there.any() for item in cells.values())
            came |= mode == "train" and not stepless and not metrics  # of steps or seconds alone
            if not came and (stepless or key not in self._streaks):
                continue
            cell_name = self._metrics.holds(op.when, cells, f"the alert `{op.id}`")
            before = self._streaks[key], self._silent[key]
            if cell_name is None or self._streaks[key] != FIRED:
                self._streaks[key] = 0 if cell_name is None else self._streaks[key] + 1
            fires = not self._silent[key] and cell_name is not None and self._streaks[key] >= op.for_
            if self._silent[key] > 0:
                self._silent[key] -= 1
            elif fires:
                self._streaks[key], self._silent[key] = FIRED, op.cooldown
            if (self._streaks[key], self._silent[key]) != before:
                self._earlier.append((step, key, *before))
            if fires and cell_name is not None:
                fields = dict(op.fields)
                cells = self._metrics.logged(read(*fields.values()), results)
                numbers = formulas.shown(fields, cells, cell_name)
                named = {text: self._named(node, cells, cell_name) for text, node in fields.items()}
                fired = FiredAlert(op, numbers, named)
                self._fired(step, op, fired.shown())
                yield fired

    def _named(self, node: Node, cells: Mapping[str, Cells], cell_name: formulas.CellName) -> str:
        """The name of a value in an alert's text, as trackers show it; a computed value is named by its expression."""
        member, metric = (node.param("member"), node.args[0]) if node.op == "member" else (cell_name.member, node)
        op = self._outputs.get(metric.leaf) if metric.op == METRIC else None
        if op is None:
            return str(node)
        label = label_of(metric)
        if label is None:
            label = cell_name.label
        elif op.key in cells:
            label = cells[op.key].label_shown(label) or label
        return shown_name(op, member, label) or str(node)

    # -- sinks

    def _share(self, route: Route, event: _Event) -> Records:
        """The records of a log event that the profile shows and the sink accepts."""
        profile, prefix = self._plan.profiles[route.profile], route.prefix + event.prefix
        hidden = self._hidden(profile, event.results)
        scalars = prefixed(_shown(event.named.scalars, profile, hidden), prefix)
        scalars += prefixed(_shown(event.exact, profile, hidden), route.prefix)
        nonfinite = [
            item for item in event.nonfinite
            if (item.metric, False) in profile.outputs and (item.metric, False, "*") not in hidden
        ]  # fmt: skip
        shown = {item.name: item for item in prefixed(nonfinite, prefix)}
        scalars = [*shown.values(), *scalars]  # warnings first: a sink may show only the first few scalars
        histograms = prefixed(_shown(event.named.histograms, profile, hidden), prefix)
        if (scalars or histograms) and event.partial is not None:
            scalars.append(Scalar(route.prefix + RANKS, event.partial, RANKS))
        lost = [item for item in event.costs if item.name in LOST and item.value]  # shown by every profile
        scalars += prefixed(event.costs if profile.self_metrics else lost, route.prefix)
        tables = [
            table for table in event.tables
            if self._takes(route, table.table) and not self._too_large(route, table)
        ]  # fmt: skip
        accepts = route.accepts
        return Records(
            event.blank.mode,
            event.blank.time,
            tuple(scalars) if "scalar" in accepts else (),
            tuple(histograms) if "histogram" in accepts else (),
            tuple(prefixed(tables, prefix)) if "table" in accepts else (),
            self._alerts_of(route, event),
        )

    def _alerts_of(self, route: Route, event: _Event) -> tuple[Alert, ...]:
        """The alerts that a sink accepts, as its profile shows them."""
        profile = self._plan.profiles[route.profile]
        return tuple(fired.shown(profile) for fired in event.alerts) if "alert" in route.accepts else ()

    def _hidden(self, profile: ProfileOp, results: MetricValues) -> set[Word]:
        """The outputs and name patterns that the profile's conditions hide at this log event."""
        what = f"a condition of the profile `{profile.name}`"
        return {
            item
            for outputs, node, hides in profile.conditions
            if (self._metrics.holds(node, self._metrics.logged(read(node), results), what) is not None) is hides
            for item in outputs
        }


def _shown(named: Sequence[tuple[Output, Record]], profile: ProfileOp, hidden: Collection[Word]) -> list[Record]:
    """The records that a profile shows, without the ``hidden`` ones."""
    outputs = profile.outputs
    if not (hidden or profile.names):
        return [record for output, record in named if output in outputs]
    return [
        record
        for output, record in named
        if output in outputs
        and not _among(output, record, hidden)
        and is_chosen(record.name, profile.names.get(output, ()))
    ]


def _among(output: Output, record: Scalar | Histogram | Table, words: Collection[Word]) -> bool:
    """Whether a record of an output matches one of the words."""
    return any(
        (key, alias) == output and (word == "*" or fnmatch.fnmatchcase(record.name, word)) for key, alias, word in words
    )


def _lost(figures: Mapping[str, float]) -> list[Scalar]:
    return [Scalar(name, figures[name], name) for name in LOST if figures.get(name)]


def submit(route: Route, step: int, records: Records, report: Report) -> None:
    """Hand a sink its share of a log event, unless it is empty."""
    if records:
        try:
            route.submit(step, records)
        except RuntimeFailure as error:  # a sink with `on_error: raise` must not keep records from the other sinks
            report(error)


def prefixed(records: Sequence[Record], prefix: str) -> list[Record]:
    """The records with a prefix before their names."""
    if not prefix:
        return list(records)
    return [
        item._replace(name=prefix + item.name) if isinstance(item, Scalar) else replace(item, name=prefix + item.name)
        for item in records
    ]
