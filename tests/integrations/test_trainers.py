"""``declog.callback`` in trainers of transformers: what they report and what the loop observes, by log and by epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import declog
from declog.testing import MemorySink

pytestmark = [pytest.mark.slow, *(pytest.mark.filterwarnings(f"ignore::{each}Warning") for each in ("Future", "User"))]
PROFILE = [
    "declog/sinks=[]", "+declog.strict=true",
    "+declog.signals.error={axis: completion, optional: true}", "+declog.metrics.worst='max(error)'",
    "+declog.signals.grad_norm={axis: step, phase: reported, optional: true}",
    "+declog.metrics.steepest='max(grad_norm)'",
]  # fmt: skip


def trained(folder: Path, sink: MemorySink, *overrides: str, **options: Any) -> tuple[Any, list[list[float]]]:
    """Two epochs of six steps of a line, whose loss observes its errors: the trainer, and the errors of each step."""
    import torch
    from transformers import Trainer, TrainingArguments

    errors: list[list[float]] = []

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(2, 1)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            found = self.line(x)
            if self.training:
                error = (found - labels).abs().detach().squeeze(-1)
                declog.observe(error=error)
                errors.append(error.tolist())
            return {"loss": ((found - labels) ** 2).mean(), "logits": found}

    data = [{"x": torch.tensor([place / 24, 1.0]), "labels": torch.tensor([place / 12])} for place in range(24)]
    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=4, num_train_epochs=2, logging_steps=2, eval_strategy="epoch",
        report_to="none", use_cpu=True, disable_tqdm=True, learning_rate=0.1,
    )  # fmt: skip
    callback = declog.callback("trainer", [*PROFILE, *overrides], sinks=[sink])
    trainer = Trainer(Line(), arguments, train_dataset=data, eval_dataset=data, callbacks=[callback], **options)
    trainer.train()
    callback.close()
    callback.close()
    assert callback.recorder.closed and callback.recorder.failures == {}
    return trainer, errors


def events(sink: MemorySink) -> list[tuple[int, str, dict[str, Any]]]:
    return [(step, each.mode, {item.name: item.value for item in each.scalars}) for step, each in sink.events]


def test_each_log_of_the_trainer(tmp_path: Path) -> None:
    """What the history has is in the log events, beside exact values of what the loop observed in the window."""
    sink = MemorySink()
    trainer, errors = trained(tmp_path, sink)
    found = events(sink)
    history = trainer.state.log_history
    assert [(step, mode) for step, mode, _ in found] == [
        (entry["step"], "eval" if "eval_loss" in entry else "train") for entry in history
    ]
    for (_, mode, values), entry in zip(found, history, strict=True):
        left_out = {"step", "grad_norm", *(["epoch"] if mode == "eval" else [])}
        assert {name: value for name, value in entry.items() if name not in left_out}.items() <= values.items()
    logged = [(values["worst"], values["steepest"]) for _, _, values in found if "worst" in values]
    worst = [max(map(max, errors[place : place + 2])) for place in range(0, 12, 2)]
    assert logged == [
        (pytest.approx(most), entry["grad_norm"])
        for most, entry in zip(worst, [e for e in history if "loss" in e], strict=True)
    ]


def test_each_epoch(tmp_path: Path) -> None:
    """`every: epoch`: one log event for each, of all its steps; the evaluation's is its own."""
    sink = MemorySink()
    trainer, errors = trained(tmp_path, sink, "declog.every=epoch")
    found = [event for event in events(sink) if "worst" in event[2]]
    assert [event[:2] for event in events(sink)] == [
        (6, "train"),
        (6, "eval"),
        (12, "train"),
        (12, "eval"),
        (12, "train"),
    ]
    assert [values["worst"] for _, _, values in found] == [
        pytest.approx(max(map(max, errors[place : place + 6]))) for place in (0, 6)
    ]
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert [values["steepest"] for _, _, values in found] == [max(norms[:3]), max(norms[3:])]


def test_a_profile_that_is_wrong_is_an_error_before_training() -> None:
    """Where the callback is made."""
    with pytest.raises(declog.ConfigError, match="unknown signal `nothing`"):
        declog.callback("trainer", ["+declog.metrics.mine='mean(nothing)'"])
