"""A run of a trainer of transformers: how it is started, and the optimizer step that is open. Standard library only."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import declog

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


class OpenStep:
    """The optimizer step of a trainer that is open in a recorder; its number is the one that the trainer logs it under.

    It stays open until the trainer logs, evaluates, saves or begins the next step, so that numbers at its end still
    belong to it. ``state`` is the trainer's.
    """

    def __init__(self, recorder: declog.Recorder) -> None:
        self._recorder = recorder
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
            log.rewind(number - 1)
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

    def under_way(self, state: Any) -> bool:
        """Whether the trainer is in the middle of the step."""
        return self._step is not None and bool(state.global_step < self._number)

    def stop(self, control: Any) -> None:
        """End training after this step if an alert stops the run."""
        if not self._recorder.closed and self._recorder.should_stop:
            control.should_training_stop = True
