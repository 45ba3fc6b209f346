"""Values per group: each batch has as many as groups begin in it, however groups are named and spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import declog
from declog.errors import ConfigError
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.running import profile

ROWS = {"axis": "completion"}
SIGNALS: dict[str, Any] = {"pid": {**ROWS, "type": "int"}, "name": {**ROWS, "type": "text"}, "x": ROWS,
                           "se": {"axis": "group"}, "label": {"axis": "group", "type": "text"}}  # fmt: skip
METRICS = {"se": {"reduce": ["mean", "count"]}, "best": "sum(se + mean(x, over=completion))", "x": "sum(x)",
           "by": {"expr": "x", "by": "label", "reduce": "sum"}}  # fmt: skip
NAMES = ["p", "q", "r"]


def train(group: dict[str, Any], batches: list[dict[str, Any]], folder: Path) -> tuple[dict[str, float], list[str]]:
    """What one step of some batches logs, and what failed. Groups are named by their number."""
    sink = MemorySink()
    with declog.start(profile(SIGNALS, METRICS, axes={"group": group}) | {"run": {"strict": False}}, sinks=[sink],
                      output_dir=folder) as log, log.step(0):  # fmt: skip
        for batch in batches:
            log.observe(**batch, name=[NAMES[item] for item in batch["pid"]], label=["l"] * len(batch["se"]))
    return sink.scalars[0], [str(failure) for failure in log.failures]


RIGHT: list[tuple[str, list[dict[str, Any]], float]] = [
    ("none", [{"pid": [0, 0, 1], "x": [1.0, 3.0, 5.0], "se": [10.0, 20.0]}], 37.0),
    ("none", [{"pid": [0, 0, 0], "x": [1.0, 2.0, 3.0], "se": [10.0]}, {"pid": [1], "x": [7.0], "se": [20.0]}], 39.0),
    ("batches", [{"pid": [0, 1], "x": [1.0, 5.0], "se": [10.0, 20.0]}, {"pid": [0], "x": [3.0], "se": []}], 37.0),
    ("batches", [{"pid": [0], "x": [1.0], "se": [10.0]}, {"pid": [1, 0], "x": [5.0, 3.0], "se": [20.0]}], 37.0),
]


@pytest.mark.parametrize("of", ["pid", "name"])
@pytest.mark.parametrize(("split", "batches", "best"), RIGHT)
def test_values_stand_by_the_groups_that_begin_in_their_batch(
    of: str, split: str, batches: list[dict[str, Any]], best: float, tmp_path: Path
) -> None:
    """Ragged groups, and groups that go on in a later batch."""
    found, failures = train({"of": of, "split": split}, batches, tmp_path)
    x = sum(sum(batch["x"]) for batch in batches)
    assert (found, failures) == ({"se/mean": 15.0, "se/count": 2, "best": best, "x": x, "by/l": x}, [])


WRONG: list[tuple[str, list[dict[str, Any]]]] = [
    ("none", [{"pid": [0, 0], "x": [1.0, 2.0], "se": [1.0, 2.0, 3.0]}]),
    ("none", [{"pid": [0, 0, 1, 1], "x": [1.0] * 4, "se": [10.0]}]),
    ("none", [{"pid": [0, 1], "x": [1.0] * 2, "se": [10.0]}, {"pid": [2], "x": [1.0], "se": [1.0, 2.0]}]),
    ("batches", [{"pid": [0, 1], "x": [1.0] * 2, "se": [1.0]}, {"pid": [0], "x": [1.0], "se": [2.0]}]),
]


@pytest.mark.parametrize("of", ["pid", "name"])
@pytest.mark.parametrize(("split", "batches"), WRONG)
def test_another_number_of_values_is_reported_and_left_out(
    of: str, split: str, batches: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Also where it is right in sum: nothing says which group a value is of. All else goes on."""
    found, failures = train({"of": of, "split": split}, batches, tmp_path)
    assert found == {"x": sum(sum(batch["x"]) for batch in batches)}
    assert failures and all(
        "[DL505] `" in failure and " groups, and step 0 of phase" in failure for failure in failures
    )


def test_only_the_batch_with_wrong_values_lacks_them(tmp_path: Path) -> None:
    """The others count."""
    batches = [{"pid": [0, 1], "x": [1.0, 2.0], "se": [1.0]}, {"pid": [2], "x": [4.0], "se": [8.0]}]
    found, failures = train({"of": "pid"}, batches, tmp_path)
    assert found == {"se/mean": 8.0, "se/count": 1, "best": 12.0, "x": 7.0, "by/l": 4.0}
    assert len(failures) == 1


def test_groups_over_ranks_have_no_values_of_their_own() -> None:
    """No rank knows which of them begin with it."""
    for group in ({"of": "pid", "split": "ranks"}, {"size": 2, "split": "ranks"}):
        with pytest.raises(ConfigError) as caught:
            declog.plan(profile(SIGNALS, {"se": "mean(se)"}, axes={"group": group}))
        assert [(item.code, item.path) for item in caught.value.problems] == [
            ("DL310", ("signals", "any", "se", "axis"))
        ]


def test_a_value_per_batch_needs_no_phase_of_its_own(tmp_path: Path) -> None:
    """A derived signal per batch belongs to whichever phase needs it, as what it is computed of does."""
    tokens = "sum(sum(length, over=completion), over=group)"
    sections = {"signals": {"update": {"loss": "step"}, "control": {"lr": "step"}}, "axes": {"group": {"size": 1}}}
    length = {"length": ROWS}
    inlined = declog.plan(profile(length, {"l": f"mean(loss / {tokens})", "lr": "lr"}, **sections))
    named = profile(length, {"l": "mean(loss / tokens)", "lr": "lr"}, derived={"tokens": tokens}, **sections)
    assert declog.plan(named).fingerprint == inlined.fingerprint
    sink = MemorySink()

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(loss=6.0, length=[1, 2])
            log.observe(lr=0.5)

    with declog.start(named, sinks=[sink], output_dir=tmp_path) as log:
        body(log)
    assert sink.scalars == {0: {"l": 2.0, "lr": 0.5}}


@pytest.mark.parametrize("kind", ["int", "text"])
def test_a_row_without_an_id_is_in_nobodys_group(kind: str, tmp_path: Path) -> None:
    """Two of them are no group: their spread is none, and each is its own best."""
    ids = [1, None, 1, None] if kind == "int" else ["p", None, "p", None]
    signals = {"pid": {"axis": "completion", "type": kind}, "x": {"axis": "completion"}}
    metrics = {"best": "sum(max(x, over=completion))", "spread": "mean(std(x, over=completion))"}
    config = profile(signals, metrics, axes={"group": {"of": "pid"}})
    with declog.start(config, sinks=[sink := MemorySink()], output_dir=tmp_path) as log, log.step(0):
        log.observe(pid=ids, x=[1.0, 5.0, 3.0, 9.0])
    assert sink.scalars == {0: {"best": 17.0, "spread": pytest.approx(2**0.5)}}
