"""The presets take what a trainer has: rewards in any form, numbers that it has computed, or whatever it observes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import declog
from declog.errors import ConfigError, InputError, UsageError
from declog.plans.words import explain
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink

REWARD = torch.tensor([1.0, 0.0, 3.0, 2.0])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]])


def logged(tmp_path: Path, preset: Any, *calls: dict[str, Any], overrides: tuple[str, ...] = ()) -> MemorySink:
    """What a preset logs of two steps with these calls of ``observe`` each."""
    sink = MemorySink()
    lines = ["sinks=[]", *overrides] if isinstance(preset, str) else ()
    with declog.start(preset, lines, sinks=[sink], output_dir=tmp_path / "run") as log:
        for step in range(2):
            with log.step(step):
                for call in calls:
                    log.observe(**call)
    return sink


@pytest.mark.parametrize("preset", ["grpo", "rloo"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"reward": REWARD}, {"reward": 1.5, "reward_std": 1.290994}),
        ({"rewards": REWARD}, {"reward": 1.5, "rewards/reward/mean": 1.5}),
        ({"rewards": REWARD.tolist()}, {"reward": 1.5, "rewards/reward/mean": 1.5}),
        ({"rewards": pd.Series(REWARD)}, {"reward": 1.5, "rewards/reward/mean": 1.5}),
        ({"rewards": {"a": REWARD, "b": 2 * REWARD}}, {"reward": 4.5, "rewards/b/mean": 3.0}),
        ({"reward": REWARD, "reward_std": 0.5}, {"reward": 1.5, "reward_std": 0.5}),
        (
            {"reward": REWARD[:, None], "advantages": (REWARD - 1)[:, None].bfloat16()},
            {"reward": 1.5, "advantages/mean": 0.5},
        ),
        (
            {"reward": REWARD[:, None].numpy(), "length": MASK.sum(1, keepdim=True)},
            {"reward": 1.5, "completions/mean_length": 2.0},
        ),
        ({"kl": 0.25, "entropy": 1.5, "loss": 2.0}, {"kl": 0.25, "entropy": 1.5, "loss": 2.0}),
        ({"kl": torch.tensor(0.25), "entropy": np.float32(1.5)}, {"kl": 0.25, "entropy": 1.5}),
        ({"entropy": torch.ones(4, 3), "completion_mask": MASK}, {"entropy": 1.0, "completions/mean_length": 2.0}),
        ({"length": torch.tensor([2, 4, 6, 8]), "completion_mask": MASK}, {"completions/mean_length": 5.0}),
        ({"prompt": ["q"] * 4, "completion": ["a"] * 4}, {}),
    ],
)
def test_a_preset_takes_what_there_is(
    tmp_path: Path, preset: str, given: dict[str, Any], expected: dict[str, float]
) -> None:
    """What is missing is inactive, and ends nothing; a number that was computed already stands for the derived one."""
    found = logged(tmp_path, preset, given, overrides=("axes.group.size=2",)).scalars.get(1, {})
    assert {name: round(found[name], 6) for name in expected} == expected
    assert {"kl", "loss", "reward"} & found.keys() == {"kl", "loss", "reward"} & expected.keys()


def test_the_plan_says_what_stands_for_a_metric() -> None:
    """So that nobody takes the trainer's number for declog's."""
    text = explain(declog.plan("grpo"))
    assert "where it comes, mean of given_kl stands for it" in text


def test_what_stands_for_a_metric_follows_its_reductions(tmp_path: Path) -> None:
    """Rows are reduced as the metric's own would be, a number per step by its mean; by steps where one lacks it."""
    profile = {
        "signals": {"any": {"a": "completion", "b": "completion", "c": "step"}},
        "metrics": {
            "rows": {"expr": "a", "reduce": ["mean", "max"], "prefer": "b"},
            "number": {"expr": "a", "reduce": "max", "prefer": "c"},
        },
    }
    alone = logged(tmp_path / "1", profile, {"a": [1.0, 2.0]}).scalars[0]
    both = logged(tmp_path / "2", profile, {"a": [1.0, 2.0], "b": [5.0, 7.0], "c": 9.0}).scalars[0]
    assert (alone, both) == (
        {"rows/mean": 1.5, "rows/max": 2.0, "number": 2.0},
        {"rows/mean": 6.0, "rows/max": 7.0, "number": 9.0},
    )


def test_whatever_is_observed_is_logged(tmp_path: Path) -> None:
    """Without a profile: numbers by their mean over the calls, rows by mean and spread, texts in a table."""
    sink = logged(
        tmp_path, "minimal",
        {"reward": REWARD, "completion": ["a", "b", "c", "d"]},
        {"loss": 1.0, "kl": torch.tensor(0.5), "advantages": np.array([1.0, 3.0, 1.0, 3.0])},
        {"loss": 2.0, "rewards": {"format": [0.0, 1.0, 0.0, 1.0]}, "logprobs": torch.zeros(4, 3), "nothing": None},
    )  # fmt: skip
    found = {name: round(value, 6) for name, value in sink.scalars[1].items()}
    ((_, table),) = sink.tables("samples")
    assert (found, list(table.data["completion"][:4])) == (
        {
            "loss": 1.5, "kl": 0.5, "reward/mean": 1.5, "reward/std": 1.290994, "advantages/mean": 2.0,
            "advantages/std": 1.154701, "rewards/format/mean": 0.5, "rewards/format/std": 0.57735, "logprobs/mean": 0.0,
            "logprobs/std": 0.0,
        },
        ["a", "b", "c", "d"],
    )  # fmt: skip


def test_start_needs_no_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line of declog needs no YAML."""
    monkeypatch.chdir(tmp_path)
    with declog.start() as log, log.step(0):
        log.observe(loss=0.5)
    assert isinstance(log, Recorder)
    assert log.plan.name == "minimal"


def test_values_of_other_rows_are_left_out_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody said what they are: two prompts of four completions end no run."""
    found = logged(tmp_path, "minimal", {"reward": REWARD, "prompt": ["q", "r"]}).scalars[1]
    assert found["reward/mean"] == 1.5
    assert [text.partition(":")[0] for text in caplog.messages if "left out" in text] == ["`prompt` is left out"]


def test_minibatches_of_an_update_are_other_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A PPO loop without a preset: numbers and arrays of each minibatch are pooled, beside those of the rollout.

    The class: what later calls of a step bring, of another number of rows than the calls before. Within one call it is
    a mistake, and is named.
    """
    sink = logged(
        tmp_path, "minimal",
        {"episode_return": [10.0, 12.0, 9.0]},
        *({"policy_loss": 0.5 * k, "ratio": [1.0 + k] * 4} for k in range(3)),
    )  # fmt: skip
    assert sink.scalars[1] == {
        "policy_loss": 0.5, "ratio/mean": 2.0, "ratio/std": pytest.approx((8 / 11) ** 0.5),
        "episode_return/mean": pytest.approx(31 / 3), "episode_return/std": pytest.approx(1.527525, abs=1e-6),
    }  # fmt: skip
    assert not caplog.messages
    logged(tmp_path / "second", "minimal", {"reward": [1.0] * 4, "length": [1.0] * 3})
    assert [text.partition(":")[0] for text in caplog.messages] == ["`length` is left out"]


def test_a_row_of_more_axes_is_a_value(tmp_path: Path) -> None:
    """Mean and deviation are of the same 8 values, the means of the rows."""
    logprobs = torch.randn(8, 5, dtype=torch.float64)
    found = logged(tmp_path, "minimal", {"logprobs": logprobs}).scalars[1]
    assert found["logprobs/mean"] == pytest.approx(logprobs.mean(1).mean().item())
    assert found["logprobs/std"] == pytest.approx(logprobs.mean(1).std().item())


def test_texts_alone_are_rows(tmp_path: Path) -> None:
    """Where no signal has rows, a column that nobody declared has them; a number beside it changes nothing."""
    sink = logged(tmp_path, "minimal", {"loss": 1.0, "completion": ["a", None], "source": ["x"] * 2})
    ((_, table),) = sink.tables("samples")
    assert (sink.scalars[0], dict(table.data)) == (
        {"loss": 1.0},
        {"step": [0, 0, 1, 1], "completion": ["a", None] * 2, "source": ["x"] * 4},
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("hi", "str 'hi'"), (1j, "complex 1j"), (b"x", "bytes b'x'"), ({1}, "set {1}"),
        (torch.ones(2, dtype=torch.complex64), "a tensor of complex64 with shape (2,)"),
        (object, "type <class 'object'>"),
    ],
)  # fmt: skip
def test_what_is_no_value_is_left_out_by_name(
    value: object, shown: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is observed is logged, or named once; None is nothing."""
    found = logged(tmp_path, "minimal", {"loss": 1.0, "odd": value, "none": None}, {"loss": 2.0, "odd": value})
    expected = [f"`odd` is left out: {shown} is neither a number nor a list, array or tensor of values"]
    assert (found.scalars[1], [text for text in caplog.messages if "left out" in text]) == ({"loss": 1.5}, expected)


def test_names_that_are_no_keywords(tmp_path: Path) -> None:
    """A mapping of names to values is as good as keywords, in any scope, and in packets."""
    sink = MemorySink()
    with declog.start(sinks=[sink], output_dir=tmp_path) as log:
        with log.step(0):
            log.observe({"train/loss": 1.0, "my kl": 0.5}, lr=0.1)
            log.observe(declog.rows({"train/reward": REWARD}), {"entropy": 2})
            declog.observe({"clip-ratio": 0.25})
        log.at(1).observe({"train/loss": 3.0})
    first = {"train/loss": 1.0, "my kl": 0.5, "lr": 0.1, "entropy": 2.0, "clip-ratio": 0.25}
    rows = {"train/reward/mean": 1.5, "train/reward/std": pytest.approx(1.290994, abs=1e-6)}
    assert sink.scalars == {0: first | rows, 1: {"train/loss": 3.0}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"loss": 1.0}, ("`loss` is given twice in one call", "give each signal once; calls again for another batch")),
        (1.0, ("a value without a name was given: float", "observe(name=value), or a mapping of names to values")),
        ({1: 2.0}, ("a value without a name was given: dict", "observe(name=value), or a mapping of names to values")),
    ],
)
def test_what_has_no_name_is_refused(given: Any, expected: tuple[str, str], tmp_path: Path) -> None:
    """Nothing of such a call is recorded."""
    with declog.start(sinks=[sink := MemorySink()], output_dir=tmp_path) as log, log.step(0):
        with pytest.raises(UsageError) as caught:
            log.observe(given, loss=2.0, other=1.0)
        log.observe(loss=3.0)
    assert ((caught.value.message, caught.value.fix), sink.scalars) == (expected, {0: {"loss": 3.0}})


@pytest.mark.parametrize(
    "wrong",
    ["{axis: completion, any: true}", "{axis: token, family: true, any: true}"],
)
def test_any_is_a_family_of_numbers(wrong: str) -> None:
    """Per step or per completion: of tokens nobody could say which exist."""
    with pytest.raises(ConfigError) as caught:
        declog.validate({"signals": {"any": {"rows": yaml.safe_load(wrong)}}})
    assert [problem.fix for problem in caught.value.problems] == ["{axis: completion, family: true, any: true}"]


def test_a_declared_signal_is_still_checked(tmp_path: Path) -> None:
    """Only what nobody declared is taken as it comes."""
    profile = {
        "signals": {
            "any": {"reward": "completion", "rest": {"axis": "step", "family": True, "any": True}},
        },
        "metrics": {"reward": "mean(reward)", "rest": {"expr": "rest", "reduce": "last", "name": "{member}"}},
    }
    with pytest.raises(InputError) as caught:
        logged(tmp_path, profile, {"reward": 1.0, "lr": 0.1})
    assert caught.value.code == "DL503"


@pytest.mark.parametrize("comes", [True, False])
def test_what_nobody_misses_is_no_failure(comes: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Class: rows of two phases that cannot be matched, for a metric for which a value of one phase stands."""
    sink = MemorySink()
    lines = ["axes.group.size=4", "metrics.length.where=reward > 0.5", "sinks=[]"]
    with declog.start("grpo", lines, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(reward=torch.arange(16) / 16, **({"length": torch.arange(16)} if comes else {}))
        for _ in range(4):
            log.observe(logprobs=torch.zeros(4, 3), completion_mask=torch.ones(4, 3, dtype=torch.bool))
    assert sink.scalars[0].get("completions/mean_length") == (12.0 if comes else None)
    assert ("DL511" in caplog.text) is not comes
