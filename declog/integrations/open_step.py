"""Starts a run for a trainer of transformers, and follows its open optimizer step. Standard library only."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import declog

TRACKERS = {"WandbCallback": "wandb", "TrackioCallback": "trackio"}  # the kind of sink of transformers' callbacks
TRAINER, EPOCH = "trainer", "epoch"  # values of a config's `every`
FOLDER = "declog"  # below the trainer's output_dir: local files stay where a resumed run finds them


def start(
    config: Any, plan: declog.Plan, args: Any, *, output_dir: str | Path | None, **options: Any
) -> declog.Recorder:
    """Call ``declog.start`` for a trainer with these ``args``; files go below its ``output_dir`` by default."""
    folder = Path(output_dir or plan.output_dir or Path(args.output_dir) / FOLDER)
    return declog.start(
        config, rank=args.process_index, world_size=args.world_size, run_config=args.to_dict(),
        output_dir=folder if plan.append else None, base_dir=None if plan.append else folder, **options,
    )  # fmt: skip


def open_trackers(trainer: Any, plan: declog.Plan) -> None:
    """Let the trainer open its run of each tracker that declog logs to as well, so that declog's sink joins that run.

    The trainer would open the run when training begins, after declog's sink: the tracker would then have a second run,
    or a run with declog's settings.
    """
    kinds = {sink.kind for sink in plan.sinks}
    for callback in trainer.callback_handler.callbacks:
        if TRACKERS.get(type(callback).__name__) in kinds:
            callback.on_train_begin(trainer.args, trainer.state, trainer.control, model=trainer.model)


def go_back(log: declog.Recorder, number: int) -> None:
    """Rewind the recorder to before step ``number``, which a trainer begins again; restart it at the first step."""
    if number <= 1:
        log.restart()
    else:
        log.rewind(number - 1)


class OpenStep:
    """The optimizer step of a trainer that is open in a recorder, under the number that the trainer logs it under.

    A step stays open until the trainer logs, evaluates, saves or begins the next step, so that numbers reported at its
    end still belong to it. ``state`` and ``control`` are the trainer's. ``every`` is the config's: it makes the
    trainer's logs, or the ends of epochs, log events.
    """

    def __init__(self, recorder: declog.Recorder, every: Any) -> None:
        self.every = every
        self._recorder = recorder
        self._epoch_ended = False  # the epoch's log event waits for the trainer's report
        self._step: AbstractContextManager[Any] | None = None
        self._number = 0

    def begin(self, state: Any) -> None:
        """Begin the next optimizer step, and end the open one."""
        self.end()
        log, number = self._recorder, state.global_step + 1
        if log.closed:
            return
        log.total_steps = state.max_steps
        if log.last_step is not None and number <= log.last_step:  # training again, or from an earlier checkpoint
            go_back(log, number)
        step = log.step(number)
        step.__enter__()
        self._step, self._number = step, number

    def end(self, *error: Any) -> None:
        """End the step, even if that fails."""
        if self._step is not None:
            step, self._step = self._step, None
            if not self._recorder.closed:
                with self._recorder.guard("a step could not be ended"):
                    step.__exit__(*(error or (None, None, None)))

    def reach(self, state: Any) -> None:
        """Record an empty step at the trainer's step if it was not recorded, because a log event needs that number."""
        if self._step is None and state.global_step > (self._recorder.last_step or 0):
            with self._recorder.step(state.global_step):
                pass

    def pause(self, state: Any) -> None:
        """End the step before an evaluation; a step that is under way stays open around the evaluation."""
        if not self.under_way(state):
            self.end()

    def ends_window(self) -> bool:
        """Whether the trainer's log during training is a log event."""
        ended, self._epoch_ended = self._epoch_ended, False
        return ended if self.every == EPOCH else self.every == TRAINER

    def end_epoch(self, control: Any) -> None:
        """With ``every: epoch``, log an event at the end of an epoch, after the trainer's report if one is due."""
        if self.every != EPOCH or self._recorder.closed:
            return
        if control.should_log:
            self._epoch_ended = True
        else:
            self.end()
            self._recorder.flush()

    def save(self, state: Any) -> None:
        """End the step after a checkpoint; with ``every: epoch``, log the window if the checkpoint ends an epoch.

        A run that resumes from such a checkpoint begins with the next epoch.
        """
        self.end()
        if self.every == EPOCH and float(state.epoch or 0).is_integer() and not self._recorder.closed:
            self._recorder.flush()

    def under_way(self, state: Any) -> bool:
        """Whether the trainer is in the middle of the step."""
        return self._step is not None and bool(state.global_step < self._number)

    def stop(self, control: Any) -> None:
        """End training after this step if an alert stops the run."""
        if not self._recorder.closed and self._recorder.should_stop:
            control.should_training_stop = True
