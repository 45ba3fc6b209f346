"""tinker-cookbook's own loggers and training loops, with the example's logger beside them."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tinker
from tinker_cookbook.rl import train
from tinker_cookbook.utils import ml_log

import declog
from tests.integrations.own_env.tinker_service import GROUP, GROUPS, Builder, Service
from tests.integrations.test_examples_of_trainers import EXAMPLES, scalars, training


def test_all_values_of_the_json_logger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of training and of evaluations that end later, each at its step, as its own file has them."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    tinker = importlib.import_module("tinker_logger")
    logger = tinker.with_declog(ml_log.setup_logging)(str(tmp_path), do_configure_logging_module=False)
    assert [type(each).__name__ for each in logger.loggers] == ["JsonLogger", "PrettyPrintLogger", "DeclogLogger"]
    training(logger)
    own = {
        (row["step"], name if name.startswith("env/") else f"eval/{name}"): value
        for row in map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
        for name, value in row.items() if name not in ("step", "sampler/version") and isinstance(value, int | float)
    }  # fmt: skip
    assert len(own) == 400
    assert scalars(tmp_path / "declog") == pytest.approx(own)
    assert "tinker_cookbook" in sys.modules


ROWS = (
    "modes.eval.prefix=eval/", "+signals.any.reward={axis: completion}",
        "+signals.any.sample={axis: completion, type: int}",
    "+signals.any.version={axis: completion, type: int}", "+metrics.n=count(reward)", "+metrics.reward=mean(reward)",
    "+metrics.best=max(reward)", "+metrics.version=mean(version)",
    "+schemas.lines={sample: {type: int}, reward: {type: float}, version: {type: int}}",
    "+tables.rows={schema: lines}",
)  # fmt: skip
ASYNC = train.AsyncConfig(max_steps_off_policy=2, groups_per_batch=GROUPS, loss_fn="ppo")
STREAM = train.StreamMinibatchConfig(groups_per_batch=GROUPS, num_minibatches=2)
LOOPS: dict[str, tuple[bool, dict[str, Any]]] = {  # whether groups of constant reward are dropped, and the loop
    "async": (False, {"async_config": ASYNC}),
    "async, drops": (True, {"async_config": ASYNC}),
    "async, streams": (True, {"async_config": ASYNC, "stream_minibatch_config": STREAM}),
    "sync": (False, {}),
    "sync, drops": (True, {}),
    "sync, streams": (False, {"stream_minibatch_config": STREAM}),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_whole_runs(loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards observed in rollout tasks and the loop's own numbers, evaluations in flight, as the service has them."""
    drops, options = LOOPS[loop]
    batches = 24
    steps = batches * (GROUPS - drops) // GROUPS if "async_config" in options else batches
    service = Service(steps, lag=2 if "async_config" in options else 0)
    packets: dict[int, declog.Packet] = {}

    def observe(samples: list[int], rewards: list[float], test: bool) -> None:
        values = {"sample": samples, "reward": rewards, "version": [service.versions[each] for each in samples]}
        if test:
            declog.observe(**values)
        else:
            packets[samples[0]] = declog.rows(**values)

    async def prepare_minibatch(builders: Any, groups: Any, *args: Any, **kwargs: Any) -> Any:
        declog.observe(*(packets.pop(group.trajectories_G[0].transitions[0].ac.tokens[0]) for group in groups))
        return await prepare(builders, groups, *args, **kwargs)

    async def run_single_evaluation(evaluator: Any, config: Any, step: int, *args: Any, **kwargs: Any) -> Any:
        with recorder().mode("eval", step=step):
            return await evaluation(evaluator, config, step, *args, **kwargs)

    def recorder() -> declog.Recorder:
        found = declog.current()
        assert isinstance(found, declog.Recorder)
        return found

    monkeypatch.syspath_prepend(str(EXAMPLES))
    with_declog = importlib.import_module("tinker_logger").with_declog
    prepare, evaluation = train.prepare_minibatch, train.run_single_evaluation
    monkeypatch.setattr(train, "prepare_minibatch", prepare_minibatch)
    monkeypatch.setattr(train, "run_single_evaluation", run_single_evaluation)
    monkeypatch.setattr(ml_log, "setup_logging", with_declog(ml_log.setup_logging, overrides=ROWS))
    monkeypatch.setattr(train, "get_tokenizer", lambda _: SimpleNamespace(decode=str))
    monkeypatch.setattr(tinker, "ServiceClient", lambda **_: service)
    config = train.Config(
        learning_rate=1e-4, dataset_builder=Builder(service=service, batches=batches, constant=drops, observe=observe),
        model_name="Qwen/Qwen3-8B", recipe_name="test", max_tokens=4, log_path=str(tmp_path), eval_every=1,
        save_every=5, remove_constant_reward_groups=drops, num_groups_to_log=0, **options,
    )  # fmt: skip
    asyncio.run(train.main(config))

    blocks = {("train", step): service.trained[step] for step in range(steps)}
    blocks |= {("eval", step): samples for step, samples in service.evaluated.items()}
    rows = {block: [(n, service.rewards[n], service.versions[n]) for n in sorted(blocks[block])] for block in blocks}
    read = declog.read(tmp_path / "declog")
    logged: dict[tuple[str, int], list[tuple[int, float, int]]] = {}
    for row in read.tables["rows"]:
        logged.setdefault((row["mode"], row["step"]), []).append((row["sample"], row["reward"], row["version"]))
    assert {block: sorted(each) for block, each in logged.items()} == rows

    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    expected = {
        (line["step"], f"eval/{name}" if "eval/snapshot/training_step" in line else name): value
        for line in lines for name, value in line.items() if name != "step" and isinstance(value, int | float)
    }  # fmt: skip
    for (mode, step), each in rows.items():
        _, rewards, versions = zip(*each, strict=True)
        values = {"n": len(each), "reward": np.mean(rewards), "best": max(rewards), "version": np.mean(versions)}
        expected |= {(step, name if mode == "train" else f"eval/{name}"): value for name, value in values.items()}
    dropped = len(service.rewards) - sum(map(len, rows.values()))
    if dropped:  # packets of groups that the loop dropped
        expected[batches, "declog/dropped"] = dropped
    assert scalars(tmp_path / "declog") == pytest.approx(expected, rel=1e-12)
    assert list(read.failures.values()) == [dropped] * drops and dropped == drops * batches * GROUP
    if "async_config" in options:
        at = {("eval/snapshot/training_step" in line, line["step"]): place for place, line in enumerate(lines)}
        late = [step for _, step in (key for key in at if key[0]) if step < steps - 1]
        assert late and all(at[True, step] > at[False, step] for step in late)
        assert any(version < step for (mode, step), each in rows.items() if mode == "train" for _, _, version in each)
