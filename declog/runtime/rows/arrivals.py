"""The arrivals of a window: which signals were observed, and at which steps. A rank sends them to rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from itertools import groupby

from declog.engine.spans import PHASE, Span
from declog.engine.tables.table import EXTRA
from declog.plans.ops import PhaseOp
from declog.runtime.rows.window import Window


def arrivals(window: Window, phases: Mapping[str, PhaseOp]) -> dict[str, dict[str, Span]]:
    """Return, by phase, the steps of its batches, and of each signal and column of log_extra observed with them.

    Called by the worker.
    """
    by_phase: dict[str, dict[str, Span]] = {}
    for phase, batches in window.batches().items():
        if phase not in phases:
            continue
        spans = by_phase[phase] = dict[str, Span]()
        for names, alike in groupby(batches, lambda batch: batch.names):
            span = reduce(Span.then, [Span(batch.step, batch.step) for batch in alike])
            for name in (PHASE, *phases[phase].declared.intersection(names)):
                spans[name] = spans.get(name, span).then(span)
        for batch in batches:
            span = Span(batch.step, batch.step)
            for name in (*batch.astray, *(key[0] for key in batch.texts if key[0].startswith(EXTRA))):
                spans[name] = spans.get(name, span).then(span)
    return by_phase
