"""What is computed from metrics' values: formulas, the conditions of `when` and of alerts, the numbers in their texts.

One evaluator for all. Metrics are laid out by their members, labels and pieces, each by its name: values of different
steps, batches or ranks never meet. A metric that has no value is absent, and so is what is computed of it, but for
``present`` (see ``language/absence.py``). Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine.cells import WHOLE, Cells
from declog.engine.evaluator import by_tensors
from declog.errors import RuntimeFailure
from declog.language.absence import Absence, elementwise
from declog.language.functions import DEFAULT, Functions
from declog.language.nodes import BUILTIN, CONST, METRIC, Node, walk
from declog.language.segmented import Segments, present, truth
from declog.plans.needs import read
from declog.plans.ops import FormulaOp

Array = NDArray[Any]
NOWHERE = np.full((1, 1, 1), np.nan)
NO_FACTS: Mapping[str, float] = {}
Names = tuple[Any, ...]


@dataclass(frozen=True)
class CellName:
    """A cell: the member and the label of a condition that held there; None: it has none."""

    member: str | None = None
    label: str | None = None


class Sheet:
    """Some metrics side by side, ``[members, labels, pieces]``; an expression's value over them."""

    def __init__(
        self, cells: Mapping[str, Cells], keys: Iterable[str], functions: Functions = DEFAULT,
        facts: Mapping[str, float] = NO_FACTS,
    ) -> None:  # fmt: skip
        self._facts = facts
        self._cells = {key: cells[key] for key in keys if key in cells}
        self._functions = functions
        found = self._cells.values()
        self.members: tuple[str, ...] = tuple(sorted(_union(item.members for item in found)))
        self.labels: tuple[str, ...] = tuple(sorted(_union(item.labels for item in found)))
        labelled = {(frozenset(item.labels), item.rest) for item in found if item.labels}
        rests = {rest for _, rest in labelled if rest is not None}
        self._unlike = rests if len(labelled) > 1 else set()  # rests of other labels each: they do not compare
        self.rest = next(iter(rests - self._unlike), None)
        self.pieces = tuple(sorted(_union(item.pieces for item in found))) or WHOLE
        self._memo: dict[int, tuple[Array, Absence]] = {}

    def value(self, node: Node) -> tuple[Array, Absence]:
        """A node's value, NaN where it is absent, and where that is."""
        known = self._memo.get(node.index)
        if known is None:
            values, gone = self._compute(node)
            if gone is not False:
                if not isinstance(gone, bool) and (gone.all() or not gone.any()):
                    gone = bool(gone.all())
                values = np.where(gone, np.nan, values)
            known = self._memo[node.index] = values, gone
        return known

    def broken(self, expr: Node, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Where a metric that an expression reads is NaN or infinite: what it makes of that is no gap.

        And where an infinity is the cause, and no missing value.
        """
        found, infinite = np.zeros(shape, bool), np.zeros(shape, bool)
        for node in walk(expr):
            if node.op == METRIC and (read := self.value(node))[1] is not True:
                odd = ~np.isfinite(read[0]) & ~np.asarray(read[1])
                found |= odd if len(odd) <= shape[0] else odd.any(0, keepdims=True)
                cells = self._cells.get(str(node.param("name")))
                if cells is not None:
                    marks = odd & self._reindexed(cells, cells.infinities, False)
                    infinite |= marks if len(marks) <= shape[0] else marks.any(0, keepdims=True)
        return found, infinite

    def _compute(self, node: Node) -> tuple[Array, Absence]:
        if node.op == CONST:
            return np.asarray(node.param("value")), False
        if node.op == BUILTIN:
            value = self._facts.get(str(node.param("name")))
            return (NOWHERE, True) if value is None else (np.full((1, 1, 1), value), False)
        if node.op == METRIC:
            return self._metric(str(node.param("name")))
        function = self._functions.get(node.op)
        if function is None:
            raise RuntimeFailure.of("DL605.function", function=node.op)
        arrays, gone = zip(*(self.value(arg) for arg in node.args), strict=True)
        if node.op == "member":
            member = node.param("member")
            if gone[0] is True or member not in self.members:
                return NOWHERE, True
            at = self.members.index(member)
            absent: Any = np.broadcast_to(gone[0], arrays[0].shape)
            return arrays[0][at : at + 1], absent[at : at + 1]
        if function.stage == "aggregate":  # over=member
            shape = (max(len(self.members), 1), *np.broadcast_shapes(arrays[0].shape, (1, 1, 1))[1:])
            last = np.moveaxis(np.broadcast_to(arrays[0], shape), 0, -1)
            reduced = function.run(last.reshape(-1, shape[0]), Segments.whole(shape[0])).reshape(1, *shape[1:])
            return reduced, gone[0] if isinstance(gone[0], bool) else np.broadcast_to(gone[0], shape).all(
                0, keepdims=True
            )
        absence = elementwise(node, gone, lambda place: truth(np.asarray(arrays[place])), lambda _: False)
        if absence is True:
            return NOWHERE, True
        made = by_tensors(function.run, list(arrays)) if function.tensors else np.asarray(function.run(np, *arrays))
        return made, absence

    def _metric(self, name: str) -> tuple[Array, Absence]:
        """A metric, or a function of it: ``columns:id``, ``nan_count:id``, which there always is."""
        function, _, key = name.rpartition(":")
        found = self._cells.get(key)
        if function:
            known = 0 if found is None else len(found.members) if function == "members" else found.skipped
            return np.full((1, 1, 1), float(known)), False
        if found is None:
            return NOWHERE, True
        there = found.there
        if self._unlike and found.labels:
            there = there & np.array([label not in self._unlike for label in found.labels])[:, None]
        there = self._reindexed(found, there, False)
        return self._reindexed(found, found.values, np.nan), False if there.size and there.all() else ~there

    def _reindexed(self, cells: Cells, values: Array, nothing: float | bool) -> Array:
        """A metric's values among the members, labels and pieces of all."""
        axes = ((cells.members, self.members), (cells.labels, self.labels), (cells.pieces, self.pieces))
        for axis, (own, whole) in enumerate(axes):
            if own != whole and (own or not values.shape[axis]):  # without names it is one for all of them
                values = reindexed(values, axis, own, whole, nothing)
        return values


def _union(parts: Iterable[Names]) -> Names:
    return tuple(dict.fromkeys(item for part in parts for item in part))


def reindexed(values: Array, axis: int, names: Names, wanted: Names, fill: float | bool) -> Array:
    """Values of some names among those of more."""
    padding = np.full_like(np.take(values, [0], axis) if values.shape[axis] else values.sum(axis, keepdims=True), fill)
    order = [names.index(name) if name in names else -1 for name in wanted]
    return np.take(np.concatenate([values, padding], axis), order, axis)


def formula(
    op: FormulaOp, cells: Mapping[str, Cells], functions: Functions = DEFAULT, facts: Mapping[str, float] = NO_FACTS
) -> Cells | None:
    """A formula's values, piece by piece; None where none of its metrics are of this window."""
    keys = read(op.expr)
    sources = [cells[key] for key in keys if key in cells]
    if keys and not sources:
        return None
    sheet = Sheet(cells, keys, functions, facts)
    values, gone = sheet.value(op.expr)
    members = sheet.members if op.family else ()
    shape = (max(len(members), 1), max(len(sheet.labels), 1), len(sheet.pieces))
    result = np.array(np.broadcast_to(np.asarray(values, np.float64), shape))
    missing = np.broadcast_to(gone, shape) | ~present(result)
    made = Cells(result, members, sheet.labels, pieces=sheet.pieces, rest=sheet.rest)
    if missing.any() and any(source.kept is not None or not np.isfinite(source.values).all() for source in sources):
        broken, infinite = sheet.broken(op.expr, shape)
        made.kept = missing & ~np.broadcast_to(gone, shape) & broken
        made.infinite = made.kept & infinite
        missing = missing & ~made.kept
    if op.empty is not None and (sheet.labels or not op.labels):  # without labels it has no cell
        made.values = np.where(missing, op.empty, result)
    return made


def first_place(
    condition: Node, cells: Mapping[str, Cells], combine: Mapping[str, str], functions: Functions = DEFAULT,
    facts: Mapping[str, float] = NO_FACTS,
) -> CellName | None:  # fmt: skip
    """The first cell in which a condition over metrics, as they are logged, is true; None: it does not hold."""
    sheet = Sheet(_logged(cells, read(condition), combine), read(condition), functions, facts)
    true = np.atleast_3d(truth(np.asarray(sheet.value(condition)[0])))
    if not true.any():
        return None
    member, label, _ = np.argwhere(true)[0].tolist()
    return CellName(
        sheet.members[member] if true.shape[0] > 1 else None, sheet.labels[label] if true.shape[1] > 1 else None
    )


def shown(
    fields: Mapping[str, Node], cells: Mapping[str, Cells], combine: Mapping[str, str], place: CellName
) -> dict[str, float | None]:
    """The values of metrics for a text about a condition that held: those that it read; None for one that is absent."""
    numbers: dict[str, float | None] = {}
    for name, node in fields.items():
        (key,) = read(node)
        logged = _logged(cells, [key], combine)
        values, gone = Sheet(logged, [key]).value(node)
        at = [
            names.index(one) if names and one in names else 0
            for names, one in ((logged[key].members, place.member), (logged[key].labels, place.label))
        ] if key in logged else [0, 0]  # fmt: skip
        at = [
            place if place < size else 0 for place, size in zip(at, values.shape, strict=False)
        ]  # of members one value
        value = float(values[*at, 0]) if values.size else np.nan
        numbers[name] = None if np.broadcast_to(gone, values.shape)[*at, 0] else value
    return numbers


def _logged(cells: Mapping[str, Cells], keys: Sequence[str], combine: Mapping[str, str]) -> dict[str, Cells]:
    """Metrics with one value per cell, as they are logged."""
    return {key: cells[key].logged(combine[key]) for key in keys if key in cells}
