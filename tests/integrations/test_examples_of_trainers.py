"""The examples for slime, tinker-cookbook and prime-rl, on fakes made after the seams of their source."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import declog
from tests import forks

EXAMPLES = forks.ROOT / "examples"
Modules = Any


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
    """Imports an example anew, beside modules of a package that is not installed here."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    names: list[str] = []

    def load(name: str, **packages: Mapping[str, Any]) -> ModuleType:
        for path, content in packages.items():
            parts = path.split("__")
            for depth in range(1, len(parts) + 1):
                module = sys.modules.get(".".join(parts[:depth])) or ModuleType(".".join(parts[:depth]))
                monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), module)
            vars(module).update(content)
        for path in packages:
            parent, _, child = path.replace("__", ".").rpartition(".")
            vars(sys.modules[parent])[child] = sys.modules[path.replace("__", ".")]
        names.append(name)
        return importlib.import_module(name)

    yield load
    for name in names:
        sys.modules.pop(name, None)


# ---- slime: `Sample` and the calls of RolloutManager


class Status(Enum):
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"


@dataclass
class Sample:
    """What slime's ``Sample`` has of it."""

    group_index: int | None
    prompt: str | list[dict[str, str]]
    response: str
    response_length: int
    reward: float | dict[str, Any]
    loss_mask: list[int] | None = None
    status: Status = Status.COMPLETED

    def get_reward_value(self, args: Any) -> Any:
        return self.reward if not args.reward_key else self.reward[args.reward_key]  # type: ignore[index]

    @property
    def effective_response_length(self) -> int:
        return sum(self.loss_mask) if self.loss_mask is not None else self.response_length


def samples(step: int) -> list[Sample]:
    """Four groups of three, of which the first has equal rewards."""
    return [
        Sample(
            group_index=10 * step + group, prompt=f"prompt {group}", response="x" * (row + 1), response_length=row + 5,
            reward={"score": float(step) if group == 0 else float(row)},
            loss_mask=[1] * (row + 2) + [0, 0, 0] if group % 2 else None,
            status=Status.TRUNCATED if row == 2 and group == 3 else Status.COMPLETED,
        )
        for group in range(4) for row in range(3)
    ]  # fmt: skip


def test_slime(example: Modules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What slime computes of the samples itself, and what its prompts' groups come to, with an evaluation between."""
    monkeypatch.chdir(tmp_path)
    slime = example("slime_log")
    args = SimpleNamespace(reward_key="score")
    for step in range(3):
        assert slime.rollout(step, args, samples(step), {"rollout/staleness": step}, 2.5) is False
        data = {"aime": {"rewards": [1.0, 0.0], "truncated": [False, True]}, "math": {"rewards": [1.0]}}
        assert slime.evaluation(step, args, data, {"eval/seconds": 3}) is False
    slime.rollout(2, args, samples(2), None, 1.0)  # again, from a checkpoint
    log = slime.recorder()
    log.close()
    assert dict(log.failures) == {}
    found = list(declog.read(log.output_dir).scalars)
    for step in range(2):
        values = {row["name"]: row["value"] for row in found if row["step"] == step}
        lengths = [sample.effective_response_length for sample in samples(step)]
        rewards = [sample.get_reward_value(args) for sample in samples(step)]
        expected = {
            "reward": np.mean(rewards), "completions/mean_length": np.mean(lengths),
            "completions/max_length": max(lengths), "completions/clipped_ratio": 1 / 12,
            "frac_reward_zero_std": 0.25, "aborted": 0.0, "rollout_seconds": 2.5, "rollout/staleness": step,
            "eval/reward/aime": 0.5, "eval/reward/math": 1.0, "eval/reward": 2 / 3, "eval/eval/seconds": 3,
        }  # fmt: skip
        assert {name: values[name] for name in expected} == pytest.approx(expected)


# ---- tinker-cookbook: `ml_log`


class Logger(ABC):
    """tinker-cookbook's."""

    @abstractmethod
    def log_hparams(self, config: Any) -> None: ...

    @abstractmethod
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None: ...

    def log_metrics_event(
        self, metrics: dict[str, Any], step: int, step_metric: str, metric_axes: dict[str, str] | None = None
    ) -> None:
        self.log_metrics(metrics | {step_metric: step}, step=step)

    def close(self) -> None:
        self.closed = True


class JsonLogger(Logger):
    def __init__(self, folder: str) -> None:
        self.file = Path(folder) / "metrics.jsonl"
        self.file.parent.mkdir(parents=True, exist_ok=True)

    def log_hparams(self, config: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")


@dataclass
class MultiplexLogger:
    loggers: list[Logger]

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        for logger in self.loggers:
            logger.log_metrics(metrics, step)

    def log_metrics_event(self, metrics: dict[str, Any], step: int, step_metric: str) -> None:
        for logger in self.loggers:
            logger.log_metrics_event(metrics, step, step_metric)

    def close(self) -> None:
        for logger in self.loggers:
            logger.close()


def test_tinker_cookbook(example: Modules, tmp_path: Path) -> None:
    """All values that its own logger has, those of evaluations included that end steps later, each at its step."""
    ml_log = {"Logger": Logger, "setup_logging": lambda log_dir, **kwargs: MultiplexLogger([JsonLogger(log_dir)])}
    tinker = example("tinker_logger", tinker_cookbook__utils__ml_log=ml_log)
    logger = tinker.with_declog(ml_log["setup_logging"])(str(tmp_path), wandb_project=None)
    training(logger)
    own = {
        (row["step"], name if name.startswith("env/") else f"eval/{name}"): value
        for row in map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
        for name, value in row.items() if name not in ("step", "sampler/version") and not isinstance(value, str)
    }  # fmt: skip
    assert len(own) == 400
    assert scalars(tmp_path / "declog") == pytest.approx(own)


def training(logger: Any) -> None:
    """Twenty steps of the cookbook's asynchronous loop; an evaluation of each fourth ends five steps later."""

    async def evaluate(step: int, steps: list[asyncio.Event]) -> None:
        await steps[min(step + 5, 19)].wait()
        values = {f"test/env/all/{name}": step + name for name in range(8)}
        logger.log_metrics_event(values, step, "sampler/version")

    async def run() -> None:
        steps = [asyncio.Event() for _ in range(20)]
        tasks = []
        for step in range(20):
            if step % 4 == 0:
                tasks.append(asyncio.create_task(evaluate(step, steps)))
            await asyncio.sleep(0)
            logger.log_metrics({f"env/all/{name}": step * name for name in range(18)} | {"note": "text"}, step=step)
            steps[step].set()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    asyncio.run(run())
    logger.close()


def scalars(folder: Path) -> dict[tuple[int, str], float]:
    """By step and name."""
    return {(row["step"], row["name"]): row["value"] for row in declog.read(folder).scalars}


# ---- prime-rl: `Monitor`, and verifiers' episodes


class Monitor(ABC):
    """prime-rl's."""

    def __init__(self, config: Any) -> None:
        self.config = config

    async def log(self, data: Any, step: int, kind: str = "train", subset: str = "effective") -> None:
        if isinstance(data, dict):
            await self.log_metrics(data, step=step)
        else:
            episodes = data if isinstance(data, list) else [data]
            await self.log_episodes(episodes, step=step, kind=kind, subset=subset)

    @abstractmethod
    async def log_metrics(self, metrics: dict[str, Any], step: int) -> None: ...

    @abstractmethod
    async def log_episodes(self, episodes: list[Any], step: int, kind: str, subset: str) -> None: ...


@dataclass
class Reward:
    score: float
    weight: float = 1.0

    @property
    def value(self) -> float:
        return self.score * self.weight


@dataclass
class Trace:
    rewards: dict[str, Reward | None]
    metrics: dict[str, float | None]
    num_turns: int
    num_output_tokens: int
    ok: bool = True
    agent: Any = field(default_factory=lambda: SimpleNamespace(trainable=True))

    @property
    def reward(self) -> float:
        return sum(reward.value for reward in self.rewards.values() if reward is not None)


@dataclass
class Episode:
    group: Any
    env: Any
    traces: list[Trace]
    id: str = "episode"
    errors: list[Any] = field(default_factory=list)


def episodes(step: int) -> list[Episode]:
    """Two groups of two in two environments; in the first rewards are equal, one failed; each has a judge's trace."""
    return [
        Episode(
            SimpleNamespace(id=f"{step}/{group}"), SimpleNamespace(name=("math", "code")[group]),
            [Trace({"right": Reward(float(group * row), 2.0), "format": None}, {"calls": float(row)}, 1 + row,
                   10 * step, ok=bool(group or row)),
             Trace({"judged": Reward(7.0)}, {}, 9, 9, agent=SimpleNamespace(trainable=False))],
        )
        for group in range(2) for row in range(2)
    ]  # fmt: skip


def test_prime_rl(example: Modules, tmp_path: Path) -> None:
    """Episodes count for the step that they are given with, scalars too; evaluations have names of their own."""
    prime = example(
        "prime_rl_monitor", prime_rl__monitors__base={"Monitor": Monitor},
        prime_rl__configs__monitors={"FileMonitorConfig": SimpleNamespace},
    )  # fmt: skip

    async def run() -> None:
        monitor = await prime.DeclogMonitor.start(tmp_path)
        for step in range(1, 4):
            await monitor.log(episodes(step)[0], step=step + 1, kind="train", subset="all")
            await monitor.log(episodes(step), step=step, kind="train", subset="effective")
            await monitor.log({"time/step": step, "loss/mean": 0.5}, step=step)
            await monitor.log(episodes(step), step=step, kind="eval", subset="effective")
            await monitor.log({"optim/lr": 0.1}, step=step)
        await monitor.finalize()
        assert dict(monitor.log_.failures) == {}

    asyncio.run(run())
    found = scalars(tmp_path / "declog")
    for step in range(1, 4):
        rows = {
            "reward/mean": 0.5, "reward/std": 1.0, "reward/math": 0.0, "reward/code": 1.0, "rewards/right": 0.25,
            "measured/calls": 0.5, "turns": 1.5, "length/mean": 10 * step, "failed": 0.25, "equal": 0.5,
        }  # fmt: skip
        expected = {**rows, **{f"eval/{name}": value for name, value in rows.items()}}
        expected |= {"time/step": step, "loss/mean": 0.5, "optim/lr": 0.1}
        assert {name: found[step, name] for name in expected} == pytest.approx(expected)
