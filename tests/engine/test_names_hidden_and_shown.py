"""What `hide` and `show` of a profile leave, name by name: ids, reductions, members and labels, by name and by pattern.

The class: each pair of words, one or two to hide and one to show, against the documented rule: what `show` names is
there; else what `hide` names is not; else what a pattern of `show` matches is; else what one of `hide` matches is not.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import combinations, product
from pathlib import Path

import pytest

import declog
from declog.engine.publish import _shown
from declog.records import Scalar
from declog.testing import MemorySink

CONFIG = {
    "run": {"name": "p"},
    "signals": {"any": {
        "reward": "completion", "rewards": {"axis": "completion", "family": True}, "source": "completion text"}},
    "metrics": {
        "reward": {"expr": "reward", "reduce": ["mean", "max"]}, "rewards": {"expr": "rewards"},
        "by_source": {"expr": "reward", "by": "source"},
    },
}  # fmt: skip
NAMES = {  # by name, the id and the key of its metric
    "reward/mean": ("reward", "reward.mean"), "reward/max": ("reward", "reward.max"),
    "rewards/acc": ("rewards", "rewards"), "rewards/len": ("rewards", "rewards"),
    "by_source/a": ("by_source", "by_source"), "by_source/b": ("by_source", "by_source"),
}  # fmt: skip
PLAIN = ["reward", "reward.mean", "rewards", "rewards/acc", "rewards/len", "by_source", "by_source/b"]
PATTERNS = ["*", "reward*", "rewards/*", "rewards/a*", "reward.m*", "by_source*", "by_source/*", "by_source/[ab]"]
HIDES = [
    *([word] for word in [*PLAIN, *PATTERNS]),
    *map(list, combinations(["rewards/*", "rewards", "rewards/len"], 2)),
]


def matches(word: str, name: str) -> bool:
    """Whether a word selects a name, by its metric or by the name."""
    return any(fnmatchcase(text, word) for text in (*NAMES[name], name))


def expected(hide: list[str], show: str) -> set[str]:
    """The names that the rule leaves."""
    left = set()
    for name in NAMES:
        hiding = [word for word in hide if matches(word, name)]
        by_pattern = matches(show, name) and not any(word in PLAIN for word in hiding)
        there = by_pattern or (show in PLAIN and matches(show, name)) or not hiding
        left |= {name} if there else set()
    return left


@pytest.mark.parametrize("only", [None, ["*"]], ids=["all", "a closed list of all"])
def test_what_hide_names_no_pattern_brings_back(only: list[str] | None) -> None:
    """Also for members and labels, and what adds nothing is known to add nothing."""
    named = [((key, False), Scalar(name, 1.0, key)) for name, (_, key) in NAMES.items()]
    wrong = {}
    for hide, show in product(HIDES, [*PLAIN, *PATTERNS]):
        selectors = {"hide": hide, "show": [show], **({} if only is None else {"only": only})}
        profile = declog.plan({**CONFIG, "profiles": {"x": selectors}, "profile": "x"}).profiles["x"]
        shown = {record.name for record in _shown(named, profile, ())}
        without = {name for name in NAMES if not any(matches(word, name) for word in hide)}
        if shown != expected(hide, show) or (profile.idle and shown != without):
            wrong[show, *hide] = shown, expected(hide, show), profile.idle
    assert wrong == {}


@pytest.mark.parametrize(
    ("hide", "show"),
    [
        ("rewards/len", "rewards*"),
        ("rewards", "rewards/a*"),
        ("by_source", "by_source/*"),
        ("rewards/*", "rewards/acc"),
    ],
)
def test_in_a_run(hide: str, show: str, tmp_path: Path) -> None:
    """A sink gets the names that the rule leaves."""
    config = {**CONFIG, "profiles": {"x": {"hide": [hide], "show": [show]}}, "profile": "x"}
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(reward=[1.0, 2.0], rewards={"acc": [1.0, 2.0], "len": [0.0, 1.0]}, source=["a", "b"])
    assert set(sink.scalars[0]) == expected([hide], show)
