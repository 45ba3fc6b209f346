"""Profiles at work: families, optional signals, run-time names, slim and full, and one edit that reaches every sink."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pytest
import torch

import declog
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.running import logged, profile, run

REWARDS = {
    "rewards": {"axis": "completion", "family": True},
    "weights": {"axis": "step", "family": True},
}
WEIGHTED = {"reward": "sum(rewards * weights if present(weights) else rewards, over=member)"}
A, B = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64), torch.tensor([4.0, 8.0, 6.0], dtype=torch.float64)


# ---- families


def test_a_family_is_one_value_per_member(tmp_path: Path) -> None:
    """Members are named by what was observed, in its order."""
    metrics = {"rewards": {"reduce": ["mean", "std"], "name": "rewards/{member}/{reduce}"}}
    assert logged(profile(REWARDS, metrics), [{"rewards": {"b": B, "a": A}}], tmp_path) == {
        "rewards/b/mean": 6.0, "rewards/a/mean": 1.0, "rewards/b/std": 2.0, "rewards/a/std": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "expected"), [(None, 21.0), ({"a": 1.0, "b": 0.5}, 12.0), ({"b": 2.0, "a": 0.0}, 36.0)]
)
def test_weights_are_matched_by_member_and_may_be_absent(
    weights: dict[str, float] | None, expected: float, tmp_path: Path
) -> None:
    """The sum over the family's columns weighs members by name; without weights each counts once."""
    values: dict[str, Any] = {"rewards": {"a": A, "b": B}} | ({} if weights is None else {"weights": weights})
    assert logged(profile(REWARDS, {"total": "sum(reward)"}, derived=WEIGHTED), [values], tmp_path) == {
        "total": expected
    }


def test_a_member_may_come_in_some_batches_only(tmp_path: Path) -> None:
    """A member that did not come is missing there, not zero."""
    metrics = {"rewards": {"reduce": ["mean", "count"], "name": "{member}/{reduce}"}}
    config = profile(REWARDS, metrics | {"reward": "mean(reward)"}, derived=WEIGHTED)
    batches = [{"rewards": {"a": A, "b": B}}, {"rewards": {"a": torch.tensor([7.0])}}]
    assert logged(config, batches, tmp_path) == {
        "a/mean": 2.5, "a/count": 4, "b/mean": 6.0, "b/count": 3, "reward": (5 + 8 + 8 + 7) / 4,
    }  # fmt: skip


def test_values_are_split_by_label(tmp_path: Path) -> None:
    """One value per label, sorted; rows without a label have none, and rare labels beyond the limit are pooled."""
    signals = {"x": {"axis": "completion"}, "source": {"axis": "completion", "type": "text"}}
    by = {"expr": "x", "by": "source", "name": "{label}/{reduce}", "reduce": ["sum", "p50"]}
    few = {"expr": "x", "by": "source", "name": "few/{label}", "reduce": "sum", "max_labels": 1}
    labelled = {"x": [1.0, 2.0, 4.0, 8.0, 16.0], "source": ["b", "a", None, "b", "c"]}
    bare = {"x": [32.0], "source": [None]}
    assert logged(profile(signals, {"by": by, "few": few}), [labelled, bare], tmp_path) == {
        "a/sum": 2.0, "b/sum": 9.0, "c/sum": 16.0, "a/p50": 2.0, "b/p50": 4.5, "c/p50": 16.0,
        "few/b": 9.0, "few/_other": 18.0,
    }  # fmt: skip
    assert logged(profile(signals, {"by": by, "few": few}), [bare], tmp_path) == {}


@pytest.mark.parametrize(
    "group", [{"size": 4, "split": "batches"}, {"of": "id", "split": "batches"}], ids=["size", "of"]
)
def test_groups_may_be_spread_over_micro_batches(group: dict[str, Any], tmp_path: Path) -> None:
    """With `split: batches` a group is whole again, whichever micro-batches its completions were in."""
    rows = pd.DataFrame({"x": np.random.default_rng(3).normal(size=16), "step": [0] * 8 + [1] * 8})
    rows["id"] = np.arange(16) // 4 % 2
    signals = {"x": {"axis": "completion"}, "id": {"axis": "completion", "type": "int"}}
    metrics = {
        "std": "mean(std(x, over=completion))",
        "groups": "count(size(completion))",
        "best": "min(max(x, over=completion))",
    }

    def body(log: Recorder) -> None:
        for step, part in rows.groupby("step"):
            with log.step(int(step)):
                for batch in (part[:3], part[3:5], part[5:]):
                    log.observe(x=batch.x.to_numpy(), id=batch.id.to_numpy())

    found = run(profile(signals, metrics, axes={"group": group}), body, tmp_path).scalars
    for step, part in rows.groupby("step"):
        groups = part.groupby("id").x
        expected = {"std": groups.std().mean(), "groups": 2, "best": groups.max().min()}
        assert found[int(step)] == pytest.approx(expected, rel=1e-12)


# ---- names at run time


def test_a_logged_name_never_shadows_a_declared_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A number of `log_metric` with a declared name is refused and reported once; the declared value stays."""
    config = profile({"loss": {"axis": "step"}}, {"loss": "mean(loss)"}, run={"strict": False})

    def body(log: Recorder) -> None:
        for number in range(3):
            with log.step(number):
                log.log_metric("loss", -1.0)
                log.log_metric("mine", number)
                log.observe(loss=0.5)

    with caplog.at_level(logging.ERROR, logger="declog"):
        sink = run(config, body, tmp_path)
    assert sink.scalars == {number: {"loss": 0.5, "mine": float(number)} for number in range(3)}
    assert [record.getMessage() for record in caplog.records] == [
        "a log event lacks values: [DL508] the number `loss` is left out: the config's metric `loss` has that "
        "name, and is computed from observed values\n"
        "  fix: log.observe(loss=...), one value per step; or log the number under another name"
    ]


def test_a_logged_name_of_a_metric_without_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The answer says which values the metric is computed from, through formulas and per-token values."""
    signals = {"reward": {"axis": "completion"}, "kl": {"axis": "token", "mask": "all"}}
    metrics = {"reward": "mean(reward)", "kl": "mean(kl)", "ratio": {"formula": "kl / reward", "name": "score"}}
    config = profile(signals, metrics, axes={"token": {"mask": "all"}}, run={"strict": False})

    def body(log: Recorder) -> None:
        log.scalars({"reward": 0.1, "score": 1.0, "lr": 1e-5}, step=0)

    with caplog.at_level(logging.ERROR, logger="declog"):
        assert run(config, body, tmp_path).scalars == {0: {"lr": 1e-5}}
    assert [record.getMessage().partition("fix: ")[2].partition(";")[0] for record in caplog.records] == [
        "log.observe(reward=...), one value per completion",
        "log.observe(kl=..., reward=...), one value per completion or per token",
    ]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("high", "[DL504] `logged['x']` is declared float per step, and str 'high' came\n  fix: its members are "
         "numbers; a text is a signal of its own, or a column of `log_extra`"),
        ([1.0, 2.0], "[DL503] `logged['x']` is declared float per step: one number is expected, and a list of 2 came\n"
         "  fix: `sum(logged['x']) / len(logged['x'])`"),
    ],
)  # fmt: skip
def test_a_logged_value_is_one_number(value: Any, message: str, tmp_path: Path) -> None:
    """What is no number is refused where it is given; a tensor of one element and None are fine."""

    def body(log: Recorder) -> None:
        with log.step(0):
            with pytest.raises(declog.InputError) as error:
                log.log_metric("x", value)
            log.log_metric("one", torch.ones(1, 1, requires_grad=True))
            log.log_metric("none", None)
            log.log_metric("numpy", np.float32(0.5))
        assert str(error.value) == message

    assert run(profile({}), body, tmp_path).scalars == {0: {"one": 1.0, "numpy": 0.5}}


CLASHES: dict[str, tuple[dict[str, Any], dict[str, Any], list[tuple[str, str]]]] = {
    "another family's member, with a longer window": (
        {"metrics": {"parts": {"expr": "parts", "name": "{member}", "every": 2}}},
        {"part": [0.0, 1.0, 2.0]},
        [("parts", "part")],
    ),
    "what declog logs about itself": ({}, {}, [("logged", "declog/dropped"), ("logged", "nonfinite/loss")]),
    "a name of another mode": (
        {"modes": {"train": None, "eval": {"prefix": "eval_"}}},
        {"eval_loss": [0.0, 1.0, 2.0]},
        [],
    ),
}


@pytest.mark.parametrize("name", CLASHES)
def test_a_name_has_one_writer(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run-time name is the first's that writes it, of whatever window; the other is left out, and reported once."""
    more, kept, refused = CLASHES[name]
    signals = {"loss": {"axis": "step"}, "parts": {"axis": "step", "family": True}}
    config = profile(signals, {"loss": "mean(loss)", **more.get("metrics", {})}, run={"strict": False})
    config |= {key: value for key, value in more.items() if key != "metrics"}
    given = [*kept, *(name for _, name in refused if name not in kept)]

    def body(log: Recorder) -> None:
        for number in range(3):
            with log.step(number):
                for one in given:
                    log.log_metric(one, float(number))
                log.observe(loss=0.5, parts={"part": 9.0})

    with caplog.at_level(logging.ERROR, logger="declog"):
        sink = run(config, body, tmp_path)
    assert {one: [sink.scalars[step][one] for step in range(3)] for one in kept} == kept
    assert [set(sink.scalars[step]) for step in range(3)] == [{"loss", *kept}] * 3
    assert [record.getMessage().splitlines()[0].split("[DL508] ")[1] for record in caplog.records] == [
        f"`{key}` would write `{one}`, which is written already: it is left out" for key, one in refused
    ]


def test_what_is_logged_and_what_is_observed_share_no_name(tmp_path: Path) -> None:
    """In `minimal` both have bare names: the metric of the profile comes first."""
    sink = MemorySink()
    with (
        declog.start(overrides=["run.strict=false", "sinks=[]"], sinks=[sink], output_dir=tmp_path) as log,
        log.step(0),
    ):
        log.observe(loss=0.5)
        log.log_metric("loss", 9.0)
        log.log_metric("accuracy", 1.0)
    assert sink.scalars == {0: {"loss": 0.5, "accuracy": 1.0}}
    assert list(log.failures.values()) == [1]


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [("last", {"accuracy": 1.0}), (["min", "max"], {"accuracy/min": 0.0, "accuracy/max": 1.0})],
)
def test_logged_may_be_declared(reduce: Any, expected: dict[str, float], tmp_path: Path) -> None:
    """A profile that says how its numbers are reduced keeps their names."""

    def body(log: Recorder) -> None:
        with log.step(0):
            log.log_metric("accuracy", 0.0)
            log.log_metric("accuracy", 1.0)

    assert run(profile({}, {"logged": {"reduce": reduce}}), body, tmp_path).scalars == {0: expected}


def test_a_misspelt_selector_is_found_out() -> None:
    """What `log_metric` may give makes no name a known one, unless the profile declares `logged`."""
    config = profile({"loss": {"axis": "step"}}, {"loss": "mean(loss)"})
    config |= {"profile": "slim", "profiles": {"slim": {"only": ["accuracy"]}}}
    with pytest.raises(declog.ConfigError, match="DL401"):
        declog.plan(config)
    config["metrics"]["logged"] = {}
    assert ("logged", False) in declog.plan(config).profiles["slim"].outputs


def test_what_is_logged_between_steps_counts_for_the_next(tmp_path: Path) -> None:
    """A value from outside a step is in the next log event; after the last step it is in the tail."""

    def body(log: Recorder) -> None:
        log.log_metric("x", 1.0)
        with log.step(3):
            log.log_metric("x", 5.0)
        log.log_metric("late", 2.0)

    sink = run(profile({}), body, tmp_path)
    assert [(step, {item.name: item.value for item in records.scalars}) for step, records in sink.events] == [
        (3, {"x": 3.0}),
        (3, {"late": 2.0}),
    ]


# ---- slim and full


class Untouchable:
    """Raises whatever is done with it."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise AssertionError(f"touched: {name}")

    def _refuse(self, *_: object) -> NoReturn:
        raise AssertionError("touched")

    __len__ = __iter__ = __bool__ = __float__ = __array__ = __getitem__ = __eq__ = __repr__ = _refuse


def test_the_slim_plan_is_smaller_and_reads_less() -> None:
    """Slim has fewer ops than full, and needs fewer of its signals."""
    full = declog.plan(declog.compose("grpo", ["declog.sinks=[]", "declog.tables=null"]))
    slim = declog.plan(declog.compose("grpo", ["declog.sinks=[]", "declog.tables=null", "declog.profile=slim"]))
    assert slim.ops < full.ops
    assert set(full.sources) - set(slim.sources) == {"length", "logged", "timers"}
    assert set(slim.sources) - set(full.sources) == set()


def test_a_signal_that_the_profile_does_not_need_is_never_touched(tmp_path: Path) -> None:
    """Under slim the unneeded signals are objects that raise at any touch, in `observe` and in a wrapped result."""
    signals = {
        "loss": {"axis": "step"}, "length": {"axis": "completion", "type": "int"},
        "entropy": {"axis": "token", "mask": "all"},
        "rewards": {"axis": "completion", "family": True}, "text": {"axis": "completion", "type": "text"},
    }  # fmt: skip
    metrics = {
        "loss": {"reduce": "mean", "tags": ["core"]}, "length": "mean(length)", "entropy": "mean(entropy)",
        "rewards": {"reduce": "mean"}, "text": "mean(len(text))",
    }  # fmt: skip
    config = profile(signals, metrics, profile="slim", profiles={"slim": {"only": ["tag:core"]}})
    unread = {name: Untouchable() for name in ("length", "entropy", "rewards", "text")}

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(loss=0.5, **unread)
        log.wrap(lambda: {"loss": 1.5, **unread})()

    assert run(config, body, tmp_path).scalars == {0: {"loss": 0.5}, 1: {"loss": 1.5}}


def test_sinks_may_show_different_profiles(tmp_path: Path) -> None:
    """Each sink has its own profile; what either needs is computed once."""
    config = profile(
        {"a": {"axis": "step"}, "b": {"axis": "step"}},
        {"a": {"reduce": "mean", "tags": ["core"]}, "b": "mean(b)"},
        profiles={"slim": {"only": ["tag:core"]}},
        sinks=["small", "whole"],
        sink_options={"small": {"kind": "jsonl", "profile": "slim", "prefix": "train/"}, "whole": {"kind": "jsonl"}},
    )

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(a=1.0, b=2.0)

    run(config, body, tmp_path)
    found = {
        name: json.loads((tmp_path / name / "scalars.jsonl").read_text())["scalars"] for name in ("small", "whole")
    }
    assert found == {"small": {"train/a": 1.0}, "whole": {"a": 1.0, "b": 2.0}}


# ---- one edit, every sink

SINKS = {"lines": {"kind": "jsonl"}, "files": {"kind": "parquet"}}
ROLLOUT = {
    "rewards": {"a": torch.arange(8.0), "b": torch.linspace(0, 1, 8)}, "length": torch.arange(1, 9),
    "prompt": ["p"] * 8, "completion": ["c"] * 8,
}  # fmt: skip


def edited(how: str) -> Any:
    """The GRPO preset with one more metric: as an override, or as a line of YAML."""
    sinks = ["declog.sinks=[jsonl,parquet]"]
    if how == "override":
        return declog.compose("grpo", [*sinks, '+declog.metrics.reward_p90="p90(reward)"'])
    data = declog.config_of(declog.compose("grpo", sinks))
    data["metrics"]["reward_p90"] = "p90(reward)"
    return data


@pytest.mark.parametrize("how", ["override", "yaml"])
def test_a_metric_that_is_added_shows_up_in_every_sink(how: str, tmp_path: Path) -> None:
    """`reward_p90: p90(reward)` is in memory, JSON lines and parquet, and no line of Python changed."""
    memory = MemorySink()
    with declog.start(edited(how), sinks=[memory], output_dir=tmp_path) as log, log.step(4):
        log.observe(**ROLLOUT)
    expected = float(np.quantile((ROLLOUT["rewards"]["a"].double() + ROLLOUT["rewards"]["b"].double()).numpy(), 0.9))  # type: ignore[index]
    line = json.loads((tmp_path / "jsonl" / "scalars.jsonl").read_text().splitlines()[0])
    frame = pd.read_parquet(tmp_path / "parquet" / "scalars")
    parquet = frame[frame.name == "reward_p90"][["step", "value"]].to_numpy().tolist()
    assert memory.scalars[4]["reward_p90"] == pytest.approx(expected, rel=1e-12)
    assert (line["step"], line["scalars"]["reward_p90"]) == (4, memory.scalars[4]["reward_p90"])
    assert parquet == [[4, memory.scalars[4]["reward_p90"]]]
