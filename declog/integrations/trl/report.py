"""What the trainer reports: its numbers go to declog's sinks, and declog's values into its ``logs``, on every rank.

Where the trainer is seen, its log is the log event: declog's values are made before TRL adds its own averages, and put
into the finished ``logs`` before any other callback has them. Where it is not, all that it reports passes through,
and values of other names are put beside it.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping
from numbers import Real
from typing import Any

from transformers import TrainerCallback

from declog.integrations.trl.capture import Capture
from declog.integrations.trl.hook import Guard, Hooks, Part
from declog.integrations.trl.steps import EVAL, Steps
from declog.integrations.trl.support import Support
from declog.records import RANKS

MERGE = ("replace", "prefix")
THEIRS = "trainer/"  # before a name that both have and do not agree about

log = logging.getLogger("declog")


class Report:
    """The hook of ``trainer.log``, or the callback that stands in for it.

    ``compared`` are names of the profile whose values this trainer may have in another way: where it has, its own stay.
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
        self._names = _Names(recorder.plan.names())
        self._modal = _Names(f"{EVAL}_{name}" for name in recorder.plan.names())
        self._capture = capture
        self._guard = recorder.guard
        self._whole = support.tested and support.rollouts and support.updates
        self._computed = support.loop  # all that it reports is computed here, too
        self._compared = _Names(compared)
        self._differ: set[str] = set()  # of those, what differed
        logged = recorder.plan.logged
        self._of_steps = {
            name: logged is not None and ops[0].phase == logged.phase  # whether it may come after the last step
            for name, ops in recorder.plan.sources.items()
            if ops[0].axis.label == "step" and not ops[0].family
        }
        self._values: dict[str, float] | None = None  # of the log event, from its begin until the callbacks have them
        self._whole_event = False  # whether they are of all rows
        self._logged: dict[str, Any] | None = None  # what they got
        if support.rollouts or support.updates:
            hooks.callback(_Finished(self, self._guard), first=True)
            hooks.add("log", self._log)
        else:
            hooks.callback(_PassThrough(self, self._guard), first=True)

    # -- where the trainer is seen

    def _log(self, *args: Any, **kwargs: Any) -> Part:
        logs = kwargs["logs"] if "logs" in kwargs else args[0]
        given = dict(logs)
        with self._guard("what the trainer reports could not be recorded"):
            self._signals(given)
        self._steps.end()
        with self._guard("what the trainer reports could not be passed on"):
            self._pass_on({**self._others(), **self._stripped(given), **self._epoch()})
        self._values, self._whole_event = self._merged(given)  # also where a part failed: other ranks flush, too
        self._logged = None
        yield None
        found, self._values = self._logged, None
        if found is not None and found is not logs:  # the same mapping is what an evaluation returns
            logs.clear()
            logs.update(found)
        self._missed(logs)

    def _merged(self, given: Collection[str]) -> tuple[dict[str, float], bool]:
        """The log event's values under the trainer's names for them, and whether they are of all rows."""
        if self._merge is None and not self._compared:
            self._recorder.flush()
            return {}, False
        found = self._recorder.flush(wait_s=self._deliver_s) or {}
        whole = found.pop(RANKS, None) is None
        own = {f"{self._before}{name}" for name in self._capture.given.metrics}
        values = {name: value for name, value in found.items() if name not in own and not math.isnan(value)}
        if self._merge == "replace":  # what transformers has computed itself stays
            values = {name: value for name, value in values.items() if name not in given}
        return values, whole

    def finished(self, logs: dict[str, Any], entry: dict[str, Any]) -> None:
        """The trainer's ``logs`` are whole, its history has them as ``entry``, and no tracker has had them."""
        values, self._logged = self._values, logs
        if not values:
            return
        self._values = None
        if self._whole_event:
            self._compare(logs, values)
        if self._merge == "replace":
            taken = {
                name: value
                for name, value in values.items()
                if name not in self._differ and (self._whole_event or name not in logs)
            }
        elif self._merge == "prefix":
            before, added = self._before, f"{self._before}{self._prefix}"
            taken = {f"{added}{name.removeprefix(before)}": value for name, value in values.items()}
        else:
            taken = {}
        logs.update(taken)
        entry.update(taken)

    def _compare(self, logs: Mapping[str, Any], values: Mapping[str, float]) -> None:
        """Say once where values differ from those of a trainer that this version of declog was not compared with."""
        before, found = self._before, {}
        for name, value in values.items():
            own = logs.get(name)
            same = own is None or math.isclose(own, value, rel_tol=1e-4, abs_tol=1e-6)
            if not same and name.removeprefix(before) in self._compared:
                found[name] = own
        new = {name: own for name, own in found.items() if name not in self._differ}
        self._differ |= found.keys()
        if new and self._main:
            differences = ", ".join(f"`{name}` ({values[name]:g}, the trainer {own:g})" for name, own in new.items())
            log.warning(
                "%s has other numbers than declog, which stay in its logs, and are `%s` in declog's: %s",
                type(self._trainer).__name__, f"{THEIRS}NAME", differences,
            )  # fmt: skip

    @property
    def _before(self) -> str:
        """What the mode puts before its names."""
        return "" if self._steps.mode is None else str(self._recorder.plan.modes[self._steps.mode].prefix)

    def _missed(self, logs: dict[str, Any]) -> None:
        """A metric of declog's own that picks the best model, and did not come: without it there is no better one."""
        name = self._trainer.args.metric_for_best_model
        if self._merge is None or name is None or self._steps.mode is None:
            return
        name = name if name.startswith(f"{EVAL}_") else f"{EVAL}_{name}"
        if name not in logs and name in self._modal:
            log.warning("`%s` was not there in time to say whether this model is the best", name)
            logs[name] = math.nan

    def _signals(self, given: Mapping[str, float]) -> None:
        """Observe reported numbers that the profile has as signals of the step."""
        if not self._recorder.in_step:
            return
        found = {name: value for name, value in self._stripped(given).items() if name != "loss"}
        loss = f"{self._steps.prefix}_loss"
        if self._steps.mode == self._steps.prefix and loss in given:
            found["reported_loss"] = given[loss]
        self._capture.observe(found)

    def _others(self) -> dict[str, float]:
        """What a subclass or another version has besides, averaged as TRL averages it."""
        found: dict[str, float] = {}
        if self._whole:
            return found
        mode, before = "train" if self._trainer.model.training else "eval", self._before
        for name, values in self._trainer._metrics[mode].items():
            there = [value for value in values if not math.isnan(value)]
            if there and name not in self._capture.given.metrics:
                found[f"{THEIRS}{name}" if f"{before}{name}" in self._differ else name] = sum(there) / len(there)
        return found

    # -- numbers of the trainer's own

    def passed(self, logs: dict[str, Any], entry: dict[str, Any]) -> None:
        """All that a trainer reports that is not seen, ``entry`` of its history: a log event of it."""
        if self._steps.over:
            return
        reported = {name: value for name, value in entry.items() if name != "step"}
        with self._guard("what the trainer reports could not be recorded"):
            own = self._stripped(reported)
            if self._recorder.in_step:
                self._capture.observe({name: own[name] for name in self._of_steps.keys() & own.keys()})
            elif after := {name: own[name] for name, may in self._of_steps.items() if may and name in own}:
                self._recorder.observe(**after, step="next")
            self._steps.end()
            others = {f"{THEIRS}{name}": reported[name] for name in self._differ & reported.keys()}
            self._pass_on({**own, **others})
        kept = {name for name, value in reported.items() if not self._computed or value != value}  # a NaN is news
        self._values, self._whole_event = self._merged(kept)
        self.finished(logs, entry)
        self._values = None

    def _pass_on(self, numbers: Mapping[str, Any]) -> None:
        """Rank 0's are logged: they are the same on all ranks, or rank 0's times."""
        if not self._main:
            return
        for name, value in numbers.items():
            if name not in self._names and isinstance(value, Real):
                self._recorder.log_metric(name, value)

    def _stripped(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Numbers under the names that they have in any mode."""
        steps = self._steps
        if steps.mode is None:
            return dict(logs)
        return {name.removeprefix(f"{steps.mode}_"): value for name, value in logs.items() if name != "epoch"}

    def _epoch(self) -> dict[str, float]:
        epoch = self._trainer.state.epoch
        return {} if self._steps.mode is not None or epoch is None else {"epoch": epoch}

    @property
    def _main(self) -> bool:
        return bool(self._trainer.args.process_index == 0)


class _Names:
    """The names of a plan; those that only a run knows in part, by their pattern."""

    def __init__(self, names: Iterable[str]) -> None:
        self._any = bool(names := list(names))
        patterns = [re.escape(name).replace(r"\{column\}", ".+").replace(r"\{label\}", ".+") for name in names]
        self._pattern = re.compile("|".join(pattern for pattern in patterns if pattern != ".+") or "(?!)")

    def __bool__(self) -> bool:
        return self._any

    def __contains__(self, name: str) -> bool:
        return self._pattern.fullmatch(name) is not None


class _Finished(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """The first of the trainer's callbacks."""

    def __init__(self, report: Report, guard: Guard) -> None:
        self._report = report
        self._guard = guard

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        with self._guard("declog's values could not be merged"):
            self._report.finished(logs, state.log_history[-1])


class _PassThrough(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    def __init__(self, report: Report, guard: Guard) -> None:
        self._report = report
        self._guard = guard

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        with self._guard("declog's values could not be merged"):
            self._report.passed(logs, state.log_history[-1])
