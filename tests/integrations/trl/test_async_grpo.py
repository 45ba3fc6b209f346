"""TRL's ``AsyncGRPOTrainer``: its own numbers as it has them, and samples in the step that trains on them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from tests.integrations.trl import asynchronous, cases, live
from tests.integrations.trl.asynchronous import EACH
from tests.integrations.trl.jobs import two_ranks

COUNT = "+declog.metrics.trained='count(reward)'"


def check(history: Sequence[dict[str, Any]], events: Sequence[Any], rewards: Any, ranks: int) -> None:
    """TRL's log is in the sink, name by name, and samples are those that the steps of the window have trained on."""
    assert [(step, values) for step, _, values in cases.expected(history)] == [
        (step, {name: value for name, value in values.items() if not name.startswith("trained")})
        for step, _, values in events
    ]
    assert events[-1][2]["completions/clipped_ratio"] > 0  # it came after the last step
    each = 2 * 2 * EACH * ranks  # samples of a window: two steps of two micro-batches
    for place, (_, _, values) in enumerate(events[:2]):
        trained = rewards.reshape(-1)[place * each : (place + 1) * each]
        assert values["trained/reward_mean"] == pytest.approx(trained.mean())
        assert values["trained/reward_std"] == pytest.approx(trained.std(ddof=1))
        assert (values["trained/rewards/reward"], values["trained"]) == (pytest.approx(trained.mean()), each)
        assert values["trained/rewards/sometimes"] == 1
        assert values["reward"] != pytest.approx(trained.mean())  # TRL's is of what was packed: one ahead


def test_one_rank(model: Path, tmp_path: Path) -> None:
    """All that TRL logs, and what declog knows of the samples; history has both, and the table their texts."""
    trainer, sink = asynchronous.run(model, tmp_path, COUNT)
    history = [{name: value for name, value in entry.items() if not name.startswith("trained")}
               for entry in trainer.state.log_history]  # fmt: skip
    check(history, cases.events(sink), trainer.rollout_worker.rewards, 1)
    assert all(
        values.items() >= {name: value for name, value in entry.items() if name.startswith("trained")}.items()
        for (_, _, values), entry in zip(cases.events(sink), trainer.state.log_history, strict=True)
    )
    assert "trained/staleness_max" in trainer.state.log_history[0]
    (step, table), *_ = sink.tables("completions")
    rewards = trainer.rollout_worker.rewards[3].tolist()  # step 2's last micro-batch
    assert (step, table.data["rewards/reward"]) == (2, rewards)
    assert table.data["advantages"] == pytest.approx([reward - np.mean(rewards) for reward in rewards])
    assert table.data["prompt"][0] == [{"role": "user", "content": "say 3"}]
    assert table.data["completion"][1] == [{"role": "assistant", "content": str(rewards[1])}]


def test_samples_that_are_dropped(model: Path, tmp_path: Path) -> None:
    """Those that are too old when they are taken, or too long, are in no step; others wait for the next micro-batch."""
    seen: list[int] = []
    trainer = asynchronous.trainer_of(model, tmp_path, max_staleness=0, token_budget=32)
    compute_loss = trainer.compute_loss

    def counted(model: Any, inputs: Any, **options: Any) -> Any:
        seen.append(int(inputs["segment_id"].max()) + 1)
        return compute_loss(model, inputs, **options)

    trainer.compute_loss = counted
    sink = declog.testing.MemorySink()
    with declog.attach(trainer, overrides=[*cases.STRICT, COUNT], sinks=[sink]):
        trainer.train()
    first, last, _ = (values for _, _, values in cases.events(sink))
    assert "sample/dropped_stale_total" in {**first, **last}
    assert (first["trained"], last["trained"]) == (sum(seen[:4]), sum(seen[4:]))
    assert last["trained/staleness_max"] <= 1  # it was not stale when it was taken, and was packed one ahead


def test_two_ranks_share_samples(model: Path, tmp_path: Path) -> None:
    """Rank 0 knows all of them; steps, log events and merged values are those of both."""
    two_ranks("asynchronous", model, tmp_path)
    (history, events, rewards), (other, _, _) = (
        pickle.loads((tmp_path / f"rank{rank}.pickle").read_bytes()) for rank in range(2)
    )
    own = [{name: value for name, value in entry.items() if not name.startswith("trained")} for entry in history]
    check(own, events, rewards, 2)
    merged = [
        [entry.get(name) for entry in each] for name in ("trained/reward_mean", "kl") for each in (history, other)
    ]
    assert merged[0] == merged[1] and merged[2] == merged[3]


def test_a_preset_of_another_method(model: Path, tmp_path: Path) -> None:
    """It is refused with the right one's name."""
    trainer = asynchronous.trainer_of(model, tmp_path)
    with pytest.raises(declog.UsageError, match=r'(?s)`trl_grpo` has the metrics of trl.GRPOTrainer.*"trl_async_grpo"'):
        declog.attach(trainer, "trl_grpo", ["declog.sinks=[]"])


def test_resumed_inside_a_window(model: Path, tmp_path: Path) -> None:
    """The window has the samples of all its steps, and totals go on."""
    logged = []
    for part in range(2):
        options = {"save_strategy": "steps", "save_steps": 3, "max_steps": 8, "logging_steps": 4}
        trainer = asynchronous.trainer_of(model, tmp_path, **options)
        if part == 0:
            trainer.add_callback(live.stopping(6))
        sink = declog.testing.MemorySink()
        total = "+declog.metrics.total={expr: reward, reduce: count, over: run}"
        with declog.attach(trainer, overrides=[*cases.STRICT, COUNT, total], sinks=[sink]):
            trainer.train(resume_from_checkpoint=part == 1)
        logged.append(
            [(step, values["trained"], values["total"]) for step, _, values in cases.events(sink)[: 2 - part]]
        )
    each = 2 * EACH  # samples of a step
    assert logged == [[(4, 4 * each, 4 * each), (6, 2 * each, 6 * each)], [(8, 4 * each, 8 * each)]]
