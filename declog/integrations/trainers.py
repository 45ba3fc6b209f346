"""Any trainer of transformers: a callback that takes what the trainer reports, and what the loop observes.

The callback knows the trainer by what callbacks are given: a step is an optimizer step, an evaluation the mode
``eval``, and a log event the trainer's own log, or the end of an epoch. Uses declog's public API as a stranger would.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import declog
from declog.errors.habits import refuse_arguments, shown_at_the_call
from declog.integrations import open_step
from declog.integrations.logged import numbers_in
from declog.records import Beside

if TYPE_CHECKING:
    from declog.sinks import Sink

__all__ = ["callback"]

logger = logging.getLogger("declog")
EVAL = "eval"


@shown_at_the_call
def callback(
    config: Any = "trainer",
    overrides: Sequence[str] = (),
    *unnamed: Never,
    sinks: Sequence[Sink] = (),
    output_dir: str | Path | None = None,
    wait_s: float = 30.0,
    start_s: float = 60.0,
    **unknown: Never,
) -> Any:
    """A callback for any trainer of transformers: ``Trainer(..., callbacks=[declog.callback()])``.

    ``config`` is a preset's name with ``overrides``, or anything that ``declog.start`` takes; the others are those of
    ``declog.start``. Made on every rank. What is wrong with the config raises ``ConfigError`` here; sinks open when
    training, or a first evaluation, begins. Files go to ``output_dir``, by default ``declog`` below the trainer's.

    Each number that the trainer reports is logged under its name. What the config declares as a signal of the step is
    observed as that, and so is what any code observes while a step is open: a loss function, say, calls
    ``declog.observe``. The config's ``every`` is ``trainer`` (each ``logging_steps``), ``epoch``, or steps. The
    callback's ``recorder`` is None until it has begun; it is closed at the end of the program, or by ``close()``.
    """
    refuse_arguments(callback, config, overrides, sinks, unnamed, unknown, declog.LogSpec.model_fields)
    config = declog.compose(config, overrides)
    plan = declog.plan(config)
    options = {"sinks": sinks, "output_dir": output_dir, "wait_s": wait_s, "start_s": start_s}
    return _callback()(config, plan, options)


@dataclass(frozen=True)
class _Told:
    """The ``logs`` of the last log event, and the names that they had when the callback was told."""

    logs: dict[str, Any] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    step: int = 0
    evaluated: bool = False


def _named(numbers: dict[str, Any], *, evaluated: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers under the names that they have in any mode, and those whose names are of no mode."""
    if not evaluated:
        return numbers, {}
    plain = {name.removeprefix(f"{EVAL}_"): value for name, value in numbers.items() if name.startswith(f"{EVAL}_")}
    exact = {name: value for name, value in numbers.items() if not name.startswith(f"{EVAL}_") and name != "epoch"}
    return plain, exact


class _Loop:
    """Steps, evaluations and log events of a trainer, as its callbacks are called."""

    recorder: declog.Recorder | None = None

    def __init__(self, config: Any, plan: declog.Plan, options: dict[str, Any]) -> None:
        self._config = config
        self._plan = plan
        self._options = options  # of a start
        self._tokenizer: Any = None
        self._epochs = declog.config_of(config).get("every") == "epoch"
        self._step: Any = None  # an OpenStep, when the run has begun
        self._mode: AbstractContextManager[Any] | None = None
        self._epoch_ended = False  # its log event waits for what the trainer reports
        self._told = _Told()

    def close(self) -> None:
        """Log the last window and close the sinks; idempotent."""
        if self.recorder is not None:
            self._add_late()
            self._leave()
            self._end()
            self.recorder.close()

    # -- what the trainer calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        log = self.recorder
        if log is not None and log.last_step not in (None, state.global_step) and state.global_step:
            self.close()  # it goes on from a checkpoint, in this folder
        if log is not None and log.closed:  # a notebook's cell that is run again
            self.recorder = self._step = self._mode = None
        self._tokenizer = kwargs.get("processing_class")
        log = self._log(args)
        log.total_steps = state.max_steps
        log.training(True)
        self._leave()
        if state.global_step and not log.closed and log.last_step != state.global_step:  # not where it trains on
            checkpoints = importlib.import_module("declog.integrations.checkpoints")
            checkpoints.load(log, args, self._checkpoint(args, state.global_step))
        if args.eval_on_start:
            self._enter(log, state)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        log = self._log(args)
        self._leave()
        with log.guard("a step could not be begun"):
            self._step.begin(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        log = self._log(args)
        self._step.stop(control)
        self._evaluates(log, state, control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.recorder is not None:  # else its trackers open first, and what was observed of it is lost
            self._enter(self.recorder, state)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if self.recorder is None and state.is_world_process_zero:
            logger.warning("before training declog has of an evaluation only what the trainer reports")
        log = self._log(args)
        if log.closed:
            return
        numbers = numbers_in(logs or {})
        if "loss" not in numbers and any(name.startswith(f"{EVAL}_") for name in numbers):
            self._enter(log, state)
        else:
            self._leave()
        if self._mode is None:
            self._step.reach(state)  # it may have begun without the callback
        with log.guard("what the trainer reports could not be recorded"):
            plain, exact = _named(numbers, evaluated=self._mode is not None)
            self._take(log, plain, main=state.is_world_process_zero)
            log.beside(Beside(exact=exact))
        self._told = _Told(logs or {}, frozenset(logs or {}), state.global_step, self._mode is not None)
        self._end()
        if self._mode is None:
            if self._epoch_ended if self._epochs else not log.plan.modes["train"].every:
                log.flush()
            self._epoch_ended = False
            if control.should_evaluate:
                self._enter(log, state)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._evaluated(self._log(args), state)

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        self._evaluated(self._log(args), state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        log = self._log(args)
        self._leave()  # an evaluation at its last step has ended
        if self._epochs and not log.closed:
            if control.should_log:  # what it reports is of this epoch
                self._epoch_ended = True
            else:
                self._end()
                log.flush()
        self._evaluates(log, state, control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        log = self._log(args)
        self._leave()
        self._end()
        if not log.closed:
            if self._epochs and float(state.epoch or 0).is_integer():  # a resumed run begins with the next epoch
                log.flush()
            checkpoints = importlib.import_module("declog.integrations.checkpoints")
            with log.guard("declog's state could not be saved", "a run resumed from here starts new windows"):
                checkpoints.save(log, args, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The window that is open is a log event, also where nobody closes the callback."""
        log = self._log(args)
        self._leave()
        self._end()
        if not log.closed:
            log.flush(wait_s=self._options["wait_s"])
        self._enter(log, state)
        log.training(False)

    # -- inside

    def _log(self, args: Any) -> declog.Recorder:
        self._add_late()
        if self.recorder is None:
            self.recorder = open_step.start(self._config, self._plan, args, tokenizer=self._tokenizer, **self._options)
            self._step = open_step.OpenStep(self.recorder)
        return self.recorder

    def _add_late(self) -> None:
        """Numbers that callbacks behind this one have put into the ``logs`` of the last log event."""
        told, self._told = self._told, _Told()
        added = numbers_in({name: told.logs[name] for name in told.logs.keys() - told.names})
        if added and self.recorder is not None:
            plain, exact = _named(added, evaluated=told.evaluated)
            mode = EVAL if told.evaluated else "train"
            self.recorder.pass_through(Beside(numbers=plain, exact=exact), told.step, mode)

    def _take(self, log: declog.Recorder, numbers: dict[str, Any], *, main: bool) -> None:
        """Signals of the step on all ranks, which report alike; other numbers from rank 0."""
        signals = {name: value for name, value in numbers.items() if name in log.plan.signal_names}
        if signals and log.in_step:
            log.observe(**signals)
        log.scalars({name: value for name, value in numbers.items() if main and name not in signals})

    def _checkpoint(self, args: Any, step: int) -> Path:
        """Where the training that is resumed was saved: what ``train`` was given, which it tells no callback."""
        frame = inspect.currentframe()
        while frame is not None:
            folder = frame.f_locals.get("resume_from_checkpoint")
            if isinstance(folder, str | os.PathLike):
                return Path(folder)
            frame = frame.f_back
        return Path(args.output_dir) / f"checkpoint-{step}"

    def _evaluates(self, log: declog.Recorder, state: Any, control: Any) -> None:
        """A step or an epoch has ended: where the trainer evaluates now, what its batches observe is of that."""
        if control.should_evaluate and not control.should_log:  # else it begins when the trainer has logged
            self._enter(log, state)

    def _evaluated(self, log: declog.Recorder, state: Any) -> None:
        """Until training goes on, what is observed next is of another evaluation: of another data set, or by hand."""
        self._leave()
        self._enter(log, state)

    def _enter(self, log: declog.Recorder, state: Any) -> None:
        """An evaluation begins: where that is known, else with its first batch, or with what it reports."""
        self._end()
        if self._mode is None and not log.closed and EVAL in log.plan.modes:
            mode = log.mode(EVAL, state.global_step)
            mode.__enter__()
            self._mode = mode

    def _leave(self) -> None:
        if self._mode is not None:
            mode, self._mode = self._mode, None
            mode.__exit__(None, None, None)

    def _end(self) -> None:
        if self._step is not None:
            self._step.end()


def _callback() -> type[Any]:
    """The class, made where transformers is needed first."""
    from transformers import TrainerCallback

    class DeclogCallback(_Loop, TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
        """What ``declog.callback`` returns."""

    return DeclogCallback
