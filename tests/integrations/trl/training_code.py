"""Runs whose training code observes signals of its own, right and wrong ones, and what they log beside the trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import declog
from declog.testing import MemorySink
from tests.integrations.trl import cases
from tests.integrations.trl.cases import Case

ONE, TWO = (
    Case(args={"max_steps": 2, "logging_steps": 1, "eval_steps": 1, "gradient_accumulation_steps": count})
    for count in (1, 2)
)
Give = Callable[[Sequence[str], Mapping[str, Any]], Any]  # what a reward function observes as `fmt`, of its arguments


def sizes(completions: Sequence[str], columns: Mapping[str, Any]) -> list[float]:
    return [float(len(text) % 3) for text in completions]


def one_by_one(completions: Sequence[str], columns: Mapping[str, Any]) -> Any:
    for size in sizes(completions, columns):
        declog.observe(fmt=[size])


def of_other_tokens(completions: Sequence[str], columns: Mapping[str, Any]) -> Any:
    return torch.ones(len(completions), 3)


def of_tokens(completions: Sequence[str], columns: Mapping[str, Any]) -> Any:
    return [[1.0 for _ in ids] for ids in columns["completion_ids"]]


def nothing(completions: Sequence[str], columns: Mapping[str, Any]) -> Any:
    return None


REWARDS: Mapping[str, tuple[str, Give, str]] = {  # a declaration of `fmt`, what is given, and what is reported
    "of any phase": ("any.fmt=completion", sizes, "in place of it: signals: {rollout: {fmt: completion}}"),
    "of the update": ("update.fmt=completion", sizes, "signals.rollout.fmt=completion"),
    "some of the rows": ("rollout.fmt=completion", one_by_one, "with a value for each of the "),
    "tokens of another shape": ("rollout.fmt=token", of_other_tokens, "fmt=[[... for token in ids] for ids in"),
    "required, and never given": ("rollout.fmt={axis: completion, required: true}", nothing, ""),
}
LOSSES = {"before": 3, "after": 3, "of the generation": 16}  # rows that a subclass observes around TRL's loss


def logged(
    case: Case, model: Path, folder: Path, declaration: str = "", give: Give = nothing, **options: Any
) -> tuple[list[tuple[int, str, dict[str, Any]]], list[str], list[float]]:
    """A run's log events without times, its failures, and its rewards' means in training."""
    means: list[float] = []

    def reward(completions: Sequence[str], **columns: Any) -> list[float]:
        if (given := give(completions, columns)) is not None:
            declog.observe(fmt=given)
        values = sizes(completions, columns)
        means.extend([sum(values) / len(values)] if trainer.model.training else [])
        return values

    trainer = cases.trainer_of(case, model, folder, rewards=[reward], **options)
    sink = MemorySink()
    overrides = [f"+declog.signals.{declaration}", "+declog.metrics.fmt='mean(fmt)'"] if declaration else []
    config = declog.compose("trl_grpo" if case.method == "grpo" else "trl_rloo", ["declog.sinks=[]", *overrides])
    with declog.attach(trainer, config, sinks=[sink]) as log:
        trainer.train()
    log.close()
    times = ("step_time", "_runtime", "_per_second", "declog/")
    events = [
        (step, mode, {name: value for name, value in values.items() if not any(part in name for part in times)})
        for step, mode, values in cases.events(sink)
    ]
    causes = [f"{error.message}\n{error.fix}" for error in log._failures._guarded.values()]
    return events, causes, means


def class_with(place: str, rows: int) -> type[Any]:
    """A trainer whose loss observes so many rows, before or after TRL's own."""
    from trl import GRPOTrainer

    class Mine(GRPOTrainer):  # type: ignore[misc]
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            if place != "after":
                declog.observe(fmt=torch.ones(rows))
            loss = super()._compute_loss(model, inputs)
            if place == "after":
                declog.observe(fmt=torch.ones(rows))
            return loss

    return Mine
