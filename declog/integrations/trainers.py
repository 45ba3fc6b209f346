"""A callback for any trainer of transformers: records the trainer's reported numbers and the loop's observations.

A step is an optimizer step. A log event is the trainer's own log, or the end of an epoch. Evaluations and predictions
are recorded in the mode ``eval``; hooks on the trainer mark where they begin and end. Uses declog's public API only.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Never

import declog
from declog.errors.habits import refuse_arguments, shown_at_the_call
from declog.integrations import open_step
from declog.integrations.hook import Hooks, Part
from declog.integrations.logged import numbers_in, split_by_mode
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

    ``config`` is a preset's name with ``overrides``, or anything that ``declog.start`` takes; ``sinks``, ``wait_s`` and
    ``start_s`` are those of ``declog.start``. Construct the callback on every rank. A wrong config raises
    ``ConfigError`` here. Sinks open when training, or a first evaluation, begins. Files go to ``output_dir``, by
    default ``declog`` below the trainer's.

    Each number that the trainer reports is logged under its name, or observed if the config declares a signal of that
    name. Any code may call ``declog.observe`` while a step is open, such as a loss function. The config's ``every`` is
    ``trainer`` (each ``logging_steps``), ``epoch``, or a number of steps. The callback's ``recorder`` is None until the
    run begins; it is closed at the end of the program, or by ``close()``.
    """
    refuse_arguments(callback, config, overrides, sinks, unnamed, unknown, declog.LogSpec.model_fields)
    config = declog.compose(config, overrides)
    plan = declog.plan(config)
    options = {"sinks": sinks, "output_dir": output_dir, "wait_s": wait_s, "start_s": start_s}
    return _callback()(config, plan, options)


@dataclass(frozen=True)
class _Told:
    """The ``logs`` of the trainer's last log, and the names in it when transformers called this callback."""

    logs: dict[str, Any] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    step: int = 0
    evaluated: bool = False


class _Loop:
    """Follows the steps, evaluations and log events of a trainer through the methods of a callback."""

    recorder: declog.Recorder | None = None

    def __init__(self, config: Any, plan: declog.Plan, options: dict[str, Any]) -> None:
        self._config = config
        self._plan = plan
        self._options = options  # of declog.start
        self._trainer: Any = None  # the trainer whose evaluations are hooked
        self._step: Any = None  # an OpenStep once the run has begun
        self._mode: AbstractContextManager[Any] | None = None
        self._told = _Told()

    def close(self) -> None:
        """Log the last window and close the sinks; idempotent."""
        if self.recorder is not None:
            self._add_late()
            self._leave()
            self._step.end()
            self.recorder.close()

    # -- methods that the trainer calls

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._follow()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        log = self.recorder
        if log is not None and log.last_step not in (None, state.global_step) and state.global_step:
            self.close()  # the trainer resumes from a checkpoint, in this folder
        if log is not None and log.closed:  # a notebook runs its cell again
            self.recorder = self._step = self._mode = None
        self._follow()
        log = self._log(args)
        log.total_steps = state.max_steps
        log.training(True)
        if state.global_step and not log.closed and log.last_step != state.global_step:  # resumed, not continued
            checkpoints = importlib.import_module("declog.integrations.checkpoints")
            checkpoints.load(log, args, self._checkpoint(args, state.global_step))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        log = self._log(args)
        with log.guard("a step could not be begun"):
            self._step.begin(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._log(args)
        self._step.stop(control)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if self.recorder is None and self._trainer is None:
            self._follow()
            if state.is_world_process_zero:
                logger.warning(
                    "declog has of this evaluation only what the trainer reports: its rows need the callback in the "
                    "trainer's `callbacks=[...]`"
                )
        log = self._log(args)
        if log.closed:
            return
        numbers = numbers_in(logs or {})
        inside = self._mode is not None
        if "loss" not in numbers and any(name.startswith(f"{EVAL}_") for name in numbers):
            self._enter(log, state)
        evaluated, under_way = self._mode is not None, self._step.under_way(state)
        if not evaluated:
            self._step.reach(state)  # the step may have begun without the callback
        with log.guard("what the trainer reports could not be recorded"):
            plain, exact = split_by_mode(numbers, EVAL if evaluated else None, EVAL)
            self._take(log, plain, main=state.is_world_process_zero)
            log.beside(Beside(exact=exact))
        self._told = _Told(logs or {}, frozenset(logs or {}), state.global_step, evaluated)
        if not inside:
            self._leave()
        if not (evaluated or under_way):  # under way: training code has logged in the middle of a step
            self._step.end()
            if self._step.ends_window():
                log.flush()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._log(args)
        self._step.end_epoch(control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        log = self._log(args)
        self._step.save(state)
        if not log.closed:
            checkpoints = importlib.import_module("declog.integrations.checkpoints")
            with log.guard("declog's state could not be saved", "a run resumed from here starts new windows"):
                checkpoints.save(log, args, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the open window, because nobody may close the callback."""
        log = self._log(args)
        self._step.end()
        if not log.closed:
            log.flush(wait_s=self._options["wait_s"])
            log.written(self._options["wait_s"])  # the caller of `train` may read the run's folder
        log.training(False)

    # -- inside

    def _log(self, args: Any) -> declog.Recorder:
        self._add_late()
        if self.recorder is None:
            tokenizer = getattr(self._trainer, "processing_class", None)
            self.recorder = open_step.start(self._config, self._plan, args, tokenizer=tokenizer, **self._options)
            self._step = open_step.OpenStep(self.recorder, declog.config_of(self._config).get("every"))
        return self.recorder

    def _follow(self) -> None:
        """Hook the evaluations of the trainer that calls this callback, once for each trainer."""
        owners: Iterator[Any] = (frame.f_locals.get("self") for frame in _callers())
        handled = (owner for owner in owners if hasattr(type(owner), "train") and hasattr(owner, "callback_handler"))
        trainer = next((owner for owner in handled if self in owner.callback_handler.callbacks), None)
        if trainer is None or trainer is self._trainer:
            return
        self._trainer = trainer

        def start() -> declog.Recorder:
            if self.recorder is None:  # an evaluation before training
                open_step.open_trackers(trainer, self._plan)
            return self._log(trainer.args)

        def evaluation(*args: Any, **kwargs: Any) -> Part:
            """Leave the mode of an evaluation around this one: each of several data sets is its own log event."""
            self._leave()
            self._enter(self._log(trainer.args), trainer.state)
            try:
                yield None
            finally:
                self._leave()

        def loop(*args: Any, **kwargs: Any) -> Part:
            around = self._mode
            log = self._log(trainer.args)
            self._enter(log, trainer.state)
            try:
                with nullcontext() if self._mode else log.idle():
                    yield None
            finally:
                if around is None:
                    self._leave()

        hooks = Hooks(trainer, start)
        hooks.add("evaluate", evaluation)
        hooks.add("predict", evaluation)
        hooks.add("evaluation_loop", loop)

    def _add_late(self) -> None:
        """Pass on the numbers that later callbacks have added to the ``logs`` of the trainer's last log."""
        told, self._told = self._told, _Told()
        added = numbers_in({name: told.logs[name] for name in told.logs.keys() - told.names})
        if added and self.recorder is not None:
            mode = EVAL if told.evaluated else None
            plain, exact = split_by_mode(added, mode, EVAL)
            self.recorder.pass_through(Beside(numbers=plain, exact=exact), told.step, mode or "train")

    def _take(self, log: declog.Recorder, numbers: dict[str, Any], *, main: bool) -> None:
        """Observe the numbers that are signals, on every rank, and log the others on rank 0: ranks report the same."""
        signals = {name: value for name, value in numbers.items() if name in log.plan.signal_names}
        if signals and log.in_step:
            log.observe(**signals)
        log.scalars({name: value for name, value in numbers.items() if main and name not in signals})

    def _checkpoint(self, args: Any, step: int) -> Path:
        """The folder of the checkpoint that training resumes from.

        transformers passes the argument ``resume_from_checkpoint`` of ``train`` to no callback, so a caller's frame
        is searched for it; by default the folder is the one of this step.
        """
        folders = (frame.f_locals.get("resume_from_checkpoint") for frame in _callers())
        if (folder := next((name for name in folders if isinstance(name, str | os.PathLike)), None)) is not None:
            return Path(folder)
        return Path(args.output_dir) / f"checkpoint-{step}"

    def _enter(self, log: declog.Recorder, state: Any) -> None:
        """Enter the mode ``eval``; a step that is under way stays open around it."""
        self._step.pause(state)
        if self._mode is None and not log.closed and EVAL in log.plan.modes:
            mode = log.mode(EVAL, state.global_step)
            mode.__enter__()
            self._mode = mode

    def _leave(self) -> None:
        if self._mode is not None:
            mode, self._mode = self._mode, None
            mode.__exit__(None, None, None)


def _callers() -> Iterator[FrameType]:
    """The frames of this call's callers, innermost first: transformers tells callbacks less than its frames hold."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _callback() -> type[Any]:
    """The callback's class; created on the first use, because it imports transformers."""
    from transformers import TrainerCallback

    class DeclogCallback(_Loop, TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
        """The callback that ``declog.callback`` returns."""

    return DeclogCallback
