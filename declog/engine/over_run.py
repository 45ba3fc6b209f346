"""Metrics over the run so far, by mode: reductions of all its rows, first and latest values, and smooth curves.

Rank 0 only.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from declog.engine.cell_index import NAMELESS, Names
from declog.engine.cells import Cells, came_at_all
from declog.engine.outputs import cells_of
from declog.engine.partials import State, reindexed, rows_of
from declog.language.moments import FORMULAS, Moments
from declog.language.segmented import Array
from declog.language.smoothing import Smoothing
from declog.plans.ops import FormulaOp, MetricOp

log = logging.getLogger("declog")
Cell = tuple[str, str]  # a member and a label, each "" if the metric has none
Kept = deque[tuple[int | None, float]]  # (step, value); a rewind keeps a value whose step is None
Key = tuple[str, str]  # a mode and a metric's key
LATEST = Smoothing("lag", 0)  # the curve of a metric without one


class OverRun:
    """The state of all metrics over the run."""

    def __init__(self) -> None:
        self._names: dict[Key, Names] = {}  # the names that labels keep
        self._states: dict[Key, State] = {}
        self._values: dict[Key, dict[Cell, Kept]] = {}  # an empty `Kept`: the cell came without a value
        self._steps: dict[Key, int] = {}  # the step of the latest window that counted
        self._reported: set[Key] = set()

    def names(self, op: MetricOp | FormulaOp, mode: str) -> Names:
        """The names that labels have so far."""
        return self._names.get((mode, op.key), NAMELESS)

    def of(
        self, op: MetricOp | FormulaOp, mode: str, step: int, window: Cells | None, state: State | None = None
    ) -> Cells | None:
        """Add a window that ended at ``step``, and return the metric's cells over the run.

        ``window`` and ``state`` are None if the window has no rows. Their labels have the names of `names`.
        """
        if window is not None and op.labels:
            window = self._learned(op, mode, window)
        if op.over_run == "moments":
            assert isinstance(op, MetricOp)
            cells = self._reduced(op, mode, window, state)
        else:
            cells = self._followed(op, mode, step, window)
        if op.empty is not None and cells is not None and cells.named(op):  # not before its first rows came
            cells = replace(cells, values=np.where(cells.there, cells.values, op.empty))
        return cells

    def _learned(self, op: MetricOp | FormulaOp, mode: str, window: Cells) -> Cells:
        """Give the window's labels names over the run; a formula's labels beyond its limit are dropped."""
        key, names = (mode, op.key), Names(tuple(name for name in window.labels if name != window.rest), window.rest)
        together = self._names.get(key, NAMELESS).with_others(names)
        if isinstance(op, FormulaOp) and len(together.shown) > op.max_labels:
            together = Names(together.shown[: op.max_labels], together.rest)
            dropped = sorted({*window.labels} - {*together.all})
            if dropped and key not in self._reported:
                self._reported.add(key)
                log.warning("the metric `%s` leaves out labels beyond %d: %s", op.id, op.max_labels, ", ".join(dropped))
            window = window.of_labels([position for position, name in enumerate(window.labels) if name not in dropped])
        self._names[key] = together
        return window

    def _reduced(self, op: MetricOp, mode: str, window: Cells | None, state: State | None) -> Cells | None:
        """Reduce all rows of the run, or the values of all pieces; missing values count in the latest window only."""
        key, names = (mode, op.key), self.names(op, mode)
        if op.pool != "window" and window is not None:
            state = _of_pieces(op, window)
        before = self._states.get(key)
        if state is None and before is None:
            return None
        merged = before if state is None else state if before is None else State.merged([before, state])
        assert merged is not None
        self._states[key] = merged
        if op.pool == "window":
            missing = np.zeros_like(merged.missing)
            if state is not None:
                missing = state.within(merged.rows, merged.labels, merged.pieces).missing
            latest = replace(merged, sums={**merged.sums, "missing": missing})
            latest = latest.within(merged.rows, names.all, merged.pieces)
            return cells_of(op, latest, names.rest, reindexed(merged.missing, 1, merged.labels, names.all, 0.0))
        merged = merged.within(merged.rows, names.all, merged.pieces)
        values, n = FORMULAS[op.combine].of(merged.moments), merged.moments.n
        infinite = np.isnan(values) & (n >= FORMULAS[op.combine].least)
        return _shown(op, Cells(values, merged.members, names.all, rest=names.rest), infinite, n > 0, window)

    def _followed(self, op: MetricOp | FormulaOp, mode: str, step: int, window: Cells | None) -> Cells | None:
        """Update the first or the latest values, or their smooth curves, piece by piece in the order of steps."""
        key, curve = (mode, op.key), op.smoothing or LATEST
        values = self._values.setdefault(key, {})
        if window is not None and window.named(op) and step < self._steps.get(key, step):
            log.warning(
                "the metric `%s` leaves out the window that ended at step %d, after one of step %d",
                op.id, step, self._steps[key],
            )  # fmt: skip
        elif window is not None and window.named(op):
            self._steps[key] = step
            for member, label, piece in np.argwhere(window.counted).tolist():
                cell = (window.members[member] if window.members else "", window.labels[label] if window.labels else "")
                kept, value = values.setdefault(cell, _kept(op)), float(window.values[member, label, piece])
                if not (kept and op.over_run == "first"):
                    value = curve.following(kept[-1][1] if kept else None, value)
                    kept.append((_step(op, step, window.pieces[piece]), value))
            if op.empty is not None:  # a cell that came without a value is logged as `empty` from then on
                for cell in itertools.product(window.members or [""], window.labels or [""]):
                    values.setdefault(cell, _kept(op))
        if window is None and not values:
            return None
        names = self.names(op, mode)
        members = dict.fromkeys([*(member for member, _ in values), *(window.members if window is not None else ())])
        table = [[values.get((member, label)) for label in names.all or [""]] for member in members or [""]]
        count: Array = np.array([[[len(kept or ())] for kept in row] for row in table])
        means = [[[_value(curve, kept)] for kept in row] for row in table]
        cells = Cells(np.array(means, np.float64), tuple(members) if op.family else (), names.all, rest=names.rest)
        return _shown(op, cells, (count >= curve.least) & np.isnan(cells.values), count > 0, window)

    def going_on(self, mode: str) -> list[str]:
        """The keys of the metrics that keep the values of later steps when a mode goes back."""
        kept = {key for key, cells in self._values.items() if any(None in dict(one) for one in cells.values())}
        return sorted(key for at, key in {*self._states, *kept} if at == mode)

    def rewind(self, mode: str, step: int) -> None:
        """Take a mode back to an earlier step: its next windows are not late, and later values are forgotten."""
        self._steps = {key: min(last, step) if key[0] == mode else last for key, last in self._steps.items()}
        for key, cells in self._values.items():
            for cell, kept in [*cells.items()] if key[0] == mode else ():
                before = [entry for entry in kept if entry[0] is None or entry[0] <= step]
                if before or not kept:
                    cells[cell] = deque(before, kept.maxlen)
                else:
                    del cells[cell]  # its first value came later

    # -- checkpoints

    def plain(self) -> dict[str, Any]:
        """The state for a checkpoint, as plain data."""
        return {
            "names": [[*key, names.shown, names.rest] for key, names in self._names.items()],
            "states": [[*key, state.plain()] for key, state in self._states.items()],
            "values": [
                [*key, [[*cell, *map(list, kept)] for cell, kept in cells.items()]]
                for key, cells in self._values.items()
            ],
            "steps": [[*key, step] for key, step in self._steps.items()],
        }

    def load(self, data: Mapping[str, Any], ops: Mapping[str, MetricOp | FormulaOp]) -> None:
        """Restore a checkpoint; metrics that the plan no longer has over the run are left out."""

        def carried(key: str, *, moments: bool) -> bool:
            return key in ops and ops[key].over_run is not None and (ops[key].over_run == "moments") == moments

        self._names = {
            (mode, key): Names(tuple(names), rest) for mode, key, names, rest in data["names"]
            if key in ops and ops[key].over_run is not None
        }  # fmt: skip
        self._states = {
            (mode, key): State.of_plain(op, state) for mode, key, state in data["states"]
            if carried(key, moments=True) and isinstance(op := ops[key], MetricOp)
        }  # fmt: skip
        self._values = {
            (mode, key): {
                (member, label): _kept(ops[key], (_entry(value) for value in kept if value is not None))
                for member, label, *kept in cells  # earlier versions write None where nothing is kept
            }
            for mode, key, cells in data["values"] if carried(key, moments=False)
        }  # fmt: skip
        self._steps = {(mode, key): step for mode, key, step in data["steps"] if carried(key, moments=False)}


def _undone(op: MetricOp | FormulaOp) -> bool:
    """Whether a metric forgets the values of later steps when the run goes back."""
    return op.over_run not in ("last", "ema")


def _step(op: MetricOp | FormulaOp, step: int, piece: tuple[int, ...]) -> int | None:
    """The step of a piece of a window that ends at ``step``; None if a rewind keeps the piece's value."""
    if not _undone(op):
        return None
    return step if isinstance(op, FormulaOp) or op.pool == "window" else int(piece[0])


def _kept(op: MetricOp | FormulaOp, entries: Iterable[tuple[int | None, float]] = ()) -> Kept:
    """A deque for the values of a cell, with the first ones in it. It has twice the room if a rewind drops values."""
    return deque(entries, (op.smoothing or LATEST).most * (1 + _undone(op)))


def _value(curve: Smoothing, kept: Kept | None) -> float:
    """The value of a curve; NaN if it needs more values."""
    values = [value for _, value in kept or ()]
    return curve.of_kept(values) if len(values) >= curve.least else float("nan")


def _entry(saved: Any) -> tuple[int | None, float]:
    """The step and value of a checkpoint's entry; earlier versions saved the value alone."""
    return (saved[0], saved[1]) if isinstance(saved, list | tuple) else (None, saved)


def _of_pieces(op: MetricOp, window: Cells) -> State:
    """A state whose rows are the values of the window's pieces."""
    moments = Moments.of(window.values, there=window.counted).map(lambda array, _: array[..., None])
    sums = {"missing": np.zeros(moments.n.shape), "here": moments.n > 0}
    return State(rows_of(op, window.members), window.labels, ((),), moments, sums, moments.n.sum((0, 2)))


def _shown(op: MetricOp | FormulaOp, cells: Cells, infinite: Array, counted: Array, window: Cells | None) -> Cells:
    """Mark the cells over the run: values that were missing in the latest window are NaN if no other value came.

    ``infinite`` marks NaN that come from infinities. ``counted`` marks cells that have had values, also if these give
    no result, as for the variance of one value.
    """
    kept = infinite
    if window is not None:
        cells.skipped = window.skipped
    if window is not None and window.kept is not None:
        absent: Array = np.asarray((window.kept & ~window.counted).any(-1, keepdims=True))
        for axis, (present, target) in enumerate(((window.members, cells.members), (window.labels, cells.labels))):
            absent = reindexed(absent, axis, present, target, False) if target else absent
        shows = isinstance(op, MetricOp) and op.nan == "propagate"
        came = came_at_all(op, counted) if isinstance(op, MetricOp) else counted
        kept = infinite | (absent if shows else absent & ~came)
        cells.values = np.where(kept, np.nan, cells.values)
    cells.mark(kept, infinite)
    return cells
