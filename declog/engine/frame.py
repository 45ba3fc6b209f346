"""The rows of one phase in one window, on the host: numpy columns, and how their axes nest.

Rows are in the order (step, batch, rank, row). A frame is built from the batches that the training thread recorded,
merged with the frames of other ranks, and read by all evaluators. Ranks send frames to rank 0, and captures store them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine import groups
from declog.engine.blocks import Batches, Block, Facts, Key, shared
from declog.engine.held_steps import sources_of, with_values
from declog.engine.layout import KIND, Layout, Part, joined, layout_of, recent, together
from declog.errors import RuntimeFailure
from declog.language.absence import HERE, Kind, absent
from declog.language.dtypes import Axis, DType
from declog.language.segmented import Array, Segments
from declog.plans.ops import Grouping

TEXTS = np.dtype(object)  # the dtype of texts and other objects
# the columns of group ids, as digests, and of the rows' groups in an earlier phase; no signal can have these names
GROUP_ID, EARLIER_GROUP = "GROUP", "EARLIER GROUP"


@dataclass
class Frame:
    """The columns of one phase, in a ``mode``. ``texts`` holds texts and other objects: arrays by key, with their axis.

    A rank's rows get their mode when their log event is evaluated. Messages and files have it once for all frames.
    """

    phase: str
    batches: Batches
    blocks: list[Block]
    texts: dict[Key, tuple[Axis, Array]] = field(default_factory=dict)
    grouping: Grouping | None = None
    mode: str = ""
    checked: bool = False  # in training: whether group ids of this phase came in an earlier log event
    _facts: Facts = field(default_factory=dict, init=False, repr=False, compare=False)

    # -- reading

    @cached_property
    def layout(self) -> Layout:
        """The columns and their positions; frames of one layout are evaluated by the same programs."""
        heads = tuple([(block.axis, block.keys, block.data.dtype) for block in self.blocks])
        return layout_of(heads, tuple(self.texts))

    def has(self, name: str) -> bool:
        """Whether the frame has a column of this name, or a member of a family."""
        return name in self.layout.names

    def members(self, name: str) -> tuple[str, ...]:
        """The members of a family, in the order in which they were first seen; empty if it never came."""
        return self.layout.members.get(name, ())

    def column(self, name: str, *, exact: bool = False) -> Array | None:
        """A column ``[rows]`` or a family ``[members, rows]`` in its own dtype; None if it never came.

        A column of integers with missing values is returned as floats with NaN; ``exact``: as objects with None.
        """
        columns = self.layout.columns.get(name)
        if columns is None:
            texts = [values for (text, _), (_, values) in self.texts.items() if text == name]
            if not texts:
                return None
            return texts[0] if (name, None) in self.texts else np.stack(texts)
        member, block, row = columns[0]
        if member is None:
            return self.blocks[block].column(row, exact=exact)
        if all(other == block for _, other, _ in columns) and len(columns) == columns[-1][2] - row + 1:
            return self.blocks[block].column(slice(row, row + len(columns)), exact=exact)
        return np.array([self.blocks[other].column(position, exact=exact) for _, other, position in columns])

    def plain(self, name: str) -> tuple[Block, int] | None:
        """The block and row of a column of numbers ``[rows]``; None for a family, for texts, and if it never came."""
        spot = self.layout.spots.get((name, None))
        return None if spot is None else (self.blocks[spot[0]], spot[1])

    def floats(self, names: Sequence[str]) -> Array:
        """Several columns per completion as float64 ``[k, rows]``; a column that never came is NaN."""
        rows = self.count(Axis.COMPLETION)
        nothing = np.full(rows, np.nan)
        columns = [nothing if (one := self.plain(name)) is None else one[0].floats[one[1]] for name in names]
        return np.concatenate(columns).reshape(len(columns), rows)

    def kind(self, name: str, axis: Axis) -> Kind:
        """The kind of a column, spread over an axis: ``[rows]``, or ``[members, rows]`` for a family.

        It marks absent and missing rows. False: none is marked. A missing float is NaN and needs no mark.
        """
        by_member = {
            member: self.spread(self.blocks[block].data[row], self.blocks[block].axis, axis)
            for member, block, row in self.layout.columns.get(name + KIND, ())
        }
        if not by_member or None in by_member:
            return by_member.get(None, False)
        here = np.full(self.count(axis), HERE, np.uint8)
        return np.array([by_member.get(member, here) for member in self.members(name)])

    def count(self, axis: Axis) -> int:
        """The number of entries along an axis."""
        if axis is Axis.COMPLETION:
            return self.batches.completions
        if axis is Axis.STEP:
            return len(self.batches)
        return self.parts(Axis.COMPLETION if axis is Axis.GROUP else Axis.STEP, axis).count

    # -- how axes nest

    def parts(self, fine: Axis, coarse: Axis) -> Segments:
        """The entries of ``fine`` that belong to each entry of ``coarse``; cached."""
        facts = self._facts if Axis.GROUP in (fine, coarse) else self.batches.facts
        return shared(facts, (fine, coarse), lambda: self._parts(fine, coarse))

    def _parts(self, fine: Axis, coarse: Axis) -> Segments:
        if fine is Axis.COMPLETION and coarse is Axis.STEP:
            rows = self.batches.rows
            equal = int(rows[0]) if len(rows) and (rows == rows[0]).all() else None
            return Segments(np.repeat(np.arange(len(rows)), rows), len(rows), equal or None)
        if fine is Axis.COMPLETION and coarse is Axis.GROUP:
            return self._groups()
        if fine is Axis.STEP and coarse is Axis.ALL:
            return Segments.of_keys(self.batches.step)
        if coarse is Axis.STEP:
            groups = self.parts(Axis.COMPLETION, Axis.GROUP)
            if not groups.count:  # no rows, or no signal names the groups
                return Segments(np.zeros(0, np.int64), len(self.batches))
            first = np.zeros(groups.count, np.int64)
            first[groups.index[::-1]] = np.arange(len(groups.index))[::-1]
            return Segments(self.parts(Axis.COMPLETION, Axis.STEP).index[first], len(self.batches))
        inner, outer = self.parts(fine, Axis.STEP), self.parts(Axis.STEP, coarse)
        return Segments(outer.index[inner.index], outer.count)

    @cached_property
    def misfit(self) -> RuntimeFailure | None:
        """The error if the rows of an evaluation do not form groups of `axes.group.size`; None if they do.

        Also None if no size is set. Rows with a misfit are grouped by their ids, or are in no group.
        """
        if self.mode in ("", "train") or self.grouping is None or self.grouping.size is None or self.ids != GROUP_ID:
            return None
        try:
            self._grouped(self.grouping)
        except RuntimeFailure as failure:
            return failure
        return None

    @cached_property
    def rowless(self) -> NDArray[np.bool_]:
        """The batches that have values per step only: none of their values is of rows, of which they have none."""
        rowless = np.asarray(self.batches.rows == 0, bool)
        if not rowless.any():
            return rowless
        keys = [key for block in self.blocks if block.axis is not Axis.STEP for key in block.keys]
        keys += [key for key, (axis, _) in self.texts.items() if axis is not Axis.STEP]
        for name, member in keys:
            mark = self.layout.spots.get((name + KIND, member))
            if mark is not None and self.blocks[mark[0]].axis is Axis.STEP:
                rowless = rowless & absent(self.blocks[mark[0]].data[mark[1]])
            elif mark is None and not name.endswith(KIND) and (name.isidentifier() or not self.batches.completions):
                return np.zeros_like(rowless)  # the column came in every batch
        return rowless

    @property
    def by_ids(self) -> bool:
        """Whether ids alone define the groups."""
        if self.grouping is None:
            return False
        return self.grouping.size is None or self.ids != GROUP_ID or self.misfit is not None

    @property
    def ids(self) -> str:
        """The column that names groups: the groups in an earlier phase if every row has one, else the group ids."""
        earlier = self.plain(EARLIER_GROUP)
        missing = earlier is not None and earlier[0].valid is not None and not earlier[0].valid[earlier[1]].all()
        return GROUP_ID if earlier is None or missing else EARLIER_GROUP

    @property
    def ungrouped(self) -> Kind:
        """The completions that are in no group, because no signal names one: False, True or ``[rows]``."""
        if not self.by_ids:
            return False
        return absent(self.kind(self.ids, Axis.COMPLETION)) if self.has(self.ids) else True

    def _groups(self) -> Segments:
        assert self.grouping is not None
        return self._grouped(replace(self.grouping, size=None) if self.by_ids else self.grouping)

    def _grouped(self, grouping: Grouping) -> Segments:
        batches, split = self.batches, grouping.split
        if split == "none" and self.ids == EARLIER_GROUP:  # each of its numbers names one group
            split = "batches"
        pieces = self.parts(Axis.COMPLETION, Axis.STEP)  # no group spans two pieces
        if split != "none":
            columns = batches.step, batches.batch if split == "ranks" else batches.rank
            within = [column[pieces.index] for column in columns]
            pieces = shared(batches.facts, split, lambda: Segments.of_keys(*within))
        elif grouping.size is not None and len(wrong := np.flatnonzero(batches.rows % grouping.size)):
            step, rank, rows = (int(values[wrong[0]]) for values in (batches.step, batches.rank, batches.rows))
            raise groups.uneven(grouping, step, rank, rows)
        least = 1 if self.mode not in ("", "train") else None if self.checked else 2
        steps = self.spread(batches.step, Axis.STEP, Axis.COMPLETION)
        return groups.segments(grouping, self.column(self.ids, exact=True), pieces, steps, least)

    def spread(self, values: Array, coarse: Axis, fine: Axis) -> Array:
        """``values[..., coarse]`` repeated over a finer axis."""
        return values if coarse is fine else values.take(self.parts(fine, coarse).index, -1)

    @cached_property
    def held(self) -> Frame:
        """The frame as rows read its values per step: one holds for the batches of its step that lack it."""
        if not (sources := sources_of(self.batches, self.layout, self.blocks, self.texts)):
            return self
        blocks, texts = with_values(self.blocks, self.texts, sources)
        return replace(self, blocks=blocks, texts=texts)

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
        pick = cache(lambda axis: ranges(self._sizes(axis), order))
        blocks = [block.pick(pick(block.axis)) for block in self.blocks]
        texts = {key: (axis, values[pick(axis)]) for key, (axis, values) in self.texts.items()}
        return replace(self, batches=self.batches.take(order), blocks=blocks, texts=texts)

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
            columns = zip(keys, values if members else [values], strict=True)
            return replace(self, texts={**self.texts, **{key: (axis, column) for key, column in columns}})
        if values.dtype.kind == "O":
            block = Block.of_integers(axis, keys, values)
        else:
            block = Block(axis, keys, values if values.ndim > 1 else values[None])
        return replace(self, blocks=[*self.blocks, block])

    def with_group_ids(self) -> Frame:
        """The frame with a column of group ids: digests of the first signal in ``grouping.of`` that came."""
        sources = () if self.grouping is None or self.has(GROUP_ID) else self.grouping.of
        for name in sources:
            if (ids := self.column(name, exact=True)) is not None:
                return self.with_column(GROUP_ID, Axis.COMPLETION, groups.digests(ids), DType.INT)
        return self

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
        blocks = [
            _end_to_end([_columns(frame, part, number) for number, frame in enumerate(frames)])
            for part in joined(tuple([frame.layout for frame in frames]))
        ]
        merged = replace(frames[0], batches=batches, blocks=blocks, texts=_joined_texts(frames))
        order = np.lexsort((batches.rank, batches.batch, batches.step))
        return merged if (order[1:] > order[:-1]).all() else merged.take(order)


def of_mode(frames: Mapping[str, Frame], mode: str, checked: Collection[str] = ()) -> dict[str, Frame]:
    """The frames in a mode, on which their groups depend; the group ids of the phases in ``checked`` came before."""
    return {phase: replace(frame, mode=mode, checked=phase in checked) for phase, frame in frames.items()}


def merged(parts: Sequence[Mapping[str, Frame]]) -> dict[str, Frame]:
    """The frames of several parts, merged phase by phase."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: Frame.merge([part[name] for part in parts if name in part]) for name in names}


def parted(frames: Mapping[str, Frame], step: int) -> tuple[dict[str, Frame], dict[str, Frame]]:
    """The rows up to a step, and the rows after it; a phase without rows is left out."""
    before: dict[str, Frame] = {}
    behind: dict[str, Frame] = {}
    for phase, frame in frames.items():
        early = frame.batches.step <= step
        for side, batches in ((before, np.flatnonzero(early)), (behind, np.flatnonzero(~early))):
            if len(batches):
                side[phase] = frame if len(batches) == len(early) else frame.take(batches)
    return before, behind


def ranges(sizes: NDArray[np.int64], order: NDArray[np.int64]) -> Array:
    """The rows of the batches in ``order``, where batch i has ``sizes[i]`` rows."""
    starts = np.cumsum(sizes) - sizes
    counts = sizes[order]
    begin = np.repeat(starts[order] - (np.cumsum(counts) - counts), counts)
    return begin + np.arange(int(counts.sum()))


# blocks by number, rows and new keys; old and new keys of texts; and whether nothing changes
_Selected = tuple[list[tuple[int, Any, tuple[Key, ...]]], list[tuple[Key, Key]], bool]


class Projection:
    """Drops and renames columns. The answers of ``name_of`` are cached by layout.

    ``name_of`` gets a layout, the name of one of its columns and its dtype; it returns None to drop the column.
    """

    def __init__(self, name_of: Callable[[Layout, str, np.dtype[Any]], str | None]) -> None:
        self._name_of = name_of
        self._plans: OrderedDict[Hashable, _Selected] = OrderedDict()

    def of(self, frame: Frame) -> Frame:
        """The frame with the columns that are not dropped, under their new names."""
        layout = frame.layout
        blocks, texts, same = recent(self._plans, layout, lambda: self._plan(layout))
        if same:
            return frame
        picked = [frame.blocks[number].some(rows, keys) for number, rows, keys in blocks]
        named = {new: frame.texts[old] for old, new in texts}
        return replace(frame, blocks=picked, texts=named)

    def _plan(self, layout: Layout) -> _Selected:
        blocks = []
        for number, (_, keys, dtype) in enumerate(layout.heads):
            names = [self._name_of(layout, name, dtype) for name, _ in keys]
            renamed = {row: (name, keys[row][1]) for row, name in enumerate(names) if name is not None}
            if renamed:
                blocks.append((number, together([*renamed]), tuple(renamed.values())))
        names = [self._name_of(layout, name, TEXTS) for name, _ in layout.texts]
        texts = [(key, (name, key[1])) for key, name in zip(layout.texts, names, strict=True) if name is not None]
        same = [keys for _, _, keys in blocks] == [keys for _, keys, _ in layout.heads]
        return blocks, texts, same and [new for _, new in texts] == [*layout.texts]


def _columns(frame: Frame, part: Part, number: int) -> Block:
    """The columns that the ``number``-th of several frames adds to a merged block; filled if the frame lacks them."""
    axis, keys, source, fill = part.axis, part.keys, part.sources[number], part.fills[number]
    if source is None:
        shape = len(keys), frame.count(axis)
        data = np.full(shape, 0 if fill is None else fill, part.dtype)
        return Block(axis, keys, data, np.zeros(shape, bool) if fill is None else None)
    block, rows = frame.blocks[source[0]], source[1]
    if part.dtype.kind == "f" and block.valid is not None:
        return Block(axis, keys, block.column(rows))
    columns = block.some(rows, keys)
    spread = block.axis is not axis  # kinds may lie on another axis in each frame
    return replace(columns, axis=axis, data=frame.spread(columns.data, block.axis, axis)) if spread else columns


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
