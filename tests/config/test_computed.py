"""A layer that says how a metric is computed takes the place of what layers below it said of that.

The class: an `expr` or a `formula` over a metric of a preset, which keeps its name, its tags and what it is about; of a
file, a shell, an application's file and an application's shell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import declog
from declog.config.compose import compose, config_of
from declog.config.overrides import written
from declog.testing import MemorySink, run_config_tests
from tests import forks

APP = """
import json
import hydra
import declog
from declog.config.compose import config_of

@hydra.main(version_base="1.3", config_path=".", config_name="app")
def main(cfg):
    print(json.dumps([config_of(cfg)["metrics"], declog.plan(cfg).fingerprint]))

main()
"""
# A preset, edits of one of its metrics in their order, and the keys that the metric then has.
CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("grpo", "length", {"expr": "length * 2"},
     {"expr": "length * 2", "reduce": ["mean", "min", "max"], "name": "completions/{reduce}_length"}),
    ("grpo", "reward", {"formula": "reward_std / 2"}, {"formula": "reward_std / 2", "tags": ["core"]}),
    ("grpo", "entropy", {"expr": "2 * entropy", "prefer": "given_entropy"},
     {"expr": "2 * entropy", "reduce": "mean", "prefer": "given_entropy", "nan": "propagate", "tags": ["core"]}),
    ("grpo", "kl", {"where": "kl > 0", "expr": "kl"},
     {"expr": "kl", "where": "kl > 0", "reduce": "mean", "nan": "propagate", "enabled": "beta != 0", "tags": ["core"]}),
    ("ppo", "explained_variance", {"expr": "values", "reduce": "std"},
     {"expr": "values", "reduce": "std", "tags": ["core"]}),
]  # fmt: skip


@pytest.mark.parametrize(("preset", "name", "edits", "keys"), CASES, ids=lambda case: case if type(case) is str else "")
def test_what_is_said_takes_the_place(
    preset: str, name: str, edits: dict[str, Any], keys: dict[str, Any], tmp_path: Path
) -> None:
    """In each way that reaches declog: the same entry, and the same plan."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "declog").mkdir()
    mine = {"defaults": [preset, "_self_"], "metrics": {name: edits}}
    (tmp_path / "declog/mine.yaml").write_text(yaml.safe_dump(mine, sort_keys=False))
    words = [f"declog.metrics.{name}.{key}={written(value)}" for key, value in edits.items()]
    applications = {
        "shell": ({"defaults": [{"declog": preset}, "_self_"]}, [f"++{word}" for word in words]),
        "one": ({"defaults": [{"declog": preset}, "_self_"]}, [f"++declog.metrics.{name}={written(edits)}"]),
        "file": ({"defaults": [{"declog": preset}, "_self_"], "declog": {"metrics": {name: edits}}}, []),
        "mine": ({"defaults": [{"declog": "mine"}, "_self_"]}, []),
    }
    configs: dict[str, Any] = {"file": compose("mine", config_dir=tmp_path), "shell": compose(preset, words)}
    wanted = declog.plan(configs["file"]).fingerprint
    for way, config in configs.items():
        assert (held(config_of(config)["metrics"][name]), declog.plan(config).fingerprint) == (keys, wanted), way
    for way, (config, lines) in applications.items():
        (tmp_path / "app.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        done = forks.run([str(tmp_path / "app.py"), *lines], cwd=tmp_path)
        assert done.returncode == 0, (way, done.stderr)
        metrics, plan = json.loads(done.stdout)
        assert (held(metrics[name]), plan) == (keys, wanted), way


def held(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of an entry, less its nulls."""
    return {key: value for key, value in entry.items() if value is not None}


def test_the_last_of_two_lines_holds() -> None:
    """A line means the same over any layer: of two ways the later one drops the earlier, in either order."""
    for first, last in (("expr", "formula"), ("formula", "expr")):
        ways = {"expr": "entropy", "formula": "entropy"}
        config = compose("grpo", [f"declog.metrics.kl.{way}={ways[way]}" for way in (first, last)])
        assert [way for way in ways if held(config_of(config)["metrics"]["kl"]).get(way)] == [last]
        declog.plan(config)


LENGTHS = torch.tensor([2, 4, 6, 8])
ENTROPY = torch.tensor([[0.2, 0.9], [0.4, 1.1], [0.1, 0.3], [2.0, 0.5]])


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        ("length: {expr: length + 1}", {"completions/mean_length": 6.0}),
        ("length: {where: length > 3}", {"completions/mean_length": 6.0}),
        ("length: {reduce: p50}", {"completions/p50_length": 5.0}),
        ("length: {formula: 2 * entropy}", {"completions/length": 14.0}),
        ("entropy: {where: step > 0}", {"entropy": 7.0}),
        ("some: {where: per_token > 0.45}", {"some": (0.9 + 1.1 + 2.0 + 0.5) / 4}),
        ("some: {by: weights}", {"some/2": (0.2 + 0.9) / 2, "some/8": (2.0 + 0.5) / 2}),
        ("some: {weight: weights}", {"some": float((ENTROPY.mean(1) * LENGTHS).sum() / LENGTHS.sum())}),
        ("some: {where: step > 0}", {"some": 7.0}),
    ],
)
def test_a_number_stands_for_all_rows_only(metric: str, values: dict[str, float], tmp_path: Path) -> None:
    """The class: a metric of some rows, where a number of all of them comes, too; and rows that stand for rows.

    `some` is a metric of tokens that prefers a number, as presets have them.
    """
    metrics = yaml.safe_load(metric)
    if "some" in metrics:
        metrics["some"] |= {"expr": "per_token", "prefer": "number"}
    signals = {"update": {"per_token": "token", "number": "step", "weights": "completion int"}}
    config = {"defaults": ["grpo", "_self_"], "sinks": "none", "signals": signals, "metrics": metrics}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    sink = MemorySink()
    with declog.start(tmp_path / "mine.yaml", sinks=[sink], output_dir=tmp_path / "run") as log, log.step(1):
        log.observe(length=LENGTHS, prompt=["a", "a", "b", "b"], reward=LENGTHS.float())
        mask = torch.ones_like(ENTROPY, dtype=torch.bool)
        log.observe(per_token=ENTROPY, weights=LENGTHS, completion_mask=mask, number=7.0, entropy=7.0)
    assert {key: sink.scalars[1][key] for key in values} == pytest.approx(values)


def test_the_name_of_one_reduction() -> None:
    """`{reduce}` of a template is what reduces, of one reduction too; of a formula there is none."""
    for edit, name in (
        ("reduce=p95", "completions/p95_length"),
        ("reduce=null", "completions/mean_length"),
        ("reduce=p99.9", "completions/p99_9_length"),
        ("formula=entropy", "completions/length"),
    ):
        plan = declog.plan(compose("grpo", [f"declog.metrics.length.{edit}"]))
        assert [item.template for op in plan.outputs if op.key == "length" for item in op.names] == [name]


def test_a_formula_over_a_formula_keeps_what_both_have(tmp_path: Path) -> None:
    """Its smoothing, and what it is where it is absent, say nothing of rows."""
    config = {"signals": {"any": {"x": "completion"}}, "run": {"name": "mine"},
              "metrics": {"c": "mean(x)", "s": {"formula": "c * 2", "combine": "ema(0.9)", "empty": 0}}}  # fmt: skip
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    entry = config_of(compose(tmp_path / "mine.yaml", ["metrics.s.formula=c * 3"]))["metrics"]["s"]
    assert held(entry) == {"formula": "c * 3", "combine": "ema(0.9)", "empty": 0}


CHANGED = """
import json
import hydra
import declog
from declog.config.compose import config_of

@hydra.main(version_base="1.3", config_path=".", config_name="app")
def main(cfg):
    {code}
    entry = config_of(cfg)["metrics"].get("kl")
    declog.plan(cfg)
    print(json.dumps(entry))

main()
"""
KEPT = {"formula": "entropy", "enabled": "beta != 0", "tags": ["core"]}


@pytest.mark.parametrize(
    ("words", "code", "entry"),
    [
        (["declog.metrics.kl.expr=kl", "~declog.metrics.kl"], "pass", None),
        (["++declog.metrics.kl.formula=entropy", "declog.metrics.kl=null"], "pass", None),
        (["++declog.metrics={kl: {formula: entropy}}"], "pass", KEPT),
        (["++declog={metrics: {kl: {formula: entropy}}}"], "pass", KEPT),
        (["++declog.metrics.kl.formula=entropy"], "cfg.declog.metrics.kl = dict(expr='kl', reduce='max')",
         {"expr": "kl", "reduce": "max"}),
    ],
)  # fmt: skip
def test_an_application_that_changes_it_again(words: list[str], code: str, entry: Any, tmp_path: Path) -> None:
    """Class: lines of a shell behind each other, in any form, and code that has the last word."""
    (tmp_path / "app.yaml").write_text("defaults: [{declog: grpo}, _self_]\n")
    (tmp_path / "app.py").write_text(CHANGED.replace("{code}", code))
    done = forks.run([str(tmp_path / "app.py"), *words], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found if found is None else held(found)) == entry


def test_a_config_of_a_test_is_a_layer(tmp_path: Path) -> None:
    """What it says of a metric takes the place, as a file's line does."""
    tests = {"ten": {"with": {"metrics": {"length": {"expr": "length * 10"}}},
                     "observe": {"length": [1, 3], "reward": [0, 1]}, "expect": {"length.mean": 20}}}  # fmt: skip
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"defaults": ["grpo", "_self_"], "tests": tests}))
    assert run_config_tests(tmp_path / "mine.yaml", select="ten") == ["ten"]
