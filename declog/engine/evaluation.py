"""Evaluates the log events of a run in order: takes the rows of all ranks and sends each sink its records.

During a run, rank 0's collector delivers the rows. For a metric that is added later, they come from files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from declog.engine.cells import MetricValues
from declog.engine.frame import GROUP_ID, Frame, of_mode
from declog.engine.joins import Carryover
from declog.engine.log_event import RESTART, EventFacts
from declog.engine.publish import Dispatcher
from declog.engine.reduce import Report
from declog.engine.warnings.cut_windows import CutWindows
from declog.engine.warnings.mixed_groups import MixedGroups
from declog.engine.warnings.repeated_modes import RepeatedModes
from declog.engine.warnings.row_numbers import RowNumbers
from declog.engine.warnings.split_groups import SplitGroups
from declog.engine.window_state import WindowState
from declog.plans.ops import NO_SINK, Plan
from declog.records import Beside

log = logging.getLogger("declog")
Frames = dict[str, Frame]


class Evaluation:
    """Holds the windows of each mode, and the rows that joins carry over. A window that ends goes to ``dispatcher``.

    ``report`` is called with each failure.
    """

    def __init__(self, plan: Plan, dispatcher: Dispatcher, report: Report) -> None:
        self._plan = plan
        self._dispatcher = dispatcher
        self._unseen = not (plan.sinks or plan.in_code or plan.capture)  # there is no sink: logged values go nowhere
        self._windows = {
            mode: {period: WindowState(plan, period, report) for period in plan.periods} for mode in plan.modes
        }
        self._carries = {mode: Carryover(plan, report) for mode in plan.modes}
        self._row_numbers, self._split_groups, self._mixed = RowNumbers(plan), SplitGroups(plan), MixedGroups(plan)
        self._repeated, self._cut = RepeatedModes(plan), CutWindows(plan)
        self._checked: set[str] = set()  # the phases whose group ids have come in training

    def add(
        self, event: EventFacts, frames: Frames, *, figures: Callable[[], Mapping[str, float]] = dict,
        beside: Beside | None = None, asked: bool = True, came: bool = False,
    ) -> dict[str, float]:  # fmt: skip
        """Add a log event's rows to all windows, and evaluate the windows that end with it.

        Returns the logged scalars by name. ``figures`` returns declog's own costs. ``asked``: the caller uses the
        returned values, so the warning about missing sinks is not needed. ``came``: the log event had rows, maybe of
        phases that the plan does not have.
        """
        windows, tail = self._windows[event.mode], event.tail
        over = {period for period, window in windows.items() if tail or (not event.part and window.ends(event))}
        due: dict[int, WindowState] = {}
        frames = of_mode(frames, event.mode, self._checked)
        if event.mode == "train":
            self._checked.update(phase for phase, frame in frames.items() if frame.has(GROUP_ID))
        try:
            self._row_numbers.judge(frames)
            frames = self._carries[event.mode].apply(frames)
            self._dispatcher.inactive.ungrouped(event.mode, frames)
            self._split_groups.judge(frames)
            self._mixed.judge(event.mode, frames)
            for period, window in windows.items():
                window.add(event, frames, came=came)
                if period in over and (window or not tail):  # an empty window at the tail ended with the last step
                    due[period] = window.end()
        except BaseException:  # the next window must not start with the rows of the failed one
            for period in over:
                windows[period].clear(event.count)
            raise
        if not any(due.values()):  # no rows came since the last log event
            if event.mode == "train" and not event.part and event.back is None:  # a resumed run may go back at once
                periods = self._plan.periods if tail else tuple(due)
                tables = [op.id for op in self._plan.tables]
                self._dispatcher.inactive.judge(event, periods, MetricValues(), tables)
            return {}
        if self._unseen and not asked:
            self._unseen = False
            log.warning("%s", NO_SINK)
        if event.back is not None and event.back < event.step:  # sinks keep the steps that are not taken back
            parts = {period: window.parted(event.back) for period, window in due.items()}
            before, behind = ({period: sides[side] for period, sides in parts.items()} for side in (0, 1))
            if any(before.values()) and any(behind.values()):
                self._dispatch(replace(event, step=event.back), before)
                due = behind
            elif any(before.values()):
                event, due = replace(event, step=event.back), before
        logged = self._dispatch(event, due, figures=figures(), beside=beside)
        self._repeated.judge(event.mode, event.step, logged)
        return logged

    def _dispatch(self, event: EventFacts, due: Mapping[int, WindowState], **costs: Any) -> dict[str, float]:
        if event.mode == "train":
            self._cut.note(event.step, due)
        return self._dispatcher.dispatch(event, due, **costs)

    def rewind(self, step: int) -> None:
        """Take the run back to an earlier step.

        The run continues after that step, and counts the steps of training's windows anew. The joins and the values
        over the run of other modes go back too, since their evaluations are run again.
        """
        restart, step = step == RESTART, max(step, -1)
        self._repeated.rewind()
        self._cut.rewind(step, restart=restart)
        for carry in self._carries.values():
            carry.rewind(step)
        self._dispatcher.rewind(step, restart=restart)
        self._dispatcher.inactive.rewind("train", step)
        for window in self._windows["train"].values():
            window.clear()

    # -- checkpoints

    @property
    def open_windows(self) -> dict[str, set[int]]:
        """The periods of the windows that have rows, by mode."""
        return {
            mode: {period for period, window in by_period.items() if window}
            for mode, by_period in self._windows.items()
        }

    def state(self) -> tuple[Frames, dict[str, Any]]:
        """The state for a checkpoint: frames by name, and plain data."""
        frames: Frames = {}
        data: dict[str, Any] = {"dispatch": self._dispatcher.state(), "carry": {}, "held": {}}
        for kind, name, part in self._parts():
            rows, data[kind][name] = part.state()
            frames |= {f"{kind}/{name}/{phase}": frame for phase, frame in rows.items()}
        return frames, data

    def load(self, frames: Mapping[str, Frame], data: Mapping[str, Any]) -> None:
        """Restore the state of an equal plan."""
        self.load_dispatcher(data)
        for name, frame in frames.items():
            _, frame.mode, *_, frame.phase = name.split("/")
        for kind, name, part in self._parts():
            prefix = f"{kind}/{name}/"
            rows = {name.removeprefix(prefix): frame for name, frame in frames.items() if name.startswith(prefix)}
            part.load(rows, data[kind].get(name, {}))

    def load_dispatcher(self, data: Mapping[str, Any]) -> None:
        """Restore only the dispatcher's part, such as the values over the run: the state is of a different plan."""
        self._dispatcher.load(data["dispatch"])

    def _parts(self) -> Iterator[tuple[str, str, Carryover | WindowState]]:
        """Every object that holds rows, with its kind and name in a checkpoint."""
        for mode, windows in self._windows.items():
            yield "carry", mode, self._carries[mode]
            yield from (("held", f"{mode}/{period}", window) for period, window in windows.items())
