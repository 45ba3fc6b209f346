"""Presets with something wrong in their metrics: do their own profile tests find it?

One kind of mistake is made in all metrics of a preset at once, and a metric is found where an expectation of its own
value fails. ``python -m tests.replay.mutations grpo`` prints those that no test finds.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import declog
from declog.errors import ConfigError
from declog.plans.ops import Plan
from declog.testing import config_tests

Metric = dict[str, Any]
Change = Callable[[Metric], Metric | None]  # a metric with the mistake; None where it cannot be made

OTHERS: Mapping[str, tuple[str, str]] = {
    "mean": ("sum", "max"), "sum": ("mean", "max"), "min": ("max", "mean"), "max": ("min", "mean"),
    "std": ("pstd", "mean"), "pstd": ("std", "mean"), "var": ("std", "mean"), "count": ("sum", "mean"),
    "last": ("mean", "max"),
}  # fmt: skip


# What no test finds, by preset, with the reason.
KNOWN: Mapping[str, Mapping[str, str]] = {
    "trl_grpo": {
        "entropy_coef: reduction": "of rank 0 alone: a batch has one value",
        "entropy_coef: another reduction": "the same",
        "entropy_coef: over": "the same",
        "step_time: reduction": "of rank 0 alone: a batch has one value",
        "step_time: another reduction": "the same",
        "step_time: over": "the same",
        "num_tokens: another reduction": "the latest value of a counter is its greatest",
        "low_min: where": "the share of a completion without tokens is missing: `where` spares the report of it",
        "high_max: where": "the same",
    },
    "maxent_grpo": {
        "clip_low_min: mask": "of single tokens: 0 wherever one is not clipped",
        "clip_high_max: mask": "of single tokens: 1 wherever one is clipped",
        "global_step: reduction": "a log event of one step, in all tests but one",
        "global_step: another reduction": "the latest step is the greatest",
        "global_step: over": "a log event of one step, in all tests but one",
        "grpo_objective: reduction": "a constant",
        "grpo_objective: another reduction": "a constant",
        "grpo_objective: over": "a constant",
        "maxent_objective: reduction": "a constant",
        "maxent_objective: another reduction": "a constant",
        "maxent_objective: over": "a constant",
    },
}
# Presets whose own tests are few, since others compare every value.
ELSEWHERE: Mapping[str, str] = {
    "verl_ppo": "with what verl computes: tests/integrations/own_env",
    "trl_rloo": "with what TRL logged: tests/engine/windows/test_trl.py",
    "trl_async_grpo": "with what TRL's trainer computes: tests/integrations/trl",
    "ppo": "with numpy, of a whole run: tests/integrations/test_ppo_example.py",
    "trl_ppo": "the same",
    "tee": "with what loops log: tests/integrations/test_tee.py",
}


def other(reduction: str, which: int) -> str | None:
    """Another reduction of as many expressions."""
    if re.fullmatch(r"p\d+", reduction):
        level = int(reduction[1:])
        return "mean" if which else f"p{level + 10 if level < 50 else level - 10}"
    return OTHERS[reduction][which] if reduction in OTHERS else None


def reduced(which: int, metric: Metric) -> Metric | None:
    """Every reduction is another one."""
    reduce = metric.get("reduce", "mean")
    if "formula" in metric:
        return None
    if isinstance(reduce, str):
        made: Any = other(reduce, which)
    else:
        items = [item if isinstance(item, dict) else {item: item} for item in reduce]
        made = [{name: other(each, which) or each for name, each in item.items()} for item in items]
    return None if made is None else {**metric, "reduce": made}


def without(key: str, metric: Metric) -> Metric | None:
    """The metric does not say it."""
    return {name: value for name, value in metric.items() if name != key} if metric.get(key) is not None else None


def pooled(metric: Metric) -> Metric | None:
    """One value per batch, averaged; or of the window, where it was one per batch."""
    if "formula" in metric or str(metric.get("over")).startswith("run") or "histogram" in str(metric.get("reduce")):
        return None
    over = metric.get("over") or "window"
    changed = {key: value for key, value in metric.items() if key not in ("over", "combine")}
    return {**changed, "over": "batch" if over == "window" else "window"}


def mutants(data: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], set[str]]]:
    """A profile with each kind of mistake, and the metrics that have it."""
    kinds: dict[str, Change] = {
        "reduction": partial(reduced, 0), "another reduction": partial(reduced, 1),
        "where": partial(without, "where"), "weight": partial(without, "weight"),
        "over": pooled,
    }  # fmt: skip
    for kind, change in kinds.items():
        made = copy.deepcopy(dict(data))
        changed = set()
        for name, metric in data["metrics"].items():
            if metric is not None and (mutant := change(dict(metric))) is not None:
                made["metrics"][name] = mutant
                changed.add(name)
        if changed:
            yield kind, made, changed
    if (data.get("axes") or {}).get("token"):
        made = copy.deepcopy(dict(data))
        observed = [entry for signals in (made.get("signals") or {}).values() for entry in (signals or {}).values()]
        for entry in (made["axes"]["token"], *observed, *(made.get("derived") or {}).values()):
            if isinstance(entry, dict) and entry.get("mask") not in (None, "all"):
                entry["mask"] = f"({entry['mask']}) or not ({entry['mask']})"  # padding, too
        yield "mask", made, folded(declog.plan(data))


def folded(plan: Plan) -> set[str]:
    """The metrics that read folds of tokens."""
    return {
        op.id
        for op in plan.metrics
        if op.fold is not None or any("fold" in str(node) for node in (*op.args, op.where, op.by) if node is not None)
    }


def found(data: Mapping[str, Any], plan: Plan) -> set[str]:
    """The metrics of which an expectation fails, and those that their formulas read."""
    patterns = [
        (re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(item.template))), op)
        for op in plan.outputs
        for item in op.names
    ]
    prefixes = sorted({mode.prefix for mode in plan.modes.values()}, key=len, reverse=True)
    metrics = set()
    for test in config_tests(data):
        for difference in test.run().differences:
            for name in re.findall(r"expect\.(.+)", difference.where):
                plain = next((name.removeprefix(each) for each in prefixes if each and name.startswith(each)), name)
                exact = {op.id for op in plan.outputs if plain in (op.id, op.key)}
                shown = {op.id for op in plan.outputs for item in op.names if item.template == plain}
                globbed = {op.id for pattern, op in patterns if pattern.fullmatch(plain)}
                metrics |= exact or shown or globbed
    return metrics


def survivors(preset: str, *overrides: str) -> set[str]:
    """``metric: kind`` for each mistake in a shown metric that no test of the preset finds."""
    data = declog.config_of(declog.compose(preset, overrides))
    data["sinks"] = []
    for table in (data.get("tables") or {}).values():
        table["to"] = {}
    plan = declog.plan(data)
    shown = {op.id for op in plan.outputs if op.shown}
    left = set()
    for kind, mutant, changed in mutants(data):
        if kind == "mask":
            changed = folded(plan)
        caught = found(mutant, plan) if kind == "mask" else together(data, mutant, plan, sorted(changed))
        left |= {f"{name}: {kind}" for name in changed & shown - caught}
    return left


def together(data: Mapping[str, Any], mutant: Mapping[str, Any], plan: Plan, changed: list[str]) -> set[str]:
    """What is found of some metrics' mistakes; where they cannot be together, of each half of them."""
    mistaken = {name: mutant["metrics"][name] for name in changed}
    try:
        return found({**data, "metrics": {**data["metrics"], **mistaken}}, plan) & set(changed)
    except ConfigError:  # which finds it, where there is one alone
        half = len(changed) // 2
        halves = (changed[:half], changed[half:])
        return set(changed) if not half else set().union(*(together(data, mutant, plan, each) for each in halves))


def main() -> int:
    """The survivors of the presets that are named."""
    for preset in sys.argv[1:]:
        name, *overrides = preset.split("+")
        print(preset, *sorted(survivors(name, *overrides)), sep="\n  ")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
