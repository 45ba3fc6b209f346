"""Groups are known, never assumed: by ids of any kind, alike on every rank, or by a size that no id contradicts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.engine import groups
from declog.errors import ConfigError, InputError
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.running import CountingComm, logged, profile

ROWS = {"axis": "completion"}
INTS = [7, 7, 3, 3, 3, 9]
X = [1.0, 3.0, 5.0, 6.0, 10.0, 4.0]
SPREAD = (2 + 3 * 5 + 0) / 6  # of groups of 2, 3 and 1 rows, the range of each row's group
METRICS = {
    "range": "mean(max(x, over=completion) - min(x, over=completion))", "sizes": {"expr": "size(completion)"},
    "rows": {"expr": "max(x, over=completion) - min(x, over=completion)", "weight": "size(completion)"},
    "place": {"expr": "index(group)", "reduce": "max"}, "first": "sum(rank(x, within=group))",
}  # fmt: skip


def config(of: str | Sequence[str] | None, types: Mapping[str, str] | None = None, **group: Any) -> dict[str, Any]:
    """A profile of what depends on groups; ``types`` are those of the signals that name them, all optional."""
    named = [of] if isinstance(of, str) else list(of or ())
    ids = {name: {**ROWS, "type": (types or {}).get(name, "object")} for name in named}
    axes = {"group": {**({} if of is None else {"of": of}), **group}}
    return profile({"x": ROWS, **ids}, METRICS, axes=axes)


def chat(text: str, **more: Any) -> list[dict[str, Any]]:
    """The messages of a prompt."""
    return [{"role": "user", "content": text, **more}]


EXPECTED = {"range": 7 / 3, "sizes": 2.0, "rows": 19 / 6, "place": 2, "first": 3.0 + 6 + 1}
IDS: dict[str, tuple[str, Any]] = {
    "ints": ("int", INTS),
    "a tensor of ints": ("int", torch.tensor(INTS)),
    "ints for any id": ("object", INTS),
    "a tensor for any id": ("object", torch.tensor(INTS, dtype=torch.int32)),
    "an array of smaller ints": ("object", np.array(INTS, np.int16)),
    "scalars of numpy": ("object", [np.int64(item) for item in INTS]),
    "scalars of torch": ("object", [torch.tensor(item) for item in INTS]),
    "whole floats": ("object", torch.tensor(INTS, dtype=torch.float64)),
    "halves": ("object", torch.tensor(INTS, dtype=torch.bfloat16)),
    "great ints": ("int", [2**62 + item for item in INTS]),
    "texts": ("text", [f"prompt {item}" for item in INTS]),
    "an array of texts": ("text", np.array([f"p{item}" for item in INTS])),
    "a lone surrogate": ("text", [f"\ud800{item}" for item in INTS]),
    "chats": ("object", [chat(f"prompt {item}") for item in INTS]),
    "tuples": ("object", [("gsm8k", item) for item in INTS]),
}


@pytest.mark.parametrize("kind", IDS)
def test_groups_are_those_of_ids_as_ints(kind: str, tmp_path: Path) -> None:
    """What names a group is an int, a text, a chat or a scalar of some library: the numbers are the same."""
    type, ids = IDS[kind]
    assert logged(config("id", {"id": type}), [{"x": X, "id": ids}], tmp_path) == pytest.approx(EXPECTED)


def test_equal_ids_have_equal_digests_wherever_they_are_made() -> None:
    """An id has one digest in every process and from every library, whatever order a map's keys have."""
    code = "from declog.engine.groups import digests; print(digests([5, 'a', [{'b': 1, 'a': 2}]]).tolist())"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    here = groups.digests([torch.tensor(5).item(), np.str_("a"), ({"a": np.float32(2), "b": True + 0},)])
    assert str(here.tolist()) == there.strip()
    assert len({*groups.digests([5, "5", [5], {"5": 5}, "", 0, False, "None"]).tolist()}) == 8
    assert groups.digests([None, float("nan"), 1]).tolist()[:2] == [None, None]


def test_images_of_one_size_are_different_ids(tmp_path: Path) -> None:
    """A prompt with an image is named by what the image shows, too."""
    image = pytest.importorskip("PIL.Image")
    pictures = {item: image.new("RGB", (8, 8), (item * 20, 0, 0)) for item in INTS}
    ids = [[{"role": "user", "content": [{"type": "image", "image": pictures[item]}, "what?"]}] for item in INTS]
    assert logged(config("id"), [{"x": X, "id": ids}], tmp_path) == pytest.approx(EXPECTED)


def test_the_first_signal_that_a_batch_has_names_its_groups(tmp_path: Path) -> None:
    """Of a list of signals each batch takes the first that it has, and a batch that has none has no groups."""
    batches: list[dict[str, Any]] = [
        {"x": X, "group": INTS, "prompt": ["all alike"] * 6},
        {"x": X, "prompt": [f"prompt {item}" for item in INTS]},
        {"x": [100.0, 200.0]},
    ]
    spread = logged(config(["group", "prompt"]), batches, tmp_path)
    assert spread == pytest.approx({**EXPECTED, "first": 2 * EXPECTED["first"], "place": 2 * EXPECTED["place"] + 1})


def test_ids_that_are_missing_are_of_no_group(tmp_path: Path) -> None:
    """A row without an id is alone, whichever source was chosen."""
    found = logged(
        config(["a", "b"]), [{"x": [1.0, 3.0, 9.0, 5.0], "a": ["p", "p", None, None], "b": [1] * 4}], tmp_path
    )
    assert {key: found[key] for key in ("sizes", "place")} == pytest.approx({"sizes": 4 / 3, "place": 2})


# ---- where rows are spread


SPREADS: list[tuple[str, int, Callable[[int, int], list[int]]]] = [
    ("ranks", 2, lambda step, rank: [step, step, 5, 9 + rank]),
    ("ranks", 3, lambda step, rank: [rank, 1, step]),
    ("batches", 2, lambda step, rank: [step, 4, 4]),
    ("none", 2, lambda step, rank: [step, 4, 4, step]),
]
KINDS: dict[str, Callable[[int], Any]] = {
    "texts": lambda item: f"prompt {item} " * 99, "chats": lambda item: chat(f"prompt {item} " * 99, at=item),
    "numpy": lambda item: np.int32(item), "ints": lambda item: item,
}  # fmt: skip


@pytest.mark.parametrize(("split", "world", "draw"), SPREADS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ints"])
def test_groups_over_ranks_batches_and_parts_of_windows(
    split: str, world: int, draw: Callable[[int, int], list[int]], kind: str, tmp_path: Path
) -> None:
    """Ids of any kind give over ranks, batches and folded windows what ints give, and no text travels."""

    def on(ranks: int, kind: str, name: str, **others: Any) -> tuple[dict[int, dict[str, float]], int]:
        def rank(comm: Comm) -> tuple[MemorySink, int]:
            sink, counting = MemorySink(), CountingComm(comm)
            plan = {**config("id", split=split), "every": 3, **others}
            with declog.start(plan, sinks=[sink], output_dir=tmp_path / name, comm=counting) as log:
                for step in range(6):
                    with log.step(step):
                        for batch in range(2):
                            ids = [KINDS[kind](item) for item in draw(step, comm.rank)]
                            x = torch.arange(len(ids)) * 1.5 + step * comm.rank + batch
                            log.observe(x=x, id=ids)
            return sink, sum(counting.sent)

        sinks = run_ranks(ranks, rank)
        return sinks[0][0].scalars, sum(sent for _, sent in sinks)

    ints, bytes_of_ints = on(world, "ints", "ints")
    found, bytes_of_ids = on(world, kind, kind)
    folded, _ = on(world, kind, "folded", run={"window_bytes": 1})
    assert found.keys() == {2, 5} == ints.keys()
    for step, values in ints.items():
        assert found[step] == pytest.approx(values)
        assert folded[step] == pytest.approx(values)
    assert bytes_of_ids < bytes_of_ints + 99  # of headers, whose times differ; a text has 800


def test_groups_of_another_phase(tmp_path: Path) -> None:
    """Each phase has the groups that its own batches name."""
    prompt, signals = {"prompt_id": {**ROWS, "type": "object"}}, {"rollout": {"reward": ROWS}, "update": {"kl": ROWS}}
    metrics = {
        "best": "mean(max(reward, over=completion))", "worst": {"expr": "max(kl, over=completion)", "reduce": "min"},
    }  # fmt: skip
    given = profile(prompt, metrics, signals=signals, axes={"group": {"of": ["prompt_id"]}})
    batches = [
        {"reward": [1.0, 2.0, 7.0], "prompt_id": ["a", "a", "b"]},
        {"kl": [5.0, 3.0], "prompt_id": ["a", "b"]}, {"kl": [4.0], "prompt_id": ["b"]},
    ]  # fmt: skip
    assert logged(given, batches, tmp_path) == {"best": 4.5, "worst": 3.0}


def test_groups_of_a_window_that_a_checkpoint_cuts(tmp_path: Path) -> None:
    """Rows of before a checkpoint keep the groups that they had."""
    given = {**config(["id"], split="none"), "every": 2}

    def train(folder: str, steps: Sequence[int], state: Any = None) -> tuple[MemorySink, Any]:
        sink = MemorySink()
        with declog.start(given, sinks=[sink], output_dir=tmp_path / folder) as log:
            if state is not None:
                log.load_state_dict(state)
            for step in steps:
                with log.step(step):
                    log.observe(x=X, id=[chat(f"{item} {step}") for item in INTS])
            return sink, log.state_dict()

    whole, _ = train("whole", range(4))
    _, state = train("first", [0, 1, 2])
    rest, _ = train("rest", [3], state)
    assert rest.scalars[3] == whole.scalars[3] == pytest.approx({**EXPECTED, "first": 20.0})


# ---- a size


def started(of: Any, tmp_path: Path, **group: Any) -> Recorder:
    return declog.start({**config(of, **group), "run": {"strict": False}}, sinks=[MemorySink()], output_dir=tmp_path)


AGREES: list[tuple[int, Any]] = [
    (2, ["a", "a", "b", "b"]), (1, ["a", "b", "c", "d"]), (4, ["a"] * 4), (2, ["a"] * 4),  # one prompt, drawn twice
    (2, ["a", "a", "b", "b", "a", "a", "b", "b"]), (2, ["a", None, "b", "b"]),
]  # fmt: skip


@pytest.mark.parametrize(("size", "ids"), AGREES)
def test_a_size_is_obeyed_where_no_id_contradicts_it(size: int, ids: Any, tmp_path: Path) -> None:
    """Groups are consecutive rows, though their prompts are the same."""
    found = logged(config("id", size=size), [{"x": list(range(len(ids))), "id": ids}], tmp_path)
    assert (found["sizes"], found["place"]) == (size, len(ids) // size - 1)


CONTRADICTS: list[tuple[int, Any, str]] = [
    (8, ["a"] * 4 + ["b"] * 4, "8 rows have 2 ids, each in 4 rows on end*axes.group.size=4, or axes.group.size=null"),
    (2, ["a"] * 4 + ["b"] * 4, "each in 4 rows on end*axes.group.size=4"),
    (1, torch.tensor([3, 3, 1, 1]), "4 rows have 2 ids, each in 2 rows on end*axes.group.size=2"),
    (2, ["a", "b", "a", "b"], "no two rows of an id stand together*fix: axes.group.size=null"),
    (3, [chat("a")] * 2 + [chat("b")] * 4, "each in 2 to 4 rows on end*fix: axes.group.size=null"),
    (2, np.array([1, 2, 2, 1]), "4 rows have 2 ids"),
]


@pytest.mark.parametrize(("size", "ids", "text"), CONTRADICTS)
def test_a_size_that_ids_contradict_is_an_error_at_the_first_batch(
    size: int, ids: Any, text: str, tmp_path: Path
) -> None:
    """What was seen and the edit are said when the first batch closes, and the training code gets the error."""
    with started(["other", "id"], tmp_path, size=size) as log:
        with pytest.raises(InputError, match=f"axes.group.size is {size}, and `other` or `id`") as error, log.step(0):
            log.observe(x=[1.0] * len(ids), id=ids)
        for part in text.split("*"):
            assert part in str(error.value)


@pytest.mark.parametrize("split", ["none", "batches", "ranks"])
def test_a_size_that_later_ids_contradict_is_a_failure(split: str, tmp_path: Path) -> None:
    """Later batches, and rows that are spread, are checked where they are grouped."""
    with started("id", tmp_path, size=2, split=split) as log:
        with log.step(0):
            log.observe(x=X[:4], id=[1, 1, 2, 2])
        with log.step(1):
            log.observe(x=X[:4], id=[1, 2, 2, 1] if split == "none" else [1, 2, 2, 2])
    assert any("axes.group.size is 2" in failure for failure in log.failures)


SPREAD_IDS: list[tuple[str, list[list[str]], int]] = [  # by rank, by batch
    ("batches", [["aabb", "aabb"]], 4), ("batches", [["ab", "ba", "ab", "ba"]], 4), ("ranks", [["aabb"], ["aabb"]], 4),
    ("batches", [["abba"]], 2), ("ranks", [["abc"], ["cba"], ["bca"]], 3),
]  # fmt: skip


@pytest.mark.parametrize(("split", "ids", "size"), SPREAD_IDS)
def test_ids_decide_where_groups_are_spread_and_the_size_fits(
    split: str, ids: list[list[str]], size: int, tmp_path: Path
) -> None:
    """Class: a size beside ids whose rows are spread over batches or ranks. Without the size the numbers are equal."""

    def found(**group: Any) -> dict[str, float]:
        def rank(comm: Comm) -> MemorySink:
            sink, x = MemorySink(), iter(np.random.default_rng(comm.rank).random(99))
            with declog.start(config("id", split=split, **group), sinks=[sink], output_dir=tmp_path, comm=comm) as log:
                with log.step(0):
                    for batch in ids[comm.rank]:
                        log.observe(x=[next(x) for _ in batch], id=list(batch))
                assert not log.failures
            return sink

        return run_ranks(len(ids), rank)[0].scalars[0]

    assert found(size=size) == pytest.approx(found()) and found()["sizes"] == size


def test_a_size_that_may_be_spread_names_the_split(tmp_path: Path) -> None:
    """Class: a batch has a part of each group. Both places of the others come before a smaller size, which is wrong."""
    with started("id", tmp_path, size=4) as log:
        with pytest.raises(InputError) as error, log.step(0):
            log.observe(x=X[:4], id=["a", "a", "b", "b"])
        spread = "fix: axes.group.split=batches or axes.group.split=ranks, by where the other 2 rows of each id are"
        assert f"{spread}; else axes.group.size=2, or axes.group.size=null" in str(error.value)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_window_shows_no_more_of_a_size_than_its_steps(every: int, tmp_path: Path) -> None:
    """Class: each step draws one prompt several times. Long windows have the groups of short ones, also the first."""
    sink = MemorySink()
    with declog.start({**config("id", size=2), "every": every}, sinks=[sink], output_dir=tmp_path) as log:
        for step in range(6):
            with log.step(step):
                log.observe(x=X[:4], id=[step] * 4)
        assert not log.failures
    assert len(sink.scalars) == 6 // every
    assert {(values["sizes"], values["range"]) for values in sink.scalars.values()} == {(2.0, 1.5)}


@pytest.mark.parametrize("split", ["none", "batches", "ranks"])
def test_a_prompt_that_is_drawn_again_in_a_row_is_no_contradiction(split: str, tmp_path: Path) -> None:
    """The size decides, and the first batch has shown that it is right: AABB of four groups."""
    steps = [{"x": list(range(8)), "id": ids} for ids in (list("aabbccdd"), list("aaaabbbb"), list("aaaaaabb"))]
    sink = MemorySink()
    with declog.start(config("id", size=2, split=split), sinks=[sink], output_dir=tmp_path) as log:
        for number, observed in enumerate(steps):
            with log.step(number):
                log.observe(**observed)
    assert [values["sizes"] for values in sink.scalars.values()] == [2, 2, 2]
    assert [values["place"] for values in sink.scalars.values()] == [3, 3, 3]


def test_a_wrong_size_that_no_batch_shows_is_a_failure_at_first(tmp_path: Path) -> None:
    """The training thread checks whole groups of the first batch only, and none on a device: the worker the rest."""
    with started("id", tmp_path, size=2, split="batches") as log, log.step(0):
        for id in "aaaabbbb":
            log.observe(x=[1.0], id=[id])
    assert any("axes.group.size is 2" in failure and "each in 4 rows" in failure for failure in log.failures)


def test_at_first_an_id_of_each_draw_is_asked_for(tmp_path: Path) -> None:
    """A text that fills several groups in a row may be two draws; only the training code knows."""
    ids = ["a"] * 4 + ["b"] * 4
    with started(["draw", "id"], tmp_path, size=2) as log:
        with (
            pytest.raises(
                InputError,
                match="drawn several times in a row, observe `draw` as well, another for each draw; else axes",
            ),
            log.step(0),
        ):
            log.observe(x=[1.0] * 8, id=ids)
        with log.step(1):
            log.observe(x=[1.0] * 8, id=ids, draw=[0, 0, 1, 1, 2, 2, 3, 3])
    assert not log.failures


# ---- what the language says


def test_one_signal_may_be_written_as_a_text(tmp_path: Path) -> None:
    """`of: id`, `group: id` and `of: [id]` are one plan."""
    texts = [{"of": "id"}, "id", {"of": ["id"]}]
    plans = [declog.plan({**config("id"), "axes": {"group": text}}) for text in texts]
    assert len({plan.fingerprint if hasattr(plan, "fingerprint") else str(plan.grouping) for plan in plans}) == 1


@pytest.mark.parametrize(
    "signal", [{"axis": "step", "type": "int"}, ROWS, {**ROWS, "type": "bool"}, {**ROWS, "family": True}]
)
def test_what_cannot_name_a_group_is_refused_where_it_stands(signal: dict[str, Any]) -> None:
    """Each entry of the list is an id per completion; the error is at its place."""
    data = profile({"x": ROWS, "a": {**ROWS, "type": "int"}, "b": signal}, METRICS, axes={"group": {"of": ["a", "b"]}})
    with pytest.raises(ConfigError, match=r"axes\.group\.of\.1"):
        declog.plan(data)
