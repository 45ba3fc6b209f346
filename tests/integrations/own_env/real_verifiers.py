"""verifiers itself: tasks that score traces, and episodes of them in the monitor for prime-rl, with fakes of models.

What runs code, such as sandboxes, is not installed: the modules that verifiers would import for it are empty ones.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import declog
from tests.integrations.test_examples_of_trainers import Monitor, example, scalars

assert example  # a fixture
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
ABSENT = ("prime_sandboxes", "prime_tunnel", "prime_runs", "mcp", "uvicorn", "gepa", "math_verify")


class Absent(MetaPathFinder, Loader):
    """Modules of packages that are not there, in which each name is a class."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ABSENT else None

    def exec_module(self, module: ModuleType) -> None:
        def of(name: str) -> type[Exception]:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (Exception,), {})

        vars(module)["__getattr__"] = of


sys.meta_path.append(Absent())
vf: Any = importlib.import_module("verifiers.v1")
graph: Any = importlib.import_module("verifiers.v1.graph")
types: Any = importlib.import_module("verifiers.v1.types")
traces: Any = importlib.import_module("verifiers.v1.trace")
episodes: Any = importlib.import_module("verifiers.v1.episode")


class Sum(vf.TaskData):  # type: ignore[misc]  # verifiers is not there for mypy
    answer: str = ""


class SumTask(vf.Task[Sum]):  # type: ignore[misc]
    """Right answers, short ones, and what its author wants to see: by declog, from the reward function itself."""

    @vf.reward
    async def right(self, trace: Any) -> float:
        await asyncio.sleep(0)
        declog.log_metric("chars", len(trace.last_reply))
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace: Any) -> float:
        return 1.0 if len(trace.last_reply) < 3 else -1.0

    @vf.metric
    async def digits(self, trace: Any) -> float:
        return float(sum(character.isdigit() for character in trace.last_reply))


def trace(task: Any, replies: Sequence[str], *, trainable: bool = True) -> Any:
    """A conversation as verifiers records one, of a model that gives these replies; one token per character."""
    nodes, calls = [graph.MessageNode(parent=None, message=types.UserMessage(content="?"), sampled=False)], []
    for turn, reply in enumerate(replies):
        nodes.append(graph.MessageNode(parent=2 * turn, message=types.AssistantMessage(content=reply), sampled=True))
        calls.append(
            traces.ModelCall(node=2 * turn + 1, usage=types.Usage(prompt_tokens=1, completion_tokens=len(reply)))
        )
        if turn < len(replies) - 1:
            asked = types.UserMessage(content="again?")
            nodes.append(graph.MessageNode(parent=2 * turn + 1, message=asked, sampled=False))
    agent = vf.AgentInfo(config=vf.AgentConfig(), trainable=trainable)
    of = vf.TraceTask(type="SumTask", data=task.data)
    return vf.Trace(agent=agent, task=of, nodes=nodes, calls=calls, ok=True)


REPLIES = {  # by step, for each of two prompts: the replies of each rollout
    1: {"4": [["4"], ["wrong", "4"], ["many words"]], "10": [["10"], ["10"], ["10"]]},
    2: {"4": [["5"], ["6", "7", "8"], ["4"]], "10": [["1"], ["10"], ["none"]]},
}


def test_episodes(example: Any, tmp_path: Path) -> None:
    """Rewards, weights, metrics, turns, tokens and groups of scored traces, beside a judge's, and failed ones."""
    prime = example(
        "prime_rl_monitor", prime_rl__monitors__base={"Monitor": Monitor},
        prime_rl__configs__monitors={"FileMonitorConfig": SimpleNamespace},
    )  # fmt: skip
    kept: dict[int, list[tuple[str, Any]]] = {}

    async def run() -> None:
        monitor = await prime.DeclogMonitor.start(tmp_path)
        for step, prompts in REPLIES.items():
            of_step = []
            for answer, rollouts in prompts.items():
                task = SumTask(Sum(prompt="?", answer=answer))
                made = [trace(task, replies) for replies in rollouts]
                with monitor.log_.at(step):
                    await asyncio.gather(*(task.score(one) for one in made))
                failed = trace(task, ["no"])
                failed.ok, failed.rewards = False, {"right": None, "short": None}
                for one in [*made, failed]:
                    judge = trace(task, ["a verdict"], trainable=False)
                    of_step.append(episodes.Episode(
                        env=episodes.EnvInfo(id="sums"), group=episodes.GroupInfo(id=answer),
                        task=one.task, traces=[judge, one], ok=one.ok,
                    ))  # fmt: skip
                    kept.setdefault(step, []).append((answer, one))
            await monitor.log(of_step, step=step, kind="train", subset="effective")
            await monitor.log({"loss/mean": 0.5}, step=step)
        await monitor.finalize()
        assert dict(monitor.log_.failures) == {}

    asyncio.run(run())
    found = scalars(tmp_path / "declog")
    for step, rows in kept.items():
        scored = [one for _, one in rows if one.ok]
        rewards = [one.rewards["right"].score + 0.5 * one.rewards["short"].score for one in scored]
        groups = [[one.reward for name, one in rows if name == answer and one.ok] for answer in REPLIES[step]]
        replies = [each for rollouts in REPLIES[step].values() for each in rollouts]
        expected = {
            "reward/mean": np.mean(rewards), "reward/std": np.std(rewards, ddof=1), "reward/sums": np.mean(rewards),
            "rewards/right": np.mean([one.rewards["right"].score for one in scored]),
            "rewards/short": np.mean([one.rewards["short"].score for one in scored]),
            "measured/digits": np.mean([sum(map(str.isdigit, each[-1])) for each in replies]),
            "turns": np.mean([*map(len, replies), 1, 1]), "failed": 0.25, "loss/mean": 0.5,
            "length/mean": np.mean([*(len("".join(each)) for each in replies), 2, 2]),
            "equal": np.mean([min(each) == max(each) for each in groups]),
            "chars": np.mean([len(each[-1]) for each in replies]),
        }  # fmt: skip
        assert {name: found[step, name] for name in expected} == pytest.approx(expected)
