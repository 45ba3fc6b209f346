"""Profile tests: what ``tests:`` can say, what it finds, and the tests of the shipped presets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.cli import main
from declog.errors import ConfigError
from declog.language.functions import BUILTIN, Functions
from declog.replay.config_tests import Result
from declog.testing import MemorySink, config_tests, run_config_tests

PRESETS = tuple(declog.presets())
PROFILE: dict[str, Any] = {
    "run": {"name": "t"}, "modes": {"train": {}, "eval": {"prefix": "eval_", "every": "end"}},
    "constants": {"beta": {"default": 0.0}},
    "axes": {"token": {"mask": "mask"}},
    "signals": {
        "any": {
            "score": {"axis": "completion"}, "rewards": {"axis": "completion", "family": True},
            "mask": {"axis": "token", "type": "bool"}, "logprobs": {"axis": "token"},
            "text": {"axis": "completion", "type": "text"}, "loud": {"axis": "completion", "from": "volume"},
        },
    },
    "derived": {"double": "2 * score"},
    "metrics": {
        "score": {"expr": "score", "reduce": ["mean", "max"]},
        "total": {"expr": "score", "reduce": "sum", "alias": ["scores"]},
        "rewards": {"expr": "rewards", "name": "rewards/{member}"},
        "logprobs": "mean(logprobs)", "kl": {"expr": "score", "enabled": "beta != 0"},
        "loud": "mean(loud)", "late": "max(elapsed + 0 * score)", "counts": "histogram(score, bins=2)",
    },
    "filters": {"best": {"key": "score", "top": 2}},
    "schemas": {"s": {"score": "float", "text": "text"}},
    "tables": {"best": {"name": "samples", "schema": "s", "filter": "best"}},
    "profiles": {"slim": {"only": ["score.mean"]}},
    "alerts": {"high": {"when": "score.max > 5"}},
    "sinks": ["wandb"],
}  # fmt: skip


def result(test: dict[str, Any], **others: Any) -> Result:
    """What comes of one test of the profile."""
    (made,) = config_tests({**PROFILE, **others, "tests": {"it": test}})
    return made.run()


def found(test: dict[str, Any], **others: Any) -> dict[str, tuple[str, str]]:
    """The differences: what was expected and what came, by place."""
    return {item.where: (item.expected, item.got) for item in result(test, **others).differences}


ONE = {"score": [1, 2, 6], "text": ["a", "b", "c"]}
PASS: dict[str, dict[str, Any]] = {
    "values": {"observe": ONE, "expect": {"score/mean": 3, "score.max": 6, "scores": 9}},
    "an alias has the value of its metric": {"observe": ONE, "expect": {"total": 9}},
    "nothing": {"observe": ONE, "expect": {"kl": None, "rewards/right": None, "logprobs": None, "loud": None}},
    "constants": {"constants": {"beta": 2}, "observe": ONE, "expect": {"kl": 3}},
    "bounds": {"observe": ONE, "expect": {"score.mean": {"above": 2, "below": 4}}},
    "tolerance": {"observe": ONE, "expect": {"score.mean": {"value": 3.2, "tol": 0.1}, "score.max": 6}},
    "a tolerance for all": {"observe": ONE, "tol": 0.1, "expect": {"score.mean": 3.2, "score.max": 6.3}},
    "a histogram": {"observe": ONE, "expect": {"counts": {"counts": [2, 1]}}},
    "missing values": {"observe": {"score": [1, None, 3]}, "expect": {"score.mean": 2}},
    "families": {"observe": {"rewards": {"right": [1, 0], "short": [2, 4]}}, "expect": {"rewards/short": 3}},
    "tokens": {"observe": {"logprobs": [[1, 2], [4, 9]], "mask": [[True, True], [True, False]]},
               "expect": {"logprobs": 2.333333}},
    "observed under another name": {"observe": {"volume": [3]}, "expect": {"loud": 3}},
    "micro-batches": {"observe": [{"score": [1]}, {"score": [3, 5]}], "expect": {"score.mean": 3}},
    "steps are seconds": {"steps": [{"score": [1]}, {"score": [1]}], "expect": {"late": 2}},
    "the last value": {"steps": [{"score": [1]}, {"score": [3]}], "expect": {"score.mean": 3, "score.max": 3}},
    "each step": {"steps": [{"observe": {"score": [1]}, "expect": {"score.mean": 1}},
                            {"observe": {"volume": [3]}, "expect": {"score.mean": None, "loud": 3}}]},
    "windows": {"with": {"every": 2}, "steps": [{"score": [1]}, {"score": [3]}], "expect": {"score.mean": 2}},
    "the tail": {"with": {"every": 3}, "steps": [{"score": [1]}, {"score": [3]}], "expect": {"score.mean": 2}},
    "a flush": {"with": {"every": "trainer"}, "expect": {"score.mean": 5},
                "steps": [{"observe": {"score": [1]}, "flush": True, "expect": {"score.mean": 1}}, {"score": [5]}]},
    "modes": {"steps": [{"score": [1]}, {"mode": "eval", "observe": {"score": [9]}, "expect": {"score.max": 9}}],
              "expect": {"score.mean": 1, "eval_score/mean": 9}},
    "ids are of training": {"steps": [{"mode": "eval", "observe": {"score": [9]}}],
                            "expect": {"score.mean": None, "score.max": None, "eval_score/mean": 9}},
    "a block of a mode": {"mode": "eval", "observe": {"score": [9]}, "expect": {"score.mean": 9}},
    "ranks": {"ranks": [{"score": [1]}, [{"score": [3]}, {"score": [8]}]], "expect": {"score.mean": 4}},
    "numbered steps": {"steps": [{"step": 5, "observe": {"score": [7]}, "alerts": ["high"]}]},
    "values by name": {"observe": ONE, "log_metric": {"speed": [1, 4]}, "expect": {"speed": 2.5}},
    "columns": {"with": {"schemas": {"s": {"extra": {"undeclared": "keep"}}}}, "observe": ONE,
                "log_extra": {"note": ["x", None, "z"]}, "tables": {"best": {"columns": {"note": [None, "z"]}}}},
    "rows": {"observe": ONE, "tables": {"samples": {"rows": 2, "columns": {"text": ["b", "c"], "score": [2, 6],
                                                                          "other": None}}}},
    "how many rows": {"observe": ONE, "tables": {"best": 2}},
    "no rows": {"with": {"filters": {"best": {"where": "score > 9"}}}, "observe": ONE, "tables": {"best": None}},
    "alerts": {"steps": [ONE, ONE, {"score": [0]}, ONE], "alerts": ["high"]},
    "how often": {"steps": [ONE, {"score": [0]}, ONE], "alerts": {"high": 2}},
    "no alert": {"observe": {"score": [1]}, "alerts": {"high": None}},
    "none at all": {"observe": {"score": [1]}, "alerts": []},
    "another profile": {"profile": "slim", "observe": ONE, "expect": {"score.mean": 3, "score.max": None}},
}  # fmt: skip


@pytest.mark.parametrize("name", PASS)
def test_what_is_so_passes(name: str) -> None:
    """Each way of saying what is given and what is expected."""
    assert str(result(PASS[name])) == "ok   it"


FAIL: dict[str, tuple[dict[str, Any], dict[str, tuple[str, str]]]] = {
    "a value": ({"expect": {"score.mean": 4}}, {"expect.score.mean": ("4 (within 1e-06)", "3")}),
    "just outside": (
        {"expect": {"score.mean": {"value": 3.2, "tol": 0.06}}},
        {"expect.score.mean": ("3.2 (within 0.06)", "3")},
    ),
    "bounds": (
        {"expect": {"score.mean": {"above": 3, "below": 3}}},
        {"expect.score.mean": ("above 3, below 3", "3")},
    ),
    "not logged": (
        {"expect": {"logprobs": 1}},
        {"expect.logprobs": ("1 (within 1e-06)", "nothing; logged: late, score/max, score/mean, scores, total")},
    ),
    "logged": ({"expect": {"score/max": None}}, {"expect.score/max": ("nothing", "6 at step 0")}),
    "counts": ({"expect": {"counts": {"counts": [1, 2]}}}, {"expect.counts": ("counts [1, 2]", "counts [2, 1]")}),
    "a number for counts": ({"expect": {"counts": 3}}, {"expect.counts": ("3 (within 1e-06)", "counts [2, 1]")}),
    "rows": (
        {"tables": {"best": {"rows": 3, "columns": {"text": ["b", "x"], "score": None, "more": [1]}}}},
        {
            "tables.best.rows": ("3", "2"),
            "tables.best.columns.text": ("['b', 'x']", "['b', 'c']"),
            "tables.best.columns.score": ("no such column", "it is there"),
            "tables.best.columns.more": ("[1]", "no such column; there are score, text"),
        },
    ),
    "no rows": ({"tables": {"best": None}}, {"tables.best": ("no rows", "2 rows")}),
    "alerts": ({"alerts": []}, {"alerts": ("none", "high")}),
    "how often": ({"alerts": {"high": 2}}, {"alerts.high": ("2 times", "1 times")}),
    "an alert": ({"alerts": {"high": None}}, {"alerts.high": ("0 times", "1 times")}),
}


@pytest.mark.parametrize("name", FAIL)
def test_what_is_not_so_is_reported(name: str) -> None:
    """With its place, what was expected and what came."""
    test, differences = FAIL[name]
    assert found({"observe": ONE, **test}) == differences


def test_a_family_is_named_by_its_members() -> None:
    """Where a metric's id stands for several values, the names to choose from are reported."""
    observed = {"rewards": {"right": [1, 0], "short": [2, 4]}}
    reported = "several, rewards/right: 0.5, rewards/short: 3; write one of these names"
    assert found({"observe": observed, "expect": {"rewards": 1}}) == {"expect.rewards": ("one value", reported)}


def test_differences_of_a_step_say_which() -> None:
    """The second step of two."""
    steps = [{"score": [1]}, {"observe": {"score": [2]}, "expect": {"score.max": 3}}]
    assert found({"steps": steps}) == {"steps.1.expect.score.max": ("3 (within 1e-06)", "2")}


def test_what_fails_behind_the_scenes_fails_the_test() -> None:
    """Values that could not be computed, and steps that the recorder refuses."""
    groups = {
        "axes": {**PROFILE["axes"], "group": {"size": 2}},
        "metrics": {**PROFILE["metrics"], "g": "mean(max(score, over=completion))"},
    }
    ((where, (_, got)),) = found({"observe": ONE, "expect": {"score.mean": 3}}, **groups).items()
    assert where == "" and "[DL507] the metric `g`: rows cannot be grouped" in got
    ((where, (expected, got)),) = found({"observe": {"score": [[1]]}, "expect": {"score.mean": 3}}).items()
    assert (where, expected) == ("", "the steps are taken") and "`score` is declared float per completion" in got


def test_group_ids_need_not_be_given_where_they_do_not_matter() -> None:
    """What a test is not about is absent, and no failure."""
    signals = {**PROFILE["signals"]["any"], "id": {"axis": "completion", "type": "int"}}
    ids = {"axes": {**PROFILE["axes"], "group": {"of": "id"}}, "signals": {"any": signals},
           "metrics": {**PROFILE["metrics"], "g": "mean(max(score, over=completion))"}}  # fmt: skip
    assert found({"observe": ONE, "expect": {"score.mean": 3, "g": None}}, **ids) == {}
    assert len(found({"observe": ONE, "expect": {"g": 3}}, **ids)) == 1


UNKNOWN: dict[str, tuple[dict[str, Any], str, tuple[str | int, ...], str]] = {
    "signal": ({"observe": {"scor": [1]}}, "DL501", ("observe", "scor"), "did you mean `score`?"),
    "derived": ({"observe": {"double": [1]}}, "DL501", ("observe", "double"), "give what it is computed from"),
    "source": ({"observe": {"loud": [1]}}, "DL501", ("observe", "loud"), "give `volume`"),
    "value": ({"observe": ONE, "expect": {"scor": None}}, "DL403", ("expect", "scor"), "did you mean `score`?"),
    "table": ({"observe": ONE, "tables": {"bets": 1}}, "DL403", ("tables", "bets"), "did you mean `best`?"),
    "alert": ({"observe": ONE, "alerts": ["hihg"]}, "DL403", ("alerts", 0), "did you mean `high`?"),
    "constant": ({"observe": ONE, "constants": {"bta": 1}}, "DL403", ("constants", "bta"), "did you mean `beta`?"),
    "mode": ({"steps": [{"mode": "evel", "observe": ONE}]}, "DL403", ("steps", 0, "mode"), "did you mean `eval`?"),
    "ranks": ({"steps": [{"ranks": [ONE, ONE]}, ONE]}, "DL202", ("steps", 1), "list the values of each rank"),
    "logged by nobody": ({"log_metric": {"speed": 1}, "expect": {"sped": 1}}, "DL403", ("expect", "sped"), ""),
    "rank": ({"ranks": [ONE, {"scor": [1]}]}, "DL501", ("ranks", 1, "observe", "scor"), "did you mean `score`?"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_names_that_the_profile_does_not_have_are_refused(name: str) -> None:
    """A test that expects nothing of a misspelt metric could never fail."""
    test, code, path, fix = UNKNOWN[name]
    with pytest.raises(ConfigError) as caught:
        result({"expect": {"score.mean": 1}, **test})
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == (code, ("tests", "it", *path)) and fix in (problem.fix or "")


def test_all_problems_of_all_tests_are_reported_at_once() -> None:
    """Of several tests and places, before any runs."""
    tests = {
        "one": {"observe": {"scor": [1], "txt": ["a"]}, "expect": {"score.mean": 1}},
        "two": {"observe": ONE, "expect": {"scor": 1}, "alerts": ["hihg"]},
    }
    with pytest.raises(ConfigError) as caught:
        config_tests({**PROFILE, "tests": tests})
    assert [problem.path[1:] for problem in caught.value.problems] == [
        ("one", "observe", "scor"), ("one", "observe", "txt"), ("two", "alerts", 0), ("two", "expect", "scor"),
    ]  # fmt: skip


def test_a_profile_test_does_what_a_run_does(tmp_path: Path) -> None:
    """The same numbers as a recorder of the same profile gives for the same values, of random tokens."""
    random = np.random.default_rng(0)
    logprobs, mask = random.normal(size=(4, 5)), random.random((4, 5)) > 0.4
    sink = MemorySink()
    config = {**PROFILE, "sinks": []}
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(
            logprobs=logprobs, mask=torch.from_numpy(mask), score=logprobs[:, 0], text=["a"] * 4, volume=[1.0] * 4,
            rewards={"right": mask[:, 0]},
        )  # fmt: skip
    observed = {"logprobs": logprobs.tolist(), "mask": mask.tolist(), "score": logprobs[:, 0].tolist()}
    values = {name: value for name, value in sink.scalars[0].items() if name in ("logprobs", "score/mean", "score/max")}
    assert len(values) == 3 and values["logprobs"] == pytest.approx(logprobs[mask].mean())
    assert found({"observe": observed, "expect": values, "tol": 0}) == {}


# -- of the shipped presets


@pytest.mark.parametrize("preset", PRESETS)
def test_the_tests_of_a_shipped_preset(preset: str) -> None:
    """Small numbers, worked by hand."""
    tests = declog.config_of(preset)["tests"]
    assert run_config_tests(preset) == [name for name, test in tests.items() if test is not None]


@pytest.mark.parametrize("preset", PRESETS)
def test_the_tests_of_a_preset_go_nowhere(preset: str) -> None:
    """Sinks do not get them, and they have no part in the plan."""
    data = declog.config_of(declog.compose(preset))
    assert data["tests"] and "tests" not in declog.plan(data).config
    without = {key: value for key, value in data.items() if key != "tests"}
    assert declog.plan(data).fingerprint == declog.plan(without).fingerprint


@pytest.mark.parametrize(
    ("override", "wrong"),
    [
        ("declog.derived.high_clipped='ratio > 1 + epsilon_high'", {"expect.clip_high"}),
        ("declog.derived.high_clipped='advantages > 0 and ratio > 1 + epsilon_high'", set()),
        ("declog.derived.low_clipped='ratio < 1 - epsilon_low and advantages > 0'", {"expect.clip_low"}),
        ("declog.derived.kl='ref_gap - 1'", {"expect.kl"}),
        ("declog.filters.extremes.bottom=0", {"tables.samples.rows"}),
        ("+declog.profiles.slim.only=['*']", {"expect.rewards/right/mean"}),
    ],
)
def test_the_tests_of_a_preset_find_what_is_changed(override: str, wrong: set[str]) -> None:
    """A preset whose formulas are changed fails its tests; one that says the same otherwise does not.

    Reductions, pools and conditions are changed by ``tests.replay.mutations``.
    """
    config = declog.compose("grpo", [override])
    places = {item.where for test in config_tests(config) for item in test.run().differences}
    assert places >= wrong and bool(places) == bool(wrong)


# -- pytest and the command line


def test_run_profile_tests_raises_with_all_that_is_wrong() -> None:
    """Names of those that ran; else an ``AssertionError`` with the differences of all tests."""
    tests = {"good": PASS["values"], "bad": {"observe": ONE, "expect": {"score.mean": 4}},
             "worse": {"observe": ONE, "alerts": []}}  # fmt: skip
    assert run_config_tests({**PROFILE, "tests": {"good": PASS["values"]}}) == ["good"]
    with pytest.raises(AssertionError) as caught:
        run_config_tests({**PROFILE, "tests": tests})
    assert str(caught.value).split("\n\n", 1)[1] == (
        "FAIL bad\n  expect.score.mean\n    expected 4 (within 1e-06)\n    got      3\n\n"
        "FAIL worse\n  alerts\n    expected none\n    got      high"
    )
    assert run_config_tests({**PROFILE, "tests": tests}, select="g*") == ["good"]
    with pytest.raises(AssertionError, match="has no test like `x`"):
        run_config_tests({**PROFILE, "tests": tests}, select="x")


def test_functions_of_your_own() -> None:
    """The registries that `start` takes."""
    functions = Functions(BUILTIN)

    @declog.function(registry=functions)
    def thrice(x: torch.Tensor) -> torch.Tensor:
        return 3 * x

    metrics = {"thrice": "mean(thrice(score))"}
    tests = {"own": {"observe": {"score": [1, 3]}, "expect": {"thrice": 6}}}
    config = {**PROFILE, "metrics": metrics, "alerts": {}, "profiles": {}, "tests": tests}
    assert run_config_tests(config, functions=functions) == ["own"]


TEAM = """
defaults: [grpo, _self_]
metrics: {reward_p95: p95(reward)}
tests:
  unweighted: null
  p95:
    with: {axes: {group: {size: 2}}}
    observe: {rewards: {right: [0, 1]}}
    expect: {reward_p95: 0.95}
"""


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A team's file inherits the tests of its preset, adds and drops some; 0 where all pass, 2 where one fails."""
    file = tmp_path / "team.yaml"
    file.write_text(TEAM)
    assert main(["test", str(file)]) == 0
    out = capsys.readouterr().out
    assert "ok   p95" in out and "unweighted" not in out and out.endswith("34 tests: all passed\n")

    assert main(["test", str(file), "-k", "p95", "metrics.reward_p95=p50(reward)"]) == 2
    assert capsys.readouterr().out == (
        "FAIL p95\n  expect.reward_p95\n    expected 0.95 (within 1e-06)\n    got      0.5\n1 test: 1 failed\n"
    )
    assert main(["test", str(file), "-k", "p95", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "p95", "passed": True, "skipped": False, "differences": []}]


def test_the_command_line_says_where_a_test_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line and column of the name."""
    file = tmp_path / "team.yaml"
    file.write_text(TEAM.replace("reward_p95: 0.95", "reward_p59: 0.95"))
    assert main(["test", str(file)]) == 2
    error = capsys.readouterr().err
    assert "error[DL403]" in error and "team.yaml:9:14 in tests.p95.expect.reward_p59" in error
    assert "fix: did you mean `reward_p95`?" in error
    assert main(["test", str(file), "-k", "nothing"]) == 2
    file.write_text("run: {name: x}\n")
    assert main(["test", str(file)]) == 2
    assert "the config has no test" in capsys.readouterr().err


def test_help_is_quick() -> None:
    """``declog test --help`` loads neither torch nor Hydra."""
    program = """
import sys
from declog.cli import main
main(["test", "--help"])
main(["preview", "--help"])
print(sorted({"torch", "hydra", "pydantic"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_tests_of_what_a_config_deleted_are_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a preset, which the author of the config did not write; a test of the author's own has a note."""
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "defaults: [grpo, _self_]\nmetrics: {zero_std: null}\ntables: {samples: null}\n"
        "tests: {mine: {observe: {reward: [1, 0]}, expect: {reward: 0.5}}}\n"
    )
    assert main(["check", str(mine)]) == 0 and "note" not in capsys.readouterr().out
    assert main(["test", str(mine)]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = "the config deleted what it is about"
    assert {f"skip {name}: {said}" for name in ("groups", "samples", "evaluation")} <= {*lines}
    assert {"ok   mine", "ok   lengths"} <= {*lines} and lines[-1].endswith(f", {len([*filter(skips, lines)])} skipped")
    mine.write_text(mine.read_text().replace("reward: 0.5", "zero_std: 0.5"))
    assert main(["check", str(mine)]) == 0
    assert "drop them: `tests: {mine: null}`" in " ".join(capsys.readouterr().out.split())


def skips(line: str) -> bool:
    return line.startswith("skip ")
