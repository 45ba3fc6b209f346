"""The rows of one phase in one window, on the host: numpy columns, and how their axes nest.

Rows are in the order (step, batch, rank, row). A frame is built from the batches that the training thread recorded,
merged with the frames of other ranks, and read by all evaluators. Frames are also what ranks send to rank 0 and what a
capture stores. Imports numpy, axes and kernels only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine import groups
from declog.engine.blocks import Batches, Block, Key, Layout
from declog.errors import RuntimeFailure
from declog.language.absence import ABSENT, HERE, Kind
from declog.language.dtypes import Axis, DType
from declog.language.segmented import Segments
from declog.plans.ops import Grouping

Array = NDArray[Any]
KIND = ".kind"  # the suffix of a column that marks which rows of another column are absent or missing
GROUP_ID = "GROUP"  # the column of group ids, as digests; no signal can have this name


@dataclass
class Frame:
    """The columns of one phase. ``texts`` holds texts and other objects: arrays by key, with their axis."""

    phase: str
    batches: Batches
    blocks: list[Block]
    texts: dict[Key, tuple[Axis, Array]] = field(default_factory=dict)
    grouping: Grouping | None = None

    # -- reading

    @cached_property
    def _places(self) -> dict[str, list[tuple[str | None, Block, int]]]:
        places: dict[str, list[tuple[str | None, Block, int]]] = {}
        for block in self.blocks:
            for row, (name, member) in enumerate(block.keys):
                places.setdefault(name, []).append((member, block, row))
        return places

    @cached_property
    def _order(self) -> dict[int, int]:
        return {id(block): position for position, block in enumerate(self.blocks)}

    @cached_property
    def layout(self) -> Layout:
        """The columns and their order, as a key; frames of one layout are evaluated by the same programs."""
        return Layout(tuple((block.axis, block.keys, block.data.dtype) for block in self.blocks), tuple(self.texts))

    def has(self, name: str) -> bool:
        """Whether the frame has a column of this name, or a member of a family."""
        return name in self._places or any(text == name for text, _ in self.texts)

    def columns(self, name: str) -> list[tuple[str | None, int, int]]:
        """The columns of a signal: the member of each, the position of its block, and its row there."""
        return [(member, self._order[id(block)], row) for member, block, row in self._places.get(name, ())]

    @property
    def keys(self) -> set[Key]:
        """The keys of all columns, one per member of a family."""
        return {key for block in self.blocks for key in block.keys} | self.texts.keys()

    def members(self, name: str) -> tuple[str, ...]:
        """The members of a family, in the order in which they were first seen; empty if it never came."""
        members = [member for member, _, _ in self._places.get(name, []) if member is not None]
        return tuple(members) + tuple(member for text, member in self.texts if text == name and member is not None)

    def column(self, name: str, *, exact: bool = False) -> Array | None:
        """A column ``[rows]`` or a family ``[members, rows]`` in its own dtype; None if it never came.

        A column of integers with missing values is returned as floats with NaN; ``exact``: as objects with None.
        """
        places = self._places.get(name)
        if places is None:
            texts = [values for (text, _), (_, values) in self.texts.items() if text == name]
            if not texts:
                return None
            return texts[0] if (name, None) in self.texts else np.stack(texts)
        member, block, row = places[0]
        if member is None:
            return block.column(row, exact=exact)
        if all(other is block for _, other, _ in places) and len(places) == places[-1][2] - row + 1:
            return block.column(slice(row, row + len(places)), exact=exact)
        return np.stack([other.column(position, exact=exact) for _, other, position in places])

    def plain(self, name: str) -> tuple[Block, int] | None:
        """The block and row of a column of numbers ``[rows]``; None for a family, for texts, and if it never came."""
        places = self._places.get(name)
        return None if places is None or places[0][0] is not None else places[0][1:]

    def floats(self, names: Sequence[str]) -> Array:
        """Several columns per completion as float64 ``[k, rows]``; a column that never came is NaN."""
        rows = self.count(Axis.COMPLETION)
        nothing = np.full(rows, np.nan)
        columns = [nothing if (one := self.plain(name)) is None else one[0].floats[one[1]] for name in names]
        return np.concatenate(columns).reshape(len(columns), rows)

    @cached_property
    def has_kinds(self) -> bool:
        """Whether any column has a column of kinds."""
        return any(name.endswith(KIND) for name in self._places)

    def kind(self, name: str, axis: Axis) -> Kind:
        """Which rows of a column are absent or missing, spread over an axis: ``[rows]``, a family ``[members, rows]``.

        False: none is. A missing float is NaN and needs no mark.
        """
        by_member = {
            member: self.spread(block.data[row], block.axis, axis)
            for member, block, row in (self._places.get(name + KIND, ()) if self.has_kinds else ())
        }
        if not by_member or None in by_member:
            return by_member.get(None, False)
        here = np.full(self.count(axis), HERE, np.uint8)
        return np.stack([by_member.get(member, here) for member in self.members(name)])

    def count(self, axis: Axis) -> int:
        """The number of entries along an axis."""
        if axis is Axis.COMPLETION:
            return self._completions
        if axis is Axis.STEP:
            return len(self.batches)
        return self.parts(Axis.COMPLETION if axis is Axis.GROUP else Axis.STEP, axis).count

    @cached_property
    def _completions(self) -> int:
        return int(self.batches.rows.sum())

    # -- how axes nest

    @cached_property
    def _memo(self) -> dict[tuple[Axis, Axis], Segments]:
        return {}

    def parts(self, fine: Axis, coarse: Axis) -> Segments:
        """The entries of ``fine`` that belong to each entry of ``coarse``; cached."""
        cached = self._memo.get((fine, coarse))
        if cached is None:
            cached = self._memo[fine, coarse] = self._parts(fine, coarse)
        return cached

    def _parts(self, fine: Axis, coarse: Axis) -> Segments:
        if fine is Axis.COMPLETION and coarse is Axis.STEP:
            rows = self.batches.rows
            equal = int(rows[0]) if len(rows) and (rows == rows[0]).all() else None
            return Segments(np.repeat(np.arange(len(rows)), rows), len(rows), equal or None)
        if fine is Axis.COMPLETION and coarse is Axis.GROUP:
            return self._groups()
        if fine is Axis.STEP and coarse is Axis.BATCH:
            return Segments.of_keys(self.batches.step, self.batches.batch)
        if fine is Axis.GROUP and coarse is Axis.STEP:
            groups = self.parts(Axis.COMPLETION, Axis.GROUP)
            if not groups.count:  # no rows, or no signal names the groups
                return Segments(np.zeros(0, np.int64), len(self.batches))
            first = np.zeros(groups.count, np.int64)
            first[groups.index[::-1]] = np.arange(len(groups.index))[::-1]
            return Segments(self.parts(Axis.COMPLETION, Axis.STEP).index[first], len(self.batches))
        middle = Axis.STEP
        inner, outer = self.parts(fine, middle), self.parts(middle, coarse)
        return Segments(outer.index[inner.index], outer.count)

    def _groups(self) -> Segments:
        grouping, batches = self.grouping, self.batches
        assert grouping is not None
        pieces = Segments(np.repeat(np.arange(len(batches)), batches.rows), len(batches))  # a group never spans two
        if grouping.split != "none":
            within = ("step", "batch") if grouping.split == "ranks" else ("step", "rank")
            pieces = Segments.of_keys(*(batches.__dict__[part][pieces.index] for part in within))
        elif grouping.size is not None and len(wrong := np.flatnonzero(batches.rows % grouping.size)):
            step, rank, rows = (int(values[wrong[0]]) for values in (batches.step, batches.rank, batches.rows))
            raise RuntimeFailure.of("DL507.batch", size=grouping.size, step=step, rank=rank, rows=rows)
        return groups.segments(grouping, self.column(GROUP_ID, exact=True), pieces)

    def spread(self, values: Array, coarse: Axis, fine: Axis) -> Array:
        """``values[..., coarse]`` repeated over a finer axis."""
        return values if coarse is fine else values[..., self.parts(fine, coarse).index]

    @cached_property
    def latest(self) -> NDArray[np.int64]:
        """An order of the batches that ends with the latest: the last step and batch, and of these the lowest rank."""
        batches = self.batches
        return np.lexsort((-batches.rank, batches.batch, batches.step))

    # -- building

    def last(self, axis: Axis) -> NDArray[np.int64]:
        """The rows of an axis in the last batch of the last step, of all ranks. A group counts where it begins."""
        if not len(self.batches):
            return np.zeros(0, np.int64)
        last = self.latest[-1]
        keep = (self.batches.step == self.batches.step[last]) & (self.batches.batch == self.batches.batch[last])
        return np.flatnonzero(self.spread(keep, Axis.STEP, axis))

    def take(self, order: NDArray[np.int64]) -> Frame:
        """A frame with these batches, in this order, and their rows."""
        picks: dict[Axis, Array] = {}

        def pick(axis: Axis) -> Array:
            if axis not in picks:
                picks[axis] = _ranges(self._sizes(axis), order)
            return picks[axis]

        blocks = [block.pick(pick(block.axis)) for block in self.blocks]
        texts = {key: (axis, values[pick(axis)]) for key, (axis, values) in self.texts.items()}
        return Frame(self.phase, self.batches.take(order), blocks, texts, self.grouping)

    def named(self, name_of: Callable[[str, Array], str | None]) -> Frame:
        """The frame with renamed columns; ``name_of`` gets a name and values, and returns None to drop the column."""
        texts = {
            (name, key[1]): column for key, column in self.texts.items()
            if (name := name_of(key[0], column[1])) is not None
        }  # fmt: skip
        blocks = []
        for block in self.blocks:
            names = [name_of(name, block.data) for name, _ in block.keys]
            keys = tuple((name, key[1]) for name, key in zip(names, block.keys, strict=True) if name is not None)
            if len(keys) < len(names):
                block = block.some([row for row, name in enumerate(names) if name is not None])
            if keys:
                blocks.append(block if keys == block.keys else replace(block, keys=keys))
        same = texts.keys() == self.texts.keys() and [*map(id, blocks)] == [*map(id, self.blocks)]
        return self if same else replace(self, blocks=blocks, texts=texts)

    def with_column(
        self,
        name: str,
        axis: Axis,
        values: Array,
        dtype: DType,
        members: Sequence[str] = (),
        *,
        kind: Kind = False,
    ) -> Frame:
        """The frame with one more column ``[rows]``, or one more family ``[members, rows]``, and its kind."""
        keys = tuple((name, member) for member in members) if members else ((name, None),)
        if np.any(kind):
            kinds = np.array(np.broadcast_to(kind, (len(keys), values.shape[-1])), np.uint8)
            marks = Block(axis, tuple((name + KIND, member) for _, member in keys), kinds)
            return replace(self, blocks=[*self.blocks, marks]).with_column(name, axis, values, dtype, members)
        if dtype in (DType.TEXT, DType.OBJECT):
            return replace(self, texts={**self.texts, (name, None): (axis, values)})
        if values.dtype.kind == "O":
            block = Block.of_integers(axis, keys, values)
        else:
            block = Block(axis, keys, values if values.ndim > 1 else values[None])
        return replace(self, blocks=[*self.blocks, block])

    def with_group_ids(self) -> Frame:
        """The frame with a column of group ids: digests of the first signal in ``grouping.of`` that came."""
        sources = () if self.grouping is None else self.grouping.of
        ids = next((ids for name in sources if (ids := self.column(name, exact=True)) is not None), None)
        if ids is None or (GROUP_ID, None) in self.keys:
            return self
        return self.with_column(GROUP_ID, Axis.COMPLETION, groups.digests(ids), DType.INT)

    def _sizes(self, axis: Axis) -> NDArray[np.int64]:
        if axis is Axis.STEP:
            return np.ones(len(self.batches), np.int64)
        if axis is Axis.GROUP:
            return np.bincount(self.parts(Axis.GROUP, Axis.STEP).index, minlength=len(self.batches))
        return self.batches.rows

    @classmethod
    def merge(cls, frames: Sequence[Frame]) -> Frame:
        """The rows of several frames of one phase, sorted by (step, batch, rank)."""
        frames = [frame for frame in frames if len(frame.batches)] or list(frames[:1])
        if len(frames) == 1:
            return frames[0]
        batches = Batches.join([frame.batches for frame in frames])
        layouts = [
            ([(one.axis, one.keys, one.data.dtype) for one in frame.blocks], set(frame.texts)) for frame in frames
        ]
        if all(layout == layouts[0] for layout in layouts):
            blocks = [_end_to_end(blocks) for blocks in zip(*(frame.blocks for frame in frames), strict=True)]
        else:
            blocks = _joined(frames)
        merged = cls(frames[0].phase, batches, blocks, _joined_texts(frames), frames[0].grouping)
        order = np.lexsort((batches.rank, batches.batch, batches.step))
        return merged if (order[1:] > order[:-1]).all() else merged.take(order)


def merged(parts: Sequence[Mapping[str, Frame]]) -> dict[str, Frame]:
    """The frames of several parts, merged phase by phase."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: Frame.merge([part[name] for part in parts if name in part]) for name in names}


def _ranges(sizes: NDArray[np.int64], order: NDArray[np.int64]) -> Array:
    """The rows of the batches in ``order``, where batch i has ``sizes[i]`` rows."""
    starts = np.cumsum(sizes) - sizes
    counts = sizes[order]
    begin = np.repeat(starts[order] - (np.cumsum(counts) - counts), counts)
    return begin + np.arange(int(counts.sum()))


def _joined(frames: Sequence[Frame]) -> list[Block]:
    """The blocks of frames whose columns differ, with kinds that mark where a column did not come."""
    columns = [
        {key: block.some(slice(at, at + 1)) for block in frame.blocks for at, key in enumerate(block.keys)}
        for frame in frames
    ]
    axes = {key: block.axis for by_key in columns for key, block in by_key.items() if not key[0].endswith(KIND)}
    blocks = [
        _column(key, axis, [by_key.get(key) for by_key in columns], [frame.count(axis) for frame in frames])
        for key, axis in axes.items()
    ]
    return blocks + _kinds(frames, columns)


def _column(key: Key, axis: Axis, parts: Sequence[Block | None], rows: Sequence[int]) -> Block:
    """One column of several frames: missing where a frame lacks it, float if any frame has floats."""
    here = [block.data for block in parts if block is not None]
    integers = all(data.dtype.kind in "iub" for data in here)
    dtype = np.result_type(*here) if integers else np.dtype(np.float64)
    pieces = []
    for block, count in zip(parts, rows, strict=True):
        if block is None:
            nothing = np.full((1, count), 0 if integers else np.nan, dtype)
            block = Block(axis, (key,), nothing, np.zeros((1, count), bool) if integers else None)
        elif not integers and block.valid is not None:
            block = Block(axis, (key,), block.column(0)[None])
        pieces.append(block)
    return _end_to_end(pieces)


def _kinds(frames: Sequence[Frame], columns: Sequence[Mapping[Key, Block]]) -> list[Block]:
    """The kinds of signals and of computed columns: absent in the frames that lack the column.

    A fold needs no kind: its count is missing where its tokens did not come.
    """
    present = [{*column, *frame.texts} for column, frame in zip(columns, frames, strict=True)]
    kinds = []
    for key in dict.fromkeys(key for keys in present for key in keys if key[0].isidentifier()):
        mark = (key[0] + KIND, key[1])
        marks = [column.get(mark) for column in columns]
        if all(key in keys for keys in present) and not any(marks):
            continue
        axis = max((block.axis for block in marks if block is not None), default=Axis.STEP)
        parts = [
            np.full(frame.count(axis), HERE if key in keys else ABSENT, np.uint8) if key not in keys or block is None
            else frame.spread(block.data[0], block.axis, axis)
            for frame, keys, block in zip(frames, present, marks, strict=True)
        ]  # fmt: skip
        kinds.append(Block(axis, (mark,), np.concatenate(parts)[None]))
    return kinds


def _end_to_end(blocks: Sequence[Block]) -> Block:
    """Blocks of the same columns, concatenated along rows."""
    data = np.concatenate([block.data for block in blocks], axis=1)
    valid = None
    if any(block.valid is not None for block in blocks):
        masks = [np.ones(block.data.shape, bool) if block.valid is None else block.valid for block in blocks]
        valid = np.concatenate(masks, axis=1)
    return Block(blocks[0].axis, blocks[0].keys, data, valid)


def _joined_texts(frames: Sequence[Frame]) -> dict[Key, tuple[Axis, Array]]:
    axes: dict[Key, Axis] = {key: axis for frame in frames for key, (axis, _) in frame.texts.items()}

    def of(frame: Frame, key: Key, axis: Axis) -> Array:
        return frame.texts[key][1] if key in frame.texts else np.full(frame.count(axis), None, object)

    return {key: (axis, np.concatenate([of(frame, key, axis) for frame in frames])) for key, axis in axes.items()}
