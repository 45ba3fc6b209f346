"""Loops that log by a logger of their own, teed: wandb, ``log(values, step)``, ``log_metrics``, SummaryWriter."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

import declog
from declog.integrations import tensorboard
from declog.testing import MemorySink
from tests import forks
from tests.sinks.wandb_reader import read_runs

# What a loop does with wandb; only the first line is another one where it is teed.
LOOP = """
{line}
import numpy as np

with wandb.init(project="mine", config={{"lr": 0.1}}) as run:
    wandb.config.update({{"seed": 1}})
    wandb.define_metric("val/*", step_metric="epoch")
    for step in range(0, 60, 10):
        wandb.log({{"train/loss": 1 / (step + 1), "rollout/seconds": step}}, step=step)
        wandb.log({{"nested": {{"reward": step, "deep": {{"kl": 1}}}}}}, step=step)
        wandb.log({{"actor/entropy": np.float32(step), "note": "a text", "list": [1, 2]}}, step=step)
        if step % 20 == 0:
            image = wandb.Image(np.full((4, 4, 3), step, np.uint8))
            table = wandb.Table(columns=["step"], data=[[step]])
            wandb.log({{"image": image, "table": table, "histogram": wandb.Histogram([1, 2, 3])}}, step=step)
    wandb.log({{"val/accuracy": 0.5, "epoch": 1}})
    wandb.log({{"val/accuracy": 0.75, "epoch": 2}})
    wandb.log({{"val/accuracy": 0.8}}, commit=False)
    run.log({{"epoch": 3}})
    wandb.log({{"train/loss": float("nan")}}, step=1000)
    if step == 50:
        wandb.alert(title="slow", text="of the loop")
    run.summary["best"] = 0.8
"""


def looped(folder: Path, line: str) -> tuple[Any, list[str]]:
    """The run of wandb's, and what declog said of what wandb alone has."""
    folder.mkdir()
    env = {"WANDB_MODE": "offline", "WANDB_CONSOLE": "off", "WANDB_SILENT": "true", "HOME": str(folder)}
    done = forks.run(["-c", LOOP.format(line=line)], cwd=folder, env=forks.environment(env))
    assert done.returncode == 0, done.stderr
    (run,) = read_runs(folder)
    return run, [line for line in done.stderr.splitlines() if " went to wandb alone" in line]


def rows(run: Any) -> list[dict[str, Any]]:
    """wandb's rows without clocks, a nested mapping's names joined as wandb shows them, a file by its type."""

    def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in values.items():
            if isinstance(value, Mapping) and "_type" not in value:
                found |= flat(value, f"{before}{name}.")
            elif name not in ("_timestamp", "_runtime"):
                found[before + name] = value["_type"] if isinstance(value, Mapping) else value
        return found

    return [{name: "nan" if value != value else value for name, value in flat(row).items()} for row in run.rows]


@pytest.mark.slow
def test_one_import_is_changed(tmp_path: Path) -> None:
    """wandb has the same rows; parquet has all numbers of the loop."""
    plain, _ = looped(tmp_path / "plain", "import wandb")
    teed, told = looped(tmp_path / "teed", "from declog.integrations import wandb")
    numbers = {
        name for row in rows(plain) for name, value in row.items()
        if isinstance(value, float | int) and name[0] != "_"
    }  # fmt: skip
    assert "rollout/seconds" in numbers
    expected = rows(plain)
    expected[-1]["nonfinite/logged"] = 1
    assert rows(teed) == expected
    assert (teed.config["lr"], teed.config["seed"], teed.metrics, teed.finished) == (0.1, 1, plain.metrics, True)
    assert sorted(name for name, _, _ in teed.alerts) == ["broken", "slow"]

    (folder,) = (tmp_path / "teed" / "outputs" / "tee").iterdir()
    # each name is told of once, and kept with the run
    again = "; this fix replaces the one before, and is for all"  # after that for `list`
    no_numbers = {
        "`list`, `note`": "",
        "`histogram`, `image`, `table`": again,
        "`alert: slow`": "",
        "`summary: best`": "",
    }
    with pytest.raises(KeyError, match="wandb alone has it"):
        declog.read(folder).tables["table"]
    assert sorted(told) == sorted(
        f"declog keeps numbers, in {folder}; {names} went to wandb alone{more}" for names, more in no_numbers.items()
    )
    found = list(declog.read(folder).scalars)
    kept = {(row["step"], row["name"]): row["value"] for row in found if row["name"] != "nonfinite/logged"}
    logged = {
        (row["_step"], name): value for row in rows(plain) for name, value in row.items()
        if name in numbers and value != "nan"
    }  # fmt: skip
    assert math.isnan(kept.pop((1000, "train/loss")))
    assert kept == pytest.approx(logged)


TABLES = """
import numpy as np
import declog
{tee}
run = wandb.init(project="mine")
for step in range(4):
    reward = np.arange(4.0) + step
    declog.observe(reward=reward, prompt=["of the loop"] * 4)
    lengths = np.arange(8) + step
    wandb.log({{"reward": reward.mean(), "lengths": {lengths}}}, step=step, commit=False)
    if step % 2:
        data = [["2+2", "4", 1.0, True, step], ["3+3", None, 0, False, step]]
        table = wandb.Table(columns=["prompt", "Model answer", "reward", "ok", "step"], data=data)
        wandb.log({{"val/samples": table, f"step_{{step}}": wandb.Table(columns=["a"], data=[[step]])}}, step=step)
wandb.finish()
back = declog.read(run)
print([[float(value) for value in back["mean_reward"].values], [sum(row["counts"]) for row in back.histograms]])
for name in ("val_samples", "val/samples", "step_0"):
    try:
        print(list(back.tables[name]))
    except KeyError as error:
        print(["" + str(error)])
"""
OF_LOOP = """
from declog.integrations import wandb
wandb = declog.tee(wandb, "tee", ["signals.any.reward=completion", "signals.any.prompt=completion text",
                                  "metrics.mean_reward={expr: reward, reduce: mean}"])
"""


@pytest.mark.slow
def test_the_edit_for_what_is_no_number(tmp_path: Path) -> None:
    """The last note holds the call that keeps the rows of all tables, the error where a table is read that for its own.

    They are rows of the step in which the loop logs them, whatever it observes under the titles of their columns.
    """
    env = {"WANDB_MODE": "offline", "WANDB_CONSOLE": "off", "WANDB_SILENT": "true", "HOME": str(tmp_path)}

    def looped(tee: str, lengths: str) -> tuple[list[Any], str]:
        code = TABLES.format(tee=tee, lengths=lengths)
        done = forks.run(["-c", code], cwd=tmp_path, env=forks.environment(env))
        assert done.returncode == 0, done.stderr
        return [ast.literal_eval(line) for line in done.stdout.splitlines()], done.stderr

    means = [1.5, 2.5, 3.5, 4.5]
    (values, _, (error,), _), note = looped(OF_LOOP, "wandb.Histogram(lengths)")
    assert values == [means, []]
    in_place = ", and log the values in place of their histogram: {'lengths': values}"
    first, edit = [line.removeprefix("  fix: ") for line in note.splitlines() if "  fix: " in line]
    assert first.endswith(in_place) and "`step_1`, `val/samples` went to wandb alone; this fix replaces" in note
    call, values_in_place, _ = edit.partition(in_place)
    assert values_in_place and "tables.val_samples=" in error and "lengths" not in error and len(error) < len(edit)

    (values, rows, _, _), note = looped(f"import wandb\n{call}", "wandb.Histogram(lengths)")  # the call alone
    assert values == [means, []] and len(rows) == 4
    assert f"`lengths` went to wandb alone\n  fix: {in_place.removeprefix(', and ')}\n" in note and "DL" not in note
    *_, run = read_runs(tmp_path)
    assert not [name for row in run.rows for name in row if name.startswith("declog/")]

    (values, rows, _, steps), note = looped(f"import wandb\n{call}", "lengths")
    assert values == [means, [8] * 4] and not note
    assert [(row["step"], row["a"]) for row in steps] == [(1, 1), (3, 3)]
    columns = ("step", "prompt", "Model answer", "reward", "ok")
    assert [tuple(row.get(name) for name in columns) for row in rows] == [
        (step, *row) for step in (1, 3) for row in (("2+2", "4", 1.0, True), ("3+3", None, 0.0, False))
    ]
    *_, run = read_runs(tmp_path)
    names = {name for row in run.rows for name in row}
    assert names >= {"mean_reward", "lengths", "val/samples", "step_1"} and "step_0" in names


class Table:
    """As wandb's."""

    def __init__(self, columns: list[str], data: list[list[Any]]) -> None:
        self.columns, self.data = columns, data


@pytest.mark.parametrize("config, overrides", [
    ("tee", ["+signals.any={reward: completion, x: step}", "metrics.r=mean(reward)"]),
    ("tee", ["signals.rollout.reward=completion", "signals.samples.samples_reward=completion", "metrics.r=mean(reward)",
             "metrics.s=mean(samples_reward)"]),
    ("grpo", ["axes.group.size=2", "every=1", "sinks=[parquet]", "metrics.r=mean(reward)"]),
])  # fmt: skip
def test_a_table_beside_what_a_config_has(
    config: str, overrides: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its titles are names of signals, its name is a table's and a phase's; a table that grows is not counted twice."""

    def looped(overrides: list[str], folder: str) -> Any:
        logger = declog.tee(Logger(), config, overrides, output_dir=tmp_path / folder)
        growing = Table(["text"], [])
        for step in range(3):
            declog.observe(reward=torch.arange(4.0) + step)
            logger.log({"acc": 1.0}, step)
            growing.data.append([f"row {step}"])
            logger.log(
                {"samples": Table(["text", "reward"], [[f"{n}", 9.0] for n in range(3)]), "growing": growing}, step
            )
        logger.close()
        return declog.read(logger)

    run = looped(overrides, "first")
    edit = caplog.text.partition("fix: logger = declog.tee(logger, ")[2].splitlines()[0].removesuffix(")")
    name, added = ast.literal_eval(f"({edit})")
    caplog.clear()
    again = looped(added, "second")
    assert name == config and "alone" not in caplog.text
    assert list(again["r"].values) == list(run["r"].values) == [1.5, 2.5, 3.5]
    (table,) = [again.tables[id] for id in ("samples", "logged_samples") if f"tables.{id}={{" in edit]
    assert [(row["step"], row["text"], row["reward"]) for row in table] == [
        (step, f"{n}", 9.0) for step in range(3) for n in range(3)
    ]
    assert [(row["step"], row["text"]) for row in again.tables["growing"]] == [(n, f"row {n}") for n in range(3)]


READ = """
import declog
from declog.integrations import wandb

for options in ({}, {"mode": "disabled"}):
    run = wandb.init(**options)
    run.log({"loss": 0.5})
    run.finish()
    try:
        print(declog.read(run)["loss"].values)
    except declog.UsageError as error:
        print(error.message)
"""


@pytest.mark.slow
def test_a_run_of_wandbs_is_read(tmp_path: Path) -> None:
    """By what `wandb.init` returned; one that is disabled has nothing to read."""
    env = {"WANDB_MODE": "offline", "WANDB_CONSOLE": "off", "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    done = forks.run(["-c", READ], cwd=tmp_path, env=forks.environment(env))
    said = "this RunTee has no recorder: its run has not begun, or logs nothing on this rank"
    assert (done.returncode, done.stdout.splitlines()) == (0, ["[0.5]", said]), done.stderr


FULL = """
defaults: [trainer, _self_]
run: {project: mine}
sinks: [parquet]
every: 1
profile: full
metrics: {logged: {reduce: last, over: step, nan: propagate}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose own ``tee`` keeps all numbers everywhere."""
    monkeypatch.chdir(project_in(tmp_path))
    return tmp_path


def project_in(folder: Path) -> Path:
    (folder / "conf/declog").mkdir(parents=True)
    (folder / "conf/declog/tee.yaml").write_text(FULL)
    (folder / "pyproject.toml").write_text('[tool.declog]\nconfig_dir = "conf"\n')
    return folder


@pytest.mark.slow
def test_code_that_looks_at_wandb(tmp_path: Path) -> None:
    """What users do with the module and its runs looks the same, and each run has the same rows, whoever ends it."""
    seen, kept = {}, {}
    for name, line in (("plain", "import wandb"), ("teed", "from declog.integrations import wandb")):
        folder = project_in(tmp_path / name)
        env = {"WANDB_MODE": "offline", "WANDB_CONSOLE": "off", "WANDB_SILENT": "true", "HOME": str(folder)}
        done = forks.run(["-m", "tests.integrations.wandb_users", line], cwd=folder, env=forks.environment(env))
        assert done.returncode == 0, done.stderr
        seen[name] = [json.loads(each) for each in done.stdout.splitlines() if each.startswith("[")]
        kept[name] = {run.name: (run.finished, rows(run)) for run in read_runs(folder)}
    assert (len(seen["plain"]), seen["teed"]) == (10, seen["plain"])
    assert (len(kept["plain"]), kept["teed"]) == (13, kept["plain"])
    files = [list(declog.read(folder).scalars) for folder in (tmp_path / "teed/outputs/mine").iterdir()]
    logged = [
        (row["_step"], name, value) for _, run in kept["plain"].values() for row in run for name, value in row.items()
        if isinstance(value, float | int) and name != "_step"
        and not {"train/generated_samples", "eval/accuracy"} & row.keys()  # where wandb puts its step metrics in
    ]  # fmt: skip
    found = sorted((row["step"], row["name"], row["value"]) for one in files for row in one)
    assert [each for each in found if not each[1].startswith("eval/")] == sorted(logged)


class Logger:
    """A trainer's logger: keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.closed = False

    def log(self, data: Mapping[str, Any], step: int) -> None:
        self.calls.append((dict(data), step))

    def close(self) -> None:
        self.closed = True


class Metrics:
    """The shape of NeMo-RL's loggers."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def log_metrics(
        self, metrics: dict[str, Any], step: int, prefix: str | None = "", step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:  # fmt: skip
        self.calls.append((dict(metrics), step, prefix, step_finished))


@pytest.mark.parametrize(
    ("profile", "names"), [([], ["loss", "reward", "seconds"]), (["profile=slim"], ["loss", "reward"])], ids=str
)
def test_an_object_that_logs(
    profile: list[str], names: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It gets every call as it was made; other sinks, of whichever kind, get every number unless a profile is said."""
    logger, memory = Logger(), MemorySink()
    with declog.tee(logger, "tee", ["sinks=[jsonl]", *profile], sinks=[memory], output_dir=tmp_path) as log:
        for step in range(3):
            log.log({"loss": torch.tensor(float(step)), "seconds": 2, "text": "a", "kl": None}, step)
            log.log({"reward": np.float32(step)}, step=step)
        assert log.calls is logger.calls
    assert "`text` went to Logger alone" in caplog.text and "`kl`" not in caplog.text  # None is no value
    calls = [
        [({"loss": step, "seconds": 2, "text": "a", "kl": None}, step), ({"reward": step}, step)] for step in range(3)
    ]
    assert logger.calls == [call for of_step in calls for call in of_step]
    assert [sorted(memory.scalars[step]) for step in range(3)] == [names] * 3
    assert {row["name"] for row in declog.read(tmp_path).scalars} == {*names}
    assert logger.closed


def test_log_metrics_with_a_prefix(tmp_path: Path) -> None:
    """The prefix stands before the names that declog has."""
    logger, figure, sink = Metrics(), object(), MemorySink()
    log = declog.tee(logger, "tee", ["sinks=none", "profile=full"], sinks=[sink], output_dir=tmp_path)
    for step in range(2):
        log.log_metrics({"loss": step, "figure": figure}, step, prefix="train")
        log.log_metrics({"seconds": 3.0}, step, "timing", step_finished=True)
    log.finish()
    calls = [
        [({"loss": step, "figure": figure}, step, "train", False), ({"seconds": 3.0}, step, "timing", True)]
        for step in range(2)
    ]
    assert logger.calls == [call for of_step in calls for call in of_step]
    assert sink.scalars == {step: {"train/loss": step, "timing/seconds": 3.0} for step in range(2)}


class Tracking:
    """The shape of SkyRL's tracker, with its wandb."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def log(self, data: Mapping[str, Any], step: int, commit: bool = False) -> None:
        self.calls.append((dict(data), step, commit))

    def finish(self) -> None:
        self.calls.append(("finished",))


def test_a_tracker_that_commits(tmp_path: Path) -> None:
    """Calls of a step until the one that commits are one step; one that comes after it is late, and counted."""
    tracker, sink = Tracking(), MemorySink()
    log = declog.tee(tracker, "tee", ["sinks=none", "profile=full"], sinks=[sink], output_dir=tmp_path)
    for step in (10, 11):
        log.log({"reward/avg": step}, step=step, commit=False)
        log.log({"timing/train": 2}, step=step, commit=True)
    log.log({"late": 1}, step=11)
    log.finish()
    assert sink.scalars == {step: {"reward/avg": step, "timing/train": 2} for step in (10, 11)}
    assert tracker.calls[:2] == [({"reward/avg": 10}, 10, False), ({"timing/train": 2}, 10, True)]
    assert tracker.calls[-2:] == [({"late": 1}, 11, False), ("finished",)]
    assert log.recorder.failures == {
        "[DL513] numbers came for a step that has ended: it was committed, or a later step was logged": 1
    }


class Shapes:
    """The ways in which loggers of trainers are called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.epoch = 0

    def data_and_step(self, data: Any, step: int, backend: Any = None) -> None:
        self.calls.append((step, dict(data)))

    def step_first(self, global_step: int, metrics: Mapping[str, Any]) -> None:
        self.calls.append((global_step, dict(metrics)))

    def other_name(self, metrics: Mapping[str, Any], it: int = 0, *, prefix: str = "") -> None:
        self.calls.append((it, {f"{prefix}{name}": value for name, value in metrics.items()}))

    def no_step(self, metrics: Mapping[str, Any]) -> None:
        self.calls.append((len(self.calls), dict(metrics)))

    def by_keyword(self, step: int, **metrics: Any) -> None:
        self.calls.append((step, metrics))

    def decorated(self, *args: Any, **kwargs: Any) -> None:
        self.data_and_step(*args, **kwargs)


SHAPES = {
    "decorated": lambda log, step, values: log(values, step=step) if step else log(values, step),
    "data_and_step": lambda log, step, values: log(data=values, step=step),
    "step_first": lambda log, step, values: log(step, values),
    "other_name": lambda log, step, values: log(values, step),
    "no_step": lambda log, step, values: log(values),
    "by_keyword": lambda log, step, values: log(step, **values),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_how_a_logger_is_called(shape: str, tmp_path: Path) -> None:
    """It is called as ever, and gets what it would have got: by keyword, the step first, named, or none."""

    class Own(Shapes):
        log = vars(Shapes)[shape]

    plain, own, sink = Own(), Own(), MemorySink()
    log = declog.tee(own, "tee", ["sinks=none", "profile=full"], sinks=[sink], output_dir=tmp_path)
    assert (isinstance(log, Own), isinstance(log, Logger)) == (True, False)
    for step in range(3):
        values = {"loss": step / 2, "kl": step}
        for each in (plain, log):
            SHAPES[shape](each.log, step, values)
    log.epoch = 3
    log.finish()
    assert (own.calls, own.epoch) == (plain.calls, 3)
    assert sink.scalars == {step: {"loss": step / 2, "kl": step} for step in range(3)}


def test_whatever_ends_the_logger(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step is there before the logger is ended, as accelerate's trackers are by ``end_training``."""
    from accelerate import Accelerator

    found = {}
    for name in ("own", "teed"):
        accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(project / name))
        accelerator.init_trackers("run", config={"lr": 0.1})
        log = declog.tee(accelerator) if name == "teed" else accelerator
        assert isinstance(log, Accelerator)
        for step in range(3):
            log.log({"loss": torch.tensor(step / 2), "kl": step}, step=step)
            log.log({"reward": 1.0 + step}, step, log_kwargs={"tensorboard": {}})
        log.end_training()
        found[name] = points(project / name)
    assert (len(found["own"]), found["teed"]) == (9, found["own"])


def test_a_logger_of_its_own(tmp_path: Path) -> None:
    """Without a logger it is one, for loops that only want an object with ``log``; without steps each call is one."""
    log = declog.tee(None, output_dir=tmp_path)
    for step in range(3):
        log.log({"loss": step})
    log.close()
    found = list(declog.read(tmp_path).scalars)
    assert [(row["step"], row["name"], row["value"]) for row in found] == [(step, "loss", step) for step in range(3)]
    log.log({"loss": 4})  # after its end it takes nothing


@pytest.mark.parametrize("way", ["tee", "tracker"])
def test_what_nobody_keeps_without_a_logger(way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said to be left out, also where the run is read, and what is to be typed keeps a table."""
    from accelerate import PartialState

    from declog.integrations.accelerate import DeclogTracker

    def logged(folder: str, **options: Any) -> Any:
        overrides = [*options.pop("overrides", ()), "sinks=[parquet]"]
        options = {"output_dir": tmp_path / folder, "overrides": overrides}
        log = declog.tee(None, **options) if way == "tee" else DeclogTracker("trainer", **options)
        log.log({"loss": 1.0, "txt": "hello", "tab": Table(["prompt", "score"], [["a", 1.0], ["b", 2.0]])}, 0)
        log.finish()
        return declog.read(tmp_path / folder)

    PartialState()
    run = logged("first")
    said = caplog.text
    assert "left out: `tab`, `txt`\n  fix: overrides=[" in said and "None" not in said and "alone" not in said
    with pytest.raises(KeyError, match="it was left out: declog keeps the numbers"):
        run["txt"]
    (overrides,) = re.findall(r"fix: overrides=(\[.*\])", said)
    run = logged("second", overrides=ast.literal_eval(overrides))
    assert run.tables["tab"].arrow().column("prompt").to_pylist() == ["a", "b"]
    with pytest.raises(AttributeError, match="a tee without a logger has no `nope`"):
        _ = declog.tee(None, output_dir=tmp_path / "third").nope


def test_what_is_observed_is_of_the_step_that_is_logged(tmp_path: Path) -> None:
    """Rows that come before a step's first call are of it, whatever is open until the next."""
    profile = {
        "signals": {"any": {"reward": "completion"}},
        "metrics": {"reward": "mean(reward)", "kl": {"observe": {"from": "actor/kl"}}},
        "about": {"kl": {"title": "KL"}},
        "alerts": {"kl": "> 0.5"},
    }
    sink = MemorySink()
    with declog.tee(None, profile, sinks=[sink], output_dir=tmp_path) as log:
        for step in range(1, 4):
            declog.observe(reward=[float(step)] * 2)
            log.log({"actor/kl": step / 4, "loss": step}, step)
            log.log({"more": 1}, step)
    assert sink.scalars == {
        step: {"reward": step, "actor/kl": step / 4, "loss": step, "more": 1} for step in range(1, 4)
    }
    assert [(step, alert.text) for step, alert in sink.alerts] == [(3, "kl is 0.75: kl > 0.5")]


def test_a_summary_writer(tmp_path: Path) -> None:
    """Its file is as without the tee, whatever the profile shows; a tag with an axis of its own keeps it there."""
    full = MemorySink()
    profile = ["sinks=none", "profiles.slim.only=['*loss*', 'val/*']"]
    with declog.tee(SummaryWriter(str(tmp_path / "board")), "tee", profile, sinks=[], output_dir=tmp_path) as writer:
        for step in range(5, 8):
            writer.add_scalar("train/loss", 1 / step, step)
            writer.add_scalars("time", {"load": step, "train": 2}, step)
            writer.add_text("sample", "a text", step)
            writer.add_histogram("rewards", np.arange(5), step)
            writer.add_scalar("val/accuracy", 0.5, step - 5)
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    tags = board.Tags()
    assert (sorted(tags["scalars"]), tags["histograms"]) == (["train/loss", "val/accuracy"], ["rewards"])
    for name in ("load", "train"):
        assert points(tmp_path / "board" / f"time_{name}")
    assert [(each.step, each.value) for each in board.Scalars("train/loss")] == [
        (step, pytest.approx(1 / step)) for step in range(5, 8)
    ]
    assert [(each.step, each.value) for each in board.Scalars("val/accuracy")] == [(step, 0.5) for step in range(3)]
    assert full.scalars == {}


def points(folder: Path) -> list[tuple[str, str, int, float]]:
    """All scalars below a folder, by the folder of their file."""
    found = []
    for file in folder.rglob("events*"):
        board = EventAccumulator(str(file))
        board.Reload()
        for tag in board.Tags()["scalars"]:
            place = str(file.parent.relative_to(folder))
            found += [(place, tag, each.step, each.value) for each in board.Scalars(tag)]
    return sorted(found)


def written(kind: Any, folder: Path) -> Any:
    """What training code does with a writer."""

    class Mine(kind):  # type: ignore[misc]  # a class that is given
        def log(self, values: Mapping[str, Any], step: int) -> None:
            for name, value in values.items():
                self.add_scalar(name, value, global_step=step)

    def use(writer: kind | None) -> None:
        assert isinstance(writer, kind)

    with Mine(str(folder / "mine"), flush_secs=1) as writer:
        for step in range(3):
            writer.log({"loss": torch.tensor(step / 2), "kl": np.float32(step)}, 10 * step)
            writer.add_scalars("losses/all", {"value": step, "policy": 2.0}, 10 * step)
            writer.add_scalar("epoch/accuracy", step / 4, step)
            writer.add_scalar("lr", np.array([0.5]), 10 * step)
            writer.add_scalar("unnumbered", step)
        writer.flush()
        writer.log({"loss": 7.0}, 30)
        writer.log({"loss": 8.0}, 15)
        writer.log({"loss": 9.0}, 30)
        for reward in (4.0, 6.0, 5.0):  # of environments that end together
            writer.log({"reward": reward}, 40)
        writer.add_hparams({"lr": 0.1}, {"best": 3.0}, run_name="hparams")
    use(writer)
    writer.close()
    writer.add_scalar("late", 1.0, 50)
    writer.close()
    with kind(str(folder / "plain")) as writer:
        use(writer)
        for value in (1.0, 2.0, 3.0):
            writer.add_scalar("loss", value)
            writer.add_scalar("kl", value)
    return writer


def test_code_that_looks_at_its_writer(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A class made of the writer's, charts of several scalars, tags with axes of their own: its files are the same."""
    written(SummaryWriter, project / "own")
    writer = written(tensorboard.SummaryWriter, project / "teed")
    expected, found = points(project / "own"), points(project / "teed")
    assert found == expected
    runs = [list(declog.read(folder).scalars) for folder in sorted((project / "outputs/mine").iterdir())]
    first, second = ({(row["step"], row["name"]): row["value"] for row in run} for run in runs)
    for step in (0, 10, 20):
        assert [first[step, name] for name in ("loss", "kl", "losses/all/value", "epoch/accuracy", "unnumbered")] == [
            step / 20, step / 10, step / 10, step / 40, step / 10,
        ]  # fmt: skip
    assert (first[30, "loss"], second) == (
        9.0,
        {(step, name): step + 1 for step in range(3) for name in ("loss", "kl")},
    )
    assert "`loss` goes back from step 30 to 15: it is recorded at step 30" in caplog.text
    assert dict(writer.recorder.failures) == {}


def test_a_logger_of_no_known_shape() -> None:
    """It is refused, with what would be one."""
    with pytest.raises(declog.UsageError, match="a int is no logger that `tee` knows"):
        declog.tee(3)
