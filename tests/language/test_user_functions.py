"""Functions and reductions of users: registered in code, in a registry of one's own, and by installed packages."""

from __future__ import annotations

import functools
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.errors import ConfigError, UsageError
from declog.language.functions import BUILTIN, DEFAULT, Functions
from declog.language.reductions import BUILTIN as REDUCTIONS
from declog.language.reductions import DEFAULT as DEFAULT_REDUCTIONS
from declog.language.reductions import Reductions
from tests.language.runs import one_step, problems

ROWS = {"axis": "completion"}
TOKENS: dict[str, Any] = {
    "axes": {"token": {"mask": "m"}},
    "signals": {"any": {"m": {"axis": "token", "type": "bool"}, "u": {"axis": "token"}}},
}


@pytest.fixture
def functions() -> Functions:
    """A registry of the test's own, over the functions of the language."""
    return Functions(BUILTIN)


@pytest.fixture
def reductions() -> Reductions:
    """A registry of the test's own, over the reductions of the language."""
    return Reductions(REDUCTIONS)


def test_a_function_runs_on_rows(functions: Functions) -> None:
    """It gets float64 tensors of one shape, missing values as NaN."""
    seen: list[torch.dtype] = []

    @declog.function(registry=functions)
    def softplus(x: torch.Tensor) -> torch.Tensor:
        """A smooth maximum of x and 0."""
        seen.append(x.dtype)
        return torch.nn.functional.softplus(x)

    profile = {"signals": {"any": {"x": ROWS}}, "metrics": {"m": {"expr": "softplus(x) * 2", "reduce": "sum"}}}
    logged = one_step(profile, {"x": [0.0, math.nan, 1.0]}, functions=functions)

    assert {"m": 2 * (math.log(2) + math.log(1 + math.e))} == pytest.approx(logged)
    assert {torch.float64} == set(seen)
    entry = functions.get("softplus")
    assert entry is not None and entry.help == "A smooth maximum of x and 0."


def test_a_function_runs_on_tokens(functions: Functions) -> None:
    """On the training device, with a completion's value repeated over its tokens; the padding does not count."""

    @declog.function(registry=functions)
    def scaled(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return x * by

    profile = {
        **TOKENS,
        "signals": {"any": {**TOKENS["signals"]["any"], "a": ROWS}},
        "metrics": {"m": "sum(scaled(u, a))", "per": "max(mean(scaled(u, 2), over=token))"},
    }
    observed = {
        "m": torch.tensor([[True, True], [True, False]]),
        "u": torch.tensor([[1.0, 2.0], [3.0, math.nan]]),
        "a": torch.tensor([10.0, 100.0]),
    }

    assert one_step(profile, observed, functions=functions) == {"m": 330.0, "per": 6.0}


def test_a_function_of_bools_and_ints(functions: Functions) -> None:
    """`returns` says what it gives."""

    @declog.function(registry=functions, returns="bool", name="near")
    def is_near(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x - y).abs() < 1

    @declog.function(registry=functions, returns="int")
    def sign(x: torch.Tensor) -> torch.Tensor:
        return torch.sign(x).to(torch.int64)

    profile = {
        "signals": {"any": {"x": ROWS, "y": ROWS}},
        "metrics": {"near": "mean(near(x, y))", "sign": {"expr": "sign(x)", "reduce": "sum", "where": "near(x, y)"}},
    }

    assert one_step(profile, {"x": [-2.0, 5.0], "y": [-1.5, 1.0]}, functions=functions) == {"near": 0.5, "sign": -1}


def test_a_function_that_lies_about_its_type_is_refused(functions: Functions) -> None:
    """Tried on tensors without values, before step 0."""

    @declog.function(registry=functions)
    def total(x: torch.Tensor) -> torch.Tensor:
        return x.sum()

    @declog.function(registry=functions)
    def positive(x: torch.Tensor) -> torch.Tensor:
        return x > 0

    @declog.function(registry=functions)
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    profile = {
        "signals": {"any": {"x": ROWS}},
        "metrics": {name: f"mean({name}(x))" for name in ("total", "positive", "broken")},
    }

    assert [("DL314", f"metrics.{name}") for name in ("total", "positive", "broken")] == problems(
        lambda: declog.plan(profile, functions=functions)
    )


def test_a_registry_of_ones_own_is_seen_by_its_plans_only(functions: Functions) -> None:
    """The language's functions stay as they are."""

    @declog.function(registry=functions)
    def own(x: torch.Tensor) -> torch.Tensor:
        return x

    profile = {"signals": {"any": {"x": ROWS}}, "metrics": {"m": "mean(own(x))"}}

    assert problems(lambda: declog.plan(profile, functions=functions)) == []
    assert problems(lambda: declog.plan(profile)) == [("DL303", "metrics.m")]


TAKEN: dict[str, tuple[Any, str, str, str]] = {
    "function": (declog.function, "words", "how many whitespace-separated words a text has", "completion: str"),
    "of tensors": (declog.function, "abs", "the absolute value", "x"),
    "reducer": (declog.reducer, "std", "", "values"),
    "a quantile": (declog.reducer, "p95", "", "values"),
}


@pytest.mark.parametrize("case", TAKEN)
@pytest.mark.parametrize("form", ["@{of}", '@{of}(name="{name}")'])
def test_a_name_that_is_taken(case: str, form: str, functions: Functions, reductions: Reductions) -> None:
    """It says what the other does; the decorator that is printed works, and the error is shown at the user's line."""
    decorator, name, what, parameter = TAKEN[case]
    registry = reductions if decorator is declog.reducer else functions
    if decorator is declog.reducer and not what:
        what = reductions.get(name).help  # type: ignore[union-attr]
    scope: dict[str, Any] = {"of": functools.partial(decorator, registry=registry)}
    define = f"\ndef {name}({parameter}):\n    return 1.0\n"
    with pytest.raises(UsageError) as caught:
        exec(compile(form.format(of="of", name=name) + define, "train.py", "exec"), scope)
    assert caught.value.message.startswith(f"a {registry.noun} named `{name}` is registered already: {what}")
    fix = re.match(r"@declog\.(\w+)\(name=\"(\w+)\"\)", str(caught.value.fix))
    assert fix is not None and getattr(declog, fix[1]) is decorator and fix[2] == f"my_{name}"
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert len(files) - files.index("train.py") <= 2  # and the wrapper
    exec(compile(f'@of(name="{fix[2]}")' + define, "train.py", "exec"), scope)
    assert fix[2] in registry
    with pytest.raises(UsageError) as caught:  # of another module, whose name is taken, too
        exec(compile(f'@of(name="{fix[2]}")' + define.replace(name, "other"), "other.py", "exec"), scope)
    assert f'(name="my_{fix[2]}")' in str(caught.value.fix)


def test_a_known_name_is_not_replaced(functions: Functions, reductions: Reductions) -> None:
    """Neither one of the language's nor another's; the same function, imported again, is the same."""
    with pytest.raises(UsageError, match="a function named `abs` is registered already"):
        declog.function(lambda x: x, name="abs", registry=functions)
    with pytest.raises(UsageError, match="a reduction named `mean` is registered already"):
        declog.reducer(lambda x: 0.0, name="mean", registry=reductions)

    def mine(x: torch.Tensor) -> torch.Tensor:
        return x

    declog.function(mine, registry=functions)
    declog.function(mine, registry=functions)


def test_a_reduction_of_values(reductions: Reductions) -> None:
    """It gets what counts as float64 arrays, without missing values; NaN is absent."""

    @declog.reducer(registry=reductions)
    def gini(values: np.ndarray) -> float:
        """How unequal values are."""
        return float(np.abs(values[:, None] - values).mean() / (2 * values.mean()))

    @declog.reducer(registry=reductions)
    def slope(x: np.ndarray, y: np.ndarray, *, scale: float = 1.0) -> float:
        return float(np.polyfit(x, y, 1)[0]) * scale if len(x) > 1 else math.nan

    profile = {
        "signals": {"any": {"x": ROWS, "y": ROWS}},
        "metrics": {
            "gini": "gini(x)",
            "slope": "slope(x, y, scale=10)",
            "listed": {"expr": ["x", "y"], "reduce": "slope"},
            "one": {"expr": ["x", "y"], "reduce": "slope", "where": "x == 1"},
            "none": {"expr": "x", "reduce": "gini", "where": "x > 99"},
        },
    }
    logged = one_step(profile, {"x": [1.0, 2.0, math.nan, 3.0], "y": [2.0, 4.0, 5.0, 6.0]}, reductions=reductions)

    assert pytest.approx(logged) == {"gini": 8 / 9 / 4, "slope": 20.0, "listed": 2.0}


def test_a_reduction_misses_what_it_requires(reductions: Reductions) -> None:
    """A keyword without a default must be given, and must be one of its own."""

    @declog.reducer(registry=reductions)
    def above(values: np.ndarray, *, limit: float) -> float:
        return float((values > limit).mean())

    def plan(reduce: str) -> Any:
        profile = {"signals": {"any": {"x": ROWS}}, "metrics": {"m": {"expr": "x", "reduce": reduce}}}
        return lambda: declog.plan(profile, reductions=reductions)

    assert problems(plan("above(limit=2)")) == []
    assert problems(plan("above")) == [("DL304", "metrics.m.reduce")]
    assert problems(plan("above(limit=2, top=3)")) == [("DL304", "metrics.m.reduce")]
    assert problems(plan("abvoe")) == [("DL311", "metrics.m.reduce")]


# ---- installed packages ----------------------------------------------------------------------------------

PACKAGE = '''
import torch

def team_scaled(x):
    """Ten times x."""
    return x * 10

def team_range(values):
    """The greatest less the least."""
    return float(values.max() - values.min())
'''
ENTRY_POINTS = """
[declog.functions]
team_scaled = team_declog_entries:team_scaled
team_broken = team_declog_entries:not_there

[declog.reducers]
team_range = team_declog_entries:team_range
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with entry points, on the path as pip would leave it."""
    (tmp_path / "team_declog_entries.py").write_text(PACKAGE, encoding="utf-8")
    info = tmp_path / "team_declog_entries-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: team-declog-entries\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("team_declog_entries", None)
    for registry in (DEFAULT, DEFAULT_REDUCTIONS):  # what a plan without registries of its own loaded
        for name in ("team_scaled", "team_range"):
            registry.discard(name)


@pytest.mark.usefixtures("installed")
def test_an_installed_package_adds_functions_and_reductions(functions: Functions, reductions: Reductions) -> None:
    """YAML names them, and nothing was imported before."""
    assert "team_declog_entries" not in sys.modules
    profile = {"signals": {"any": {"x": ROWS}}, "metrics": {"m": "team_range(team_scaled(x))"}}

    assert one_step(profile, {"x": [1.0, 3.0]}, functions=functions, reductions=reductions) == {"m": 20.0}
    assert {"team_scaled", "team_broken"} <= set(functions.names())
    assert "team_range" in reductions.names()


@pytest.mark.usefixtures("installed")
def test_names_of_installed_packages_are_suggested(functions: Functions) -> None:
    """Like those of the language."""
    with pytest.raises(ConfigError, match="did you mean `team_scaled`"):
        declog.plan({"signals": {"any": {"x": ROWS}}, "metrics": {"m": "mean(team_scald(x))"}}, functions=functions)


@pytest.mark.usefixtures("installed")
def test_an_entry_point_that_cannot_be_loaded_says_so(functions: Functions) -> None:
    """An error of declog's, with the name and where it should be."""
    with pytest.raises(ConfigError, match=r"team_broken` of .* cannot be loaded from `team_declog_entries:not_there`"):
        declog.plan({"signals": {"any": {"x": ROWS}}, "metrics": {"m": "mean(team_broken(x))"}}, functions=functions)


@pytest.mark.usefixtures("installed")
def test_an_installed_name_is_not_replaced_in_silence(functions: Functions) -> None:
    """Whichever comes first."""
    with pytest.raises(UsageError, match="`team_scaled` is registered already"):
        declog.function(lambda x: x, name="team_scaled", registry=functions)


@pytest.mark.parametrize("decorator", [declog.function, declog.reducer])
def test_what_is_no_function_of_values(
    decorator: Callable[..., Any], functions: Functions, reductions: Reductions
) -> None:
    """Class: what is accepted and fails where it is used: a class, and a function of nothing."""

    class Geomean:
        def update(self, values: Any) -> None: ...

    registry = reductions if decorator is declog.reducer else functions
    with pytest.raises(declog.UsageError, match=r"a class came\n  fix: def Geomean\(values\): ..., which"):
        decorator(registry=registry)(Geomean)
    if decorator is declog.reducer:
        with pytest.raises(declog.UsageError, match="`nothing` is a function with a parameter for each"):
            decorator(lambda *values: 1.0, name="nothing", registry=registry)
