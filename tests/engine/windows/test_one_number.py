"""One number on every way: windows and pieces, parts of a window, the run, labels, members, ranks, a resumed run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.testing import FakeComm, MemorySink, run_ranks

INF, NAN = math.inf, math.nan
Rows = list[float | None]
Steps = Sequence[Rows]
SIGNALS: dict[str, Any] = {
    "x": {"axis": "completion"}, "l": {"axis": "completion", "type": "text"},
    "w": {"axis": "completion"}, "u": {"axis": "token"},
    "f": {"axis": "completion", "family": True}, "z": {"axis": "completion"},
}  # fmt: skip
Metric = dict[str, Any]
Values = Mapping[str, float]
Ways = dict[str, tuple[Metric, dict[str, Any]]]  # what a metric has beside its reduction, and what the profile has
REDUCTIONS = ("mean", "sum", "min", "max", "std", "pstd", "var", "last", "count")


def logged(metrics: Mapping[str, Metric], steps: Sequence[Mapping[str, Any]], folder: Path, **ways: Any) -> Values:
    """The last values of a run; ``every``, ``window_bytes``, ``cut``: resumed after so many steps, ``ranks``."""
    cut, ranks = ways.pop("cut", None), ways.pop("ranks", 1)
    profile = {
        "signals": {"any": SIGNALS}, "metrics": {**metrics, "z": "count(z)"}, "axes": {"token": {"mask": "all"}},
        **ways,
    }  # fmt: skip
    sink = MemorySink()

    def rank(comm: FakeComm, numbers: range, states: Sequence[Any]) -> Any:
        sinks, state = [] if comm.rank else [sink], states[comm.rank]
        with declog.start(profile, sinks=sinks, comm=comm, output_dir=folder, resume=state) as log:
            for number in numbers:
                values = steps[number]
                part = {name: rows[comm.rank :: ranks] for name, rows in values.items() if name != "f"}
                if "f" in values:
                    part["f"] = {member: rows[comm.rank :: ranks] for member, rows in values["f"].items()}
                with log.step(number):
                    log.observe(**part)
            return log.state_dict() if numbers.stop == cut else None

    states: list[Any] = [None] * ranks
    for numbers in (range(cut), range(cut, len(steps))) if cut else (range(len(steps)),):
        states = run_ranks(ranks, partial(rank, numbers=numbers, states=states))
    return sink.scalars[len(steps) - 1]


def value(shown: Values, name: str) -> float | None:
    """A metric's value, or that of its label or member `a`."""
    return shown.get(name, shown.get(f"{name}/a"))


def plain(steps: Steps) -> list[dict[str, Any]]:
    """The rows as a signal per completion, with a label, a weight, as tokens, and as a member of a family."""
    return [
        {"x": rows, "l": ["a"] * len(rows), "w": [1.0] * len(rows), "f": {"a": rows}, "z": rows,
         "u": [[NAN if row is None else row] for row in rows]}
        for rows in steps
    ]  # fmt: skip


def reduced(reduce: str, values: Sequence[float]) -> float | None:
    """A reduction of values that are there, by numpy; None: it is absent."""
    array = np.array(values, np.float64)
    if not len(array) or (reduce in ("std", "var") and len(array) < 2):
        return None
    run: dict[str, Callable[[Any], Any]] = {
        "mean": np.mean, "sum": np.sum, "min": np.min, "max": np.max, "pstd": np.std, "count": len,
        "std": lambda values: np.std(values, ddof=1), "var": lambda values: np.var(values, ddof=1),
        "last": lambda values: values[-1],
        "first": lambda values: values[0],
    }  # fmt: skip
    with np.errstate(invalid="ignore"):
        return float(run[reduce](array))


def there(rows: Rows) -> list[float]:
    """The values that are not missing."""
    return [row for row in rows if row is not None]


def assert_one(expected: float | None, found: float | None, where: str) -> None:
    """The same value; NaN and infinities by name."""
    if expected is None or found is None or not math.isfinite(expected):
        assert str(found) == str(expected), where
    else:
        assert found == pytest.approx(expected), where


COMBINE = {"run": "mean", "propagate": "mean"}
COMBINED = ("mean", "sum", "min", "max", "first", "last", "var", "std")
INFINITE: list[Steps] = [
    [[1.0, 3.0], [INF, 1.0]],
    [[INF, 1.0], [2.0, 3.0], [4.0]],
    [[INF], [1.0, 2.0], [-INF]],
    [[-INF, 2.0], [1.0], [], [5.0, 6.0]],
    [[None, INF], [None], [1.0, None, 4.0]],
    [[INF, INF], [INF]],
]


@pytest.mark.parametrize("steps", INFINITE)
def test_an_infinity_is_one_on_every_way(steps: Steps, tmp_path: Path) -> None:
    """In a window, in parts of it, by label, of a member, of tokens, weighted, over the run, resumed, over ranks."""
    every, observed = len(steps), plain(steps)
    x, u, f, by = {"expr": "x"}, {"expr": "u"}, {"expr": "f"}, {"by": "l"}
    run, weight = {"over": "run"}, {"weight": "w"}
    ways: Ways = {
        "window": (x, {"every": every}), "parts": (x, {"every": every, "run": {"window_bytes": 1}}),
        "label": (x | by, {"every": every}), "member": (f, {"every": every}),
        "label, parts": (x | by, {"every": every, "run": {"window_bytes": 1}}), "tokens": (u, {"every": every}),
        "weighted": (x | weight, {"every": every}), "ranks": (x, {"every": every, "ranks": 2}),
        "tokens, ranks, label": (u | by, {"every": every, "ranks": 2}),
        "run": (x | run, {}), "run, resumed": (x | run, {"cut": 1}), "run, label": (x | run | by, {}),
        "run, member": (f | run, {}), "run, parts": (x | run, {"every": 2, "run": {"window_bytes": 1}}),
        "run, tokens": (u | run, {"cut": 1}), "run, weighted": (x | run | weight, {"cut": 1}),
    }  # fmt: skip
    for way, (keys, profile) in ways.items():
        reductions: tuple[str, ...] = ("mean", "sum") if "weighted" in way else REDUCTIONS
        if "tokens" in way or "ranks" in way:
            reductions = tuple(name for name in reductions if name != "last")
        metrics = {name: {**keys, "reduce": name} for name in reductions}
        shown = logged(metrics, observed, tmp_path / way, **profile)
        for name in reductions:
            expected = reduced(name, [row for rows in steps for row in there(rows)])
            assert_one(expected, value(shown, name), f"{name}, {way}")
            broken = expected is not None and not math.isfinite(expected)
            assert (shown.get(f"nonfinite/{name}", 0) > 0) is broken, (name, way)


@pytest.mark.parametrize("steps", INFINITE)
def test_a_piece_of_infinities_is_one_on_every_way(steps: Steps, tmp_path: Path) -> None:
    """A step whose value is NaN or infinite counts in what is combined, in a window and over the run."""
    every, observed = len(steps), plain(steps)
    x, u, f, by, run = {"expr": "x"}, {"expr": "u"}, {"expr": "f"}, {"by": "l"}, {"over": "run_step"}
    ways: Ways = {
        "window": (x, {"every": every}), "parts": (x, {"every": every, "run": {"window_bytes": 1}}),
        "batches": (x | {"over": "batch"}, {"every": every}), "label": (x | by, {"every": every}),
        "member": (f, {"every": every}), "tokens": (u, {"every": every}), "run": (x | run, {}),
        "run of windows": (x | run, {"every": 2}), "run, resumed": (x | run, {"cut": 1}),
        "run, label": (x | run | by, {}), "run, member": (f | run, {}),
    }  # fmt: skip
    for way, (keys, profile) in ways.items():
        pairs = list(product(("mean", "pstd", "max", *([] if way == "tokens" else ["last"])), COMBINED))
        metrics = {
            f"{name}_{how}": {"over": "step", **keys, "reduce": name, "combine": how} for name, how in pairs
        }  # fmt: skip
        shown = logged(metrics, observed, tmp_path / way, **profile)
        for name, how in pairs:
            pieces = [found for rows in steps if (found := reduced(name, there(rows))) is not None]
            assert_one(reduced(how, pieces), value(shown, f"{name}_{how}"), f"{how} of {name}, {way}")


def averaged(pieces: Sequence[float], combine: str = "ema(0.5)") -> float:
    """A moving average, from the first value on; or the mean of the last values."""
    if combine == "rolling(2)":
        return float(np.mean(pieces[-2:]))
    average = pieces[0]
    for value in pieces[1:]:
        average = 0.5 * average + 0.5 * value
    return average


@pytest.mark.parametrize("combine", ["ema(0.5)", "rolling(2)"])
@pytest.mark.parametrize("steps", [*INFINITE, [[1.0], [2.0, 4.0], [3.0]]])
def test_an_average_over_the_run_has_the_infinities_of_its_steps(steps: Steps, combine: str, tmp_path: Path) -> None:
    """Whatever `every` is, by label, of a member, resumed, and of a formula."""
    observed, by, average = plain(steps), {"by": "l"}, {"combine": combine}
    x, f = {"expr": "x", **average}, {"expr": "f", **average}
    ways: Ways = {
        "steps": (x, {}), "windows of two": (x, {"every": 2}), "one window": (x, {"every": len(steps)}),
        "label": (x | by, {"every": 2}), "member": (f, {"every": 2}), "resumed": (x, {"cut": 1}),
        "of windows": (x | {"over": "window"}, {}), "formula": ({"expr": "x"}, {}),
    }  # fmt: skip
    names = ("mean", "pstd", "max")
    for way, (keys, profile) in ways.items():
        metrics: dict[str, Metric] = {name: {**keys, "reduce": name} for name in names}
        if way == "formula":
            metrics |= {f"of_{name}": {"formula": f"{name} + 0", "combine": combine} for name in names}
        shown = logged(metrics, observed, tmp_path / way, **profile)
        for name in names:
            pieces = [found for rows in steps if (found := reduced(name, there(rows))) is not None]
            found = value(shown, f"of_{name}" if way == "formula" else name)
            assert_one(averaged(pieces, combine), found, f"{name}, {way}")


COMING: list[list[dict[str, Rows]]] = [
    [{"a": [1.0, 1.0]}, {"a": [1.0, 3.0], "b": [1.0, 1.0]}, {"a": [4.0, 1.0]}, {"b": [5.0, 1.0]}],
    [{"b": [2.0]}, {"a": [1.0], "b": [3.0]}, {}, {"a": [5.0]}],
    [{}, {"a": [None, 2.0], "b": [7.0, 8.0]}, {"a": [3.0, None]}, {"b": [None, None], "a": [1.0, 2.0]}],
]


def as_labels(steps: Sequence[dict[str, Rows]]) -> list[dict[str, Any]]:
    """The members' rows as rows of labels."""
    return [
        {"x": [row for rows in step.values() for row in rows], "l": [name for name, rows in step.items() for _ in rows]}
        for step in steps
    ]


def counted(name: str, rows: Rows) -> float | None:
    """The value of a step; of nothing but missing values a count is 0."""
    return 0.0 if name == "count" and rows and not there(rows) else reduced(name, there(rows))


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("kind", ["family", "labels", "optional"])
@pytest.mark.parametrize("steps", COMING)
def test_an_absent_member_is_left_out_whatever_every_is(
    steps: list[dict[str, Rows]], kind: str, every: int, tmp_path: Path
) -> None:
    """As an absent label and an optional signal are: a step that lacks it is no 0 and no missing value of it."""
    keys: Metric = {"family": {"expr": "f"}, "labels": {"expr": "x", "by": "l"}, "optional": {"expr": "x"}}[kind]
    observed = {
        "family": [{"f": step} if step else {} for step in steps], "labels": as_labels(steps),
        "optional": [{"x": step["a"]} if "a" in step else {} for step in steps],
    }[kind]  # fmt: skip
    for values, step in zip(observed, steps, strict=True):
        rows = values["x"] if kind == "labels" else next(iter(step.values()), [1.0])
        values["z"] = [1.0] * len(rows)
    ways: dict[str, Metric] = {
        "mean": {"combine": "mean"}, "min": {"combine": "min"}, "last": {"combine": "last"},
        "first": {"combine": "first"},
        "ema": {"combine": "ema(0.5)"}, "rolling": {"combine": "rolling(2)"},
        "run": {"combine": "mean", "over": "run_step"}, "propagate": {"combine": "mean", "nan": "propagate"},
    }  # fmt: skip
    if any(None in rows for step in steps for rows in step.values()):
        del ways["propagate"]
    pairs = list(product(("count", "sum", "mean", "max"), ways))
    metrics = {f"{name}_{way}": {"over": "step", **keys, "reduce": name, **ways[way]} for name, way in pairs}
    shown = logged(metrics, observed, tmp_path, every=every)
    for (name, way), member in product(pairs, ("a", "b") if kind != "optional" else ("a",)):
        window = steps if way in ("ema", "rolling", "run") else steps[len(steps) - every :]
        pieces = [found for step in window if (found := counted(name, step.get(member, []))) is not None]
        combined = averaged(pieces, ways[way]["combine"]) if pieces and way in ("ema", "rolling") else None
        expected = combined if combined is not None or not pieces else reduced(COMBINE.get(way, way), pieces)
        if expected is not None or not any(step.get(member) for step in window):  # else NaN, of missing values alone
            key = f"{name}_{way}" if kind == "optional" else f"{name}_{way}/{member}"
            assert_one(expected, shown.get(key), f"{key}, every {every}")


@pytest.mark.parametrize("kind", ["family", "labels"])
def test_empty_is_for_members_that_came_whatever_every_is(kind: str, tmp_path: Path) -> None:
    """Where a condition leaves nothing of one it is `empty`; where it is absent it is left out."""
    steps: list[dict[str, Rows]] = [
        {"a": [0.0], "b": [5.0]}, {"a": [6.0]}, {"b": [0.0]}, {"a": [8.0], "b": [9.0]}, {"a": [0.0], "b": [0.0]},
        {"b": [3.0]},
    ]  # fmt: skip
    reduce = "sum" if kind == "family" else "std"  # of one row a deviation is `empty`
    metric: Metric = {"reduce": reduce, "empty": -1, "over": "step", "combine": "sum"}
    metric |= {"expr": "f", "where": "z > 0"} if kind == "family" else {"expr": "x", "by": "l"}
    families = [{"f": step, "z": [max(row for rows in step.values() for row in there(rows))]} for step in steps]
    observed = families if kind == "family" else [{**values, "z": values["x"]} for values in as_labels(steps)]

    def totals(every: int) -> dict[str, float]:
        signals = {name: SIGNALS[name] for name in ("x", "l", "f", "z")}
        profile = {"every": every, "signals": {"any": signals}, "metrics": {"m": metric}}
        sink = MemorySink()
        with declog.start(profile, sinks=[sink], output_dir=tmp_path / f"{kind}{every}") as log:
            for number, values in enumerate(observed):
                with log.step(number):
                    log.observe(**values)
        names = {name for scalars in sink.scalars.values() for name in scalars}
        return {name: sum(scalars.get(name, 0.0) for scalars in sink.scalars.values()) for name in names}

    found = [totals(every) for every in (1, 2, 3, 6)]
    assert all(one == other for one, other in pairwise(found))
    assert found[0] == ({"m/a": 14.0 - 1, "m/b": 17.0 - 2} if kind == "family" else {"m/a": -4.0, "m/b": -5.0})


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("limit", [1, 10**9])
def test_what_holds_until_others_come_holds_whatever_every_is(
    every: int, ranks: int, limit: int, tmp_path: Path
) -> None:
    """Each signal and each member of a phase without rows for itself, over windows, ranks and a resumed run."""
    control = {
        "tau": "step", "lr": "step", "n": "step int", "h": {"axis": "step", "family": True}, "b": "step bool",
    }  # fmt: skip
    latest = {"reduce": "sum", "over": "step", "combine": "last"}
    exprs = {
        "tau": "x * tau",
        "lr": "x * lr",
        "both": "x * (tau * lr)",
        "h": "x * h",
        "n": "x * n",
        "b": "x if b else 0",
    }
    profile = {
        "every": every, "run": {"window_bytes": limit},
        "signals": {"update": {"x": "completion"}, "control": control},
        "metrics": {**{name: {"expr": expr, **latest} for name, expr in exprs.items()}, "rows": "count(x)"},
    }  # fmt: skip
    coming: list[dict[str, Any]] = [
        {"lr": 10.0, "h": {"p": 1.0, "q": 2.0}, "n": 7, "b": True}, {"tau": 2.0}, {"h": {"q": 5.0}}, {"tau": 4.0}, {},
    ]  # fmt: skip
    sink = MemorySink()

    def rank(comm: FakeComm, steps: Sequence[int], state: Any) -> Any:
        sinks = [] if comm.rank else [sink]
        with declog.start(profile, sinks=sinks, comm=comm, output_dir=tmp_path, resume=state) as log:
            for step in steps:
                with log.step(step):
                    log.observe(x=[1.0 + comm.rank])
                    if coming[step]:  # also after the rows of its step
                        log.observe(**coming[step])
            return log.state_dict()

    first = run_ranks(ranks, lambda comm: rank(comm, range(3), None))
    run_ranks(ranks, lambda comm: rank(comm, range(3, 5), first[comm.rank]))
    shown = {name: value for name, value in sink.scalars[4].items() if name != "rows"}
    each = sum(1.0 + rank for rank in range(ranks))
    expected = {"tau": 4.0, "lr": 10.0, "both": 40.0, "h/p": 1.0, "h/q": 5.0, "n": 7.0, "b": 1.0}
    assert shown == {name: value * each for name, value in expected.items()}
