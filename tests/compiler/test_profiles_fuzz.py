"""Random data as a profile: nested, huge, odd keys. It compiles, or declog's own error says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import declog
from declog.errors import ConfigError
from declog.errors.pages import CODES
from declog.language import spec
from declog.language.spec_of_tables import FilterSpec
from declog.plans.words import explain
from tests.conftest import examples

KEYS = [
    *(key for model in (spec.LogSpec, spec.MetricSpec, spec.SignalSpec, FilterSpec) for key in model.model_fields),
    *(
        "core",
        "reward",
        "mean",
        "from",
        "schema",
        "as",
        "only",
        "group",
        "token",
        "completion",
        "size",
        "of",
        "mask",
    ),
]
TEXTS = ["reward", "completion", "token", "mean(reward)", "p95", "text", "int", "console", "tag:core", "beta != 0"]
ODD_TEXTS = ["{id}/{reduce}", "{", "${reward}", "???", "top_bottom", "\ud800", "\x00", "9**9**9", "on", "1e3"]
ODD_VALUES = [10**30, -(10**400), 2**63, 1e308, float("nan"), float("-inf"), b"bytes", {1, 2}, object(), (1, 2), 1j]
LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    *(st.sampled_from(TEXTS), st.sampled_from(ODD_TEXTS), st.sampled_from(ODD_VALUES)),
)
NAMED = st.sampled_from(KEYS)
KEY = st.one_of(NAMED, NAMED, NAMED, st.text(max_size=6), st.integers(), st.none(), st.booleans())
DATA = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEY, inner, max_size=4)), max_leaves=20
)
GOOD: dict[str, Any] = {
    "constants": {"beta": {"default": 0.1}},
    "axes": {"group": {"size": 2}, "token": {"mask": "mask"}},
    "signals": {
        "any": {"reward": {"axis": "completion"}, "mask": {"axis": "token", "type": "bool"}, "kl": {"axis": "token"}},
    },
    "metrics": {"reward": {"expr": "reward", "reduce": ["mean", "p95"], "tags": ["core"]}, "kl": "max(kl)"},
    "filters": {"worst": {"key": "reward", "bottom": 1}},
    "schemas": {"row": {"reward": {"type": "float"}}},
    "tables": {"worst": {"schema": "row", "filter": "worst"}},
    "profiles": {"slim": {"only": ["tag:core"]}},
    "alerts": {"high": {"when": "kl > 1.0"}},
    "sinks": ["console"],
}


def check(profile: Any) -> None:
    """Validate and compile, as data and as a configuration: what is raised is declog's and can be shown."""
    for compiled in (declog.plan, _without_composition):
        try:
            explain(compiled(profile))
        except ConfigError as error:
            assert error.problems and all(problem.code in CODES for problem in error.problems)
            assert len(str(error)) < 200_000


def _without_composition(profile: Any) -> declog.Plan:
    return declog.compile(declog.validate(profile))


def test_the_profile_that_is_mutated_is_good() -> None:
    """Otherwise mutations of it would test nothing but its own error."""
    assert "metrics" in explain(declog.plan(GOOD))


@examples(75, *HealthCheck)
@given(st.dictionaries(KEY, DATA, max_size=5))
def test_random_data_is_refused_or_compiled(profile: dict[Any, Any]) -> None:
    """Maps of known and unknown keys to anything."""
    check(profile)


@examples(75, *HealthCheck)
@given(st.data())
def test_a_good_profile_with_something_else_in_it(data: st.DataObject) -> None:
    """One place of a good profile, at any depth, holds something else."""
    profile = _copied(GOOD)
    at: Any = profile
    while True:
        key = data.draw(st.sampled_from(sorted(at)) if isinstance(at, dict) else st.integers(0, len(at) - 1))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.integers(0, 2)) == 0:
            break
        at = at[key]
    if data.draw(st.booleans()) and isinstance(at, dict):
        at[data.draw(KEY)] = at.pop(key)
    else:
        at[key] = data.draw(DATA)
    check(profile)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return list(value) if isinstance(value, list) else value


def _deep(depth: int) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for _ in range(depth):
        data = {"metrics": data}
    return data


def _laughing() -> dict[str, Any]:
    data: Any = "ha"
    for _ in range(40):
        data = {"a": data, "b": data}
    return {"run": {"config": data}}


def _endless() -> dict[str, Any]:
    data: dict[str, Any] = {}
    data["metrics"] = data
    return data


HUGE: list[tuple[str, Any]] = [
    ("deep", _deep(100)),
    ("deeper", _deep(5_000)),
    ("run_config", {"run": {"config": _deep(200)}}),
    ("endless", _endless()),
    ("laughing", _laughing()),
    ("text", {"metrics": {"a": "x" * 1_000_000}}),
    ("name", {"signals": {"any": {"x": {"axis": "step"}}}, "metrics": {"x": {"name": "{" * 100_000}}}),
    ("key", {"metrics": {"k" * 1_000_000: 1}}),
    ("number", {"every": 10**4000}),
    ("bins", {"signals": {"any": {"x": {"axis": "step"}}}, "metrics": {"x": {"reduce": f"histogram(bins={10**15})"}}}),
    ("many", {"signals": {"any": {"x": {"axis": "step"}}}, "metrics": {f"m{n}": "nothing" for n in range(300)}}),
    ("constant", {"constants": {"c": 10**400}, "signals": {"any": {"x": {"axis": "step"}}},
        "metrics": {"x": "mean(x * c)"}}),
    ("nan", {"constants": {"c": float("nan")}, "signals": {"any": {"x": {"axis": "step", "enabled": "c > 0"}}}}),
    ("null", {"signals": None, "metrics": {"a": None}, "axes": None}),
    ("interpolation", {"metrics": {"a": "${nothing}"}}),
    ("list", [1, 2]),
    ("text itself", "no_such_preset"),
    ("none", None),
]  # fmt: skip


@pytest.mark.parametrize("profile", [profile for _, profile in HUGE], ids=[name for name, _ in HUGE])
def test_what_is_deep_huge_or_endless(profile: Any) -> None:
    """In bounded time and memory, whatever the depth and the size."""
    check(profile)
