"""TRL is never ended by its logger: whatever fails in declog is reported, and training is what it would be without."""

from __future__ import annotations

import functools
import math
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.language.functions import DEFAULT
from declog.testing import MemorySink, run_ranks
from tests.integrations.trl import cases, faults
from tests.integrations.trl.cases import STRICT, Case
from tests.integrations.trl.jobs import two_ranks

LENIENT = "declog.sinks=[]"
SHORT = Case(args={"max_steps": 3, "logging_steps": 1, "eval_strategy": "no", "gradient_accumulation_steps": 1})


def columns(
    model: Path, folder: Path, *rewards: Callable[..., Any], overrides: Sequence[str] = (), **options: Any
) -> Any:
    """A run with these reward functions: its rows at each step, its failures, its history, and its sink."""
    trainer = cases.trainer_of(SHORT, model, folder, rewards=list(rewards), **options)
    sink = MemorySink()
    with declog.attach(trainer, cases.composed("trl_grpo", LENIENT, *overrides), sinks=[sink]) as log:
        trainer.train()
    return [table.data for _, table in sink.tables("completions")], list(log.failures), trainer.state.log_history, sink


# ---- faults in hooks ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What training comes to without declog."""
    return faults.outcome(model, tmp_path_factory.mktemp("alone"), None)


@pytest.mark.parametrize(
    ("name", "late"),
    [(name, bool(place % 2)) for place, name in enumerate(faults.FAULTS)]
    + [("observe", True), ("passed_on", False), ("mode", False)],
)
def test_a_fault_in_a_hook(name: str, late: bool, alone: Any, model: Path, tmp_path: Path) -> None:
    """Weights and history are those of a run without declog, and the fault is reported; soak has each both ways."""
    found = faults.outcome(model, tmp_path, name, late=late)
    assert found.struck > 0
    assert faults.differences(alone, found) == []
    assert any(name == "log_metric" or "DL608" in failure for failure in found.failures)


@pytest.fixture(scope="module")
def pair(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same on two ranks, of which one fails, in one job."""
    folder = tmp_path_factory.mktemp("pair")
    two_ranks("faulty", model, folder)
    return folder


@pytest.mark.parametrize("name", faults.SHARED)
def test_a_fault_on_one_of_two_ranks(name: str, pair: Path) -> None:
    """Neither rank differs from a run without declog, and neither waits for the other in vain."""
    for rank in range(2):
        own, found = pickle.loads((pair / f"{name}-{rank}.pickle").read_bytes())
        assert faults.differences(own, found) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit], ids=lambda error: error.__name__)
def test_an_interrupt_passes(error: type[BaseException], model: Path, tmp_path: Path) -> None:
    """Whoever interrupts a run means the run, wherever it is."""
    with pytest.raises(error):
        faults.outcome(model, tmp_path, "observe", error=error)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, faults.Panic])
def test_an_error_of_a_reward_function_is_its_own(error: type[BaseException], model: Path, tmp_path: Path) -> None:
    """The same object comes out, as if nobody had been between."""
    raised = error("mine")

    def reward(completions: Sequence[str], trainer_state: Any, **given: Any) -> list[float]:
        if trainer_state.global_step == 1:
            raise raised
        return [float(len(each)) for each in completions]

    trainer = cases.trainer_of(SHORT, model, tmp_path, rewards=[reward])
    with declog.attach(trainer, "trl_grpo", [LENIENT]), pytest.raises(error) as caught:
        trainer.train()
    assert caught.value is raised and raised.__context__ is None and raised.__cause__ is None


def test_strict_raises(model: Path, tmp_path: Path) -> None:
    """Who asks for it gets the error where it happened."""

    def reward(completions: Sequence[str], log_extra: Any, **given: Any) -> list[float]:
        log_extra("short", [1])
        return [1.0] * len(completions)

    with pytest.raises(
        declog.InputError, match="4 completions need one value each, and 1 of the reward function `reward` came"
    ):
        columns(model, tmp_path, reward, overrides=["+declog.run.strict=true"])


def test_closed_inside_a_callback(model: Path, tmp_path: Path) -> None:
    """The trainer goes on alone, from the middle of a step."""
    from transformers import TrainerCallback

    class Close(TrainerCallback):  # type: ignore[misc]
        def on_substep_end(self, *args: Any, **kwargs: Any) -> None:
            log.close()

    case = Case(args={"max_steps": 2, "logging_steps": 1, "eval_strategy": "no"})
    trainer = cases.trainer_of(case, model, tmp_path, callbacks=[Close()])
    log = declog.attach(trainer, "trl_grpo", [LENIENT])
    trainer.train()
    assert (log.closed, dict(log.failures), trainer.state.global_step) == (True, {}, 2)


def test_two_trainers_in_one_process(model: Path, tmp_path: Path) -> None:
    """Each has its own recorder, also where both are open at the same time."""
    sinks = [MemorySink(), MemorySink()]
    trainers = [cases.trainer_of(SHORT, model, tmp_path / str(place)) for place in range(2)]
    logs = [
        declog.attach(each, "trl_grpo", [LENIENT], sinks=[sink]) for each, sink in zip(trainers, sinks, strict=True)
    ]
    for trainer in trainers:
        trainer.train()
    for log in logs:
        log.close()
    assert [[step for step, _, _ in cases.events(sink)] for sink in sinks] == [[1, 2, 3, 3], [1, 2, 3, 3]]
    assert [dict(log.failures) for log in logs] == [{}, {}]


def test_the_best_model_by_a_metric_that_does_not_come(model: Path, tmp_path: Path) -> None:
    """A metric of declog's own that is not there in time ends no run: no model is the best by it."""

    @declog.function(name="slow_length")  # on the worker, so that no evaluation is ready when it is asked for
    def run(length: torch.Tensor) -> torch.Tensor:
        time.sleep(0.5)
        return length

    trainer = cases.trainer_of(cases.BEST, model, tmp_path)
    surprise = "+declog.metrics.surprise={expr: slow_length(length), reduce: max, name: surprise}"
    try:
        with declog.attach(trainer, "trl_grpo", [LENIENT, surprise], deliver_s=0.0):
            trainer.train()
    finally:
        DEFAULT.discard("slow_length")
    assert (trainer.state.best_metric is None or math.isinf(trainer.state.best_metric), trainer.state.global_step) == (
        True,
        8,
    )


# ---- what reward functions give -------------------------------------------------------------------------


GIVEN: Mapping[str, tuple[Callable[[int], Any], Any]] = {
    "too few": (lambda n: [1], None), "too many": (lambda n: [1] * (n + 1), None), "none": (lambda n: [], None),
    "a tensor": (lambda n: torch.arange(n) / 2, [0.0, 0.5, 1.0, 1.5]),
    "tensors": (lambda n: [torch.tensor(1.5)] * n, [1.5] * 4),
    "arrays": (lambda n: [np.arange(2)] * n, [[0, 1]] * 4), "an array": (np.zeros, [0.0] * 4),
    "a generator": (lambda n: (place for place in range(n)), [0, 1, 2, 3]), "a text": (lambda n: "x" * n, ["x"] * 4),
    "a map": (lambda n: dict.fromkeys(range(n)), [0, 1, 2, 3]), "sets": (lambda n: [{2, 1}] * n, [[1, 2]] * 4),
    "mixed": (lambda n: [1, "a", None, 2.5], [1, "a", None, 2.5]),
}  # fmt: skip


@pytest.fixture(scope="module")
def given(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run whose reward function logs a column of each of these, beside a good one."""

    def plain(completions: Sequence[str], log_extra: Any, **others: Any) -> list[float]:
        log_extra("fine", [each.upper() for each in completions])
        for name, (values, _) in GIVEN.items():
            log_extra(name, values(len(completions)))
        return [float(len(each)) for each in completions]

    return columns(model, tmp_path_factory.mktemp("given"), plain)


@pytest.mark.parametrize("name", GIVEN)
def test_a_column_of_log_extra(name: str, given: Any) -> None:
    """Whatever TRL takes is a column, or is reported with the function's name and left out; other columns are there."""
    expected = GIVEN[name][1]
    found, failures, _, _ = given
    assert [len(data["fine"]) for data in found] == [4, 4, 4]
    assert [list(data[name]) if name in data else None for data in found] == [expected] * 3
    reported = [text for text in failures if f"the column `{name}` of the reward function `plain`" in text]
    assert len(reported) == (1 if expected is None else 0)
    assert len(failures) == sum(expected is None for _, expected in GIVEN.values())


class Judge:
    """An object, which its class names."""

    def __call__(self, completions: Sequence[str], log_extra: Any, log_metric: Any, **given: Any) -> list[float]:
        log_extra("object", [1])
        log_metric("score", "high")
        return [1.0] * len(completions)

    def method(self, completions: Sequence[str], log_extra: Any, **given: Any) -> list[float]:
        log_extra("method", [1])
        return [1.0] * len(completions)


def helper(column: str, completions: Sequence[str], log_extra: Any, **given: Any) -> list[float]:
    list(map(functools.partial(log_extra, column), [[1]]))
    return [1.0] * len(completions)


def helped(**given: Any) -> list[float]:
    return helper("helped", **given)


async def awaited(completions: Sequence[str], log_extra: Any, **given: Any) -> list[float]:
    log_extra("awaited", [1])
    return [1.0] * len(completions)


def test_the_function_is_named(model: Path, tmp_path: Path) -> None:
    """A function, a method, a partial, one that is awaited, one that calls from further below."""
    rewards: list[Callable[..., Any]] = [Judge().method, helped, awaited, lambda **given: helper("lambda", **given)]
    _, failures, _, _ = columns(model, tmp_path, *rewards)
    named = {"method": "method", "helped": "helped", "awaited": "awaited", "lambda": "<lambda>"}
    for column, function in named.items():
        text = f"the column `{column}` of the reward function `{function}`: 4 completions need one value each, and 1 of"
        assert [text in failure for failure in failures].count(True) == 1, failures
    assert len(failures) == 4


def test_one_column_of_two_functions(model: Path, tmp_path: Path) -> None:
    """The first one's values are the column, and both are named; TRL's own table has twice as many."""

    def first(completions: Sequence[str], log_extra: Any, **given: Any) -> list[float]:
        log_extra("col", ["first"] * len(completions))
        return [1.0] * len(completions)

    def second(completions: Sequence[str], log_extra: Any, **given: Any) -> list[float]:
        log_extra("col", ["second"] * len(completions))
        return [2.0] * len(completions)

    found, (messages,), _, _ = columns(model, tmp_path, first, second)
    assert [set(data["col"]) for data in found] == [{"first"}] * 3
    assert (
        "need one value each, and 4 of the reward function `first`, 4 of the reward function `second` came" in messages
    )


def test_one_column_in_pieces(model: Path, tmp_path: Path) -> None:
    """A value at a time, as TRL allows."""

    def reward(completions: Sequence[str], log_extra: Any, **given: Any) -> list[float]:
        for each in completions:
            log_extra("col", [len(each)])
        return [1.0] * len(completions)

    found, failures, _, _ = columns(model, tmp_path, reward)
    assert [list(data["col"]) for data in found] == [[len(each) for each in data["completion"]] for data in found]
    assert failures == []


def timeless(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that two runs have in common."""
    return {name: value for name, value in values.items() if not {"time", "runtime", "second"} & {*name.split("_")}}


PRESETS = ("advantages", "reward", "completion", "prompt", "entropy", "length", "rewards", "row", "loss", "prompt_id")


def test_a_column_is_no_signal_of_a_preset(model: Path, tmp_path: Path) -> None:
    """By its name alone nothing that a reward function logs is counted as what the trainer observes."""

    def reward(completions: Sequence[str], log_extra: Any, **given: Any) -> list[float]:
        for name in PRESETS:
            log_extra(name, [1000.0] * len(completions))
        return [float(len(each)) for each in completions]

    def quiet(completions: Sequence[str], **given: Any) -> list[float]:
        return [float(len(each)) for each in completions]

    quiet.__name__ = "reward"
    _, _, history, sink = columns(model, tmp_path / "named", reward)
    found, _, own, other = columns(model, tmp_path / "quiet", quiet)
    for mine, theirs in zip(
        [*history, *(values for _, _, values in cases.events(sink))],
        [*own, *(values for _, _, values in cases.events(other))],
        strict=True,
    ):
        assert timeless(mine) == timeless(theirs)
    tables = [table.data for _, table in sink.tables("completions")]
    assert [data["advantages"] for data in tables] == [data["advantages"] for data in found]
    assert len(tables) == 3


def test_a_column_is_a_signal_that_takes_it(model: Path, tmp_path: Path) -> None:
    """It says `from_log_extra: true`."""

    def reward(completions: Sequence[str], log_extra: Any, **given: Any) -> list[float]:
        log_extra("mine", [2.0] * len(completions))
        return [1.0] * len(completions)

    signal = "{axis: completion, from_log_extra: true}"
    overrides = [f"+declog.signals.rollout.mine={signal}", "+declog.metrics.mine='mean(mine)'"]
    _, failures, _, sink = columns(model, tmp_path, reward, overrides=overrides)
    assert [values["mine"] for _, _, values in cases.events(sink)[:3]] == [2.0] * 3 and failures == []


NUMBERS: Mapping[str, tuple[Any, float | None]] = {
    "a tensor": (torch.tensor(2.5), 2.5), "numpy's": (np.float32(2.5), 2.5), "bool": (True, 1.0), "int": (3, 3.0),
    "NaN": (float("nan"), None), "infinite": (float("inf"), float("inf")),
}  # fmt: skip


def test_numbers_of_log_metric(model: Path, tmp_path: Path) -> None:
    """TRL's values, in its log and in declog's."""

    def reward(completions: Sequence[str], log_metric: Any, **given: Any) -> list[float]:
        for name, (value, _) in NUMBERS.items():
            log_metric(name, value)
        return [1.0] * len(completions)

    _, failures, history, sink = columns(model, tmp_path, reward)
    for name, (_, expected) in NUMBERS.items():
        assert [entry[name] for entry in history[:3]] == [expected] * 3, name
        assert [values.get(name) for _, _, values in cases.events(sink)[:3]] == [expected] * 3, name
    assert failures == []


def test_nan_on_one_of_two_ranks(tmp_path: Path) -> None:
    """TRL has no value of that generation then, and the mean is of the others: 3, and not 2.25."""
    sink = MemorySink()

    def rank(comm: Any) -> None:
        sinks = [sink] if comm.rank == 0 else []
        constants = {"sees_updates": False, "sees_rollouts": False}
        with declog.start(
            "trl_grpo", STRICT, constants=constants, sinks=sinks, output_dir=tmp_path / str(comm.rank), comm=comm
        ) as log:
            for step in (1, 2):
                with log.step(step):
                    nan = step == 1 and comm.rank == 1
                    total = {"x": 0.0 if nan else 3.0}
                    log.observe(logged_total=total, logged_calls={"x": 1}, logged_nans={"x": int(nan)})
            log.flush()

    run_ranks(2, rank)
    assert sink.scalars == {2: {"x": 3.0}}


def test_a_metric_of_trls_own_name(model: Path, tmp_path: Path) -> None:
    """TRL mixes both under one key, and so says its log; declog keeps them apart."""

    def reward(completions: Sequence[str], log_metric: Any, **given: Any) -> list[float]:
        log_metric("reward", 1000.0)
        return [2.0] * len(completions)

    _, (messages,), history, sink = columns(model, tmp_path, reward)
    assert [entry["reward"] for entry in history[:3]] == [501.0] * 3
    assert [values["reward"] for _, _, values in cases.events(sink)[:3]] == [2.0] * 3
    assert "DL508" in messages


# ---- what reward functions give to declog itself ---------------------------------------------------------


def observed(**signals: Any) -> Callable[[int], None]:
    """A call of ``declog.observe``."""
    return lambda count: declog.observe(**signals)


def extra(column: Any, *values: Any) -> Callable[[int], None]:
    """Calls of ``declog.log_extra``."""

    def given(count: int) -> None:
        for each in values:
            declog.log_extra(column, each)

    return given


MISTAKES: Mapping[str, tuple[Callable[[int], None], str]] = {
    "too few": (extra("few", [1]), "the column `few` of the reward function `mistaken`: the column `few` has 1 values"),
    "too many": (extra("many", np.zeros(9)), "the column `many` of the reward function `mistaken`"),
    "no list": (extra("three", 3), "the column `three` of the reward function `mistaken`"),
    "no name": (extra(7, [1, 2, 3, 4]), "the column `7` of the reward function `mistaken`"),
    "no values": (extra("meta", torch.empty(4, device="meta")), "is on the meta device"),
    "twice": (extra("twice", [1] * 4, [2] * 4), "the column `twice` was given twice"),
    "a declared one": (extra("mine", [1.0] * 3), "the column `mine` of the reward function `mistaken`"),
    "a declared one of texts": (extra("number", ["a"] * 4), "the column `number` of the reward function `mistaken`"),
    "a metric": (lambda count: declog.log_metric("score", "high"), "`score` of the reward function `mistaken`"),
    "an unknown signal": (observed(wrong=[1.0]), "`wrong` of the reward function `mistaken`"),
    "another length": (observed(size=[1.0]), "`size` of the reward function `mistaken`"),
    "the trainer's": (observed(length=[9] * 4), "`length` is recorded of the trainer already"),
}  # fmt: skip
MINE = [
    override
    for name in ("mine", "number", "size")
    for override in (
        f"+declog.signals.rollout.{name}={{axis: completion, from_log_extra: true}}",
        f"+declog.metrics.{name}='mean({name})'",
    )
]


def mistaken(completions: Sequence[str], trainer_state: Any, **given: Any) -> list[float]:
    declog.log_extra("fine", [each.upper() for each in completions])
    list(MISTAKES.values())[trainer_state.global_step][0](len(completions))
    return [float(len(each)) for each in completions]


@pytest.fixture(scope="module")
def mistakes(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run with one of these mistakes in each of its steps."""
    folder = tmp_path_factory.mktemp("mistakes")
    return columns(model, folder, mistaken, overrides=MINE, args={"max_steps": len(MISTAKES)})


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_with_declog_itself(name: str, mistakes: Any) -> None:
    """It is reported with the function's name, and takes nothing with it: neither the training nor another column."""
    found, failures, history, sink = mistakes
    assert (len(found), len(history), len(failures)) == (len(MISTAKES), len(MISTAKES) + 1, len(MISTAKES))
    at = [*MISTAKES].index(name)
    assert found[at]["fine"] == [each.upper() for each in found[at]["completion"]]
    assert MISTAKES[name][1] in failures[at] and "DL608" in failures[at]
    _, _, values = cases.events(sink)[at]
    assert values["reward"] == pytest.approx(np.mean([len(each) for each in found[at]["completion"]]))
    assert values["completions/mean_length"] > 0
    if name == "the trainer's":  # nothing of the log event is lost
        assert "declog/ranks" not in values


@pytest.mark.parametrize("name", ["too few", "a metric", "an unknown signal"])
def test_strict_raises_a_mistake_with_declog_itself(name: str, model: Path, tmp_path: Path) -> None:
    """Whoever asks for it."""

    def reward(completions: Sequence[str], **given: Any) -> list[float]:
        MISTAKES[name][0](len(completions))
        return [1.0] * len(completions)

    with pytest.raises(declog.DeclogError):
        columns(model, tmp_path, reward, overrides=["+declog.run.strict=true"])


def test_columns_beside_rewards(model: Path, tmp_path: Path) -> None:
    """Of two decorated functions the one that errs is named; its other columns are recorded."""

    @declog.reward
    def first(completions: Sequence[str], **given: Any) -> Any:
        return [1.0] * len(completions), {"a": [1] * 4, "short": [1], 7: [1] * 4}

    @declog.reward
    async def second(completions: Sequence[str], **given: Any) -> Any:
        return [2.0] * len(completions), {"b": [2] * 4, "long": [1] * 5}

    found, failures, _, _ = columns(model, tmp_path, first, second)
    assert [(data["a"], data["b"]) for data in found] == [([1] * 4, [2] * 4)] * 3
    assert sorted(text.split(": ")[0].removeprefix("[DL608] ") for text in failures) == [
        "the column `7` of the reward function `first`", "the column `long` of the reward function `second`",
        "the column `short` of the reward function `first`",
    ]  # fmt: skip


def test_what_comes_after_its_generation(model: Path, tmp_path: Path) -> None:
    """A column that somebody gives later has no rows: it is in no table, and that is reported."""
    from transformers import TrainerCallback

    kept: list[Any] = []

    def reward(completions: Sequence[str], log_extra: Any, **given: Any) -> list[float]:
        kept[:] = [log_extra]
        return [1.0] * len(completions)

    class Late(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            kept[0]("theirs", [1] * 4)
            declog.log_extra("ours", [1] * 4)

    sink = MemorySink()
    trainer = cases.trainer_of(SHORT, model, tmp_path, rewards=[reward], callbacks=[Late()])
    with declog.attach(trainer, "trl_grpo", [LENIENT], sinks=[sink]) as log:
        trainer.train()
    assert not [table for _, table in sink.tables("completions") if {"theirs", "ours"} & set(table.data)]
    assert sorted(text.split(" of ")[0] for text in log.failures) == [
        "[DL608] the column `ours`", "[DL608] the column `theirs`",
    ]  # fmt: skip
    assert list(log.failures.values()) == [3, 3]


def test_a_prediction_is_not_recorded(model: Path, tmp_path: Path) -> None:
    """What its reward functions give to declog belongs to no log event, and is no mistake."""
    from tests.integrations.trl import tiny

    def reward(completions: Sequence[str], **given: Any) -> list[float]:
        declog.log_metric("score", 1.0)
        declog.log_extra("col", [1] * len(completions))
        return [1.0] * len(completions)

    trainer = cases.trainer_of(SHORT, model, tmp_path, rewards=[reward])
    sink = MemorySink()
    with declog.attach(trainer, "trl_grpo", STRICT, sinks=[sink]) as log:
        trainer.predict(tiny.prompts(4))
        trainer.train()
    assert [values.get("score") for _, _, values in cases.events(sink)[:3]] == [1.0] * 3
    assert log.failures == {}


DIVERGING = Case(args={**SHORT.args, "scale_rewards": "none"})


def diverging(broken: float) -> Callable[..., list[float]]:
    """A reward function that is not finite in the second step."""

    def reward(completions: Sequence[str], trainer_state: Any, **given: Any) -> list[float]:
        return [broken if trainer_state.global_step == 1 else float(len(each)) for each in completions]

    return reward


@pytest.fixture(scope="module", params=[math.nan, math.inf], ids=["NaN", "infinite"])
def diverged(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What such a run logs without declog, with its reward function."""
    reward = diverging(request.param)
    own = cases.trainer_of(DIVERGING, model, tmp_path_factory.mktemp("own"), rewards=[reward])
    own.train()
    return reward, own.state.log_history


@pytest.mark.parametrize("merge", ["replace", "prefix", None])
def test_a_diverging_run(diverged: Any, merge: str | None, model: Path, tmp_path: Path) -> None:
    """What declog says of it is in declog's sinks; the trainer's own log is that of a run without declog."""
    reward, own = diverged
    trainer = cases.trainer_of(DIVERGING, model, tmp_path, rewards=[reward])
    sink = MemorySink()
    with declog.attach(trainer, "trl_grpo", [LENIENT], sinks=[sink], merge=merge):
        trainer.train()
    for mine, theirs in zip(trainer.state.log_history, own, strict=True):
        extra = {name for name in mine if name.startswith("declog/")} if merge == "prefix" else set()
        assert not [name for name in mine if "nonfinite" in name or "broken" in name]
        assert set(mine) - extra == set(theirs)
        for name, value in timeless(theirs).items():
            there = value is not None and not math.isnan(value)  # transformers writes None for NaN
            assert mine[name] == (pytest.approx(value, rel=1e-6, abs=1e-6) if there else mine[name]), name
            assert there or mine[name] is None or math.isnan(mine[name]), name
    shown = {item.name for step, records in sink.events for item in records.scalars if step >= 2}
    assert [name for name in shown if name.startswith("nonfinite/")]
    assert sink.alerts and sink.alerts[0][0] == 2
