"""Ranks as processes, under torchrun with gloo; what befalls them is in ``tests/faults``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.faults.jobs import free_port
from tests.runtime.ranks import work
from tests.runtime.test_ranks import equal

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "ranks"


def environment(**others: str) -> dict[str, str]:
    """This process's environment, for a process of the job: the sources, one thread of torch, loopback."""
    return forks.environment({"GLOO_SOCKET_IFNAME": "lo", **others})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the two ranks of `equal.py` saw."""
    folder = tmp_path_factory.mktemp("torchrun")
    command = [
        *forks.TORCHRUN, "--nproc-per-node=2", "--max-restarts=1",
        "--monitor-interval=0.1", f"--master-port={free_port()}", str(SCRIPTS / "equal.py"), str(folder),
    ]  # fmt: skip
    done = forks.run(command, env=environment(), cwd=folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"result_{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("when", ["before", "after", "group"])
def test_two_processes_log_what_one_logs(when: str, results: list[dict[str, Any]], tmp_path: Path) -> None:
    """To 1e-12, before and after `init_process_group`, in a second attempt of torchrun; nothing on rank 1."""
    expected = json.loads(json.dumps(work.alone(2, tmp_path)))
    equal(results[0][when], expected)
    assert results[1][when] == {"scalars": {}, "partial": [], "tables": []}


@pytest.mark.parametrize("when", ["split", "again"])
def test_groups_are_spread_over_processes(when: str, results: list[dict[str, Any]], tmp_path: Path) -> None:
    """Statistics of a prompt's completions are those of all ranks; also after runs that could not start."""
    equal(results[0][when], json.loads(json.dumps(work.split_alone(2, tmp_path))))


def test_each_process_writes_its_own_rows_of_a_table_without_a_filter(results: list[dict[str, Any]]) -> None:
    """Below the folder that rank 0 chose."""
    assert [[line["text"] for line in result["apart"]] for result in results] == [["é 0"], ["é 1"]]


def test_a_process_without_rows_is_noted(results: list[dict[str, Any]]) -> None:
    """Class: `if rank == 0:` around `observe`, whose values look as if they were of all ranks. Rank 0 says so once."""
    (note,) = results[0]["of_rank_0"]
    assert note.startswith("note: rank 1 observed no rows of `") and "without `if rank == 0`" in note
    assert results[1]["of_rank_0"] == []


def test_processes_with_different_plans_raise_the_same(results: list[dict[str, Any]]) -> None:
    """The first difference is named on both ranks."""
    texts = [result["mismatch"] for result in results]
    assert texts[0] == texts[1]
    assert texts[0].splitlines()[0] == "PlanMismatchError: error[DL604]"
    assert texts[0].splitlines()[1].startswith("  ranks compiled different plans: metrics.")


def test_a_sink_that_cannot_open_raises_on_every_process(results: list[dict[str, Any]]) -> None:
    """Rank 1 learns from rank 0 why."""
    own, others = (result["sink"] for result in results)
    assert own.startswith("SinkError: [DL601] sink `bad` could not be opened: NotADirectoryError: ")
    assert others == own.replace("[DL601] sink", "[DL601] rank 0 could not start: sink")
