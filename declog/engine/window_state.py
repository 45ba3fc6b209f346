"""The content of a window so far, on rank 0: rows of all ranks, or states in place of rows when there are too many.

A window keeps rows until they exceed the plan's ``window_bytes``. Then they are folded: metrics with mergeable states
update these, and only rows that something else needs are kept, such as columns for quantiles, and steps with rows that
a table's filter may take. Parts end with a step, so that no group is cut in two.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cached_property
from typing import Any

import numpy as np

from declog.engine import filters
from declog.engine.cells import MetricValues
from declog.engine.evaluator import View
from declog.engine.frame import EARLIER_GROUP, GROUP_ID, Frame, Projection, merged, parted
from declog.engine.layout import Layout
from declog.engine.log_event import EventFacts
from declog.engine.partials import State, aligned, source
from declog.engine.reduce import Reductions, Report, failure
from declog.engine.tables.table import EXTRA
from declog.language.dtypes import Axis
from declog.language.nodes import LEAVES, Node, walk
from declog.plans.fingerprint import expressions
from declog.plans.ops import MetricOp, Plan, TableOp

log = logging.getLogger("declog")
Frames = Mapping[str, Frame]


class WindowState:
    """The rows and states of one window: for the metrics and tables of one mode and one period."""

    def __init__(self, plan: Plan, period: int, report: Report) -> None:
        self._plan = plan
        self._report = report
        self._period = period
        self._folding = [op for op in plan.metrics if op.every == period and op.reduction.foldable]
        by_rows = [op for op in plan.metrics if op.every == period and not op.reduction.foldable]
        tables = [op for op in plan.tables if op.every == period]
        ids = {GROUP_ID, EARLIER_GROUP} if plan.ids is None else {GROUP_ID, EARLIER_GROUP, plan.ids}
        self._reductions = Reductions(self._folding, kept=True)
        self._count = 0  # how many steps of its mode had ended at the last log event
        self._all = _needs([*self._folding, *by_rows], tables, ids)
        self._of_rows = _needs(by_rows, [], ids)
        self._tables = _needs([], tables, ids)
        self._table_ops = tables
        self.clear()

    def clear(self, count: int = 0) -> None:
        """Make the window empty; ``count`` steps of its mode have ended before it."""
        self._began = count
        self._parts: list[Frames] = []  # rows that are not folded yet
        self._bytes = 0
        self._states: dict[int, State] = {}  # states of folded rows, by the index of a block of metrics
        self._failed: set[str] = set()  # metrics whose states could not be computed
        self.folded = False  # whether any rows were folded
        self._first: int | None = None  # the lowest step of the folded rows
        self._kept: list[Frames] = []  # folded rows that metrics without states still need
        self._picked: list[Frames] = []  # folded rows that tables still need
        self._reported = False
        self.partial: int | None = None  # the smallest number of ranks that delivered rows, if some were missing
        self.seconds = 0.0  # the time that its steps took
        self.elapsed = 0.0  # the time since the recorder's start

    def ends(self, event: EventFacts) -> bool:
        """Whether the window ends with a log event of its mode, which is no part.

        If the trainer decides when it logs, the window ends with the first log event at or after a multiple of its
        steps.
        """
        if event.mode != "train" or self._plan.every:
            return self._plan.ends(event.mode, event.count, self._period)
        return not self._period or event.count // self._period > self._began // self._period

    def add(self, event: EventFacts, frames: Frames, *, came: bool = False) -> None:
        """Add the rows of a log event, or of a part of one; ``came``: rows came, maybe of phases not in the plan."""
        self._count = event.count
        self.seconds, self.elapsed = self.seconds + event.seconds, max(self.elapsed, event.elapsed)
        if event.partial is not None:
            self.partial = event.partial if self.partial is None else min(self.partial, event.partial)
        if not frames and not came:
            return
        if self._parts or self.folded:  # a window of several log events: keep only the columns that it will read
            frames = _only(self._all, frames)
        self._parts.append(frames)
        self._bytes += sum(map(_size, frames.values()))
        if self._bytes > self._plan.window_bytes:
            self._fold()

    def end(self) -> WindowState:
        """Return the finished window as a copy, and make this one empty."""
        if self.folded:
            self._fold()
        self._parts = [merged(self._parts)] if self._parts else []  # merged once, for both metrics and tables
        ended = copy.copy(self)
        self.clear(self._count)
        return ended

    def parted(self, step: int) -> tuple[WindowState, WindowState]:
        """The finished window up to a step, and the one after it; folded rows stay together, with the first of them."""
        before, behind = copy.copy(self), copy.copy(self)
        if self.folded:
            empty = behind if self._first is not None and self._first <= step else before
            empty.folded, empty._parts = False, []
            return before, behind
        for window, frames in zip((before, behind), parted(merged(self._parts), step), strict=True):
            window._parts = [frames] if frames else []
            window.seconds = self.seconds * _steps(frames) / max(_steps(merged(self._parts)), 1)
        return before, behind

    def __bool__(self) -> bool:
        return bool(self._parts or self.folded)

    @property
    def first(self) -> int | None:
        """The lowest step of its rows; None if it has none."""
        steps = [frame.batches.step for part in self._parts for frame in part.values() if len(frame.batches)]
        folded = [] if self._first is None else [self._first]
        return min([*folded, *(int(of_frame.min()) for of_frame in steps)], default=None)

    @property
    def stepless(self) -> bool:
        """Whether steps of its mode ended before it but none in it, as when a trainer reports the time of training."""
        return 0 < self._count == self._began

    # -- reading a finished window

    @cached_property
    def views(self) -> dict[str, View]:
        """By phase, the rows for metrics; of a folded window, the rows for metrics without states."""
        return self._views(self._kept if self.folded else self._parts)

    @property
    def table_views(self) -> dict[str, View]:
        """By phase, the rows for tables."""
        return self._views(self._picked) if self.folded else self.views

    def _views(self, parts: Sequence[Frames]) -> dict[str, View]:
        return {name: View(frame, self._plan.function) for name, frame in merged(parts).items()}

    def state_of(self, op: MetricOp) -> State | None:
        """The folded state of a metric; None if it has none."""
        return None if op.key in self._failed else self._reductions.state_of(op, self._states)

    def finish(self, results: MetricValues) -> None:
        """Add the values of the metrics that were folded."""
        self._reductions.finish(self._states, results)
        for key in self._failed:
            results.pop(key, None)

    # -- folding

    def _fold(self) -> None:
        """Fold the rows: update the states, and drop the rows that nothing else needs."""
        frames = merged(self._parts)
        views = {name: View(frame, self._plan.function) for name, frame in frames.items()}
        self._first = self.first

        def failed(op: MetricOp, error: BaseException) -> None:
            if op.key not in self._failed:
                self._failed.add(op.key)
                self._report(failure(f"the metric `{op.called}`", error))

        for number, state in self._reductions.states(views, failed).items():
            states = [self._states[number], state] if number in self._states else [state]
            self._states[number] = State.merged(states)
        self.folded = True
        self._kept.append(_only(self._of_rows, frames))
        picked = merged([*self._picked, _only(self._tables, frames)])
        self._picked = [{phase: self._candidates(phase, frame) for phase, frame in picked.items()}]
        self._parts.clear()
        self._bytes = sum(_size(frame) for part in (*self._kept, *self._picked) for frame in part.values())
        if self._bytes > self._plan.window_bytes and not self._reported:
            self._reported = True
            log.warning(
                "a window of %s steps holds %d bytes of rows, over window_bytes (%d): quantiles, user's reductions "
                "and tables need them; shorten `every`, or drop one",
                self._period or "an unknown number of",
                self._bytes,
                self._plan.window_bytes,
            )
        self._bytes = 0  # only new rows count: the kept ones would trigger a fold at each event

    def _candidates(self, phase: str, frame: Frame) -> Frame:
        """The steps of a frame with rows that a table may show."""
        steps = frame.batches.step
        keep = np.zeros(len(steps), bool)
        for op in self._table_ops:
            if op.phase != phase:
                continue
            if op.keep == "last_batch":
                keep |= steps == steps.max(initial=0)
            elif op.filter is None:
                keep[:] = True
            else:
                axis, view = op.axis, View(frame, self._plan.function)
                rows = filters.candidates(op.filter, view, np.arange(frame.count(axis)), axis)
                keep |= np.isin(steps, frame.spread(steps, Axis.STEP, axis)[rows])
        return frame if keep.all() else frame.take(np.flatnonzero(keep))

    # -- checkpoints

    def state(self) -> tuple[dict[str, Frame], dict[str, Any]]:
        """The state for a checkpoint: rows by kind and phase, and plain data."""
        kinds = {"rows": self._parts, "kept": self._kept, "picked": self._picked}
        frames = {f"{kind}/{phase}": frame for kind, parts in kinds.items() for phase, frame in merged(parts).items()}
        states = {op.key: state.plain() for op in self._folding if (state := self.state_of(op)) is not None}
        return frames, {
            "folded": self.folded, "states": states, "failed": sorted(self._failed), "partial": self.partial,
            "seconds": self.seconds, "began": self._began, "first": self._first,
            "came": bool(self),
        }  # fmt: skip

    def load(self, frames: Frames, data: Mapping[str, Any]) -> None:
        """Restore a checkpoint."""
        self.clear()
        for kind, parts in (("rows", self._parts), ("kept", self._kept), ("picked", self._picked)):
            stored = {name.removeprefix(f"{kind}/"): frame for name, frame in frames.items() if name.startswith(kind)}
            if stored:
                parts.append(stored)
        self._bytes = sum(_size(frame) for part in self._parts for frame in part.values())
        if data.get("came") and not self._parts:
            self._parts.append({})
        self.folded = bool(data.get("folded"))
        self.partial = data.get("partial")
        self.seconds = data.get("seconds", 0.0)
        self._began = data.get("began", 0)
        self._first = data.get("first")
        for number, block in enumerate(self._reductions.blocks):
            ops = {source(op): op for op in block.ops if op.key in data.get("states", {})}
            if ops:
                states = [State.of_plain(op, data["states"][op.key]) for op in ops.values()]
                self._states[number] = State.beside(aligned(states))
        self._failed = set(data.get("failed", ()))


def _needs(metrics: Iterable[MetricOp], tables: Iterable[TableOp], ids: Iterable[str]) -> dict[str, Projection]:
    """The columns that metrics and tables read, by phase."""
    names: dict[str, set[str]] = {}
    extras: set[str] = set()
    for op in metrics:
        columns = names.setdefault(op.phase, set(ids))
        columns |= _read(*op.args, *op.clauses.values()) | {name for name in (op.fold, op.tokens) if name}
    for table in tables:
        names.setdefault(table.phase, set(ids)).update(_read(*expressions(table)))
        if any(column.undeclared is not None for column in table.columns):
            extras.add(table.phase)
    return {phase: _projection(columns, phase in extras) for phase, columns in names.items()}


def _projection(names: Set[str], extras: bool) -> Projection:
    """Keeps these columns of a phase; ``extras``: also all columns of log_extra."""

    def name_of(layout: Layout, name: str, dtype: np.dtype[Any]) -> str | None:
        read = name in names or name.split(".")[0] in names or (extras and name.startswith(EXTRA))
        return name if read else None

    return Projection(name_of)


def _read(*nodes: Node) -> set[str]:
    """The names of the columns that expressions read. The name of a fold stands for the columns of its statistics."""
    leaves = [node for node in walk(*nodes) if node.op in LEAVES]
    return {str(value) for node in leaves for name, value in node.params if name == "name"}


def _only(columns: Mapping[str, Projection], frames: Frames) -> dict[str, Frame]:
    return {phase: columns[phase].of(frame) for phase, frame in frames.items() if phase in columns}


def _steps(frames: Frames) -> int:
    """The number of steps that have rows."""
    return len({int(step) for frame in frames.values() for step in frame.batches.step})


def _size(frame: Frame) -> int:
    """The approximate number of bytes in a frame."""
    items = [item for _, values in frame.texts.values() for item in values]
    texts = [
        len(item) if isinstance(item, str) else item.nbytes for item in items if isinstance(item, str | np.ndarray)
    ]
    return sum([block.data.nbytes for block in frame.blocks]) + 8 * len(items) + sum(texts)
