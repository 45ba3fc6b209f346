"""Attached and detached while a trainer trains, in any of its callbacks: nothing of the trainer's is another one."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.testing import MemorySink
from tests.integrations.trl import cases
from tests.integrations.trl.cases import STRICT, Case

CASE = Case(args={"max_steps": 4, "logging_steps": 2, "eval_steps": 2, "max_completion_length": 5, "beta": 0.05})
P95 = "+declog.metrics.reward_p95='p95(reward)'"
EVENTS = (
    "on_train_begin", "on_epoch_begin", "on_step_begin", "on_pre_optimizer_step", "on_optimizer_step",
    "on_substep_end", "on_step_end", "on_log", "on_prediction_step", "on_evaluate", "on_train_end",
)  # fmt: skip


def counting(calls: Counter[tuple[str, str, int]], name: str, acts: dict[tuple[str, int], Any]) -> Any:
    """A callback that counts how often it is told what, and does something at the first of some events."""
    from transformers import TrainerCallback

    class Counting(TrainerCallback):  # type: ignore[misc]
        pass

    def told(event: str) -> Any:
        def on(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            calls[name, event, state.global_step] += 1
            if act := acts.pop((event, state.global_step), None):
                act()

        return on

    for event in EVENTS:
        setattr(Counting, event, told(event))
    return Counting()


def trained(model: Path, folder: Path, attach: tuple[str, int] | None, detach: tuple[str, int] | None = None) -> Any:
    """A run between whose callbacks declog comes and goes: calls of callbacks, the trainer, and declog's sink."""
    calls: Counter[tuple[str, str, int]] = Counter()
    sink = MemorySink()
    acts: dict[tuple[str, int], Any] = {}
    trainer = cases.trainer_of(CASE, model, folder)
    logs: list[Any] = []
    if attach is not None:
        overrides = [*STRICT, P95]
        acts[attach] = lambda: logs.append(declog.attach(trainer, "trl_grpo", overrides, sinks=[sink]))
    if detach is not None:
        acts[detach] = lambda: declog.detach(trainer)
    for place in ("one", "two", "three"):
        trainer.add_callback(counting(calls, place, acts if place == "two" else {}))
    trainer.train()
    declog.detach(trainer)
    return calls, trainer, sink


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same run without declog."""
    return trained(model, tmp_path_factory.mktemp("alone"), None)


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if "time" not in name and "second" not in name}


@pytest.mark.parametrize(
    ("event", "step", "late"),
    [
        ("on_train_begin", 0, False), ("on_step_begin", 0, False), ("on_substep_end", 0, True),
        ("on_optimizer_step", 0, True), ("on_step_end", 1, True), ("on_step_begin", 1, True), ("on_log", 2, True),
        ("on_prediction_step", 2, False), ("on_evaluate", 2, False), ("on_step_begin", 2, False),
        ("on_step_end", 3, True), ("on_step_end", 4, True),
    ],
)  # fmt: skip
def test_attached_in_a_callback(
    event: str, step: int, late: bool, alone: Any, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log event of the open window has the trainer's own numbers, at its step; all later ones are whole."""
    calls, plain, _ = alone
    with caplog.at_level(logging.WARNING, "declog"):
        found, trainer, sink = trained(model, tmp_path, (event, step))
    assert found == calls
    own = [timeless(entry) for entry in plain.state.log_history]
    for entry, expected in zip(trainer.state.log_history, own, strict=True):
        assert {name: entry.get(name) for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-6)
    logged = cases.events(sink)
    right = cases.expected(own)[-len(logged) :]
    assert [each[:2] for each in logged] == [each[:2] for each in right]
    for (_, _, values), (_, _, numbers) in zip(logged, right, strict=True):
        assert {name: values.get(name) for name in numbers} == pytest.approx(numbers, rel=1e-6, abs=1e-6)
    windows = [values for _, mode, values in logged if mode == "train" and "loss" in values]
    assert [("reward_p95" in values, "declog/ranks" in values) for values in windows] == [
        (not (late and place == 0), late and place == 0) for place, _ in enumerate(windows)
    ]
    assert sum("inside a log window" in record.getMessage() for record in caplog.records) == late


@pytest.mark.parametrize(("event", "step"), [("on_step_begin", 2), ("on_step_end", 3), ("on_log", 2)])
def test_detached_in_a_callback(event: str, step: int, alone: Any, model: Path, tmp_path: Path) -> None:
    """Each callback is told once; the trainer goes on as if declog had never been there."""
    calls, plain, _ = alone
    found, trainer, sink = trained(model, tmp_path, ("on_step_begin", 0), (event, step))
    assert found == calls
    hidden = {"reward_p95", "eval_reward_p95"}
    for entry, expected in zip(trainer.state.log_history, plain.state.log_history, strict=True):
        right = timeless(expected)
        assert {name: value for name, value in timeless(entry).items() if name not in hidden} == pytest.approx(right)
    assert [each[0] for each in cases.events(sink) if each[1] == "train"] == ([2] if step == 2 else [2, 3])


def test_attached_detached_attached(alone: Any, model: Path, tmp_path: Path) -> None:
    """In callbacks of one run: two recorders, each of its own windows, and no hook of the first stays."""
    calls, plain, _ = alone
    sinks = [MemorySink(), MemorySink()]
    counts: Counter[tuple[str, str, int]] = Counter()
    trainer = cases.trainer_of(CASE, model, tmp_path)

    def attach(place: int) -> None:
        declog.attach(trainer, "trl_grpo", STRICT, sinks=sinks[place : place + 1])
        with pytest.raises(declog.UsageError, match="attached to this trainer"):
            declog.attach(trainer, "trl_grpo", STRICT)

    acts = {
        ("on_train_begin", 0): lambda: attach(0), ("on_evaluate", 2): lambda: declog.detach(trainer),
        ("on_step_begin", 2): lambda: attach(1),
    }  # fmt: skip
    for place in ("one", "two", "three"):
        trainer.add_callback(counting(counts, place, acts if place == "two" else {}))
    before = len(trainer.callback_handler.callbacks)
    trainer.train()
    declog.detach(trainer)
    assert (counts, len(trainer.callback_handler.callbacks)) == (calls, before)
    assert not {"log", "train", "training_step", "_compute_loss"} & vars(trainer).keys()
    right = cases.expected([timeless(entry) for entry in plain.state.log_history])
    found = [event for sink in sinks for event in cases.events(sink)]
    assert [event[:2] for event in found] == [event[:2] for event in right]
    for (_, _, values), (_, _, numbers) in zip(found, right, strict=True):
        assert {name: values.get(name) for name in numbers} == pytest.approx(numbers, rel=1e-6, abs=1e-6)
