"""A metric of the user's that never has a value, although all that it reads came: told once, in time and at the end.

The class: whatever makes it absent (a variance of one step, groups of one, a condition that never holds), on any number
of ranks, before and after a resume. What has a value now and then, what may be hidden or is of a mode that did not run,
what had few log events, also for `lag(10)`, and what is a preset's, is told of never.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.engine.warnings.silent import Silent
from declog.testing import MemorySink, run_ranks

METRICS = {
    "step_var": "{expr: r, over: step, combine: var}", "spread": "mean(std(r, over=completion))",
    "twice": "{formula: 2 * step_var}", "large": "{expr: r, where: r > 100}", "twice_large": "{formula: 2 * large}",
    "earlier": "{formula: reward, combine: lag(10)}", "change": "{formula: reward - earlier}",
    "of_evaluations": "{expr: r, where: mode == 'eval'}", "rare": "{expr: r, where: r == 11}", "reward": "mean(r)",
    "hidden": "{expr: r, when: reward > 100}", "hidden_too": "{formula: 2 * reward, when: reward > 100}",
}  # fmt: skip
ALWAYS, CHOSEN = ["step_var", "spread", "twice"], ["large", "twice_large"]


def told(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    steps: range,
    ranks: int = 1,
    resume: Any = None,
    evaluates: bool = True,
) -> tuple[list[list[str]], list[str], list[Any]]:
    """The metrics told of so far after each step, those of the end, and the states of the ranks."""
    file = folder / "silent.yaml"
    lines = [f"  {name}: {text}" for name, text in METRICS.items()]
    head = "signals: {any: {r: completion}}\naxes: {group: {size: 1}}\nmodes: {eval: {prefix: eval/}}\n"
    file.write_text("\n".join([f"{head}metrics:", *lines, ""]))
    after: list[list[str]] = []
    states: list[Any] = [None] * ranks

    def named() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        named = [line.partition(": no value in ")[0] for line in lines if ": no value in " in line]
        return [name for some in named for name in some.replace(" and ", ", ").split(", ")]

    def body(comm: Any) -> None:
        state = None if resume is None else resume[comm.rank]
        with declog.start(
            file, comm=comm, sinks=[MemorySink()], output_dir=folder / f"of_{steps.start}", resume=state
        ) as log:
            for step in steps:
                with log.step(step):
                    log.observe(r=[float(step), float(comm.rank)])
                    if evaluates and step == steps[0]:
                        with log.mode("eval"):
                            log.observe(r=[float(comm.rank)])
                states[comm.rank] = log.state_dict()
                if comm.rank == 0:
                    after.append(named())

    with caplog.at_level(logging.WARNING, logger="declog"):
        caplog.clear()
        run_ranks(ranks, body)
    return after, named(), states


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_never_has_a_value_is_told(ranks: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After ten log events, or at the end where a condition chooses rows; each once, also in the run's `missing`."""
    after, end, states = told(tmp_path, caplog, steps=range(12), ranks=ranks)
    assert after[8] == [] and sorted(after[9]) == sorted(ALWAYS) and after[-1] == after[9]
    assert sorted(end) == sorted(ALWAYS + CHOSEN)
    line = next(text for record in caplog.records if "no value in" in (text := record.getMessage()))
    assert line.endswith("a variance needs two values in a window, so `every: 2` or more")
    after, end, _ = told(tmp_path, caplog, steps=range(12, 15), ranks=ranks, resume=states)
    assert after[-1] == [] and sorted(end) == CHOSEN  # `rare` had a value before, and the others have been told


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_count_goes_on_after_a_resume(ranks: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Six log events and four more are ten."""
    _, end, states = told(tmp_path, caplog, steps=range(6), ranks=ranks)
    assert end == []
    after, _, _ = told(tmp_path, caplog, steps=range(6, 10), ranks=ranks, resume=states)
    assert after[2] == [] and sorted(after[3]) == sorted(ALWAYS)


def test_a_state_without_counts_says_nothing() -> None:
    """One of an earlier version does not say which had a value."""
    metrics = {"large": {"expr": "r", "where": "r > 100"}, "r": "mean"}
    plan = declog.plan({"run": {"name": "s"}, "signals": {"any": {"r": "completion"}}, "metrics": metrics})
    plan = replace(plan, user_metrics=frozenset(metrics))
    for state, told_at_end in ({}, []), ({"large": 3}, ["large"]):
        silent = Silent(plan, [*metrics])
        silent.load(state)
        for _ in range(12):
            silent.judge("train", [1], lambda id: id == "r")
        assert silent.end() == told_at_end


@pytest.mark.parametrize("steps", [1, 2, 9])
def test_few_log_events_say_nothing(steps: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A short script may have had too few rows."""
    assert told(tmp_path, caplog, steps=range(steps), evaluates=False)[1] == []


def test_a_mode_that_did_not_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without an evaluation its metric is not told of."""
    assert sorted(told(tmp_path, caplog, steps=range(11), evaluates=False)[1]) == sorted([*ALWAYS, *CHOSEN, "rare"])


@pytest.mark.parametrize("idle", [range(0), range(12, 24)])
def test_columns_of_a_table_whose_rows_come_last(idle: range, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Class: log events without rows of a table say nothing of its columns, nor do log events without any rows."""
    config = {
        "signals": {"rollout": {"r": "completion"}, "report": {"a": "completion", "b": "completion"}},
        "metrics": {"r": "mean"}, "tables": {"all": {"columns": ["a"]}}, "sinks": [],
    }  # fmt: skip
    with declog.start(config, sinks=[sink := MemorySink()], output_dir=tmp_path) as log:
        for step in [*range(12), *idle, 30]:
            with log.step(step):
                if step == 30:
                    log.observe(a=[1.0, 2.0])
                elif step not in idle:
                    log.observe(r=[1.0])
    assert "never came" not in caplog.text
    assert [table.rows for _, records in sink.events for table in records.tables] == [2]
