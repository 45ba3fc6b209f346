"""A recorder's state for a checkpoint: its position in the run, its open windows, and rank 0's totals.

The state has plain, portable values. Its rows are encoded like messages between ranks.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from declog.engine.frame import Frame
from declog.errors import CommError, UsageError, elsewhere
from declog.plans.needs import judged
from declog.plans.ops import Plan
from declog.records import ResumePoint
from declog.runtime.ranks.comm import Comm
from declog.runtime.ranks.message import decode, encode
from declog.runtime.run.manifest import version_of

log = logging.getLogger("declog")
# the formats that can be read; format 4 also has the windows that it fits, and the version of declog that saved it
FORMATS = (3, 4)
# the fields that count by mode, with the counted things in words
_BY_MODE = {"counts": "steps", "sent": "log events"}


@dataclass(frozen=True)
class RecorderState:
    """The position of a rank in its run."""

    step: int  # the last step of any mode
    sent: dict[str, int]  # the number of log events of each mode
    order: int  # the number of batches that were opened
    counts: dict[str, int]  # the number of steps of each mode
    seen: list[str]  # the phases whose first batch has closed
    elapsed: float  # the seconds since the start of the run
    train: int | None = None  # the last optimizer step
    edge: int | None = None  # the watermark: the step up to which everything is logged. States have it under this name
    spent: float = 0.0  # the seconds of the steps since then


def pack(
    plan: Plan, comm: Comm, progress: RecorderState, frames: Mapping[str, Frame], collected: Mapping[str, Any] | None,
    output_dir: Path | None, run_id: str,
) -> dict[str, Any]:  # fmt: skip
    """Return the state as numbers, texts and one uint8 tensor. Frames have names like ``window/train/rollout``."""
    data = encode(frames, {"recorder": asdict(progress), "collected": collected})
    return {
        "version": FORMATS[-1],
        "declog": version_of("declog") or "0",
        "fingerprint": plan.fingerprint,
        "windows": plan.windows,
        "rank": comm.rank,
        "world_size": comm.world_size,
        "step": progress.step,
        "output_dir": None if output_dir is None else str(output_dir),
        "run_id": run_id,
        "data": torch.from_numpy(np.frombuffer(data, np.uint8).copy()),
    }


def position(plan: Plan, state: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Return the position of a state in its run as JSON values, for a comparison with other ranks."""
    progress, frames, _ = _read(plan, state, rank)
    run = {key: state[key] for key in ("run_id", "world_size", "fingerprint")}
    windows, rows = state.get("windows"), Counter(_with_rows(frames))
    return {**run, "windows": windows, **asdict(replace(progress, order=0)), "open": rows}


def _with_rows(frames: Mapping[str, Frame]) -> list[str]:
    """The mode of each frame that is of an open window and has rows."""
    return [name.split("/")[1] for name, frame in frames.items() if name.startswith("window/") and len(frame.batches)]


def mismatch(places: Sequence[Mapping[str, Any] | None], world_size: int, *, alone: bool = False) -> UsageError | None:
    """Return the error if the states of all ranks do not fit together, else None; the same on every rank.

    ``places`` has the ``position`` of each rank's state. ``alone``: only this rank's position is known.
    """
    present = {rank: facts for rank, facts in enumerate(places) if facts is not None}
    for rank, facts in present.items():
        if "error" in facts:
            return UsageError.of("DL510.resume", rank=rank, error=facts["error"])
    if not present:
        return None
    first = next(iter(present.values()))
    before, fix = first["world_size"], "pass the states of one checkpoint: each rank its own"
    if alone:
        same = before == world_size
        return None if same else UsageError.of("DL510.actors", before=before, world_size=world_size)
    for word, by_rank in _compared(present).items():
        if any(value != by_rank[0][1] for _, value in by_rank):
            shown = ", ".join(f"{value} on rank {rank}" for rank, value in by_rank[:4])
            return UsageError.of("DL510.checkpoints", word=word, shown=shown, fix=fix)
    missing = sorted(set(range(min(before, world_size))) - set(present))
    if missing:
        return UsageError.of("DL510.no_state", before=before, missing=missing, fix=fix)
    if world_size < before and any(facts["open"] for facts in present.values()):
        return UsageError.of("DL510.inside_window", before=before, now=world_size)
    return None


def _compared(present: Mapping[int, Mapping[str, Any]]) -> dict[str, list[tuple[int, Any]]]:
    """The values that must be equal in the states of one checkpoint, by their name in an error, with each value's rank.

    A rank without files does not know the run's id, and a rank counts only the modes that it entered.
    """
    words = ("run_id", "world_size", "fingerprint", "step")
    values = {word: [(rank, facts[word]) for rank, facts in present.items() if facts[word] != ""] for word in words}
    for key, what in _BY_MODE.items():
        for mode in sorted({mode for facts in present.values() for mode in facts[key]}):
            counts = [(rank, facts[key][mode]) for rank, facts in present.items() if mode in facts[key]]
            values[f"number of {what} of mode `{mode}`"] = counts
    return {word: by_rank for word, by_rank in values.items() if by_rank}


def of_all(places: Sequence[Mapping[str, Any] | None]) -> dict[str, dict[str, int]]:
    """Return the counts by mode of all ranks, so that a rank that enters a mode later continues the others' counts.

    ``open`` has the modes in which any rank has rows of an open window: all ranks must end that window.
    """
    counts: dict[str, dict[str, int]] = {key: {} for key in (*_BY_MODE, "open")}
    for facts in places:
        for key, by_mode in counts.items():
            by_mode.update({} if facts is None else facts[key])
    return counts


def joined(plan: Plan, comm: Comm, first: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a rank that is new in the run: by rank 0's position it begins where the others continue."""
    progress = RecorderState(**{item.name: first[item.name] for item in fields(RecorderState)})
    sent, counts = (
        {mode: count for mode, count in first[key].items() if mode == "train"} for key in ("sent", "counts")
    )
    progress = replace(progress, sent=sent, counts=counts)
    state = pack(plan, comm, progress, {}, None, None, first["run_id"])
    return {**state, "fingerprint": first["fingerprint"], "windows": first["windows"]}


def unpack(
    plan: Plan, comm: Comm, state: Mapping[str, Any]
) -> tuple[RecorderState, dict[str, Frame], dict[str, Any] | None, bool]:
    """Return a rank's position, its frames by name, rank 0's data, and whether its windows continue under this plan.

    Raises ``UsageError`` if windows are open and the run continues with fewer ranks.
    """
    progress, frames, collected = _read(plan, state, comm.rank)
    windows = state.get("windows")  # None in format 3
    equal = windows == plan.windows if windows is not None else state["fingerprint"] == plan.fingerprint
    if not equal:
        log.warning(
            "the state is of another config: totals are continued, the rows of windows that were open are dropped"
        )
    elif comm.world_size < state["world_size"] and any(name.startswith("window/") for name in frames):
        raise UsageError.of("DL510.inside_window", before=state["world_size"], now=comm.world_size)
    return progress, frames, collected, equal


def resume_point(
    plan: Plan, progress: RecorderState, frames: Mapping[str, Frame], held: Mapping[str, Collection[int]]
) -> ResumePoint:
    """Return the step after which a run continues on this rank, and the config's keys with open windows, by mode.

    ``held`` has, by mode, the periods of windows for which rank 0 holds log events. If this rank has rows of an open
    window (``frames``), or optimizer steps that are not logged, windows of every period are open.
    """
    unsent = set(_with_rows(frames))
    if progress.train is not None and (progress.edge is None or progress.edge < progress.train):
        unsent.add("train")
    periods = {mode: set(plan.periods) if mode in unsent else set(held.get(mode, ())) for mode in plan.modes}
    return ResumePoint(progress.step, {mode: _keys(plan, opened) for mode, opened in periods.items() if opened})


def _keys(plan: Plan, periods: Collection[int]) -> frozenset[str]:
    """The keys of the config whose windows have one of these periods."""
    outputs = {f"metrics.{op.key}" for op in plan.outputs if op.every in periods}
    tables = {f"tables.{op.id}" for op in plan.tables if op.every in periods}
    return frozenset(outputs | tables | {f"alerts.{op.id}" for op in plan.alerts if judged(plan, op).issubset(periods)})


_MODES = elsewhere.words("resumes")  # other loggers' values of `resume`


def _read(
    plan: Plan, state: Mapping[str, Any], rank: int
) -> tuple[RecorderState, dict[str, Frame], dict[str, Any] | None]:
    """Return the content of a state; raises ``UsageError`` for anything else, and for another rank's state."""
    if isinstance(state, bool) or (isinstance(state, str) and state.lower() in _MODES and not os.path.exists(state)):
        raise UsageError.of("DL510.state_mode", came=state)
    if isinstance(state, str | os.PathLike):
        if os.path.isfile(state):
            raise UsageError.of("DL510.state_file", path=os.fspath(state))
        raise UsageError.of("DL510.state_folder", path=os.fspath(state))
    if not isinstance(state, Mapping):
        raise UsageError.of("DL510.state", came=state)
    try:
        version, of, data = state["version"], state["rank"], bytes(state["data"].cpu().numpy().tobytes())
        if version not in FORMATS:
            by = state.get("declog", "another version")
            raise UsageError.of("DL510.version", version=version, known=" to ".join(map(str, FORMATS)), by=by)
        read, meta = decode(data, plan.grouping)
        progress, collected = RecorderState(**meta["recorder"]), meta["collected"]
    except (KeyError, TypeError, AttributeError, CommError) as error:
        raise UsageError.of("DL510.state_of", error=error) from None
    if of != rank:
        raise UsageError.of("DL510.other_state", rank=rank, of=of)
    frames = {name: replace(frame, phase=name.rpartition("/")[2]) for name, frame in read.items()}
    return progress, frames, collected
