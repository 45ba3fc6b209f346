"""The preset `maxent_grpo`: the recorded cases stand in its own tests with the source's numbers, and all rows in it.

A number of a case that its test does not expect is a defect of the source, and says why.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import declog
import declog.testing
from declog.plans.ops import Plan
from tests.oracle.maxent import MAXENT

CATALOGUE = Path(__file__).parents[1] / "data" / "maxent_catalogue.tsv"
ELSEWHERE = {
    "R13": "which ranks gather: declog has no collectives",
    "R19": "defaults of a table's destination: `to` says it",
    "R23": "no lists among a tracker's values: tests of sinks",
    "R35": "fractions of groups that are right: not in the catalogue; the pack `evaluation` has its own",
    "R37": "rates of a throughput report: not in the catalogue",
    "E23": "advantages, which the trainer gives",
    "E42": "when a log event is due: `every`",
    "E44": "when a log event is due: `every`",
    "E46": "when a log event is due: `every`; -2 is refused",
    "E48": "when a log event is due: `every: epoch`",
    "E50": "when a log event is due: `enabled: false` of sinks",
    "E53": "epochs from steps: the trainer gives them",
    "E56": "epochs from steps, of a length of 0",
}
DEFECTS: dict[str, tuple[list[float], str]] = {
    "R01": ([0.0], "0 for a KL that was never computed"),
    "R03": ([0.3], "a stub's number for what is an alias of the ratio, 0.75"),
    "R15": ([1], "how often it was logged: the test looks at one log event"),
    "E16": ([0.0, 1.0], "semantic entropies and scales that were not computed, and moments of advantages, no rows"),
    "E20": ([0.3, 0.69, 0.1], "a stub's numbers; ln 2 / 2 on the mean is the right entropy"),
    "E29": ([0.5666666666666667], "pairs of words that run on from one completion into the next"),
    "E27": ([0.0], "lengths of no rows"),
}
NO_ROWS = {  # moments of advantages, and weights less equal ones row by row: the catalogue has their moments
    "E16": [-0.05, 0.15000000000000002, 2], "E25": [0.4, -0.4],
}  # fmt: skip


@functools.cache
def profile() -> dict[str, Any]:
    """The preset, plain."""
    return declog.config_of("maxent_grpo")


def numbers(data: Any) -> Iterator[float]:
    """All numbers that are somewhere in some data."""
    if isinstance(data, dict):
        for value in data.values():
            yield from numbers(value)
    elif isinstance(data, list):
        for value in data:
            yield from numbers(value)
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield float(data)


def of_case(id: str) -> list[dict[str, Any]]:
    """The preset's tests of a case."""
    return [test for name, test in profile()["tests"].items() if name.startswith(f"{id.lower()}_")]


def test_every_case_has_its_test() -> None:
    """One of the preset's, or a reason why it is about something else."""
    assert [id for id in MAXENT if bool(of_case(id)) == (id in ELSEWHERE)] == []
    assert [id for id in (*ELSEWHERE, *DEFECTS) if id not in MAXENT] == []


@pytest.mark.parametrize("id", sorted(id for id in MAXENT if id not in ELSEWHERE))
def test_a_test_expects_the_sources_numbers(id: str) -> None:
    """Each number of the case stands among the expected ones, but for those that the source has wrong."""
    expected = [*numbers([{key: test.get(key) for key in ("expect", "tables")} for test in of_case(id)])]
    wrong = [*DEFECTS.get(id, ([], ""))[0], *NO_ROWS.get(id, [])]
    missing = [
        value
        for value in numbers(MAXENT[id]["expected"])
        if not any(math.isclose(value, one, rel_tol=1e-6, abs_tol=2e-8) for one in expected)
    ]
    assert [value for value in missing if value not in wrong] == []


def test_the_defects_are_the_sources() -> None:
    """What is named as wrong is in the case, and not in the test's expectations under the same name."""
    for id, (values, reason) in DEFECTS.items():
        assert reason and all(value in [*numbers(MAXENT[id]["expected"])] for value in values), id
        expected = MAXENT[id]["expected"]
        same = [
            (name, value)
            for test in of_case(id)
            for name, value in test["expect"].items()
            if expected.get(name) == value and value in values and id not in ("E16", "E27", "R15", "R01")
        ]
        assert same == [], id


# -- the rows of the catalogue


@functools.cache
def rows() -> list[dict[str, str]]:
    """The source's catalogue."""
    with CATALOGUE.open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def name_of(template: str) -> str:
    """A template as the catalogue writes it."""
    return "train/" + template.replace("{member}", "<c>").replace("{label}", "<b>")


@functools.cache
def plan() -> Plan:
    """Of all that it can log."""
    return declog.plan("maxent_grpo")


def test_all_rows_are_there() -> None:
    """Each row of the catalogue is logged under its name, or sent once with the run."""
    shown = {name_of(item.template) for op in plan().outputs if op.shown for item in op.names}
    run = {f"run/{key}" for key in profile()["run"]["config"]["run"]}
    assert {row["key"] for row in rows()} - shown - run == set()
    assert shown - {row["key"] for row in rows()} == {"train/<c>"}  # what `log_metric` gives


def slim(observed: dict[str, Any], **constants: Any) -> set[str]:
    """The names that the slim profile shows of a step."""
    overrides = [f"constants.{name}={value}" for name, value in constants.items()]
    sink = declog.testing.MemorySink()
    config = declog.compose("maxent_grpo", ["sinks=[]", "profile=slim", *overrides])
    with declog.start(config, sinks=[sink]) as log:
        for step in range(2):
            with log.step(step):
                log.observe(**{**ROLLOUT, **observed})
    return set(sink.scalars[1])


ROLLOUT: dict[str, Any] = {
    "prompt_id": [0, 0, 1, 1], "completion": ["a b", "b c", "c d", "d e"], "length": [2, 2, 2, 3000],
    "prompt_tokens": [1, 1, 1, 1], "advantages": [1.0, -1.0, 0.5, -0.5], "q": [0.5, 0.5, 0.25, 0.75],
    "weight": [0.5, 0.5, 0.25, 0.75], "tau": 0.5, "beta": 0.1, "entropy_bonus_coef": 0.5, "meta_enabled": 1.0,
    "meta_lr": 0.1, "meta_tau_grad": 3.0, "meta_beta_grad": 4.0, "kl_target": 0.1, "loss_kl": 0.2, "loss": 1.0,
    "tau_target_entropy": 0.3,
    "completion_mask": [[True]] * 4, "logprobs": [[0.0]] * 4, "ref_logprobs": [[0.5]] * 4, "weight_entropy_ema": 0.5,
}  # fmt: skip
TWO = {"rewards": {"right": [1.0, 0.0, 1.0, 0.0], "entropy_bonus": [0.1, 0.2, 0.3, 0.4]}}


@pytest.mark.parametrize("maxent", [True, False])
def test_slim_shows_what_the_source_keeps(maxent: bool) -> None:
    """Of what is logged at all, rows that are always kept are shown, and rows that are always dropped are not."""
    found = slim(TWO, maxent=str(maxent).lower())
    rules = {row["key"]: row["slim_rule"] for row in rows()}
    known = {name.replace("/right/", "/<c>/").replace("/entropy_bonus/", "/<c>/") for name in found}
    known = {name.replace("/0-32", "/<b>") for name in known}
    assert [name for name in known if rules[name].split(";")[0] in ("drop", "drop always")] == []
    core = {row["key"] for row in rows() if row["slim_rule"] == "keep"}
    given = {"train/loss", "train/beta", "train/reward", "train/kl", "train/reward_p05", "train/clip_ratio"}
    assert given <= core & found
    assert ("train/weight_entropy" in found, "train/q_entropy_min" in found) == (maxent, not maxent)
    assert "train/tau" in found and "train/meta/grad_norm" in found


def test_slim_hides_what_is_switched_off() -> None:
    """Rows about tau, a bonus or the meta controller that are off; a component that is the whole reward."""
    off = {"tau": 0.0, "entropy_bonus_coef": 0.0, "meta_enabled": 0.0}
    found = slim({"rewards": {"right": [1.0, 0.0, 1.0, 0.0]}, **off}, maxent="false")
    hidden = ("train/tau", "train/meta/", "train/entropy_bonus", "train/rewards/", "train/weight_entropy")
    assert [name for name in found if name.startswith(hidden)] == []
    both = slim({**TWO, **off}, maxent="true")
    assert {name for name in both if name.startswith("train/rewards/")} == {
        f"train/rewards/right/{part}" for part in ("mean", "std", "p05", "p50", "p95")
    }
    assert "train/tau" in both  # under MaxEnt's weights, whatever it is
