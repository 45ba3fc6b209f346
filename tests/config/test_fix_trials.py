"""Fixes are tried before they are shown: what is printed works, and an entry hides nothing behind its first mistake."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

import declog

BASE = """
signals: {any: {reward: completion, source: completion text}}
metrics: {reward: mean}
schemas: {samples: {reward: float}}
sinks: [jsonl]
"""


def problems(text: str) -> list[tuple[str, str | None]]:
    """The places and fixes of what is wrong with a config."""
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(config(text))
    return [(problem.key, problem.fix) for problem in caught.value.problems]


def config(text: str) -> dict[str, Any]:
    """The base with further entries."""
    data: dict[str, Any] = yaml.safe_load(BASE)
    for section, entries in yaml.safe_load(text).items():
        data[section] = {**data.get(section, {}), **entries}
    return data


@pytest.mark.parametrize(
    ("text", "key", "fix"),
    [
        pytest.param("alerts: {reward: {below: 0.1, action: stop}}", "alerts.reward.action", "do: [stop]", id="key"),
        pytest.param(
            "tables: {good: {schema: samples, filter: reward > 0.9, limit: 10}}", "tables.good.limit",
            'filter: {where: "reward > 0.9", first: 10}', id="beside what a key says already",
        ),
    ],
)  # fmt: skip
def test_the_edit_behind_an_edit_is_shown(text: str, key: str, fix: str) -> None:
    """Pasted in place of the entry's keys of those names, it leaves no problem."""
    assert problems(text) == [(key, fix)]
    data = config(text)
    section, name, wrong = key.split(".")
    entry = {key: value for key, value in data[section][name].items() if key != wrong}
    data[section][name] = {**entry, **yaml.safe_load(fix)}
    declog.plan(data)


def test_what_an_entry_hides_behind_its_first_mistake_is_told() -> None:
    """A wrong key is no reason to tell of an unknown name only in the next round."""
    said = problems("metrics: {p: {expr: rewrad, ovr: step}}")
    assert said == [("metrics.p.ovr", "did you mean `over`?"), ("metrics.p.expr", "did you mean `reward`?")]


def test_what_follows_from_an_example_is_not_told() -> None:
    """The fix that declares a signal shows a type; what else that type would need is the user's to say."""
    assert [key for key, _ in problems("metrics: {p: {expr: reward, by: difficulty}}")] == ["metrics.p.by"]


def test_a_fix_that_leads_nowhere_stays() -> None:
    """Words in a fix that are no edit, and edits whose own mistake has none, are printed as they are."""
    ((_, fix),) = problems("metrics: {p: mean(no_such_thing)}")
    assert fix is not None
    assert fix.startswith("declare what you observe")


@pytest.mark.parametrize(
    ("expr", "fix"),
    [
        ("ema(clip(reward, 0, 1), 10)", '{expr: "clip(reward, 0, 1)", over: step, combine: ema(0.9)}'),
        ("rolling_max(clip(reward, 0, 1), 10)", '{expr: "clip(reward, 0, 1)", over: step, combine: rolling_max(10)}'),
        ("sum_by(clip(reward, 0, 1), source)", '{expr: "clip(reward, 0, 1)", reduce: sum, by: source}'),
    ],
)
def test_an_expression_with_commas_stays_whole_in_an_entry(expr: str, fix: str) -> None:
    """YAML would end it at its first comma: it stands in quotes, and the entry compiles."""
    wrong = yaml.safe_dump({"metrics": {"p": expr}})
    assert problems(wrong) == [("metrics.p", fix)]
    declog.plan(config(f"metrics: {{p: {fix}}}"))
