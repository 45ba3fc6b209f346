"""One rank of a job that starts declog in one of several ways, right or wrong; notes what it logged, or its error.

starting HOW FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

import declog
from declog.testing import MemorySink

PROFILE: dict[str, Any] = {
    "run": {"name": "starting"}, "axes": {"completion": {"ids": "row"}},
    "signals": {"any": {"x": {"axis": "completion"}, "row": {"axis": "completion", "type": "int"}}},
    "metrics": {"x": "sum(x)", "rows": "count(x)"},
}  # fmt: skip
WAIT_S = {"only rank 0": 2.0, "only rank 1": 2.0, "typing error": 5.0}  # where somebody waits for nothing
Options = dict[str, Any] | None  # of `declog.start`; None: this rank does not start


def only(one: int) -> Callable[[int, int], Options]:
    """Only one rank starts."""
    return lambda rank, ranks: {} if rank == one else None


def other_plan(rank: int, ranks: int) -> Options:
    """The last rank has one more metric."""
    return {"config": PROFILE | {"metrics": {**PROFILE["metrics"], "more": "max(x)"}}} if rank == ranks - 1 else {}


def typing_error(rank: int, ranks: int) -> Options:
    """The last rank's file has a mistake."""
    return {"config": PROFILE | {"metrics": {"x": "sum(y)"}}} if rank == ranks - 1 else {}


def no_folder(rank: int, ranks: int) -> Options:
    """Rank 0 cannot make its folder."""
    return {"output_dir": "/dev/null/no"}


def plain(rank: int, ranks: int) -> Options:
    """Every rank starts alike."""
    return {}


def data_parallel(rank: int, ranks: int) -> Options:
    """Two processes hold the same rows, as tensor-parallel ones do: the job's rank is not the rows'."""
    return {"rank": rank // 2, "world_size": ranks // 2}


def data_parallel_group(rank: int, ranks: int) -> Options:
    """The same, said by process groups: 0 and 2 have different rows, 1 and 3 those of 0 and 2."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    return {"process_group": groups[rank % 2]}


HOWS: Mapping[str, Callable[[int, int], Options]] = {
    "only rank 0": only(0), "only rank 1": only(1), "other plan": other_plan, "typing error": typing_error,
    "no folder": no_folder, "plain": plain, "twins": plain, "data parallel": data_parallel,
    "data parallel group": data_parallel_group,
}  # fmt: skip


def main(how: str, folder: str) -> None:
    """Start, and log two steps."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    options = HOWS[how](rank, ranks)
    result: dict[str, Any] = {}
    if options is not None:
        place = {"data parallel": rank // 2, "data parallel group": rank // 2, "twins": 0}.get(how, rank)
        sink = MemorySink()
        try:
            given = {
                "config": PROFILE,
                "output_dir": f"{folder}/run",
                "start_s": WAIT_S.get(how, 60.0),
                "sinks": [sink],
                **options,
            }
            with declog.start(given.pop("config"), **given) as log:
                for step in range(2):
                    with log.step(step):
                        log.observe(x=[10.0**place, 2 * 10.0**place], row=[2 * place, 2 * place + 1])
            result = {"scalars": sink.scalars}
        except declog.DeclogError as error:
            result = {"error": f"{type(error).__name__}: {error}"}
    Path(folder, f"result_{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
