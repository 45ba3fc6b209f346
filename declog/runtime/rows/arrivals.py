"""Which signals came in a window, and at which steps: what a rank tells rank 0 of them.

Imports the window and the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from itertools import groupby

from declog.engine.spans import PHASE, Span
from declog.engine.tables import EXTRA
from declog.plans.ops import PhaseOp
from declog.runtime.rows.window import Window


def arrivals(window: Window, phases: Mapping[str, PhaseOp]) -> dict[str, dict[str, Span]]:
    """The steps of each phase's batches, and of each signal and each column of log_extra that came with them.

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
