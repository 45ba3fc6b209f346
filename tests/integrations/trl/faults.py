"""Faults in declog's part of each hook: at once or late, on one rank or on the other, and what training came to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import declog
from declog.integrations.trl.capture import Capture
from declog.integrations.trl.report import Report
from declog.integrations.trl.reward_logs import RewardLogs
from declog.integrations.trl.steps import Steps
from declog.runtime.recording.recorder import Recorder
from declog.runtime.recording.session import Session
from tests.integrations.trl import cases, tiny
from tests.integrations.trl.cases import Case


class Panic(BaseException):
    """No `Exception`, as of a library in another language."""


FAULTS: dict[str, tuple[type[Any], str]] = {
    "observe": (Recorder, "observe"), "step": (Recorder, "step"), "end": (Session, "end"),
    "mode": (Recorder, "mode"), "batch": (Recorder, "batch"), "log_extra": (Recorder, "log_extra"),
    "log_metric": (Recorder, "log_metrics"), "flush": (Recorder, "flush"), "state_dict": (Recorder, "state_dict"),
    "generation": (Capture, "_generation"), "conversations": (Capture, "_conversations"),
    "update": (Capture, "_update"), "times": (Capture, "_times"), "columns": (RewardLogs, "columns"),
    "caller": (RewardLogs, "caller"), "signals": (Report, "_signals"),
    "passed_on": (Report, "_passed_on"), "merged": (Report, "_merged"), "begin": (Steps, "begin"),
    "save": (Steps, "save"),
}  # fmt: skip
SHARED = [name for name, (owner, _) in FAULTS.items() if owner in (Recorder, Session, Steps)]  # in which ranks meet
CASE = Case(
    rewards="two",
    args={
        "max_steps": 2, "logging_steps": 1, "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "beta": 0.05,
        "max_completion_length": 5,
    },
)  # fmt: skip


@dataclass
class Outcome:
    """What a run left."""

    history: list[dict[str, Any]]
    weights: dict[str, torch.Tensor]
    failures: list[str] = field(default_factory=list)
    struck: int = 0


@contextmanager
def striking(name: str, *, late: bool, error: type[BaseException]) -> Iterator[list[int]]:
    """The method fails from now on, or from its second call on."""
    owner, method = FAULTS[name]
    original = getattr(owner, method)
    struck: list[int] = []
    calls = []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if late and len(calls) < 2:
            return original(*args, **kwargs)
        struck.append(1)
        raise error(f"{method} fails")

    setattr(owner, method, failing)
    try:
        yield struck
    finally:
        setattr(owner, method, original)


def outcome(
    model: Path, folder: Path, name: str | None, *, late: bool = False, error: type[BaseException] = Panic,
    rank: int | None = None,
) -> Outcome:  # fmt: skip
    """A run with a fault (None: without declog), on the rank that is to fail."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = cases.trainer_of(CASE, model, folder, data={"eval_dataset": tiny.prompts(ranks)})
    if name is None:
        trainer.train()
        return left(trainer)
    log = declog.attach(trainer, cases.composed("trl_grpo", "declog.sinks=[]"), wait_s=1.0, deliver_s=1.0)
    struck: list[int] = []
    try:
        if rank is None or trainer.args.process_index == rank:
            with striking(name, late=late, error=error) as struck:
                trainer.train()
        else:
            trainer.train()
    finally:
        log.close()
    found = left(trainer)
    found.failures, found.struck = list(log.failures), len(struck)
    return found


def left(trainer: Any) -> Outcome:
    """A trainer's history and weights."""
    weights = trainer.accelerator.unwrap_model(trainer.model).state_dict()
    return Outcome(trainer.state.log_history, {name: value.clone() for name, value in weights.items()})


def differences(one: Outcome, other: Outcome) -> list[str]:
    """In what two runs differ, times apart; numbers that declog replaces agree within 1e-6."""
    found = [name for name in one.weights if not torch.equal(one.weights[name], other.weights[name])]
    if len(one.history) != len(other.history):
        return [*found, f"{len(one.history)} and {len(other.history)} entries"]
    for mine, theirs in zip(one.history, other.history, strict=True):
        for key in sorted({*mine, *theirs}):
            if not any(part in key for part in ("time", "runtime", "per_second")) and not _equal(
                mine.get(key), theirs.get(key)
            ):
                found.append(f"{key} at {mine['step']}: {mine.get(key)} and {theirs.get(key)}")
    return found


def _equal(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return bool(abs(one - other) <= 1e-6 + 1e-6 * abs(one))
