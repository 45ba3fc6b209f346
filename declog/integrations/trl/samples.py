"""Observes the samples of TRL's asynchronous trainer in the step that trains on them.

The rollout worker generates and scores in its own process. Rank 0 packs the samples into micro-batches, one micro-batch
ahead of training. declog observes a sample when its micro-batch is trained. Only rank 0 has samples.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from declog.integrations.hook import Hooks, Part
from declog.integrations.trl.capture import Capture

SAMPLE_SIGNALS = frozenset({
    "prompt_id", "prompt", "completion", "length", "reward", "rewards", "advantages", "staleness"
})  # fmt: skip
REWARD = "rewards/"  # before a reward function's name in the metrics of a sample


class Samples:
    """The hooks that observe samples."""

    def __init__(self, trainer: Any, hooks: Hooks, capture: Capture) -> None:
        self._trainer = trainer
        self._log = hooks.recorder
        self._capture = capture
        self._unpacked: dict[int, Any] = {}  # samples that are not packed yet, by `id(input_ids)`
        self._packed: deque[list[Any]] = deque()  # the samples of micro-batches that are not trained yet
        hooks.add("get_train_dataloader", self._load)
        hooks.add("training_step", self._train)

    def _load(self, *args: Any, **kwargs: Any) -> Part:
        loader = yield None
        self._unpacked.clear()
        self._packed.clear()
        source = self._trainer._rollout_dataset
        if source is None:  # another rank
            return
        source.queue = _WatchedQueue(source.queue, self._unpacked)
        collator = loader.collate_fn
        original = collator.torch_call

        def packed(self: Any, examples: Sequence[Any]) -> Any:
            batch = original(examples)
            with samples._log.guard("samples of a micro-batch could not be recorded"):
                samples._pack([example for row in examples[0] for example in row.samples])
            return batch

        samples = self
        collator.torch_call = types.MethodType(packed, collator)

    def _pack(self, examples: Sequence[Mapping[str, Any]]) -> None:
        """Note a packed micro-batch; each sample that arrived before its last one is in it, or TRL dropped it."""
        if self._log.closed:
            self._unpacked.clear()
            return
        ids = [id(example["input_ids"]) for example in examples]
        self._packed.append([self._unpacked[key] for key in ids])
        order = list(self._unpacked)
        for key in order[: max(map(order.index, ids)) + 1]:
            del self._unpacked[key]

    def _train(self, *args: Any, **kwargs: Any) -> Part:
        samples = self._packed.popleft() if self._packed else ()
        if samples and self._log.in_step:
            self._capture.observe(self._signals(samples))
        yield None

    def _signals(self, samples: Sequence[Any]) -> dict[str, Any]:
        version = self._trainer.model_version
        names = dict.fromkeys(name for sample in samples for name in sample.metrics if name.startswith(REWARD))
        rendered = self._capture.rendered
        return {
            "prompt_id": [sample.group_id for sample in samples],
            "prompt": rendered("prompt", [sample.prompt for sample in samples]),
            "completion": rendered("completion", [sample.completion for sample in samples]),
            "length": [int(sample.completion_mask.sum()) for sample in samples],
            "reward": [sample.metrics.get("reward") for sample in samples],
            "rewards": {name.removeprefix(REWARD): [sample.metrics.get(name) for sample in samples] for name in names},
            "advantages": [sample.advantage for sample in samples],
            "staleness": [version - sample.model_version for sample in samples],
        }


class _WatchedQueue:
    """The worker's queue, which adds each sample that the trainer takes to ``unpacked``."""

    def __init__(self, queue: Any, unpacked: dict[int, Any]) -> None:
        self._queue = queue
        self._unpacked = unpacked

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Take the next sample."""
        sample = self._queue.get(*args, **kwargs)
        self._unpacked[id(sample.input_ids)] = sample
        return sample

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)
