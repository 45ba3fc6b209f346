"""`by: group`: an axis is no label. The answer writes one value per group, and compiles."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

import declog
from declog.config.files import YamlLoader
from declog.errors import ConfigError
from declog.runtime.recording.recorder import Recorder
from tests.running import logged, profile, run

ROWS = {"axis": "completion"}
SIGNALS: dict[str, Any] = {
    "x": ROWS, "right": {**ROWS, "type": "bool"}, "n": {**ROWS, "type": "int"}, "env": {**ROWS, "type": "text"},
    "t": {"axis": "token"}, "m": {"axis": "token", "type": "bool"}, "g": {"axis": "group"},
}  # fmt: skip
BATCH: dict[str, Any] = {
    "x": [1.0, 2.0, 3.0, 6.0], "right": [True, False, False, False], "n": [1, 2, 1, 3], "env": ["u", "u", "v", "v"],
    "t": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 9.0]], "m": [[True, True]] * 4, "g": [1.0, 5.0],
}  # fmt: skip


def config(metric: dict[str, Any], **sections: Any) -> dict[str, Any]:
    axes = {"token": {"mask": "m"}, "group": sections.pop("group", {"size": 2})}
    return profile(SIGNALS | sections.pop("signals", {}), {"y": metric}, axes=axes, **sections)


def edit(metric: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """The entry of the answer's edit."""
    with pytest.raises(ConfigError) as raised:
        declog.plan(config(metric, **sections))
    (problem,) = raised.value.problems
    assert problem.path[:3] == ("metrics", "y", "by")
    entry: dict[str, Any] = yaml.load(str(problem.fix), YamlLoader)["metrics"]["y"]
    return entry


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ({"expr": "max(right)", "by": "group"}, {"y": 0.5}),
        ({"expr": "x", "by": "group", "reduce": "std"}, {"y": 2**0.5 * 1.0}),
        ({"expr": "right", "by": ["group"]}, {"y": 0.25}),
        ({"expr": "max(x) == 2", "by": "group"}, {"y": 0.5}),
        ({"expr": "max(x)", "by": "group", "where": "n > 1"}, {"y": 4.0}),
        ({"expr": "sum(right)", "by": "group", "where": "n < 3"}, {"y": 0.5}),
        ({"expr": "max(x)", "by": "group", "where": "size(completion) > 1"}, {"y": 4.0}),
        ({"expr": "p50(x)", "by": "group"}, {"y": 3.0}),
        ({"expr": "pass_at(right, 1)", "by": "group"}, {"y": 0.25}),
        ({"expr": "g", "by": "group", "reduce": "max"}, {"y": 5.0}),
        ({"expr": "max(t)", "by": "group"}, {"y": 5.75}),
        ({"expr": "max(x)", "by": ["env", "group"], "name": "y/{env}/{group}"}, {"y/u": 2.0, "y/v": 6.0}),
        ({"expr": "g", "by": ["group", "size(completion)"]}, {"y/2": 3.0}),
        ({"expr": "x", "by": "group", "name": "y/{label}", "max_labels": 8, "every": 2}, {"y": 3.0}),
        ({"expr": "max(t)", "by": "completion"}, {"y": 5.25}),
        ({"expr": "x", "by": "completion"}, {"y": 3.0}),
        ({"expr": "t", "by": "token"}, {"y": 4.625}),
        ({"expr": "x", "by": "step", "alias": ["z/{label}"]}, {"y": 3.0, "z": 3.0}),
        ({"expr": "x", "by": "step", "over": "run"}, {"y": 3.0}),
        ({"expr": "x", "by": "group", "weight": "n"}, {"y": (5 / 3 + 21 / 4) / 2}),
        ({"expr": "x - 1", "by": "group", "weight": "n + 1", "where": "n < 3"}, {"y": (3 / 5 + 2) / 2}),
        ({"expr": "g", "by": "group", "weight": "size(completion)"}, {"y": 3.0}),
        ({"expr": "t", "by": "group", "where": "index(token) < 1"}, {"y": 4.0}),
        ({"expr": "t", "by": "completion", "where": "index(token) < 1"}, {"y": 4.0}),
        ({"expr": "t", "by": "group", "where": "n < 3", "reduce": "max"}, {"y": (3.5 + 5.5) / 2}),
        ({"expr": "max(x) - min(x)", "by": "group", "where": "n < 3"}, {"y": 0.5}),
        ({"expr": "max(t) - min(t)", "by": "group"}, {"y": 2.25}),
        ({"expr": "t", "by": ["completion", "token"], "name": "y/{completion}/{token}"}, {"y": 4.625}),
        ({"expr": "x", "by": ["step", "group"]}, {"y": 3.0}),
        ({"expr": "x", "by": ["env", "step"], "over": "step"}, {"y/u": 1.5, "y/v": 4.5}),
    ],
)
def test_the_edit_has_one_value_per_group(metric: dict[str, Any], expected: dict[str, float], tmp_path: Path) -> None:
    """Class: axes as labels, of values on each axis; the edit keeps the other keys, compiles, and gives that number."""
    entry = edit(metric)
    kept = {"expr", "name", "alias", "every"}
    assert entry.keys() & kept == metric.keys() & kept
    assert logged(config(entry), [BATCH], tmp_path) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mine", "added", "expected"),
    [
        ({"expr": "x", "reduce": "std"}, {"by": "group"}, 2**0.5),
        ({"expr": "x", "reduce": "max", "where": "n < 3"}, {"by": "group"}, 2.5),
        ({"expr": "x", "weight": "n"}, {"by": "group"}, (5 / 3 + 21 / 4) / 2),
        ("max(x)", {"by": "group"}, 4.0),
        ({"expr": "x", "tags": ["core"]}, {"by": "group"}, 3.0),
    ],
)
def test_the_edit_changes_an_inherited_metric(mine: Any, added: Any, expected: float, tmp_path: Path) -> None:
    """Class: keys of a file's metric that the edit's expression says, in a file that extends it and in an override."""
    folder = tmp_path / "conf" / "declog"
    folder.mkdir(parents=True)
    (folder / "base.yaml").write_text(yaml.safe_dump(config(mine)), encoding="utf-8")
    file = folder / "mine.yaml"
    extends = {"defaults": ["base", "_self_"]}
    file.write_text(yaml.safe_dump({**extends, "metrics": {"y": added}}), encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        declog.plan(str(file))
    (problem,) = raised.value.problems
    file.write_text(yaml.safe_dump(extends) + str(problem.fix), encoding="utf-8")
    assert logged(cast(Any, str(file)), [BATCH], tmp_path) == pytest.approx({"y": expected})
    with pytest.raises(ConfigError) as raised:
        declog.plan(str(folder / "base.yaml"), [f"+metrics.y.by={added['by']}"])
    (problem,) = raised.value.problems

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(**BATCH)

    base: Any = str(folder / "base.yaml")
    assert run(base, body, tmp_path, overrides=shlex.split(str(problem.fix))).scalars[0] == pytest.approx(
        {"y": expected}
    )


@pytest.mark.parametrize("line", ["metrics.reward.by=group", "metrics.length.by=group", "metrics.reward.by=completion",
                                  "+metrics.entropy.by=group", "metrics.kl.by=token"])  # fmt: skip
def test_the_edit_of_an_override_is_one(line: str) -> None:
    """Class: a preset's metrics by each axis."""
    with pytest.raises(ConfigError) as raised:
        declog.plan("grpo", [line])
    (problem,) = raised.value.problems
    declog.plan("grpo", shlex.split(str(problem.fix)))


@pytest.mark.parametrize(
    ("axis", "refused"),
    [
        ({"size": 2}, True),
        ({"of": "group"}, True),
        ({"of": ["id", "group"]}, True),
        ({"size": 2, "of": "id"}, True),
        ({"of": "id"}, False),
    ],
)
def test_a_signal_named_group_that_tells_no_groups_apart_is_a_label(axis: dict[str, Any], refused: bool) -> None:
    """Class: how groups are told apart, where a signal `group` is observed."""
    sections = {"signals": {"group": {**ROWS, "type": "int"}, "id": {**ROWS, "type": "int"}}, "group": axis}
    metric = {"expr": "x", "by": "group"}
    if refused:
        assert edit(metric, **sections) == {"expr": "mean(x, over=completion)"}
    else:
        declog.plan(config(metric, **sections))


def test_where_nothing_says_what_a_group_is_the_edit_needs_that_too() -> None:
    """The edit of `by: group`, and then that of `axes.group`."""
    entry = edit({"expr": "x", "by": "group"}, group={})
    with pytest.raises(ConfigError, match=r"axes\.group"):
        declog.plan(config(entry, group={}))


def test_a_reduction_of_two_values_has_an_example() -> None:
    """No expression is a correlation per group."""
    with pytest.raises(ConfigError, match="over=completion"):
        declog.plan(config({"expr": "corr(x, n)", "by": "group"}))


@pytest.mark.parametrize("label", ["rank", "mode", "env", "n > 1", "bucket(step, 100)", "size(completion)"])
def test_other_labels_stay(label: str) -> None:
    """Facts and values that have few values are labels."""
    declog.plan(config({"expr": "x", "by": label}))
