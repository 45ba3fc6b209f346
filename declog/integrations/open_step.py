"""A run of a trainer of transformers: how it is started, and the optimizer step that is open. Standard library only."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import declog

TRACKERS = {"WandbCallback": "wandb", "TrackioCallback": "trackio"}  # transformers' callbacks, by the kind of the sink
TRAINER, EPOCH = "trainer", "epoch"  # of a config's `every`
FOLDER = "declog"  # below the trainer's output_dir: local files stay where a resumed run finds them


def start(
    config: Any, plan: declog.Plan, args: Any, *, output_dir: str | Path | None, **options: Any
) -> declog.Recorder:
    """``declog.start`` for a trainer with these ``args``, with files below its ``output_dir`` by default."""
    folder = Path(output_dir or plan.output_dir or Path(args.output_dir) / FOLDER)
    return declog.start(
        config, rank=args.process_index, world_size=args.world_size, run_config=args.to_dict(),
        output_dir=folder if plan.append else None, base_dir=None if plan.append else folder, **options,
    )  # fmt: skip


def open_trackers(trainer: Any, plan: declog.Plan) -> None:
    """Where the trainer reports to a tracker that declog logs to as well, it opens its run now, which the sink joins.

    It would at the begin of training, and does not then: a second run, or declog's settings for it, would be wrong.
    """
    kinds = {sink.kind for sink in plan.sinks}
    for callback in trainer.callback_handler.callbacks:
        if TRACKERS.get(type(callback).__name__) in kinds:
            callback.on_train_begin(trainer.args, trainer.state, trainer.control, model=trainer.model)


def go_back(log: declog.Recorder, number: int) -> None:
    """A trainer is at a step that has ended: it trains again from its first one, or goes on from a checkpoint."""
    if number <= 1:
        log.restart()
    else:
        log.rewind(number - 1)


class OpenStep:
    """The optimizer step of a trainer that is open in a recorder; its number is the one that the trainer logs it under.

    It stays open until the trainer logs, evaluates, saves or begins the next step, so that numbers at its end still
    belong to it. ``state`` and ``control`` are the trainer's. ``every`` is the config's: which of the trainer's logs
    are log events, or the ends of its epochs.
    """

    def __init__(self, recorder: declog.Recorder, every: Any) -> None:
        self.every = every
        self._recorder = recorder
        self._epoch_ended = False  # its log event waits for what the trainer reports
        self._step: AbstractContextManager[Any] | None = None
        self._number = 0

    def begin(self, state: Any) -> None:
        """An optimizer step begins."""
        self.end()
        log, number = self._recorder, state.global_step + 1
        if log.closed:
            return
        log.total_steps = state.max_steps
        if log.last_step is not None and number <= log.last_step:  # it trains again, or from an earlier checkpoint
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
        """Go to the trainer's step if it was not recorded: log events stand at it."""
        if self._step is None and state.global_step > (self._recorder.last_step or 0):
            with self._recorder.step(state.global_step):
                pass

    def pause(self, state: Any) -> None:
        """End the step, unless the trainer is in the middle of it: an evaluation lies inside of it then."""
        if not self.under_way(state):
            self.end()

    def ends_window(self) -> bool:
        """Whether what the trainer logs of its training is a log event."""
        ended, self._epoch_ended = self._epoch_ended, False
        return ended if self.every == EPOCH else self.every == TRAINER

    def end_epoch(self, control: Any) -> None:
        """An epoch ends: with ``every: epoch`` that is a log event, behind what the trainer reports of it now."""
        if self.every != EPOCH or self._recorder.closed:
            return
        if control.should_log:
            self._epoch_ended = True
        else:
            self.end()
            self._recorder.flush()

    def save(self, state: Any) -> None:
        """A checkpoint was saved: a run that is resumed from the end of an epoch begins with the next one."""
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
