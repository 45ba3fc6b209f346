"""Saves the recorder's state beside a trainer's checkpoints, one file per rank. Imports accelerate and torch."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object

import declog
from declog.errors import UsageError

log = logging.getLogger("declog")


def save(recorder: declog.Recorder, args: Any, step: int, **counts: int) -> None:
    """Save the recorder's state and ``counts`` beside the checkpoint that a trainer with ``args`` saved at ``step``."""
    if args.save_only_model:
        return
    folder = Path(args.output_dir) / f"checkpoint-{step}"
    file, part = _file(folder, args), _file(folder, args, ".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({**counts, "recorder": recorder.state_dict(), "ranks": args.world_size}, part)
        os.replace(part, file)
    except OSError as error:
        log.warning("declog could not save its state, a run resumed from %s starts new windows: %s", folder, error)


def load(recorder: declog.Recorder, args: Any, checkpoint: Path) -> dict[str, Any] | None:
    """Load the state beside a checkpoint, on all ranks or on none; return it, or None after a warning."""
    state = None
    with recorder.guard("declog's state could not be read", "windows and totals start anew"):
        state = _read(_file(checkpoint, args), args)
    everywhere = all(gather_object([state is not None]))
    if state is None or not everywhere:
        log.warning("there is no state of declog of all ranks in %s: windows and totals start anew", checkpoint)
        return None
    try:
        recorder.load_state_dict(state["recorder"])
    except UsageError:  # the run has recorded something, such as an evaluation
        log.warning("the run has begun, so declog does not go on where %s was saved", checkpoint)
        return None
    return state


def _read(file: Path, args: Any) -> dict[str, Any] | None:
    """The state that this rank saved; None if it is incomplete, or of another number of ranks."""
    try:
        state: dict[str, Any] = torch.load(file, weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError):
        return None
    return state if state["ranks"] == args.world_size else None


def _file(folder: Path, args: Any, suffix: str = "") -> Path:
    return folder / f"declog-rank{args.process_index}.pt{suffix}"
