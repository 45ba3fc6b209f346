"""Starting: what is wrong on one rank is reported on all in bounded time; launchers, and ranks with the same rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.faults import jobs
from tests.faults.jobs import Ended


def started(how: str, ranks: int, folder: Path) -> tuple[list[dict[str, Any]], Ended]:
    """What each rank logged, or its error. The job itself always ends well."""
    ended = jobs.run(folder, ranks, ["-m", "tests.faults.starting", how, folder])
    assert (ended.hung, ended.codes) == ((), (0,) * ranks), ended.outputs
    return [json.loads((folder / f"result_{rank}.json").read_text()) for rank in range(ranks)], ended


@pytest.mark.parametrize(
    ("how", "rank", "error"),
    [
        ("only rank 0", 0, "CommError: [DL603] ranks [1] did not start declog within 2 s"),
        ("only rank 1", 1, "CommError: [DL603] rank 1 waited 2 s for rank 0 to start declog"),
    ],
)
def test_a_rank_that_starts_alone_is_reported_so(how: str, rank: int, error: str, tmp_path: Path) -> None:
    """After a bounded time; the others, which never called declog, go on."""
    results, _ = started(how, 2, tmp_path)
    assert results[rank]["error"].splitlines() == [
        error,
        "  fix: call declog.start, and enter the block of each step, `with log.step(k):`, on every rank",
    ]
    assert results[1 - rank] == {}


def test_different_plans_are_one_error_on_every_rank(tmp_path: Path) -> None:
    """It names the ranks and the first difference."""
    results, _ = started("other plan", 4, tmp_path)
    errors = {result["error"] for result in results}
    assert len(errors) == 1
    assert errors.pop().splitlines()[:2] == [
        "PlanMismatchError: error[DL604]",
        "  ranks compiled different plans: metrics.more is not there on ranks 0, 1, 2 and there on rank 3",
    ]


def test_a_mistake_on_one_rank_ends_the_start_of_all(tmp_path: Path) -> None:
    """That rank says what is wrong; the others do not wait for ever."""
    results, _ = started("typing error", 2, tmp_path)
    assert results[1]["error"].startswith("ConfigError: error[DL302] metrics.x")
    assert results[0]["error"].split(":")[0] in ("CommError", "ConfigError")


def test_a_folder_that_cannot_be_made_is_reported_everywhere(tmp_path: Path) -> None:
    """Every rank raises."""
    results, _ = started("no folder", 2, tmp_path)
    assert [result["error"].split("]")[0] for result in results] == ["SinkError: [DL601"] * 2


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_ranks_of_a_group(ranks: int, tmp_path: Path) -> None:
    """Two rows of each rank, which no other has."""
    results, ended = started("plain", ranks, tmp_path)
    expected = {"x": sum(3 * 10.0**rank for rank in range(ranks)), "rows": 2.0 * ranks}
    assert results == [{"scalars": {"0": expected, "1": expected}}] + [{"scalars": {}}] * (ranks - 1)
    assert ended.outputs == ("",) * ranks


@pytest.mark.parametrize("how", ["data parallel", "data parallel group"])
def test_processes_with_the_same_rows_are_one_rank(how: str, tmp_path: Path) -> None:
    """Four processes, of which two and two hold the same rows: each row counts once, one process writes."""
    results, _ = started(how, 4, tmp_path)
    expected = {"x": 33.0, "rows": 4.0}
    assert [result["scalars"] for result in results if result["scalars"]] == [{"0": expected, "1": expected}]


def test_ranks_that_report_the_same_rows_are_warned_of(tmp_path: Path) -> None:
    """Nobody said that they are one: rows count twice, and rank 0 says it once."""
    results, ended = started("twins", 2, tmp_path)
    assert results[0]["scalars"]["0"]["rows"] == 4
    assert ended.outputs[0].count("[DL606]") == 1
    assert ended.outputs[1] == ""


ACCELERATED = """
import sys, accelerate, declog
from pathlib import Path
from declog.testing import MemorySink

accelerator, sink = accelerate.Accelerator(cpu=True), MemorySink()
signals = {"any": {"x": {"axis": "completion"}}}
profile = {"signals": signals, "metrics": {"x": "sum(x)", "rows": "count(x)"}}
with declog.start(profile, sinks=[sink], output_dir=sys.argv[1]) as log, log.step(0):
    log.observe(x=[10.0**accelerator.process_index])
Path(sys.argv[1], f"rank_{accelerator.process_index}").write_text(str(sink.scalars))
"""


def test_accelerate_launches_two_ranks_on_a_cpu(tmp_path: Path) -> None:
    """With `--multi_gpu`, strange as it is: without it accelerate starts one process where there is no GPU."""
    (tmp_path / "train.py").write_text(ACCELERATED)
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
        "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
        "--main_process_port", str(jobs.free_port()), "train.py", str(tmp_path),
    ]  # fmt: skip
    environment = forks.environment(jobs.LOOPBACK)
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, timeout=forks.PATIENCE_S, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [(tmp_path / f"rank_{rank}").read_text() for rank in range(2)]
    assert found == ["{0: {'x': 11.0, 'rows': 2}}", "{}"]
