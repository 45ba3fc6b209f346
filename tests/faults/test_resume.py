"""kill -9 in the middle of a run, again and again: what is finished is readable, and a resumed run lacks nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.faults import jobs
from tests.faults.jobs import Ended
from tests.faults.resuming import EVERY, SAVES, STEPS, rows

# who is killed when: in a window, after a checkpoint in one, twice in one place, at once after it came back
KILLS = ((0, 7), (1, 11), (0, 11), (0, 16), (1, 23))


def logged(ranks: int) -> list[tuple[int, dict[str, float]]]:
    """What a run that nobody kills logs."""
    found: list[tuple[int, dict[str, float]]] = []
    slow: list[float] = []
    total = 0.0
    for last in range(EVERY - 1, STEPS, EVERY):
        values = [
            x for step in range(last - EVERY + 1, last + 1) for rank in range(ranks) for x in rows(rank, step)["x"]
        ]
        slow += values
        total += sum(values)
        scalars = {"x": sum(values), "rows": float(len(values)), "total": total}
        if (last + 1) % (2 * EVERY) == 0:
            scalars["slow"] = max(slow)
            slow.clear()
        found.append((last, scalars))
    return found


def lines(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """What is in the lines."""
    text = (folder / "lines" / "scalars.jsonl").read_text()
    return [(line["step"], line["scalars"]) for line in map(json.loads, text.splitlines())]


def parquet(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """What is in the finished part files."""
    frame = pd.read_parquet(folder / "files" / "scalars")
    assert not frame.duplicated(["step", "name"]).any()
    groups = [(step, dict(zip(part["name"], part["value"], strict=True))) for step, part in frame.groupby("step")]
    return sorted((int(step), values) for step, values in groups)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_is_killed_and_resumed_logs_what_one_run_logs(ranks: int, tmp_path: Path) -> None:
    """After each kill the files have whole log events, all but the last few; at the end every one, once."""
    expected = logged(ranks)
    for victim, at in [kill for kill in KILLS if kill[0] < ranks]:
        ended = resume(tmp_path, ranks, victim, at)
        assert (ended.hung, ended.codes[victim]) == ((), -9), ended.outputs
        saved = at // SAVES * SAVES // EVERY  # windows that ended before the last checkpoint: they were written
        for found in (lines(tmp_path / "run"), parquet(tmp_path / "run")):
            whole = [item for item in found if item[0] < at]
            assert expected[: len(whole)] == [(step, pick(values)) for step, values in whole]
            assert len(whole) >= saved
    ended = resume(tmp_path, ranks)
    assert ended.codes == (0,) * ranks, ended.outputs
    check_whole(tmp_path / "run", ranks)


def resume(folder: Path, ranks: int, victim: int = -1, at: int = -1) -> Ended:
    """Go on with a run, in which a rank is killed at a step."""
    return jobs.run(folder, ranks, ["-m", "tests.faults.resuming", folder, str(victim), str(at)])


def check_whole(folder: Path, ranks: int) -> None:
    """All log events and all rows of the table, each once."""
    assert lines(folder) == parquet(folder) == logged(ranks)
    table = pd.read_parquet(folder / "files" / "tables" / "t")
    texts = [text for step in range(STEPS) for rank in range(ranks) for text in rows(rank, step)["text"]]
    assert sorted(table["text"]) == sorted(texts)


def pick(values: dict[str, float]) -> dict[str, float]:
    """The metrics, without what is said where ranks are missing."""
    return {name: value for name, value in values.items() if not name.startswith("declog/")}
