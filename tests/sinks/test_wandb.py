"""The wandb sink, offline, read back from wandb's own transaction log and media files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wandb

import declog
from declog.errors import SinkError
from declog.records import Alert, Column, DType, Histogram, Places, Records, Scalar, Table
from declog.sinks.runner import SinkRunner
from declog.sinks.wandb import INCREMENTS, LOCAL_STEP, WAITING, WandbSink
from tests.running import profile
from tests.sinks.samples import EXACT, SURROGATE, event, run_info, table
from tests.sinks.wandb_reader import OfflineRun, read_runs

# wandb's artifacts leave their temporary folders to the garbage collector; the fixture `wandb_folder` calls it.
pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")


def logged(wandb_folder: Path, *events: tuple[int, Records], **options: Any) -> OfflineRun:
    """The one run that a sink writes, on its own thread as in a real run."""
    runner = SinkRunner("wandb", WandbSink(**options))
    runner.open(run_info(wandb_folder))
    for step, records in events:
        runner.submit(step, records)
    report = runner.close(60)
    assert (report.failed, report.finished) == (0, True), report
    (run,) = read_runs(wandb_folder)
    return run


def scalars(**values: float) -> Records:
    """A log event of scalars only."""
    return Records(scalars=tuple(Scalar(name, value, name) for name, value in values.items()))


def test_everything_of_a_log_event_is_in_one_row(wandb_folder: Path) -> None:
    """Scalars, a histogram and a table at the optimizer step; NaN, infinities and large integers as they are."""
    run = logged(wandb_folder, (0, event(0)), (5, event(5)))
    assert [row["_step"] for row in run.rows] == [0, 5]
    row = run.rows[1]
    assert (row["reward"], row["tokens"], row["done"]) == (2.5, EXACT + 5, 1)
    assert math.isnan(row["loss/größe"])
    assert row["loss/inf"] == -math.inf
    assert row["lengths"] == {"_type": "histogram", "values": [0, 2, 3], "bins": [0, 1, 2, 4]}
    assert run.finished


def test_no_row_of_a_table_is_lost(wandb_folder: Path) -> None:
    """Each log event adds its rows, typed, with nulls and text that is not ASCII."""
    run = logged(wandb_folder, *((step, event(step)) for step in range(3)))
    rows = run.table("completions")
    assert [row["id"] for row in rows] == [EXACT + 10 * step + row for step in range(3) for row in range(3)]
    assert rows[0] == {
        "id": EXACT,
        "reward": 1.5,
        "ok": True,
        "prompt": "größer 漢字\nzwei",
        "extra": '{"a":[1,"Infinity"]}',
    }
    assert math.isnan(rows[1]["reward"])
    assert (rows[1]["ok"], rows[1]["extra"], rows[2]["reward"], rows[2]["prompt"]) == (None, None, None, None)
    assert [row["completions"]["_type"] for row in run.rows] == ["incremental-table-file"] * 3


def test_two_tables_in_one_step_lose_no_scalar(wandb_folder: Path) -> None:
    """One call holds both tables and all scalars, also where train and eval log at the same step."""
    pair = (table("train/completions", id="a"), table("worst rows", id="b", first=7))
    events = [
        (step, replace(scalars(**{f"{mode}/reward": step + 0.5, f"{mode}/kl": step * 2.0}), mode=mode, tables=tables))
        for step in range(4)
        for mode, tables in (("train", pair), ("eval", ()))
    ]
    run = logged(wandb_folder, *events)
    for name in ("train/reward", "eval/reward"):
        assert run.series(name) == [(step, step + 0.5) for step in range(4)]
    for name in ("train/kl", "eval/kl"):
        assert run.series(name) == [(step, step * 2.0) for step in range(4)]
    assert [row["id"] for row in run.table("train/completions")] == [EXACT, EXACT + 1, EXACT + 2] * 4
    assert [row["id"] for row in run.table("worst rows")] == [EXACT + 7, EXACT + 8, EXACT + 9] * 4


def test_train_and_eval_rows_of_one_table_stay_apart(wandb_folder: Path) -> None:
    """A mode's prefix makes another name of the same table; an event without rows adds nothing."""
    names = {"train": "completions", "eval": "eval_completions"}
    events = [
        (step, Records(mode=mode, tables=(table(name, first=10 * step, rows=step),)))
        for step in range(3)
        for mode, name in names.items()
    ]
    run = logged(wandb_folder, *events)
    for name in names.values():
        assert [row["id"] for row in run.table(name)] == [EXACT + 10, EXACT + 20, EXACT + 21]


def test_more_increments_than_wandb_shows_lose_no_row(wandb_folder: Path) -> None:
    """After 100 log events a new table object goes on under the same name."""
    column = (Column("n", DType.INT),)
    count = INCREMENTS + 5
    events = ((n, Records(tables=(Table("t", "t", column, {"n": [n]}, 1),))) for n in range(count))
    run = logged(wandb_folder, *events)
    assert [row["n"] for row in run.table("t")] == list(range(count))
    assert max(len(row["t"]["previous_increments_paths"]) for row in run.rows) == INCREMENTS - 1


def test_a_table_whose_columns_change_stays_one(wandb_folder: Path) -> None:
    """Its rows are under one name: a column that comes later is null where it is not, and stays."""

    def rows(step: int) -> Records:
        wide = step % 2
        columns = (Column("n", DType.INT), *((Column("note", DType.TEXT),) if wide else ()))
        data: dict[str, list[Any]] = {"n": [step], **({"note": ["x"]} if wide else {})}
        return Records(tables=(Table("t", "t", columns, data, 1),))

    run = logged(wandb_folder, *((step, rows(step)) for step in range(4)))
    assert run.table("t") == [{"n": 0}, {"n": 1, "note": "x"}, {"n": 2, "note": None}, {"n": 3, "note": "x"}]
    assert all("t_2" not in row for row in run.rows)


def test_rows_say_why_they_were_picked(wandb_folder: Path) -> None:
    """In a first column, so that the best and the worst are told apart."""
    columns = (Column("n", DType.INT),)
    made = Table("t", "t", columns, {"n": [1, 2]}, 2, places=Places([0, 0], [0, 1], None, ["best", "worst"]))
    run = logged(wandb_folder, (0, Records(tables=(made,))))
    assert run.table("t") == [{"why": "best", "n": 1}, {"why": "worst", "n": 2}]


def test_the_best_value_is_in_the_summary(wandb_folder: Path) -> None:
    """A metric that is to rise has its greatest there, one that is to fall its smallest, beside the last."""
    good = {"about": {"reward": {"good": "up"}, "kl": {"good": "down"}, "loss": {}, "gone": None}}
    runner = SinkRunner("wandb", WandbSink())
    runner.open(replace(run_info(wandb_folder), declog=good))
    names = {"reward/mean": "reward.mean", "kl": "kl", "loss": "loss"}
    runner.submit(0, Records(scalars=tuple(Scalar(name, 1.0, metric) for name, metric in names.items())))
    assert runner.close(60).failed == 0
    (run,) = read_runs(wandb_folder)
    assert run.summaries == {"reward/mean": {"last", "max"}, "kl": {"last", "min"}}


def test_alerts_are_wandb_alerts(wandb_folder: Path) -> None:
    """Name, text and level arrive; a long name is cut to what wandb takes."""
    alerts = (Alert("kl_runaway", "warn", "KL 0.7"), Alert("x" * 80, "error", SURROGATE))
    run = logged(wandb_folder, (0, Records(alerts=alerts)))
    assert run.alerts == [("kl_runaway", "KL 0.7", "WARN"), ("x" * 63, "broken \\ud800 tail", "ERROR")]


def test_a_histogram_with_more_bins_than_wandb_takes_is_joined(wandb_folder: Path) -> None:
    """Neighbouring bins are added up; no count is lost and the outer edges stay."""
    histogram = Histogram("h", [1] * 1101, [float(edge) for edge in range(1102)], "h")
    row = logged(wandb_folder, (0, Records(histograms=(histogram,)))).rows[0]["h"]
    assert (len(row["values"]), sum(row["values"]), row["values"][0]) == (367, 1101, 3)
    assert (len(row["bins"]), row["bins"][0], row["bins"][-1]) == (368, 0, 1101)


def test_the_run_config_and_names(wandb_folder: Path) -> None:
    """The run is named by its id in a project named by the profile; metadata and declog's own are config."""
    run = logged(wandb_folder, (0, scalars(a=1.0)))
    assert (run.project, run.name) == ("grpo", "run-7")
    assert run.config["method"] == "grpo"
    assert run.config["größe"] == 7
    assert run.config["declog"]["config"] == {"profile": "full", "metrics": {"reward": {"reduce": ["mean"]}}}
    assert run.config["declog"]["fingerprint"] == "f00d"


def test_a_run_with_a_name_of_its_own(wandb_folder: Path) -> None:
    """Jobs of a sweep, `run.name=lr-1e-6`, are runs of one project, and called so there."""
    config = {**profile({"x": "completion"}, {"x": "mean(x)"}), "run": {"project": "sweep", "name": "lr-1e-6"}}
    with declog.start({**config, "sinks": ["wandb"], "sink_options": {"wandb": {"mode": "offline"}}},
                      output_dir=wandb_folder / "run") as log, log.step(0):  # fmt: skip
        log.observe(x=[1.0])
    (run,) = read_runs(wandb_folder)
    assert (run.project, run.name, declog.read(log).name) == ("sweep", "lr-1e-6", "lr-1e-6")


def test_options_name_the_run(wandb_folder: Path) -> None:
    """Project and name can be given, and what wandb finds runs by."""
    about = {"tags": ["grpo", "7b"], "notes": "a first try", "job_type": "train"}
    run = logged(wandb_folder, (0, scalars(a=1.0)), project="team", name="first", group="g", **about)
    assert (run.project, run.name) == ("team", "first")
    assert (run.tags, run.notes, run.job_type) == (["grpo", "7b"], "a first try", "train")


def test_wandbs_own_variables_are_honoured(wandb_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no option says otherwise, WANDB_PROJECT and WANDB_NAME do."""
    monkeypatch.setenv("WANDB_PROJECT", "from-env")
    monkeypatch.setenv("WANDB_NAME", "named")
    run = logged(wandb_folder, (0, scalars(a=1.0)))
    assert (run.project, run.name) == ("from-env", "named")


def joined(wandb_folder: Path, options: dict[str, Any] | None = None) -> tuple[Any, SinkRunner]:
    """A trainer's own open run, and a sink that joined it."""
    trainer = wandb.init(project="trainer", config={"method": "mine", "seed": 3})
    runner = SinkRunner("wandb", WandbSink(**(options or {})))
    runner.open(run_info(wandb_folder))
    return trainer, runner


def write(runner: SinkRunner, step: int, records: Records) -> None:
    runner.submit(step, records)
    assert runner.flush(60)


def test_a_joined_run_keeps_its_config_and_is_not_finished(wandb_folder: Path) -> None:
    """What the trainer set stays; declog adds what is missing and leaves the end to the trainer."""
    trainer, runner = joined(wandb_folder)
    write(runner, 0, scalars(a=1.0))
    assert runner.close(60).finished
    trainer.log({"late": 1})
    trainer.finish()
    (run,) = read_runs(wandb_folder)
    assert {key: run.config[key] for key in ("method", "seed", "größe")} == {"method": "mine", "seed": 3, "größe": 7}
    assert run.series("late") == [(0, 1)]


def test_a_joined_run_has_a_step_metric_of_declogs_own(wandb_folder: Path) -> None:
    """declog's values are drawn over declog/step; the trainer's steps and metrics are not touched."""
    trainer, runner = joined(wandb_folder)
    for step in range(3):
        trainer.log({"trainer/loss": step * 1.0})
        write(runner, 10 * step, scalars(reward=step + 0.5))
    runner.close(60)
    trainer.finish()
    (run,) = read_runs(wandb_folder)
    assert run.series("reward", x="declog/step") == [(0, 0.5), (10, 1.5), (20, 2.5)]
    assert run.series("trainer/loss") == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert run.metrics == {"declog/step": "", "reward": "declog/step"}


def test_a_trainer_with_explicit_steps_loses_nothing(wandb_folder: Path) -> None:
    """wandb drops what comes for a step that has passed, so declog commits no row that the trainer still fills."""
    trainer, runner = joined(wandb_folder)
    for step in range(4):
        trainer.log({"loss": step * 1.0}, step=step)
        write(runner, step, scalars(reward=step + 0.5))
        write(runner, step, replace(scalars(eval_reward=step + 0.25), mode="eval"))
        trainer.log({"after": step}, step=step)
    runner.close(60)
    trainer.finish()
    (run,) = read_runs(wandb_folder)
    assert run.series("loss") == [(step, step * 1.0) for step in range(4)]
    assert run.series("after") == [(step, step) for step in range(4)]
    assert run.series("reward", x="declog/step") == [(step, step + 0.5) for step in range(4)]
    assert run.series("eval_reward", x="declog/step") == [(step, step + 0.25) for step in range(4)]


@pytest.mark.parametrize("whose", ["the trainer's", "declog's"])
def test_a_sink_that_is_behind_costs_a_trainer_with_explicit_steps_nothing(whose: str, wandb_folder: Path) -> None:
    """In whoever's run: log events that come late, several at once, begin no row that the trainer has not come to."""
    if whose == "declog's":
        runner = SinkRunner("wandb", WandbSink())
        runner.open(run_info(wandb_folder))
        trainer: Any = wandb.run
    else:
        trainer, runner = joined(wandb_folder)
    for step in range(3):
        trainer.log({"loss": step * 1.0}, step=step)
    for step in range(3):
        write(runner, step, scalars(reward=step + 0.5))
    for step in range(3, 6):
        trainer.log({"loss": step * 1.0}, step=step)
        write(runner, step, scalars(reward=step + 0.5))
    assert runner.close(60).finished
    if whose == "the trainer's":
        trainer.finish()
    (run,) = read_runs(wandb_folder)
    assert run.series("loss") == [(step, step * 1.0) for step in range(6)]
    assert run.series("reward", x="declog/step") == [(step, step + 0.5) for step in range(6)]


def test_no_more_than_a_few_log_events_wait_for_a_row(wandb_folder: Path) -> None:
    """A trainer that logs without steps, and seldom: declog's values wait for no more than a few log events."""
    trainer, runner = joined(wandb_folder)
    for _ in range(40):
        trainer.log({"loss": 1.0})
    for step in range(30):
        write(runner, step, scalars(reward=step + 0.5))
    assert trainer.step == 40 + 30 - WAITING - 1
    assert runner.close(60).finished
    trainer.finish()
    (run,) = read_runs(wandb_folder)
    assert run.series("reward", x="declog/step") == [(step, step + 0.5) for step in range(30)]


def test_log_events_that_nobody_separates_do_not_overwrite_each_other(wandb_folder: Path) -> None:
    """In a run where only declog logs, every log event has a row of its own."""
    trainer, runner = joined(wandb_folder)
    for step in (3, 4, 9):
        write(runner, step, replace(event(step)))
    runner.close(60)
    trainer.finish()
    (run,) = read_runs(wandb_folder)
    assert run.series("reward", x="declog/step") == [(3, 1.5), (4, 2.0), (9, 4.5)]
    assert len(run.table("declog/completions")) == 9


def test_somebody_else_in_declogs_run_costs_nothing(wandb_folder: Path) -> None:
    """A trainer that finds declog's run open and gets ahead of it: declog goes over to a step metric.

    The step that this process counts is the one that wandb's service would say, without waiting for it.
    """
    sink = WandbSink()
    runner = SinkRunner("wandb", sink)
    runner.open(run_info(wandb_folder))
    other = wandb.run
    assert other is not None
    for step in range(6):
        write(runner, step, scalars(reward=step + 0.5))
        for extra in range(3):
            other.log({"other": 3 * step + extra})
        assert hasattr(other, LOCAL_STEP) and sink._row() == other.step
    runner.close(60)
    (run,) = read_runs(wandb_folder)
    assert [value for _, value in run.series("reward")] == [step + 0.5 for step in range(6)]
    assert [value for _, value in run.series("other")] == list(range(18))
    assert run.finished


def test_join_insists_on_an_open_run(wandb_folder: Path) -> None:
    """``run: join`` without a run is an error at start."""
    with pytest.raises(SinkError, match="no wandb run is open") as caught:
        SinkRunner("wandb", WandbSink(run="join")).open(run_info(wandb_folder))
    assert caught.value.code == "DL601"


def test_new_starts_a_run_beside_the_open_one(wandb_folder: Path) -> None:
    """``run: new`` leaves the trainer's run alone."""
    trainer, runner = joined(wandb_folder, {"run": "new"})
    write(runner, 4, scalars(reward=1.0))
    trainer.log({"loss": 2.0})
    runner.close(60)
    trainer.finish()
    runs = {run.project: run for run in read_runs(wandb_folder)}
    assert runs["trainer"].series("loss") == [(0, 2.0)]
    assert runs["grpo"].series("reward") == [(4, 1.0)]
    assert ("reward" in runs["trainer"].rows[0], "loss" in runs["grpo"].rows[0]) == (False, False)


def test_a_disabled_run_takes_everything_and_writes_nothing(wandb_folder: Path) -> None:
    """``mode: disabled`` is wandb's own way to switch it off."""
    runner = SinkRunner("wandb", WandbSink(mode="disabled"))
    runner.open(run_info(wandb_folder))
    runner.submit(0, event(0))
    runner.submit(1, event(1))
    assert (runner.close(60).failed, read_runs(wandb_folder)) == (0, [])
