"""Metrics over the run so far: all its rows reduced together, the latest values, moving averages.

Rank 0 only. A total (``sum``, ``count``) is of all modes; everything else is of one mode. Imports no torch.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine.cell_index import NAMELESS, Names
from declog.engine.cells import Cells, came_at_all
from declog.engine.outputs import cells_of
from declog.engine.partials import State, reindexed, rows_of
from declog.language.moments import FORMULAS, Moments
from declog.plans.ops import FormulaOp, MetricOp

log = logging.getLogger("declog")
Array = NDArray[Any]
Cell = tuple[str, str]  # a member and a label; empty: it has none
Key = tuple[str, str]  # a mode, or nothing for all of them, and a metric


class OverRun:
    """The state of all metrics that go on from log event to log event."""

    def __init__(self) -> None:
        self._names: dict[Key, Names] = {}  # that labels keep: as many as the metric has in a window
        self._states: dict[Key, State] = {}
        self._values: dict[Key, dict[Cell, float | None]] = {}  # None: a cell came, and no value of it
        self._steps: dict[Key, int] = {}  # of the latest window that counted
        self._reported: set[Key] = set()

    def names(self, op: MetricOp | FormulaOp, mode: str) -> Names:
        """The names that labels have up to now."""
        return self._names.get(_key(op, mode), NAMELESS)

    def of(
        self, op: MetricOp | FormulaOp, mode: str, step: int, window: Cells | None, state: State | None = None
    ) -> Cells | None:
        """The metric with a window that ended at a step; ``window`` and ``state`` are None where it has no rows.

        Their labels are named as ``names`` says.
        """
        if window is not None and op.labels:
            window = self._learned(op, mode, window)
        if op.over_run == "moments":
            assert isinstance(op, MetricOp)
            cells = self._reduced(op, mode, window, state)
        else:
            cells = self._followed(op, mode, step, window)
        if op.empty is not None and cells is not None and _named(op, cells):  # from when its rows came first
            cells = replace(cells, values=np.where(cells.there, cells.values, op.empty))
        return cells

    def _learned(self, op: MetricOp | FormulaOp, mode: str, window: Cells) -> Cells:
        """A window whose labels all have names over the run; the labels of a formula, as many as have room."""
        key, names = _key(op, mode), Names(tuple(name for name in window.labels if name != window.rest), window.rest)
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
        """All rows, or all values of pieces, reduced together; what is missing counts where it came last."""
        key, names = _key(op, mode), self.names(op, mode)
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
        infinite = np.isnan(values) & (n > (1 if op.combine == "var" else 0))
        return _shown(op, Cells(values, merged.members, names.all, rest=names.rest), infinite, n > 0, window)

    def _followed(self, op: MetricOp | FormulaOp, mode: str, step: int, window: Cells | None) -> Cells | None:
        """The latest values, or their moving averages, piece by piece in the order of the steps."""
        key = _key(op, mode)
        values = self._values.setdefault(key, {})
        if window is not None and _named(op, window) and step < self._steps.get(key, step):
            log.warning(
                "the metric `%s` leaves out the window that ended at step %d, after one of step %d",
                op.id, step, self._steps[key],
            )  # fmt: skip
        elif window is not None and _named(op, window):
            self._steps[key] = step
            for member, label, piece in np.argwhere(window.counted).tolist():
                cell = (window.members[member] if window.members else "", window.labels[label] if window.labels else "")
                value, past = float(window.values[member, label, piece]), values.get(cell)
                values[cell] = value if op.ema is None or past is None else op.ema * past + (1 - op.ema) * value
            if op.empty is not None:  # whoever came without a value is logged as that from then on
                for cell in itertools.product(window.members or [""], window.labels or [""]):
                    values.setdefault(cell, None)
        if window is None and not values:
            return None
        names = self.names(op, mode)
        members = dict.fromkeys([*(member for member, _ in values), *(window.members if window is not None else ())])
        table = [[[values.get((member, label))] for label in names.all or [""]] for member in members or [""]]
        counted: Array = np.array([[[value is not None for value in cell] for cell in row] for row in table])
        cells = Cells(np.array(table, np.float64), tuple(members) if op.family else (), names.all, rest=names.rest)
        return _shown(op, cells, counted & np.isnan(cells.values), counted, window)

    def rewind(self, mode: str, step: int) -> None:
        """The windows of a mode go on after an earlier step: they are no late ones."""
        self._steps = {key: min(last, step) if key[0] == mode else last for key, last in self._steps.items()}

    # -- checkpoints

    def plain(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "names": [[*key, names.shown, names.rest] for key, names in self._names.items()],
            "states": [[*key, state.plain()] for key, state in self._states.items()],
            "values": [
                [*key, [[*cell, value] for cell, value in cells.items()]] for key, cells in self._values.items()
            ],
            "steps": [[*key, step] for key, step in self._steps.items()],
        }

    def load(self, data: Mapping[str, Any], ops: Mapping[str, MetricOp | FormulaOp]) -> None:
        """Continue from a checkpoint; what the plan does not carry on any more is left out."""

        def carried(key: str, *kinds: str) -> bool:
            return key in ops and ops[key].over_run in kinds

        self._names = {
            (mode, key): Names(tuple(names), rest) for mode, key, names, rest in data["names"]
            if carried(key, "moments", "last", "ema")
        }  # fmt: skip
        self._states = {(mode, key): _loaded(ops[key], state) for mode, key, state in data["states"]
                        if carried(key, "moments")}  # fmt: skip
        self._values = {
            (mode, key): {(member, label): value for member, label, value in cells}
            for mode, key, cells in data["values"] if carried(key, "last", "ema")
        }  # fmt: skip
        self._steps = {(mode, key): step for mode, key, step in data["steps"] if carried(key, "last", "ema")}


def _key(op: MetricOp | FormulaOp, mode: str) -> Key:
    return "" if isinstance(op, MetricOp) and op.total else mode, op.key


def _named(op: MetricOp | FormulaOp, cells: Cells) -> bool:
    """Whether there are names for its cells: of a family that never came there are none."""
    return bool((cells.members or not op.family) and (cells.labels or not op.labels))


def _loaded(op: MetricOp | FormulaOp, data: Mapping[str, Any]) -> State:
    assert isinstance(op, MetricOp)  # a formula's average has no state
    return State.of_plain(op, data)


def _of_pieces(op: MetricOp, window: Cells) -> State:
    """The values of a window's pieces as rows of a state."""
    moments = Moments.of(window.values, there=window.counted).map(lambda array, _: array[..., None])
    sums = {"missing": np.zeros(moments.n.shape), "here": moments.n > 0}
    return State(rows_of(op, window.members), window.labels, ((),), moments, sums, moments.n.sum((0, 2)))


def _shown(op: MetricOp | FormulaOp, cells: Cells, infinite: Array, counted: Array, window: Cells | None) -> Cells:
    """The cells of the run. What was missing in the window that came last is NaN where nothing else came.

    ``infinite`` marks a NaN that infinities made, ``counted`` where values came, though they may make none: the
    variance of one.
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
