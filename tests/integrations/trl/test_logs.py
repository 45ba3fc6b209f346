"""Whatever is in a trainer's `logs` is in declog's sinks: who added it, and when, does not matter."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.testing import MemorySink
from tests.integrations.trl import cases
from tests.integrations.trl.cases import STRICT, Case
from tests.integrations.trl.jobs import two_ranks

SMALL = {"max_completion_length": 5, "gradient_accumulation_steps": 2}


def missing(entries: Sequence[Mapping[str, Any]], sink: MemorySink) -> list[tuple[Any, ...]]:
    """Numbers of a trainer's logs that no log event of their step and mode has."""
    logged: dict[tuple[int, str, str], list[float]] = {}
    for step, each in sink.events:
        for item in each.scalars:
            logged.setdefault((step, each.mode, item.name), []).append(item.value)
    found = []
    for entry in entries:
        mode = "eval" if any(name.startswith("eval_") for name in entry) else "train"
        left_out = {"step", "epoch"} if mode == "eval" else {"step"}
        for name, value in entry.items():
            if name in left_out or value is None or value != value:
                continue
            others = logged.get((entry["step"], mode, name), [])
            if not any(other == pytest.approx(np.asarray(value).item(), rel=1e-6, abs=1e-6) for other in others):
                found.append((entry["step"], mode, name, value, others))
    return found


def adding(name: str, value: float, *, main: bool = False) -> Any:
    """A callback that adds a number to `logs`."""
    from transformers import TrainerCallback

    class Adding(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
            if state.is_world_process_zero or not main:
                logs[f"eval_{name}" if "eval_loss" in logs else name] = value + state.global_step

    return Adding()


def keeping(kept: list[dict[str, Any]]) -> Any:
    """A callback that keeps what it is told, as a tracker does."""
    from transformers import TrainerCallback

    class Keeping(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
            kept.append({**logs, "step": state.global_step})

    return Keeping()


def copying(base: type[Any]) -> type[Any]:
    """A subclass whose `log` hands on another mapping, with a tensor of its own."""

    class Copying(base):  # type: ignore[misc]
        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            before = "eval_" if "eval_loss" in logs else ""
            hours = torch.tensor(1.5 + self.state.global_step)
            super().log({**logs, f"{before}gpu_hours": hours}, *args, **kwargs)

    return Copying


def changing(base: type[Any]) -> type[Any]:
    """A subclass whose `log` puts an array of one number into the mapping itself."""

    class Changing(base):  # type: ignore[misc]
        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            hours = np.array([1.5 + self.state.global_step])
            logs["eval_gpu_hours" if "eval_loss" in logs else "gpu_hours"] = hours  # type: ignore[assignment]
            super().log(logs, *args, **kwargs)

    return Changing


@pytest.mark.parametrize(
    ("method", "how", "merge"), [("grpo", copying, "replace"), ("grpo", changing, None), ("rloo", copying, "prefix")]
)
def test_numbers_that_somebody_adds(method: str, how: Any, merge: str | None, model: Path, tmp_path: Path) -> None:
    """transformers, a subclass, a callback before declog's or behind it, as floats, tensors and arrays."""
    import trl

    base = trl.GRPOTrainer if method == "grpo" else trl.RLOOTrainer
    kept: list[dict[str, Any]] = []
    case = Case(method, args={**SMALL, "max_steps": 3, "include_num_input_tokens_seen": "all", "save_strategy": "no"})
    trainer = cases.trainer_of(case, model, tmp_path, cls=how(base), callbacks=[adding("behind", 3.0)])
    sink = MemorySink()
    with declog.attach(trainer, None, STRICT, sinks=[sink], merge=merge) as log:
        trainer.callback_handler.callbacks.insert(0, adding("before", 2.0))
        trainer.add_callback(keeping(kept))
        trainer.train()
    assert [(entry["step"], "eval_loss" in entry) for entry in kept] == [(2, False), (2, True), (3, True), (3, False)]
    for name in ("num_input_tokens_seen", "gpu_hours", "before", "behind", "train_runtime"):
        assert sum(key in (name, f"eval_{name}") for entry in kept for key in entry) >= 1 + 2 * (
            name != "train_runtime"
        )
    own = [{name: value for name, value in entry.items() if "declog/" not in name} for entry in kept]
    assert (missing(own, sink), missing(trainer.state.log_history if merge is None else [], sink)) == ([], [])
    assert log.failures == {}


def test_numbers_that_somebody_adds_to_any_trainer(model: Path, tmp_path: Path) -> None:
    """One that is not seen, attached and by a callback: the same."""
    from trl import SFTConfig, SFTTrainer

    from tests.integrations.trl import tiny

    data = tiny.prompts().rename_column("prompt", "text").remove_columns("source")
    sinks, kept = [MemorySink(), MemorySink()], list[dict[str, Any]]()
    callback = declog.callback("trainer", STRICT, sinks=sinks[1:], output_dir=tmp_path / "callback")
    args = SFTConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=4, max_steps=3, logging_steps=2, report_to="none",
        use_cpu=True, bf16=False, disable_tqdm=True, max_length=16, eval_strategy="steps", eval_steps=2,
        include_num_input_tokens_seen="all", save_strategy="no",
    )  # fmt: skip
    trainer = copying(SFTTrainer)(
        str(model), args=args, train_dataset=data, eval_dataset=data, callbacks=[adding("before", 1.0), callback]
    )
    with declog.attach(trainer, None, STRICT, sinks=sinks[:1]):
        trainer.add_callback(keeping(kept))
        trainer.train()
    callback.close()
    assert [missing(kept, sink) for sink in sinks] == [[], []]
    assert sum("gpu_hours" in entry and "before" in entry for entry in kept) == 2


def talking(base: type[Any]) -> type[Any]:
    """A subclass that logs in the middle of a step, as many do, and of an evaluation."""

    class Talking(base):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            if self.state.is_world_process_zero:
                self.log({"aux" if self.model.training else "eval_aux": 1.0 + self.state.global_step})
            return loss

    return Talking


@pytest.mark.parametrize("method", ["grpo", "rloo"])
def test_what_training_code_logs_in_the_middle(
    method: str, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the sinks at the trainer's step, and declog's windows are those of a run without it."""
    import trl

    base = trl.GRPOTrainer if method == "grpo" else trl.RLOOTrainer
    case = Case(method, args={**SMALL, "max_steps": 3, "logging_steps": 2, "eval_steps": 2, "beta": 0.05})
    caplog.set_level(logging.WARNING, "declog")
    plain = cases.run(case, model, tmp_path / "plain")
    trainer = cases.trainer_of(case, model, tmp_path / "talking", cls=talking(base))
    sink, callback = MemorySink(), between()
    callback.trainer = trainer
    trainer.add_callback(callback)
    with declog.attach(trainer, None, STRICT, sinks=[sink], merge=None) as log:
        trainer.train()
    aside = [entry for entry in trainer.state.log_history if {"aux", "between", "eval_aux"} & entry.keys()]
    steps = [entry["step"] for entry in aside if "eval_aux" not in entry]
    assert (steps, len(aside) > len(steps), missing(aside, sink)) == ([0, 0, 1, 1, 1, 2, 2, 3], True, [])
    found = {(step, mode): values for step, mode, values in cases.events(sink) if {"loss", "eval_loss"} & values.keys()}
    for step, mode, values in plain.events:
        timeless = {name: value for name, value in values.items() if "time" not in name and "second" not in name}
        if {"loss", "eval_loss"} & values.keys():
            assert {name: found[step, mode].get(name) for name in timeless} == pytest.approx(timeless)
    assert log.failures == {} and "has other numbers" not in caplog.text


def between() -> Any:
    """A callback that logs between two steps, where the trainer does not."""
    from transformers import TrainerCallback

    class Between(TrainerCallback):  # type: ignore[misc]
        trainer: Any = None

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % 2:
                self.trainer.log({"between": 7.0})

    return Between()


def test_what_rank_0_alone_logs(model: Path, tmp_path: Path) -> None:
    """On two ranks: it is in the sinks, no rank waits for the other, and log events are those of both."""
    two_ranks("aside", model, tmp_path)
    history, records, failures = pickle.loads((tmp_path / "rank0.pickle").read_bytes())
    assert (failures, pickle.loads((tmp_path / "rank1.pickle").read_bytes())[2]) == ({}, {})
    sink = MemorySink()
    sink.events.extend(records)
    own = [entry for entry in history if entry["step"] > 1 or "aux" not in entry]
    assert sum("aux" in entry for entry in own) == 4 and missing(own, sink) == []
    whole = [values for step, mode, values in cases.events(sink) if "loss" in values or "eval_loss" in values]
    assert [("declog/ranks" in values, values.get("completions/max_length", 0) > 0) for values in whole] == [
        (True, False), (False, False), (False, True), (False, False),
    ]  # fmt: skip
    assert [(step, values["behind"]) for step, _, values in cases.events(sink) if "behind" in values][-1] == (4, 7.0)
