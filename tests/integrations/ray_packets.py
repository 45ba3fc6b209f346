"""A job on a Ray cluster of its own: what its driver logs, as JSON. ``python -m tests.integrations.ray_packets``

Four rollout workers send packets through the object store to two trainers, which are one step off-policy; one trainer
is three exports ahead of the other. In the middle a worker is killed, and later the trainer that is behind.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import declog
from declog.testing import MemorySink

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import ray

WORKERS, TRAINERS, STEPS, AHEAD = 4, 2, 9, 3
WORKER_DIES, TRAINER_DIES = 4, 7  # before the worker's packets for this step, and before this step of the trainer
ROWS = 16_000  # so many that packets are not passed beside the object store
PROFILE: dict[str, Any] = {
    "run": {"name": "packets"},
    "signals": {"any": {"reward": {"axis": "completion"}, "version": {"axis": "completion", "type": "int"}}},
    "metrics": {"n": "count(reward)", "sum": "sum(reward)", "version": "mean(version)"},
}


def reward(worker: int, version: int) -> float:
    """Of each row of a packet."""
    return float(10 * worker + version)


def version(step: int) -> int:
    """Of the weights that made the packets for a step: one step off-policy."""
    return max(step - 1, 0)


def workers(step: int, trainer: int) -> list[int]:
    """Whose packets a trainer consumes in a step: the last worker is killed."""
    each = WORKERS // TRAINERS
    alive = WORKERS if step < WORKER_DIES else WORKERS - 1
    return [worker for worker in range(each * trainer, each * (trainer + 1)) if worker < alive]


class Worker:
    """Makes packets; it has no recorder."""

    def __init__(self, number: int) -> None:
        self.number = number

    def packet(self, version: int) -> declog.Packet:
        """The rows of a rollout with the weights of a version."""
        return declog.rows(reward=np.full(ROWS, reward(self.number, version)), version=np.full(ROWS, version))


class Trainer:
    """One data-parallel rank."""

    def __init__(self, rank: int) -> None:
        self.log = declog.start(PROFILE, role="actor", rank=rank, world_size=TRAINERS)

    def train(self, step: int, packets: list[Any]) -> bytes:
        """Train on packets of the object store; what was observed."""
        with self.log.step(step):
            self.log.observe(*ray.get(packets))
        return self.log.export()

    def close(self) -> bytes:
        """What is left, and how it ended."""
        self.log.close()
        return self.log.export()


def job(folder: Path) -> dict[str, Any]:
    """Train; the values by step, and what declog reported."""
    sink = MemorySink()
    rollout = [ray.remote(num_cpus=0)(Worker).remote(number) for number in range(WORKERS)]
    first, second = [ray.remote(num_cpus=0)(Trainer).remote(rank) for rank in range(TRAINERS)]
    packets: dict[int, dict[int, Any]] = {}
    with declog.start(
        PROFILE, sinks=[sink], output_dir=folder, role="driver", world_size=TRAINERS, wait_s=300.0
    ) as log:
        for turn in range(STEPS + AHEAD):
            if turn < STEPS:
                if turn == WORKER_DIES:  # what it made before is in the object store
                    ray.wait([one[WORKERS - 1] for one in packets.values()], num_returns=len(packets))
                    ray.kill(rollout.pop())
                made = {number: worker.packet.remote(version(turn)) for number, worker in enumerate(rollout)}
                packets[turn] = made
                assert ray.get(made[turn % 3]).rows == ROWS  # who looks consumes nothing, and loses nothing
                log.merge([ray.get(first.train.remote(turn, [made[worker] for worker in workers(turn, 0)]))])
            behind = turn - AHEAD
            if behind == TRAINER_DIES:
                ray.kill(second)
            elif 0 <= behind < TRAINER_DIES:
                taken = [packets[behind][worker] for worker in workers(behind, 1)]
                log.merge([ray.get(second.train.remote(behind, taken))])
        log.merge([ray.get(first.close.remote())])
    return {"values": sink.scalars, "failures": dict(log.failures)}


def main() -> None:
    """On a cluster of this machine."""
    ray.init(num_cpus=1, include_dashboard=False, logging_level=logging.WARNING, object_store_memory=10**8)
    try:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(job(Path(folder))))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
