"""Members of a family by their names: `only` and `without`, of which a preset takes counters as they were last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import declog
from declog.errors import ConfigError
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks
from tests.running import logged, profile

SIGNALS: dict[str, Any] = {
    "rewards": {"axis": "completion", "family": True},
    "numbers": {"axis": "step", "family": True},
}
REWARDS = {"format/a": [1.0, 0.0], "right": [4.0, 2.0], "format/b": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ({"expr": "only(rewards, '^format/')", "name": "{member}"}, {"format/a": 0.5, "format/b": 1.0}),
        ({"expr": "without(rewards, '^format/')", "name": "{member}"}, {"right": 3.0}),
        ({"expr": "sum(without(rewards, 'right'), over=member)"}, {"m": 1.5}),
        ({"expr": "members(only(rewards, 'a$'))"}, {"m": 1.0}),
        ({"expr": "2 * only(rewards, 'a$')", "name": "twice/{member}"}, {"twice/format/a": 1.0}),
        ({"expr": "member(only(rewards, 'r'), 'right')"}, {"m": 3.0}),
        ({"expr": "only(rewards, 'nothing')", "name": "{member}"}, {}),
        ({"expr": "sum(only(rewards, 'nothing'), over=member)"}, {}),
        ({"expr": "without(rewards, '.')", "name": "{member}"}, {}),
        ({"expr": "1 if present(only(rewards, 'right')) else 0", "name": "{member}"}, {"right": 1.0}),
    ],
)
def test_members_by_their_names(metric: dict[str, Any], expected: dict[str, float], tmp_path: Path) -> None:
    """The members that match, and those that do not, are families like the whole one; none of them is absent."""
    assert logged(profile(SIGNALS, {"m": metric}), [{"rewards": REWARDS}], tmp_path) == expected
    assert logged(profile(SIGNALS, {"m": metric}), [{"numbers": {"x": 1.0}}], tmp_path / "none") == {}


def test_two_metrics_share_the_names_of_a_family_between_them(tmp_path: Path) -> None:
    """What matches and what does not never meet, so that both may be called by their members' names."""
    both = {
        "a": {"expr": "only(numbers, 'n$')", "reduce": "last", "name": "{member}"},
        "b": {"expr": "without(numbers, 'n$')", "name": "{member}"},
    }
    batches = [{"numbers": {"n": 1.0, "x": 1.0}}, {"numbers": {"n": 5.0, "y": 7.0}}, {"numbers": {"x": 4.0}}]
    assert logged(profile(SIGNALS, both), batches, tmp_path) == {"n": 5.0, "x": 2.5, "y": 7.0}
    for other in ("only(numbers, 'm$')", "numbers", "only(numbers, 'n$')", "without(numbers, 'm$')"):
        with pytest.raises(ConfigError, match=r"both write `\{member\}`"):
            declog.plan(profile(SIGNALS, {**both, "b": {"expr": other, "name": "{member}"}}))


@pytest.mark.parametrize("expr", ["only(numbers, '(')", "without(member(numbers, 'a'), 'x')", "only(numbers)"])
def test_what_selects_nothing_is_refused(expr: str) -> None:
    """A pattern that is none, and what is no family."""
    with pytest.raises(ConfigError):
        declog.plan(profile(SIGNALS, {"m": expr}))


LOGS = [
    {"loss": 1.0, "epoch": 0.5, "learning_rate": 1e-3, "train/global_step": 1, "num_tokens": 10, "lr_1": 3.0},
    {"loss": 3.0, "epoch": 1.0, "learning_rate": 0.0, "train/global_step": 2, "num_tokens": 40, "lr_1": 2.0},
    {"loss": 5.0, "grad_norm": 1.0, "step_time": 2.0, "mean_token_accuracy": 0.5, "reward_per_epoch_share": 1.0},
    {"step_time": 4.0},
]
LATEST = {"epoch": 1.0, "learning_rate": 0.0, "train/global_step": 2, "num_tokens": 40, "lr_1": 2.0}
MEANS = {"loss": 3.0, "grad_norm": 1.0, "step_time": 3.0, "mean_token_accuracy": 0.5, "reward_per_epoch_share": 1.0}


@pytest.mark.parametrize("world", [1, 2])
def test_a_trainers_counters_and_rates_are_as_they_were_last(world: int, tmp_path: Path) -> None:
    """In a window of several reports what counts is not averaged, whichever report had it; other numbers are."""

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        with declog.start("trainer", ["sinks=[]", "every=4"], sinks=[sink], output_dir=tmp_path, comm=comm) as log:
            for step, numbers in enumerate(LOGS):
                with log.step(step):
                    log.observe(logged=numbers)
        return sink

    assert run_ranks(world, rank)[0].scalars == {3: pytest.approx({**LATEST, **MEANS})}
