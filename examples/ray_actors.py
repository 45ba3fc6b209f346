"""GRPO on sums by four Ray actors with one log: each actor exports its observed rows, and the driver merges them.

    python examples/ray_actors.py                    a local Ray cluster, on any machine
    python examples/ray_actors.py kill_at=30         an actor dies: training and the log go on without it

Actors share no process group. Each takes a few gradient steps on a rollout of its own, and the driver averages their
weights. `conf/ray_actors.yaml` declares what is logged. Install with `pip install 'declog-rl[ray]'`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import hydra
import torch
from arithmetic.tabular import improve, initial_weights, mean
from omegaconf import DictConfig
from torch import Tensor

import declog

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before ray is imported: this cluster sends no statistics
import ray


class Actor:
    """One data-parallel rank, with a recorder that has no sinks and connects to no other rank."""

    def __init__(self, cfg: DictConfig, rank: int) -> None:
        torch.set_num_threads(1)
        self.cfg, self.rank = cfg, rank
        self.log = declog.start(cfg, role="actor", rank=rank, world_size=cfg.actors)

    def step(self, number: int, weights: Tensor) -> tuple[Tensor, bytes]:
        """Take this actor's part of a step; return the new weights, and the export of its observed rows."""
        with self.log.step(number):
            improved = improve(self.cfg, weights, number, self.rank)
        return improved, self.log.export()

    def close(self) -> bytes:
        """Close the recorder, and return the export of the remaining rows."""
        self.log.close()
        return self.log.export()


@hydra.main(version_base="1.3", config_path="conf", config_name="ray_actors")
def main(cfg: DictConfig) -> None:
    """Train on a cluster of this machine, then print where the log is."""
    ray.init(num_cpus=cfg.actors, include_dashboard=False, logging_level=logging.WARNING)
    try:
        log = train(cfg)
    finally:
        ray.shutdown()
    print(f"run        {os.path.relpath(log.output_dir or '.', hydra.utils.get_original_cwd())}")


def train(cfg: DictConfig) -> declog.Recorder:
    """Train as the driver, which has the sinks and merges the actors' exports."""
    remote: Any = ray.remote(num_cpus=1)(Actor)
    actors = {rank: remote.remote(cfg, rank) for rank in range(cfg.actors)}
    weights = initial_weights(cfg)
    log = declog.start(cfg, role="driver", world_size=cfg.actors)
    with log:
        for number in range(cfg.steps):
            if number == cfg.kill_at:
                ray.kill(actors[cfg.actors - 1])
            shared = ray.put(weights)
            results = collected({rank: actor.step.remote(number, shared) for rank, actor in actors.items()})
            log.merge(export for _, export in results.values())
            weights = mean([improved for improved, _ in results.values()])
            actors = {rank: actors[rank] for rank in results}
        log.merge(collected({rank: actor.close.remote() for rank, actor in actors.items()}).values())
    return log


def collected(asked: Mapping[int, Any]) -> dict[int, Any]:
    """The results of the actors by rank, without those of dead actors."""
    answers = {}
    for rank, reference in asked.items():
        try:
            answers[rank] = ray.get(reference)
        except ray.exceptions.RayActorError as error:
            print(f"actor {rank} is gone: {str(error).splitlines()[0]}")
    if not answers:
        raise RuntimeError("no actor is left")
    return answers


if __name__ == "__main__":
    main()
