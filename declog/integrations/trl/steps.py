"""Follows the optimizer steps, evaluations and checkpoints of a trainer. Imports transformers and torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from declog import Recorder
from declog.integrations import checkpoints
from declog.integrations.hook import Hooks, Part
from declog.integrations.open_step import TRAINER, OpenStep
from declog.integrations.trl.capture import Capture

EVAL = "eval"  # transformers' own prefix, and the mode of evaluations


class Steps(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Opens and closes the recorder's steps and modes.

    ``mode`` is the mode of the evaluation that is under way, or None. ``prefix`` is the prefix that transformers puts
    before the names of that evaluation. ``late``: the open log window began before declog was attached, so none of its
    steps is recorded.
    """

    def __init__(
        self, trainer: Any, hooks: Hooks, capture: Capture, again: Callable[[], Recorder], *, every: Any, late: bool
    ) -> None:
        self.mode: str | None = None
        self.prefix = ""
        self.late = late
        self._before = trainer.state.global_step  # recording begins after this step
        self._trainer = trainer
        self._recorder = hooks.recorder
        self._capture = capture
        self._again = again
        self._step = OpenStep(hooks.recorder, every)
        self.end, self.ends_window = self._step.end, self._step.ends_window
        self.compares = every == TRAINER  # else the trainer's numbers cover another window than declog's
        self._idle = ExitStack()
        if late:
            self._idle.enter_context(self._recorder.idle())
        hooks.callback(self)
        hooks.add("train", self._train)
        hooks.add("evaluate", self._evaluate)
        hooks.add("evaluation_loop", self._loop)
        hooks.add("training_step", self._micro_batch)

    @property
    def over(self) -> bool:
        """Whether the recorder is closed; the trainer then goes on without declog."""
        return self._recorder.closed

    @property
    def unrecorded(self) -> bool:
        """Whether no step of the current training is recorded yet."""
        return bool(self._trainer.state.global_step == self._before)

    @property
    def under_way(self) -> bool:
        """Whether the trainer is in the middle of the open step."""
        return self._step.under_way(self._trainer.state)

    def begin(self) -> None:
        """Begin an optimizer step, unless the open log window is not recorded."""
        if not self.late:
            self._step.begin(self._trainer.state)

    def reach(self) -> None:
        """Record an empty step at the trainer's step if it was not recorded, because a log event needs that number."""
        self._step.reach(self._trainer.state)

    def begin_window(self) -> None:
        """Begin to record: the log window that began before declog was attached has ended."""
        self.late, self._before = False, self._trainer.state.global_step
        self._idle.close()

    # -- callbacks of the trainer

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Begin a step."""
        with self._recorder.guard("a step could not be begun"):
            self.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End training if an alert stops the run."""
        with self._recorder.guard("whether an alert stops the run is not known"):
            self._step.stop(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log an event if the config has ``every: epoch``."""
        with self._recorder.guard("the log event of an epoch could not be logged"):
            self._step.end_epoch(control)

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        """Save the recorder's state beside the trainer's checkpoint."""
        with self._recorder.guard("declog's state could not be saved", "a run resumed from here starts new windows"):
            self.save()

    # -- hooks of the trainer's methods

    def _train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Part:
        if resume_from_checkpoint and not self.over and self._recorder.last_step is not None:
            recorder = self._again()  # closes this recorder, and starts one that goes on in its folder
            yield self._trainer.train
            recorder.written()  # the caller may read the run now, and has only the closed recorder
            return
        self.begin_window()
        self._before = -1
        self._recorder.training(True)
        if resume_from_checkpoint and not self.over:
            self._load(resume_from_checkpoint)
        try:
            yield None
            self.end()
            if not (self.compares or self.over):
                self._recorder.flush()  # the trainer's last log is no log event
            if not self.over:
                self._recorder.written()  # the caller may read the run's folder now
        except BaseException as error:
            self.end(type(error), error, error.__traceback__)
            raise
        finally:
            self.end()
            self._recorder.training(False)

    def _micro_batch(self, *args: Any, **kwargs: Any) -> Part:
        """Begin the step if it is not open: a callback attached declog in ``on_step_begin``, too late to be called."""
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
        """Enter the mode of an evaluation.

        Each of several data sets is an evaluation inside the call for all. A config may have a mode for each prefix.
        """
        self._step.pause(self._trainer.state)
        before, modes = (self.mode, self.prefix), self._recorder.plan.modes
        block: AbstractContextManager[Any] = nullcontext()
        named = metric_key_prefix in modes and metric_key_prefix not in ("train", self.mode)
        if self.over or not (named or (self.mode is None and EVAL in modes)):
            if self.mode is None:
                return
            self.prefix = metric_key_prefix
        else:
            mode = metric_key_prefix if named else EVAL
            block = self._recorder.mode(mode, self._trainer.state.global_step)
            self.mode, self.prefix = mode, metric_key_prefix
        try:
            with self._recorder.idle(False), block:
                yield None
        finally:
            self.mode, self.prefix = before

    def _loop(self, *args: Any, **kwargs: Any) -> Part:
        """Record nothing of a loop without a mode: a prediction, also in the middle of a step."""
        with nullcontext() if self.mode else self._recorder.idle():
            yield None

    # -- checkpoints

    def save(self) -> None:
        """Save the state beside the checkpoint that the trainer has just saved; each rank saves its own."""
        self._step.save(self._trainer.state)
        if not self.over:
            step = self._trainer.state.global_step
            checkpoints.save(self._recorder, self._trainer.args, step, rows=self._capture.rows)

    def _load(self, checkpoint: Any) -> None:
        args = self._trainer.args
        if checkpoint is True:
            checkpoint = get_last_checkpoint(args.output_dir)
            if checkpoint is None:
                return  # the trainer itself reports that
        state = checkpoints.load(self._recorder, args, Path(checkpoint))
        if state is not None:
            self._capture.rows = state["rows"]


def in_training(trainer: Any) -> bool:
    """Whether transformers' ``train`` is running; False for trainers with a loop of their own, which do not tell."""
    return bool(vars(trainer).get("is_in_train"))
