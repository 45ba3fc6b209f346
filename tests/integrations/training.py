"""Trainers of transformers with ``declog.callback``; as a program, what they observed is left in the folder.

``python -m tests.integrations.training FOLDER`` trains a line, on as many ranks as there are; ``... FOLDER sft`` a tiny
language model by TRL's SFTTrainer, which reports to wandb and trackio as declog's sinks do.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import declog
from declog.testing import MemorySink

PROFILE = [
    "+declog.run.strict=true",
    "+declog.signals.any.error={axis: completion}", "+declog.metrics.worst='max(error)'",
    "+declog.signals.reported.grad_norm={axis: step}",
    "+declog.metrics.steepest='max(grad_norm)'",
]  # fmt: skip


class Line(torch.nn.Module):
    """A line whose errors are observed, in training and in evaluations; ``errors`` keeps those of each batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = torch.nn.Linear(2, 1)
        self.errors: dict[bool, list[list[float]]] = {True: [], False: []}

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        found = self.line(x)
        error = (found - labels).abs().detach().squeeze(-1)
        declog.observe(error=error)
        self.errors[self.training].append(error.tolist())
        return {"loss": ((found - labels) ** 2).mean(), "logits": found}


class Stop(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Stops training where somebody would have killed it, or interrupts it."""

    def __init__(self, step: int | None, *, raises: bool = False) -> None:
        self.step = step
        self.raises = raises

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= state.global_step == self.step
        if self.raises and state.global_step == self.step:
            raise KeyboardInterrupt


def line(
    folder: Path, sinks: list[MemorySink], overrides: list[str], until: int | None = None, parts: tuple[str, ...] = (),
    **options: Any,
) -> Any:  # fmt: skip
    """Two epochs of six steps, each of which is evaluated, on ``parts``: the trainer, and the callback.

    ``attached``: with ``declog.attach`` instead, and its recorder. ``added``: the callback is, behind the trainer.
    ``others`` are callbacks that get the trainer. ``before``: it is evaluated by hand before it trains.
    """
    data = [{"x": torch.tensor([place / 24, 1.0]), "labels": torch.tensor([place / 12])} for place in range(24)]
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "num_train_epochs": 2, "logging_steps": 2,
        "eval_strategy": "epoch", "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True,
        "learning_rate": 0.1, **options.pop("settings", {}),
    }  # fmt: skip
    attached, added, before = (options.pop(name, False) for name in ("attached", "added", "before"))
    callbacks = options.pop("others", [])
    log = None if attached else declog.callback("trainer", [*PROFILE, *overrides], sinks=sinks)
    stop = Stop(until, raises=options.pop("raises", False))
    trainer = Trainer(
        Line(), TrainingArguments(str(folder), **settings), train_dataset=data,
        eval_dataset=dict.fromkeys(parts, data[:12]) if parts else data[:12],
        callbacks=[*([] if attached or added else [log]), stop, *callbacks],
    )  # fmt: skip
    for callback in callbacks:
        callback.trainer = trainer
    if added:
        trainer.add_callback(log)
    if attached:
        log = declog.attach(trainer, "trainer", [*PROFILE, *overrides], sinks=sinks)
    if before:
        trainer.evaluate()
    with suppress(KeyboardInterrupt):
        trainer.train(**options)
    stop.step = None
    return trainer, log


def main(folder: Path) -> None:
    """The line on this rank."""
    rank = int(os.environ["RANK"])
    sink = MemorySink()
    trainer, callback = line(folder / "out", [sink] if rank == 0 else [], ["declog.sinks=[]"])
    callback.close()
    events = [(step, each.mode, {item.name: item.value for item in each.scalars}) for step, each in sink.events]
    model = trainer.accelerator.unwrap_model(trainer.model)
    kept = {"train": model.errors[True], "eval": model.errors[False], "events": events}
    (folder / f"kept{rank}.json").write_text(json.dumps(kept))
    assert callback.recorder.failures == {}


def sft(folder: Path) -> None:
    """SFT of a tiny model, evaluated before it begins."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from tests.integrations.trl import tiny

    class Observing(SFTTrainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            declog.observe(tokens=(inputs["labels"] != -100).sum(1))
            return super().compute_loss(model, inputs, *args, **kwargs)

    data = Dataset.from_dict({"text": [f"say {n} now and then" for n in range(16)]})
    arguments = SFTConfig(
        str(folder / "out"), per_device_train_batch_size=4, num_train_epochs=2, logging_steps=2, eval_strategy="epoch",
        save_strategy="no", report_to=["wandb", "trackio"], use_cpu=True, bf16=False, disable_tqdm=True, max_length=32,
        project="mine",
    )  # fmt: skip
    overrides = ["declog.sinks=[jsonl,wandb,trackio]", "+declog.signals.any.tokens=completion int"]
    overrides += ["+declog.metrics.tokens={expr: tokens, reduce: sum}"]
    overrides += ["+declog.tables.longest={columns: [tokens], filter: {key: tokens, top: 2}}"]
    callback = declog.callback("trainer", overrides)
    trainer = Observing(
        str(tiny.build(folder / "model")), args=arguments, train_dataset=data, eval_dataset=data, callbacks=[callback]
    )
    trainer.evaluate()
    trainer.train()
    callback.close()
    assert callback.recorder.failures == {}
    (folder / "history.json").write_text(json.dumps(trainer.state.log_history))


if __name__ == "__main__":
    torch.set_num_threads(1)
    (sft if sys.argv[2:] else main)(Path(sys.argv[1]))
