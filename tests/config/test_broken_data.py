"""Data that is broken at random is refused with errors of a config, whatever it is: no answer fails by itself."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import settings

import declog
from tests.conftest import WritePreset

CONFIG = """
signals:
  any: {reward: completion, source: completion text, kl: {axis: token}, mask: {axis: token, type: bool}, loss: step}
axes: {token: {mask: mask}, group: {size: 4}}
metrics:
  reward: mean
  p95: p95(reward)
  long: {expr: reward, where: source == 'a'}
  ratio: {formula: reward / p95}
  kl: {expr: kl, reduce: [mean, std], name: "kl/{reduce}"}
schemas: {s: {reward: float, source: text}}
tables: {t: {schema: s, filter: {key: reward, bottom: 4}, every: 2}, u: {columns: [reward], filter: reward > 1}}
alerts: {reward: "> 1 for 3", x: {when: reward > 1, do: [stop]}}
profiles: {slim: {show: [p95]}}
sinks: [jsonl]
sink_options: {jsonl: {profile: slim, every: 2}}
"""
VALUES: list[Any] = [
    None, 1, -1, 0.5, True, "x", "> 0.5", "mean", "reward", "p95(reward)", "a b c", [], ["a"], [{"a": 1}], {}, {"a": 1},
    {"key": "reward", "top": 4}, "reward > 0.5", [1, 2], "{x}", "5m", "$x", "mean(reward", "step", "completion text",
    {"expr": "reward"}, {"reduce": None}, {"reduce": {"a": 1}}, "no_such", [["a"]], float("inf"), "é",
]  # fmt: skip
KEYS: list[Any] = [
    "expr", "filter", "limit", "action", "key", "where", "name", "by", "x", "metric", "1", 2, "every", "profile",
    "sinks", "reduce", "for", "labels", "window", "group_by", "type", "sort_by", "mode", "after", "keep", "tables",
]  # fmt: skip


def places(data: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values."""
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        yield (*above, key)
        yield from places(value, (*above, key))


def broken(dice: random.Random) -> dict[str, Any]:
    """The config with up to five changes: another value, another key, one more, one less, a map around one."""
    data: dict[str, Any] = yaml.safe_load(CONFIG)
    for _ in range(dice.choice([1, 1, 2, 3, 5])):
        *above, key = dice.choice([*places(data)] or [("x",)])
        holder: Any = data
        for name in above:
            holder = holder[name]
        value = copy.deepcopy(dice.choice(VALUES))
        change = dice.choice(["value", "value", "key", "more", "less", "map"])
        if change == "value" or not isinstance(holder, dict):
            holder[key] = value
        elif change == "key":
            holder[dice.choice(KEYS)] = holder.pop(key, value)
        elif change == "more":
            holder[dice.choice(KEYS)] = value
        elif change == "less":
            holder.pop(key, None)
        else:
            holder[key] = {dice.choice(KEYS): holder.get(key)}
    return data


@pytest.mark.hypothesis
@pytest.mark.parametrize(("way", "many"), [("data", 25), ("data over a preset", 4), ("file", 4)])
def test_every_answer_is_one(way: str, many: int, write_preset: WritePreset) -> None:
    """As a mapping, and as a mapping and a file over a preset; `make soak` breaks many more, anew each time."""
    most = settings.default
    assert most is not None
    dice = random.Random(7 if most.derandomize else None)
    refused = 0
    for _ in range(many * most.max_examples):
        data = broken(dice)
        text = "".join(
            yaml.safe_dump({key: value}, default_flow_style=dice.random() < 0.5) for key, value in data.items()
        )
        try:
            if way == "file":
                write_preset("broken", f"defaults: [grpo, _self_]\n{text}")
            over = {"defaults": ["grpo", "_self_"]} if way == "data over a preset" else {}
            declog.plan("broken" if way == "file" else {**over, **data})
        except declog.ConfigError as error:
            refused += 1
            assert all(problem.text() for problem in error.problems)
        except Exception as error:
            raise AssertionError(data) from error
    assert refused > many * most.max_examples / 2
