"""Run by torchrun on two ranks: the same rows as one process has, then what must fail on both ranks alike.

The first attempt fails on purpose, so that the second finds what the first left in torchrun's store. Every rank
writes what it saw to ``result_<rank>.json`` in the folder of the first argument.
"""

from __future__ import annotations

import json
import logging.handlers
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

import declog
from declog.testing import MemorySink
from tests.runtime.ranks import work

RANK = int(os.environ["RANK"])
FOLDER = Path(sys.argv[1])


def trained(config: Any, train: Any, **options: Any) -> dict[str, Any]:
    """What this rank's sink got: everything on rank 0, nothing elsewhere."""
    sink = MemorySink()
    train(declog.start(config, sinks=[sink], output_dir=FOLDER / "run", **options), [RANK])
    return work.found(sink)


def refused(config: Any, **options: Any) -> str:
    """The error that `start` raises."""
    try:
        declog.start(config, **{"sinks": [MemorySink()], "output_dir": FOLDER / "run", **options})
    except declog.DeclogError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def apart() -> list[dict[str, Any]]:
    """What this rank's file has of a table without a filter; only rank 0 learns where the run's folder is."""
    config = {
        "run": {"name": "apart"}, "signals": {"any": {"text": {"axis": "completion", "type": "text"}}},
        "schemas": {"s": {"text": {"type": "text"}}}, "tables": {"t": {"schema": "s"}},
        "sinks": ["lines"], "sink_options": {"lines": {"kind": "jsonl"}},
    }  # fmt: skip
    with declog.start(config, output_dir=None if RANK else FOLDER / "apart") as log, log.step(0):
        log.observe(text=[f"é {RANK}"])
    assert log.output_dir is not None
    file = log.output_dir / "lines" / (f"rank{RANK}" if RANK else "") / "tables" / "t.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def of_rank_0() -> list[str]:
    """The notes of a run in which only rank 0 observes rows, as under `if rank == 0` of a loop with a tracker."""
    handler = logging.handlers.BufferingHandler(100)
    logging.getLogger("declog").addHandler(handler)
    with declog.start(work.split_profile(), sinks=[MemorySink()], output_dir=FOLDER / "run") as log:
        for step in range(4):
            with log.step(step):
                if not RANK:
                    log.observe(reward=[1.0, 2.0])
    logging.getLogger("declog").removeHandler(handler)
    return [text for record in handler.buffer if (text := record.getMessage()).startswith("note: rank ")]


def main() -> None:
    """Everything in one launch: a process takes seconds to start."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        declog.start(work.split_profile(), sinks=[MemorySink()], output_dir=FOLDER / "run")
        os._exit(3)
    result: dict[str, Any] = {"before": trained(work.profile(), work.train)}
    dist.init_process_group("gloo")
    result["after"] = trained(work.profile(), work.train)
    result["group"] = trained(work.profile(), work.train, process_group=dist.group.WORLD)
    result["split"] = trained(work.split_profile(), work.train_split)
    result["apart"] = apart()
    result["of_rank_0"] = of_rank_0()
    mine = work.split_profile() | ({"metrics": {"rows": "count(reward)"}} if RANK else {})
    result["mismatch"] = refused(mine)
    result["sink"] = refused(
        work.split_profile() | {"sinks": ["bad"], "sink_options": {"bad": {"kind": "jsonl", "dir": "/dev/null/no"}}}
    )
    dist.barrier()
    result["again"] = trained(work.split_profile(), work.train_split)
    (FOLDER / f"result_{RANK}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
