"""Samples of TRL's asynchronous trainer, of the step that trains on them.

The rollout worker generates and scores in its own process. Rank 0 packs the samples into micro-batches, one of them
ahead. declog observes a sample when its micro-batch is trained. Only rank 0 has samples.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from declog.integrations.trl.capture import Capture
from declog.integrations.trl.hook import Guard, Hooks, Part

SAMPLED = frozenset({
    "prompt_id", "prompt", "completion", "length", "reward", "rewards", "advantages", "staleness"
})  # fmt: skip
REWARD = "rewards/"  # before a reward function's name, in what the worker says of a sample


class Samples:
    """The hooks that observe samples."""

    def __init__(self, trainer: Any, hooks: Hooks, capture: Capture) -> None:
        self._trainer = trainer
        self._log = hooks.recorder
        self._guard: Guard = hooks.recorder.guard
        self._capture = capture
        self._came: dict[int, Any] = {}  # samples that the trainer took, by their ids' array, until they are packed
        self._packed: deque[list[Any]] = deque()  # micro-batches that are not trained yet
        hooks.add("get_train_dataloader", self._load)
        hooks.add("training_step", self._train)

    def _load(self, *args: Any, **kwargs: Any) -> Part:
        loader = yield None
        self._came.clear()
        self._packed.clear()
        source = self._trainer._rollout_dataset
        if source is None:  # another rank
            return
        source.queue = _Taken(source.queue, self._came)
        collator = loader.collate_fn
        original = collator.torch_call

        def packed(self: Any, examples: Sequence[Any]) -> Any:
            batch = original(examples)
            with samples._guard("samples of a micro-batch could not be recorded"):
                samples._pack([example for row in examples[0] for example in row.samples])
            return batch

        samples = self
        collator.torch_call = types.MethodType(packed, collator)

    def _pack(self, examples: Sequence[Mapping[str, Any]]) -> None:
        """A micro-batch is packed: what came before its last sample is in it, or was dropped."""
        if self._log.closed:
            self._came.clear()
            return
        places = {each: place for place, each in enumerate(self._came)}
        ids = [id(example["input_ids"]) for example in examples]
        self._packed.append([self._came[each] for each in ids])
        last = max(places[each] for each in ids)
        for each in list(self._came)[: last + 1]:
            del self._came[each]

    def _train(self, *args: Any, **kwargs: Any) -> Part:
        samples = self._packed.popleft() if self._packed else ()
        if samples and self._log.in_step:
            self._capture.observe(self._signals(samples))
        yield None

    def _signals(self, samples: Sequence[Any]) -> dict[str, Any]:
        version = self._trainer.model_version
        names = dict.fromkeys(name for each in samples for name in each.metrics if name.startswith(REWARD))
        rendered = self._capture.rendered
        return {
            "prompt_id": [each.group_id for each in samples],
            "prompt": rendered("prompt", [each.prompt for each in samples]),
            "completion": rendered("completion", [each.completion for each in samples]),
            "length": [int(each.completion_mask.sum()) for each in samples],
            "reward": [each.metrics.get("reward") for each in samples],
            "rewards": {name.removeprefix(REWARD): [each.metrics.get(name) for each in samples] for name in names},
            "advantages": [each.advantage for each in samples],
            "staleness": [version - each.model_version for each in samples],
        }


class _Taken:
    """The worker's queue, and what was taken from it."""

    def __init__(self, queue: Any, came: dict[int, Any]) -> None:
        self._queue = queue
        self._came = came

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """The next sample."""
        sample = self._queue.get(*args, **kwargs)
        self._came[id(sample.input_ids)] = sample
        return sample

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)
