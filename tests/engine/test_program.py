"""What is planned for a layout of columns gives what a view gives node by node, whatever layouts came before."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import declog
from declog.engine import layout, program
from declog.engine.blocks import Block, Key, batches_of
from declog.engine.cells import Cells, MetricValues
from declog.engine.evaluator import View
from declog.engine.frame import Frame
from declog.engine.partials import State
from declog.engine.reduce import Reductions
from declog.language.dtypes import Axis
from declog.language.moments import Moments
from tests.engine.frames import reduced
from tests.running import profile

SIGNALS: dict[str, Any] = {
    "x": {"axis": "completion"}, "y": {"axis": "completion"}, "n": {"axis": "completion", "type": "int"},
    "hit": {"axis": "completion", "type": "bool"}, "f": {"axis": "completion", "family": True},
    "rare": {"axis": "completion"}, "s": {"axis": "step"},
}  # fmt: skip
VALUES = (
    "x", "y", "n", "hit", "f", "rare", "s", "x - y", "y - x", "rare - x", "x * 2 - y / 3", "y * 0.5 - x / 7", "-x",
    "abs(x - y)", "n + 1", "x > y", "f - x", "sum(f, over=member)",
)  # fmt: skip
POOLS = ("window", "batch")


def _plan() -> declog.Plan:
    metrics: dict[str, Any] = {}
    for value, reduction, pool, nan in itertools.product(
        VALUES, ("mean", "std", "max", "p50"), POOLS, ("skip", "propagate")
    ):
        key = f"m{len(metrics)}"
        name = f"{key}/{{member}}" if value.startswith("f") else key
        metrics[key] = {"expr": value, "reduce": reduction, "over": pool, "nan": nan, "name": name}
    return declog.plan(profile(SIGNALS, metrics))


PLAN = _plan()
RANDOM = np.random.default_rng(3)
ROWS = 6


def _floats(*names: str | Key, dtype: str = "f8", gaps: bool = False) -> Block:
    keys = tuple((name, None) if isinstance(name, str) else name for name in names)
    data = RANDOM.normal(-5.0, size=(len(keys), ROWS)).astype(dtype)  # a 0 in place of none is their greatest
    if gaps:
        data[0, 1], data[-1, 2] = np.nan, np.inf
    return Block(Axis.COMPLETION, keys, data)


def _integers(*names: str, valid: bool = False) -> Block:
    data = RANDOM.integers(0, 9, (len(names), ROWS))
    there = RANDOM.random(data.shape) < 0.5
    return Block(Axis.COMPLETION, tuple((name, None) for name in names), data, there if valid else None)


def _bools(*names: str) -> Block:
    data = RANDOM.random((len(names), ROWS)) < 0.5
    return Block(Axis.COMPLETION, tuple((name, None) for name in names), data)


STEP = Block(Axis.STEP, (("s", None),), RANDOM.normal(size=(1, 2)))
LAYOUTS: Mapping[str, list[Block]] = {
    "beside each other": [_floats("x", "y"), _integers("n"), _bools("hit"), _floats(("f", "a"), ("f", "b")), STEP],
    "with bools as ints": [_floats("x", "y"), _integers("n"), _integers("hit"), _floats(("f", "a"), ("f", "b")), STEP],
    "two exchanged": [_floats("y", "x"), _integers("n"), _bools("hit"), _floats(("f", "b"), ("f", "a")), STEP],
    "in another order": [STEP, _bools("hit"), _floats(("f", "b"), ("f", "a")), _floats("y", "x"), _integers("n")],
    "more members, of two dtypes": [
        _floats("x", ("f", "a"), "y", ("f", "c")), _floats(("f", "b"), dtype="f4"), _integers("n"), _bools("hit"), STEP,
    ],
    "missing values": [_floats("x", "y", gaps=True), _integers("n", valid=True), _floats(("f", "a"), gaps=True), STEP],
    "of other dtypes": [_floats("y", "rare", dtype="f4"), _integers("x", "n"), _bools("hit"), _floats(("f", "a"))],
    "much never came": [_floats("y")],
}  # fmt: skip


def _frame(blocks: list[Block], step: int) -> Frame:
    sizes = ((0, 2), (1, 4))
    batches = batches_of([(step, batch, 0, rows, 0.0, batch) for batch, rows in sizes])
    return Frame("default", batches, [Block(one.axis, one.keys, one.data, one.valid) for one in blocks])


def _frames() -> list[Frame]:
    """Of each layout, twice, and of two together, in which columns are absent for the batches of one of them."""
    frames = [_frame(blocks, step) for step, blocks in enumerate(LAYOUTS.values())]
    pairs = [Frame.merge(list(pair)) for pair in itertools.pairwise(frames)]
    return [*frames, *pairs, *reversed(frames), *pairs]


def _cells(reductions: Reductions, frame: Frame) -> dict[str, Cells]:
    with np.errstate(all="ignore"):
        return dict(reduced(reductions, View(frame)))


@pytest.mark.parametrize("kept", [0, 1, 32])
def test_a_planned_layout_gives_what_a_view_gives(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layouts in turn: other columns, orders, dtypes, members, and what is absent; none, one or all of them kept."""
    frames = _frames()
    monkeypatch.setattr(layout, "LAYOUTS", kept)
    ops = [op for op in PLAN.metrics if op.phase == "default"]
    assert len(ops) == len(VALUES) * 4 * len(POOLS) * 2
    planned = Reductions(ops)
    found = [_cells(planned, frame) for frame in frames]
    monkeypatch.setattr(program._Columns, "spots", lambda *args: [])  # nothing is taken as it was recorded
    for frame, cells in zip(frames, found, strict=True):
        expected = _cells(Reductions(ops), frame)
        assert cells.keys() == expected.keys()
        for key, one in cells.items():
            other = expected[key]
            np.testing.assert_allclose(one.values, other.values, rtol=1e-12, atol=0.0, err_msg=key)
            np.testing.assert_array_equal(one.there, other.there, err_msg=key)
            facts = [(item.members, item.labels, item.pieces, item.skipped, item.nonfinite) for item in (one, other)]
            assert facts[0] == facts[1], key


def test_a_layout_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second event of a layout plans nothing, whatever its rows are and which of them are missing."""
    reductions = Reductions(op for op in PLAN.metrics if op.phase == "default")
    frames = [_frame(LAYOUTS[name], step) for step, name in enumerate(("missing values", "of other dtypes"))]
    for frame in frames:
        _cells(reductions, frame)

    def refuse(*args: object) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr(program.Program, "__init__", refuse)
    again = [_cells(reductions, frame.take(np.array([1]))) for frame in frames]
    assert all(again)
    with pytest.raises(AssertionError, match="planned again"):
        _cells(reductions, _frame(LAYOUTS["much never came"], 9))


def test_a_number_of_one_piece_says_of_which() -> None:
    """So that formulas pair it with others; the variance of one piece is absent, and no number."""
    entries = {
        how: {"expr": "x", "reduce": "mean", "over": "batch", "combine": how} for how in ("mean", "last", "var", "std")
    }
    plan = declog.plan(profile(SIGNALS, entries))
    found = reduced(Reductions(plan.metrics), View(_frame(LAYOUTS["beside each other"], 4).take(np.array([1]))))
    assert set(found.numbers) == {"mean", "last"}
    assert {key: found[key].pieces for key in entries} == dict.fromkeys(entries, ((4, 1),))
    assert not found["var"].combined("var")[1].any()


def test_states_of_two_layouts_are_merged_to_that_of_all_rows() -> None:
    """What never came in one of them adds nothing: no count, no sum, and no extreme."""
    ops = [op for op in PLAN.metrics if op.reduction.foldable and op.phase == "default" and not op.family]
    frames = [_frame(one, step) for step, one in enumerate(LAYOUTS.values())]
    for pair in itertools.pairwise([*frames, frames[0]]):
        found, reductions = MetricValues(), Reductions(ops, kept=True)
        with np.errstate(all="ignore"):
            parts = [reductions.states({"default": View(frame)}) for frame in pair]
            merged = {place: State.merged([part[place] for part in parts]) for place in parts[0]}
            reductions.finish(merged, found)
        expected = _cells(Reductions(ops), Frame.merge(list(pair)))
        assert set(found) == expected.keys()
        for key, cells in expected.items():
            np.testing.assert_allclose(found[key].values, cells.values, rtol=1e-9, atol=1e-12, err_msg=key)
            np.testing.assert_array_equal(found[key].there, cells.there, err_msg=key)


def test_labels_that_are_pooled_add_up_in_all_that_a_state_holds() -> None:
    """Counts of missing values, of parts, and weights, beside the moments: each is that of both labels together."""
    values = np.array([[[1.0], [2.0], [4.0]]])
    sums = {name: factor * values for name, factor in (("missing", 1.0), ("here", 10.0), ("weights", -1.0))}
    state = State((("x", None),), ("a", "b", "c"), ((),), Moments.single(values), sums, np.array([5.0, 3.0, 1.0]))
    pooled = state.pooled(("a", "_other"), np.array([0, 1, 1]))
    assert {name: array.ravel().tolist() for name, array in pooled.sums.items()} == {
        "missing": [1, 6], "here": [10, 60], "weights": [-1, -6]
    }  # fmt: skip
    assert (pooled.counts.tolist(), pooled.moments.total.ravel().tolist()) == ([5, 4], [1, 6])


def test_rows_that_lie_together_are_taken_in_their_order() -> None:
    """Every choice of rows, in every order: a slice stands for neighbours only."""
    values = np.arange(4)
    for rows in (rows for size in range(1, 5) for rows in itertools.permutations(range(4), size)):
        assert values[layout.together(rows)].tolist() == list(rows)
