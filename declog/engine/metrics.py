"""The metrics of a log event: reductions of a window, values over the run, formulas and conditions."""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence

from declog.engine import formulas
from declog.engine.cells import Cells, MetricValues
from declog.engine.evaluator import View
from declog.engine.outputs import cells_of, labelled
from declog.engine.over_run import OverRun
from declog.engine.partials import State
from declog.engine.reduce import Reductions, Report, failure, has_state
from declog.engine.window_state import WindowState
from declog.errors import RuntimeFailure
from declog.errors.messages import listed
from declog.language.functions.text import OTHER
from declog.language.nodes import Node
from declog.plans.needs import needs, ordered, read
from declog.plans.ops import PREFERRED, FormulaOp, MetricOp, Plan

log = logging.getLogger("declog")
Outputs = Sequence[MetricOp | FormulaOp]


class Metrics:
    """Evaluates the metrics of windows. Work that metrics of one period share is planned once."""

    def __init__(self, plan: Plan, report: Report) -> None:
        self._report = report
        self.over_run = OverRun()
        self.combine = {op.key: op.combine if op.over_run is None else "mean" for op in plan.outputs}
        self._function_of = plan.function
        self._facts: Mapping[str, float] = {}  # `step`, `elapsed` and `seconds` of the window that is evaluated
        self._by_key = {op.key: op for op in plan.metrics}
        self._incomplete: set[str] = set()  # metrics whose missing values have been reported
        by_default = (op for op in plan.metrics if op.by is not None and op.max_labels == MetricOp.max_labels)
        self._labelled = {op.key: op for op in by_default}  # whose pooled labels have not been reported
        computed = _computed(plan)
        self._periods = {period: _Period(plan, computed, period) for period in plan.periods}

    def at(self, step: int, held: WindowState) -> None:
        """Set the facts of a window that formulas and conditions can read; a time of 0 is absent."""
        times = {"elapsed": held.elapsed, "seconds": held.seconds}
        self._facts = {"step": float(step), **{name: value for name, value in times.items() if value}}

    def of(self, period: int, window: WindowState, shorter: MetricValues, at: tuple[str, int]) -> MetricValues:
        """The values of the metrics of one period, whose window ends.

        ``shorter`` has the values of shorter periods that end at the same time; ``at`` is (mode, step).
        """
        self.at(at[1], window)
        of_period = self._periods[period]
        views = window.views
        reductions = of_period.reductions_of_rows if window.folded else of_period.reductions

        failed_keys: set[str] = set()

        def failed(op: MetricOp, error: BaseException) -> None:
            failed_keys.add(op.key)
            self._report(failure(f"the metric `{op.called}`", error))

        states = reductions.states(views, failed)
        results = reductions.by_values(views, failed)
        reductions.finish(states, results)
        window.finish(results)  # the metrics that the window has folded to states
        for op, by_label in of_period.going_on:
            if op.key in failed_keys:
                continue
            try:
                cells, state = results.get(op.key), None
                if by_label is not None:
                    cells, state = self._by_label(op, by_label, at[0], window, views)
                elif op.over_run == "moments" and op.pool == "window":
                    state = window.state_of(op) if window.folded else reductions.state_of(op, states)
                cells = self.over_run.of(op, *at, cells, state)
                results.update({} if cells is None else {op.key: cells})
            except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
                results.pop(op.key, None)
                failed(op, error)
        for key, preferred in of_period.preferred:
            if preferred in results and results[preferred].there.any():
                results[key] = results[preferred]
        self._note_missing(results)
        self._note_pooled(results)
        self._compute(of_period, results, shorter, at)
        return results

    def _compute(self, of_period: _Period, results: MetricValues, shorter: MetricValues, at: tuple[str, int]) -> None:
        """Add the formulas, and hide metrics whose `when` does not hold, so that their readers find them absent."""
        for group in of_period.computed:
            for op in group:
                if isinstance(op, FormulaOp):
                    try:
                        combined = self.logged(of_period.combined.get(op.key, ()), results)
                        values = ChainMap(combined, results) if combined else results
                        cells = formulas.formula(op, values, self._function_of, self._facts)
                        cells = cells if op.over_run is None else self.over_run.of(op, *at, cells)
                    except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
                        self._report(failure(f"the metric `{op.called}`", error))
                    else:
                        results.update({} if cells is None else {op.key: cells})
            when, what = group[0].when, f"the metric `{group[0].id.removesuffix(PREFERRED)}`"
            if when is not None and not self.holds(when, self.logged(read(when), shorter, results), what):
                results.update({op.key: results[op.key].hidden() for op in group if op.key in results})

    def _by_label(
        self, op: MetricOp, alone: Reductions, mode: str, held: WindowState, views: Mapping[str, View]
    ) -> tuple[Cells | None, State | None]:
        """The cells of a metric whose labels keep their names over the run, and its state if it has one."""
        names = self.over_run.names(op, mode)
        if not has_state(op):
            return alone.by_values(views, run=names).get(op.key), None
        folded = held.folded and op.reduction.foldable
        state = held.state_of(op) if folded else alone.states(views).get(0)
        if state is None:
            return None, None
        state, rest = labelled(op, state, names)
        return cells_of(op, state, rest), state

    def logged(self, keys: Iterable[str], *parts: MetricValues) -> dict[str, Cells]:
        """The logged cells of some metrics. If several parts have a metric, the last one counts."""
        return {key: part.logged(key, self.combine[key]) for part in parts for key in keys if key in part}

    def holds(self, condition: Node, cells: Mapping[str, Cells], what: str) -> formulas.CellName | None:
        """The first cell in which a condition on logged metrics holds; None: it holds nowhere."""
        try:
            return formulas.first_place(condition, cells, self._function_of, self._facts)
        except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
            self._report(failure(what, error))
            return None

    def _note_missing(self, results: MetricValues) -> None:
        """Warn of the metrics that leave out missing values for the first time; a metric with `nan: raise` fails."""
        incomplete: dict[str, int] = {}
        for key, count in results.skipped().items():
            op = self._by_key[key]
            if op.nan == "raise":
                self._report(RuntimeFailure.of("DL605.nan", metric=op.called, count=count))
            # a metric without any value is reported as inactive instead
            elif op.nan != "propagate" and (key in results.numbers or results[key].has_values):
                incomplete.setdefault(op.id.removesuffix(PREFERRED), count)
        incomplete = {name: count for name, count in incomplete.items() if name not in self._incomplete}
        self._incomplete |= incomplete.keys()
        if incomplete:
            log.warning(
                "missing values are left out of %s; "
                "`nan: propagate` shows them, and `x if isfinite(x) else 0` counts them as 0",
                listed([f"`{name}` ({count} at first)" for name, count in sorted(incomplete.items())], 8),
            )

    def _note_pooled(self, results: MetricValues) -> None:
        """Tell once of each metric with more labels than it shows, unless its config says how many."""
        pooled = {op.id: op for key, op in self._labelled.items() if key in results and results[key].rest is not None}
        self._labelled = {key: op for key, op in self._labelled.items() if op.id not in pooled}
        for id, op in pooled.items():
            log.warning(
                "the metric `%s` has more than %d labels: the others are `%s`; `max_labels: 1000` shows up to 1000",
                id, op.max_labels, OTHER,
            )  # fmt: skip


class _Period:
    """The metrics whose windows are equally long.

    ``going_on`` has the metrics over the run; those with labels have reductions of their own there, because labels keep
    their names over the run. ``reductions`` has all other metrics. ``reductions_of_rows`` has those of them that cannot
    be folded: a folded window still holds their rows. ``combined`` has, for each formula over whole windows, the keys
    of its metrics with several pieces.
    """

    def __init__(self, plan: Plan, computed: Sequence[Outputs], period: int) -> None:
        ops = [op for op in plan.metrics if op.every == period]
        at_once = [op for op in ops if op.over_run is None or op.by is None]
        self.reductions = Reductions(at_once)
        self.reductions_of_rows = Reductions(op for op in at_once if not op.reduction.foldable)
        self.going_on = [
            (op, None if op.by is None else Reductions([op])) for op in ops if op.over_run is not None
        ]  # fmt: skip
        self.preferred = [(op.key, op.prefer) for op in ops if op.prefer is not None]
        self.computed = [group for group in computed if group[0].every == period]
        pieces = {op.key for op in plan.outputs if op.pool != "window" and op.over_run is None}
        of_windows = [op for op in plan.formulas if op.every == period and op.pool == "window"]
        self.combined = {op.key: pieces.intersection(read(op.expr)) for op in of_windows}


def _computed(plan: Plan) -> list[Outputs]:
    """Formulas, and metrics with a condition, with all their reductions; in an order in which inputs come first."""
    by_id: dict[str, list[MetricOp | FormulaOp]] = {}
    for op in plan.outputs:
        by_id.setdefault(op.id, []).append(op)
    groups = [by_id[id] for id in ordered(needs(plan.outputs))[0]]
    return [ops for ops in groups if isinstance(ops[0], FormulaOp) or ops[0].when is not None]
