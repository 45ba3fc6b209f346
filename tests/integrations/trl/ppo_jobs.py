"""What a process with an older TRL finds of its PPO trainer.

Each rank runs ``python -m tests.integrations.trl.ppo_jobs JOB MODEL FOLDER``.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

import declog
from declog.testing import MemorySink
from tests import forks
from tests.faults import jobs
from tests.integrations.trl import cases, faults, ppo, versions
from tests.integrations.trl.cases import STRICT, Case

VERSION = "1.9.2"
SHORT = {**ppo.LARGE, "total_episodes": 24}
KL_MAX = "+declog.metrics.kl_max='max(kl_sequence)'"


def asked(job: str, ranks: int, model: Path, folder: Path) -> list[dict[str, Any]]:
    """Run a job on each rank; what it found there."""
    path = os.pathsep.join([str(versions.installed(VERSION)), str(forks.ROOT)])
    command: list[str | Path] = ["-m", "tests.integrations.trl.ppo_jobs", job, model, folder]
    env = {**forks.OFFLINE, "PYTHONPATH": path, "TRL_EXPERIMENTAL_SILENCE": "1"}
    if ranks == 1:  # no process group: TRL cannot save a model that is wrapped
        done = forks.run(command, cwd=folder, env=forks.environment(env), imports=forks.TRAINER)
        assert done.returncode == 0, done.stderr[-9000:]
    else:
        ended = jobs.run(folder, ranks, command, env=env, imports=forks.TRAINER, limit_s=4 * forks.PATIENCE_S)
        assert ended.codes == (0,) * ranks, "\n".join(text[-9000:] for text in ended.outputs)
    return [pickle.loads((folder / f"{job}-{rank}.pickle").read_bytes()) for rank in range(ranks)]


def values(model: Path, folder: Path) -> dict[str, Any]:
    """What TRL logged and what declog did, of the cases that run on at most so many ranks."""
    found = {}
    for name in of_ranks(int(os.environ.get("WORLD_SIZE", "1"))):
        outcome = cases.run(ppo.CASES[name], model, folder / name)
        found[name] = cases.expected(outcome.history), outcome.events
    return found


def of_ranks(ranks: int) -> list[str]:
    """Each case once: on two ranks where it runs on two."""
    return [name for name, case in ppo.CASES.items() if max(case.ranks) == ranks]


class Seen(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """What trackers get, and how many logits of updates are still alive then."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []
        self.alive: list[int] = []
        self.logits: list[weakref.ref[Any]] = []

    def watch(self, trainer: Any) -> None:
        def forward(module: Any, inputs: Any, output: torch.Tensor) -> None:
            if output.requires_grad:
                self.logits.append(weakref.ref(output))

        trainer.policy_model.lm_head.register_forward_hook(forward)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        self.logs.append(dict(logs))
        self.alive.append(sum(each() is not None for each in self.logits))


def attached(model: Path, folder: Path) -> dict[str, Any]:
    """One trainer without declog, and one with a metric and a table of its own."""
    case = Case("ppo", {**SHORT, "save_strategy": "steps", "save_steps": 2, "missing_eos_penalty": 1.0})
    bare = ppo.trainer_of(case, model, folder / "bare")
    bare.train()
    seen = Seen()
    trainer = ppo.trainer_of(case, model, folder / "run", callbacks=[seen])
    seen.watch(trainer)
    before = set(vars(trainer)) | {f"accelerator.{name}" for name in vars(trainer.accelerator)}
    sink = MemorySink()
    with declog.attach(trainer, None, [*STRICT, KL_MAX], sinks=[sink]) as log:
        trainer.train()
    once = faults.left(trainer)
    once.history = [dict(entry) for entry in once.history]
    for _ in range(2):
        declog.detach(trainer)
    after = set(vars(trainer)) | {f"accelerator.{name}" for name in vars(trainer.accelerator)}
    again = MemorySink()
    with declog.attach(trainer, "ppo", [*STRICT, "declog.every=trainer"], sinks=[again]):
        trainer.train()
    _, table = sink.tables("completions")[-1]
    return {
        "preset": log.plan.name,
        "differences": faults.differences(faults.left(bare), once),
        "history": once.history,
        "logs": seen.logs,
        "alive": seen.alive,
        "events": cases.events(sink),
        "pooled": cases.events(again),
        "table": dict(table.data),
        "state": sorted(file.parent.name for file in (folder / "run").glob("checkpoint-*/declog-rank0.pt")),
        "hooks": sorted(after - before - {"episode"}),
    }


def others(model: Path, folder: Path) -> dict[str, Any]:
    """Presets of another method, and subclasses."""
    from trl.experimental.ppo import PPOTrainer

    case = Case("ppo", SHORT)
    found: dict[str, Any] = {}
    trainer = ppo.trainer_of(case, model, folder)
    for name, made, preset in (
        ("grpo", trainer, "trl_grpo"), ("ppo", cases.trainer_of(Case("rloo"), model, folder), "trl_ppo")
    ):  # fmt: skip
        try:
            declog.attach(made, preset, STRICT)
        except declog.UsageError as error:
            found[name] = str(error)
    try:
        declog.attach(trainer, None, [*STRICT, "+declog.constants.beta.value=0.7"])
    except declog.ConfigError as error:
        found["pinned"] = str(error)

    class Mixed(PPOTrainer):  # type: ignore[misc]
        def train(self) -> Any:
            return super().train()

        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            super().log({**logs, "mine": 2.0, "objective/kl": 99.0}, *args, **kwargs)

    class Own(PPOTrainer):  # type: ignore[misc]
        def train(self) -> None:
            self.state.global_step, self.state.max_steps = 1, 1
            self.log({"objective/kl": 3.0, "mine": 2.0})

    told = _Told()
    logging.getLogger("declog").addHandler(told)
    for cls in (Mixed, Own):
        sink = MemorySink()
        trainer = ppo.trainer_of(case, model, folder / cls.__name__, cls=cls)
        told.texts.clear()
        with declog.attach(trainer, None, STRICT, sinks=[sink]):
            trainer.train()
        found[cls.__name__] = cases.events(sink), trainer.state.log_history, list(told.texts)
    return found


class _Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


JOBS: Mapping[str, Callable[[Path, Path], dict[str, Any]]] = {"values": values, "attached": attached, "others": others}


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = JOBS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
    Path(sys.argv[3], f"{sys.argv[1]}-{os.environ.get('RANK', '0')}.pickle").write_bytes(pickle.dumps(result))
