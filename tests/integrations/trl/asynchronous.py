"""Runs of TRL's asynchronous trainer on a CPU: the trainer is TRL's, and so are its data set, batcher and packing.

What needs a GPU or a server stands in: attention is torch's instead of a kernel's, and samples come from a worker of
our own in a thread, by the protocol that TRL has for that; nothing is sent to a server.
"""

from __future__ import annotations

import queue
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

import declog
from declog.testing import MemorySink
from tests.integrations.trl import cases, tiny

EACH = 4  # samples of a group, and of a micro-batch of one rank


def attention(
    query: Any, key: Any, value: Any, starts: Any, paths: Any, *sizes: int, softmax_scale: float, **options: Any
) -> Any:
    """What flash attention of segments computes: each sees its own path, whose end it is."""
    out = torch.empty_like(query)
    repeated = query.shape[1] // key.shape[1]
    for first, last, begin, end in zip(starts[:-1], starts[1:], paths[:-1], paths[1:], strict=True):
        requested = query[first:last].transpose(0, 1)
        keys, values = (each[begin:end].transpose(0, 1).repeat_interleave(repeated, 0) for each in (key, value))
        hidden = torch.ones(last - first, end - begin, dtype=torch.bool).triu(end - begin - (last - first) + 1)
        scores = (requested @ keys.transpose(1, 2) * softmax_scale).masked_fill(hidden, float("-inf"))
        out[first:last] = (scores.softmax(-1) @ values).transpose(0, 1)
    return out


class Worker:
    """Samples that are the same each time, of the policy that is live when they are made; ``rewards`` are theirs."""

    def __init__(self, groups: int) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(8)
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.rewards = np.random.default_rng(0).normal(size=(groups, EACH))
        self._version = 0
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._work, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def update_model_version(self, model_version: int) -> None:
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        pass

    def _work(self) -> None:
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        made = np.random.default_rng(1)
        for group, rewards in enumerate(self.rewards):
            prompt = made.integers(3, 40, 5)
            for reward in rewards.tolist():
                ids = np.concatenate([prompt, made.integers(3, 40, int(made.integers(2, 9)))])
                mask = np.arange(len(ids)) >= 5
                logprobs = np.where(mask, -3.5, 0.0).astype(np.float32)
                # the reward function `sometimes` has none for every other group
                metrics = {
                    "reward": reward,
                    "rewards/reward": reward,
                    "rewards/sometimes": 1.0 if group % 2 else np.nan,
                }
                self._put(
                    RolloutSample(
                        [{"role": "user", "content": f"say {group}"}],
                        [{"role": "assistant", "content": f"{reward}"}],
                        ids, mask.astype(int), logprobs, reward - float(rewards.mean()), self._version, group, metrics,
                    )
                )  # fmt: skip
            self.metrics_queue.put({"completions/clipped_ratio": (1.0, 4)})

    def _put(self, sample: Any) -> None:
        while not self._stopped.is_set():
            try:
                self.rollout_buffer.put(sample, timeout=0.1)
                return
            except queue.Full:
                continue


class NoTransfer:
    """No server: its weights go nowhere."""

    def init_weight_transfer(self) -> None:
        pass

    pause = resume = destroy = init_weight_transfer

    def send_weights(self, iterator: Any) -> None:
        list(iterator)


def trainer_of(model: Path, folder: Path, **args: Any) -> Any:
    """A trainer of four steps of two micro-batches, logged each second."""
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing

    packing._flash_attn = lambda: types.SimpleNamespace(flash_attn_varlen_func=attention)
    async_grpo_trainer.get_peak_flops_per_device = lambda *args: None  # it asks for a GPU's name
    arguments = {
        "output_dir": str(folder), "per_device_train_batch_size": EACH, "gradient_accumulation_steps": 2,
        "num_generations": EACH, "max_steps": 4, "logging_steps": 2, "token_budget": 0, "learning_rate": 0.05,
        "report_to": "none", "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "disable_tqdm": True,
        "save_strategy": "no", **args,
    }  # fmt: skip
    return AsyncGRPOTrainer(
        str(model), None, AsyncGRPOConfig(**arguments), train_dataset=tiny.prompts(), rollout_worker=Worker(200),
        weight_transfer=NoTransfer(),
    )  # fmt: skip


def run(model: Path, folder: Path, *overrides: str, **args: Any) -> tuple[Any, MemorySink]:
    """Train with declog attached: the trainer, and what came to a sink on rank 0."""
    from transformers import TrainerCallback

    class Later(TrainerCallback):  # type: ignore[misc]
        def on_log(self, *args: Any, **kwargs: Any) -> None:
            if (
                trainer.rollout_worker is not None
            ):  # something for the next log event, also for the one after the last step
                trainer.rollout_worker.metrics_queue.put({"completions/clipped_ratio": (3.0, 4)})

    trainer = trainer_of(model, folder, **args)
    trainer.add_callback(Later())
    sink = MemorySink()
    sinks = [sink] if trainer.args.process_index == 0 else []
    with declog.attach(trainer, overrides=[*cases.STRICT, *overrides], sinks=sinks):
        trainer.train()
    return trainer, sink
