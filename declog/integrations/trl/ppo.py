"""Reads signals from TRL's PPO trainer, whose loop is one function: its tensors are local variables of ``train``.

A micro-batch is read at the end of the block of ``accelerator.accumulate``, and a rollout when ``train`` calls ``log``.
As in ``capture``, declog computes nothing that TRL has computed. Imports transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from declog.integrations.hook import Hooks, Part
from declog.integrations.trl.capture import Capture
from declog.integrations.trl.steps import Steps
from declog.integrations.trl.support import CLASSES, MICRO_BATCH, ROLLOUT, code_of

LOOP_SIGNALS = frozenset({
    "prompt", "completion", "reward", "length", "truncated", "tokens", "completion_mask", "value_mask", "old_logprobs",
    "ref_logprobs", "old_values", "advantages", "returns", "logprobs", "values", "entropy", "loss", "learning_rate",
})  # fmt: skip


class Loop(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """The hooks that observe, and a callback that begins the steps.

    TRL's loop does not tell when a step begins: the first begins with training, each other at the end of the last.
    """

    def __init__(self, trainer: Any, hooks: Hooks, capture: Capture, steps: Steps) -> None:
        self._trainer = trainer
        self._log = hooks.recorder
        self._guard = hooks.recorder.guard
        self._capture = capture
        self._steps = steps
        self._codes = {code_of(base) for base in type(trainer).__mro__ if (base.__module__, base.__name__) in CLASSES}
        self._trained: dict[str, Any] = {}  # the signals of the last micro-batch
        self._count = 0  # the number of micro-batches in the step
        hooks.add("accumulate", self._accumulate, owner=trainer.accelerator)
        hooks.add("log", self._report)
        hooks.callback(self)

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Begin the first step."""
        self._begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the next step, unless the trainer saves first."""
        if not control.should_save:
            self._begin()

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        """Begin the next step."""
        self._begin()

    def _begin(self) -> None:
        """Begin a step, unless one is open or training is over."""
        with self._guard("a step could not be begun"):
            state = self._trainer.state
            if not self._log.in_step and state.global_step < state.max_steps:
                self._steps.begin()

    # -- a micro-batch

    def _accumulate(self, *args: Any, **kwargs: Any) -> Part:
        block = yield None
        return self._trained_in(block)

    @contextmanager
    def _trained_in(self, block: AbstractContextManager[Any]) -> Iterator[Any]:
        self._begin()
        with block as inside:
            yield inside
            with self._guard("a micro-batch could not be recorded"):
                variables = self._variables(MICRO_BATCH)
                if variables is not None and self._log.in_step:
                    self._observe_update(variables)

    def _observe_update(self, variables: Mapping[str, Any]) -> None:
        rows = variables["micro_batch_inds"]
        self._count += 1
        self._trained = {
            "completion_mask": ~variables["padding_mask"][rows],
            "value_mask": ~variables["padding_mask_p1"][rows],
            "logprobs": variables["new_logprobs"].detach(),
            "old_logprobs": variables["mb_logprobs"],
            "advantages": variables["mb_advantage"],
            "returns": variables["mb_return"],
            "values": variables["vpred"].detach(),
            "old_values": variables["mb_values"],
            "entropy": variables["entropy"],
        }
        self._capture.observe({**self._trained, "loss": variables["loss"].detach()})

    # -- a rollout, after its updates

    def _report(self, logs: Mapping[str, Any], *args: Any, **kwargs: Any) -> Part:
        with self._guard("a rollout could not be recorded"):
            variables = self._variables(ROLLOUT)
            if variables is not None and self._log.in_step:
                self._observe_rollout(variables, logs)
        self._trained, self._count = {}, 0
        yield None

    def _observe_rollout(self, variables: Mapping[str, Any], logs: Mapping[str, Any]) -> None:
        nothing = {name: tensor[:0] for name, tensor in self._trained.items()}
        for _ in range(variables["ratio_stats"].numel() - self._count):  # TRL averages a 0 for each missing one
            self._capture.observe(nothing)
        self._capture.observe({
            "completion_mask": ~variables["padding_mask"],
            "value_mask": ~variables["padding_mask_p1"],
            "old_logprobs": variables["logprobs"],
            "ref_logprobs": variables["ref_logprobs"],
            "old_values": variables["values"],
            "advantages": variables["advantages"],
            "returns": variables["returns"],
            "reward": variables["scores"],
            "tokens": variables["responses"],
            "length": variables["sequence_lengths"] + 1,
            "truncated": ~variables["contain_eos_token"],
            **self._texts(variables),
        })  # fmt: skip
        self._capture.observe({"learning_rate": logs["lr"]})

    def _texts(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Prompts and completions as texts, if the plan needs them."""
        needed = self._log.plan.sources
        tokenizer = self._trainer.processing_class
        texts: dict[str, Any] = {}
        if "prompt" in needed:
            texts["prompt"] = tokenizer.batch_decode(variables["queries"], skip_special_tokens=True)
        if "completion" in needed:
            lengths = (variables["sequence_lengths"] + 1).tolist()
            rows = zip(variables["responses"].tolist(), lengths, strict=True)
            texts["completion"] = tokenizer.batch_decode([row[:length] for row, length in rows])
        return texts

    def _variables(self, names: Collection[str]) -> dict[str, Any] | None:
        """The local variables of the ``train`` that runs in this thread; None if none of TRL's runs."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code not in self._codes:
            frame = frame.f_back
        if frame is None:
            return None
        local = frame.f_locals
        variables = {name: local[name] for name in names}
        if isinstance(local, dict):  # before Python 3.13 a copy that the frame keeps, with all that `train` deletes
            local.clear()
        return variables
