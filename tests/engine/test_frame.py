"""Frames: how rows are grouped, and that the frames of ranks and steps merge to one, in whatever order they come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from declog.engine.blocks import Batches, Block, Key, batches_of, texts_of
from declog.engine.frame import GROUP_ID, Frame, Projection, of_mode
from declog.engine.tables.table import _places
from declog.errors import RuntimeFailure
from declog.language.absence import ABSENT, HERE
from declog.language.dtypes import Axis
from declog.plans.ops import Grouping
from tests.engine.frames import assert_equal, frame

# ---- groups


def groups(of: Frame) -> list[int]:
    """The group of each completion."""
    segments = of.parts(Axis.COMPLETION, Axis.GROUP)
    assert segments.count == of.count(Axis.GROUP) == len(set(segments.index.tolist()))
    return list(map(int, segments.index))


def test_groups_of_a_size_are_consecutive_rows() -> None:
    """Each batch of each rank holds whole groups."""
    rows = frame([(0, 0, 0, 4), (0, 0, 1, 2), (1, 0, 0, 2)], grouping=Grouping(size=2))
    assert groups(rows) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_groups_follow_the_mode() -> None:
    """In training, ids that contradict the size are an error; an evaluation of the same rows is grouped by its ids."""
    rows = frame([(0, 0, 0, 4)], {GROUP_ID: [0, 0, 1, 1]}, grouping=Grouping(size=4))
    training, evaluation = (of_mode({"rollout": rows}, mode)["rollout"] for mode in ("train", "eval"))
    with pytest.raises(RuntimeFailure, match="DL507"):
        groups(training)
    assert training.misfit is None
    assert groups(of_mode({"rollout": training}, "eval")["rollout"]) == groups(evaluation) == [0, 0, 1, 1]
    assert evaluation.misfit is not None


def test_groups_of_a_size_may_be_split_over_ranks() -> None:
    """The rows of all ranks of one batch stand together, in the order of the ranks."""
    rows = frame([(0, 0, 0, 3), (0, 0, 1, 3), (0, 1, 0, 1), (0, 1, 1, 2)], grouping=Grouping(size=3, split="ranks"))
    assert groups(rows) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    uneven = frame([(0, 0, 0, 1), (0, 0, 1, 3)], grouping=Grouping(size=2, split="ranks"))
    assert groups(uneven) == [0, 0, 1, 1]


def test_groups_of_a_size_may_be_split_over_batches() -> None:
    """The micro-batches of one step and rank stand together, also where those of other ranks lie between them."""
    places = [(0, 0, 0, 1), (0, 0, 1, 2), (0, 1, 0, 1), (0, 1, 1, 2), (1, 0, 0, 2)]
    rows = frame(places, grouping=Grouping(size=2, split="batches"))
    assert groups(rows) == [0, 1, 1, 0, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("none", "groups have 2 completions, and step 5 of rank 1 has a batch of 3"),
        ("batches", r"groups have 2 completions, and the pieces have \[2, 3\]"),
        ("ranks", r"groups have 2 completions, and the pieces have \[5\]"),
    ],
)
def test_rows_that_are_no_whole_groups_are_an_error(split: str, message: str) -> None:
    """A wrong size is reported with what came, instead of mixing prompts."""
    rows = frame([(5, 0, 0, 2), (5, 0, 1, 3)], grouping=Grouping(size=2, split=split))
    with pytest.raises(RuntimeFailure, match=message) as caught:
        groups(rows)
    assert caught.value.code == "DL507"


IDS = {"none": ["step", "batch", "rank", "id"], "ranks": ["step", "batch", "id"], "batches": ["step", "rank", "id"]}


@pytest.mark.parametrize("split", sorted(IDS))
@pytest.mark.parametrize("kind", ["text", "int"])
@given(data=st.data())
def test_groups_by_id_are_pandas_groups(split: str, kind: str, data: st.DataObject) -> None:
    """One group per id and (step, batch, rank), or over what they may be split: ragged and in any order.

    What has no id is alone.
    """
    table = data.draw(tables(ids=["a", "None", None] if kind == "text" else [7, -1, 3]))
    rows = whole(table, grouping=Grouping(of=("id",), split=split)).with_group_ids()
    table["id"] = [f"alone {place}" if item is None else item for place, item in enumerate(table["id"])]
    expected = table.groupby(IDS[split], sort=False, dropna=False).ngroup()
    assert groups(rows) == expected.tolist()


# ---- how axes nest


def test_the_axes_of_a_window() -> None:
    """Two steps, two batches in the first, two ranks: 5 batches of one rank each."""
    places = [(0, 0, 0, 2), (0, 0, 1, 2), (0, 1, 0, 4), (0, 1, 1, 2), (1, 0, 0, 2)]
    rows = frame(places, grouping=Grouping(size=2))
    counts = {axis: rows.count(axis) for axis in (Axis.ALL, Axis.STEP, Axis.GROUP, Axis.COMPLETION)}
    assert counts == {Axis.ALL: 2, Axis.STEP: 5, Axis.GROUP: 6, Axis.COMPLETION: 12}
    assert rows.parts(Axis.STEP, Axis.ALL).index.tolist() == [0, 0, 0, 0, 1]
    assert rows.parts(Axis.GROUP, Axis.STEP).index.tolist() == [0, 1, 2, 2, 3, 4]
    assert rows.parts(Axis.GROUP, Axis.ALL).index.tolist() == [0, 0, 0, 0, 0, 1]
    assert rows.parts(Axis.COMPLETION, Axis.STEP).index.tolist() == [0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4]
    assert rows.parts(Axis.COMPLETION, Axis.ALL).index.tolist() == [0] * 10 + [1] * 2


def test_a_coarser_value_repeats_over_a_finer_axis() -> None:
    """``spread`` gives each completion its group's value, of each member of a family."""
    rows = frame([(0, 0, 0, 4)], grouping=Grouping(size=2))
    family = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert rows.spread(family[0], Axis.GROUP, Axis.COMPLETION).tolist() == [1, 1, 2, 2]
    assert rows.spread(family, Axis.GROUP, Axis.COMPLETION).tolist() == [[1, 1, 2, 2], [3, 3, 4, 4]]
    assert rows.spread(family, Axis.GROUP, Axis.GROUP) is family


def test_the_latest_batch_is_the_lowest_ranks() -> None:
    """Of the last step and batch; `last` takes it."""
    rows = frame([(0, 0, 0, 1), (0, 3, 0, 1), (1, 0, 0, 1), (1, 0, 1, 1), (1, 0, 2, 1)])
    assert rows.latest.tolist() == [0, 1, 4, 3, 2]


def test_batches_without_rows_keep_their_place() -> None:
    """A micro-batch from which everything was filtered out is a batch, with its step values and no rows."""
    rows = frame(
        [(0, 0, 0, 2), (0, 1, 0, 0), (1, 0, 0, 2)], {"reward": [1.0, 2.0, 3.0, 4.0]}, grouping=Grouping(size=2)
    )
    assert (rows.count(Axis.STEP), rows.count(Axis.GROUP)) == (3, 2)
    assert rows.parts(Axis.GROUP, Axis.ALL).index.tolist() == [0, 1]


# ---- merging


@st.composite
def tables(draw: st.DrawFn, ids: list[Any] | None = None) -> pd.DataFrame:
    """Rows of several steps, batches and ranks, sorted, with a number and an id each."""
    places = [(step, batch, rank) for step in (3, 4) for batch in (0, 1) for rank in (0, 1, 2)]
    counts = draw(st.lists(st.integers(1, 3), min_size=len(places), max_size=len(places)))
    kept = draw(st.lists(st.booleans(), min_size=len(places), max_size=len(places)).filter(any))
    rows = [place for place, count, keep in zip(places, counts, kept, strict=True) if keep for _ in range(count)]
    table = pd.DataFrame(rows, columns=["step", "batch", "rank"])
    table["reward"] = np.arange(len(rows)) / 4
    chosen = draw(st.lists(st.sampled_from(ids or ["a", "b", None]), min_size=len(rows), max_size=len(rows)))
    table["id"] = pd.Series(chosen, dtype=np.int64 if isinstance(chosen[0], int) else object)
    return table


def whole(table: pd.DataFrame, grouping: Grouping | None = None) -> Frame:
    """A table as a frame, with a value per step and rank, too: the loss."""
    sizes = table.groupby(["step", "batch", "rank"]).size()
    batches = batches_of([(*place, count, 0.5, 0) for place, count in sizes.items()])
    loss = batches.step * 100.0 + batches.batch * 10 + batches.rank
    blocks = [
        Block(Axis.COMPLETION, (("reward", None), ("rewards", "x")), np.stack([table["reward"], -table["reward"]])),
        Block(Axis.STEP, (("loss", None),), loss[None]),
    ]
    texts: dict[Key, tuple[Axis, NDArray[Any]]] = {}
    if table["id"].dtype == object:
        texts["id", None] = (Axis.COMPLETION, texts_of(table["id"].tolist()))
    else:
        blocks.append(Block(Axis.COMPLETION, (("id", None),), table["id"].to_numpy()[None]))
    return Frame("update", batches, blocks, texts, grouping)


@given(tables(), st.data())
def test_the_frames_of_ranks_merge_in_any_order(table: pd.DataFrame, data: st.DataObject) -> None:
    """What ranks recorded apart is, merged, what one process would have recorded."""
    parts = [whole(rows) for _, rows in table.groupby("rank")]
    assert_equal(Frame.merge(data.draw(st.permutations(parts))), whole(table))


@given(tables(), st.data())
def test_the_frames_of_batches_merge_in_any_order(table: pd.DataFrame, data: st.DataObject) -> None:
    """Late and early, of any step, batch and rank, one by one or merged before."""
    parts = data.draw(st.permutations([whole(rows) for _, rows in table.groupby(["step", "batch", "rank"])]))
    cut = data.draw(st.integers(1, len(parts)))
    merged = Frame.merge([Frame.merge(parts[:cut]), *parts[cut:]])
    assert_equal(merged, whole(table))


def test_values_per_group_move_with_their_batches() -> None:
    """A rank's group values stand with its rows, wherever the merge puts them."""
    grouping = Grouping(size=2)
    one = frame([(0, 0, 0, 4), (1, 0, 0, 2)], {"difficulty": [1.0, 2.0, 3.0]}, axis=Axis.GROUP, grouping=grouping)
    other = frame([(0, 0, 1, 2), (1, 0, 1, 4)], {"difficulty": [4.0, 5.0, 6.0]}, axis=Axis.GROUP, grouping=grouping)
    merged = Frame.merge([other, one])
    assert column(merged, "difficulty") == [1.0, 2.0, 4.0, 3.0, 5.0, 6.0]
    assert merged.spread(merged.column("difficulty"), Axis.GROUP, Axis.COMPLETION)[:6].tolist() == [1, 1, 2, 2, 4, 4]  # type: ignore[arg-type]


def column(of: Frame, name: str) -> list[Any] | None:
    """A column as a list."""
    values = of.column(name)
    return None if values is None else values.tolist()


def test_what_a_batch_did_not_have_is_missing() -> None:
    """NaN among numbers, None among texts, on the axis of the column; nothing shifts."""
    one = frame([(0, 0, 0, 2)], {"length": [3, 4], "prompt": ["a", "b"]})
    other = frame([(1, 0, 0, 1)], {"reward": [0.5]})
    merged = Frame.merge([one, other])
    np.testing.assert_array_equal(merged.column("length"), [3.0, 4.0, np.nan])
    np.testing.assert_array_equal(merged.column("reward"), [np.nan, np.nan, 0.5])
    assert column(merged, "prompt") == ["a", "b", None]
    assert column(merged, "unheard_of") is None and merged.members("unheard_of") == ()


def test_batches_of_different_types_keep_what_both_hold() -> None:
    """float32 on one rank and float64 on another is float64; integers of two sizes stay integers."""
    one = frame([(0, 0, 0, 1)], {"reward": np.array([0.1], np.float32), "length": np.array([3], np.int32)})
    other = frame([(0, 0, 1, 1)], {"reward": [0.1], "length": [2**53 + 1]})
    merged = Frame.merge([one, other])
    assert column(merged, "reward") == [float(np.float32(0.1)), 0.1]
    assert column(merged, "length") == [3, 2**53 + 1]


def test_frames_without_batches_add_nothing() -> None:
    """A rank that had nothing to say changes nothing; of nothing at all, there is an empty frame."""
    empty, some = frame([]), frame([(0, 0, 0, 1)], {"reward": [0.5]})
    assert Frame.merge([empty, some, empty]) is some
    merged = Frame.merge([empty, empty])
    assert (len(merged.batches), merged.count(Axis.COMPLETION)) == (0, 0)


# ---- families, the tail, values


def family(*members: str, rows: int = 2, split: bool = False) -> Frame:
    """A family whose member k has the values k, in one block or in one each."""
    data = np.arange(float(len(members)))[:, None].repeat(rows, 1)
    keys = tuple(("rewards", member) for member in members)
    blocks = [Block(Axis.COMPLETION, keys, data)]
    if split:
        blocks = [Block(Axis.COMPLETION, (key,), data[place : place + 1]) for place, key in enumerate(keys)]
    return Frame("update", batches_of([(0, 0, 0, rows, 0.0, 0)]), blocks)


@pytest.mark.parametrize("split", [False, True])
def test_a_family_is_a_matrix_in_the_order_of_its_members(split: bool) -> None:
    """``[members, rows]``, whether the members lie in one block or in several."""
    rows = family("b", "a", "c", split=split)
    assert rows.members("rewards") == ("b", "a", "c")
    assert column(rows, "rewards") == [[0, 0], [1, 1], [2, 2]]


def test_a_family_beside_other_columns_of_its_block() -> None:
    """Members that do not lie side by side are found all the same."""
    keys = (("rewards", "a"), ("reward", None), ("rewards", "b"))
    block = Block(Axis.COMPLETION, keys, np.array([[1, 2], [3, 4], [5, 6]]))
    rows = Frame("update", batches_of([(0, 0, 0, 2, 0.0, 0)]), [block])
    assert column(rows, "rewards") == [[1, 2], [5, 6]] and column(rows, "reward") == [3, 4]


def test_ranks_may_have_other_members() -> None:
    """A member that one rank has not is absent there: it is missing, and the kinds are in the order of the members."""
    other = Frame("update", batches_of([(0, 0, 1, 1, 0.0, 0)]), family("c", "a", rows=1).blocks)
    merged = Frame.merge([family("a", "b", rows=1), other])
    assert merged.members("rewards") == ("a", "b", "c")
    np.testing.assert_array_equal(merged.column("rewards"), [[0, 1], [1, np.nan], [np.nan, 0]])
    assert merged.kind("rewards", Axis.COMPLETION).tolist() == [[HERE, HERE], [HERE, ABSENT], [ABSENT, HERE]]


def test_a_family_of_texts() -> None:
    """Members of texts are columns of objects."""
    texts: dict[Key, tuple[Axis, NDArray[Any]]] = {
        ("answers", name): (Axis.COMPLETION, texts_of([name, None])) for name in ("x", "y")
    }
    rows = Frame("update", batches_of([(0, 0, 0, 2, 0.0, 0)]), [], texts)
    assert rows.members("answers") == ("x", "y") and column(rows, "answers") == [["x", None], ["y", None]]


@given(tables())
def test_the_last_rows_are_those_of_the_last_batch_of_all_ranks(table: pd.DataFrame) -> None:
    """The rows of the last step's last batch, of every rank that has it."""
    rows = whole(table)
    last = max(zip(rows.batches.step.tolist(), rows.batches.batch.tolist(), strict=True))
    places = np.repeat(np.arange(len(rows.batches)), rows.batches.rows)
    mine = [(rows.batches.step[place], rows.batches.batch[place]) == last for place in places]
    assert rows.last(Axis.COMPLETION).tolist() == np.flatnonzero(mine).tolist()


def test_nothing_has_no_last_rows() -> None:
    """A window without batches has none."""
    assert frame([]).last(Axis.COMPLETION).tolist() == []


def test_lists_among_objects_stay_values() -> None:
    """Objects that are lists of one length do not become a matrix."""
    array = texts_of([[1, 2], [3, 4], {"a": None}, None, (5,)])
    assert array.shape == (5,) and array.tolist() == [[1, 2], [3, 4], {"a": None}, None, (5,)]


def test_batches_keep_large_steps() -> None:
    """Steps are int64, and the seconds since the start are floats."""
    batches = batches_of([(2**62, 0, 1, 3, 0.5, 0)])
    assert (batches.step.tolist(), batches.elapsed.tolist(), len(batches)) == ([2**62], [0.5], 1)
    assert len(batches_of([])) == 0
    joined = Batches.join([batches, batches_of([]), batches]).take(np.array([1]))
    assert (joined.step.tolist(), joined.rows.tolist()) == ([2**62], [3])


def test_rows_and_groups_are_counted_within_their_step() -> None:
    """For a table's places: over the batches of a step, from 0, and anew in each step."""
    batches = batches_of([(4, 0, 0, 2, 0.0, 0), (4, 1, 0, 4, 0.0, 1), (7, 0, 0, 2, 0.0, 2)])
    frame = Frame("default", batches, [], grouping=Grouping(of=(), size=2))
    places = _places(frame, Axis.COMPLETION, np.arange(8), None)
    assert places.step == [4] * 6 + [7] * 2
    assert places.row == [0, 1, 2, 3, 4, 5, 0, 1] and places.group == [0, 0, 1, 1, 2, 2, 0, 0]


# ---- columns by other names


def test_columns_are_chosen_and_renamed() -> None:
    """Each by its name and its values, members with their family; a block keeps its rows in their order."""
    numbers = Block(Axis.STEP, (("a", None), ("b", "x"), ("c", None)), np.array([[1.0], [2.0], [3.0]]))
    texts: dict[Key, tuple[Axis, NDArray[Any]]] = {
        ("t", None): (Axis.STEP, texts_of(["one"])), ("u", None): (Axis.STEP, texts_of(["two"])),
    }  # fmt: skip
    rows = Frame("p", batches_of([(0, 0, 0, 0, 0.0, 1)]), [numbers], texts)
    some = Projection(lambda layout, name, dtype: None if name in "au" else f"{name}{dtype.kind}").of(rows)
    (block,) = some.blocks
    assert block.keys == (("bf", "x"), ("cf", None)) and block.data.tolist() == [[2.0], [3.0]]
    assert {key: values.tolist() for key, (_, values) in some.texts.items()} == {("tO", None): ["one"]}
    assert Projection(lambda layout, name, dtype: None if dtype.kind == "f" else name).of(rows).blocks == []
    assert Projection(lambda layout, name, dtype: name).of(rows) is rows  # nothing is copied where nothing changes
