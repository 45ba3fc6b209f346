"""Trains the demo's task asynchronously: rollout workers run ahead of the trainer, and evaluations run beside it.

    python examples/async_grpo.py                           half a minute on a CPU
    python examples/async_grpo.py workers=6 max_staleness=2

A worker samples a group of completions whenever the queue has room, and passes its rows to the trainer as a packet; it
does not know the step. The trainer takes groups whose weights are at most `max_staleness` steps old; it drops and
counts older groups. Each `evaluate_every` steps it evaluates the policy while training goes on. `conf/async_grpo.yaml`
declares what is logged; this file observes raw tensors and computes no metric.
"""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass

import hydra
import torch
from arithmetic.model import Policy, sample, token_statistics
from arithmetic.policy_gradient import GRPO
from arithmetic.tasks import PROMPT_LENGTH, VOCABULARY, Scored, draw_sums, encode, scored
from omegaconf import DictConfig
from torch import Tensor

import declog


@dataclass(frozen=True)
class Group:
    """Completions of one prompt: token ids, mask and log-probabilities by token, and the version that sampled them."""

    tokens: Tensor
    mask: Tensor
    logprobs: Tensor
    reward: Tensor
    version: int
    packet: declog.Packet


class Trainer:
    """The policy in training, a copy of it that samples, and the tasks that do both."""

    def __init__(self, cfg: DictConfig, log: declog.Recorder) -> None:
        self.cfg = cfg
        self.log = log
        self.policy = Policy(len(VOCABULARY), PROMPT_LENGTH + cfg.completion_length, **cfg.model)
        self.sampler = copy.deepcopy(self.policy).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=cfg.learning_rate)
        self.algorithm = GRPO(cfg.group_size, 0.0, cfg.epsilon_low, cfg.epsilon_high)
        self.version = 0  # the number of optimizer steps behind the sampler's weights
        self.done: asyncio.Queue[Group] = asyncio.Queue(maxsize=cfg.prompts)

    async def train(self) -> None:
        """Take steps while workers sample and evaluations run."""
        workers = [asyncio.create_task(self.work()) for _ in range(self.cfg.workers)]
        evaluations = []
        for step in range(self.cfg.steps):
            if step % self.cfg.evaluate_every == 0:
                evaluations.append(asyncio.create_task(self.evaluate(step, copy.deepcopy(self.sampler))))
            with self.log.step(step):
                groups = await self.fresh()
                declog.observe(*(group.packet for group in groups))
                declog.observe(staleness=[step - group.version for group in groups for _ in range(self.cfg.group_size)])
                self.update(groups)
        await asyncio.gather(*evaluations)
        for worker in workers:
            worker.cancel()
        while not self.done.empty():
            self.done.get_nowait().packet.discard()  # no step will train on it

    async def work(self) -> None:
        """Sample groups without end. Their rows have no step yet; they belong to the step that trains on them."""
        while True:
            version = self.version
            await asyncio.sleep(0)  # in place of a request to an inference engine
            tokens, found = self.sampled(self.sampler, draw_sums(1, self.cfg.largest_operand) * self.cfg.group_size)
            packet = declog.rows(
                prompt=found.prompts, completion=found.completions, rewards=found.rewards, length=found.length,
                truncated=found.truncated,
            )  # fmt: skip
            reward = torch.stack([self.cfg.reward_weights[name] * each for name, each in found.rewards.items()]).sum(0)
            with torch.no_grad():
                logprobs, _ = token_statistics(self.sampler(tokens[:, :-1]), tokens, PROMPT_LENGTH)
            await self.done.put(Group(tokens, found.mask, logprobs, reward, version, packet))

    async def fresh(self) -> list[Group]:
        """The next groups that are not too old."""
        groups: list[Group] = []
        while len(groups) < self.cfg.prompts:
            group = await self.done.get()
            if self.version - group.version <= self.cfg.max_staleness:
                groups.append(group)
            else:
                group.packet.discard()
                self.log.log_metric("too_old", 1.0)
        return groups

    def update(self, groups: list[Group]) -> None:
        """Take one optimizer step, and let the workers sample with the new weights."""
        tokens, mask, old_logprobs, reward = (
            torch.cat([getattr(group, name) for group in groups]) for name in ("tokens", "mask", "logprobs", "reward")
        )
        advantages = self.algorithm.advantages(reward, mask, old_logprobs, old_logprobs)
        logprobs, _ = token_statistics(self.policy(tokens[:, :-1]), tokens, PROMPT_LENGTH)
        loss = self.algorithm.loss(advantages, mask, logprobs, old_logprobs, old_logprobs)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        declog.observe(
            completion_mask=mask, advantages=advantages, logprobs=logprobs, old_logprobs=old_logprobs, loss=loss
        )
        self.sampler.load_state_dict(self.policy.state_dict())
        self.version += 1

    async def evaluate(self, step: int, policy: Policy) -> None:
        """Evaluate the policy of a step on newly drawn sums, while training goes on."""
        with self.log.mode("eval", step=step):
            for _ in range(self.cfg.evaluations):
                await asyncio.sleep(0)
                _, found = self.sampled(policy, draw_sums(self.cfg.group_size, self.cfg.largest_operand))
                declog.observe(
                    prompt=found.prompts, completion=found.completions, rewards=found.rewards, length=found.length,
                    truncated=found.truncated,
                )  # fmt: skip

    def sampled(self, policy: Policy, drawn: list[tuple[str, int]]) -> tuple[Tensor, Scored]:
        """Sample a completion for each prompt; return the token ids, and the completions with their rewards."""
        tokens = sample(policy, encode([prompt for prompt, _ in drawn]), self.cfg.completion_length)
        return tokens, scored(drawn, tokens, self.cfg.reward_weights)


@hydra.main(version_base="1.3", config_path="conf", config_name="async_grpo")
def main(cfg: DictConfig) -> None:
    """Train, then print where the log is."""
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)
    with declog.start(cfg) as log:
        asyncio.run(Trainer(cfg, log).train())
    print(f"run        {log.output_dir}")


if __name__ == "__main__":
    main()
