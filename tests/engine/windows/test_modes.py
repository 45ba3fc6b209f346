"""Modes, the trainer's own log events, conditions, defaults, and signals of several phases."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import declog
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.running import output_words, profile, rows, run

ROWS = {"axis": "completion"}
STEP = {"axis": "step"}
MODES = {"train": {}, "eval": {"prefix": "eval_", "every": "end"}}
X = profile({"x": STEP}, {"x": "mean(x)"}, modes=MODES)
Logged = list[tuple[int, str, dict[str, float]]]


def phases(sink: MemorySink) -> Logged:
    """Log events in the order of writing: step, mode, values."""
    return [(step, records.mode, {item.name: item.value for item in records.scalars}) for step, records in sink.events]


def observe(log: Recorder, *values: float) -> None:
    """One batch per value."""
    for value in values:
        log.observe(x=value)


# ---- modes


def test_eval_has_windows_of_its_own(tmp_path: Path) -> None:
    """Train's window goes on around it; eval's values have its prefix and the step they were made at."""

    def body(log: Recorder) -> None:
        for step in range(4):
            with log.step(step):
                observe(log, step)
            if step == 1:
                with log.mode("eval"):
                    observe(log, 100, 200)

    assert phases(run({**X, "every": 3}, body, tmp_path)) == [
        (1, "eval", {"eval_x": 150.0}), (2, "train", {"x": 1.0}), (3, "train", {"x": 3.0}),
    ]  # fmt: skip


def test_a_value_over_the_run_is_of_its_mode(tmp_path: Path) -> None:
    """The class: each reduction over the run, totals among them, of rows or values of steps, and in a formula."""
    reductions = ("sum", "count", "mean", "max")
    metrics = {f"run_{one}": {"expr": "x", "reduce": one, "over": "run"} for one in reductions}
    metrics |= {"steps": {"expr": "sum(x)", "over": "run_step", "combine": "sum"}}
    metrics |= {"twice": {"formula": "run_sum * 2"}}
    config = profile({"x": ROWS}, metrics, modes={"eval": {"prefix": "eval/"}})

    def body(log: Recorder) -> None:
        for step in range(3):
            with log.step(step):
                log.observe(x=[1.0, 2.0])
                with log.mode("eval"):
                    log.observe(x=[10.0])

    logged = {(step, mode): values for step, mode, values in phases(run(config, body, tmp_path))}
    for count in (1, 2, 3):
        for mode, values in (("train", [1.0, 2.0] * count), ("eval", [10.0] * count)):
            total = sum(values)
            expected = [total, len(values), total / len(values), max(values), total, 2 * total]
            assert [*logged[count - 1, mode].values()] == expected


def test_eval_inside_a_step(tmp_path: Path) -> None:
    """What was open is closed for train, and train goes on after it, with batches of its own."""

    def body(log: Recorder) -> None:
        with log.step(5):
            observe(log, 1)
            with log.mode("eval"):
                observe(log, 10, 30)
            observe(log, 3)

    config = {**X, "metrics": {"x": "mean(x)", "batches": {"expr": "x", "reduce": "count"}}}
    assert phases(run(config, body, tmp_path)) == [
        (5, "eval", {"eval_x": 20.0, "eval_batches": 2}), (5, "train", {"x": 2.0, "batches": 2}),
    ]  # fmt: skip


def test_eval_has_steps_and_windows_of_n(tmp_path: Path) -> None:
    """`every: 2` of a mode counts its own steps; the rest of them waits for the next block."""

    def body(log: Recorder) -> None:
        for start in (0, 3):
            with log.mode("eval"):
                for step in range(start, start + 3):
                    with log.step(step):
                        observe(log, step)

    config = {**X, "modes": {"train": {}, "eval": {"prefix": "eval_", "every": 2}}}
    assert phases(run(config, body, tmp_path)) == [
        (1, "eval", {"eval_x": 0.5}), (3, "eval", {"eval_x": 2.5}), (5, "eval", {"eval_x": 4.5}),
    ]  # fmt: skip


def test_one_rank_alone_has_something_after_a_flush(tmp_path: Path) -> None:
    """The others take part in that log event too: later ones would be of different steps else."""
    sink = MemorySink()
    config = {**X, "metrics": {"x": "mean(x)", "n": {"expr": "x", "reduce": "count"}}}

    def body(comm: Comm) -> None:
        with declog.start(config, sinks=[sink] if comm.rank == 0 else [], output_dir=tmp_path, comm=comm) as log:
            for step in range(3):
                with log.step(step):
                    observe(log, step)
                if step == 1:
                    with log.mode("eval"):
                        observe(log, 100)
                        log.flush()
                        if comm.rank == 0:
                            log.log_metric("alone", 1.0)

    run_ranks(2, body)
    assert phases(sink) == [
        (0, "train", {"x": 0.0, "n": 2}), (1, "train", {"x": 1.0, "n": 2}), (1, "eval", {"eval_x": 100.0, "eval_n": 2}),
        (1, "eval", {"eval_alone": 1.0}), (2, "train", {"x": 2.0, "n": 2}),
    ]  # fmt: skip


def test_one_rank_alone_has_something_before_its_first_step(tmp_path: Path) -> None:
    """A run that only evaluates ends the same windows on every rank."""
    sink = MemorySink()

    def body(comm: Comm) -> None:
        with declog.start(X, sinks=[sink] if comm.rank == 0 else [], output_dir=tmp_path, comm=comm) as log:
            if comm.rank == 0:
                log.log_metric("alone", 1.0)
            with log.mode("eval"):
                observe(log, 100)

    run_ranks(2, body)
    assert [values for _, _, values in phases(sink)] == [{"eval_x": 100.0}, {"alone": 1.0}]


def test_a_block_is_timed_where_it_is(tmp_path: Path) -> None:
    """A step's durations stay with it when eval interrupts it, and those after the last step are logged at the end."""

    def body(log: Recorder) -> None:
        with log.step(0):
            with log.timer("work"):
                observe(log, 1)
            with log.mode("eval"), log.timer("eval"):
                observe(log, 2)
        with log.timer("save"):
            pass

    assert [(mode, list(values)) for _, mode, values in phases(run(X, body, tmp_path))] == [
        ("eval", ["eval_x", "eval_time/eval"]),
        ("train", ["x", "time/work"]),
        ("train", ["time/save"]),
    ]  # fmt: skip


def test_an_empty_block_logs_nothing(tmp_path: Path) -> None:
    """Nothing was observed in it."""

    def body(log: Recorder) -> None:
        with log.mode("eval"):
            pass

    assert run(X, body, tmp_path).events == []


def test_modes_have_joins_and_previous_values_of_their_own(tmp_path: Path) -> None:
    """Eval's rollout is not joined with train's update, and train's `prev` knows nothing of eval."""
    row = {"row": {**ROWS, "type": "int"}}
    signals = {"rollout": {"reward": ROWS}, "update": {"loss": ROWS, "lr": STEP}}
    metrics = {"both": "mean(reward * loss)", "before": "mean(prev(lr, 0))"}
    config = profile(row, metrics, signals=signals, axes={"completion": {"ids": "row"}}, modes=MODES)

    def batches(log: Recorder, reward: float, loss: float, lr: float) -> None:
        if reward:
            log.observe(row=[1], reward=[reward])
        log.observe(row=[1], loss=[loss], lr=lr)

    def body(log: Recorder) -> None:
        with log.step(0):
            batches(log, 2.0, 3.0, 0.5)
        with log.mode("eval"):
            batches(log, 100.0, 1.0, 9.0)
        with log.step(1):
            batches(log, 0.0, 5.0, 0.25)

    assert phases(run(config, body, tmp_path)) == [
        (0, "train", {"both": 6.0, "before": 0.0}), (0, "eval", {"eval_both": 100.0, "eval_before": 0.0}),
        (1, "train", {"both": 10.0, "before": 0.5}),
    ]  # fmt: skip


def test_the_trainer_says_when(tmp_path: Path) -> None:
    """`every: trainer`: a log event for each `flush`, and the rest at the end."""

    def body(log: Recorder) -> None:
        for step in range(5):
            with log.step(step):
                observe(log, step)
            if step in (1, 2):
                log.flush()

    assert phases(run({**X, "every": "trainer"}, body, tmp_path)) == [
        (1, "train", {"x": 0.5}), (2, "train", {"x": 2.0}), (4, "train", {"x": 3.5}),
    ]  # fmt: skip


# ---- conditions


def steps(values: Mapping[str, list[Any]]) -> Any:
    """A body that observes one value of each signal per step; None is not observed."""

    def body(log: Recorder) -> None:
        for step in range(len(next(iter(values.values())))):
            with log.step(step):
                log.observe(**{name: items[step] for name, items in values.items() if items[step] is not None})

    return body


def test_a_metric_is_logged_when_its_condition_holds(tmp_path: Path) -> None:
    """The condition reads other metrics at each log event, hidden ones too."""
    metrics = {"kl": {"expr": "kl", "when": "loss > 1"}, "loss": {"expr": "loss", "log": False}}
    sink = run(profile({"kl": STEP, "loss": STEP}, metrics), steps({"kl": [1, 2, 3], "loss": [0, 5, 1]}), tmp_path)

    assert phases(sink) == [(1, "train", {"kl": 2.0})]


def test_conditions_on_members_and_missing_values(tmp_path: Path) -> None:
    """`members(id)` is how many members came, `nan_count(id)` how many values were left out."""
    signals = {"rewards": {**ROWS, "family": True}, "x": ROWS}
    metrics = {
        "rewards": {"expr": "rewards", "when": "members(rewards) > 1"},
        "x": "mean(x)",
        "gaps": {"formula": "nan_count(x) + 0 * x", "when": "nan_count(x) > 0"},
    }
    nan = float("nan")
    body = steps({"rewards": [{"a": [1.0, 2.0]}, {"a": [1.0], "b": [3.0]}], "x": [[1.0, nan], [2.0]]})

    assert phases(run(profile(signals, metrics), body, tmp_path)) == [
        (0, "train", {"x": 1.0, "gaps": 1.0}), (1, "train", {"rewards/a": 1.0, "rewards/b": 3.0, "x": 2.0}),
    ]  # fmt: skip


def test_a_profile_hides_when_a_condition_holds(tmp_path: Path) -> None:
    """An exclusion with `when` is decided at each log event; the metric is compiled all the same."""
    calm = {"hide": [{"select": "lr", "when": "lr == 0"}]}
    config = profile({"lr": STEP, "x": STEP}, {"lr": "last(lr)", "x": "mean(x)"}, profiles={"calm": calm},
                     profile="calm")  # fmt: skip

    assert phases(run(config, steps({"lr": [0.0, 0.1, 0.0], "x": [1, 2, 3]}), tmp_path)) == [
        (0, "train", {"x": 1.0}), (1, "train", {"x": 2.0, "lr": 0.1}), (2, "train", {"x": 3.0}),
    ]  # fmt: skip


def test_a_profile_shows_when_a_condition_holds(tmp_path: Path) -> None:
    """An inclusion with `when`, too."""
    slim = {"only": ["x", {"select": "lr", "when": "x > 1"}]}
    config = profile({"lr": STEP, "x": STEP}, {"lr": "last(lr)", "x": "mean(x)"}, profiles={"slim": slim},
                     profile="slim")  # fmt: skip

    assert phases(run(config, steps({"lr": [0.5, 0.25], "x": [1, 2]}), tmp_path)) == [
        (0, "train", {"x": 1.0}), (1, "train", {"lr": 0.25, "x": 2.0}),
    ]  # fmt: skip


# ---- pools


def test_a_metric_added_to_trls_preset_is_exact() -> None:
    """Beside TRL's own names, which are means of batch means."""
    cfg = declog.compose("trl_grpo", ["declog.sinks=[]", '+declog.metrics.exact="mean(reward)"'])
    made = output_words(declog.plan(cfg))

    assert (made["reward"], made["exact"]) == (
        "mean of batch means of reward, over the completions of the trainer's window",
        "mean of reward, over the completions of the trainer's window",
    )


# ---- the unique filter

PROMPTS = ["b", "a", "b", "c", "a", None]


def picked(batches: list[list[Any]], folder: Path, kind: str = "text", **filters: Any) -> list[tuple[Any, Any]]:
    """(prompt, score) of the rows of a table, of one batch per rank."""
    signals = {"prompt": {**ROWS, "type": kind}, "score": ROWS}
    columns = {"prompt": {"type": kind}, "score": {"type": "float"}}
    config = profile(signals, filters={"fresh": {"unique": "prompt", **filters.pop("fresh", {})},
                                       **filters},
                     schemas={"s": columns}, tables={"t": {"schema": "s", "filter": "fresh"}})  # fmt: skip
    sink = MemorySink()

    def body(comm: Comm) -> None:
        first = sum(len(batch) for batch in batches[: comm.rank])
        prompts = batches[comm.rank]
        sinks = [] if comm.rank else [sink]
        with declog.start(config, sinks=sinks, comm=comm, output_dir=folder) as log, log.step(0):
            log.observe(prompt=prompts, score=[float(first + place) for place in range(len(prompts))])

    run_ranks(len(batches), body)
    ((_, table),) = sink.tables("t")
    return [(row["prompt"], row["score"]) for row in rows(table)]


def test_unique_takes_the_first_row_of_each_key(tmp_path: Path) -> None:
    """A row without a key is not taken, and ranks make no difference."""
    expected = [("b", 0.0), ("a", 1.0), ("c", 3.0)]

    assert picked([PROMPTS], tmp_path) == expected
    assert picked([PROMPTS[:1], PROMPTS[1:3], PROMPTS[3:]], tmp_path) == expected


def test_unique_by_an_object(tmp_path: Path) -> None:
    """Conversations are one key where they hold the same."""
    one, other = [{"role": "user", "content": "1+1"}], [{"content": "1+1", "role": "user"}]
    third = [{"role": "user", "content": "2+2"}]

    assert [score for _, score in picked([[one, other, third]], tmp_path, "object")] == [0.0, 2.0]
    assert [score for _, score in picked([[one], [other, third]], tmp_path, "object")] == [0.0, 2.0]


def test_unique_of_what_another_filter_takes(tmp_path: Path) -> None:
    """The chain runs again over all ranks: the best three, then the first of each prompt."""
    chain: dict[str, Any] = {"best": {"key": "score", "top": 3}, "fresh": {"from": "best"}}

    def found(*batches: list[str]) -> list[tuple[str, float]]:
        return picked(list(batches), tmp_path, **copy.deepcopy(chain))

    assert found(["a", "b", "b", "c", "b"]) == [("b", 2.0), ("c", 3.0)]
    assert found(["a", "b"], ["b", "c", "b"]) == [("b", 2.0), ("c", 3.0)]


# ---- signals of several phases


def test_a_signal_without_an_phase_goes_where_its_company_is(tmp_path: Path) -> None:
    """Of two phases that need it, the one whose signals are observed in the same call."""
    shared = {"row": {**ROWS, "type": "int"}, "mask": {"axis": "token", "type": "bool"}}
    signals = {"rollout": {"sampled": "token", "reward": ROWS}, "update": {"trained": "token"}}
    metrics = {"sampled": "mean(sampled)", "trained": "sum(trained)", "both": "sum(reward * mean(trained, over=token))"}
    axes = {"token": {"mask": "mask"}, "completion": {"ids": "row"}}
    config = profile(shared, metrics, signals=signals, axes=axes)

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(row=[0, 1], mask=[[1, 0], [1, 1]], sampled=[[1.0, 9.0], [2.0, 3.0]], reward=[10.0, 100.0])
            log.observe(row=[1], mask=[[1, 0]], trained=[[4.0, 9.0]])
            log.observe(row=[0], mask=[[1, 1]], trained=[[1.0, 3.0]])

    assert run(config, body, tmp_path).scalars == {0: {"sampled": 2.0, "trained": 8.0, "both": 420.0}}


def test_a_signal_of_two_phases_by_name(tmp_path: Path) -> None:
    """Each phase has its own values of a name that stands in both."""
    signals = {"rollout": {"adv": ROWS, "reward": ROWS}, "update": {"adv": ROWS, "loss": ROWS}}
    metrics = {"before": "sum(adv * reward)", "after": "sum(adv * loss)"}

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(adv=[1.0, 2.0], reward=[1.0, 1.0])
            log.observe(adv=[10.0], loss=[1.0])
            log.observe(loss=[2.0], adv=[20.0])

    assert run(profile({}, metrics, signals=signals), body, tmp_path).scalars == {0: {"before": 3.0, "after": 50.0}}
