"""What training code does with wandb beside ``wandb.log``: run as a program, with the import that is to be used.

    python -m tests.integrations.wandb_users "import wandb"
    python -m tests.integrations.wandb_users "from declog.integrations import wandb"

Each use prints what it saw, as JSON; its runs have its name. With declog in between nothing may look otherwise.
"""

from __future__ import annotations

import copy
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

line: dict[str, Any] = {}
exec(sys.argv[1] if len(sys.argv) > 1 else "import wandb", line)
wandb = line["wandb"]


def refused(call: Callable[[], Any]) -> str:
    """What a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  # whatever it is
        return f"{type(error).__name__}: {error}"
    return "nothing"


def before_init() -> Iterator[Any]:
    """Code that looks whether there is a run."""
    yield wandb.run is None, bool(wandb.run)
    yield refused(lambda: wandb.log({"loss": 1}))
    yield refused(lambda: wandb.config.lr)
    yield refused(lambda: wandb.summary["best"])
    yield refused(lambda: wandb.watch(None))
    yield refused(lambda: wandb.never_heard_of)
    yield wandb.util.to_human_size(1), wandb.__version__, "Artifact" in dir(wandb)
    wandb.finish()


def looks() -> Iterator[Any]:
    """Code that looks at the run that it has."""
    from wandb.sdk.wandb_run import Run

    run = wandb.init(project="users", name="looks", config={"lr": 0.1, "nested": {"a": 1}}, tags=["a"], id="looks")
    yield isinstance(run, wandb.Run), isinstance(wandb.run, Run), issubclass(run.__class__, Run), callable(run.log)
    yield wandb.run is run, len({run, wandb.run}), bool(run), copy.deepcopy({"run": run})["run"] is run
    yield run.id, run.name, run.project, run.tags, run.config["lr"], wandb.config.lr, run.config.nested, run.disabled
    wandb.config.update({"lr": 0.2}, allow_val_change=True)
    run.config.seed = 1
    run.name, run.notes = "looks", "a note"
    yield (
        wandb.config.lr,
        run.config.seed,
        wandb.config["nested"],
        wandb.run.notes,
        refused(lambda: setattr(run, "mine", 1)),
    )
    steps = [run.step]
    for step in (3, 3, 7):
        wandb.log({"loss": step}, step=step)
        steps.append(run.step)
    wandb.log({"loss": 8})
    steps.append(run.step)
    wandb.log({"loss": 9, "other": {"kl": 0.5}}, commit=False)
    steps.append(wandb.run.step)
    run.log({"loss": 9.5})
    yield [*steps, run.step]
    run.summary["best"] = 3
    wandb.run.summary.update({"worst": 9})
    wandb.summary["loss"] = 0.25
    yield run.summary["best"], wandb.summary["worst"], run.summary["loss"], wandb.run.summary.get("none")
    yield refused(lambda: run.log([1]))
    wandb.log({"loss": 10})
    artifact = wandb.Artifact("a", type="dataset", metadata={"rows": 3})
    yield isinstance(wandb.Histogram([1, 2]), wandb.Histogram), artifact.type
    run.finish()
    run.finish()
    yield wandb.run is None, refused(lambda: wandb.log({"loss": 1})), refused(lambda: run.log({"loss": 1}))


def a_block() -> Iterator[Any]:
    """A block that ends, and one that raises; and a run of the same name again."""
    with wandb.init(project="users", name="block") as run:
        yield isinstance(run, wandb.Run), run is wandb.run
        for step in range(3):
            run.log({"loss": step})
    yield wandb.run is None
    try:
        with wandb.init(project="users", name="raises") as run:
            run.log({"loss": 1}, step=5)
            raise KeyError("ours")
    except KeyError:
        yield wandb.run is None


def again() -> Iterator[Any]:
    """`wandb.init` where a run is open: the same one, the end of the other, and two at a time."""
    first = wandb.init(project="users", name="first")
    wandb.log({"loss": 0}, step=4)
    yield wandb.init(project="users", name="ignored") is first
    wandb.log({"kl": 1}, step=4)
    second = wandb.init(project="users", name="second", reinit="finish_previous")
    yield second is not first, wandb.run is second
    second.log({"loss": 2}, step=1)
    third = wandb.init(project="users", name="third", reinit="create_new")
    for step in range(3):
        third.log({"loss": 10 + step})
        wandb.log({"loss": 20 + step}, step=2 + step)
    yield wandb.run is second, third is not second
    third.finish()
    wandb.log({"loss": 30}, step=9)
    wandb.finish()


def watched() -> Iterator[Any]:
    """Gradients, which wandb's hooks log into the row that is open."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    for name, explicit in (("watched", False), ("watched by step", True)):
        wandb.init(project="users", name=name)
        wandb.watch(model, log="gradients", log_freq=1)
        for step in range(4):
            loss = model(torch.ones(3, 2)).sum()
            loss.backward()
            values = {"loss": step, "note": "a text"} if step == 2 else {"loss": step}
            wandb.log(values, step=step if explicit else None)
        wandb.unwatch(model)
        wandb.finish()
    yield "watched"


def swept() -> Iterator[Any]:
    """As a sweep's agent runs trials: each in a thread, and wandb's own module ends its run."""
    import wandb as own

    def train(trial: int) -> None:
        wandb.init(project="users", name=f"trial {trial}", config={"trial": trial})
        for step in range(2):
            wandb.log({"loss": trial + step}, step=step)

    for trial in (10, 20):
        thread = threading.Thread(target=train, args=(trial,))
        thread.start()
        thread.join()
        own.finish()
        yield wandb.run is None


def openrlhf() -> Iterator[Any]:
    """After OpenRLHF's WandbLogger: a run that wandb's own module opened, no steps, and a table that is made anew."""
    import wandb as own

    own.init(project="users", name="openrlhf", config={"lr": 0.1}, reinit=True)
    own.define_metric("train/global_step")
    own.define_metric("train/*", step_metric="train/global_step", step_sync=True)
    own.define_metric("eval/*", step_metric="eval/epoch", step_sync=True)
    handle = wandb  # `logger.handle = declog.tee(wandb)`
    table = own.Table(columns=["global_step", "text", "reward"])
    for step in range(1, 4):
        new = handle.Table(columns=table.columns, data=table.data)
        new.add_data(step, "a text", step / 2)
        table = new
        handle.log({"train/generated_samples": new})
        handle.log({"train/loss": 1 / step, "train/reward": step / 2, "train/global_step": step})
        if step == 2:
            handle.log({"eval/accuracy": 0.5, "eval/global_step": step})
    handle.finish()
    yield wandb.run is None


def areal() -> Iterator[Any]:
    """After AReaL's StatsLogger: several rows of one call, each a step of its own; what counts is left out by it."""
    wandb.init(
        mode="offline", project="users", name="areal", id="areal_trial", resume="allow", force=True, job_type="train",
        config={"nested": {"lr": 0.1}},
    )  # fmt: skip
    last = -1
    for step in range(3):
        data = [{"loss": step, "loss__count": 4, "reward": step / 2}, {"loss": step + 10, "reward": 0.5}]
        at = max(step, last + 1)
        for place, item in enumerate(data):
            wandb.log({name: value for name, value in item.items() if not name.endswith("__count")}, step=at + place)
        last = at + len(data) - 1
    wandb.finish()
    yield last


def disabled() -> Iterator[Any]:
    """A run that logs nothing."""
    run = wandb.init(project="users", mode="disabled")
    yield isinstance(run, wandb.Run), wandb.run is run, run.disabled
    run.log({"loss": 1})
    wandb.log({"loss": 1}, step=3)
    wandb.watch(torch.nn.Linear(2, 1))
    run.summary["best"] = 1
    wandb.finish()
    yield wandb.run is None


def never_finished() -> Iterator[Any]:
    """The program ends."""
    wandb.init(project="users", name="never finished")
    wandb.log({"loss": 1}, step=3)
    wandb.log({"loss": 2}, step=4)
    wandb.log({"kl": 2}, step=4)
    yield isinstance(wandb.run, wandb.Run)


for use in (before_init, looks, a_block, again, watched, swept, openrlhf, areal, disabled, never_finished):
    print(json.dumps([use.__name__, list(use())]), flush=True)
