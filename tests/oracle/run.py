"""Runs declog on a case: what it logged, through the public API only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import declog
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.oracle.cases import Block, Case

TORCH = {
    "float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64,
    "bool": torch.bool, "uint8 of bool": torch.uint8,
}  # fmt: skip


def observed(case: Case, name: str, value: Any, turn: int) -> Any:
    """A value as a training loop gives it: a list, a tensor, now and then an array."""
    declared, dtype = case.trees["signals"][name], case.dtypes[name]
    if declared.get("family"):
        return {member: as_given(item, dtype, turn) for member, item in value.items()}
    if declared["axis"] == "token":
        rows, width = value, max(map(len, value), default=0)
        if case.packed:
            return torch.tensor([item for row in rows for item in row], dtype=TORCH[dtype])
        return torch.tensor(rows, dtype=TORCH[dtype]).reshape(len(rows), width)
    return as_given(value, dtype, turn)


def as_given(value: Any, dtype: str, turn: int) -> Any:
    """A list or a number as its dtype says."""
    if dtype in ("list", "scalar"):
        return value
    made = torch.tensor(value, dtype=TORCH[dtype])
    return made.numpy() if turn % 3 == 0 and dtype != "bfloat16" else made


def logged(case: Case, folder: Path) -> MemorySink:
    """What rank 0 logs, resumed where the case says so."""
    sink, states, cut = MemorySink(), [None] * case.ranks, case.cut
    if cut is not None:
        states = run_blocks(case, case.blocks[:cut], folder, sink, states, left=True)
    run_blocks(case, case.blocks[cut:], folder, sink, states)
    return sink


def run_blocks(
    case: Case, blocks: Sequence[Block], folder: Path, sink: MemorySink, states: list[Any], *, left: bool = False
) -> list[Any]:
    """Some blocks of a run; the ranks' states where it is ``left``: what it logs after that does not count."""
    seen: list[Any] = []
    stays = all(spec.get("required") for signals in case.profile["signals"].values() for spec in signals.values())

    def rank(comm: FakeComm) -> Any:
        sinks = [] if comm.rank else [sink]
        profile = {**case.profile, "run": {"strict": stays, **case.profile.get("run", {})}}
        state = None
        with declog.start(profile, sinks=sinks, comm=comm, output_dir=folder, resume=states[comm.rank]) as log:
            for block in blocks:
                with log.step(block.number) if block.mode == "train" else log.mode(block.mode):
                    for event in case.trees["events"]:
                        for turn, batch in enumerate(block.events.get(event, [[]] * case.ranks)[comm.rank]):
                            log.observe(**{name: observed(case, name, value, turn) for name, value in batch.items()})
            if left:
                state = log.state_dict()
                seen.extend([] if comm.rank else sink.events)
        assert "DL605" not in log.failures, "a metric could not be evaluated"
        return state

    found: list[Any] = run_ranks(case.ranks, rank)
    if left:
        sink.events[:] = seen
    return found


def as_number(value: Any) -> Any:
    """A logged value as plain Python."""
    return value.item() if isinstance(value, np.generic) else value
