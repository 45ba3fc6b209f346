"""Computes metrics' values from states, for all metrics whose states have the same shape at once."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from declog.engine import cell_index
from declog.engine.cell_index import NAMELESS, Names
from declog.engine.cells import WHOLE, Cells, MetricValues, Rules
from declog.engine.layout import together
from declog.engine.partials import Row, State, places_of, source
from declog.language.moments import FORMULAS
from declog.language.reductions import Reduction, quantiles
from declog.language.segmented import Array, present
from declog.plans.ops import MetricOp

CHUNK = 2**15  # how many values are reduced at once: 256 KiB fit into a core's cache


class _Output(NamedTuple):
    """A metric and the rows that it takes from the stacked states; ``part`` is the index of its state."""

    op: MetricOp
    rows: list[int]
    part: int

    @property
    def kind(self) -> tuple[bool, str]:
        """A sort key: metrics of one kind are finished together; metrics with a single value come first."""
        return not _is_number(self.op), self.op.reduction.name


class Outputs:
    """Computes the values of metrics from states whose rows are stacked.

    ``blocks`` has one entry per state: its metrics, its rows, and the sources that never came.
    """

    def __init__(self, blocks: Sequence[tuple[Sequence[MetricOp], Sequence[Row], Sequence[Hashable]]]) -> None:
        rows = [row for _, part, _ in blocks for row in part]
        outputs: list[_Output] = []
        self._absent: list[tuple[str, int]] = []  # metrics of sources that never came, and their states
        start = 0
        for part, (ops, part_rows, never) in enumerate(blocks):
            places = places_of(part_rows, start)
            outputs += [_Output(op, places[source(op)], part) for op in ops if source(op) in places]
            self._absent += [(op.key, part) for op in ops if source(op) in never]
            start += len(part_rows)
        outputs.sort(key=lambda output: (output.kind, output.rows))
        self._ops = [output.op for output in outputs]
        self._parts = [output.part for output in outputs]
        heights = [len(output.rows) for output in outputs]
        self._spans = list(itertools.starmap(slice, itertools.pairwise(itertools.accumulate(heights, initial=0))))
        self._count = sum(heights)
        self._index = together([row for output in outputs for row in output.rows])
        self._reductions: list[tuple[Reduction, Any, slice]] = []
        end = 0
        for _, group in itertools.groupby(outputs, lambda output: output.kind):
            same = [*group]
            taken = [row for output in same for row in output.rows]
            self._reductions.append((same[0].op.reduction, together(taken), slice(end, end + len(taken))))
            end += len(taken)
        members = [[member for row in output.rows if (member := rows[row][1]) is not None] for output in outputs]
        self._members = [tuple(names) if op.family else () for op, names in zip(self._ops, members, strict=True)]
        self._rules = Rules(self._ops, self._members, heights)
        self._keys = [op.key for op in self._ops if _is_number(op)]
        hows = [op.combine for op in self._ops[: len(self._keys)]]  # the `combine` of each metric
        self._combined = [(how, [row for row, one in enumerate(hows) if one == how]) for how in dict.fromkeys(hows)]
        self._levels = [
            sorted({op.reduction.level for op in ops if op.reduction.level is not None}) for ops, *_ in blocks
        ]
        self._kinds = {op.reduction.level for op in self._ops if not op.reduction.foldable}

    def finish(self, states: Sequence[State], rest: str | None, results: MetricValues) -> None:
        """Add the values of these metrics to ``results``."""
        labels, shape = tuple(map(str, states[0].labels)), states[0].missing.shape[1:]
        for key, part in self._absent:
            nothing = np.full((1, *shape), np.nan)
            results.cells[key] = Cells(nothing, labels=labels, pieces=states[part].pieces, rest=rest)
        picked = self._picked(states)
        state = State.beside(states)
        values, weights = np.empty((self._count, *state.missing.shape[1:])), state.weights
        for reduction, index, span in self._reductions:
            if not reduction.foldable:
                values[span] = picked[reduction.level][index]
            else:
                values[span] = reduction.run(state.moments, index, state.even)
            if weights is not None and reduction.name == "mean":  # NaN if the weights add up to 0
                divisor = weights[index]
                with np.errstate(invalid="ignore"):
                    shares = state.moments.total[index] / (divisor + (divisor == 0))
                values[span] = np.where(divisor == 0, np.nan, shares)
        one = values.shape[1:] == (1, 1) and not state.labels
        keys = self._keys if one else []
        for part, key in zip(self._parts, keys, strict=False):
            if states[part].pieces != WHOLE:
                results.pieces[key] = states[part].pieces
        done = 0
        if state.complete and np.count_nonzero(np.isfinite(values)) == values.size:  # the usual case
            results.numbers.update(zip(keys, values.ravel().tolist(), strict=False))
            if (done := len(keys)) == self._count:
                return
        index = self._index
        block = self._rules.apply(values, state.missing[index], state.moments.n[index], state.sums["here"][index] > 0)
        for how, rows in () if done or state.labels or values.shape[1] != 1 else self._combined:
            logged = block.combined(how)[0][rows, 0]
            results.add_numbers([self._keys[row] for row in rows], logged, block.skipped[rows])
        for position in range(done, len(self._ops)):
            if not one or self._ops[position].key not in results.numbers:
                results.cells[self._ops[position].key] = block.cells(
                    position, self._spans[position], members=self._members[position], labels=labels,
                    pieces=states[self._parts[position]].pieces, rest=rest,
                )  # fmt: skip

    def _picked(self, states: Sequence[State]) -> dict[float | None, Array]:
        """The quantiles of all rows by level, and their last values by None: ``[rows, labels, pieces]`` each."""
        shape = sum(len(state.rows) for state in states), *states[0].missing.shape[1:]
        picked = {kind: np.full(shape, np.nan) for kind in self._kinds}
        top = 0
        for state, levels in zip(states, self._levels, strict=True):
            top, first = top + len(state.rows), top
            for label, piece in itertools.product(*map(range, shape[1:])) if state.ordered is not None else ():
                assert state.ordered is not None
                values, order = state.ordered.of(label, piece, alone=shape[1:] == (1, 1))
                step = max(1, CHUNK // max(values.shape[1], 1))
                for start in range(0, len(values) if levels else 0, step):
                    by_level = quantiles(values[start : start + step], levels)
                    for level, row in zip(levels, by_level, strict=True):
                        picked[level][first + start : first + start + len(row), label, piece] = row
                if None in picked and values.shape[1]:
                    back = values[:, np.argsort(order, kind="stable")[::-1]]
                    latest = (back == back).argmax(1)  # 0 if a row has no value; the entry there is NaN
                    picked[None][first:top, label, piece] = back[np.arange(len(back)), latest]
        return picked


def _is_number(op: MetricOp) -> bool:
    """Whether a metric may have a single value only. False for families, and for a variance over pieces."""
    return not op.family and FORMULAS[op.combine].least == 1


def labelled(op: MetricOp, state: State, run: Names = NAMELESS) -> tuple[State, str | None]:
    """A state whose labels are names, with labels beyond the limit pooled, and the name of the pooled rest."""
    if op.by is None:
        return state, None
    labels = tuple(cell_index.shown(item, op.by.type.dtype) for item in state.labels)
    names, position = cell_index.named(labels, state.counts, op.max_labels, run)
    return replace(state, labels=labels) if names.rest is None else state.pooled(names.all, position), names.rest


def cells_of(op: MetricOp, state: State, rest: str | None, ever: Array | None = None) -> Cells:
    """The cells of a metric from a state whose labels are names.

    ``ever`` counts the values that were missing so far, for a state over the run: a count of only missing values
    stays 0.
    """
    results = MetricValues()
    Outputs([([op], state.rows, state.never)]).finish([state], rest, results)
    cells = results[op.key]
    if ever is not None and op.reduction.of_missing is not None and op.nan != "propagate":
        values = np.where((ever > 0) & ~present(cells.values), op.reduction.of_missing, cells.values)
        return replace(cells, values=values)
    return cells
