"""The class: the fix of a mistake in an override is an override, and not YAML that belongs into a file."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import declog

MISTAKES = [
    "alerts.broken_reward.do=stop",
    "alerts.kl.gt=0.5",
    "alerts.kl=0.5",
    "alerts.kl=[above 0.5]",
    "about.kl=divergence",
    "every=ten",
    "metrics.frac_reward_zero_std.every=10",
    "metrics.frac_reward_zero_std=false",
    "metrics.frac_reward_zero_std=null",
    "metrics.kl=none",
    "metrics.p=kl.rolling(10).mean()",
    "metrics.p=mean(reward) where length > 3",
    "metrics.p=mean(rewrd)",
    "metrics.reward=[mean,max]",
    "metrics.reward.reduce=0.95",
    "metrics.reward.reduce=avarage",
    "metrics=[reward,kl]",
    "modes.test=true",
    "+metrics.p={expr: reward, redcue: max}",
    '+metrics.p={expr: "ema(reward, 0.9)"}',
    '+metrics.p={expr: "first(reward, over=completion, by=-length)"}',
    "+metrics.reward.reduction=mean",
    "+num_generations=4",
    "output_dir={path: x}",
    "profile=slm",
    "run=lr3",
    "schemas.samples.prompt=varchar(20)",
    "schemas.samples.reward=text",
    "+signals.source=completion text",
    "sink_options.console=false",
    "sink_options.console=null",
    "sink_options.console.enabled=false",
    "sink_options.console.rename={kl: policy/kl}",
    "sink_options.wandb=slim",
    "tables.samples.filter=random(8)",
    "tables.samples.rows=8",
    "tables.samples.sinks=[console]",
    "tables.samples=[prompt,reward]",
    "~console",
    "~metrics.frac_reward_zero_std",
    "~sink_options.console",
]


@pytest.mark.parametrize("line", MISTAKES)
def test_the_fix_of_an_override_is_pasted(line: str) -> None:
    """Each fix holds an override, quoted for a shell, and with it in place of the mistake the config compiles."""
    with pytest.raises(declog.ConfigError) as error:
        declog.plan("grpo", [line])
    (problem,) = error.value.problems
    words = shlex.split(str(problem.fix).split("\n")[0].replace("filter's", "filter"))
    edits = [word.rstrip(",") for word in words if word.lstrip("+~").startswith("declog.")]
    assert len(edits) == 1
    declog.plan("grpo", edits)


def test_a_signal_that_some_configs_of_a_sweep_declare(tmp_path: Path) -> None:
    """The override that declares it for one config breaks another: the edit fits both."""
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [grpo, _self_]\nsignals: {rollout: {topic: completion text}}\n")
    with pytest.raises(declog.ConfigError) as refused:
        declog.plan(file, ["+declog.signals.any.topic=completion text"])
    edit = str(refused.value.problems[0].fix).partition("' in its place")[0].removeprefix("'")
    assert edit == "++declog.signals.rollout.topic=completion text"
    for config in (file, "grpo"):
        assert "topic" in declog.plan(config, [edit, "+metrics.by_topic={expr: reward, by: topic}"]).signal_names


def test_an_expression_with_commas_in_a_metric_that_the_fix_defines() -> None:
    """The metric has the whole expression, and with both overrides the config compiles."""
    with pytest.raises(declog.ConfigError) as refused:
        declog.plan("grpo", ["+declog.metrics.f={formula: ema(maximum(kl, 0), 10)}"])
    defined, named = shlex.split(str(refused.value.problems[0].fix))
    assert defined == '++declog.metrics.maximum_kl_smooth={formula: "maximum(kl, 0)", combine: "ema(0.9)"}'
    declog.plan("grpo", [defined, named])


@pytest.mark.parametrize("line", ["eval_reward=< 5", "eval_reward.below=5", "reward_eval=< 5"])
def test_an_alert_of_one_mode(line: str) -> None:
    """Class: alerts on a metric of evaluations; two overrides, the metric of that mode and the alert, and no more."""
    with pytest.raises(declog.ConfigError) as refused:
        declog.plan("trl_grpo", [f"+alerts.{line}"])
    metric, alert = map(shlex.split, str(refused.value.problems[0].fix).splitlines())
    assert metric == ["++declog.metrics.reward_eval={expr: reward, over: batch, where: \"mode == 'eval'\"}"]
    assert alert == [f'++declog.alerts.{line[:11]}={{when: "reward_eval < 5.0"}}']
    assert line[:11] in [op.id for op in declog.plan("trl_grpo", [*metric, *alert]).alerts]
