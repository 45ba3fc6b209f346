"""A profile may show some members of a family, or some labels, by the names that trackers show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import declog
from declog.errors import ConfigError
from tests.running import logged, profile

ROWS = {"axis": "completion"}
SIGNALS = {"rewards": {**ROWS, "family": True}, "x": ROWS, "t": {**ROWS, "type": "text"}}
METRICS: dict[str, Any] = {
    "rewards": {"reduce": ["mean", "max"], "name": "rewards/{member}/{reduce}",
                "alias": ["r_{member}_{reduce}"]},
    "by": {"expr": "x", "by": "t"}, "x": "mean(x)", "rewards_std": {"expr": "x", "reduce": "pstd"},
}  # fmt: skip
GIVEN = {"rewards": {"a": [1.0, 2.0], "bonus": [0.0, 4.0]}, "x": [1.0, 3.0], "t": ["p", "q"]}
ALL = {
    *(f"rewards/{member}/{name}" for member in ("a", "bonus") for name in ("mean", "max")),
    *(f"r_{member}_{name}" for member in ("a", "bonus") for name in ("mean", "max")),
    "by/p", "by/q", "x", "rewards_std",
}  # fmt: skip
BONUS = {"rewards/bonus/mean", "rewards/bonus/max"}


def shown(folder: Path, **selectors: Any) -> set[str]:
    """The names that a profile shows."""
    config = profile(SIGNALS, METRICS, profiles={"p": selectors}, profile="p")
    return set(logged(config, [GIVEN], folder))


CASES: list[tuple[dict[str, Any], set[str]]] = [
    ({"hide": ["rewards/bonus/*"]}, ALL - BONUS),
    ({"hide": ["rewards/bonus/max", "r_a_*"]}, ALL - {"rewards/bonus/max", "r_a_mean", "r_a_max"}),
    ({"only": ["rewards/bonus/*"]}, BONUS),
    ({"only": ["rewards/bonus/*", "x"]}, {*BONUS, "x"}),
    ({"only": ["rewards/bonus/*", "rewards.mean"]}, {
        *BONUS, "rewards/a/mean", "r_a_mean", "r_bonus_mean"}),
    ({"only": ["rewards/*"], "hide": ["rewards/*/max"]}, {"rewards/a/mean", "rewards/bonus/mean"}),
    ({"only": ["rewards/bonus/*"], "hide": ["rewards.max"]}, {"rewards/bonus/mean"}),
    ({"hide": ["by/q"]}, ALL - {"by/q"}),
    ({"hide": ["rewards/nobody/mean"]}, ALL),
    ({"hide": [{"select": "rewards/bonus/*", "when": "x > 0"}]}, ALL - BONUS),
    ({"hide": [{"select": "rewards/bonus/*", "when": "x > 9"}]}, ALL),
    ({"only": ["*", {"select": "rewards/bonus/*", "when": "x > 9"}]}, ALL - BONUS),
    ({"show": ["x*", "rew*"], "hide": ["rewards_std"]}, ALL - {"rewards_std"}),  # a name, and a pattern
    ({"show": ["rewards_*"], "hide": ["rewards_std rewards.max"]}, ALL - {
        "rewards_std", "rewards/a/max", "rewards/bonus/max", "r_a_max", "r_bonus_max"}),
    ({"show": ["rewards_std"], "hide": ["rewards*"]}, ALL - {name for name in ALL if name[0] == "r"} | {"rewards_std"}),
    ({"show": ["rewards_*"], "hide": ["rewards*"]}, ALL - {name for name in ALL if name[0] == "r"} | {"rewards_std"}),
    ({"show": ["rewards_std", "rewards*"], "hide": ["rewards_std"]}, ALL),  # the same name
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(CASES)))
def test_members_and_labels_are_selected_by_their_names(place: int, tmp_path: Path) -> None:
    """Alone or among others, shown or hidden, always or under a condition."""
    selectors, expected = CASES[place]
    assert shown(tmp_path, **selectors) == expected


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("rewards.bonus_of_length", "a member is selected by the name that trackers show, such as "
                                    "`rewards/bonus_of_length/mean`"),
        ("rewards.maxx", "did you mean `rewards.max`?"), ("other/bonus/mean", "one of the metrics: "),
    ],
)  # fmt: skip
def test_what_can_be_no_name_is_refused(word: str, fix: str) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigError) as caught:
        declog.plan(profile(SIGNALS, METRICS, profiles={"p": {"hide": [word]}}, profile="p"))
    (problem,) = caught.value.problems
    assert problem.code == "DL401" and (problem.fix or "").startswith(fix)
