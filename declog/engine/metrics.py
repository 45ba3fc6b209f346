"""The metrics of a log event: reductions of a window, what goes on over the run, formulas, conditions. No torch."""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence

from declog.engine import formulas
from declog.engine.cells import Cells, Found
from declog.engine.evaluator import View
from declog.engine.over_run import OverRun
from declog.engine.reduce import Block, Reductions, cells_of, labelled, reduce_one
from declog.engine.window_state import WindowState
from declog.errors import RuntimeFailure, error_text
from declog.language.functions import DEFAULT, Functions
from declog.language.nodes import Node
from declog.plans.needs import needs, ordered
from declog.plans.ops import FormulaOp, MetricOp, Plan

log = logging.getLogger("declog")
Report = Callable[[BaseException], None]
Outputs = Sequence[MetricOp | FormulaOp]


class Metrics:
    """Evaluates windows. What a plan's metrics of one period have in common is found once."""

    def __init__(self, plan: Plan, functions: Functions = DEFAULT) -> None:
        self.over_run = OverRun()
        self.combine = {op.key: op.combine if op.over_run is None else "mean" for op in plan.outputs}
        self._functions = functions
        self._facts: Mapping[str, float] = {}  # of the window that is evaluated, by the names of expressions
        self._by_key = {op.key: op for op in plan.metrics}
        self._gaps: set[str] = set()  # metrics whose missing values are reported already
        made = _made(plan)
        self._periods = {period: _Period(plan, made, period) for period in plan.periods}

    def at(self, step: int, held: WindowState) -> None:
        """Formulas and conditions read what is known of this window besides metrics; what is not known is not there."""
        known = {"elapsed": held.elapsed, "seconds": held.seconds}
        self._facts = {"step": float(step), **{name: value for name, value in known.items() if value}}

    def of(self, period: int, held: WindowState, known: Found, at: tuple[str, int], report: Report) -> Found:
        """The metrics whose windows of this period end; ``known`` are those of shorter ones, ``at`` mode and step."""
        self.at(at[1], held)
        mine = self._periods[period]
        views = {name: View(frame, self._functions) for name, frame in held.rows.items()}
        ops, reductions = (mine.of_rows, mine.reductions_of_rows) if held.folded else (mine.at_once, mine.reductions)
        try:
            found = reductions.run(views)
        except BaseException:  # noqa: BLE001  (found out, and reported, one by one)
            found = Found()
            for op in ops:  # one that fails does not take the others with it
                try:
                    found.join(Reductions([op]).run(views))
                except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
                    report(failure(f"the metric `{op.key}`", error))
        held.finish(found)  # those of which there are states instead of rows
        for op in mine.going_on:
            try:
                self._go_on(op, at, held, views, found)
            except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
                found.pop(op.key, None)
                report(failure(f"the metric `{op.key}`", error))
        for key, preferred in mine.preferred:
            if preferred in found and found[preferred].there.any():
                found[key] = found[preferred]
        for key, count in found.skipped().items():
            if self._by_key[key].nan != "propagate":
                self._note_gaps(self._by_key[key], count, key in found.numbers or found[key].has_values, report)
        self._compute(mine, found, known, at, report)
        return found

    def _compute(self, mine: _Period, found: Found, known: Found, at: tuple[str, int], report: Report) -> None:
        """Add the formulas; take away what a condition hides, so that all that reads it finds it absent."""
        for group in mine.made:
            for op in group:
                if isinstance(op, FormulaOp):
                    try:
                        whole = formulas.formula(op, found, self._functions, self._facts)
                        whole = whole if op.over_run is None else self.over_run.of(op, *at, whole)
                    except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
                        report(failure(f"the metric `{op.key}`", error))
                    else:
                        found.update({} if whole is None else {op.key: whole})
            when, what = group[0].when, f"the metric `{group[0].id}`"
            if when is not None and not self.holds(when, ChainMap(found, known), what, report):
                found.update({op.key: found[op.key].hidden() for op in group if op.key in found})

    def _go_on(
        self, op: MetricOp, at: tuple[str, int], held: WindowState, views: Mapping[str, View], found: Found
    ) -> None:
        """A metric over the run is what it was at the last log event, with this window."""
        whole_window = op.over_run == "moments" and op.pool == "window"
        state, view, window = None, views.get(op.phase), found.get(op.key)
        if op.reduction.foldable and (op.by is not None or whole_window):
            state = held.state_of(op)
            state = Block([op]).state(view) if state is None and view is not None and not held.folded else state
        if op.by is not None:
            names = self.over_run.names(op, at[0])
            if state is not None:
                state, rest = labelled(op, state, names)
                window = cells_of(op, state, rest)
            elif view is not None:
                window = reduce_one(op, view, names)
        whole = self.over_run.of(op, *at, window, state if whole_window else None)
        if whole is not None:
            found[op.key] = whole

    def holds(self, condition: Node, found: Mapping[str, Cells], what: str, report: Report) -> formulas.Place | None:
        """The cell in which a condition holds; None: it does not."""
        try:
            return formulas.first_place(condition, found, self.combine, self._functions, self._facts)
        except BaseException as error:  # noqa: BLE001  (a user's function may raise anything)
            report(failure(what, error))
            return None

    def _note_gaps(self, op: MetricOp, count: int, has_values: bool, report: Report) -> None:
        if op.nan == "raise":
            report(RuntimeFailure.of("DL605.nan", metric=op.key, count=count))
        elif op.id not in self._gaps and has_values:  # what is missing altogether is no gap
            self._gaps.add(op.id)
            log.warning(
                "the metric `%s` leaves out missing values (%d at its first log event with any); "
                "`nan: propagate` shows them",
                op.id,
                count,
            )


class _Period:
    """The metrics whose windows are equally long.

    Those that are reduced ``at_once`` are all but those whose labels keep names over the run; ``of_rows`` are those of
    them that a folded window has no states of.
    """

    def __init__(self, plan: Plan, made: Sequence[Outputs], period: int) -> None:
        ops = [op for op in plan.metrics if op.every == period]
        self.at_once = [op for op in ops if op.over_run is None or op.by is None]
        self.of_rows = [op for op in self.at_once if not op.reduction.foldable]
        self.reductions = Reductions(self.at_once)
        self.reductions_of_rows = Reductions(self.of_rows)
        self.going_on = [op for op in ops if op.over_run is not None]
        self.preferred = [(op.key, op.prefer) for op in ops if op.prefer is not None]
        self.made = [group for group in made if group[0].every == period]


def _made(plan: Plan) -> list[Outputs]:
    """Formulas, and what has a condition: each with its reductions, after what it needs."""
    by_id: dict[str, list[MetricOp | FormulaOp]] = {}
    for op in plan.outputs:
        by_id.setdefault(op.id, []).append(op)
    groups = [by_id[id] for id in ordered(needs(plan.outputs))[0]]
    return [ops for ops in groups if isinstance(ops[0], FormulaOp) or ops[0].when is not None]


def failure(what: str, error: BaseException) -> RuntimeFailure:
    """An error while something was evaluated, saying what it was; its own cause is kept."""
    if isinstance(error, RuntimeFailure):
        return RuntimeFailure(error.code, f"{what}: {error.args[0].split('] ', 1)[-1]}")
    found = RuntimeFailure.of("DL605.failed", what=what, error=error_text(error))
    found.__cause__ = error
    return found
