"""A recorder's state for a checkpoint: where the run is, open windows, and what rank 0 holds. Plain and portable.

Rows are in the messages' own layout. Imports the message layout and torch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from declog.comm import Comm
from declog.errors import CommError, UsageError
from declog.frame import Frame
from declog.message import decode, encode
from declog.plan import Plan

log = logging.getLogger("declog")
VERSION = 2


@dataclass(frozen=True)
class RecorderState:
    """Where a rank is in its run."""

    step: int
    sent: dict[str, int]  # log events of each mode
    order: int
    counts: dict[str, int]
    seen: list[str]
    elapsed: float


def pack(
    plan: Plan, comm: Comm, mine: RecorderState, frames: Mapping[str, Frame], collected: Mapping[str, Any] | None,
    output_dir: Path | None, run_id: str,
) -> dict[str, Any]:  # fmt: skip
    """The state as numbers, texts and one uint8 tensor. Frames have names like ``window/train/rollout``."""
    data = encode(frames, {"recorder": asdict(mine), "collected": collected})
    return {
        "version": VERSION,
        "fingerprint": plan.fingerprint,
        "rank": comm.rank,
        "world_size": comm.world_size,
        "step": mine.step,
        "output_dir": None if output_dir is None else str(output_dir),
        "run_id": run_id,
        "data": torch.from_numpy(np.frombuffer(data, np.uint8).copy()),
    }


def unpack(
    plan: Plan, comm: Comm, state: Mapping[str, Any]
) -> tuple[RecorderState, dict[str, Frame], dict[str, Any] | None, bool]:
    """A rank's place in its run, frames by name, rank 0's data, and whether they are of the plan and ranks of now."""
    try:
        version, rank, data = state["version"], state["rank"], bytes(state["data"].cpu().numpy().tobytes())
        if version != VERSION:
            raise UsageError(
                "DL510", f"the state has version {version}, and this declog reads {VERSION}", "use the same declog"
            )
        frames, meta = decode(data, plan.grouping)
        mine = RecorderState(**meta["recorder"])
    except (KeyError, TypeError, AttributeError, CommError) as error:
        raise UsageError(
            "DL510", f"this is no state of a recorder: {error}", "pass what `state_dict` returned"
        ) from None
    if rank != comm.rank:
        raise UsageError(
            "DL510",
            f"rank {comm.rank} was given the state of rank {rank}",
            "every rank saves and loads a state of its own",
        )
    equal = state["fingerprint"] == plan.fingerprint and state["world_size"] == comm.world_size
    if not equal:
        why = (
            f"of {state['world_size']} ranks, and there are {comm.world_size}"
            if state["world_size"] != comm.world_size
            else "of another profile"
        )
        log.warning("the state is %s: totals are continued, the rows of windows that were open are dropped", why)
    return (
        mine,
        {name: replace(frame, event=name.rpartition("/")[2]) for name, frame in frames.items()},
        meta["collected"],
        equal,
    )
