"""A column of log_extra is a signal where the signal says so, however the profile came; otherwise that is told once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.testing import MemorySink, run_ranks

GIVEN = {
    "prompt_id": [0, 0], "rewards": {"r": [1.0, 0.0]}, "reward_weights": {"r": 1.0}, "length": [7, 9], "row": [0, 1],
    "num_input_tokens_seen": 1, "truncated": [False, False],
}  # fmt: skip
EDIT = "`signals.any.quality.from_log_extra: true` observes it"


def profile(quality: dict[str, Any], *, phase: str = "any", keeps: bool = True) -> dict[str, Any]:
    """A metric of `quality`, which has columns of log_extra of its name, and one of `score`."""
    columns = {"score": {"type": "float"}, **({"extra": {"undeclared": "keep"}} if keeps else {})}
    declared = {"quality": {"axis": "completion", **quality}}
    here, late = (declared, {}) if phase == "any" else ({}, {phase: declared})
    return {
        "signals": {"any": {"score": {"axis": "completion"}, **here}, **late},
        "metrics": {"quality": "mean(quality)", "score": "mean(score)"},
        "schemas": {"s": columns}, "tables": {"t": {"schema": "s"}},
    }  # fmt: skip


@pytest.mark.parametrize("first", [True, False], ids=["column first", "signals first"])
@pytest.mark.parametrize("data", [False, True], ids=["by name", "as data"])
def test_a_column_of_a_presets_name_is_a_column(first: bool, data: bool, tmp_path: Path) -> None:
    """The trainer's signal keeps its value; the table has the column."""
    config = declog.config_of("trl_grpo") if data else "trl_grpo"
    sink = MemorySink()
    with declog.start(
        config, sinks=[sink], constants={"sees_updates": False}, output_dir=tmp_path / "run"
    ) as log, log.step(0):  # fmt: skip
        if first:
            log.log_extra("truncated", [1, 1])
        log.observe(**GIVEN)
        if not first:
            log.log_extra("truncated", [1, 1])
    assert sink.scalars[0]["completions/clipped_ratio"] == 0.0
    ((_, table),) = sink.tables("completions")
    assert table.data["truncated"] == [1, 1]


@pytest.mark.parametrize(
    ("quality", "phase", "keeps", "value", "said"),
    [
        ({"from_log_extra": True}, "any", True, 1.0, None),
        ({}, "any", True, None, f"quality came as a column of log_extra: {EDIT}"),
        ({}, "judge", True, None, f"quality came as a column of log_extra: {EDIT.replace('any', 'judge')}"),
        ({}, "any", False, None, f"{EDIT} as the signal"),
    ],
    ids=["it says so", "it does not", "nothing of its phase", "no table keeps it"],
)
def test_a_column_of_a_signal_that_never_came_is_told_once(
    quality: dict[str, Any], phase: str, keeps: bool, value: float | None, said: str | None, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """With the line to write, and once, however many steps have it."""
    sink = MemorySink()
    with caplog.at_level(logging.WARNING, "declog"), declog.start(
        profile(quality, phase=phase, keeps=keeps), sinks=[sink], output_dir=tmp_path / "run"
    ) as log:  # fmt: skip
        for step in range(3):
            with log.step(step):
                log.log_extra("quality", [0.5, 1.5])
                log.observe(score=[1.0, 2.0])
    assert [sink.scalars[step].get("quality") for step in range(3)] == [value] * 3
    texts = [record.getMessage() for record in caplog.records if "observes it" in record.getMessage()]
    assert (len(texts), [text for text in texts if str(said) not in text]) == (int(said is not None), [])


def test_a_column_of_another_rank_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    """Rank 0 says it, of a column that only rank 1 gives."""

    def rank(comm: Any) -> Any:
        with declog.start(profile({}), sinks=[MemorySink()] if comm.rank == 0 else [], comm=comm) as log, log.step(0):
            if comm.rank:
                log.log_extra("quality", [0.5, 1.5])
            log.observe(score=[1.0, 2.0])
        return dict(log.missing)

    with caplog.at_level(logging.WARNING, "declog"):
        missing = run_ranks(2, rank)
    assert missing[0] == {"quality": f"quality came as a column of log_extra: {EDIT}"}
