"""Functions of texts with a family among their arguments: a value for each member, wherever an expression stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import declog
from declog.language.functions import BUILTIN, Functions
from declog.testing import MemorySink
from tests.language.runs import record

FUNCTIONS = Functions(BUILTIN)


@declog.function(registry=FUNCTIONS)
def scaled(text: str, x: float) -> float:
    """A number."""
    return len(text) * x


@declog.function(registry=FUNCTIONS)
def whole_part(text: str, x: float) -> int:
    """An integer."""
    return int(len(text) * x)


@declog.function(registry=FUNCTIONS)
def large(text: str, x: float) -> bool | None:
    """A bool, which may be none."""
    return len(text) * x > 2 if x else None


@declog.function(registry=FUNCTIONS)
def named(text: str, x: float) -> str | None:
    """A text, which may be none."""
    return f"{text}{x:g}" if x else None


CONFIG: dict[str, Any] = {
    "signals": {"any": {"completion": "completion text", "rewards": "completion family"}},
    "axes": {"group": {"size": 2}},
    "metrics": {
        "mean": {"expr": "scaled(completion, rewards)", "name": "{id}/{member}"},
        "best": "mean(max(scaled(completion, rewards), over=member))",
        "of_a": "mean(member(scaled(completion, rewards), 'a'))",
        "groups": {"expr": "mean(scaled(completion, rewards), over=completion)", "name": "{id}/{member}"},
        "most": {"expr": "whole_part(completion, rewards)", "reduce": "max", "name": "{id}/{member}"},
        "large": {"expr": "large(completion, rewards)", "name": "{id}/{member}"},
        "twos": {"expr": "named(completion, rewards) == 'ab2'", "name": "{id}/{member}"},
        "by": {"expr": "member(rewards, 'a')", "by": "member(named(completion, rewards), 'a')"},
    },
    "schemas": {
        "s": {"scaled": {"expr": "scaled(completion, rewards)"}, "named": {"expr": "named(completion, rewards)"}}
    },
    "tables": {"all": {"schema": "s"}},
}
ROWS: list[dict[str, Any]] = [
    {"completion": ["ab", "c"], "rewards": {"a": [1.0, 2.0], "b": [0.0, 1.0]}},
    {"completion": ["ab", None], "rewards": {"b": [2.0, 1.0], "a": [3.0, 1.0]}},
    {"completion": ["ef", "g"]},
]
SCALARS = {
    "mean/a": 10 / 3, "mean/b": 5 / 3, "best": 10 / 3, "of_a": 10 / 3, "groups/a": 4.0, "groups/b": 2.25,
    "most/a": 6, "most/b": 4, "large/a": 1 / 3, "large/b": 0.5, "twos/a": 0.0, "twos/b": 0.5,
    "by/ab1": 1.0, "by/c2": 2.0, "by/ab3": 3.0,
}  # fmt: skip
COLUMNS = {
    "scaled/a": [2.0, 2.0, 6.0, None, None, None], "scaled/b": [0.0, 1.0, 4.0, None, None, None],
    "named/a": ["ab1", "c2", "ab3", None, None, None], "named/b": [None, "c1", "ab2", None, None, None],
}  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_member_has_its_value(ranks: int) -> None:
    """Class: each type that it returns; members in another order, and a batch or a rank to which no member comes."""
    batches = {1: [[ROWS]], 2: [[ROWS[:1]], [ROWS[1:]]], 3: [[[row]] for row in ROWS]}[ranks]
    sink = record(CONFIG, *batches, functions=FUNCTIONS)
    assert sink.scalars[0] == pytest.approx(SCALARS)
    ((_, table),) = sink.tables("all")
    rows = [*zip(*(table.data[name] for name in COLUMNS), strict=True)]  # of several ranks in another order
    assert sorted(rows, key=str) == sorted(zip(*COLUMNS.values(), strict=True), key=str)


def test_it_goes_on_after_a_checkpoint(tmp_path: Path) -> None:
    """Class: an open window whose rows have members."""
    config = {**CONFIG, "every": 2}
    state: Any = None
    for number in range(2):
        sink = MemorySink()
        folder = tmp_path / str(number)
        with declog.start(config, sinks=[sink], output_dir=folder, functions=FUNCTIONS, resume=state) as log:
            with log.step(number):
                log.observe(**ROWS[number])
            state = log.state_dict()
    assert sink.scalars[1] == pytest.approx(SCALARS)


def test_a_family_that_never_came_has_no_values() -> None:
    """As one that is read without a function."""
    sink = record(CONFIG, [ROWS[2:]], functions=FUNCTIONS)
    assert sink.scalars == {0: {}}
