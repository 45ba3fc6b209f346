"""What the trainer reports: its numbers go to declog's sinks, and declog's values into its ``logs``, on every rank.

Where the trainer is seen, its log is the log event: declog's values are there before TRL adds its own averages. Where
it is not, all that it reports passes through afterwards.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from transformers import TrainerCallback

import declog
from declog.integrations.trl.capture import Capture
from declog.integrations.trl.hook import Guard, Part, hook
from declog.integrations.trl.sight import Sight
from declog.integrations.trl.steps import Steps
from declog.records import RANKS

MERGE = ("replace", "prefix")
EVAL = "eval_"  # transformers' own prefix
CHECKED = 3  # log events at which the values of a TRL that was not tested are compared with TRL's

log = logging.getLogger("declog")


class Report:
    """The hook of ``trainer.log``, or the callback that stands in for it."""

    def __init__(
        self, trainer: Any, recorder: declog.Recorder, capture: Capture, steps: Steps, sight: Sight,
        guard: Guard, *, merge: str | None, prefix: str, deliver_s: float,
    ) -> None:  # fmt: skip
        self._trainer = trainer
        self._recorder = recorder
        self._steps = steps
        self._merge = merge
        self._prefix = prefix
        self._deliver_s = deliver_s
        self._names = _Names(recorder.plan.names())
        self._modal = _Names(f"{EVAL}{name}" for name in recorder.plan.names())
        self._capture = capture
        self._guard = guard
        self._tested = sight.tested
        self._unchecked = 0 if sight.tested or merge != "replace" else CHECKED
        if sight.rollouts or sight.updates:
            hook(trainer, "log", self._log, guard)
        else:
            trainer.add_callback(_PassThrough(self, guard))

    # -- where the trainer is seen

    def _log(self, *args: Any, **kwargs: Any) -> Part:
        if self._steps.over:
            return
        logs = kwargs["logs"] if "logs" in kwargs else args[0]
        given = dict(logs)
        with self._guard("what the trainer reports could not be recorded"):
            self._signals(given)
        self._steps.end()
        with self._guard("what the trainer reports could not be passed on"):
            self._pass_on({**self._others(), **self._stripped(given), **self._epoch()})
        merged = self._merged(logs, given)  # also where a part failed: other ranks flush, too
        if merged is None:
            yield None
            return
        yield (args, {**kwargs, "logs": merged}) if "logs" in kwargs else ((merged, *args[1:]), kwargs)
        self._missed(merged)
        logs.clear()
        logs.update(merged)  # the same mapping is what an evaluation returns
        if self._unchecked:
            self._check(merged)

    def _merged(self, logs: Mapping[str, Any], given: Mapping[str, float]) -> Merged | None:
        """The trainer's ``logs`` with the log event's values, under the names that they get there."""
        if self._merge is None:
            self._recorder.flush()
            return None
        found = self._recorder.flush(wait_s=self._deliver_s) or {}
        whole = found.pop(RANKS, None) is None
        mode = self._recorder.plan.modes["eval"].prefix if self._steps.evaluating else ""
        if self._merge == "prefix":
            found = {f"{mode}{self._prefix}{name.removeprefix(mode)}": value for name, value in found.items()}
        own = {f"{mode}{name}" for name in self._capture.given.metrics}
        values = {
            name: value
            for name, value in found.items()
            if name not in given and name not in own and not math.isnan(value)
        }
        return Merged(logs, values, whole=whole)

    def _missed(self, merged: Merged) -> None:
        """A metric of declog's own that picks the best model, and did not come: without it there is no better one."""
        name = self._trainer.args.metric_for_best_model
        name = name if name is None or name.startswith(EVAL) else f"{EVAL}{name}"
        if self._steps.evaluating and name is not None and name not in merged and name in self._modal:
            log.warning("`%s` was not there in time to say whether this model is the best", name)
            merged[name] = math.nan

    def _signals(self, given: Mapping[str, float]) -> None:
        """Observe reported numbers that the profile has as signals of the step."""
        if not self._recorder.in_step:
            return
        found = {name: value for name, value in self._stripped(given).items() if name != "loss"}
        if self._steps.evaluating and "eval_loss" in given:
            found["reported_loss"] = given["eval_loss"]
        self._capture.observe(found)

    def _others(self) -> dict[str, float]:
        """What a subclass or another version has besides, averaged as TRL averages it."""
        found: dict[str, float] = {}
        if self._tested:
            return found
        mode = "train" if self._trainer.model.training else "eval"
        for name, values in self._trainer._metrics[mode].items():
            there = [value for value in values if not math.isnan(value)]
            if there and name not in self._capture.given.metrics:
                found[name] = sum(there) / len(there)
        return found

    def _check(self, merged: Merged) -> None:
        """Say where values differ from those of a TRL that this version was not compared with."""
        self._unchecked -= 1
        for name, own in merged.hidden.items():
            if own is not None and not math.isclose(own, merged[name], rel_tol=1e-4, abs_tol=1e-6):
                log.warning("`%s`: declog has %g, and this trainer has %g", name, merged[name], own)

    # -- numbers of the trainer's own

    def passed(self, logs: Mapping[str, Any]) -> None:
        """All that a trainer reported that is not seen: a log event of it."""
        if self._steps.over:
            return
        self._steps.end()
        self._pass_on(self._stripped(logs))
        self._recorder.flush()

    def _pass_on(self, numbers: Mapping[str, Any]) -> None:
        """Rank 0's are logged: they are the same on all ranks, or rank 0's times."""
        if not self._main:
            return
        for name, value in numbers.items():
            if name not in self._names and isinstance(value, Real):
                self._recorder.log_metric(name, value)

    def _stripped(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Numbers under the names that they have in any mode."""
        if not self._steps.evaluating:
            return dict(logs)
        return {name.removeprefix(EVAL): value for name, value in logs.items() if name != "epoch"}

    def _epoch(self) -> dict[str, float]:
        epoch = self._trainer.state.epoch
        return {} if self._steps.evaluating or epoch is None else {"epoch": epoch}

    @property
    def _main(self) -> bool:
        return bool(self._trainer.args.process_index == 0)


class _Names:
    """The names of a plan; those that only a run knows in part, by their pattern."""

    def __init__(self, names: Iterable[str]) -> None:
        patterns = [re.escape(name).replace(r"\{column\}", ".+").replace(r"\{label\}", ".+") for name in names]
        self._pattern = re.compile("|".join(pattern for pattern in patterns if pattern != ".+") or "(?!)")

    def __contains__(self, name: str) -> bool:
        return self._pattern.fullmatch(name) is not None


class Merged(dict[str, Any]):
    """The ``logs`` of one log: what TRL adds with ``update`` does not hide declog's values, and is kept beside them.

    It does where those are not ``whole``: rows are missing that TRL has.
    """

    def __init__(self, logs: Mapping[str, Any], values: Mapping[str, float], *, whole: bool = True) -> None:
        super().__init__(logs)
        super().update(values)
        self.hidden: dict[str, Any] = {}
        self._values = frozenset(values if whole else ())

    def update(self, *args: Any, **kwargs: Any) -> None:
        added: dict[str, Any] = dict(*args, **kwargs)
        self.hidden |= {name: value for name, value in added.items() if name in self._values}
        super().update({name: value for name, value in added.items() if name not in self._values})


class _PassThrough(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    def __init__(self, report: Report, guard: Guard) -> None:
        self._report = report
        self._guard = guard

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with self._guard("what the trainer reports could not be recorded"):
            reported = dict(state.log_history[-1])  # `logs` has less, where a callback before this took something out
            reported.pop("step")
            self._report.passed(reported)
