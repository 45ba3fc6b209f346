"""Optimizer steps, evaluations and checkpoints of a trainer.

A step stays open until the trainer logs, evaluates, saves or begins the next step. So numbers at its end still belong
to it. Imports transformers and torch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from declog.integrations import checkpoints
from declog.integrations.trl.capture import Capture
from declog.integrations.trl.hook import Guard, Hooks, Part

EVAL = "eval"  # transformers' own prefix, and the mode of evaluations


class Steps:
    """Opens and closes declog's steps and its modes.

    ``mode`` is the one of the evaluation that is under way (None: of none), ``prefix`` what transformers puts before
    that evaluation's names. ``late``: the log window that is open began before declog was attached, so no step of it
    is recorded.
    """

    def __init__(self, trainer: Any, hooks: Hooks, capture: Capture, *, late: bool) -> None:
        self.mode: str | None = None
        self.prefix = ""
        self.late = late
        self._before = trainer.state.global_step  # the step after which those begin that are recorded
        self._trainer = trainer
        self._recorder = hooks.recorder
        self._capture = capture
        self._guard = hooks.recorder.guard
        self._step: AbstractContextManager[Any] | None = None
        self._number = 0  # of the open step
        self._idle = ExitStack()
        if late:
            self._idle.enter_context(self._recorder.idle())
        hooks.callback(_Callback(self, self._guard))
        hooks.add("train", self._train)
        hooks.add("evaluate", self._evaluate)
        if hasattr(trainer, "training_step"):
            hooks.add("training_step", self._micro_batch)

    @property
    def over(self) -> bool:
        """Whether the recorder is closed: the trainer then goes on alone."""
        return self._recorder.closed

    @property
    def unrecorded(self) -> bool:
        """Whether the trainer is in a training of which no step is recorded yet."""
        return bool(self._trainer.state.global_step == self._before)

    @property
    def under_way(self) -> bool:
        """Whether the trainer is in the middle of the open step."""
        return self._step is not None and bool(self._trainer.state.global_step < self._number)

    def begin(self) -> None:
        """An optimizer step begins; it has the number that the trainer logs it under."""
        self.end()
        if not self.over:
            state = self._trainer.state
            number, self._recorder.total_steps = state.global_step + 1, state.max_steps
            if self.late:
                return
            last = self._recorder.last_step
            if last is not None and number <= last:  # it trains once more, or from an earlier checkpoint
                self._recorder.rewind(number - 1)
            step = self._recorder.step(number)
            step.__enter__()
            self._step, self._number = step, number

    def reach(self) -> None:
        """Go to the trainer's step, where that is one that was not recorded: log events stand at it."""
        number, last = self._trainer.state.global_step, self._recorder.last_step
        if self._step is None and number > (last or 0):
            with self._recorder.step(number):
                pass

    def begin_window(self) -> None:
        """The log window that began too early has ended."""
        self.late, self._before = False, self._trainer.state.global_step
        self._idle.close()

    def stop(self, control: Any) -> None:
        """End training after this step if an alert stops the run."""
        if not self.over and self._recorder.should_stop:
            control.should_training_stop = True

    def end(self, *error: Any) -> None:
        """End the open step, even if that fails."""
        if self._step is not None:
            step, self._step = self._step, None
            if not self.over:
                with self._guard("a step could not be ended"):
                    step.__exit__(*(error or (None, None, None)))

    def _train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Part:
        self.begin_window()
        self._before = -1
        if resume_from_checkpoint and not self.over:
            self._load(resume_from_checkpoint)
        try:
            yield None
        except BaseException as error:
            self.end(type(error), error, error.__traceback__)
            raise
        finally:
            self.end()

    def _micro_batch(self, *args: Any, **kwargs: Any) -> Part:
        """The step has begun, though declog was attached too late to be told: by a callback of ``on_step_begin``."""
        if in_training(self._trainer) and not self._recorder.in_step:
            self.begin()
        yield None

    def _evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: Any = None,
        metric_key_prefix: str = EVAL,
        *args: Any,
        **kwargs: Any,
    ) -> Part:
        """Of several data sets each is an evaluation inside one. A config may have a mode for each prefix."""
        self.end()
        before, modes = (self.mode, self.prefix), self._recorder.plan.modes
        block: AbstractContextManager[Any] = nullcontext()
        named = metric_key_prefix in modes and metric_key_prefix not in ("train", self.mode)
        if self.over or not (named or (self.mode is None and EVAL in modes)):
            if self.mode is None:
                return
            self.prefix = metric_key_prefix
        else:
            self.mode, self.prefix = metric_key_prefix if named else EVAL, metric_key_prefix
            block = self._recorder.mode(self.mode, self._trainer.state.global_step)
        try:
            with self._recorder.idle(False), block:
                yield None
        finally:
            self.mode, self.prefix = before

    # -- checkpoints

    def save(self) -> None:
        """Save the state beside the checkpoint that the trainer has just saved; every rank its own."""
        self.end()
        if not self.over:
            step = self._trainer.state.global_step
            checkpoints.save(self._recorder, self._trainer.args, step, rows=self._capture.rows)

    def _load(self, checkpoint: Any) -> None:
        args = self._trainer.args
        if checkpoint is True:
            checkpoint = get_last_checkpoint(args.output_dir)
            if checkpoint is None:
                return  # the trainer says so
        state = checkpoints.load(self._recorder, args, Path(checkpoint))
        if state is not None:
            self._capture.rows = state["rows"]


def in_training(trainer: Any) -> bool:
    """Whether transformers' ``train`` is running; trainers with a loop of their own do not say."""
    return bool(vars(trainer).get("is_in_train"))


class _Callback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """What the trainer tells its callbacks."""

    def __init__(self, steps: Steps, guard: Guard) -> None:
        self._steps = steps
        self._guard = guard

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        with self._guard("a step could not be begun"):
            self._steps.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with self._guard("whether an alert stops the run is not known"):
            self._steps.stop(control)

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        with self._guard("declog's state could not be saved", "a run resumed from here starts new windows"):
            self._steps.save()
