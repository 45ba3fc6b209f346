"""A signal is what its help says, for every reader: `length` is counted from the mask where it never comes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.errors import ConfigError
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.running import logged, profile, rows

MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0]], dtype=torch.bool)
LENGTHS = [3, 1, 2, 3, 0, 1]
ROLLOUT: dict[str, Any] = {"reward": torch.arange(6.0), "prompt": ["p"] * 6, "completion": ["x y"] * 6}
UPDATE: dict[str, Any] = {"logprobs": -torch.ones(6, 3), "old_logprobs": -torch.ones(6, 3)}
READERS = {
    "defaults": ["grpo", "_self_"],
    "metrics": {
        "long_reward": {"expr": "reward", "where": "length >= 2"},
        "reward_of_length": {"expr": "reward", "by": "bucket(length, 2, 3)"},
        "weighted": {"expr": "reward", "weight": "length"},
        "per_token": "mean(reward / maximum(length, 1))",
        "tokens": {"expr": "length", "reduce": "sum", "over": "run"},
        "words": {"expr": "count(completion, over=completion)", "where": "max(length, over=completion) > 2"},
        "half": {"formula": "tokens / 2"},
    },
    "tables": {
        "longest": {"columns": ["length", "reward"], "filter": {"key": "length", "top": 2}},
        "whole": {"columns": ["length"]},
    },
    "alerts": {"short": {"when": "tokens < 1000", "text": "{tokens}"}},
}  # fmt: skip


def log_of(body: Callable[[Recorder], object], tmp_path: Path, preset: str = "grpo") -> MemorySink:
    """What the readers of a length log, in one step."""
    sink, data = MemorySink(), copy.deepcopy(READERS)
    data["defaults"] = [preset, "_self_"]
    folder = tmp_path / "conf" / "declog"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "readers.yaml").write_text(str(data).replace("'", '"').replace("True", "true"), encoding="utf-8")
    run = tmp_path / "run"
    with declog.start(folder / "readers.yaml", ["sinks=[]"], sinks=[sink], output_dir=run) as log, log.step(0):
        body(log)
    assert log.failures == {}
    return sink


def numbers(sink: MemorySink) -> dict[str, Any]:
    """What is read of lengths: metrics, tables and alerts."""
    own = {name: value for name, value in sink.scalars[0].items() if name.split("/")[0] in NAMES}
    tables = {
        name: [row["length"] for _, table in sink.tables(name) for row in rows(table)] for name in ("longest", "whole")
    }
    return {**own, **tables, "alerts": [alert.name for _, alert in sink.alerts]}


NAMES = {*READERS["metrics"], "completions"}


def together(log: Recorder, **others: Any) -> None:
    log.observe(**ROLLOUT, **UPDATE, completion_mask=MASK, **others)


def mask_first(log: Recorder) -> None:
    log.observe(completion_mask=MASK, **UPDATE, **ROLLOUT)


def after(log: Recorder) -> None:
    log.observe(**ROLLOUT)
    log.observe(completion_mask=MASK, **UPDATE)


def with_the_rollout(log: Recorder) -> None:
    log.observe(**ROLLOUT, completion_mask=MASK)
    log.observe(**UPDATE)


def alone(log: Recorder) -> None:
    log.observe(**ROLLOUT)
    log.observe(completion_mask=MASK)
    log.observe(**UPDATE)


def several_epochs(log: Recorder) -> None:
    log.observe(**ROLLOUT)
    for _ in range(3):
        log.observe(completion_mask=MASK, **UPDATE)


@pytest.mark.parametrize("preset", ["grpo", "rloo"])
@pytest.mark.parametrize("body", [together, mask_first, after, with_the_rollout, alone])
def test_a_length_that_never_came_is_counted_for_every_reader(
    body: Callable[[Recorder], object], preset: str, tmp_path: Path
) -> None:
    """Conditions, labels, weights, formulas, columns, filters and alerts read what they read of lengths that came."""
    given = numbers(log_of(lambda log: together(log, length=LENGTHS), tmp_path / "given", preset))
    assert given["longest"] == [3, 3] and given["whole"] == LENGTHS and given["tokens"] == 10
    assert numbers(log_of(body, tmp_path / "counted", preset)) == given


def test_several_updates_of_the_same_rows_count_them_once(tmp_path: Path) -> None:
    """The first update of a rollout's rows says their lengths; others of the step change nothing."""
    found = numbers(log_of(several_epochs, tmp_path))
    assert (found["tokens"], found["whole"], found["long_reward"]) == (10, LENGTHS, pytest.approx(5 / 3))


def test_a_length_that_came_is_the_trainers(tmp_path: Path) -> None:
    """What the trainer has counted stands, whatever the mask says."""
    found = numbers(log_of(lambda log: together(log, length=[9] * 6), tmp_path))
    assert (found["whole"], found["tokens"], found["completions/mean_length"]) == ([9] * 6, 54, 9.0)


def test_minibatches_whose_rows_are_not_known_say_no_lengths(tmp_path: Path) -> None:
    """Minibatches may be shuffled: no row takes the length of another; the mean is of them all."""

    def body(log: Recorder) -> None:
        log.observe(**ROLLOUT)
        for part in (slice(0, 3), slice(3, 6)):
            log.observe(completion_mask=MASK[part], **{name: values[part] for name, values in UPDATE.items()})

    found = numbers(log_of(body, tmp_path))
    assert found["whole"] == [None] * 6 and "long_reward" not in found
    assert found["completions/mean_length"] == pytest.approx(10 / 6)


# ---- what the language says of it


SECTIONS: dict[str, Any] = {"derived": {"later_y": {"expr": "2 * y", "phase": "rollout"}}, "signals": {
    "any": {"id": {"axis": "completion", "type": "int"}},
    "rollout": {"x": {"axis": "completion"}, "text": {"axis": "completion", "type": "text"}},
    "update": {"y": {"axis": "completion"}},
}}  # fmt: skip
LATER = {
    "m": "mean(x + later_y)",
    "n": "count(later_y)",
    "t": {"expr": "1 if present(text) else 0", "where": "later_y > 4", "reduce": "sum"},
}


def test_rows_of_a_later_phase_by_ids(tmp_path: Path) -> None:
    """With ids minibatches are looked up, shuffled, in parts and more than once; what is not there is absent."""
    given = profile(
        {}, {"m": "sum(x + later_y)", "n": "count(later_y)"}, **SECTIONS, axes={"completion": {"ids": "id"}}
    )
    batches = [
        {"x": [100.0, 200.0, 300.0], "id": [1, 2, 3]}, {"y": [7.0, 9.0], "id": [9, 3]}, {"y": [1.0], "id": [1]},
        {"y": [4.0, 5.0], "id": [3, 1]},
    ]  # fmt: skip
    assert logged(given, batches, tmp_path) == {"m": 400 + 2 * (5 + 4), "n": 2}


def test_batches_in_turns_are_each_others(tmp_path: Path) -> None:
    """Each batch is followed by its own; where two come before both others nobody knows."""
    given = profile({}, {"m": "sum(x + later_y)", "n": "count(later_y)"}, **SECTIONS)
    a, b = [{"x": [1.0]}, {"x": [2.0]}], [{"y": [10.0]}, {"y": [20.0]}]
    assert logged(given, [a[0], b[0], a[1], b[1]], tmp_path / "1") == {"m": 63.0, "n": 2}
    assert logged(given, [a[0], a[1], b[0], b[1]], tmp_path / "2") == {}
    assert logged(given, [a[0], b[0], {"x": [3.0, 4.0]}, b[1]], tmp_path / "3") == {"m": 21.0, "n": 1}


def test_later_rows_over_ranks_steps_and_parts(tmp_path: Path) -> None:
    """Each rank looks up its own rows, in each step, also where the window is folded and its tables are each rank's."""

    def on(comm: Comm, **others: Any) -> MemorySink:
        sink = MemorySink()
        with declog.start({**profile({}, LATER, **SECTIONS), "every": 2, **others}, sinks=[sink],
                          output_dir=tmp_path / str(len(others)), comm=comm) as log:  # fmt: skip
            for step in range(4):
                with log.step(step):
                    log.observe(x=[1.0, 2.0], text=["one", "two"])
                    if step != 2:
                        log.observe(y=[float(comm.rank), step + 1.0])
        return sink

    whole, folded = run_ranks(2, on)[0], run_ranks(2, lambda comm: on(comm, run={"window_bytes": 1}))[0]
    assert whole.scalars == folded.scalars
    assert whole.scalars[1] == {"m": pytest.approx(1.5 + 2 * (0 + 1 + 1 + 2 + 0 + 2 + 1 + 1) / 8), "n": 8}
    assert whole.scalars[3] == {"m": pytest.approx(1.5 + 2 * (0 + 4 + 1 + 4) / 4), "n": 4, "t": 2}


@pytest.mark.parametrize("expr", ["lp", "mean(y, over=completion)"])
def test_only_values_per_completion_have_rows_in_another_phase(expr: str) -> None:
    """What is per token or per group is refused where it stands."""
    declared = SECTIONS["signals"]
    signals = {**declared, "update": {**declared["update"], "lp": {"axis": "token", "mask": "all"}}}
    derived = {"later_y": {"expr": expr, "phase": "rollout"}}
    with pytest.raises(ConfigError, match=r"DL313.*derived\.later_y"):
        declog.plan(profile({}, LATER, signals=signals, derived=derived, axes={"group": {"size": 2}}))
