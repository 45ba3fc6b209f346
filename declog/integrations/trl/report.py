"""Passes the trainer's numbers to declog's sinks, and declog's values into the trainer's ``logs``, on every rank.

The trainer's log is the log event. declog gets ``logs`` after transformers, TRL and subclasses have put all their
numbers into it, and before any other callback. Numbers that the config does not compute pass through; declog's values
replace TRL's, or stand beside them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import Trainer, TrainerCallback

from declog.integrations.hook import Hooks, Part
from declog.integrations.logged import numbers_in, split_by_mode
from declog.integrations.trl.capture import CAPTURE_SIGNALS, Capture
from declog.integrations.trl.comparison import Comparison, MetricNames
from declog.integrations.trl.steps import EVAL, Steps
from declog.integrations.trl.support import Support
from declog.records import RANKS, THEIRS, Beside

MERGE = ("replace", "prefix")
REGULAR = frozenset({"loss", "train_runtime"})  # names in the logs of transformers' loop at `logging_steps`, at its end
TRAIN = "train"

log = logging.getLogger("declog")


class Report(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """The hook of ``trainer.log``, and the first of the trainer's callbacks, which gets everything the trainer reports.

    ``compared`` are metric names of which the trainer may compute another value; if it does, its own stays.
    """

    def __init__(
        self, trainer: Any, hooks: Hooks, capture: Capture, steps: Steps, support: Support,
        compared: Collection[str], *, merge: str | None, prefix: str, deliver_s: float,
    ) -> None:  # fmt: skip
        recorder = hooks.recorder
        self._trainer = trainer
        self._recorder = recorder
        self._steps = steps
        self._merge = merge
        self._prefix = prefix
        self._deliver_s = deliver_s
        self._names = MetricNames(recorder.plan.names())
        self._modal = MetricNames(f"{EVAL}_{name}" for name in recorder.plan.names())
        self._capture = capture
        self._guard = recorder.guard
        self._averages = support.rollouts or support.updates  # whether declog computes TRL's `_metrics`
        self._loop = support.loop  # whether declog computes every number that the trainer reports
        self._tested = support.tested and support.rollouts and support.updates
        self._regular = self._averages or type(trainer).train is Trainer.train  # whether transformers' loop logs
        self._evaluates = type(trainer).evaluate is Trainer.evaluate
        self._comparison = Comparison(trainer, compared)
        logged = recorder.plan.logged
        self._of_steps = {
            name: logged is not None and ops[0].phase == logged.phase  # whether it may arrive after the last step
            for name, ops in recorder.plan.sources.items()
            if ops[0].axis.label == "step" and not ops[0].family and name not in CAPTURE_SIGNALS
        }
        self._event: _Event | None = None  # the current call of `log`
        hooks.callback(self, first=True)
        hooks.add("log", self._log)

    def _log(self, *args: Any, **kwargs: Any) -> Part:
        logs = kwargs["logs"] if "logs" in kwargs else args[0]
        outer = self._event
        event = self._event = _Event(frozenset(logs))
        try:
            yield None
        finally:
            self._event = outer
        if event.logs is None:  # no callback was called, maybe on this rank only: the other ranks have a log event
            self.reported(event, logs, {})
        if event.logs is not logs:  # an evaluation returns this mapping
            logs.update(event.merged)
        if event.logs is not None and (added := {name: event.logs[name] for name in event.logs.keys() - event.names}):
            self._pass_through(added, self._steps.mode)  # numbers of callbacks after declog's
        self._missed(logs)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        """Merge declog's values: now the trainer's ``logs`` are complete, in its history, and not yet in a tracker."""
        with self._guard("declog's values could not be merged"):
            history = self._trainer.state.log_history
            entry = history[-1] if history and history[-1].keys() >= logs.keys() else {}
            self.reported(self._event or _Event(frozenset(logs)), logs, entry)

    def reported(self, event: _Event, logs: dict[str, Any], entry: dict[str, Any]) -> None:
        """Log the trainer's numbers, and put declog's values into its ``logs`` and its history ``entry``."""
        event.logs, event.names = logs, frozenset(logs)
        if self._steps.over:
            return
        if not self._ends_window(event, logs):
            return
        plain, exact = self._plain(logs, self._steps.mode)
        with self._guard("what the trainer reports could not be recorded"):
            self._signals(plain, logs)
        trains, before = self._steps.mode is None, self._before
        with self._guard("what the trainer reports could not be passed on"):
            if trains:
                self._steps.reach()
            self._recorder.log_metrics(self._passed_on(plain, logs))
        theirs = self._theirs(logs)
        compared = {name: value for name, value in theirs.items() if not self._comparison.differs(f"{before}{name}")}
        self._recorder.beside(Beside(compared=compared, exact=exact))
        if trains:
            self._steps.end()
            if not self._steps.ends_window():
                return
        values, complete = self._merged(logs)  # even if a block above failed, because the other ranks flush
        if complete:
            self._comparison.compare(theirs, values, before)
        self._comparison.cut.discard(self._half)
        event.merged = self._for_trainer(logs, values, complete=complete)
        logs.update(event.merged)
        if entry:
            entry.update(event.merged)
        event.names = frozenset(logs)

    def _ends_window(self, event: _Event, logs: Mapping[str, Any]) -> bool:
        """Whether this log of the trainer is a log event with declog's values; if not, pass its numbers through.

        A log by training code itself, with ``trainer.log``, is no log event, on whichever ranks it happens.
        """
        steps, half = self._steps, self._half
        if steps.mode is not None:
            regular = not self._evaluates or f"{steps.prefix}_runtime" in event.passed
        else:
            regular = not (steps.under_way or (self._regular and event.passed.isdisjoint(REGULAR)))
        if regular and (steps.mode is not None or not (steps.late or (self._regular and steps.unrecorded))):
            return True
        if regular:
            self._pass_through(logs, None, alone=steps.late)
            steps.begin_window()
        elif steps.mode is None and EVAL in self._recorder.plan.modes and _of_evaluation(event.passed):
            self._pass_through(logs, EVAL, alone=f"{EVAL}_runtime" in event.passed)  # attached inside an evaluation
        else:
            self._pass_through(logs, steps.mode)
        if not regular:
            self._comparison.cut.add(half)
        return False

    def _pass_through(self, logs: Mapping[str, Any], mode: str | None, *, alone: bool = False) -> None:
        """Give the numbers to the sinks unchanged."""
        plain, exact = self._plain(logs, mode)
        beside = Beside(numbers=plain, exact=exact, alone=alone)
        self._recorder.pass_through(beside, self._trainer.state.global_step, mode or TRAIN)

    # -- declog's values in the trainer's logs

    def _merged(self, logs: Mapping[str, Any]) -> tuple[dict[str, float], bool]:
        """The log event's values under the trainer's names for them, and whether they cover the rows of all ranks."""
        if self._merge is None and not self._comparison:
            self._recorder.flush()
            return {}, False
        before, computed = self._before, self._computed(logs)
        values = self._recorder.flush(wait_s=self._deliver_s) or {}
        complete = values.pop(RANKS, None) is None
        left_out = {f"{before}{name}" for name in self._capture.reward_logs.metrics}
        if self._merge == "replace":  # numbers that transformers and subclasses have computed themselves stay
            left_out |= logs.keys() - computed.keys()
        values = {
            name: value for name, value in values.items()
            if name not in left_out and not name.startswith(f"{before}{THEIRS}") and not math.isnan(value)
        }  # fmt: skip
        return values, complete

    def _for_trainer(self, logs: Mapping[str, Any], values: Mapping[str, float], *, complete: bool) -> dict[str, float]:
        """The values that are added to the trainer's logs."""
        if self._merge == "replace":
            return {
                name: value for name, value in values.items()
                if not self._comparison.differs(name) and (complete or name not in logs)
            }  # fmt: skip
        if self._merge == "prefix":
            before, added = self._before, f"{self._before}{self._prefix}"
            return {f"{added}{name.removeprefix(before)}": value for name, value in values.items()}
        return {}

    def _theirs(self, logs: Mapping[str, Any]) -> dict[str, float]:
        """The trainer's numbers that are compared with declog's; none if they cover another window than declog's."""
        if not self._comparison or (self._steps.mode is None and not self._steps.compares):
            return {}
        return self._comparison.numbers(logs, self._computed(logs), self._half)

    @property
    def _before(self) -> str:
        """The prefix of the mode's names; empty in training."""
        return "" if self._steps.mode is None else str(self._recorder.plan.modes[self._steps.mode].prefix)

    def _missed(self, logs: dict[str, Any]) -> None:
        """Warn if declog's metric that picks the best model is absent, and set it to NaN: no model is better then."""
        name = self._trainer.args.metric_for_best_model
        if self._merge is None or name is None or self._steps.mode is None:
            return
        name = name if name.startswith(f"{EVAL}_") else f"{EVAL}_{name}"
        if name not in logs and name in self._modal:
            log.warning("`%s` was not there in time to say whether this model is the best", name)
            logs[name] = math.nan

    # -- the trainer's own numbers

    def _signals(self, plain: Mapping[str, float], logs: Mapping[str, Any]) -> None:
        """Observe the reported numbers that the config declares as step signals."""
        signals = {name: plain[name] for name in self._of_steps.keys() & plain.keys()}
        loss = f"{self._steps.prefix}_loss"
        if self._steps.mode is not None and self._steps.mode == self._steps.prefix and loss in logs:
            signals["reported_loss"] = logs[loss]
        if self._recorder.in_step:
            self._capture.observe(signals)
        elif after := {name: value for name, value in signals.items() if self._of_steps.get(name)}:
            self._recorder.observe(**after, step="next")

    def _passed_on(self, plain: Mapping[str, float], logs: Mapping[str, Any]) -> dict[str, float]:
        """The numbers to log because no metric computes them: rank 0's, which are the same on all ranks, or its times.

        TRL's own averages are left out for a tested trainer: the config's metrics compute them, unless the config
        deleted them. The values that reward functions pass to ``log_metric`` are left out, as they are recorded there.
        """
        if not self._main:
            return {}
        averages = set(self._computed(logs).values()) if self._averages else set()
        left_out = averages if self._tested else averages & self._capture.reward_logs.metrics
        numbers = {name: value for name, value in plain.items() if name not in left_out and name not in self._names}
        before, differs = self._before, self._comparison.differs
        differing = {f"{THEIRS}{name}": value for name, value in plain.items() if differs(f"{before}{name}")}
        return numbers | differing

    def _computed(self, logs: Mapping[str, Any]) -> dict[str, str]:
        """The names in ``logs`` of the numbers that TRL computes as declog does, each with its name without prefix."""
        if self._loop:
            return {name: name for name, value in logs.items() if value == value}  # without NaN
        if not self._averages:
            return {}
        before = "" if self._half == TRAIN else f"{EVAL}_"
        return {f"{before}{name}": name for name in self._trainer._metrics[self._half] if f"{before}{name}" in logs}

    def _plain(self, logs: Mapping[str, Any], mode: str | None) -> tuple[dict[str, float], dict[str, float]]:
        """Split numbers into those of the mode, by names without its prefix, and the others, by their full names."""
        names = {} if self._loop else self._computed(logs)
        return split_by_mode(numbers_in(logs), mode, self._steps.prefix, names)

    @property
    def _half(self) -> str:
        """The half of its averages, ``train`` or ``eval``, that TRL puts into ``logs`` now."""
        return TRAIN if self._averages and self._trainer.model.training else EVAL

    @property
    def _main(self) -> bool:
        return bool(self._trainer.args.process_index == 0)


@dataclass
class _Event:
    """One call of the trainer's ``log``."""

    passed: frozenset[str]  # the names in the call
    logs: dict[str, Any] | None = None  # the mapping that callbacks get, with all numbers added since the call
    names: frozenset[str] = frozenset()  # the names in `logs` when declog was done with it
    merged: dict[str, float] = field(default_factory=dict)  # declog's values in `logs`


def _of_evaluation(names: Collection[str]) -> bool:
    return any(name.startswith(f"{EVAL}_") for name in names)
