"""One rank of a training job that all-reduces all the time, struck by one fault: with declog, or without.

    training NAME FOLDER log|bare

Notes its weights after each step in ``trained_<rank>.txt``: declog may not change them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import declog
from declog.language import functions, reductions
from declog.runtime.recording.recorder import Recorder
from tests import forks
from tests.faults import strikes
from tests.faults.cases import FAULTS, Fault
from tests.faults.strikes import AT, ROWS, STEPS, Garbling, Run

WIDTH = 7  # tokens of a completion
REDUCTIONS = reductions.Reductions(reductions.BUILTIN)
FUNCTIONS = functions.Functions(functions.BUILTIN)
PROFILE: Mapping[str, Any] = {
    "run": {"name": "faults"}, "axes": {"token": {"mask": "all"}},
    "signals": {
        "any": {
            "reward": {"axis": "completion"}, "kl": {"axis": "token"}, "text": {"axis": "completion", "type": "text"},
        },
    },
    "metrics": {"reward": "sum(reward)", "rows": "count(reward)", "kl": "mean(kl)"},
    "schemas": {"s": {"step": {"type": "int", "expr": "step"}, "text": {"type": "text"}}},
    "filters": {"all": {"first": 1000000}}, "tables": {"t": {"schema": "s", "filter": "all"}},
    "sinks": ["lines", "files"], "sink_options": {"lines": {"kind": "jsonl"}, "files": {"kind": "parquet"}},
}  # fmt: skip


@reductions.reducer(registry=REDUCTIONS)
def broken(values: Any) -> float:
    """A user's reduction with a bug: it runs on rank 0's worker."""
    raise ZeroDivisionError("mine")


@functions.function(registry=FUNCTIONS)
def crash(x: torch.Tensor) -> torch.Tensor:
    """A user's function of tokens with a bug, on one rank only: it runs on the training thread."""
    if os.environ.get("RANK") == "1" and x.numel() == ROWS * WIDTH:
        raise IndexError("mine")
    return x


def rows(rank: int, step: int) -> dict[str, Any]:
    """What a rank observes in a step."""
    return {
        "reward": torch.full((ROWS,), float(10**rank * (step + 1))), "kl": torch.ones(ROWS, WIDTH),
        "text": [f"{rank}.{step}.{row}" for row in range(ROWS)],
    }  # fmt: skip


def start(fault: Fault, rank: int, ranks: int, folder: Path) -> Recorder:
    """The recorder of this rank."""
    profile = {**PROFILE, **fault.profile}
    for part in ("sink_options", "metrics"):
        profile[part] = {**PROFILE[part], **fault.profile.get(part, {})}
    profile["sinks"] = [*PROFILE["sinks"], *fault.profile.get("sinks", ())]
    options = dict(fault.start)
    if fault.garble is not None:
        store = dist.distributed_c10d._get_default_store()  # there is no public name
        options["comm"] = comm = Garbling.connect(rank, ranks, store, 30.0, "garbling")
        assert isinstance(comm, Garbling)
        comm.garble = fault.garble
    log = declog.start(profile, output_dir=folder / "run", functions=FUNCTIONS, reductions=REDUCTIONS, **options)
    log._background.close_s = log._background.backlog._patience_s = fault.close_s
    return log


def train(weights: torch.Tensor, rank: int, step: int, *, together: bool) -> torch.Tensor:
    """An optimizer step: ten layers' gradients, each all-reduced."""
    for layer in range(10):
        gradient = torch.sin(weights * (layer + 1) + rank + step)
        if together:
            dist.all_reduce(gradient)
        weights = weights - 0.01 * gradient
    return weights


def main(name: str, folder: str, how: str) -> None:
    """All steps, the fault in the middle."""
    fault, rank, ranks = FAULTS[name], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=forks.PATIENCE_S))
    log = start(fault, rank, ranks, Path(folder)) if how == "log" and rank in fault.starts else None
    run = Run(rank, ranks, Path(folder), log)
    weights = torch.linspace(0, 1, 1000, dtype=torch.float64)
    trained = os.open(f"trained_{rank}.txt", os.O_CREAT | os.O_WRONLY)
    with nullcontext() if log is None or fault.unclosed else log:
        for step in range(STEPS):
            with nullcontext() if log is None else log.step(step):
                if log is not None:
                    log.observe(**rows(rank, step))
                if step == AT and not fault.together:
                    Path(f"pid_{rank}").write_text(str(os.getpid()))
                    dist.barrier()  # all have come this far
                if step == AT and rank in fault.on:
                    fault.strike(run)
                elif step == AT and not fault.together:
                    ended(fault)
                weights = train(weights, rank, step, together=fault.together)
                if step == AT and rank in fault.on:
                    fault.after(run)
            note(trained, f"{step} {float(weights.sum())!r}")
            if step == STEPS - 2 and fault.after is not strikes.none:
                time.sleep(0.5)  # what came late is there when the last step begins
        group = dist.group.WORLD
        assert group is not None
        if fault.at_the_end is not None:
            fault.at_the_end(run)
    # what declog may not do at all: a collective of its own, or a group of its own
    note(trained, f"{made(group)} collectives in {groups()} groups")
    print(f"rank {rank} trained {STEPS} steps", flush=True)


def ended(fault: Fault) -> None:
    """Wait until those that are struck have ended, whoever ends by it; a moment, where nobody does."""
    if fault.strike is strikes.none:
        return time.sleep(1.0)
    for rank in fault.on:
        with suppress(ProcessLookupError):
            while True:
                os.kill(int(Path(f"pid_{rank}").read_text()), 0)
                time.sleep(0.02)


def made(group: Any) -> int:
    """How many collectives the group has made."""
    return int(group._get_sequence_number_for_group())


def groups() -> int:
    """How many process groups were ever made."""
    return int(dist.distributed_c10d._world.group_count)


def note(file: int, line: str) -> None:
    """What training itself made of a step; on a full disk nobody can say."""
    with suppress(OSError):
        os.write(file, f"{line}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
