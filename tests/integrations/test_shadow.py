"""A config in the shadow of loops that have loggers of their own: what it finds is what the loops do by hand.

The class of a number that is wrong on purpose: a deviation of the population where the sample's was meant, a mean of
means over micro-batches of different sizes, a mean over padding.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

import declog
from declog.integrations.shadow import Comparison

STEPS = 5


class Tracker:
    """A logger as many trainers have it."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, Any]]] = []

    def log(self, values: dict[str, Any], step: int) -> None:
        self.rows.append((step, dict(values)))

    def finish(self) -> str:
        return "finished"


class Recorder:
    """A logger with `record` and `dump`, as Stable-Baselines3 has it."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self._values: dict[str, float] = {}

    def record(self, key: str, value: float) -> None:
        self._values[key] = value

    def dump(self, step: int) -> None:
        self.rows.append((step, self._values))
        self._values = {}

    def close(self) -> None: ...


def batches(step: int) -> dict[str, torch.Tensor]:
    """The rows of one step: 8 completions of at most 6 tokens, in groups of four."""
    generator = torch.Generator().manual_seed(step)
    rewards = torch.randn(8, generator=generator)
    logprobs = -torch.rand(8, 6, generator=generator)
    lengths = torch.randint(2, 7, (8,), generator=generator)
    groups = rewards.reshape(2, 4)
    return {
        "reward": rewards,
        "logprobs": logprobs,
        "old_logprobs": logprobs + 0.1 * torch.randn(8, 6, generator=generator),
        "ref_logprobs": logprobs + 0.2 * torch.randn(8, 6, generator=generator),
        "completion_mask": torch.arange(6) < lengths[:, None],
        "advantages": ((groups - groups.mean(1, keepdim=True)) / groups.std(1, keepdim=True)).reshape(8),
        "length": lengths,
    }


def observe(rows: dict[str, torch.Tensor]) -> None:
    """What a team adds to its loop."""
    declog.observe(reward=rows["reward"], length=rows["length"])
    names = ("logprobs", "old_logprobs", "ref_logprobs", "completion_mask", "advantages")
    declog.observe(**{name: rows[name] for name in names})


def kl(rows: dict[str, torch.Tensor]) -> torch.Tensor:
    """k3 of each token."""
    gap = rows["ref_logprobs"] - rows["logprobs"]
    return gap.exp() - gap - 1


def test_a_loop_with_a_tracker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its deviation is the population's: found at the first step. The tracker has what it had, and nothing else."""
    tracker = Tracker()
    logger = declog.shadow(tracker, "grpo", ["sinks=[]", "axes.group.size=4"], output_dir=tmp_path)
    expected: list[tuple[int, dict[str, Any]]] = []
    with caplog.at_level(logging.WARNING, "declog"):
        for step in range(STEPS):
            rows = batches(step)
            observe(rows)
            mask = rows["completion_mask"]
            values = {
                "train/reward": rows["reward"].mean().item(),
                "train/reward_std": rows["reward"].std(unbiased=False).item(),
                "kl_to_reference": kl(rows)[mask].mean(),
                "train/completions/mean_length": rows["length"].float().mean(),
                "lr": 1e-6,
            }
            expected.append((step, values))
            logger.log(values, step=step)
        assert logger.finish() == "finished"
    assert tracker.rows == expected
    comparison = logger.comparison
    assert {(pair.number, pair.metric, pair.steps) for pair in comparison.same} == {
        ("train/reward", "reward", STEPS),
        ("kl_to_reference", "kl", STEPS),
        ("train/completions/mean_length", "completions/mean_length", STEPS),
    }
    (wrong,) = comparison.different
    assert (wrong.number, wrong.metric, wrong.differences) == ("train/reward_std", "reward_std", STEPS)
    step, value, other = wrong.first_difference
    assert step == 0 and other == pytest.approx(value * math.sqrt(8 / 7), rel=1e-5)
    assert wrong.greatest == pytest.approx(1 - math.sqrt(7 / 8), rel=1e-4)
    assert comparison.alone == ["lr"]
    printed = capsys.readouterr().out
    assert "shadow of 5 steps: 3 same, 1 different, 1 not computed" in printed
    assert "by 6.46% at most; as `pstd` of 8 rows beside `std`" in printed
    assert [record.message for record in caplog.records if "declog's `reward_std`" in record.message] != []


def test_a_loop_with_a_summary_writer(tmp_path: Path) -> None:
    """Its micro-batches have different sizes, and it averages their means. The file has the loop's scalars only."""
    writer = declog.shadow(
        SummaryWriter(str(tmp_path / "tb")), "grpo", ["sinks=[]", "axes.group.size=4"], output_dir=tmp_path / "run"
    )
    for step in range(STEPS):
        rows = batches(step)
        means = defaultdict(list)
        for part in (slice(0, 6), slice(6, 8)):
            micro = {name: values[part] for name, values in rows.items()}
            observe(micro)
            means["kl"].append(kl(micro)[micro["completion_mask"]].mean())
            means["reward"].append(micro["reward"].mean())
        writer.add_scalar("loss/kl", torch.stack(means["kl"]).mean(), step)
        writer.add_scalar("env/reward", rows["reward"].mean(), step)
        writer.add_scalar("env/reward_of_micro_batches", torch.stack(means["reward"]).mean(), step)
    writer.close()
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert events.Tags()["scalars"] == ["loss/kl", "env/reward", "env/reward_of_micro_batches"]
    comparison = writer.comparison
    assert [(pair.number, pair.metric) for pair in comparison.same] == [("env/reward", "reward")]
    assert [(pair.number, pair.metric, pair.steps) for pair in comparison.different] == [("loss/kl", "kl", STEPS)]
    assert comparison.alone == ["env/reward_of_micro_batches"]


def test_a_loop_with_record_and_dump(tmp_path: Path) -> None:
    """One of its means is over padding, too. Names alone do not say it: what agrees by chance once is no pair."""
    logger = declog.shadow(Recorder(), "grpo", ["sinks=[]", "axes.group.size=4"], output_dir=tmp_path)
    for step in range(STEPS):
        rows = batches(step)
        observe(rows)
        ratio = (rows["logprobs"] - rows["old_logprobs"]).exp()
        mask = rows["completion_mask"]
        logger.record("policy/ratio/mean", ratio.mean().item())
        logger.record("policy/ratio/max", ratio[mask].max().item())
        logger.record("of_groups", rows["reward"].reshape(2, 4).std(1).mean().item())
        logger.record("zero", 0.0)
        logger.dump(step)
    logger.close()
    comparison = logger.comparison
    assert {(pair.number, pair.metric) for pair in comparison.same} == {
        ("policy/ratio/max", "ratio/max"),
        ("of_groups", "group_reward_std"),
    }
    assert [(pair.number, pair.metric) for pair in comparison.different] == [("policy/ratio/mean", "ratio/mean")]
    assert comparison.alone == ["zero"]


def test_another_reduction_of_the_same_rows() -> None:
    """Class: a constant ratio says it: deviations and variances of the population, sums; no other number has one."""
    comparison = Comparison(tolerance=1e-4)
    for step, rows in enumerate(torch.randn(5, 16, dtype=torch.float64).abs()):
        spread = {"reward/std": rows.std(correction=0), "other_std": rows.std(correction=0) * 1.1, "var": rows.var()}
        comparison.log(step, {**spread, "train/tokens": rows.sum(), "loss": rows.median()})
        metrics = {"reward_std": rows.std(), "other/std": rows.std(), "reward/var": rows.var(correction=0)}
        metrics |= {"tokens": rows.mean(), "loss": rows.mean()}
        comparison.compare(step, {name: value.item() for name, value in metrics.items()})
    assert {pair.number: pair.reduction.removeprefix("; as ") for pair in comparison.different} == {
        "reward/std": "`pstd` of 16 rows beside `std`",
        "var": "`var` of 16 rows beside `pvar`",
        "train/tokens": "`sum` of 16 rows beside `mean`",
        "other_std": "",
        "loss": "",
    }


def test_values_that_come_late_or_not() -> None:
    """A metric that is inactive at first, a number of some steps only, NaN, infinity, and steps without a log event."""
    comparison = Comparison(tolerance=1e-4)
    for step in range(6):
        comparison.log(step, {"often": float(step), "nested": {"nan": math.nan}, "text": "no number"})
        comparison.log(step, {"rare": step + 0.5} if step % 2 else {})
        if step >= 2:
            metrics = {"metric": float(step), "nan": math.nan, "inf": math.inf}
            comparison.compare(step, metrics | ({"half": step + 0.5} if step > 3 else {}))
    assert {(pair.number, pair.metric, pair.steps) for pair in comparison.same} == {
        ("often", "metric", 4),
        ("nested/nan", "nan", 4),
    }
    assert comparison.alone == ["rare"]


@pytest.mark.parametrize(
    ("value", "constant"),
    [(1e-5, True), (0.0, False), (1.0, False), (2.0, False)],
)
def test_a_number_that_never_changes(value: float, constant: bool) -> None:
    """It agrees with many metrics by chance: those of its value are named, but for 0 and 1."""
    comparison = Comparison(1e-4)
    for step in range(3):
        comparison.log(step, {"lr": value})
        comparison.compare(step, {"learning_rate": 1e-5 if value > 1 else value, "kl": step / 10})
    assert comparison.alone == ["lr"]
    told = "  constant   lr  learning_rate: 1e-05 at every step, maybe by chance"
    edit = ["  not computed: lr", "    fix: metrics: {lr: ...}"]
    assert str(comparison).splitlines()[1:] == ([told] if constant else edit)


def test_a_number_whose_metric_has_another_name(caplog: pytest.LogCaptureFixture) -> None:
    """Class: at the first steps a metric of its values and one of its name are both possible: no alarm before that."""
    comparison = Comparison(1e-4)
    for step in range(4):
        comparison.log(step, {"val/loss": step + 0.5, "kl": step + 0.25, "policy/clip-frac": 0.3})
        metrics = {"loss": -1.0 - step, "value_loss": step + 0.5, "kl": step + 1.0, "approx": 0.25 if step < 2 else 9.0}
        comparison.compare(step, metrics)
    assert [(pair.number, pair.metric) for pair in comparison.same] == [("val/loss", "value_loss")]
    assert [record.getMessage() for record in caplog.records] == ["`kl` is 0.25 at step 0, and declog's `kl` is 1"]
    edit = "    fix: metrics: {policy_clip_frac: {expr: ..., name: policy/clip-frac}}"
    assert str(comparison).splitlines()[-1] == edit


def test_what_is_no_logger_is_refused() -> None:
    """With the methods that a logger may have."""
    with pytest.raises(declog.UsageError, match="DL510"):
        declog.shadow(object())


@pytest.mark.parametrize(
    ("name", "answer"),
    [("step", "declog.observe(reward=...)"), ("observe", "LOG.log"), ("state_dict", "logger.recorder"), ("nosuch", "")],
)
def test_what_the_logger_does_not_have(name: str, answer: str) -> None:
    """Class: attributes of the recorder, asked of what stands in for a logger; others keep Python's plain words."""
    with declog.shadow(Tracker(), "minimal", ["sinks=[]"]) as logger:
        logger.log({"reward": 0.5}, 0)
        with pytest.raises(AttributeError) as caught:
            getattr(logger, name)
    said = str(caught.value)
    assert "'Tracker' object has no attribute" in said
    assert (answer.replace("LOG", "logger") in said and "fix:" in said) if answer else "fix:" not in said
