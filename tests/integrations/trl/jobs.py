"""Jobs of two processes with gloo, ``python -m tests.integrations.trl.jobs NAME MODEL FOLDER`` on each rank."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import declog
import declog.testing
from tests import forks
from tests.faults.jobs import Ended, run


def job(
    name: str, model: Path, folder: Path, *, env: Mapping[str, str] | None = None,
    limit_s: float = 4 * forks.PATIENCE_S,
) -> Ended:  # fmt: skip
    """Run a job to its end."""
    command: list[str | Path] = ["-m", "tests.integrations.trl.jobs", name, model, folder]
    return run(folder, 2, command, env=env, imports=forks.TRL, limit_s=limit_s)


def two_ranks(name: str, model: Path, folder: Path, *, limit_s: float = 4 * forks.PATIENCE_S) -> None:
    """Run a job to its end; it must succeed."""
    ended = job(name, model, folder, limit_s=limit_s)
    assert ended.codes == (0, 0), "\n".join(text[-9000:] for text in ended.outputs)


def keep(folder: Path, name: str, result: object) -> None:
    """Leave a rank's result for the test."""
    (folder / f"{name}.pickle").write_bytes(pickle.dumps(result))


def values(model: Path, folder: Path) -> None:
    """The cases of two ranks."""
    from tests.integrations.trl import cases

    for name in cases.ON_TWO_RANKS:
        outcome = cases.run(cases.CASES[name], model, folder / name)
        outcome.sink = None
        if int(os.environ["RANK"]) == 0:
            keep(folder, name, outcome)


def best(model: Path, folder: Path) -> None:
    """The best model by a metric that only declog has, and what each rank makes of it."""
    from tests.integrations.trl import cases

    trainer = cases.trainer_of(cases.BEST, model, folder)
    with declog.attach(trainer, "trl_grpo", [*cases.STRICT, cases.SURPRISE]):
        trainer.train()
    weights = trainer.accelerator.unwrap_model(trainer.model).lm_head.weight.detach().cpu().clone()
    state = trainer.state
    keep(folder, f"rank{os.environ['RANK']}", (state.log_history, state.best_metric, state.best_global_step, weights))


def resumed(model: Path, folder: Path) -> None:
    """A run without a break, and one that is resumed inside a window."""
    from tests.integrations.trl import cases

    whole = cases.resumable(model, folder / "whole")
    cases.resumable(model, folder / "parts", until=7)
    parts = cases.resumable(model, folder / "parts", resume=True)
    cases.resumable(model, folder / "open", until=7, ended="returned")
    opened = cases.resumable(model, folder / "open", resume=True)
    again = cases.resumable(model, folder / "again", until=7, ended="trained again")
    keep(folder, f"rank{os.environ['RANK']}", (whole, parts, opened, again))


def killed(model: Path, folder: Path) -> None:
    """Rank 1 dies in its third step, with declog attached and without."""
    from tests.integrations.trl import cases

    def reward(completions: list[str], trainer_state: Any, **columns: Any) -> list[float]:
        if trainer_state.global_step == 2 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return [float(len(each)) for each in completions]

    trainer = cases.trainer_of(cases.BEST, model, folder, rewards=[reward])
    if os.environ["ATTACHED"] == "yes":
        declog.attach(trainer, "trl_grpo", ["declog.sinks=[jsonl]", cases.SURPRISE], wait_s=1.0)
    trainer.train()


def faulty(model: Path, folder: Path) -> None:
    """A fault of each kind in which ranks meet on rank 1, late, beside a run without declog."""
    from tests.integrations.trl import faults

    strike(model, folder, faults.SHARED)


def strike(model: Path, folder: Path, names: Sequence[str]) -> None:
    """Keep what a run without declog comes to, and one with each of these faults on rank 1."""
    from tests.integrations.trl import faults

    rank = os.environ["RANK"]
    own = faults.outcome(model, folder / "alone", None)
    for name in names:
        found = faults.outcome(model, folder / name, name, late=True, rank=1)
        keep(folder, f"{name}-{rank}", (own, found))


def all_faulty(model: Path, folder: Path) -> None:
    """All faults."""
    from tests.integrations.trl import faults

    strike(model, folder, list(faults.FAULTS))


def own_signals(model: Path, folder: Path) -> None:
    """What two ranks log alone, and beside each wrong signal of a reward function, which rank 1 alone observes."""
    from tests.integrations.trl import training_code

    rank, found = (
        int(os.environ["RANK"]),
        {"alone": training_code.logged(training_code.TWO, model, folder / "alone")[0]},
    )
    for name in ("of any phase", "tokens of another shape", "required, and never given"):
        declaration, give, _ = training_code.REWARDS[name]
        given = give if rank == 1 else training_code.nothing
        found[name] = training_code.logged(training_code.TWO, model, folder / name, declaration, given)[0]
    keep(folder, str(rank), found)


def alone(model: Path, folder: Path) -> None:
    """Each rank attaches in its turn, and the other one does not; both have trainers."""
    from tests.integrations.trl import cases

    for rank in range(2):
        trainer = cases.trainer_of(cases.Case(), model, folder)
        if int(os.environ["RANK"]) == rank:
            try:
                declog.attach(trainer, "trl_grpo", ["declog.sinks=[]"], start_s=0.5)
            except declog.CommError as error:
                keep(folder, f"rank{rank}", str(error))
        trainer.accelerator.wait_for_everyone()


def asynchronous(model: Path, folder: Path) -> None:
    """The asynchronous trainer: what it logged on each rank, what declog had of it, and the samples' rewards."""
    from tests.integrations.trl import asynchronous, cases

    trainer, sink = asynchronous.run(model, folder, "+declog.metrics.trained='count(reward)'")
    rewards = trainer.rollout_worker.rewards if trainer.rollout_worker else None
    keep(folder, f"rank{os.environ['RANK']}", (trainer.state.log_history, cases.events(sink), rewards))


def aside(model: Path, folder: Path) -> None:
    """Rank 0 alone logs besides, in steps and by a callback, and alone calls transformers' `log`; attached inside."""
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    from tests.integrations.trl import cases, test_logs

    class Main(test_logs.talking(GRPOTrainer)):  # type: ignore[misc]
        def log(self, *args: Any, **kwargs: Any) -> None:
            if self.state.is_world_process_zero:
                super().log(*args, **kwargs)
            else:
                self._metrics["train" if self.model.training else "eval"].clear()

    sink = declog.testing.MemorySink()
    logs: list[Any] = []

    class Attach(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                sinks = [sink] if args.process_index == 0 else []
                logs.append(declog.attach(trainer, "trl_grpo", cases.STRICT, sinks=sinks))

    case = cases.Case(args={**test_logs.SMALL, "max_steps": 4, "logging_steps": 2, "eval_steps": 2})
    callbacks = [Attach(), test_logs.adding("behind", 3.0, main=True)]
    trainer = cases.trainer_of(case, model, folder / "aside", cls=Main, callbacks=callbacks)
    trainer.train()
    logs[0].close()
    keep(folder, f"rank{os.environ['RANK']}", (trainer.state.log_history, sink.events, dict(logs[0].failures)))


def live(model: Path, folder: Path) -> None:
    """What is wrong with the live runs of two ranks, and how many values were compared."""
    from tests.integrations.trl import cases, live

    names = [name for name, case in cases.CASES.items() if 2 in case.ranks and not case.served]
    found = [live.problems(name, model, folder / name) for name in [*names, *live.TWO_RANKS]]
    keep(folder, f"rank{os.environ['RANK']}", found)


def stopped(model: Path, folder: Path) -> None:
    """An alert ends training; rank 1 is slower to reward."""
    import time

    from tests.integrations.trl import cases

    def reward(completions: list[str], **columns: Any) -> list[float]:
        time.sleep(0.1 * int(os.environ["RANK"]))
        return [float(len(each)) for each in completions]

    case = cases.Case(args={"max_steps": 60, "logging_steps": 1, "eval_strategy": "no"})
    trainer = cases.trainer_of(case, model, folder, rewards=[reward])
    with declog.attach(trainer, "trl_grpo", [*cases.STRICT, cases.STOP]) as log:
        trainer.train()
        alerts = [(step, alert.name) for step, alert in log.alerts]
    keep(folder, f"rank{os.environ['RANK']}", (trainer.state.global_step, alerts))


ASKED, KILLED_AT = 8, 7  # steps


def asked(model: Path, folder: Path) -> None:
    """A run that waits in its third step until it is asked for metrics, and is killed; started again, it goes on."""
    import time

    from transformers import TrainerCallback

    from declog.late.live import LOOK_S
    from tests.integrations.trl import cases, tiny

    resumes = any(folder.glob("checkpoint-*"))

    class Wait(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not resumes and state.global_step == 3 and state.is_world_process_zero:
                (folder / "ready").touch()
                while not any(folder.rglob("ask.json")):
                    time.sleep(0.05)
                time.sleep(LOOK_S)  # the worker looks for it with the next log event
            if not resumes and state.global_step == KILLED_AT:
                while not (folder / "asked").exists():  # the command has its answer
                    time.sleep(0.05)
                os.kill(os.getpid(), signal.SIGKILL)

    case = cases.Case(args={**cases.RESUMABLE.args, "max_steps": ASKED, "logging_steps": 1, "eval_strategy": "no"})
    trainer = cases.trainer_of(case, model, folder, callbacks=[Wait()], data={"train_dataset": tiny.prompts(32)})
    overrides = [
        "declog.sinks=[parquet]", "+declog.run={late: true, strict: true}",
        "+declog.metrics.early={expr: reward, reduce: [p95, count]}",
        "+declog.metrics.early_std='mean(std(reward, over=completion))'",
    ]  # fmt: skip
    with declog.attach(trainer, "trl_grpo", overrides):
        trainer.train(resume_from_checkpoint=resumes)


JOBS: dict[str, Callable[[Path, Path], None]] = {
    "values": values, "best": best, "resumed": resumed, "killed": killed, "faulty": faulty, "alone": alone,
    "all_faulty": all_faulty, "own_signals": own_signals,
    "asynchronous": asynchronous, "live": live, "aside": aside, "stopped": stopped, "asked": asked,
}  # fmt: skip


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    JOBS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
