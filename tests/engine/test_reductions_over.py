"""Reductions of rows with `over=`: of each group's completions, of members, of labels, against numpy."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.language.nodes import Node, walk
from declog.language.reductions import DEFAULT, reducer
from declog.language.segmented import Segments
from declog.plans.fingerprint import expressions
from declog.plans.ops import Plan
from declog.testing import MemorySink, run_ranks

NAN = float("nan")
SIGNALS: dict[str, Any] = {
    "gid": "completion text", "x": "completion float", "topic": "completion text", "ok": "completion bool",
    "f": {"axis": "completion", "family": True}, "u": {"axis": "token"}, "mask": {"axis": "token", "type": "bool"},
}  # fmt: skip


def config(metrics: Mapping[str, Any], **group: Any) -> dict[str, Any]:
    return {
        "run": {"name": "over"}, "axes": {"group": {"of": "gid", **group}, "token": {"mask": "mask"}},
        "signals": {"rollout": SIGNALS}, "metrics": metrics,
    }  # fmt: skip


@pytest.fixture
def gini() -> Any:
    @reducer(name="gini_of_group")
    def run(values: Any) -> float:
        ordered, n = np.sort(values), len(values)
        return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * ordered.sum()))

    yield run
    DEFAULT.discard("gini_of_group")


def rows(seed: int) -> dict[str, list[Any]]:
    """Groups of other sizes, out of order, with values that are missing, and one group of nothing else."""
    draw = np.random.default_rng(seed)
    gids = list(draw.permutation(np.repeat(["a", "b", "c", "d"], [1, 4, 5, 2])))
    x = [NAN if gid == "d" or draw.random() < 0.2 else float(draw.random()) for gid in gids]
    return {"gid": [str(gid) for gid in gids], "x": x, "ok": [bool(draw.random() < 0.5) for _ in gids]}


def groups(batch: Mapping[str, Sequence[Any]], of: str) -> list[np.ndarray]:
    """The values of each group that are not missing."""
    values, gids = np.array(batch[of], float), np.array(batch["gid"])
    return [part[~np.isnan(part)] for gid in dict.fromkeys(batch["gid"]) for part in [values[gids == gid]]]


def spread(values: np.ndarray) -> float:
    ordered, n = np.sort(values), len(values)
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * ordered.sum()))


CASES: Mapping[str, Callable[[np.ndarray], float]] = {
    "p50(x, over=completion)": lambda x: float(np.quantile(x, 0.5)),
    "p99_9(x, over=completion)": lambda x: float(np.quantile(x, 0.999)),
    "p75(x, over=completion) - p25(x, over=completion)": lambda x: float(np.subtract(*np.quantile(x, [0.75, 0.25]))),
    "top_mean(x, over=completion)": lambda x: float(x[x >= np.quantile(x, 0.8)].mean()),
    "top_mean(x, over=completion, share=0.5)": lambda x: float(x[x >= np.quantile(x, 0.5)].mean()),
    "gini_of_group(x, over=completion)": spread,
    "p50(ok, over=completion)": lambda ok: float(np.quantile(ok, 0.5)),
    "p90(x * 2 + 1, over=completion)": lambda x: float(np.quantile(x * 2 + 1, 0.9)),
}


@pytest.mark.parametrize("expr", CASES)
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_reduction_of_each_group(expr: str, pieces: int, gini: Any, tmp_path: Path) -> None:
    """One value per group, of which the metric has the mean and, by label, each; a group without values has none."""
    metrics = {"mean": f"mean({expr})", "each": {"expr": expr, "by": "first(gid, over=completion)"}}
    sink, batches = MemorySink(), [rows(step) for step in range(3)]
    settings = {"split": "batches"} if pieces > 1 else {}
    with declog.start(config(metrics, **settings), sinks=[sink], output_dir=tmp_path) as log:
        for step, batch in enumerate(batches):
            with log.step(step):
                for part in np.array_split(np.arange(len(batch["gid"])), pieces):
                    log.observe(**{name: [values[row] for row in part] for name, values in batch.items()})
    of = "ok" if "ok" in expr else "x"
    for step, batch in enumerate(batches):
        by_group = {
            gid: CASES[expr](values)
            for gid, values in zip(dict.fromkeys(batch["gid"]), groups(batch, of), strict=True) if len(values)
        }  # fmt: skip
        expected = {"mean": float(np.mean([*by_group.values()]))} | {f"each/{gid}": by_group[gid] for gid in by_group}
        assert sink.scalars[step] == pytest.approx(expected, rel=1e-12)
        assert "each/d" not in sink.scalars[step] or of == "ok"


def test_of_members_and_of_labels(gini: Any, tmp_path: Path) -> None:
    """A value per row of a family's members, and in a formula one of a metric's labels."""
    metrics = {
        "of_members": "mean(p50(f, over=member))", "of_each": "mean(p50(f, over=completion))",
        "t": {"expr": "x", "by": "topic"},
        "of_labels": {"formula": "gini_of_group(t, over=label) + p50(t, over=label)"},
    }  # fmt: skip
    draw, sink = np.random.default_rng(0), MemorySink()
    f, x = draw.random((3, 8)), draw.random(8)
    f[1, 2] = NAN
    topics, gids = ["a", "b", "c", "c"] * 2, ["p"] * 3 + ["q"] * 5
    with declog.start(config(metrics), sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(
            gid=gids, topic=topics, x=x.tolist(), f={name: list(row) for name, row in zip("rst", f, strict=True)}
        )
    labels = np.array([x[np.array(topics) == topic].mean() for topic in "abc"])
    expected = {
        "of_members": np.nanquantile(f, 0.5, axis=0).mean(),
        **{f"of_each/{name}": np.mean([np.nanquantile(row[:3], 0.5), np.nanquantile(row[3:], 0.5)])
           for name, row in zip("rst", f, strict=True)},
        **{f"t/{topic}": value for topic, value in zip("abc", labels, strict=True)},
        "of_labels": spread(labels) + np.quantile(labels, 0.5),
    }  # fmt: skip
    assert sink.scalars[0] == pytest.approx(expected, rel=1e-12)


def test_constants_of_a_reduction(tmp_path: Path) -> None:
    """By name or in their order, of numbers and of bools; one whose default is None may be left out, or is needed."""

    @reducer(name="shifted")
    def run(values: Any, *, by: float, sign: bool = True, more: Any = None) -> float:
        return float(values.mean() + (by if sign else -by) + (more or 0.0))

    calls = {
        "a": ("by=2", 2.0), "b": ("2", 2.0), "c": ("by=2, sign=False", -2.0), "d": ("by=1, more=4", 5.0),
        "e": ("3, False, 1", -2.0),
    }  # fmt: skip
    metrics = {name: f"mean(shifted(x, {said}, over=completion))" for name, (said, _) in calls.items()}
    sink = MemorySink()
    try:
        with declog.start(config(metrics), sinks=[sink], output_dir=tmp_path) as log, log.step(0):
            log.observe(gid=["p", "p", "q"], x=[1.0, 3.0, 5.0])
        with pytest.raises(declog.ConfigError, match=r"write `mean\(shifted\(x, over=completion, by=by\)\)`"):
            declog.plan(config({"m": "mean(shifted(x, over=completion))"}))
    finally:
        DEFAULT.discard("shifted")
    assert sink.scalars[0] == {name: pytest.approx(3.5 + added) for name, (_, added) in calls.items()}


def test_groups_of_two_ranks(gini: Any, tmp_path: Path) -> None:
    """Groups that are spread over ranks are reduced as a whole, by a function of one's own, too."""
    metrics = {"m": "mean(gini_of_group(x, over=completion))", "q": "mean(p90(x, over=completion))"}
    draw = np.random.default_rng(1)
    values, gids = draw.random((2, 6)), [["a", "a", "b", "b", "c", "c"]] * 2
    sink = MemorySink()

    def body(comm: Any) -> None:
        sinks, plan = [sink] if not comm.rank else [], config(metrics, split="ranks")
        with declog.start(plan, sinks=sinks, output_dir=tmp_path, comm=comm) as log, log.step(0):
            log.observe(x=values[comm.rank].tolist(), gid=gids[comm.rank])

    run_ranks(2, body)
    parts = [values[:, at : at + 2].ravel() for at in (0, 2, 4)]
    expected = {
        "m": np.mean([spread(part) for part in parts]),
        "q": np.mean([np.quantile(part, 0.9) for part in parts]),
    }
    assert sink.scalars[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("expr", "message"), [
    ("mean(p90(u, over=token))", "`p90` needs the tokens themselves"),
    ("mean(u * p50(f, over=member))", "`p50(f, over=member)` in a per-token expression"),
    ("mean(p90(topic, over=completion))", "`p90` needs "),
    ("mean(histogram(x, over=completion))", "`histogram` is a reduction"),
    ("mean(corr(x, x, over=completion))", "`corr` is a reduction"),
    ("mean(p90(x))", "`p90` in `expr` is a second reduction"),
    ("mean(top_mean(x, over=completion, part=0.5))", "`top_mean` has no parameter `part`"),
    ("mean(top_mean(x, over=completion, share=x))", "`share`"),
    ("mean(top_mean(x, over=completion, share=2))", "`share` is a part of the values"),
    ("mean(top_mean(x, share=0, over=completion))", "`share` is a part of the values"),
    ("mean(quantile(x, over=completion, q=0.9))", "write `mean(p90(x, over=completion))`"),
    ("mean(quantile(max(f, over=member), 0.5, over=completion))", "`mean(p50(max(f, over=member), over=completion))`"),
    ("mean(abs(x - p50(x)))", "of each group it is `p50(x, over=completion)`"),
    ("mean(fails_always(x, over=completion))", "the reduction `fails_always` failed"),
])  # fmt: skip
def test_what_cannot_be_is_refused(expr: str, message: str) -> None:
    """Before step 0: of tokens, of texts, of several columns, and a function that takes something else."""

    @reducer(name="fails_always")
    def run(values: Any) -> Any:
        return values.median()

    try:
        with pytest.raises(declog.ConfigError) as caught:
            declog.plan(config({"m": expr}))
    finally:
        DEFAULT.discard("fails_always")
    assert message in str(caught.value)


def test_a_plan_goes_to_another_process() -> None:
    """Pickled, with reductions of declog's own by their names."""
    metrics = {"m": "mean(p99_9(x, over=completion))", "n": "mean(top_mean(x, over=completion, share=0.5))"}
    plan = declog.plan(config(metrics))
    there = pickle.loads(pickle.dumps(plan))
    assert there.fingerprint == plan.fingerprint
    values, one = np.arange(5.0), Segments.single(5)
    for name, function in plan.functions.items():
        expected = function.aggregate(walked(plan, name))(values, one)
        assert there.functions[name].aggregate(walked(there, name))(values, one) == expected


def walked(plan: Plan, name: str) -> Node:
    """The call of a function in a plan."""
    return next(node for node in walk(*expressions(plan)) if node.op == name)


def test_another_function_is_another_plan() -> None:
    """The fingerprint of a plan has what the function does, as it has of a metric's own reduction."""
    prints = []
    for share in (0.5, 0.25):

        @reducer(name="own_share")
        def run(values: Any, *, share: float = share) -> float:
            return float(np.quantile(values, 0.5) * share)

        try:
            prints.append(declog.plan(config({"m": "mean(own_share(x, over=completion))"})).fingerprint)
        finally:
            DEFAULT.discard("own_share")
    assert len({*prints}) == 2
