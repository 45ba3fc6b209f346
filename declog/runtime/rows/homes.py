"""The phase of a signal whose name alone does not decide it: the call decides, or the open batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from declog.language.dtypes import Axis
from declog.plans.ops import Plan, SignalOp
from declog.runtime.rows.batch import Batch


def intended_signals(
    plan: Plan, batches: Mapping[str, Batch], signals: Iterable[str]
) -> Mapping[str, Sequence[SignalOp]]:
    """Return, for each name of a call that may belong to several phases, the signals that it stands for."""
    sources, homes = plan.sources, plan.homes
    asked = {source: sources[source] for source in signals if source not in homes and source in sources}
    here = {homes[source] for source in signals if source in homes}
    if here:  # signals of the call's phases; else values per step, which have no rows of another phase
        return {
            source: [op for op in ops if op.phase in here]
            or [op for op in ops if op.axis is Axis.STEP and here.isdisjoint(op.homes)]
            for source, ops in asked.items()
        }
    if all(len(ops) == 1 for ops in asked.values()):
        return asked
    names: dict[str, set[str]] = {}
    for op in itertools.chain(*asked.values()):
        names.setdefault(op.phase, set()).add(op.name)
    unfilled = {phase for phase in names if phase in batches and batches[phase].names.isdisjoint(names[phase])}
    meant = names.keys() & announced(batches) or unfilled
    return {source: [op for op in ops if op.phase in meant] or ops[:1] for source, ops in asked.items()}


def announced(batches: Mapping[str, Batch]) -> list[str]:
    """The phases whose open batch has an announced number of completions: a block of ``log.batch(phase, rows=n)``."""
    return [phase for phase, batch in batches.items() if batch.size is not None]


def fitting(ops: Sequence[SignalOp], value: Any) -> Sequence[SignalOp]:
    """Return those of several signals with one observed name that a value fits: per step, or with rows."""
    if len({op.axis is Axis.STEP for op in ops}) == 1:
        return ops
    rows = isinstance(value, list | tuple | Mapping) or (
        isinstance(value, torch.Tensor | np.ndarray) and value.ndim > 0
    )
    return [op for op in ops if (op.axis is Axis.STEP) is not rows]


def homes_of(plan: Plan) -> Mapping[str, str]:
    """The phase of each name whose phase does not depend on the call; with a single phase, of all names."""
    logged = set() if plan.logged is None else {plan.logged.phase}
    phases = {*plan.homes.values(), *plan.phases} - logged
    return (
        plan.homes if len(phases) > 1 else {**{name: ops[0].phase for name, ops in plan.sources.items()}, **plan.homes}
    )
