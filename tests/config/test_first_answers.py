"""The first answer to a mistake is the last one: with the fix in its place nothing is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import declog
from declog.language.keys import SECTIONS

SINKS = "defaults: [grpo, _self_]\nsinks: [console, jsonl, wandb]\n"
TABLE = SINKS + "tables: {worst: {columns: [prompt, reward], %s}}"
MISTAKES = [
    (SINKS + "sink_options: {wandb: {enabled: false}}", "sinks: [console, jsonl]"),
    (SINKS + "sink_options: {wandb: {disabled: true}}", "sinks: [console, jsonl]"),
    (SINKS + "sink_options: {wandb: false}", "sinks: [console, jsonl]"),
    (SINKS + "sink_options: {wandb: null}", "sinks: [console, jsonl]"),
    (SINKS + "sink_options: {wandb: {rename: {kl: policy/kl}}}", "metrics: {kl: {name: policy/kl}}"),
    (SINKS + "sink_options: {wandb: {name: {kl: policy/kl}}}", "metrics: {kl: {name: policy/kl}}"),
    (SINKS + "rename: {frac_reward_zero_std: unanimous}", "metrics: {zero_std: {name: unanimous}}"),
    ("sinks: {console: {}, parquet: null}", "sinks: [console]"),
    ("sinks: {console: true, parquet: false}", "sinks: [console]"),
    ("sinks: {console: null, parquet: {enabled: false}}", "sinks: [console]"),
    ("sinks: {console: null, parquet: null}", "sinks: [console, parquet]"),
    ("sinks: [console, {parquet: false}]", "sinks: [console]"),
    ("sinks: [console, {parquet: null}]", "sinks: [console, parquet]"),
    ("sinks: [console, -wandb]", "sinks: [console]"),
    ("sinks: [console, wandb, -wandb]", "sinks: [console]"),
    (TABLE % "sinks: [jsonl]", "to: {jsonl: true}"),
    (TABLE % "sinks: jsonl", "to: {jsonl: true}"),
    (TABLE % "sink: jsonl", "to: {jsonl: true}"),
    (TABLE % "to: [jsonl, wandb]", "to: {jsonl: true, wandb: true}"),
    (SINKS + "metrics: {frac_reward_zero_std: false}", "zero_std: null"),
    (SINKS + "metrics: {frac_reward_zero_std: null}", "zero_std: null"),
    (SINKS + "metrics: {frac_reward_zero_std: {enabled: false}}", "metrics: {zero_std: {enabled: false}}"),
    (SINKS + "metrics: {frac_reward_zero_std: {every: 10}}", "metrics: {zero_std: {every: 10}}"),
]


def mended(text: str, path: tuple[Any, ...], fix: str) -> str:
    """A config with the entry of a fix in the place of what is wrong."""
    data = yaml.safe_load(text)
    entry = yaml.safe_load(fix)
    if entry.keys() & {*SECTIONS, "sinks"}:
        del data[path[0]]
        data.update(entry)
    else:
        place = data
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]
        place.update(entry)
    return yaml.safe_dump(data, sort_keys=False)


@pytest.mark.parametrize(("text", "fix"), MISTAKES, ids=lambda text: text.splitlines()[-1])
def test_the_first_answer_is_the_last(text: str, fix: str, tmp_path: Path) -> None:
    """Of sinks that are switched off, of names, and of what has another id than its name."""
    text = text if text.startswith("defaults") else f"defaults: [grpo, _self_]\n{text}"
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(declog.ConfigError) as error:
        declog.plan(str(file))
    (problem,) = error.value.problems
    assert problem.fix == fix
    file.write_text(mended(text, problem.path, fix))
    declog.plan(str(file))


def test_a_list_that_only_takes_a_sink_away() -> None:
    """It takes the place of a preset's: the answer shows a list of sinks that are used."""
    for line in ("sinks=[-wandb]", "sinks=[~wandb]"):
        with pytest.raises(declog.ConfigError, match="a list names those that are used") as error:
            declog.plan("grpo", [line])
        assert str(error.value.problems[0].fix).startswith("'declog.sinks=[console, jsonl]' (")
