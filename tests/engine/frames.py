"""Frames for tests: random ones from Hypothesis, and small ones written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from declog.engine.blocks import Block, Key, batches_of, texts_of
from declog.engine.cells import MetricValues
from declog.engine.evaluator import View
from declog.engine.frame import Frame
from declog.engine.reduce import Reductions
from declog.language.dtypes import Axis
from declog.plans.ops import Grouping

DTYPES = ("<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "|u1", "|b1")


def frame(
    batches: Sequence[tuple[int, int, int, int]],
    columns: Mapping[str, Sequence[Any] | NDArray[Any]] | None = None,
    *,
    axis: Axis = Axis.COMPLETION,
    grouping: Grouping | None = None,
) -> Frame:
    """A frame from (step, batch, rank, rows) and columns of one axis; a column of texts is one of objects."""
    numbers: list[Block] = []
    texts: dict[Key, tuple[Axis, NDArray[Any]]] = {}
    for name, values in (columns or {}).items():
        if any(item is None or isinstance(item, str | list | dict) for item in values):
            texts[name, None] = (axis, texts_of(list(values)))
        else:
            numbers.append(Block(axis, ((name, None),), np.asarray(values)[None]))
    return Frame(
        "update", batches_of([(*item, 0.25, place) for place, item in enumerate(batches)]), numbers, texts, grouping
    )


texts = st.text() | st.none()
objects = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def frames(draw: st.DrawFn, *, phase: str = "update") -> Frame:
    """A frame with any batches and columns of any dtype, families and texts; values need not make sense."""
    ids = st.tuples(st.integers(0, 2**62), st.integers(0, 3), st.integers(0, 3))
    places = draw(st.lists(ids, max_size=4, unique=True))
    rows = [draw(st.integers(0, 3)) for _ in places]
    batches = batches_of(
        [
            (*place, count, draw(st.floats(0, 10)), draw(st.integers(0, 99)))
            for place, count in zip(places, rows, strict=True)
        ]
    )
    sizes = {Axis.STEP: len(places), Axis.COMPLETION: sum(rows)}
    names = iter(f"c{place}" for place in range(100))
    blocks = []
    for _ in range(draw(st.integers(0, 3))):
        axis = draw(st.sampled_from(sorted(sizes)))
        members = draw(st.lists(st.text(max_size=4), max_size=3, unique=True))
        keys: tuple[Key, ...] = tuple((next(names), None) for _ in range(draw(st.integers(1, 2))))
        keys += tuple((keys[0][0] + "f", member) for member in members)
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        blocks.append(Block(axis, keys, draw(npst.arrays(dtype, (len(keys), sizes[axis])))))
    columns: dict[Key, tuple[Axis, NDArray[Any]]] = {}
    for values in draw(st.lists(st.sampled_from([texts, objects]), max_size=2)):
        axis = draw(st.sampled_from(sorted(sizes)))
        column = draw(st.lists(values, min_size=sizes[axis], max_size=sizes[axis]))
        columns[next(names), draw(st.none() | st.text(max_size=3))] = (axis, texts_of(column))
    return Frame(phase, batches, blocks, columns)


def assert_equal(actual: Frame, expected: Frame) -> None:
    """The same batches, and the same columns with the same types in the same order."""
    assert actual.phase == expected.phase
    for name in ("step", "batch", "rank", "rows", "elapsed", "order"):
        np.testing.assert_array_equal(getattr(actual.batches, name), getattr(expected.batches, name), strict=True)
    assert [(block.axis, block.keys) for block in actual.blocks] == [
        (block.axis, block.keys) for block in expected.blocks
    ]
    for mine, other in zip(actual.blocks, expected.blocks, strict=True):
        np.testing.assert_array_equal(mine.data, other.data, strict=True)
    assert {key: (axis, values.tolist()) for key, (axis, values) in actual.texts.items()} == {
        key: (axis, values.tolist()) for key, (axis, values) in expected.texts.items()
    }


def reduced(reductions: Reductions, view: View) -> MetricValues:
    """The cells of every metric of the phase `default`."""
    views = {"default": view}
    results = reductions.by_values(views)
    reductions.finish(reductions.states(views), results)
    return results
