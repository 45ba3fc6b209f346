"""Which signals came in a window, and at which steps: what a rank tells rank 0 of them.

Imports the window and the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from declog.engine.spans import PHASE, Span
from declog.engine.tables import EXTRA
from declog.plans.ops import PhaseOp
from declog.runtime.rows.batch import Batch
from declog.runtime.rows.window import Window


def arrivals(window: Window, phases: Mapping[str, PhaseOp]) -> dict[str, dict[str, Span]]:
    """The steps of each phase's batches, and of each signal and each column of log_extra that came with them.

    Called by the worker.
    """
    by_phase: dict[str, dict[str, Span]] = {}
    for phase, batches in window.batches().items():
        if phase not in phases:
            continue
        spans: dict[str, Span] = {}
        for names, span in _runs(batches):
            for name in (PHASE, *phases[phase].declared.intersection(names)):
                before = spans.get(name)
                spans[name] = span if before is None else before.then(span)
        for batch in batches:
            for name in (*batch.astray, *(key[0] for key in batch.texts if key[0].startswith(EXTRA))):
                spans[name] = spans.get(name, Span(batch.step, batch.step)).then(Span(batch.step, batch.step))
        by_phase[phase] = spans
    return by_phase


def _runs(batches: list[Batch]) -> list[tuple[Set[str], Span]]:
    """Batches in a row that have the same signals, and their steps."""
    runs: list[tuple[Set[str], Span]] = []
    for batch in batches:
        span = Span(batch.step, batch.step)
        if runs and runs[-1][0] == batch.names:
            runs[-1] = batch.names, runs[-1][1].then(span)
        else:
            runs.append((batch.names, span))
    return runs
