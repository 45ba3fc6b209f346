"""Each fault once, with real processes: compared with the same job without declog; the files have what came."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests import forks
from tests.faults import jobs
from tests.faults.cases import FAULTS, Fault
from tests.faults.jobs import Ended
from tests.faults.strikes import AT, ROWS, STEPS, fill_disk

AT_A_TIME = 3  # jobs; most of their time they wait
Pair = tuple[Ended, Ended]


@pytest.fixture(scope="module")
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Pair]]:
    """How the job of a fault ended, with declog and without; those that were asked for run side by side."""
    tests = [item for item in request.session.items if item.path == Path(__file__) and hasattr(item, "callspec")]
    chosen = [item.callspec.params["name"] for item in tests if "name" in item.callspec.params]
    folder = tmp_path_factory.mktemp("faults")
    pool = ThreadPoolExecutor(AT_A_TIME)
    long = ThreadPoolExecutor(len(FAULTS))  # they sleep
    try:
        logged: dict[str, Future[Ended]] = {}
        bare: dict[object, Future[Ended]] = {}
        for place, name in enumerate(dict.fromkeys(chosen)):
            fault, own = FAULTS[name], folder / str(place)
            waits = "tests.faults.sinks" in str(fault.profile)
            logged[name] = (long if waits else pool).submit(job, name, own / "log", "log")
            if training_of(fault) not in bare:
                bare[training_of(fault)] = pool.submit(job, name, own / "bare", "bare")
        yield lambda name: (logged[name].result(), bare[training_of(FAULTS[name])].result())
    finally:
        pool.shutdown(cancel_futures=True)
        long.shutdown(cancel_futures=True)


def job(name: str, folder: Path, how: str) -> Ended:
    """The job of a fault, with declog or without."""
    fault = FAULTS[name]
    whole = fault.unclosed or fault.at_the_end is not None or "Blocked" in str(fault.profile) or name == "none"
    return jobs.run(folder, fault.ranks, ["-m", "tests.faults.training", name, folder, how], whole=whole)


def training_of(fault: Fault) -> object:
    """What of a fault there is without declog: jobs that have it in common are the same job."""
    return fault.strike, fault.after, fault.on, fault.ranks, fault.together, fault.at_the_end


@pytest.mark.parametrize("name", FAULTS)
def test_training_is_as_without_declog_and_the_files_have_what_came(name: str, ended: Callable[[str], Pair]) -> None:
    """Exit codes and weights are those of the job without declog; rank 0's files are whole; what failed is reported."""
    compare(FAULTS[name], *ended(name))


def compare(fault: Fault, logged: Ended, bare: Ended) -> None:
    """All that is asked of a job with a fault."""
    shown = "\n".join(f"---- rank {rank}\n{text[-6000:]}" for rank, text in enumerate(logged.outputs))
    assert (logged.hung, bare.hung) == ((), ()), shown
    assert logged.codes == bare.codes, shown
    assert [weights(logged, rank) for rank in range(fault.ranks)] == [
        weights(bare, rank) for rank in range(fault.ranks)
    ]
    assert fault.shows in logged.outputs[0], shown
    assert fault.shows_elsewhere in logged.outputs[1], shown
    check_files(fault, logged.folder / "run", shown)


def weights(job: Ended, rank: int) -> str:
    """What a rank noted after each step."""
    return (job.folder / f"trained_{rank}.txt").read_text()


def check_files(fault: Fault, folder: Path, shown: str) -> None:
    """Each step once, with the values of all ranks, or marked as partial where that may be; in both formats."""
    lines = [json.loads(line) for line in (folder / "lines" / "scalars.jsonl").read_text().splitlines()]
    steps = list(range(fault.steps))
    found = [line["step"] for line in lines]
    assert steps == found[: fault.steps] and found[fault.steps :] in ([], fault.more), shown
    partial = {line["step"] for line in lines if "rows" in line.get("partial", ())}
    assert fault.partial & set(steps) <= partial <= fault.partial | fault.maybe | set(fault.more), shown
    for line in lines:
        check_values(fault, line, line["step"] in partial)
    files = pd.read_parquet(folder / "files" / "scalars").sort_values("step")
    assert files[files.name == "rows"]["step"].tolist() == found
    assert files[files.name == "reward"]["value"].tolist() == [line["scalars"]["reward"] for line in lines]
    table = pd.read_parquet(folder / "files" / "tables" / "t").sort_values("step")
    assert sorted(table["text"]) == sorted(text for line in lines for text in texts(fault, line))


def check_values(fault: Fault, line: dict[str, Any], partial: bool) -> None:
    """The sum of rewards says which ranks are in it: rank r gives 10 ** r * (step + 1) for each row."""
    there = ranks_of(line)
    assert line["scalars"]["rows"] == ROWS * len(there)
    assert line["scalars"]["kl"] == 1.0
    assert 0 in there or line["step"] in fault.more
    assert partial >= (len(there) < fault.ranks), line  # a rank that ended in the step had no more rows to send


def ranks_of(line: dict[str, Any]) -> list[int]:
    """The ranks that a line has values of."""
    digits = f"{line['scalars']['reward'] / (ROWS * (line['step'] + 1)):.0f}"[::-1]
    assert set(digits) <= {"0", "1"}, line
    return [rank for rank, digit in enumerate(digits) if digit == "1"]


def texts(fault: Fault, line: dict[str, Any]) -> list[str]:
    """The rows of the table that belong to a line."""
    return [f"{rank}.{line['step']}.{row}" for rank in ranks_of(line) for row in range(ROWS)]


@pytest.mark.parametrize("killed", ["a rank is killed", "rank 0 is killed"])
def test_torchrun_ends_a_job_as_without_declog(killed: str, tmp_path: Path) -> None:
    """Its agent stops the others with SIGTERM, whatever they are at: what was written before is whole."""
    codes = []
    for how in ("log", "bare"):
        (tmp_path / how).mkdir()
        command = [
            *forks.TORCHRUN, "--nproc-per-node=2", "--monitor-interval=0.1", f"--master-port={jobs.free_port()}",
            str(forks.ROOT / "tests" / "faults" / "training.py"), killed, str(tmp_path / how), how,
        ]  # fmt: skip
        done = forks.run(command, env=forks.environment(jobs.LOOPBACK), cwd=tmp_path / how)
        for rank in FAULTS[killed].on:  # the agent may meet the error of another one first
            trained = (tmp_path / how / f"trained_{rank}.txt").read_text().splitlines()
            assert len(trained) == AT, done.stderr[-4000:]
        codes.append(done.returncode)
    assert codes[0] == codes[1] != 0
    folder = tmp_path / "log" / "run"
    lines = [json.loads(line)["step"] for line in (folder / "lines" / "scalars.jsonl").read_text().splitlines()]
    files = sorted(set(pd.read_parquet(folder / "files" / "scalars")["step"]))
    for steps in (lines, files):
        assert steps in (list(range(AT)), list(range(AT + 1)))


def test_the_table_is_within_the_job() -> None:
    """Each fault strikes a rank that there is, in a step that there is."""
    assert all(set(fault.on) & set(range(fault.ranks)) for fault in FAULTS.values())
    assert 0 < AT < STEPS - 2
    assert fill_disk is FAULTS["the disk is full"].strike
