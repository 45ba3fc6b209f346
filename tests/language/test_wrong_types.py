"""The fix for a value of another type has what the value says, and no words in place of it."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import declog
from declog.language.keys import atoms, is_model, keys
from declog.language.spec import LogSpec

WRONG: tuple[Any, ...] = (5, [1, 2], ["a", "b"], [], {"key": "topic"}, {})


def paths(type_: Any = LogSpec, above: tuple[str, ...] = (), models: frozenset[Any] = frozenset()) -> Iterator[Any]:
    """The path of every key, with an entry `x` of each section."""
    for atom in atoms(type_):
        if is_model(atom) and atom not in models:
            inside = {name: key.type for name, key in keys(atom).items()}
        else:
            inside = {"x": typing.get_args(atom)[-1]} if typing.get_origin(atom) is dict else {}
        for name, inner in inside.items():
            yield (*above, name)
            yield from paths(inner, (*above, name), models | {atom})


def test_no_fix_has_a_placeholder() -> None:
    """Of every key of the language: `some words`, `[...]` and `{...}` cannot be pasted."""
    answers = 0
    for path in paths():
        for value in WRONG:
            config: Any = value
            for key in reversed(path):
                config = {key: config}
            try:
                declog.validate(config)
            except declog.ConfigError as error:
                fixes = [str(problem.fix) for problem in error.problems if problem.code == "DL202"]
                answers += len(fixes)
                assert not [fix for fix in fixes if re.search(r"some words|\[\.\.\.\]|\{\.\.\.\}", fix)], (path, value)
    assert answers > 500


@pytest.mark.parametrize(
    ("written", "fix"),
    [
        ({"where": {"solved": True, "truncated": False}}, "where: solved and not truncated"),
        ({"tags": {"core": True, "slow": False}}, "tags: [core]"),
        ({"by": {"expr": "length", "bins": [[0, 8], [8, 16]]}}, 'by: "bucket(length, 8, 16)"; an edge belongs'),
    ],
)
def test_a_value_of_another_type_is_written_as_its_key_takes_it(written: dict[str, Any], fix: str) -> None:
    with pytest.raises(declog.ConfigError) as caught:
        declog.validate({"metrics": {"a": {"expr": "reward", **written}}})
    assert str(caught.value.problems[0].fix).startswith(fix)
