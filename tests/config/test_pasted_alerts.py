"""Answers about alerts are pasted: they fire where they were meant to, in one mode, behind a step, for one function."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import declog
from declog.config.problems.refused_run import problems
from declog.errors import Problem
from tests.config.test_pasted_answers import problems_of

GRPO = "defaults: [grpo, _self_]\n"
TRL = "defaults: [trl_grpo, _self_]\n"


def pasted(text: str, problem: Problem) -> dict[str, Any]:
    """A file with the edit of a problem with one of its alerts: metrics beside it, and that alert anew."""
    config: dict[str, Any] = yaml.safe_load(text)
    fix = str(problem.fix).partition("; or delete it")[0]
    metrics, _, alert = fix.partition("`, and `")
    if alert:
        config["metrics"] = {
            **config.get("metrics", {}),
            **yaml.safe_load(f"{{{metrics.partition('`')[2]}}}")["metrics"],
        }
    config["alerts"].pop(str(problem.path[1]), None)
    config["alerts"] |= yaml.safe_load(f"{{{alert.strip('`') or fix.rpartition(', or: ')[2]}}}")
    return config


def alerts_of(config: Mapping[str, Any], folder: Path) -> list[tuple[int, str]]:
    """The alerts of six steps, whose rewards fall as those of an evaluation behind every second step rise."""
    (folder / "pasted.yaml").write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    with declog.start(str(folder / "pasted.yaml"), ["declog.sinks=[]"], output_dir=folder) as log:
        for step in range(6):
            with log.step(step):
                log.observe(reward=[0.9 - 0.1 * step, 0.8 - 0.1 * step])
                if step % 2:
                    with log.mode("eval"):
                        log.observe(reward=[0.1 * step, 0.1 * step + 0.1])
        log.written()
        return [(step, alert.name) for step, alert in log.alerts if alert.name in config["alerts"]]


@pytest.mark.parametrize(
    "alerts",
    [
        "{eval/reward: {below: 0.25}}", "{eval_reward: '< 0.25'}", "{reward_eval: {below: 0.25}}",
        "{val/reward: {below: 0.25}}", "{ev: {metric: eval/reward, below: 0.25}}",
        "{ev: {metric: reward, below: 0.25, mode: eval}}",
    ],
)  # fmt: skip
def test_an_alert_about_an_evaluation_is_judged_by_evaluations(alerts: str, tmp_path: Path) -> None:
    """Class: each way to say so; the first evaluation alone is so low, and the last step of training is not asked."""
    text = f"{GRPO}alerts: {alerts}\n"
    config = pasted(text, problems_of(f"alerts: {alerts}\n", tmp_path, header=GRPO)[0])
    assert [step for step, _ in alerts_of(config, tmp_path)] == [1]


@pytest.mark.parametrize("key", ["after", "warmup", "start", "min_step"])
def test_both_bounds_stay_behind_a_step(key: str, tmp_path: Path) -> None:
    """Class: each key for it; above at first, which is not asked yet, and below in the end."""
    text = f"alerts: {{reward: {{below: 0.4, above: 0.7, {key}: 4}}}}\n"
    problem = problems_of(text, tmp_path, header=GRPO)[0]
    assert problem.fix == 'reward: {when: "(reward > 0.7 or reward < 0.4) and step >= 4"}'
    config = {**yaml.safe_load(GRPO + text), "alerts": yaml.safe_load(f"{{{problem.fix}}}")}
    assert alerts_of(config, tmp_path)[0] == (5, "reward")


@pytest.mark.parametrize("alert", ["eval_reward: '< 2'", "eval_loss: '> 4'", "format_reward: '< 0.3 for 2'"])
def test_the_edits_for_alerts_on_what_trl_shows_compile(alert: str, tmp_path: Path) -> None:
    """Class: a metric in a mode, a formula of several, and one reward function."""
    text = f"alerts: {{{alert}}}\n"
    config = pasted(TRL + text, problems_of(text, tmp_path, header=TRL)[0])
    assert problems_of(yaml.safe_dump({**config, "defaults": ["trl_grpo", "_self_"]}), tmp_path, header="") == []


@pytest.mark.parametrize("name", ["grad_norm", "epoch", "learning_rate"])
@pytest.mark.parametrize("preset", ["trl_grpo", "trl_rloo", "trl_async_grpo", "trainer"])
def test_a_number_that_a_trainer_reports_gets_its_metric(preset: str, name: str, tmp_path: Path) -> None:
    """Class: presets of trainers; the alert stays as it is, beside the metric that the answer defines."""
    header = f"defaults: [{preset}, _self_]\n"
    for alert in (f"{name}: '> 10'", f"big: {name} > 10"):
        (problem,) = problems_of(f"alerts: {{{alert}}}\n", tmp_path, header=header)
        assert f"metrics: {{{name}: {{observe: step}}}}" in str(problem.fix)
        text = f"metrics: {{{name}: {{observe: step}}}}\nalerts: {{{alert}}}\n"
        assert problems_of(text, tmp_path, header=header) == []


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("declog.metrics.high=p95(reward),p90(reward)", '"p95(reward)","p90(reward)"'),
        ("declog.alerts.kl=> 0.5 for 3,> 0.8", '"> 0.5 for 3","> 0.8"'),
        ("+declog.metrics.high={expr: max(reward)},mean", '{expr: "max(reward)"},mean'),
    ],
)
def test_each_text_of_a_sweep_has_its_quotes(override: str, values: str) -> None:
    """Class: values that Hydra cannot read, between commas of no bracket."""
    (problem,) = problems(["-m", override], [])
    assert shlex.split(str(problem.fix)) == [f"++{override.lstrip('+').partition('=')[0]}={values}"]


def test_an_override_of_a_condition_on_an_evaluation_has_both_overrides(tmp_path: Path) -> None:
    """The metric of the mode, and the condition with it: as words of a shell, after which nothing is wrong."""
    with pytest.raises(declog.ConfigError) as raised:
        declog.plan(declog.compose("grpo", ['+declog.alerts.ev="eval/reward < 0.4"']))
    (problem,) = raised.value.problems
    declog.plan(declog.compose("grpo", shlex.split(str(problem.fix))))


@pytest.mark.parametrize(("alert", "steps"), [
    ("{when: reward_spread > 1, for: 2}", [3]), ("{when: reward_spread > 1}", [2]), ("{above: 1.1}", [2]),
])  # fmt: skip
def test_a_condition_under_the_id_of_a_presets_alert(alert: str, steps: list[int], tmp_path: Path) -> None:
    """Class: whichever says it by `when`; the pasted alert is the user's alone, with no text of the preset's."""
    preset = "{below: 0, for: 3, level: error, text: 'of the preset: {reward}'}"
    if "when" not in alert:
        preset = preset.replace("below: 0", "when: reward < 0")
    (tmp_path / "declog").mkdir()
    metrics = "metrics: {reward: {observe: completion}, reward_spread: max(reward)}\n"
    (tmp_path / "declog" / "base.yaml").write_text(f"run: {{name: base}}\n{metrics}alerts: {{reward: {preset}}}\n")
    mine = tmp_path / "declog" / "mine.yaml"
    header = "defaults: [base, _self_]\n"
    (problem,) = problems_of(f"alerts: {{reward: {alert}}}\n", tmp_path, header)
    edit = str(problem.fix).partition(", in place of the preset's; another id has both")[0]
    mine.write_text(f"{header}alerts: {{{edit}}}\n", encoding="utf-8")
    with declog.start(str(mine), ["declog.sinks=[]"], output_dir=tmp_path) as log:
        for step in range(4):
            with log.step(step):
                log.observe(reward=[0.5, 0.9] if step < 2 else [1.2, 1.3])
        log.written()
        fired = [(step, alert.level, alert.text) for step, alert in log.alerts]
    assert fired[0] == (steps[0], "warn", fired[0][2]) and "of the preset" not in fired[0][2]


@pytest.mark.parametrize(
    "alert",
    [
        "{when: reward < 0.6 for 3}", "{when: 'reward < 0.6, for: 3'}", "'reward < 0.6, for: 3'",
        "{when: reward drops below 0.6 over three steps}", "[reward < 0.6, {for: 3}]",
        "{condition: reward < 0.6 for 3 consecutive steps}", "{when: [reward < 0.6, for 3]}",
    ],
)  # fmt: skip
def test_a_duration_inside_a_condition(alert: str, tmp_path: Path) -> None:
    """Class: `for` in the text or in the list of a condition; the edit fires at the third log event in a row."""
    text = f"alerts: {{low: {alert}}}\n"
    config = pasted(GRPO + text, problems_of(text, tmp_path, header=GRPO)[0])
    assert config["alerts"] == {"low": {"when": "reward < 0.6", "for": 3}}
    assert alerts_of(config, tmp_path)[0] == (5, "low")
