"""Windows by hand: the cases of maxent.json that are about windows, and what goes wrong with them elsewhere."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.testing import MemorySink
from tests.language.runs import problems, record, values
from tests.running import output_words, profile

DATA = Path(__file__).parents[2] / "data" / "maxent.json"
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in json.loads(DATA.read_text(encoding="utf-8"))}

STEP = {"axis": "step"}
ROWS = {"axis": "completion"}
REWARD = {"signals": {"any": {"reward": ROWS}}}
Steps = Sequence[Sequence[Mapping[str, Any]]]


def rewards(*steps: Sequence[Sequence[float]]) -> Steps:
    """Steps of micro-batches of rewards."""
    return [[{"reward": list(batch)} for batch in step] for step in steps]


# ---- maxent.json


def test_r13_every_rank_takes_part_in_each_log_event() -> None:
    """The source gathers on every second call only. Here there is nothing to gather: both ranks' rows are always in."""
    given = CASES["R13"]["inputs"]
    assert (given["world"], CASES["R13"]["expected"]["gathers_nonzero"]) == (2, [True, False])

    sink = record({**REWARD, "metrics": {"n": "count(reward)"}}, rewards([[1.0]], [[2.0]]), rewards([[3.0]], [[4.0]]))

    assert sink.scalars == {0: {"n": 2}, 1: {"n": 2}}


def test_r15_micro_batches_of_one_step_are_one_value() -> None:
    """Two micro-batches, one log event, and nothing of it is left for the next step."""
    case = CASES["R15"]
    micro = [[reward] for reward in case["inputs"]["micro_rewards"]]

    sink = record({**REWARD, "metrics": {"reward": {"expr": "reward", "name": "train/reward"}}},
                  rewards(micro, [[7.0]]))  # fmt: skip

    assert len(sink.events) == case["expected"]["emits"] + 1
    assert sink.scalars == {0: {"train/reward": case["expected"]["train/reward"]}, 1: {"train/reward": 7.0}}


def test_r33_extrema_of_extrema() -> None:
    """Means are averaged, the least minimum and the greatest maximum are kept."""
    inputs = CASES["R33"]["inputs"]
    metrics = {"mean": "mean(mean)", "min": "min(min)", "max": "max(max)"}
    steps = [[{name: items[place] for name, items in inputs.items()}] for place in range(2)]

    assert CASES["R33"]["expected"] == values(
        {"every": 2, "signals": {"any": dict.fromkeys(metrics, STEP)}, "metrics": metrics}, steps
    )


def test_e36_a_controllers_state() -> None:
    """Errors against targets as formulas; a ratio only `when` there is something to divide."""
    given, expected = CASES["E36"]["inputs"], CASES["E36"]["expected"]
    constants = {"kl_target": given["kl_target"], "h_target": given["target"], "warmup": 1}
    tau = {"formula": "0.5 * entropy_error ** 2", "name": "train/tau_loss", "alias": ["train/weighting/tau_loss"]}
    metrics = {
        "kl": {"expr": "kl", "log": False},
        "h": {"expr": "h", "log": False},
        "active": {"expr": "at >= warmup", "name": "train/tau_schedule_active"},
        "enabled_": {"formula": "1 + 0 * kl", "name": "train/kl_controller_enabled", "enabled": "kl_target > 0"},
        "kl_error": {"formula": "kl - kl_target", "name": "train/kl_error_to_target"},
        "kl_ratio": {"formula": "kl / kl_target", "name": "train/kl_ratio_to_target", "when": "kl > 0"},
        "entropy_error": {"formula": "h - h_target", "name": "train/weight_entropy_error"},
        "entropy_abs": {"formula": "abs(entropy_error)", "name": "train/weight_entropy_abs_error"},
        "tau_loss": tau,
    }
    config = {"constants": constants, "signals": {"any": {"kl": STEP, "h": STEP, "at": STEP}}, "metrics": metrics}

    assert expected == pytest.approx(values(config, [[{"kl": given["kl"], "h": given["H"], "at": given["step"]}]]))
    none = values(config, [[{"kl": 0.0, "h": given["H"], "at": given["step"]}]])
    assert set(expected) - set(none) == {"train/kl_ratio_to_target"}


def test_e40_what_comes_in_some_steps_only() -> None:
    """It is averaged over the steps in which it came, and is no 0 in the others."""
    config = {
        "every": 2,
        "signals": {"any": {"a": STEP, "g": STEP}},
        "metrics": {"a": "a", "g": "g"},
    }

    assert CASES["E40"]["expected"] == values(config, [[item] for item in CASES["E40"]["inputs"]])


@pytest.mark.parametrize(
    ("case", "every", "first"), [("E42", 1, 0), ("E44", 3, 1)], ids=["each step", "every third"]
)  # fmt: skip
def test_the_steps_at_which_is_logged(case: str, every: int, first: int) -> None:
    """Windows of N steps end at each N-th step; what is left at the end is the tail window."""
    expected = CASES[case]["expected"]
    log = {**REWARD, "every": CASES[case]["inputs"]["steps"], "metrics": {"n": "count(reward)"}}
    sink = record(log, rewards(*[[[1.0]]] * (expected[-1] + 1 - first)))

    assert log["every"] == every
    assert [step + first for step in sink.scalars] == expected  # the source counts from 1 where it skips step 0


def test_e46_no_window_is_shorter_than_a_step() -> None:
    """The source takes -2 for 1; here it is refused."""
    given = CASES["E46"]["inputs"]["steps"]

    assert problems(lambda: record({**REWARD, "every": given, "metrics": {"n": "count(reward)"}}, [])) == [
        ("DL202", "every")
    ]


def test_e48_e50_nothing_is_logged_while_the_trainer_does_not_say() -> None:
    """By epoch or never: `every: trainer`, and the trainer's own `log.flush()`. The end of the run loses nothing."""
    assert CASES["E48"]["expected"] == CASES["E50"]["expected"] == []

    sink = record({**REWARD, "every": "trainer", "metrics": {"n": "count(reward)"}}, rewards(*[[[1.0]]] * 7))

    assert sink.scalars == {6: {"n": 7}}


@pytest.mark.parametrize("case", ["E53", "E56"])
def test_epochs_from_steps(case: str) -> None:
    """The source divides by 1 where no length is known; here that is absent, not 50."""
    given = CASES[case]["inputs"]["steps_per_epoch"]
    config = {
        "constants": {"per_epoch": given},
        "signals": {"any": {"at": STEP}},
        "metrics": {"epoch": {"expr": "at / per_epoch if per_epoch > 0 else 0 / 0", "reduce": "last"}},
    }

    assert values(config, [[{"at": 50}]]) == ({"epoch": CASES[case]["expected"]} if given else {})


# ---- what a window does with its values


def test_the_minimum_of_ten_steps_is_the_minimum() -> None:
    """Not the mean of ten minima, which `over: step` gives to those who ask for it."""
    steps = [[[float(place), float(10 - place)]] for place in range(10)]
    metrics = {
        "least": "min(reward)", "greatest": "max(reward)",
        "averaged": {"expr": "reward", "reduce": "min", "over": "step"},
    }  # fmt: skip

    assert values({**REWARD, "every": 10, "metrics": metrics}, rewards(*steps)) == {
        "least": 0.0, "greatest": 10.0,
        "averaged": sum(min(place, 10 - place) for place in range(10)) / 10,
    }  # fmt: skip


def test_a_deviation_is_of_all_rows() -> None:
    """Steps whose rewards do not vary at all still differ from one another."""
    metrics = {"std": "std(reward)", "pstd": "pstd(reward)", "averaged": {"expr": "reward", "reduce": "std",
               "over": "step"}}  # fmt: skip

    assert values({**REWARD, "every": 2, "metrics": metrics}, rewards([[1.0, 1.0, 1.0]], [[4.0]])) == pytest.approx(
        {"std": statistics.stdev([1, 1, 1, 4]), "pstd": statistics.pstdev([1, 1, 1, 4]), "averaged": 0.0}
    )  # fmt: skip


def test_uneven_micro_batches_weigh_as_much_as_they_have_rows() -> None:
    """30 rewards and 10 are 40 rewards, in micro-batches, steps and ranks alike."""
    many, few = [1.0] * 30, [0.0] * 10
    config = {**REWARD, "every": 2, "metrics": {"reward": "mean(reward)"}}

    for ranks in (
        [rewards([many, few])],
        [rewards([many], [few])],
        [rewards([many]), rewards([few])],
    ):
        assert values(config, *ranks) == {"reward": 0.75}
    config["metrics"] = {"reward": {"expr": "reward", "over": "batch"}}
    assert values(config, rewards([many, few])) == {"reward": 0.5}


def test_uneven_tokens_weigh_as_much_as_there_are() -> None:
    """A mean over tokens is of the tokens, not of completions' means."""
    config = {
        "axes": {"token": {"mask": "mask"}},
        "signals": {"any": {"mask": {"axis": "token", "type": "bool"}, "kl": {"axis": "token"}}},
        "metrics": {"kl": "mean(kl)", "each": "mean(mean(kl, over=token))"},
    }
    batch = {"mask": [[1, 1, 1], [1, 0, 0]], "kl": [[0.0, 0.0, 0.0], [1.0, 9.0, 9.0]]}

    assert values(config, [[batch]]) == {"kl": 0.25, "each": 0.5}


def test_a_nan_does_not_poison_its_window() -> None:
    """One missing value of many is left out; a step that has nothing else is NaN, and the next one is as it is."""
    metrics = {"reward": {"reduce": ["mean", "min", "std", "count", "sum"]}}
    config = {**REWARD, "every": 2, "metrics": metrics}

    assert values(config, rewards([[1.0, math.nan]], [[math.nan, 3.0, 5.0]])) == {
        "reward/mean": 3.0, "reward/min": 1.0, "reward/std": 2.0, "reward/count": 3, "reward/sum": 9.0,
    }  # fmt: skip
    nothing = {f"reward/{reduce}": math.nan for reduce in ("mean", "min", "std", "sum")} | {"reward/count": 0}
    assert record({**config, "every": 1}, rewards([[math.nan]], [[2.0]])).scalars == {
        0: pytest.approx({**nothing, "nonfinite/reward": 1}, nan_ok=True),
        1: {"reward/mean": 2.0, "reward/min": 2.0, "reward/count": 1, "reward/sum": 2.0},
    }


def test_r31_a_nan_that_must_not_be_is_named() -> None:
    """`nan: raise` names the metric."""
    assert CASES["R31"]["expected"] == {"error_key": "train/loss"}
    config = {"signals": {"any": {"loss": STEP}}, "metrics": {"loss": {"nan": "raise", "name": "train/loss"}}}

    with pytest.raises(Exception, match=r"^\[DL605\] the metric `loss` met 1 missing values, and says `nan: raise`$"):
        record(config, [[{"loss": math.nan}]])


def test_tokens_since_the_start() -> None:
    """A cumulative sum runs over log events; the same sum without it starts anew at each."""
    signals = {"length": {**ROWS, "type": "int"}}
    metrics = {
        "num_tokens": {"expr": "length", "reduce": "sum", "over": "run"},
        "long": {"expr": "length", "reduce": "count", "where": "length > 4", "over": "run"},
        "tokens": "sum(length)",
        "share": {"formula": "tokens / num_tokens"},
    }
    steps = [[{"length": [3, 5]}], [{"length": [8]}, {"length": [2, 2]}], [{"length": [4]}]]

    assert record({"every": 2, "signals": {"any": signals}, "metrics": metrics}, steps).scalars == {
        1: {"num_tokens": 20, "long": 2, "tokens": 20, "share": 1.0},
        2: {"num_tokens": 24, "long": 2, "tokens": 4, "share": 4 / 24},
    }


def test_a_first_log_event_of_its_own() -> None:
    """Windows of a metric's own `every` are whole; after the first one the others end where they did."""
    config = {
        **REWARD, "every": 3, "modes": {"train": {"first": 1}},
        "metrics": {"sum": "sum(reward)", "slow": {"expr": "reward", "reduce": "count", "every": 6}},
    }  # fmt: skip
    steps = [[{"reward": [float(step)]}] for step in range(8)]
    assert record(config, steps).scalars == {
        0: {"sum": 0.0}, 2: {"sum": 3.0}, 5: {"sum": 12.0, "slow": 6}, 7: {"sum": 13.0, "slow": 2},
    }  # fmt: skip


def test_the_first_step_and_the_tail() -> None:
    """Step 0 belongs to the first window; the last, shorter window is logged at the end under its last step."""
    config = {**REWARD, "every": 3, "metrics": {"sum": "sum(reward)", "n": "count(reward)"}}

    assert record(config, rewards(*[[[float(2**place)]] for place in range(7)])).scalars == {
        2: {"sum": 7.0, "n": 3}, 5: {"sum": 56.0, "n": 3}, 6: {"sum": 64.0, "n": 1},
    }  # fmt: skip


PIECES = rewards([[1.0, 3.0], [8.0]], [[6.0], [2.0, 2.0]])  # means by step 4, 10/3; by batch 2, 8, 6, 2


@pytest.mark.parametrize(
    ("pool", "combine", "expected"),
    [
        ("step", "mean", (4 + 10 / 3) / 2), ("step", "last", 10 / 3), ("batch", "mean", 4.5), ("batch", "min", 2.0),
        ("batch", "max", 8.0), ("batch", "sum", 18.0), ("batch", "last", 2.0), ("batch", "var", 9.0),
        ("batch", "std", 3.0), ("rank", "mean", 22 / 6), ("rank_batch", "mean", 4.5),
    ],
)  # fmt: skip
def test_pool_and_combine_by_hand(pool: str, combine: str, expected: float) -> None:
    """Means of pieces, and what they are combined to."""
    metrics = {"reward": {"expr": "reward", "over": pool, "combine": combine}}

    assert values({**REWARD, "every": 2, "metrics": metrics}, PIECES) == pytest.approx({"reward": expected})


@pytest.mark.parametrize("pool", ["step", "batch", "rank", "rank_batch"])
def test_one_piece_has_no_variance(pool: str) -> None:
    """The sample variance of one value is absent, as `var` of one row is."""
    metrics = {"reward": {"expr": "reward", "over": pool, "combine": "var"}, "n": "count(reward)"}

    assert values({**REWARD, "metrics": metrics}, rewards([[1.0, 3.0]])) == {"n": 2}


def test_a_batch_is_pooled_over_the_ranks() -> None:
    """`batch` pools before it averages, `rank_batch` and `rank` do not."""
    metrics = {pool: {"expr": "reward", "over": pool} for pool in ("batch", "rank", "rank_batch")}
    ranks = rewards([[1.0, 1.0, 1.0], [2.0]]), rewards([[5.0], [6.0]])

    assert values({**REWARD, "metrics": metrics}, *ranks) == {
        "batch": (2.0 + 4.0) / 2,  # 1 1 1 5, and 2 6
        "rank": (5 / 4 + 5.5) / 2,
        "rank_batch": (1 + 5 + 2 + 6) / 4,
    }


def test_a_plan_says_what_its_values_are() -> None:
    """Each output in words, by name."""
    metrics: dict[str, Any] = {
        "reward": "mean(reward)",
        "trl": {"expr": "reward", "over": "batch"},
        "total": {"expr": "reward", "reduce": "sum", "over": "run"},
    }
    assert output_words(declog.plan(profile({"reward": ROWS}, metrics, every=10))) == {
        "reward": "mean of reward, over the completions of 10 steps",
        "trl": "mean of batch means of reward, over the completions of 10 steps",
        "total": "sum of reward, over the completions from the start of the run",
        "{member}": "mean of logged, over the batches of 10 steps",
    }


def test_a_plan_of_group_values_alone(tmp_path: Path) -> None:
    """Where no completion is observed, the size of groups says how many there are."""
    sink = MemorySink()
    config = {
        "run": {"strict": True},
        "axes": {"group": {"size": 4}},
        "signals": {"any": {"difficulty": {"axis": "group"}}},
        "metrics": {"difficulty": {"reduce": ["mean", "max"]}},
    }
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(difficulty=[1.0, 2.0, 6.0])
    assert sink.scalars == {0: {"difficulty/mean": 3.0, "difficulty/max": 6.0}}


def test_group_values_need_groups() -> None:
    """A signal per group under a profile that does not say what a group is."""
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(
            {"signals": {"any": {"difficulty": {"axis": "group"}}}, "metrics": {"difficulty": {"reduce": "mean"}}}
        )
    assert str(caught.value) == (
        "error[DL306] axes.group\n"
        "  values per group are needed, and this config does not say what a group is\n"
        "  fix: set `axes.group: {size: N}` or `{of: SIGNAL}`"
    )


def test_a_formula_over_families_that_have_different_members(tmp_path: Path) -> None:
    """Each member of either family has its value, where the formula has one for it."""
    families = {name: {"axis": "step", "family": True} for name in ("total", "count", "other")}
    metrics = {
        **{name: {"expr": name, "reduce": "sum", "log": False} for name in families},
        "each": {"formula": "total / count if present(count) else other", "name": "{member}"},
    }
    sink = MemorySink()
    with declog.start(profile(families, metrics), sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(total={"a": 6.0, "b": 1.0}, count={"b": 4.0, "a": 3.0}, other={"c": 5.0, "a": 9.0})
    assert sink.scalars == {0: {"a": 2.0, "b": 0.25, "c": 5.0}}


def test_a_total_of_a_family_that_comes_late(tmp_path: Path) -> None:
    """Before it comes there are no members, whatever `empty` says; then each has its own total."""
    signals = {"reward": ROWS, "parts": {**ROWS, "family": True}}
    total = {"expr": "parts", "reduce": "sum", "over": "run", "empty": 0.0, "name": "total/{member}"}
    sink = MemorySink()
    with declog.start(profile(signals, {"total": total}), sinks=[sink], output_dir=tmp_path) as log:
        for step in range(3):
            with log.step(step):
                log.observe(reward=[1.0], **({"parts": {"a": [5.0], "b": [7.0]}} if step else {}))
    assert sink.scalars == {1: {"total/a": 5.0, "total/b": 7.0}, 2: {"total/a": 10.0, "total/b": 14.0}}
