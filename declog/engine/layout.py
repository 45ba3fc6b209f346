"""The layout of a frame: its columns and the position of each, without their data.

Frames with the same columns share one layout. Work that depends on the layout alone is planned once: the lookup of
columns, projections, the way in which frames are merged, and the programs of ``program.py``. Imports numpy, axes and
blocks only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from declog.engine.blocks import Head, Key
from declog.language.absence import ABSENT, HERE
from declog.language.dtypes import Axis

KIND = ".kind"  # the suffix of a column that marks which rows of another column are absent or missing
LAYOUTS = 32  # the number of layouts whose plans are kept
Spot = tuple[int, int]  # a column: the index of its block in the frame, and its row there
_T = TypeVar("_T")


class Layout:
    """``heads`` has the axis, the keys and the dtype of each block, ``texts`` the keys of texts and other objects."""

    def __init__(self, heads: tuple[Head, ...], texts: tuple[Key, ...]) -> None:
        self.heads = heads
        self.texts = texts
        self.spots: dict[Key, Spot] = {
            key: (block, row) for block, (_, keys, _) in enumerate(heads) for row, key in enumerate(keys)
        }
        self.keys = {**self.spots, **dict.fromkeys(texts)}.keys()
        self.columns: dict[str, list[tuple[str | None, int, int]]] = {}  # by name: member, index of the block, row
        self.members: dict[str, tuple[str, ...]] = {}  # of families, in the order in which they were first seen
        for block, (_, keys, _) in enumerate(heads):
            for row, (name, member) in enumerate(keys):
                self.columns.setdefault(name, []).append((member, block, row))
        for name, member in [key for _, keys, _ in heads for key in keys] + list(texts):
            if member is not None:
                self.members[name] = (*self.members.get(name, ()), member)
        self.names = {name for name, _ in self.keys}
        self.has_kinds = any(name.endswith(KIND) for name in self.columns)


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
    beside = bool(rows) and list(rows) == [*range(rows[0], rows[0] + len(rows))]
    return slice(rows[0], rows[0] + len(rows)) if beside else np.array(rows, np.int64)


class Join:
    """How frames with these layouts are put end to end.

    ``columns`` has a block per entry: its axis, its keys, for each frame the index of a block and rows there (None: the
    frame lacks the columns), and a dtype for missing values: float if any frame has floats. ``kinds`` has blocks of
    kinds: axis, keys, ``codes[keys, frames]``, and where a frame has kinds itself: key, frame and spot. A fold needs
    no kind: its count is missing where its tokens did not come.
    """

    def __init__(self, layouts: tuple[Layout, ...]) -> None:
        axes: dict[Key, Axis] = {
            key: layout.heads[block][0]
            for layout in layouts for key, (block, _) in layout.spots.items() if not key[0].endswith(KIND)
        }  # fmt: skip
        self.columns: list[tuple[Axis, tuple[Key, ...], list[tuple[int, Any] | None], np.dtype[Any]]] = []
        for blocks, group in groupby(axes, lambda key: [layout.spots.get(key, (None,))[0] for layout in layouts]):
            keys = tuple(group)
            parts = [
                None if block is None else (block, together([layout.spots[key][1] for key in keys]))
                for layout, block in zip(layouts, blocks, strict=True)
            ]
            dtypes = [
                layout.heads[block][2] for layout, block in zip(layouts, blocks, strict=True) if block is not None
            ]
            integers = all(dtype.kind in "iub" for dtype in dtypes)
            dtype = np.result_type(*dtypes) if integers else np.dtype(np.float64)
            self.columns.append((axes[keys[0]], keys, parts, dtype))
        marks: dict[Axis, list[tuple[Key, list[int], list[Spot | None]]]] = {}
        for key in dict.fromkeys(key for layout in layouts for key in layout.keys if key[0].isidentifier()):
            mark = (key[0] + KIND, key[1])
            codes = [HERE if key in layout.keys else ABSENT for layout in layouts]
            spots = [layout.spots.get(mark) if key in layout.keys else None for layout in layouts]
            axis = max(
                (layout.heads[layout.spots[mark][0]][0] for layout in layouts if mark in layout.spots), default=None
            )
            if any(codes) or axis is not None:
                marks.setdefault(Axis.STEP if axis is None else axis, []).append((mark, codes, spots))
        self.kinds = [
            (
                axis, tuple([mark for mark, _, _ in of_axis]), np.array([codes for _, codes, _ in of_axis], np.uint8),
                [(row, frame, spot) for row, (_, _, spots) in enumerate(of_axis)
                 for frame, spot in enumerate(spots) if spot is not None],
            )
            for axis, of_axis in marks.items()
        ]  # fmt: skip


@lru_cache(maxsize=64)
def join_of(layouts: tuple[Layout, ...]) -> Join:
    """The plan by which frames with these layouts are merged."""
    return Join(layouts)
