"""Looks up the rows of one frame in another by their ids: rows of a later phase in an earlier one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import pairwise
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine.blocks import Batches
from declog.engine.frame import Frame, ranges
from declog.engine.groups import digests
from declog.errors import RuntimeFailure
from declog.errors.messages import listed
from declog.language.dtypes import Axis
from declog.language.notation import part_of
from declog.language.segmented import Array

LOOKED_UP, ABSENT = -1, -2  # instead of a source row: the row is looked up, or it has none


class Search:
    """Looks up rows of a target's batches in a source. Successive batches mostly search the same rows.

    ``source_rows`` has the source row of each target row for which no lookup is needed, and is negative for others. On
    the ranks in ``ahead`` the target is observed before the source in each step, and ids are those of the same step.
    """

    def __init__(
        self, source: Frame, target: Frame, ids: str | None, ahead: set[int],
        source_rows: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        self.source, self.target, self.ahead, self.source_rows = source, target, ahead, source_rows
        self.source_ids, self.target_ids = (
            None if ids is None else frame.column(ids, exact=True) for frame in (source, target)
        )
        # whether of the source, the rank and the step: the rows by id
        self._of_step: dict[tuple[bool, int, int], dict[Any, list[int]]] = {}
        self._latest: dict[bool, tuple[bytes, NDArray[np.int64], RowsById | None]] = {}  # of earlier and later batches

    def of(self, batch: int, *, later: bool = False) -> tuple[NDArray[np.int64], NDArray[np.int64], RowsById | None]:
        """The source batches for a batch of the target, their rows, and these rows by id (None if none has an id).

        They are those before the target, or ``later`` ones of its step.
        """
        choose = later_in_step if later else candidates
        batches = choose(self.source.batches, self.target.batches, batch)
        if later not in self._latest or self._latest[later][0] != batches.tobytes():
            rows = ranges(self.source.batches.rows, batches)
            ids = None if self.source_ids is None else self.source_ids[rows]
            by_id = RowsById(ids, rows) if ids is not None and has_ids(ids, slice(None)) else None
            self._latest[later] = batches.tobytes(), rows, by_id
        return batches, *self._latest[later][1:]

    def matched(self, batch: int, span: slice) -> tuple[NDArray[np.int64], set[tuple[int, int]]]:
        """The source row of each target row of a batch, -1 where none has its id; pairs of source rows with one id.

        If no id of the batch is in both, ids that the batches before do not have are those of later ones of the step.
        If some are, the batch is of one step: the one before, or on a rank that is ``ahead`` its own.
        """
        count, before = span.stop - span.start, self.of(batch)[2]
        if self.target_ids is None or not has_ids(self.target_ids, span):
            return np.full(count, -1, np.int64), set()
        asked = self.target_ids[span]
        places, doubled = (np.full(count, -1, np.int64), []) if before is None else before.rows_of(asked)
        ahead = self._is_ahead(batch)
        if ((places < 0).any() or ahead) and (later := self.of(batch, later=True)[2]) is not None:
            behind, of_later = later.rows_of(asked, first=True)
            if ahead:
                behind = self._in_order(batch, span)
            if not ((places >= 0) & (behind >= 0)).any():
                places, doubled = np.maximum(places, behind), [*doubled, *of_later]
            elif ahead:
                places, doubled = behind, of_later
        return places, self._ambiguous(batch, span, doubled)

    def _in_order(self, batch: int, span: slice) -> NDArray[np.int64]:
        """The source row of each target row in its own step: rows of one id in their order, else the next one."""
        sources, targets = self._rows_by_id(batch, of_source=True), self._rows_by_id(batch, of_source=False)
        order, batch_of = self.source.batches.order, self.source.parts(Axis.COMPLETION, Axis.STEP).index
        now, places = self.target.batches.order[batch], []
        for row, id in enumerate(keys_of(self.target_ids[span]) if self.target_ids is not None else (), span.start):
            rows, of_target = sources.get(id, []), targets[id]
            if len(rows) == len(of_target):
                places.append(rows[of_target.index(row)])
            else:
                places.append(next((one for one in rows if order[batch_of[one]] > now), rows[-1] if rows else -1))
        return np.array(places, np.int64)

    def _ambiguous(self, batch: int, span: slice, doubled: Collection[tuple[int, int]]) -> set[tuple[int, int]]:
        """The pairs of source rows with one id of which a target row may mean either.

        Those of several batches are epochs or generations, of which a target row has one. Parts of completions, such
        as turns, may come in several batches: there are more of them than target rows of the step, or so far.
        """
        if not doubled:
            return set()
        batch_of = self.source.parts(Axis.COMPLETION, Axis.STEP).index
        pairs = {(one, other) for one, other in doubled if batch_of[one] == batch_of[other]}
        rest = {*doubled} - pairs
        if not rest or part_of(self.source.phase) is None or self.source_ids is None:
            return pairs
        targets, leads = self._rows_by_id(batch, of_source=False), self._leads(batch)
        latest = [one for one, _ in rest]
        ids = dict(zip(latest, keys_of(self.source_ids[latest]), strict=True))
        counts = {
            one: sum(leads or row < span.stop for row in targets.get(id, ())) for one, id in ids.items()
        }  # fmt: skip
        rows = Counter(one for one, _ in {*doubled})
        return pairs | {(one, other) for one, other in rest if rows[one] >= counts[one]}

    def _rows_by_id(self, batch: int, *, of_source: bool) -> dict[Any, list[int]]:
        """The rows of the source or the target in the step of a target batch, on its rank, by id and in their order."""
        rank, step = int(self.target.batches.rank[batch]), int(self.target.batches.step[batch])
        frame, ids = (self.source, self.source_ids) if of_source else (self.target, self.target_ids)
        if (of_source, rank, step) not in self._of_step:
            batches = np.flatnonzero((frame.batches.rank == rank) & (frame.batches.step == step))
            rows = ranges(frame.batches.rows, batches[np.argsort(frame.batches.order[batches], kind="stable")])
            by_id: dict[Any, list[int]] = {}
            for key, row in zip([] if ids is None else keys_of(ids[rows]), rows.tolist(), strict=ids is not None):
                by_id.setdefault(key, []).append(row)
            self._of_step[of_source, rank, step] = by_id
        return self._of_step[of_source, rank, step]

    def stands(self, span: slice) -> bool:
        """Whether these rows of a batch are those of the source for which it stands, so that none is looked up."""
        return self.source_rows is not None and span.start < span.stop and self.source_rows[span.start] != LOOKED_UP

    def _is_ahead(self, batch: int) -> bool:
        """Whether the target leads in the step of a batch, on a rank that is ``ahead``."""
        return int(self.target.batches.rank[batch]) in self.ahead and self._leads(batch)

    def _leads(self, batch: int) -> bool:
        """Whether the target comes before the source in the step of a batch."""
        rank, step = int(self.target.batches.rank[batch]), int(self.target.batches.step[batch])
        first = [
            frame.batches.order[(frame.batches.rank == rank) & (frame.batches.step == step)].min(initial=2**62)
            for frame in (self.source, self.target)
        ]
        return bool(first[1] < first[0])

    def overtaken(self) -> int | None:
        """The first step in which rows of the target read an earlier step of the source, which has their ids later.

        So it is where the target is observed first in each step, and ids come again in each step. None without such a
        step.
        """
        here, asked = self.source.batches, self.target.batches
        if self.source_ids is None or self.target_ids is None:
            return None
        for batch, span in enumerate(spans(self.target)):
            before, behind = (choose(here, asked, batch) for choose in (candidates, later_in_step))
            if not len(behind) or (here.step[before] == asked.step[batch]).any() or self._is_ahead(batch):
                continue
            ids = ({*keys_of(self.source_ids[ranges(here.rows, some)])} for some in (before, behind))
            if {*keys_of(self.target_ids[span])}.intersection(*ids) - {None}:
                return int(asked.step[batch])
        return None


def first_batches(batches: Batches) -> dict[int, tuple[int, int]]:
    """Each rank's first batch: its step, and its order in the step."""
    latest_first = np.lexsort((batches.order, batches.step))[::-1]
    ranks, steps, orders = (column[latest_first].tolist() for column in (batches.rank, batches.step, batches.order))
    return dict(zip(ranks, zip(steps, orders, strict=True), strict=True))


def spans(frame: Frame) -> Iterator[slice]:
    """The rows of each batch."""
    ends = np.cumsum(frame.batches.rows).tolist()
    return (slice(begin, end) for begin, end in pairwise([0, *ends]))


def candidates(source: Batches, target: Batches, batch: int) -> NDArray[np.int64]:
    """The source batches in which a target batch looks up its rows: its rank's, of the latest step before it."""
    now = int(target.step[batch])  # the source may have rows of later steps already
    before = (source.rank == target.rank[batch]) & (
        (source.step < now) | ((source.step == now) & (source.order < target.order[batch]))
    )
    if before.any():
        before &= source.step == source.step[before].max()
    return np.flatnonzero(before)


def later_in_step(source: Batches, target: Batches, batch: int) -> NDArray[np.int64]:
    """The source batches of a target batch's rank and step that come behind it."""
    of_step = (source.rank == target.rank[batch]) & (source.step == target.step[batch])
    return np.flatnonzero(of_step & (source.order > target.order[batch]))


def rows_of_step(source: Batches, rank: int, step: int) -> tuple[int, NDArray[np.int64]]:
    """All source rows of a rank in a step, or else in the latest step before, and that step."""
    of_rank = np.flatnonzero((source.rank == rank) & (source.step <= step))
    latest = int(source.step[of_rank].max(initial=-1))
    return latest, ranges(source.rows, of_rank[source.step[of_rank] == latest])


def on_another_rank(source: Frame, target: str, rank: int) -> RuntimeFailure | None:
    """The failure of a target's rank that has no source rows, while others have; None if it has some, or nobody."""
    ranks = source.batches.rank
    if not len(ranks) or rank in ranks:
        return None
    names = listed(sorted({*map(str, ranks.tolist())}), 4)
    return RuntimeFailure.of("DL511.rank", target=target, source=source.phase, rank=rank, ranks=names)


def has_ids(ids: Array | None, rows: slice | NDArray[np.int64]) -> bool:
    """Whether any of some rows has an id."""
    return ids is not None and any(item is not None for item in ids[rows])


class RowsById:
    """Rows by their ids; rows without an id are never looked up."""

    def __init__(self, ids: Array, rows: NDArray[np.int64]) -> None:
        pairs = list(zip(keys_of(ids), rows.tolist(), strict=True))
        self._table = dict(pairs)
        self._earlier: dict[Any, list[int]] = {}  # of ids that several rows have: all but the latest
        if len(self._table) < len(pairs):
            for id, row in pairs:
                if self._table[id] != row:
                    self._earlier.setdefault(id, []).append(row)
        self._table.pop(None, None)

    def rows_of(self, ids: Array, *, first: bool = False) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
        """The row of each id, -1 if none has it; and pairs of rows with the same id.

        If several rows have an id, it is the latest, or the ``first``.
        """
        keys = keys_of(ids)
        if first and self._earlier:
            table = {**self._table, **{id: rows[0] for id, rows in self._earlier.items()}}
        else:
            table = self._table
        doubled = [
            (self._table[id], row) for id in (dict.fromkeys(keys) if self._earlier else ())
            if id is not None for row in self._earlier.get(id, ())
        ]  # fmt: skip
        return np.array([table.get(id, -1) for id in keys], np.int64), doubled


def keys_of(ids: Array) -> list[Any]:
    """The keys for looking up ids: numbers and texts themselves, digests of lists and mappings, as for groups."""
    keys: list[Any] = ids.tolist()
    if {*map(type, keys)} <= {str, int, float, NoneType}:  # the usual case
        return keys
    return [key if isinstance(key, str | int | float | None) else digests([key])[0] for key in keys]
