"""Optimizer steps, evaluations and checkpoints: when a trainer is in which.

A step is open from its begin until something else begins: the trainer's log, an evaluation, a checkpoint, the next
step. So what is reported at its end still belongs to it. Imports transformers and torch.
"""

from __future__ import annotations

import logging
import os
import pickle
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from declog.errors import UsageError
from declog.integrations.trl.capture import Capture
from declog.integrations.trl.hook import Guard, Hooks, Part

EVAL = "eval"  # transformers' own prefix, and the mode of evaluations

log = logging.getLogger("declog")


class Steps:
    """Opens and closes declog's steps and its modes.

    ``mode`` is the one of the evaluation that is under way (None: of none), ``prefix`` what transformers puts before
    that evaluation's names.
    """

    def __init__(self, trainer: Any, hooks: Hooks, capture: Capture) -> None:
        self.mode: str | None = None
        self.prefix = ""
        self._trainer = trainer
        self._recorder = hooks.recorder
        self._capture = capture
        self._guard = hooks.recorder.guard
        self._step: AbstractContextManager[Any] | None = None
        hooks.callback(_Callback(self, self._guard))
        hooks.add("train", self._train)
        hooks.add("evaluate", self._evaluate)

    @property
    def over(self) -> bool:
        """Whether the recorder is closed: the trainer then goes on alone."""
        return self._recorder.closed

    def begin(self) -> None:
        """An optimizer step begins; it has the number that the trainer logs it under."""
        self.end()
        if not self.over:
            number = self._trainer.state.global_step + 1
            last = self._recorder.last_step
            if last is not None and number <= last:  # it trains once more, or from an earlier checkpoint
                self._recorder.rewind(number - 1)
            step = self._recorder.step(number)
            step.__enter__()
            self._step = step

    def end(self, *error: Any) -> None:
        """The open step ends; where it fails to, it is over all the same."""
        if self._step is not None:
            step, self._step = self._step, None
            if not self.over:
                with self._guard("a step could not be ended"):
                    step.__exit__(*(error or (None, None, None)))

    def _train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Part:
        if resume_from_checkpoint and not self.over:
            self._load(resume_from_checkpoint)
        try:
            yield None
        except BaseException as error:
            self.end(type(error), error, error.__traceback__)
            raise
        finally:
            self.end()

    def _evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: Any = None,
        metric_key_prefix: str = EVAL,
        *args: Any,
        **kwargs: Any,
    ) -> Part:
        """Of several data sets each is an evaluation inside one. A profile may have a mode for each prefix."""
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
            block = self._recorder.mode(self.mode)
        try:
            with block:
                yield None
        finally:
            self.mode, self.prefix = before

    # -- checkpoints

    def save(self) -> None:
        """Save the state beside the checkpoint that the trainer has just saved; every rank its own."""
        self.end()
        args = self._trainer.args
        if self.over or args.save_only_model:
            return
        folder = Path(args.output_dir) / f"checkpoint-{self._trainer.state.global_step}"
        file, part = self._file(folder), self._file(folder, ".part")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            state = {"recorder": self._recorder.state_dict(), "rows": self._capture.rows, "ranks": args.world_size}
            torch.save(state, part)
            os.replace(part, file)
        except OSError as error:
            log.warning("declog could not save its state, a run resumed from %s starts new windows: %s", folder, error)

    def _load(self, checkpoint: Any) -> None:
        if checkpoint is True:
            checkpoint = get_last_checkpoint(self._trainer.args.output_dir)
            if checkpoint is None:
                return  # the trainer says so
        state = None
        with self._guard("declog's state could not be read", "windows and totals start anew"):
            state = self._read(self._file(Path(checkpoint)))
        accelerator = self._trainer.accelerator
        found = torch.tensor([state is not None], dtype=torch.int32, device=accelerator.device)
        everywhere = bool(accelerator.gather(found).all())  # all ranks go on, or none
        if state is None or not everywhere:
            log.warning("there is no state of declog of all ranks in %s: windows and totals start anew", checkpoint)
            return
        try:
            self._recorder.load_state_dict(state["recorder"])
        except UsageError:  # such as after an evaluation
            log.warning("the run has begun, so declog does not go on where %s was saved", checkpoint)
            return
        self._capture.rows = state["rows"]

    def _read(self, file: Path) -> dict[str, Any] | None:
        """What this rank saved, where it is whole and of as many ranks."""
        try:
            state: dict[str, Any] = torch.load(file, weights_only=True)
        except (OSError, EOFError, RuntimeError, pickle.UnpicklingError):
            return None
        return state if state["ranks"] == self._trainer.args.world_size else None

    def _file(self, folder: Path, suffix: str = "") -> Path:
        return folder / f"declog-rank{self._trainer.args.process_index}.pt{suffix}"


class _Callback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """What the trainer tells its callbacks."""

    def __init__(self, steps: Steps, guard: Guard) -> None:
        self._steps = steps
        self._guard = guard

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        with self._guard("a step could not be begun"):
            self._steps.begin()

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        with self._guard("declog's state could not be saved", "a run resumed from here starts new windows"):
            self._steps.save()
