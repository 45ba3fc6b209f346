"""Edits that answers show work as they stand: in the file in place of an entry, and as words on the command line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import declog
from declog.errors import Problem
from declog.language.notation import condition
from declog.testing import MemorySink
from tests.config.test_pasted_answers import problems_of

HEADER = "defaults: [grpo, _self_]\naxes: {group: {size: 4}}\n"
# what is wrong, and what the metric or the alert says after the edit
ENTRIES: dict[str, tuple[str, Any]] = {
    "metrics: {w: {formula: sum(reward * length) / sum(length)}}": ("metrics.w", {"formula": "w_1 / w_2"}),
    "metrics: {w: {formula: mean(reward > 0.5) / seconds, tags: [core]}}": (
        "metrics.w", {"formula": "w_1 / seconds", "tags": ["core"]},
    ),
    'metrics: {w: {formula: "corr(length, reward)", combine: rolling(3)}}': (
        "metrics.w", {"expr": "corr(length, reward)", "combine": "rolling(3)"},
    ),
    "metrics: {w: {expr: max(reward), by: group}}": ("metrics.w", {"expr": "max(reward, over=completion)"}),
    "metrics: {w: {expr: entropy, per: prompt}}": (
        "metrics.w", {"expr": "mean(mean(entropy, over=token), over=completion)"},
    ),
    "metrics: {w: {expr: entropy, reduce: max, over: prompt}}": (
        "metrics.w", {"expr": "max(max(entropy, over=token), over=completion)", "reduce": "mean"},
    ),
    "metrics: {w: {formula: diff(length.mean), tags: [core]}}": (
        "metrics.w", {"formula": "length.mean - length_mean_before", "tags": ["core"]},
    ),
    "metrics: {w: {formula: pct_change(reward)}}": ("metrics.w", {"formula": "reward / reward_before - 1"}),
    "alerts: {w: {when: reward.shift(2) > reward, for: 3}}": (
        "alerts.w", {"when": "reward_before_2 > reward", "for": 3},
    ),
    "alerts: {w: {when: max(reward * length) > 3}}": ("alerts.w", {"when": "w_1 > 3"}),
    "alerts: {loss: {outside: [0.2, 0.9], for: 3}}": ("alerts.loss", {"above": 0.9, "below": 0.2, "for": 3}),
    "alerts: {length: {inside: {low: 2, high: 5}}}": ("alerts.length", {"when": "2 < length.mean < 5"}),
    "alerts: {w: {metric: kl, threshold: 0.1, level: error}}": ("alerts.w", {"when": "kl > 0.1", "level": "error"}),
    'alerts: {w: {metric: kl, op: "<", value: 0.1}}': ("alerts.w", {"when": "kl < 0.1"}),
    "alerts: {kl: {inside: [0.1, 0.3]}}": ("alerts.kl", "0.1 < kl < 0.3"),
    "alerts: {kl: {metric: reward, below: 0.3}}": ("alerts.kl", "reward < 0.3"),
    "alerts: {kl: {when: kl > 1, outside: [0.1, 0.3]}}": ("alerts.kl", "kl > 1 or kl > 0.3 or kl < 0.1"),
    "alerts: {kl: {above: 5, inside: [0.1, 0.3], for: 2}}": ("alerts.kl", "kl > 5 or 0.1 < kl < 0.3 for 2"),
    "alerts: {kl: {outside: [0.3, 0.6]}}": ("alerts.kl", "kl > 0.6 or kl < 0.3"),
    "alerts: {kl: {only_if: reward > 0.3}}": ("alerts.kl", "kl > 0.2 and reward > 0.3"),
    "alerts: {kl: {condition: kl > 3}}": ("alerts.kl", "kl > 3"),
    "alerts: {kl: {lt: 0.9}}": ("alerts.kl", "< 0.9"),
    "alerts: {kl: {threshold: 0.5, direction: below}}": ("alerts.kl", "< 0.5"),
    "alerts: {loss: {threshold: 0.5, direction: below, for: 2}}": ("alerts.loss", {"below": 0.5, "for": 2}),
    "alerts: {loss: {operator: '>=', value: 0.3}}": ("alerts.loss", {"when": "loss >= 0.3"}),
    "alerts: {loss: {op: less_than_or_equal, threshold: 0.3}}": ("alerts.loss", {"when": "loss <= 0.3"}),
    "alerts: {kl: {operator: '>=', value: 0.3}}": ("alerts.kl", "kl >= 0.3"),
    "alerts: {loss: {condition: 'not in [0.2, 0.9]'}}": ("alerts.loss", {"above": 0.9, "below": 0.2}),
    "alerts: {loss: {gte: 0.5, lt: 0.9}}": ("alerts.loss", {"when": "0.5 <= loss < 0.9"}),
    "alerts: {loss: {bounds: ['0.2', '0.9']}}": ("alerts.loss", {"above": 0.9, "below": 0.2}),
    "alerts: {w: {when: reward < best_reward}}": ("alerts.w", {"when": "reward < best_reward"}),
    "alerts: {w: {when: reward < highest}}": ("alerts.w", {"when": "reward < highest"}),
    "alerts: {w: {when: reward < 0.9 * highest}}": ("alerts.w", {"when": "reward < 0.9 * highest"}),
    "tables: {samples: {filter: {key: reward, top: 2, random: 4}}}": (
        "tables.samples", {"filter": {"key": None, "top": None, "random": 4}},
    ),
}  # fmt: skip


def pasted(text: str, problem: Problem) -> dict[str, Any]:
    """The data of a file in which the edit of a fix took the place of what is wrong."""
    data, fix = yaml.safe_load(text), str(problem.fix).split("  or  ")[0]
    fix = re.sub(r"(?<=\})(: `over` of a metric|, where it must) .*", "", fix.removeprefix("define it: "))
    here = re.fullmatch(r"write a metric and name it here: `(.+)`, and `(.+)`", fix)
    if here is not None:
        *above, key = problem.path
        data[above[0]][above[1]][key] = here[2]
        fix = here[1]
    edit = yaml.safe_load(f"{{{fix}}}")
    if next(iter(edit)) not in ("metrics", "alerts"):  # an entry
        (name,) = edit
        edit = {str(problem.path[0]): {name: edit[name]} if name == problem.path[1] else {problem.path[1]: edit}}
    for section, entries in edit.items():
        data[section] = {**data.get(section, {}), **entries}
    return data  # type: ignore[no-any-return]


@pytest.mark.parametrize("text", ENTRIES)
def test_an_edit_in_the_file(text: str, tmp_path: Path) -> None:
    """Class: the first edit of an answer in the file, and nothing is wrong; what else the entry says is kept."""
    problem = problems_of(text, tmp_path, HEADER)[0]
    data = pasted(text, problem)
    assert problems_of(yaml.safe_dump(data), tmp_path, HEADER) == []
    place, entry = ENTRIES[text]
    section, name = place.split(".")
    assert data[section][name] == entry  # a text replaces the preset's alert


def words_of(path: str, value: Any) -> str:
    """A value as an override, which adds what is not there."""
    from declog.config.overrides import written

    return f"{path}={written(value)}"


@pytest.mark.parametrize("text", ENTRIES)
def test_an_edit_on_the_command_line(text: str) -> None:
    """Class: the same as an override: each word of the fix is one, they take its place, and nothing is wrong."""
    ((section, entries),) = yaml.safe_load(text).items()
    ((name, entry),) = entries.items()
    path = f"{section}.{name}" if section != "tables" else "tables.samples.filter"
    override = words_of(path, entry if section != "tables" else entry["filter"])
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(declog.compose("grpo", ["axes.group.size=4", override]))
    fix = str(caught.value.problems[0].fix).split("  or  ")[0]
    words = [word for word in shlex.split(re.sub(r"( \(`over` of|, where it must) .*", "", fix)) if "declog." in word]
    kept = [] if any(path in word for word in words) else [override]
    composed = declog.compose("grpo", ["axes.group.size=4", *(word.replace("declog.", "", 1) for word in words), *kept])
    declog.plan(composed)
    place, said = ENTRIES[text]
    section, name = place.split(".")
    if isinstance(said, str):
        assert composed.data[section][name] == condition(said, name)
    else:
        assert composed.data[section][name].items() >= said.items()


def test_what_a_formula_computes_of_rows(tmp_path: Path) -> None:
    """The metrics of the answer give the number that was meant, on rows of two steps."""
    config = {
        "run": {"name": "rows"},
        "signals": {"any": {"reward": {"axis": "completion"}, "length": {"axis": "completion", "type": "int"}}},
        "metrics": {"length": "summary(length)", "w": {"formula": "sum(reward * length) / sum(length)"}},
    }
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(config)
    metrics = yaml.safe_load(f"{{{caught.value.problems[0].fix}}}")["metrics"]
    sink, rewards, lengths = (
        MemorySink(),
        np.array([[0.0, 2.0, 1.0], [3.0, 5.0, 0.5]]),
        np.array([[1, 2, 3], [9, 2, 4]]),
    )
    right = {**config, "metrics": {"length": "summary(length)", **metrics}}
    with declog.start(right, sinks=[sink], output_dir=tmp_path) as log:
        for step in range(2):
            with log.step(step):
                log.observe(reward=rewards[step], length=lengths[step])
    wanted = (rewards * lengths).sum(1) / lengths.sum(1)
    assert [sink.scalars[step]["w"] for step in range(2)] == pytest.approx([*wanted])


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (
            "metrics: {w: {expr: 0.5 * reward + max(0, 1 - reward)}}",
            '{"expr": "0.5 * reward + maximum(0, 1 - reward)"}',
        ),
        ("metrics: {w: max(0, 1 - reward)}", '"maximum(0, 1 - reward)"'),
        ("metrics: {w: clip(rewrd, 0, 1)}", '"clip(reward, 0, 1)"'),
        ("metrics: {w: {expr: where(reward > 0, 1, 0)}}", '{"expr": "1 if reward > 0 else 0"}'),
        ("metrics: {w: {expr: quantile(reward, 0.9)}}", '{"expr": "p90(reward)"}'),
        ("alerts: {w: max(reward, 0.5) > 1}", '{"when": "maximum(reward, 0.5) > 1"}'),
    ],
)
def test_a_text_that_yaml_cut_and_that_is_wrong(text: str, fix: str, tmp_path: Path) -> None:
    """Class: one problem, whose edit mends the cut and the mistake behind it at once."""
    (problem,) = problems_of(text, tmp_path, HEADER)
    edit = yaml.safe_load(f"{{{problem.fix}}}")
    section, entry = text.partition(":")[0], yaml.safe_load(fix)
    assert edit == ({"w": entry} if "w" in edit else entry)
    assert problems_of(yaml.safe_dump({section: {"w": entry}}), tmp_path, HEADER) == []


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        ("reduce=p50", True), ("where='length > 3'", True), ("over=step", True), ("weight=length", True),
        ("by='length > 3'", True), ("'combine=ema(0.9)'", True), ("reduce=mean", False),
        ("'reduce=[mean, p95]'", False), ("name=score", False), ("every=2", False), ("log=false", False),
        ("where=null", False),
    ],
)  # fmt: skip
def test_a_preset_s_metric_of_other_rows(value: str, changes: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Class: keys that change the number have the note of a changed expression, and no other keys."""
    from declog.cli import main

    (word,) = shlex.split(f"metrics.reward.{value}".replace("metrics.reward.'", "'metrics.reward."))
    assert main(["check", "grpo", word]) == 0
    assert ("computes something else now" in " ".join(capsys.readouterr().out.split())) is changes


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        ({"where": "reward > avg"}, ["reward > mean(reward, over=completion)", "reward > 0.5"]),
        ({"where": "avg <= reward and length > 3"}, ["mean(reward, over=completion) <= reward and length > 3", None]),
        ({"by": "reward > avg"}, ["reward > mean(reward, over=completion)", "reward > 0.5"]),
        ({"where": "entropy > tokens", "expr": "entropy"}, ["entropy > 0.5"]),
        ({"where": "reward > quotient"}, ["reward > 0.5"]),
        ({"where": "avg > 0.5"}, ["(reward) > 0.5"]),
    ],
)
def test_rows_beside_a_metric(entry: dict[str, str], wanted: list[str | None], tmp_path: Path) -> None:
    """Class: what is compared with a metric of all rows is not compared with itself; each answer works."""
    metrics = {"avg": "mean(reward)", "tokens": "mean(entropy)", "quotient": {"formula": "reward / kl"}}
    config = {"metrics": {**metrics, "w": {"expr": "length", **entry}}}
    problem = problems_of(yaml.safe_dump(config), tmp_path, HEADER)[0]
    answers = [yaml.safe_load(text) for text in re.findall(r"`([^`]+)`", str(problem.fix))]
    (key, *_) = entry
    for answer, text in zip(answers, wanted, strict=False):
        assert text in (answer, None)
        config["metrics"]["w"] = {"expr": "length", **entry, key: answer}
        assert problems_of(yaml.safe_dump(config), tmp_path, HEADER) == []
