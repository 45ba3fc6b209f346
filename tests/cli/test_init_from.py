"""``declog init --from RUN``: logs of others, as they are, and configs that log the same names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import declog
from declog.errors import UsageError
from declog.runs.adoption import Distribution, Logged, adopted, read
from declog.testing import MemorySink
from tests import forks
from tests.cli.conftest import Cli

DATA = Path(__file__).parents[1] / "data" / "adopt"
WANDB = """
import sys, wandb

with wandb.init(mode="offline", dir=sys.argv[1], project="p", settings=wandb.Settings(silent=True)) as run:
    for step in range(3):
        run.log({"reward/mean": 0.5, "reward/std": float(step), "loss": 1.0, "eval": {"acc": 0.25},
                 "samples": wandb.Table(columns=["a"], data=[[step]]), "lengths": wandb.Histogram([1, 2, 3])})
"""


MINE = Path("conf/declog/mine.yaml")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(cli: Cli, source: Path) -> dict[str, Any]:
    """The config that a command line writes."""
    found = cli("init", "mine", "--from", str(source))
    assert (found.code, found.err) == (0, "")
    data: dict[str, Any] = yaml.safe_load(MINE.read_text(encoding="utf-8"))
    return data


@pytest.mark.parametrize(
    ("name", "signals", "passed"),
    [
        ("verl.log", ["advantages", "mask", "prompt_length", "response_length", "returns", "rewards", "score"], 19),
        ("openrlhf.txt", [], 11),
    ],
)
def test_the_same_names_are_logged(name: str, signals: list[str], passed: int, cli: Cli, tmp_path: Path) -> None:
    """A run of the profile, with values of rows for what is computed, logs each name once, and nothing else."""
    names = tmp_path / "names.txt"
    names.write_text("".join(f"mine/{one}\n" for one in read(DATA / name).values))  # under which no preset has them
    logged = read(names)
    data = written(cli, names)
    declared = data.get("signals", {}).get("any", {})
    assert sorted(declared) == signals
    found = adopted(logged, {})
    assert len(found.passed) == passed and found.computed == len(logged.values) - passed
    given: dict[str, Any] = {}
    for signal, spec in declared.items():
        row = [True, True] if spec.get("type") == "bool" else [1, 2] if spec.get("type") == "int" else [0.5, 1.5]
        given[signal] = [row, row] if spec["axis"] == "token" else row
    sink = MemorySink()
    with declog.start(MINE, ["sinks=[]"], sinks=[sink], output_dir=tmp_path / "run") as log, log.step(0):
        log.observe(**given)
        for one in found.passed:
            log.log_metric(one, 1.0)
    assert {name for name in sink.scalars[0] if not name.startswith("declog/")} == set(logged.values)


def test_names_of_torchforge_are_a_presets(cli: Cli, tmp_path: Path) -> None:
    """The profile extends that; without it, statistics of one thing are computed from its values."""
    source = DATA / "torchforge.txt"
    assert written(cli, source) == {"defaults": ["forge_grpo", "_self_"], "run": {"project": "mine"}}
    found = adopted(read(source), {})
    names = ["kl_divergence", "mathreward_reward", "sampled_policy_age", "tokens_generated"]
    assert sorted(each.signal for each in found.distributions) == names
    assert len(found.passed) == 14


def test_names_of_verl_are_a_presets(cli: Cli, tmp_path: Path) -> None:
    """A console log of verl's."""
    assert written(cli, DATA / "verl.log")["defaults"] == ["verl_ppo", "_self_"]


def test_a_trainers_own_names_are_its_presets(cli: Cli, tmp_path: Path) -> None:
    """What transformers saves of a run of TRL, evaluation included: only what TRL does not compute passes through."""
    assert written(cli, DATA / "trainer_state.json") == {"defaults": ["trl_grpo", "_self_"], "run": {"project": "mine"}}
    assert [line for line in MINE.read_text(encoding="utf-8").splitlines() if line.startswith("#")][1:] == [
        "# Computed from what the training code observes: 47.",
        "# Passed through by log.log_metric(name, value): 5:",
        "#   eval_runtime, eval_samples_per_second, eval_steps_per_second, grad_norm, learning_rate",
    ]


def test_a_wandb_run_is_read_as_wandb_wrote_it(cli: Cli, tmp_path: Path) -> None:
    """Offline, with a table and a histogram, which are named and left out, and a map, whose keys are names."""
    forks.python(WANDB, str(tmp_path))
    logged = read(tmp_path)
    assert logged.values == {"eval.acc": 0.25, "loss": 1.0, "reward/mean": 0.5, "reward/std": 2.0}
    assert logged.not_numbers == {"lengths": "histogram", "samples": "table-file"} and logged.sink == "wandb"
    data = written(cli, tmp_path / "wandb")
    assert data["sinks"] == ["console", "wandb"]
    assert data["metrics"] == {
        "reward": {"expr": "reward", "reduce": ["mean", "std"], "name": "reward/{reduce}"},
    }


def test_a_torn_wandb_file_gives_what_is_whole(tmp_path: Path) -> None:
    """A run that was killed while it wrote."""
    forks.python(WANDB, str(tmp_path))
    (file,) = tmp_path.rglob("*.wandb")
    torn = tmp_path / "torn.wandb"
    whole = file.read_bytes()
    torn.write_bytes(whole[: whole.rindex(b"reward/mean")])
    assert "reward/mean" in read(torn).values


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("a.jsonl", '{"step": 1, "scalars": {"x": 1, "y": "NaN"}}\n{"step": 2, "sca', {"x": 1.0}),
        ("a.jsonl", '{"step": 1, "data": {"critic/score/mean": 0.5}}\n', {"critic/score/mean": 0.5}),
        ("a.jsonl", '{"epoch": 1, "_t": 3, "loss": 2, "eval": {"acc": true}}', {"loss": 2.0, "eval/acc": 1.0}),
        ("a.json", '[{"loss": 2}, {"loss": 3}]', {"loss": 3.0}),
        ("wandb-summary.json", '{"_step": 3, "loss": 2, "t": {"_type": "table-file"}}', {"loss": 2.0}),
    ],
)
def test_lines_of_others(name: str, text: str, values: dict[str, float], tmp_path: Path) -> None:
    """Values beside a step, inside of a map or not; a line that was cut is left out."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert {key: value for key, value in read(tmp_path / name).values.items() if value == value} == values


def test_what_declogs_own_jsonl_has_is_its_preset(cli: Cli, tmp_path: Path) -> None:
    """A folder of a run: the names of the preset that it had, and one that `log_metric` gave."""
    row = {"reward": 1.0, "lengths/mean": 3.0, "entropy": 0.5, "declog/bytes": 1, "accuracy": 1.0}
    (tmp_path / "jsonl").mkdir()
    (tmp_path / "jsonl" / "scalars.jsonl").write_text(json.dumps({"step": 1, "scalars": row}), encoding="utf-8")
    found = adopted(read(tmp_path), {"one": ["reward", "lengths/{reduce}", "entropy"], "two": ["reward"]})
    assert (found.preset, found.computed, found.passed) == ("one", 4, ["accuracy"])


def test_statistics_of_one_thing() -> None:
    """Behind a name or before it; of a time, a loss or a memory nothing is computed, nor of one statistic alone."""
    names = (
        "a/len/mean",
        "a/len/p95",
        "b/max_score",
        "b/min_score",
        "loss/mean",
        "loss/max",
        "alone/mean",
        "x_mean",
        "x_max",
    )
    values = dict.fromkeys(names, 2.0)
    assert adopted(Logged(Path("x"), values, {}, "jsonl"), {}).distributions == [
        Distribution("len", "a/len/{reduce}", {"mean": "mean", "p95": "p95"}, "completion", "int"),
        Distribution("score", "b/{reduce}_score", {"max": "max", "min": "min"}, "completion", None),
        Distribution("x", "x_{reduce}", {"mean": "mean", "max": "max"}, "completion", None),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("", "", "there is nothing to read in "),
        ("a.jsonl", "no json", "does not hold a JSON object in each line"),
        ("a.json", "{", "is no JSON"),
        ("a.jsonl", '{"step": 3, "text": "x"}', "has no number under a name"),
        ("a.csv", "x", "there is nothing to read in "),
    ],
)
def test_what_is_no_log(name: str, text: str, message: str, tmp_path: Path) -> None:
    """The error says what there could be."""
    path = tmp_path / name if name else tmp_path
    if name:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read(path)
    assert caught.value.code == "DL607" and message in caught.value.message


def test_no_file_is_replaced(cli: Cli, tmp_path: Path) -> None:
    """One that is there stays."""
    MINE.parent.mkdir(parents=True)
    MINE.write_text("run: {name: mine}\n")
    found = cli("init", "mine", "--from", str(DATA / "openrlhf.txt"))
    assert (found.code, MINE.read_text()) == (2, "run: {name: mine}\n")
    assert "exists already" in found.err
    assert cli("init", "--from", str(DATA / "openrlhf.txt")).out.splitlines()[-1:] == ["run: {project: adopted}"]


@pytest.mark.parametrize("preset", ["grpo", "trl_grpo", "maxent_grpo", "verl_ppo"])
def test_a_preset_is_taken_for_its_own_names(preset: str, cli: Cli, tmp_path: Path) -> None:
    """Whatever its modes put before them, of training too."""
    plan = declog.plan(preset)
    templates = [mode.prefix + name for mode in plan.modes.values() for name in plan.names() if name[:1] != "{"]
    names = {re.sub(r"\{\w+\}", "mean", template) for template in templates}
    source = tmp_path / "names.txt"
    source.write_text("\n".join(names) + "\n")
    out = cli("init", "mine", "--from", str(source)).out
    assert f"defaults: [{preset}, _self_]" in MINE.read_text().splitlines()
    assert f"  {len(names)} names computed, 0 passed through" in out.splitlines()


CLAIMED: dict[str, tuple[list[str], list[str]]] = {
    "labels that no metric of it has": (
        ["reward", "kl", "reward_p95_by_source/gsm8k", "reward_p95_by_source/math"],
        ["reward_p95_by_source/gsm8k", "reward_p95_by_source/math"],
    ),
    "members of a family": (["reward", "rewards/correct/mean", "rewards/format/std"], []),
    "a reduction that it does not have": (
        ["reward", "rewards/correct/mean", "rewards/correct/p99"], ["rewards/correct/p99"],
    ),
    "a mode of its own": (["reward", "kl", "eval/reward", "eval/kl"], []),
    "a mode that it does not have": (["reward", "kl", "loss", "validation/reward"], ["validation/reward"]),
    "another separator": (["reward", "ratio/mean", "ratio/max", "eval_reward"], ["eval_reward"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CLAIMED)
def test_a_name_is_claimed_only_where_the_plan_logs_it(case: str, cli: Cli, tmp_path: Path) -> None:
    """Families, labels, reductions and modes: whatever the written profile's plan does not have passes through."""
    names, passed = CLAIMED[case]
    source = tmp_path / "names.txt"
    source.write_text("\n".join(names) + "\n")
    out = cli("init", "mine", "--from", str(source)).out
    assert f"  {len(names) - len(passed)} names computed, {len(passed)} passed through" in out.splitlines()
    made = declog.plan(MINE)
    for name in set(names) - set(passed):
        templates = [mode.prefix + each for mode in made.modes.values() for each in made.names()]
        assert any(
            re.fullmatch(re.sub(r"\\\{\w+\\\}", ".+", re.escape(each)), name) for each in templates if each[0] != "{"
        )
    assert all(f"#   {name}" in MINE.read_text() or name in MINE.read_text() for name in passed)
