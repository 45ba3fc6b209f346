"""``declog.callback`` in trainers of transformers: what they report and what the loop observes, by log and by epoch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.records import Records
from declog.testing import MemorySink
from tests import forks
from tests.faults import jobs
from tests.running import pairs
from tests.sinks.wandb_reader import read_runs

pytestmark = [pytest.mark.slow, *(pytest.mark.filterwarnings(f"ignore::{each}Warning") for each in ("Future", "User"))]
STEPS = range(0, 12, 2)


def trained(folder: Path, sink: MemorySink, *overrides: str, **options: Any) -> Any:
    """Two epochs of six steps of a line, whose loss observes its errors: the trainer."""
    from tests.integrations import training

    trainer, log = training.line(folder, [sink], ["declog.sinks=[]", *overrides], **options)
    log.close()
    log.close()
    recorder = getattr(log, "recorder", log)
    assert recorder.closed and recorder.failures == {}
    assert recorder.total_steps == trainer.state.max_steps
    return trainer


def events(sink: MemorySink) -> list[tuple[int, str, dict[str, Any]]]:
    return [(step, each.mode, {item.name: item.value for item in each.scalars}) for step, each in sink.events]


def most(batches: Iterable[list[float]]) -> Any:
    """The greatest error of all."""
    return pytest.approx(max(map(max, batches)))


def test_each_log_of_the_trainer(tmp_path: Path) -> None:
    """What the history has is in the log events, beside exact values of what the loop observed in the window."""
    sink = MemorySink()
    trainer = trained(tmp_path, sink)
    found = events(sink)
    history = trainer.state.log_history
    assert [(step, mode) for step, mode, _ in found] == [
        (entry["step"], "eval" if "eval_loss" in entry else "train") for entry in history
    ]
    for (_, mode, values), entry in zip(found, history, strict=True):
        left_out = {"step", "grad_norm", *(["epoch"] if mode == "eval" else [])}
        assert {name: value for name, value in entry.items() if name not in left_out}.items() <= values.items()
    logged = [(values["worst"], values["steepest"]) for _, _, values in found if "worst" in values]
    errors = trainer.model.errors[True]
    assert logged == [
        (most(errors[place : place + 2]), entry["grad_norm"])
        for place, entry in zip(STEPS, [e for e in history if "loss" in e], strict=True)
    ]


def test_an_alert_ends_training(tmp_path: Path) -> None:
    """Through the control that callbacks have; the trainer's own `Stop` beside it ends nothing."""
    from tests.integrations import training

    stops = "+declog.alerts.far={when: worst > 0, do: [stop]}"
    settings = {"num_train_epochs": 40, "logging_steps": 1, "eval_strategy": "no"}
    trainer, callback = training.line(tmp_path, [MemorySink()], ["declog.sinks=[]", stops], settings=settings)
    callback.close()
    assert 1 <= trainer.state.global_step < trainer.state.max_steps
    assert [(step, alert.name) for step, alert in callback.recorder.alerts] == [(1, "far")]


HANDS = ("on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_step_end", "on_epoch_end")


@pytest.mark.parametrize("what", ["evaluate", "predict", "evaluation_loop"])
@pytest.mark.parametrize("event", HANDS)
@pytest.mark.parametrize("attached", [False, True])
def test_an_evaluation_by_hand(attached: bool, event: str, what: str, tmp_path: Path) -> None:
    """Whenever training code calls it, its batches are of it, and training's of their steps; `attach` predicts idly."""
    from transformers import TrainerCallback

    from tests.integrations import training

    class ByHand(TrainerCallback):  # type: ignore[misc]
        trainer: Any = None

        def evaluates(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            data = self.trainer.eval_dataset
            if state.global_step == 6 and what == "evaluation_loop":
                self.trainer.evaluation_loop(self.trainer.get_eval_dataloader(data), "mine", metric_key_prefix="test")
            elif state.global_step == 6:
                getattr(self.trainer, what)(data)

    sink, hand = MemorySink(), ByHand()
    setattr(hand, event, hand.evaluates)
    overrides = ["declog.sinks=[]", "+declog.metrics.rows='count(error)'", "declog.every=epoch"]
    settings = {"eval_strategy": "no", "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
    trainer, log = training.line(tmp_path, [sink], overrides, attached=attached, settings=settings, others=[hand])
    assert trainer.state.global_step == 12
    trainer.evaluate()
    log.close()
    assert (log if attached else log.recorder).failures == {}
    rows = [
        (step, mode, values[f"{before}rows"], values[f"{before}worst"])
        for step, mode, values in events(sink)
        for before in ["eval_" if mode == "eval" else ""]
        if f"{before}rows" in values
    ]
    errors = trainer.model.errors
    assert [len(errors[True]), len(errors[False])] == [24, 6]
    by_hand = [] if attached and what != "evaluate" else [(6, "eval", 12, most(errors[False][:3]))]
    assert [row for row in rows if row[1] == "eval"] == [*by_hand, (12, "eval", 12, most(errors[False][3:]))]
    assert [row for row in rows if row[1] == "train"] == [
        (6, "train", 24, most(errors[True][:12])), (12, "train", 24, most(errors[True][12:])),
    ]  # fmt: skip


@pytest.mark.parametrize("attached", [False, True])
def test_an_evaluation_before_training(attached: bool, tmp_path: Path) -> None:
    """It has its rows, as one that the trainer itself begins: the run starts with it."""
    from tests.integrations import training

    sink = MemorySink()
    trainer, log = training.line(tmp_path, [sink], ["declog.sinks=[]"], attached=attached, before=True)
    log.close()
    first = events(sink)[0]
    assert (first[0], first[1], first[2]["eval_worst"]) == (0, "eval", most(trainer.model.errors[False][:3]))


def test_an_evaluation_before_training_of_a_callback_that_was_added(tmp_path: Path, caplog: Any) -> None:
    """No trainer tells a callback that it was added: what is missing is said, and what to write instead."""
    from tests.integrations import training

    sink = MemorySink()
    trainer, log = training.line(tmp_path, [sink], ["declog.sinks=[]"], added=True, before=True)
    trainer.evaluate()
    log.close()
    assert "its rows need the callback in the trainer's `callbacks=[...]`" in caplog.text
    evaluated = [values.get("eval_worst") for _, mode, values in events(sink) if mode == "eval"]
    errors = trainer.model.errors[False]
    assert evaluated == [None, *(most(errors[place : place + 3]) for place in (3, 6, 9))]


@pytest.mark.parametrize("attached", [False, True])
def test_an_evaluation_without_a_mode(attached: bool, tmp_path: Path) -> None:
    """Where the config has no mode `eval`, rows of an evaluation are of nothing, and not of the step around it."""
    from transformers import TrainerCallback

    from tests.integrations import training

    class ByHand(TrainerCallback):  # type: ignore[misc]
        trainer: Any = None

        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.trainer.evaluate()

    sink = MemorySink()
    settings = {"gradient_accumulation_steps": 2, "eval_strategy": "no", "num_train_epochs": 1}
    overrides = ["declog.sinks=[]", "+declog.metrics.rows='count(error)'", "~declog.modes.eval"]
    _, log = training.line(tmp_path, [sink], overrides, settings=settings, others=[ByHand()], attached=attached)
    log.close()
    rows = [values["rows"] for _, _, values in events(sink) if "rows" in values]
    assert sum(rows) == 24


def test_numbers_that_a_loss_function_logs(tmp_path: Path) -> None:
    """In the middle of a step `trainer.log` ends neither the step nor the window."""
    from transformers import TrainerCallback

    from tests.integrations import training

    class Logs(TrainerCallback):  # type: ignore[misc]
        trainer: Any = None

        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.trainer.log({"mine": state.global_step})

    sink = MemorySink()
    settings = {"gradient_accumulation_steps": 2, "eval_strategy": "no", "num_train_epochs": 1}
    overrides = ["declog.sinks=[]", "+declog.metrics.rows='count(error)'"]
    _, log = training.line(tmp_path, [sink], overrides, settings=settings, others=[Logs()])
    log.close()
    counted = [(step, values["rows"], values["mine"]) for step, _, values in events(sink) if "rows" in values]
    assert counted == [(2, 16, 0.5), (3, 8, 2)]


class Slow(MemorySink):
    """A sink of a slow disk."""

    def write(self, step: int, records: Records) -> None:
        time.sleep(0.3)
        super().write(step, records)


@pytest.mark.parametrize("attached", [False, True])
def test_a_run_is_whole_when_train_returns(attached: bool, tmp_path: Path) -> None:
    """Class: whoever reads the folder right after `train` finds its last log events, as the trainer's history does."""
    from tests.integrations import training

    sink = Slow()
    trainer, log = training.line(tmp_path, [sink], ["declog.sinks=[]"], attached=attached, parts=("one", "two"))
    entries = [(entry["step"], name) for entry in trainer.state.log_history for name in entry if name.endswith("loss")]
    logged = [(step, name) for step, _, values in events(sink) for name in values if name.endswith("loss")]
    log.close()
    assert sorted(logged) == sorted(entries) and (12, "train_loss") in logged and (12, "eval_two_loss") in logged


@pytest.mark.parametrize("steps", [2, 4])
def test_an_evaluation_is_apart(steps: int, tmp_path: Path) -> None:
    """From its first batch on, whether or not the trainer has logged at that step; those by hand afterwards, too."""
    sink = MemorySink()
    from tests.integrations import training

    trainer, callback = training.line(tmp_path, [sink], ["declog.sinks=[]"], settings={"logging_steps": steps})
    trainer.evaluate()
    trainer.evaluate()
    callback.close()
    assert callback.recorder.failures == {}
    errors = trainer.model.errors
    found = [(mode, values) for _, mode, values in events(sink)]
    evaluated = [values["eval_worst"] for mode, values in found if mode == "eval"]
    assert evaluated == [most(errors[False][place : place + 3]) for place in range(0, 12, 3)]
    ends = [step for step, mode, values in events(sink) if "worst" in values]
    assert ends == [*range(steps, 13, steps)]
    assert [values["worst"] for _, values in found if "worst" in values] == [
        most(errors[True][end - steps : end]) for end in ends
    ]


def test_several_data_sets(tmp_path: Path) -> None:
    """Each evaluation is a log event of its own, with what its batches observed; checkpoints are saved between."""
    from tests.integrations import training

    sink = MemorySink()
    settings = {"save_strategy": "epoch", "logging_steps": 3}
    trainer, callback = training.line(tmp_path, [sink], ["declog.sinks=[]"], settings=settings, parts=("one", "two"))
    callback.close()
    assert callback.recorder.failures == {}
    found = [(step, values) for step, mode, values in events(sink) if mode == "eval"]
    assert [(step, [name for name in values if name.endswith("_loss")]) for step, values in found] == [
        (step, [f"eval_{part}_loss"]) for step in (6, 12) for part in ("one", "two")
    ]
    errors = trainer.model.errors
    assert [values["eval_worst"] for _, values in found] == [most(errors[False][at : at + 3]) for at in (0, 3, 6, 9)]
    logged = [values for _, mode, values in events(sink) if mode == "train"]
    assert [values["worst"] for values in logged[:-1]] == [most(errors[True][at : at + 3]) for at in (0, 3, 6, 9)]
    assert "train_runtime" in logged[-1]


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("attached", [False, True])
def test_every_so_many_steps(attached: bool, every: int, tmp_path: Path) -> None:
    """`every: N` counts steps, whenever the trainer logs; its numbers stand in the log event of their step."""
    sink = MemorySink()
    settings = {"logging_steps": 3, "eval_strategy": "no"}
    trainer = trained(tmp_path, sink, f"declog.every={every}", settings=settings, attached=attached)
    logged = [(step, values) for step, _, values in events(sink) if "worst" in values]
    errors = trainer.model.errors[True]
    ends = range(every, 13, every)
    assert [(step, values["worst"]) for step, values in logged] == [
        (end, most(errors[end - every : end])) for end in ends
    ]
    losses = {
        -(-entry["step"] // every) * every: entry["loss"] for entry in trainer.state.log_history if "loss" in entry
    }
    if every < 4:
        assert {step: values["loss"] for step, values in logged if "loss" in values} == losses
    assert "train_runtime" in events(sink)[-1][2]


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_each_epoch(strategy: str, attached: bool, tmp_path: Path) -> None:
    """`every: epoch`: one log event for each, of all its steps, whenever the trainer logs; evaluations have theirs."""
    sink = MemorySink()
    trainer = trained(tmp_path, sink, "declog.every=epoch", settings={"logging_strategy": strategy}, attached=attached)
    assert [event[:2] for event in events(sink)] == [
        (6, "train"),
        (6, "eval"),
        (12, "train"),
        (12, "eval"),
        (12, "train"),
    ]
    found = [values for _, _, values in events(sink) if "worst" in values]
    errors = trainer.model.errors[True]
    assert [values["worst"] for values in found] == [most(errors[:6]), most(errors[6:])]
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    half = len(norms) // 2
    assert [values["steepest"] for values in found] == [max(norms[:half]), max(norms[half:])]


@pytest.mark.parametrize("every", [1, 2, 3, 6])
def test_each_epoch_beside_evaluations_of_steps(every: int, tmp_path: Path) -> None:
    """An evaluation at the last step of an epoch takes nothing of the epoch's log event, which comes behind it."""
    sink = MemorySink()
    settings = {"eval_strategy": "steps", "eval_steps": every, "logging_steps": 5}
    trainer = trained(tmp_path, sink, "declog.every=epoch", settings=settings)
    ends = [(step, values["worst"]) for step, mode, values in events(sink) if mode == "train" and "worst" in values]
    errors = trainer.model.errors
    assert ends == [(6, most(errors[True][:6])), (12, most(errors[True][6:]))]
    evaluated = [(step, values["eval_worst"]) for step, mode, values in events(sink) if mode == "eval"]
    assert evaluated == [
        (step, most(errors[False][3 * place : 3 * place + 3])) for place, step in enumerate(range(every, 13, every))
    ]


def test_an_evaluation_before_the_first_step(tmp_path: Path) -> None:
    """`eval_on_start`: all of its batches are of it."""
    sink = MemorySink()
    trainer = trained(tmp_path, sink, settings={"eval_on_start": True})
    found = [(step, values["eval_worst"]) for step, mode, values in events(sink) if mode == "eval"]
    errors = trainer.model.errors[False]
    assert found == [(step, most(errors[3 * place : 3 * place + 3])) for place, step in enumerate((0, 6, 12))]


@pytest.mark.parametrize("every", [2, 3, 6])
def test_a_run_that_is_resumed_at_the_end_of_an_epoch(every: int, tmp_path: Path) -> None:
    """A checkpoint of `save_steps` is saved before the epoch ends, and nobody says again that it did."""
    from tests.integrations import training

    settings = {"save_strategy": "steps", "save_steps": every, "eval_strategy": "no", "logging_steps": 4}
    found = []
    for resume in (None, str(tmp_path / "checkpoint-6")):
        options: dict[str, Any] = {"resume_from_checkpoint": resume, "settings": settings}
        _, callback = training.line(tmp_path, [], ["declog.sinks=[jsonl]", "declog.every=epoch"], **options)
        callback.close()
        found.append(pairs(declog.read(callback)["worst"]))
    assert [step for step, _ in found[0]] == [6, 12]
    assert found[1] == found[0]


@pytest.mark.parametrize("ended", ["closed", "returned", "raised", "trained again"])
def test_a_run_that_is_resumed(ended: str, tmp_path: Path) -> None:
    """In the middle of a window: it goes on, in the files of the run that was stopped, also where nobody closed it."""
    from tests.integrations import training

    settings = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "no", "logging_steps": 4}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    sinks = ["declog.sinks=[jsonl]"]
    _, callback = training.line(whole, [], sinks, settings=settings)
    callback.close()
    trainer, callback = training.line(stopped, [], sinks, 7, settings=settings, raises=ended == "raised")
    if ended == "closed":
        callback.close()
    if ended == "trained again":
        trainer.train(resume_from_checkpoint=True)
    else:
        _, callback = training.line(stopped, [], sinks, resume_from_checkpoint=True, settings=settings)
    callback.close()
    assert callback.recorder.failures == {}
    lines = {
        folder: [json.loads(line) for line in (folder / "declog/jsonl/scalars.jsonl").read_text().splitlines()]
        for folder in (whole, stopped)
    }
    assert [line["step"] for line in lines[whole]] == [4, 8, 12, 12]
    values = {
        folder: [(line["step"], line["scalars"]["worst"]) for line in found if "worst" in line["scalars"]]
        for folder, found in lines.items()
    }
    assert values[stopped] == values[whole]
    assert len({line["run_id"] for line in lines[stopped]}) == 1


@pytest.mark.parametrize("attached", [False, True])
def test_what_a_resumed_trainer_is_told(attached: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It calls neither `declog.start` nor `resume=`: where its run goes on, and which trainer begins a branch."""
    from tests.integrations import training

    settings = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "no", "logging_steps": 4}
    options: dict[str, Any] = {"settings": settings, "attached": attached}
    _, log = training.line(tmp_path, [], ["declog.sinks=[jsonl]"], 7, **options)
    log.close()
    caplog.clear()
    _, log = training.line(tmp_path, [], ["declog.sinks=[jsonl]"], resume_from_checkpoint=True, **options)
    log.close()
    (told,) = [record.getMessage() for record in caplog.records if "goes on in" in record.getMessage()]
    assert "where the checkpoint is from; a trainer with another `output_dir` begins a branch" in told
    assert "declog.start" not in caplog.text and "resume=" not in caplog.text


def test_a_callback_that_was_closed(tmp_path: Path) -> None:
    """Training once more, as by a notebook's cell that is run again, is another run, with a folder of its own."""
    from tests.integrations import training

    trainer, callback = training.line(tmp_path, [], ["declog.sinks=[jsonl]"])
    callback.close()
    first = callback.recorder.output_dir
    trainer.train()
    callback.close()
    second = callback.recorder.output_dir
    lines = [(folder / "jsonl" / "scalars.jsonl").read_text().splitlines() for folder in (first, second)]
    steps = [[json.loads(line)["step"] for line in each] for each in lines]
    assert (first != second, steps[0]) == (True, steps[1])


def test_two_ranks(tmp_path: Path) -> None:
    """Values are of the rows of both, what the trainer reports is there once."""
    ended = jobs.run(tmp_path, 2, ["-m", "tests.integrations.training", tmp_path])
    assert ended.codes == (0, 0), "\n".join(text[-3000:] for text in ended.outputs)
    ranks = [json.loads((tmp_path / f"kept{rank}.json").read_text()) for rank in (0, 1)]
    found = ranks[0]["events"]
    assert [event[:2] for event in found] == [
        [2, "train"], [3, "eval"], [4, "train"], [6, "train"], [6, "eval"], [6, "train"],
    ]  # fmt: skip
    worst = [values["worst"] for _, _, values in found if "worst" in values]
    assert worst == [
        most([batch for rank in ranks for batch in rank["train"][place : place + 2]]) for place in range(0, 6, 2)
    ]
    evaluated = [values["eval_worst"] for _, _, values in found if "eval_worst" in values]
    assert evaluated == [most([batch for rank in ranks for batch in rank["eval"][at : at + 2]]) for at in (0, 2)]


TRACKIO = """
import json
import trackio
from trackio.sqlite_storage import SQLiteStorage

(run,) = trackio.Api().runs("mine")
print(json.dumps(SQLiteStorage.get_logs("mine", run.name, run_id=run.id)))
"""


def test_trackers_that_a_trainer_reports_to(tmp_path: Path) -> None:
    """SFTTrainer, wandb and trackio: one run of each, with all that transformers and declog log, evaluated first."""
    places = {name: str(tmp_path) for name in ("HOME", "WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR")}
    env = {**places, "WANDB_MODE": "offline", "WANDB_CONSOLE": "off", "TRACKIO_DIR": str(tmp_path / "trackio")}
    done = forks.run(["-m", "tests.integrations.training", tmp_path, "sft"], env=forks.environment(env))
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (tmp_path / "out" / "declog" / "jsonl" / "scalars.jsonl").read_text().splitlines()
    ours = [(line["step"], item) for line in map(json.loads, lines) for item in line["scalars"].items()]
    theirs = [
        (f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}", value)
        for entry in json.loads((tmp_path / "history.json").read_text()) for name, value in entry.items()
        if name != "step" and not name.startswith(("train_", "total_flos"))  # which wandb has in its summary
    ]  # fmt: skip
    (run,) = read_runs(tmp_path)
    logs = json.loads(forks.python(TRACKIO, env=env).splitlines()[-1])
    for rows in (run.rows, logs):
        have = {(row["declog/step"], item) for row in rows if "declog/step" in row for item in hashable(row)}
        assert [each for each in ours if each not in have] == []
        items = {item for row in rows for item in hashable(row)}
        assert [item for item in theirs if item not in items] == []
    shown = [item for step, item in ours if item[0] in ("tokens", "eval_tokens")]
    assert [name for name, _ in shown] == ["eval_tokens", *["tokens", "tokens", "eval_tokens"] * 2]
    values = [value for _, value in shown]
    assert values[0] == values[3] == values[6] == sum(values[1:3])  # the data set is evaluated on, too
    assert len(run.table("declog/longest")) == 8  # two of each of four log events


def hashable(row: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in row.items() if isinstance(value, int | float)]


def test_a_profile_that_is_wrong_is_an_error_before_training() -> None:
    """Where the callback is made."""
    with pytest.raises(declog.ConfigError, match="unknown signal `nothing`"):
        declog.callback("trainer", ["+declog.metrics.mine='mean(nothing)'"])


def test_a_run_that_goes_on_in_another_folder(tmp_path: Path) -> None:
    """A branch: the window goes on, and not a byte of the first run's files is another."""
    from tests.integrations import training

    settings = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "no", "logging_steps": 4}
    first, other = tmp_path / "first", tmp_path / "other"
    _, callback = training.line(first, [], ["declog.sinks=[jsonl,parquet]"], settings=settings)
    callback.close()
    files = {path: path.read_bytes() for path in (first / "declog").rglob("*") if path.is_file()}
    resume = str(first / "checkpoint-6")
    _, branch = training.line(other, [], ["declog.sinks=[jsonl]"], resume_from_checkpoint=resume, settings=settings)
    branch.close()
    assert {path: path.read_bytes() for path in (first / "declog").rglob("*") if path.is_file()} == files
    runs = [declog.read(folder / "declog", sink="jsonl") for folder in (first, other)]
    steps = [{row["step"]: row["value"] for row in run.scalars if row["name"] == "worst"} for run in runs]
    assert steps[0].keys() == {4, 8, 12} and steps[1] == {step: steps[0][step] for step in (8, 12)}
    parent = {"run_id": runs[0].id, "output_dir": str(first / "declog"), "step": 6}
    assert runs[1].info["parent"] == parent and runs[1].id != runs[0].id
