"""What attach does with a trainer: constants, merged values, tables, alerts; what is refused, what passes through."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import math
import pickle
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

import declog
from declog.integrations.trl.support import constants_of, support_of
from declog.testing import MemorySink
from tests.integrations.trl import cases
from tests.integrations.trl.cases import CLIPPING, STRICT, Case
from tests.integrations.trl.jobs import two_ranks

SHORT = {"max_steps": 2, "logging_steps": 1, "eval_strategy": "no"}
P95 = "+declog.metrics.reward_p95='p95(reward)'"


def values(history: Sequence[dict[str, Any]], mode: str) -> list[dict[str, Any]]:
    """The entries of a trainer's history that are log events of a mode."""
    return [entry for entry in history if ("eval_loss" in entry) == (mode == "eval") and "train_runtime" not in entry]


# ---- constants ---------------------------------------------------------------------------------------


def test_constants_are_the_trainers(model: Path, tmp_path: Path) -> None:
    """The plan has the trainer's settings, not the preset's defaults."""
    args = {"beta": 0.07, "epsilon": 0.1, "epsilon_high": 0.3, "delta": 2.0, "loss_type": "bnpo"}
    trainer = cases.trainer_of(Case(args=args), model, tmp_path)
    found = constants_of(trainer, support_of(trainer))
    requested = {
        "beta": 0.07,
        "epsilon_low": 0.1,
        "epsilon_high": 0.3,
        "delta": 2.0,
        "loss_type": "bnpo",
        "tools": False,
    }
    assert requested.items() <= found.items()
    with declog.attach(trainer, overrides=STRICT) as log:
        inactive = dict(log.plan.inactive)
        assert log.plan.name == "trl_grpo" and "kl" in log.plan.names()
    assert inactive["metrics.cispo"] == "enabled: loss_type == 'cispo', with loss_type = bnpo"


def test_a_pinned_number_that_disagrees_is_an_error_before_step_0(model: Path, tmp_path: Path) -> None:
    """With its place, and nothing is hooked."""
    trainer = cases.trainer_of(Case(args={"beta": 0.07}), model, tmp_path)
    with pytest.raises(declog.ConfigError, match="DL406") as caught:
        declog.attach(trainer, "trl_grpo", ["declog.sinks=[]", "+declog.constants.beta.value=0.1"])
    assert "override '+declog.constants.beta.value=0.1'" in str(caught.value)
    assert "pinned to 0.1, and the trainer has 0.07" in str(caught.value)
    assert not {"log", "train", "_compute_loss"} & set(vars(trainer))


def test_a_pinned_number_that_agrees(model: Path, tmp_path: Path) -> None:
    """It says what is so."""
    trainer = cases.trainer_of(Case(args={"beta": 0.07}), model, tmp_path)
    declog.attach(trainer, "trl_grpo", ["declog.sinks=[]", "+declog.constants.beta.value=0.07"]).close()


# ---- what is refused ---------------------------------------------------------------------------------


def test_attached_once(model: Path, tmp_path: Path) -> None:
    """A second attachment would record everything twice."""
    trainer = cases.trainer_of(Case(), model, tmp_path)
    with declog.attach(trainer, overrides=STRICT), pytest.raises(declog.UsageError, match="attached to this trainer"):
        declog.attach(trainer, overrides=STRICT)


def test_attached_again_after_its_end(model: Path, tmp_path: Path) -> None:
    """As by a notebook's cell that is run twice; detached, the trainer is what it was."""
    trainer = cases.trainer_of(Case("rloo", args={**SHORT, "max_steps": 1}), model, tmp_path)
    before = set(vars(trainer)), list(trainer.callback_handler.callbacks)
    logged = []
    for _ in range(2):
        sink = MemorySink()
        with declog.attach(trainer, overrides=STRICT, sinks=[sink]) as log:
            trainer.train()
        logged.append([event[:2] for event in cases.events(sink)])
    assert (log.plan.name, logged) == ("trl_rloo", [[(1, "train"), (1, "train")]] * 2)
    declog.detach(trainer)
    declog.detach(trainer)
    hooks = {"log", "train", "evaluate", "training_step", "_compute_loss", "_generate", "_declog"}
    assert (set(vars(trainer)) & hooks, trainer.callback_handler.callbacks) == (before[0] & hooks, before[1])


def test_detached_below_somebody_elses_hook(model: Path, tmp_path: Path) -> None:
    """What was wrapped since stays, and declog's part of it passes through."""
    trainer = cases.trainer_of(Case(args={**SHORT, "max_steps": 1}), model, tmp_path)
    declog.attach(trainer, overrides=STRICT)
    hooked, calls = trainer._compute_loss, []
    trainer._compute_loss = lambda *args: calls.append(1) or hooked(*args)  # type: ignore[func-returns-value]
    declog.detach(trainer)
    with declog.attach(trainer, overrides=STRICT) as log:
        trainer.train()
    assert (len(calls), "entropy" in log.plan.names()) == (2, False)


def test_a_preset_of_the_other_method(model: Path, tmp_path: Path) -> None:
    """It is refused with the right one's name."""
    trainer = cases.trainer_of(Case("rloo"), model, tmp_path)
    with pytest.raises(declog.UsageError, match=r'(?s)`trl_grpo` has the metrics of trl.GRPOTrainer.*"trl_rloo"'):
        declog.attach(trainer, "trl_grpo", STRICT)


def test_a_file_on_the_preset_of_the_other_method(model: Path, tmp_path: Path) -> None:
    """Class: a call with the right preset alone would lose what the file, or the overrides, say."""
    trainer = cases.trainer_of(Case("rloo"), model, tmp_path)
    (tmp_path / "mine.yaml").write_text("defaults: [trl_grpo, _self_]\nmetrics: {best: max(reward)}\n")
    with pytest.raises(declog.UsageError, match=r"fix: defaults: \[trl_rloo, _self_\] in your config"):
        declog.attach(trainer, tmp_path / "mine.yaml")
    with pytest.raises(declog.UsageError, match=r'fix: declog.attach\(trainer, "trl_rloo", \["every=2"\]\)'):
        declog.attach(trainer, "trl_grpo", ["every=2"])


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        ("metrics.a=p95(reward_1)", "p95(member(rewards, 'second_2'))"),
        ("metrics.a=p95(reward_first)", "p95(member(rewards, 'first'))"),
        ("metrics.a=p95(first)", "p95(member(rewards, 'first'))"),
        ("metrics.a=p95(judge)", "declare what you observe"),
        ("alerts.reward_0=< 1", "member(rewards.mean, 'second') < 1.0"),
    ],
)
def test_a_reward_function_as_a_name_of_ones_own(override: str, fix: str, model: Path, tmp_path: Path) -> None:
    """Class: names of reward functions in a config; the trainer knows its functions, and shows no others."""

    def first(completions: list[str], **_: Any) -> list[float]:
        return [float(len(text)) for text in completions]

    def second(completions: list[str], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    trainer = cases.trainer_of(Case(), model, tmp_path, rewards=[second, second, first])
    with pytest.raises(declog.ConfigError) as caught:
        declog.attach(trainer, overrides=[*STRICT, override])
    shown = str(caught.value).replace("'\"'\"'", "'")
    assert fix in shown
    assert ("judge" in override) == ("member(" not in shown)


def test_a_step_around_the_training(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Class: blocks of steps around a trainer that begins its steps itself; one message says which block to take away.

    The message is not about running ahead, and training goes on.
    """
    trainer = cases.trainer_of(Case(args={**SHORT, "max_steps": 2}), model, tmp_path)
    with declog.attach(trainer, overrides=["sinks=[]"]) as log, log.step(0):
        trainer.train()
    told = [record.getMessage() for record in caplog.records if "could not be recorded" in record.getMessage()]
    assert [text.splitlines()[1].strip() for text in told] == [
        "fix: take `with log.step(0):` around the training away: an attached trainer begins its steps itself"
    ]
    assert trainer.state.global_step == 2


def test_attached_behind_the_training(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Class: a trainer that is attached too late; a second training would be recorded, so attach itself warns not."""
    trainer = cases.trainer_of(Case(args={**SHORT, "max_steps": 1}), model, tmp_path)
    trainer.train()
    with declog.attach(trainer, overrides=["sinks=[]"]):
        assert "no step came" not in caplog.text
    assert "no step came: the trainer has not trained since it was attached" in caplog.text
    assert "fix: log = declog.attach(trainer, 'trl_grpo', overrides=['sinks=[]']), and trainer.train()" in caplog.text


def test_attached_on_one_rank_only(model: Path, tmp_path: Path) -> None:
    """An error that says so, on whichever rank it is."""
    two_ranks("alone", model, tmp_path)
    found = [pickle.loads((tmp_path / f"rank{rank}.pickle").read_bytes()) for rank in range(2)]
    assert ["DL603" in text and "on every rank, and not below" in text for text in found] == [True, True]


def test_an_alert_ends_training(model: Path, tmp_path: Path) -> None:
    """Through transformers' own control, so what the trainer does at its end is done.

    What it says there, when no step has ended since its last log event, lacks nothing.
    """
    case = Case(args={"max_steps": 60, "logging_steps": 1, "eval_strategy": "no"})
    trainer = cases.trainer_of(case, model, tmp_path)
    gone = "alerts.gone={when: not present(reward)}"
    with declog.attach(trainer, "trl_grpo", [*STRICT, cases.STOP, gone]) as log:
        trainer.train()
        alerts = [(step, alert.name) for step, alert in log.alerts]
        assert (3, "too_good") in alerts and "gone" not in {name for _, name in alerts}
    assert 3 <= trainer.state.global_step < 60
    assert "train_runtime" in trainer.state.log_history[-1]


def test_an_alert_ends_training_on_two_ranks(model: Path, tmp_path: Path) -> None:
    """After the same step, though one rank is slower."""
    two_ranks("stopped", model, tmp_path)
    found = [pickle.loads((tmp_path / f"rank{rank}.pickle").read_bytes()) for rank in range(2)]
    (first, alerts), (second, nothing) = found
    assert first == second and 3 <= first < 60
    assert (3, "too_good") in alerts and nothing == []


def test_what_is_no_trainer() -> None:
    """The error names what it lacks."""
    with pytest.raises(declog.UsageError, match="object has no `add_callback`"):
        declog.attach(object())


def test_another_way_to_merge(model: Path, tmp_path: Path) -> None:
    """A word that is not known is refused with the nearest one."""
    with pytest.raises(declog.UsageError, match="did you mean `replace`"):
        declog.attach(cases.trainer_of(Case(), model, tmp_path), merge="replaces")


# ---- values in the trainer's logs --------------------------------------------------------------------


def test_values_replace_those_of_trl(model: Path, tmp_path: Path) -> None:
    """A metric that the profile defines in another way is what trackers get; a new one is there, too."""
    overrides = ["declog.metrics.reward_std.reduce=max", P95]
    own = cases.run(Case(), model, tmp_path / "own")
    merged = cases.run(Case(), model, tmp_path / "merged", merge="replace", overrides=overrides)
    for mode, before in (("train", ""), ("eval", "eval_")):
        for mine, theirs in zip(values(merged.history, mode), values(own.history, mode), strict=True):
            assert set(mine) - set(theirs) == {f"{before}reward_p95"} and set(theirs) <= set(mine)
            assert mine[f"{before}reward"] == pytest.approx(theirs[f"{before}reward"])
            assert mine[f"{before}reward_std"] >= mine[f"{before}reward_p95"] > theirs[f"{before}reward_std"]
            assert mine.get("loss", 0.0) == theirs.get("loss", 0.0)  # transformers' own numbers stay its own


def test_values_under_a_prefix(model: Path, tmp_path: Path) -> None:
    """TRL's keys are TRL's; declog's stand beside them, behind the mode's prefix."""
    own = cases.run(Case(), model, tmp_path / "own")
    merged = cases.run(Case(), model, tmp_path / "merged", merge="prefix", overrides=[P95])
    for mode, before in (("train", ""), ("eval", "eval_")):
        for mine, theirs in zip(values(merged.history, mode), values(own.history, mode), strict=True):
            assert {name for name in theirs if "time" not in name and "second" not in name} <= set(mine)
            assert mine[f"{before}reward"] == theirs[f"{before}reward"]
            assert mine[f"{before}declog/reward"] == pytest.approx(theirs[f"{before}reward"])
            assert f"{before}declog/reward_p95" in mine and f"{before}reward_p95" not in mine


def test_values_that_do_not_come_in_time(model: Path, tmp_path: Path) -> None:
    """TRL's own values stay, and training goes on."""
    trainer = cases.trainer_of(Case(), model, tmp_path)
    with declog.attach(trainer, "trl_grpo", [*STRICT, P95], deliver_s=0.0):
        trainer.train()
    for entry in values(trainer.state.log_history, "train"):
        assert entry["reward"] > 0


def test_callbacks_and_trackers_get_the_values(model: Path, tmp_path: Path) -> None:
    """``on_log`` and ``on_evaluate`` see what the history has, and training is what it would be without declog."""
    from transformers import TrainerCallback

    seen: list[dict[str, Any]] = []

    class Tracker(TrainerCallback):  # type: ignore[misc]
        def on_log(self, *args: Any, logs: dict[str, Any], **kwargs: Any) -> None:
            seen.append(dict(logs))

        def on_evaluate(self, *args: Any, metrics: dict[str, Any], **kwargs: Any) -> None:
            seen.append(dict(metrics))

    trainer = cases.trainer_of(Case(args=CLIPPING), model, tmp_path / "merged", callbacks=[Tracker()])
    with declog.attach(trainer, "trl_grpo", [*STRICT, P95]):
        trainer.train()
    evaluations = [entry for entry in seen if "eval_loss" in entry]
    assert len(evaluations) == 4 and all("eval_reward_p95" in entry for entry in evaluations)
    alone = cases.trainer_of(Case(args=CLIPPING), model, tmp_path / "alone")
    assert {"log", "train", "_compute_loss"} <= set(vars(trainer)) - set(vars(alone))  # one trainer, not its class
    alone.train()
    for name in ("loss", "grad_norm", "entropy", "eval_reward"):
        mine, own = ([entry[name] for entry in each.state.log_history if name in entry] for each in (trainer, alone))
        assert mine == pytest.approx(own) and len(own) == 2


# ---- what reward functions log, rows, alerts ----------------------------------------------------------


def test_a_reward_function_logs_through_declog(model: Path, tmp_path: Path) -> None:
    """``declog.log_metric`` and ``declog.log_extra`` find the recorder; TRL's ``log_extra`` fills the same table."""

    def reward(completions: Sequence[str], log_extra: Any, **columns: Any) -> list[float]:
        declog.log_metric("mine", 3.0)
        declog.log_extra("ours", [len(each) for each in completions])
        log_extra("theirs", [each.upper() for each in completions])
        return [float(len(each)) for each in completions]

    outcome = cases.run(Case(), model, tmp_path, rewards=[reward])
    assert {event[2].get("mine") for event in outcome.events if event[1] == "train"} == {3.0, None}
    assert outcome.sink is not None
    (step, table), *_ = outcome.sink.tables("completions")
    assert step == 2
    assert table.data["ours"] == [len(each) for each in table.data["completion"]] == table.data["reward"]
    assert table.data["theirs"] == [each.upper() for each in table.data["completion"]]


@pytest.mark.parametrize("method", ["grpo", "rloo"])
def test_what_trl_promises_reward_functions(method: str, model: Path, tmp_path: Path) -> None:
    """As its own tests say: a column is in its logs, a metric in its history; each has its argument."""
    steps = []

    def reward(completions: Sequence[str], **kwargs: Any) -> list[float]:
        steps.append(kwargs["trainer_state"].global_step)
        kwargs["log_extra"]("test_column", [completion[:5] for completion in completions])
        kwargs["log_metric"]("custom_accuracy", 0.75)
        return [float(len(completion)) for completion in completions]

    case = Case(method, args={"log_completions": True, "max_completion_length": 8, "max_steps": 2})
    trainer = cases.trainer_of(case, model, tmp_path, rewards=[reward])
    sink = MemorySink()
    with declog.attach(trainer, overrides=STRICT, sinks=[sink]):
        trainer.train()
    logged = {name for entry in trainer.state.log_history for name in entry}
    assert {"custom_accuracy", "eval_custom_accuracy"} <= logged and {0, 2} <= set(steps)
    assert {entry["custom_accuracy"] for entry in trainer.state.log_history if "custom_accuracy" in entry} == {0.75}
    kept = list(trainer._logs["extra"]["test_column"])
    assert kept == [completion[:5] for completion in trainer._logs["completion"]] != []
    (_, table), *_ = sink.tables("completions")
    assert table.data["test_column"] == [completion[:5] for completion in table.data["completion"]]


@pytest.mark.parametrize("how", ["a pool", "bare threads"])
def test_reward_functions_that_work_in_threads(how: str, model: Path, tmp_path: Path) -> None:
    """What they record there, and inherits no scope, is of the reward call that is under way: as without threads."""
    overrides = [
        "+declog.signals.rollout.hard={axis: completion, from_log_extra: true}",
        "+declog.metrics.hard='mean(hard)'",
        "+declog.metrics.agrees={expr: 'hard - length', reduce: max}",
    ]  # fmt: skip

    def trained(folder: Path, call: Callable[[Callable[[], None]], None]) -> Any:
        calls: list[int] = []

        @declog.reward
        def graded(sizes: list[int], number: int) -> Any:
            return sizes, {"graded": [f"{number}: {size}" for size in sizes]}

        def reward(
            completions: Sequence[str], completion_ids: Any, log_extra: Any, log_metric: Any, **columns: Any
        ) -> list[float]:
            number = len(calls)
            calls.append(1)
            sizes = [len(each) for each in completion_ids]

            def work() -> None:
                declog.log_metric("mine", float(number))
                declog.log_metric("mine", number + 1.0)
                declog.log_extra("ours", [f"{number}, {size}" for size in sizes])
                declog.observe(hard=[float(size) for size in sizes])
                graded(sizes, number)
                log_metric("own", float(number))
                log_extra("theirs", [f"{number} {size}" for size in sizes])
                with declog.timer("graded"):
                    pass

            call(work)
            return [float(len(each)) for each in completions]

        args = {"logging_steps": 1, "eval_steps": 2}
        outcome = cases.run(Case(args=args), model, folder, overrides=overrides, rewards=[reward])
        assert outcome.sink is not None
        timed = [(step, mode) for step, mode, event in outcome.events if "time/graded" in str(sorted(event))]
        tables = [
            (step, {name: list(column) for name, column in table.data.items()})
            for step, table in outcome.sink.tables("completions")
        ]
        events = [
            (step, mode, {name: value for name, value in event.items() if "time" not in name and "second" not in name})
            for step, mode, event in outcome.events
        ]
        return [event for event in events if event[2]], timed, tables

    def threaded(work: Callable[[], None]) -> None:
        if how == "a pool":
            pool.submit(work).result()
        else:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

    with ThreadPoolExecutor(2) as pool:
        found = trained(tmp_path / "threads", threaded)
    expected = trained(tmp_path / "own", lambda work: work())
    assert found == expected
    events, timed, _ = expected
    mine = [(step, mode, event["eval_mine" if mode == "eval" else "mine"]) for step, mode, event in events[:6]]
    assert mine == [
        (1, "train", 0.5), (2, "train", 1.5), (2, "eval", 3.0), (3, "train", 4.5), (4, "train", 5.5), (4, "eval", 7.0),
    ]  # fmt: skip
    assert (timed, {event["agrees"] for _, mode, event in events[:6] if mode == "train"}) == (
        [(step, mode) for step, mode, _ in mine], {0.0},
    )  # fmt: skip


def test_rows_keep_their_names_through_shuffle_and_split(model: Path, tmp_path: Path) -> None:
    """An advantage that comes with a micro-batch is that of its row's reward, which came with the generation."""
    overrides = [
        "+declog.derived.centred='reward - mean(reward, over=completion)'",
        "+declog.derived.trained='advantages + 0 * mean(logprobs, over=token)'",
        "+declog.metrics.agrees={expr: 'isclose(trained, centred)', reduce: [mean, count]}",
        "+declog.metrics.differs={expr: 'abs(trained)', reduce: max}",
    ]
    args = {"num_iterations": 2, "steps_per_generation": 4, "logging_steps": 1, "scale_rewards": "none"}
    outcome = cases.run(Case(args=args), model, tmp_path, overrides=overrides)
    found = [event[2] for event in outcome.events if "agrees/mean" in event[2]]
    assert [(event["agrees/mean"], event["agrees/count"]) for event in found if "entropy" in event] == [(1.0, 8)] * 4
    assert max(event["differs"] for event in found) > 1
    assert len([event for event in found if "reward" not in event]) == 3  # steps that reuse a generation


def test_alerts_of_the_preset(model: Path, tmp_path: Path) -> None:
    """Groups of equal rewards, and completions that are cut: each with what to try."""
    case = Case(rewards="equal", args={"logging_steps": 1, "max_completion_length": 2, "eval_strategy": "no"})
    outcome = cases.run(case, model, tmp_path)
    assert outcome.sink is not None
    reported = {alert.name: (step, alert.text) for step, alert in outcome.sink.alerts}
    assert set(reported) == {"zero_std", "clipped_ratio"}
    assert reported["zero_std"][0] == 3 and "try prompts of medium difficulty" in reported["zero_std"][1]
    assert "Raise it" in reported["clipped_ratio"][1]


def test_an_alert_of_a_loss_that_is_nan(model: Path, tmp_path: Path) -> None:
    """transformers hides it in the average that it logs."""

    def reward(completions: Sequence[str], **columns: Any) -> list[float]:
        return [math.inf if place == 0 else 1.0 for place, _ in enumerate(completions)]

    case = Case(args={"logging_steps": 1, "eval_strategy": "no", "max_steps": 1, "scale_rewards": "none"})
    outcome = cases.run(case, model, tmp_path, rewards=[reward])
    assert outcome.sink is not None
    assert [alert.name for _, alert in outcome.sink.alerts] == ["broken_loss", "broken_reward"]


# ---- presets, modes and the end -----------------------------------------------------------------------


def test_the_pooled_preset(model: Path, tmp_path: Path) -> None:
    """``grpo`` on the same signals: exact over the window, so its extremes are those of all completions."""
    trainer = cases.trainer_of(Case(args={"logging_steps": 4, "eval_strategy": "no", "beta": 0.04}), model, tmp_path)
    sink = MemorySink()
    pooled = ["declog.every=trainer", "declog.axes.group.split=ranks", *STRICT]
    with declog.attach(trainer, "grpo", pooled, sinks=[sink], merge="prefix"):
        trainer.train()
    logged = values(trainer.state.log_history, "train")[0]
    assert logged["declog/completions/min_length"] <= logged["completions/min_length"]
    assert logged["declog/completions/mean_length"] == pytest.approx(logged["completions/mean_length"])
    assert logged["declog/learning_rate"] == logged["learning_rate"]
    assert sink.scalars[4]["completions/count"] == 32


def test_windows_of_the_configs_own(model: Path, tmp_path: Path) -> None:
    """`every: 2` counts steps, whenever TRL logs: its logs are its own, and its numbers stand in their step's event."""
    logs = {}
    for every in ("none", "2", "trainer"):
        args = {"logging_steps": 3, "eval_strategy": "no", "max_steps": 6}
        trainer = cases.trainer_of(Case(args=args), model, tmp_path / every)
        sink = MemorySink()
        if every == "none":
            trainer.train()
        else:
            overrides = [*STRICT, f"declog.every={every}", "+declog.metrics.longest='max(length)'"]
            with declog.attach(trainer, "trl_grpo", overrides, sinks=[sink]) as log:
                trainer.train()
            assert log.failures == {}
        logs[every] = values(trainer.state.log_history, "train")
        if every == "2":
            assert [step for step, scalars in sorted(sink.scalars.items()) if "longest" in scalars] == [2, 4, 6]
            assert [step for step, scalars in sorted(sink.scalars.items()) if "grad_norm" in scalars] == [4, 6]
    timed = ("step_time", "longest")
    kept = {
        every: [{k: v for k, v in line.items() if k not in timed} for line in lines] for every, lines in logs.items()
    }
    assert kept["2"] == kept["none"]
    assert [line["longest"] for line in logs["trainer"]] and "longest" not in logs["2"][0]


def test_a_config_that_is_built_on_another_preset(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One note says which of TRL's numbers and tables it has not; with its edit they are there."""
    mine = tmp_path / "mine.yaml"
    text = "defaults: [grpo, _self_]\naxes: {group: {split: ranks}}\nmetrics: {p: p95(reward)}\nsinks: [parquet]\n"

    def attached(name: str) -> tuple[list[str], Any, set[str]]:
        trainer = cases.trainer_of(Case(args=SHORT), model, tmp_path / name)
        caplog.clear()
        with declog.attach(trainer, str(mine)) as log:
            notes = [item.getMessage() for item in caplog.records if "is not built on" in item.getMessage()]
            trainer.train()
        logged = {name for entry in values(trainer.state.log_history, "train") for name in entry} - {"epoch", "step"}
        return notes, declog.read(log), logged

    mine.write_text(text, encoding="utf-8")
    (note,), run, logged = attached("grpo")
    first, fix = note.split("\n  fix: ")
    shown = re.findall(r"`(.+?)`", first.partition(": ")[2])
    assert "completions" in shown and "completions" not in run.tables
    assert {*shown} - {"completions"} <= logged - {*run} and "num_tokens" in shown
    mine.write_text(text.replace("defaults: [grpo, _self_]", fix.partition(", or ")[0]), encoding="utf-8")
    notes, run, logged = attached("trl_grpo")
    assert notes == [] and logged <= {*run} and "completions" in run.tables and "p" in run
    mine.write_text(text.replace("sinks: [parquet]\n", ""), encoding="utf-8")
    (note,), run, _ = attached("sinks")
    edit = re.search(r"fix: (defaults: .+?), whose sinks are \[console\]: add `(sinks: .+?)`; or", note)
    assert edit is not None and "p" in run
    mine.write_text(f"{edit[1]}\n{edit[2]}\nmetrics: {{p: p95(reward)}}\n", encoding="utf-8")
    notes, run, _ = attached("trl_sinks")
    assert notes == [] and "completions" in run.tables and "p" in run


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ([], 'declog.attach(trainer, "trl_grpo", ["sinks=[console,parquet]"])'),
        (
            ["metrics.p=p95(reward)", "sinks=[parquet]"],
            'declog.attach(trainer, "trl_grpo", ["metrics.p=p95(reward)", "sinks=[parquet]"])',
        ),
    ],
)
def test_another_preset_by_its_name_has_the_call_with_the_trainers_preset(
    overrides: list[str], line: str, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Class: no file names the preset, so that the edit is the call, with its overrides and the sinks that it had."""
    trainer = cases.trainer_of(Case(args=SHORT), model, tmp_path)
    with declog.attach(trainer, "grpo", overrides, output_dir=tmp_path / "grpo"):
        (note,) = [item.getMessage() for item in caplog.records if "is not built on" in item.getMessage()]
    assert note.split("\n  fix: ")[1] == line
    caplog.clear()
    with eval(line, {"declog": declog, "trainer": trainer}) as log:
        assert not [item for item in caplog.records if "is not built on" in item.getMessage()]
    assert [sink.id for sink in log.plan.sinks] == (["parquet"] if overrides else ["console", "parquet"])


def test_predictions_are_no_part_of_the_log(model: Path, tmp_path: Path) -> None:
    """What is generated outside of training and evaluation is not recorded."""
    from tests.integrations.trl import tiny

    trainer = cases.trainer_of(Case(args={"eval_strategy": "no", "max_steps": 1}), model, tmp_path)
    sink = MemorySink()
    with declog.attach(trainer, "trl_grpo", STRICT, sinks=[sink]):
        trainer.predict(tiny.prompts(4))
        trainer.evaluate()
    assert [(step, mode) for step, mode, _ in cases.events(sink)] == [(0, "eval")]


def test_a_closed_recorder_lets_the_trainer_go_on(model: Path, tmp_path: Path) -> None:
    """A block around the first part of a run."""
    trainer = cases.trainer_of(Case(args={"max_steps": 2}), model, tmp_path)
    with declog.attach(trainer, "trl_grpo", STRICT):
        trainer.train()
    count = len(trainer.state.log_history)
    assert "eval_reward" in trainer.evaluate()
    trainer.train()
    assert count == 3


def test_a_run_that_fails_in_a_step(model: Path, tmp_path: Path) -> None:
    """The error is the trainer's own, what came before is a window of its own, and the trainer can go on."""
    given: list[list[float]] = []

    def reward(completions: Sequence[str], **columns: Any) -> list[float]:
        given.append([float(len(each)) for each in completions])
        if len(given) == 3:
            raise RuntimeError("the grader is down")
        return given[-1]

    trainer = cases.trainer_of(
        Case(args={"eval_strategy": "no", "logging_steps": 5}), model, tmp_path, rewards=[reward]
    )
    sink = MemorySink()
    with declog.attach(trainer, "trl_grpo", STRICT, sinks=[sink]):
        with pytest.raises(RuntimeError, match="the grader is down"):
            trainer.train()
        trainer.train()
    found = [(step, values["reward"]) for step, _, values in cases.events(sink)]
    assert found == [(3, pytest.approx(fmean(map(fmean, given[:2])))), (4, pytest.approx(fmean(map(fmean, given[3:]))))]


def test_an_evaluation_with_a_prefix(model: Path, tmp_path: Path) -> None:
    """Where the profile has a mode of the prefix's name its values have that; else transformers' own names do."""
    from tests.integrations.trl import tiny

    trainer = cases.trainer_of(Case(args=SHORT), model, tmp_path)
    modes = ["+declog.modes.test={prefix: test_, every: end}"]
    sinks = [MemorySink(), MemorySink()]
    with declog.attach(trainer, "trl_grpo", [*STRICT, *modes], sinks=sinks[:1]):
        found = trainer.evaluate(tiny.prompts(4), metric_key_prefix="test")
    with declog.attach(trainer, "trl_grpo", STRICT, sinks=sinks[1:]):
        again = trainer.evaluate(tiny.prompts(4), metric_key_prefix="test")
    (mine,), (plain,) = (cases.events(sink) for sink in sinks)
    assert {"test_loss", "test_reward", "eval_reward", "test_runtime"} <= set(found)
    assert (mine[1], mine[2]["test_reward"], mine[2]["test_loss"]) == ("test", found["eval_reward"], found["test_loss"])
    assert (plain[1], plain[2]["eval_test_loss"] == pytest.approx(again["test_loss"])) == ("eval", True)
    assert "eval_reward" in plain[2] and "eval_reward" not in mine[2]


# ---- trainers that are not seen as a whole ------------------------------------------------------------


def test_a_subclass_with_a_loss_of_its_own(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL's GMPO: generations are computed by declog; what it logs of its loss passes through, under its names."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

    from tests.integrations.trl import tiny

    args = GMPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=4, num_generations=4, max_completion_length=8,
        max_steps=2, logging_steps=1, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
    )  # fmt: skip
    trainer = GMPOTrainer(str(model), [cases.length], args=args, train_dataset=tiny.prompts())
    sink = MemorySink()
    with caplog.at_level(logging.WARNING, "declog"), declog.attach(trainer, "trl_grpo", STRICT, sinks=[sink]) as log:
        assert "entropy" not in log.plan.names() and "reward" in log.plan.names()
        trainer.train()
    (reported,) = [record.getMessage() for record in caplog.records if "does not see" in record.getMessage()]
    assert (
        "`_compute_loss` is not TRL's own" in reported
        and "`clip_ratio/region_mean`" in reported
        and "`reward`" not in reported
    )
    found = cases.events(sink)
    for entry, (_, _, event) in zip(trainer.state.log_history, found, strict=True):
        own = {name: value for name, value in entry.items() if name != "step" and value is not None}
        assert own == pytest.approx({name: event.get(name) for name in own}, abs=1e-6, rel=1e-6)


def copied(folder: Path) -> Any:
    """A class as Unsloth writes it: TRL's source under another name, with a loss that logs numbers of its own."""
    from trl.trainer import grpo_trainer

    source = Path(inspect.getfile(grpo_trainer)).read_text(encoding="utf-8")
    for old, new in {
        "from ..": "from trl.",
        "from .": "from trl.trainer.",
        "GRPOTrainer": "_UnslothGRPOTrainer",
    }.items():
        source = source.replace(old, new)
    file = folder / "UnslothGRPOTrainer.py"
    file.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def compute_loss(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        ids, mask = inputs["completion_ids"], inputs["completion_mask"]
        whole = torch.cat([inputs["prompt_ids"], ids], dim=1), torch.cat([inputs["prompt_mask"], mask], dim=1)
        logprobs = self._get_per_token_logps_and_entropies(model, *whole, ids.shape[1])[0]
        self._metrics["train" if self.model.training else "eval"]["kl"].append(0.25)
        return -(logprobs * inputs["advantages"][:, None] * mask).sum() / mask.sum()

    module._UnslothGRPOTrainer.compute_loss = compute_loss
    return type("UnslothGRPOTrainer", (module._UnslothGRPOTrainer,), {"__module__": file.stem})


def test_a_copy_of_trls_class(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Generations of a class that copies TRL's methods are computed; numbers of its own loss pass through."""
    source = "+declog.metrics.by_source={expr: reward, by: source}"
    given = "+declog.signals.rollout.source={axis: completion, type: text}"
    with caplog.at_level(logging.WARNING, "declog"):
        outcome = cases.run(
            Case(args={"beta": 0.05}), model, tmp_path, cls=copied(tmp_path), overrides=[given, source], merge="replace"
        )
    (reported,) = [record.getMessage() for record in caplog.records if "does not see" in record.getMessage()]
    assert "`compute_loss` is not TRL's own" in reported and "`reward`" not in reported
    right = cases.expected(outcome.history)
    assert {"kl", "reward", "completions/mean_length", "by_source/a", "by_source/b"} <= set(right[0][2])
    assert [expected.get("kl", expected.get("eval_kl")) for _, _, expected in right] == [0.25, 0.25, 0.25, 0.25, None]
    for (_, _, expected), (_, _, event) in zip(right, outcome.events, strict=True):
        assert expected == pytest.approx({name: event.get(name) for name in expected}, abs=1e-6, rel=1e-6)
    assert outcome.sink is not None and any(event.tables for _, event in outcome.sink.events)


def test_a_trainer_of_another_kind(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every scalar that TRL's SFTTrainer reports is in every profile; inactive metrics are named once."""
    from trl import SFTConfig, SFTTrainer

    from tests.integrations.trl import tiny

    args = SFTConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=4, max_steps=3, logging_steps=1, report_to="none",
        use_cpu=True, bf16=False, disable_tqdm=True, max_length=16, eval_strategy="steps", eval_steps=2,
    )  # fmt: skip
    data = tiny.prompts().rename_column("prompt", "text").remove_columns("source")
    trainer = SFTTrainer(str(model), args=args, train_dataset=data, eval_dataset=data)
    sink = MemorySink()
    with (
        caplog.at_level(logging.WARNING, "declog"),
        declog.attach(trainer, "trl_grpo", [*STRICT, "declog.profile=slim"], sinks=[sink]),
    ):
        trainer.train()
    (reported,) = [record.getMessage() for record in caplog.records if "does not see" in record.getMessage()]
    assert "neither trl.GRPOTrainer nor trl.RLOOTrainer" in reported and "`reward`" in reported
    right = cases.expected(trainer.state.log_history)
    assert {"loss", "mean_token_accuracy", "grad_norm"} <= set(right[0][2])
    for (step, mode, expected), event in zip(right, cases.events(sink), strict=True):
        assert (step, mode) == event[:2]
        assert expected == pytest.approx({name: event[2].get(name) for name in expected})


def test_a_trainer_of_another_kind_that_observes(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a name it is the preset `trainer`; values of its own are in the logs, and pick the best model."""
    from trl import SFTConfig, SFTTrainer

    from tests.integrations.trl import tiny

    class Observing(SFTTrainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            declog.observe(error=[1.0, 2.0 + self.state.global_step])
            return super().compute_loss(*args, **kwargs)

    args = SFTConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=4, max_steps=3, logging_steps=1, report_to="none",
        use_cpu=True, bf16=False, disable_tqdm=True, max_length=16, eval_strategy="steps", eval_steps=1,
        metric_for_best_model="worst", greater_is_better=True, save_strategy="best",
    )  # fmt: skip
    data = tiny.prompts().rename_column("prompt", "text").remove_columns("source")
    trainer = Observing(str(model), args=args, train_dataset=data, eval_dataset=data)
    mine = [
        "+declog.signals.any.error={axis: completion}",
        "+declog.metrics.worst='max(error)'",
        "+declog.signals.reported.grad_norm={axis: step}",
        "+declog.metrics.steepest='max(grad_norm)'",
    ]
    with caplog.at_level(logging.WARNING, "declog"), declog.attach(trainer, overrides=[*STRICT, *mine]) as log:
        trainer.train()
    assert (log.plan.name, caplog.records, trainer.state.best_metric) == ("trainer", [], 5.0)
    history = trainer.state.log_history
    assert [entry["worst"] for entry in history if "loss" in entry] == [2.0, 3.0, 4.0]
    assert [entry["eval_worst"] for entry in history if "eval_loss" in entry] == [3.0, 4.0, 5.0]
    assert all(entry["steepest"] == entry["grad_norm"] for entry in history if "loss" in entry)


def test_a_subclass_with_metrics_of_its_own(model: Path, tmp_path: Path) -> None:
    """They pass through in the same log event, and the rest is computed."""
    from trl import GRPOTrainer

    class Mine(GRPOTrainer):  # type: ignore[misc]
        def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
            self._metrics["train" if self.model.training else "eval"]["mine"].append(2.0)
            return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)

    outcome = cases.run(Case(), model, tmp_path, cls=Mine)
    assert [event[2].get("mine") for event in outcome.events if event[1] == "train"] == [2.0, 2.0, None]
    right = cases.expected(outcome.history)
    for (_, _, expected), (_, _, found) in zip(right, outcome.events, strict=True):
        assert expected == pytest.approx({name: found.get(name) for name in expected}, abs=1e-6, rel=1e-6)


def test_overrides_that_call_what_they_override(model: Path, tmp_path: Path) -> None:
    """With any arguments, from a mixin, with a loss that adds a term: all is computed, and equal."""
    from trl import GRPOTrainer

    class Mixin:
        def _compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return 1.5 * super()._compute_loss(*args, **kwargs)  # type: ignore[misc]

        def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
            return super()._generate_and_score_completions(*args, **kwargs)  # type: ignore[misc]

    class Mine(Mixin, GRPOTrainer):  # type: ignore[misc]
        def log(self, *args: Any, **kwargs: Any) -> None:
            super().log(*args, **kwargs)

    outcome = cases.run(Case(args={"beta": 0.05}), model, tmp_path, cls=Mine)
    right = cases.expected(outcome.history)
    assert {"kl", "entropy", "reward", "clip_ratio/low_min"} <= set(right[0][2])
    for (_, _, expected), (_, _, found) in zip(right, outcome.events, strict=True):
        assert expected == pytest.approx({name: found.get(name) for name in expected}, abs=1e-6, rel=1e-6)


def test_a_subclass_that_computes_a_number_in_another_way(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The trainer's own number stays, which is reported once, and is beside declog's in declog's sinks."""
    from trl import GRPOTrainer

    class Mine(GRPOTrainer):  # type: ignore[misc]
        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            if "loss" in logs:
                self._metrics["train"]["entropy"] = [99.0]
            super().log(logs, start_time)

    with caplog.at_level(logging.WARNING, "declog"):
        outcome = cases.run(Case(), model, tmp_path, cls=Mine, merge="replace")
    reported = [record.getMessage() for record in caplog.records if "has other numbers" in record.getMessage()]
    assert len(reported) == 1 and "`entropy` (" in reported[0] and "the trainer 99)" in reported[0]
    assert {entry["entropy"] for entry in values(outcome.history, "train")} == {99.0}


@pytest.mark.parametrize("otherwise", [False, True])
def test_a_newer_version(
    otherwise: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that nobody has compared yet: it is compared while it trains, and where it differs its numbers stay."""
    from trl import GRPOTrainer

    from declog.integrations.trl import support

    monkeypatch.setattr(support, "EQUAL", ((1, 9), (1, 15)))
    if otherwise:
        original = GRPOTrainer._compute_loss

        def computed(self: Any, model: Any, inputs: Any) -> Any:
            loss = original(self, model, inputs)
            mode = "train" if self.model.training else "eval"
            self._metrics[mode]["entropy"][-1] *= 2
            return loss

        monkeypatch.setattr(GRPOTrainer, "_compute_loss", computed)
    case = Case(args={"max_steps": 2})
    own = cases.run(case, model, tmp_path / "own")
    caplog.clear()
    merged = cases.run(case, model, tmp_path / "merged", merge="replace", overrides=[P95])
    reported = [record.getMessage() for record in caplog.records if "has other numbers" in record.getMessage()]
    names = [name for name in ("entropy", "eval_entropy") for text in reported if f"`{name}` (" in text]
    assert names == (["entropy", "eval_entropy"] if otherwise else []) and len(reported) == len(names)
    for mine, theirs in zip(merged.history, own.history, strict=True):
        left_out = {name for name in theirs if "time" in name or "per_second" in name}
        kept = {name: value for name, value in theirs.items() if name not in left_out}
        assert {name: mine.get(name) for name in kept} == pytest.approx(kept, abs=1e-6, rel=1e-6)
    assert "reward_p95" in merged.history[0]


def test_several_evaluation_sets(model: Path, tmp_path: Path) -> None:
    """Each is a log event; TRL's own names do not distinguish them, those of transformers do."""
    from tests.integrations.trl import tiny

    data = {"eval_dataset": {"easy": tiny.prompts(4), "hard": tiny.prompts(4)}}
    outcome = cases.run(Case(args={"max_steps": 2}), model, tmp_path, data=data)
    logged = [event for event in outcome.events if event[1] == "eval"]
    history = [entry for entry in outcome.history if "eval_reward" in entry]
    assert len(logged) == len(history) == 2
    for (_, _, found), entry in zip(logged, history, strict=True):
        own = {name: value for name, value in entry.items() if name.startswith("eval_")}
        assert own == pytest.approx({name: found.get(name) for name in own}, abs=1e-6, rel=1e-6)
    assert "eval_easy_loss" in logged[0][2] and "eval_hard_loss" in logged[1][2]


def test_evaluation_sets_that_share_a_mode(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Class: sets of any names. The warning comes before training, and with its modes each set has its own numbers."""
    from tests.integrations.trl import tiny

    data = {"eval_dataset": {"easy": tiny.prompts(4), "hard": tiny.prompts(4)}}
    case = Case(args={"max_steps": 2})
    cases.run(case, model, tmp_path / "shared", data=data)
    (said,) = [text for text in caplog.messages if "share the mode `eval`" in text]
    assert said.endswith("fix: modes: {eval_easy: {prefix: eval_easy_}, eval_hard: {prefix: eval_hard_}}")
    caplog.clear()
    modes = [f"+modes.eval_{name}={{prefix: eval_{name}_}}" for name in ("easy", "hard")]
    outcome = cases.run(case, model, tmp_path / "own", data=data, overrides=modes)
    rewards = [entry["eval_reward"] for entry in outcome.history if "eval_reward" in entry]
    found = {mode: values[f"{mode}_reward"] for _, mode, values in outcome.events if mode.startswith("eval")}
    assert found == pytest.approx(dict(zip(("eval_easy", "eval_hard"), rewards, strict=True)), abs=1e-6)
    assert not [text for text in caplog.messages if "share the mode" in text or "several log events" in text]
    cases.run(
        case,
        model,
        tmp_path / "renamed",
        data={"eval_dataset": dict(zip(("MATH-500", "a b"), [tiny.prompts(4)] * 2, strict=True))},
    )
    (said,) = [text for text in caplog.messages if "share the mode `eval`" in text]
    assert said.endswith("}}, and math_500, a_b as the keys of `eval_dataset`")
