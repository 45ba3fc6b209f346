"""Parameters of functions of texts: with a default, keyword-only, and those that a config does not write."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import declog
from declog.errors import ConfigError
from declog.language.functions import BUILTIN, Functions
from tests.language.runs import one_step, values

SIGNALS = {"t": "completion text", "ref": "completion text", "x": "completion"}
ROW = {"t": ["ab", "c"], "ref": ["ab", None], "x": [1.0, 2.0]}


def registered(run: Any, *, signals: Any = SIGNALS, metric: str = "") -> tuple[dict[str, Any], Functions]:
    """A config with the metric `m`, and functions with `run` as `f`."""
    functions = Functions(BUILTIN)
    declog.function(run, name="f", registry=functions)
    return {"signals": {"any": signals}, "metrics": {"m": metric}}, functions


def scaled(t: str, scale: float = 3.0) -> float:
    """A number that has a default."""
    return len(t) * scale


def by_name(t: str, *, scale: float) -> float:
    """A number that is keyword-only."""
    return len(t) * scale


def both(t: str, a: float, b: float = 2.0, *, c: float, d: int = 1) -> float:
    """All sorts."""
    return len(t) * a + 10 * b + 100 * c + 1000 * d


def compared(t: str, ref: str | None = None, none: str = "-") -> float:
    """A text that may be none, and one that has a default."""
    return float(t == (none if ref is None else ref))


def unsaid(t: str, ref=None) -> float:  # type: ignore[no-untyped-def]
    """A default of None without an annotation is a number."""
    return -1.0 if ref is None else ref


def alone(t: str = "") -> int:
    """Nothing is needed."""
    return len(t)


def further(t: str, cache: dict[str, int] = {}, scale: float = 2.0, **rest: Any) -> float:  # noqa: B006
    """A default that no config can write, before one that it can."""
    assert cache == {} and not rest
    return len(t) * scale


def position_only(t: str, scale: float = 2.0, /) -> float:
    """Without a name."""
    return len(t) * scale


@pytest.mark.parametrize(
    ("run", "call", "expected"),
    [
        (scaled, "f(t)", 9.0), (scaled, "f(t, 2)", 6.0), (scaled, "f(t, scale=2)", 6.0), (scaled, "f(t, x)", 4.0),
        (scaled, "f(scale=x, t=t)", 4.0),
        (by_name, "f(t, scale=2)", 6.0), (by_name, "f(t, scale=x)", 4.0), (by_name, "f(scale=x, t=t)", 4.0),
        (functools.partial(by_name, scale=2), "f(t)", 6.0), (functools.partial(by_name, scale=2), "f(t, scale=x)", 4.0),
        (both, "f(t, x, c=3)", 2644.0), (both, "f(t, x, 1, c=3, d=0)", 624.0), (both, "f(t, x, c=x, d=2)", 4344.0),
        (compared, "f(t)", 0.0), (compared, "f(t, ref)", 1.0), (compared, "f(t, ref, 'c')", 2.0),
        (compared, "f(t, none='c')", 1.0), (compared, "f(t, missing, 'ab')", 1.0),
        (unsaid, "f(t)", -2.0), (unsaid, "f(t, x)", 3.0), (alone, "f(t)", 3), (alone, "f(t=t)", 3),
        (further, "f(t)", 6.0), (further, "f(t, 3)", 9.0), (further, "f(t, scale=3)", 9.0),
        (position_only, "f(t)", 6.0), (position_only, "f(t, 3)", 9.0),
    ],
)  # fmt: skip
def test_it_is_called_as_it_is_written(run: Any, call: str, expected: float) -> None:
    """Class: by place and by name, with columns and with constants, left out and said; the sum over two rows."""
    config, functions = registered(run, metric=f"sum({call})")
    assert not declog.plan(config, functions=functions).warnings
    assert one_step(config, ROW, functions=functions) == {"m": expected}


@pytest.mark.parametrize(
    ("run", "call", "code", "said"),
    [
        (by_name, "f(t)", "DL304", "`f` misses `scale`"), (scaled, "f(t, 1, 2)", "DL304", "`f` takes 2 arguments"),
        (scaled, "f(t, size=2)", "DL304", "`f` has no parameter `size`"),
        (further, "f(t, cache=2)", "DL304", "`f` has no parameter `cache`"),
        (scaled, "f(t, t)", "DL305", "`f` takes a number as `scale`, and `t` is text"),
        (scaled, "f(missing)", "DL305", "`f` needs text, and `missing` is float"),
    ],
)  # fmt: skip
def test_what_cannot_be_called_is_refused(run: Any, call: str, code: str, said: str) -> None:
    """Before step 0, where it is written."""
    config, functions = registered(run, metric=f"sum({call})")
    with pytest.raises(ConfigError) as error:
        declog.plan(config, functions=functions)
    (problem,) = error.value.problems
    assert (problem.code, problem.message) == (code, said)


def test_a_function_of_tensors_has_those_that_it_needs() -> None:
    """Also where one with a default is annotated as a text."""

    def powered(x, mode: str = "square"):  # type: ignore[no-untyped-def]
        return x**2 if mode == "square" else x

    config, functions = registered(powered, metric="sum(f(x))")
    assert one_step(config, ROW, functions=functions) == {"m": 5.0}


def unsure(t: str) -> bool | None:
    """None of a short text."""
    return None if len(t) < 2 else t == "ab"


@pytest.mark.parametrize(
    "where",
    ["f(t)", "not f(t)", "present(f(t))", "not present(f(t))", "f(t) == false", "f(t) or x > 1", "not (f(t) and x < 9)",
     "(1 if f(t) else 0) == 0", "not not f(t)"],
)  # fmt: skip
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_bool_that_is_none_is_one_that_was_observed_as_none(ranks: int, where: str) -> None:
    """Class: conditions on it, under `not` too, on rank 0 and on the rank that has the text."""
    signals = {**SIGNALS, "g": "completion bool"}
    config, functions = registered(unsure, signals=signals)
    config["metrics"] = {
        name: {"expr": "x", "reduce": "sum", "where": where.replace("f(t)", read), "empty": 0}
        for name, read in (("m", "f(t)"), ("o", "g"))
    }
    rows: list[dict[str, Any]] = [
        {"t": ["ab", "c", "no"], "g": [True, None, False], "x": [1.0, 2.0, 4.0]},
        {"t": [None, "d", "ab"], "g": [None, None, True], "x": [8.0, 16.0, 32.0]},
    ]
    logged = values(config, *([[rows]] if ranks == 1 else [[[row]] for row in rows]), functions=functions)
    assert logged["m"] == logged["o"]
