"""The layout of a frame: its columns and the position of each, without their data.

Frames with the same columns share one layout. Work that depends on the layout alone is planned once: the lookup of
columns, projections, the way in which frames are merged, and the programs of ``program.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np

from declog.engine.blocks import Head, Key
from declog.language.absence import ABSENT, HERE
from declog.language.dtypes import Axis

KEPT = "kept:"  # the prefix of columns that no metric of the run reads; see `declog.runtime.rows.kept`
KIND = ".kind"  # the suffix of a column that marks which rows of another column are absent or missing
FAILURE = ".failure"  # the suffix of a column that says, per batch, why another one could not be computed
LAYOUTS = 32  # the number of layouts whose plans are kept
Spot = tuple[int, int]  # a column: the index of its block in the frame, and its row there
_T = TypeVar("_T")


class Layout:
    """``heads`` has the axis, the keys and the dtype of each block, ``texts`` the keys of texts and other objects."""

    def __init__(self, heads: tuple[Head, ...], texts: tuple[Key, ...]) -> None:
        self.heads = heads
        self.texts = texts
        self.spots: dict[Key, Spot] = {}
        self.columns: dict[str, list[tuple[str | None, int, int]]] = {}  # by name: member, index of the block, row
        self.members: dict[str, tuple[str, ...]] = {}  # of families, in the order in which they were first seen
        for block, (_, keys, _) in enumerate(heads):
            for row, key in enumerate(keys):
                self.spots[key] = block, row
                self.columns.setdefault(key[0], []).append((key[1], block, row))
        self.keys = {**self.spots, **dict.fromkeys(texts)}.keys()
        for name, member in self.keys:
            if member is not None:
                self.members[name] = (*self.members.get(name, ()), member)
        self.names = {name for name, _ in self.keys}


@lru_cache(maxsize=512)
def layout_of(heads: tuple[Head, ...], texts: tuple[Key, ...]) -> Layout:
    """The layout of these columns; the same object for equal columns, so it is compared and hashed by identity."""
    return Layout(heads, texts)


def recent(plans: OrderedDict[Hashable, _T], layout: Hashable, make: Callable[[], _T]) -> _T:
    """The plan of a layout, from a cache of the most recently used ones."""
    if layout in plans:
        plans.move_to_end(layout)
        return plans[layout]
    plan = plans[layout] = make()
    if len(plans) > LAYOUTS:
        plans.popitem(last=False)
    return plan


def together(rows: Sequence[int]) -> Any:
    """An index for these rows: a slice, which copies nothing, if they are adjacent."""
    adjacent = bool(rows) and list(rows) == [*range(rows[0], rows[0] + len(rows))]
    return slice(rows[0], rows[0] + len(rows)) if adjacent else np.array(rows, np.int64)


class Part(NamedTuple):
    """A block of merged frames: for each frame the index of its block and rows there, or what fills the columns.

    A frame lacks the columns where ``sources`` is None. ``fills`` has None for a missing integer.
    """

    axis: Axis
    keys: tuple[Key, ...]
    dtype: np.dtype[Any]
    sources: list[tuple[int, Any] | None]
    fills: list[float | None]


def _has_kind(name: str) -> bool:
    """Whether a column can have a column of kinds: a signal or a computed column, also with the prefix ``KEPT``."""
    return name.isidentifier() or (name.startswith(KEPT) and not name.endswith(KIND))


@lru_cache(maxsize=64)
def joined(layouts: tuple[Layout, ...]) -> list[Part]:
    """Plan how frames with these layouts are concatenated: the columns, then their kinds.

    A column is float if any frame has it as floats. Signals and computed columns are absent in frames that lack them. A
    fold needs no kind: its count is missing where its tokens did not come.
    """
    columns: list[tuple[Key, Axis, np.dtype[Any], list[Spot | None], list[float | None]]] = []
    for key in dict.fromkeys(key for layout in layouts for key in layout.spots if not key[0].endswith(KIND)):
        spots = [layout.spots.get(key) for layout in layouts]
        heads = [layout.heads[spot[0]] for layout, spot in zip(layouts, spots, strict=True) if spot is not None]
        dtypes = [dtype for _, _, dtype in heads]
        integers = all(dtype.kind in "iub" for dtype in dtypes)
        dtype, fill = (np.result_type(*dtypes), None) if integers else (np.dtype(np.float64), np.nan)
        columns.append((key, heads[-1][0], dtype, spots, [fill] * len(layouts)))
    for key in dict.fromkeys(key for layout in layouts for key in layout.keys if _has_kind(key[0])):
        mark = (key[0] + KIND, key[1])
        axes = [layout.heads[layout.spots[mark][0]][0] for layout in layouts if mark in layout.spots]
        spots = [layout.spots.get(mark) if key in layout.keys else None for layout in layouts]
        kinds: list[float | None] = [HERE if key in layout.keys else ABSENT for layout in layouts]
        if axes or any(kinds):
            columns.append((mark, max(axes, default=Axis.STEP), np.dtype(np.uint8), spots, kinds))
    parts = []
    for (axis, dtype, blocks, fills), group in groupby(
        columns, lambda column: (*column[1:3], [spot and spot[0] for spot in column[3]], column[4])
    ):
        alike = [*group]
        rows = [
            [spot[1] for _, _, _, spots, _ in alike if (spot := spots[at]) is not None] for at in range(len(layouts))
        ]
        sources = [None if block is None else (block, together(of)) for block, of in zip(blocks, rows, strict=True)]
        parts.append(Part(axis, tuple([column[0] for column in alike]), dtype, sources, fills))
    return parts
