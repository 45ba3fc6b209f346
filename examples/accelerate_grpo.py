"""A loop with `Accelerator`: the demo's policy learns to add, on any number of processes, with gradient accumulation.

    python examples/accelerate_grpo.py                                        about half a minute
    accelerate launch --cpu --num_processes 2 examples/accelerate_grpo.py
    python examples/accelerate_grpo.py trackers=[tensorboard,trackio] steps=20

Each process draws its own prompts and observes its own rows; the metrics cover the rows of all processes. They go to
the Accelerator's trackers, beside the numbers that the loop logs there itself. `conf/accelerate_grpo.yaml` declares
what is logged.
"""

from __future__ import annotations

import hydra
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from arithmetic.model import Policy, sample, token_statistics
from arithmetic.policy_gradient import GRPO
from arithmetic.tasks import PROMPT_LENGTH, VOCABULARY, draw_sums, encode, scored
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from torch import Tensor

import declog
from declog.integrations.accelerate import start


@hydra.main(version_base="1.3", config_path="conf", config_name="accelerate_grpo")
def main(cfg: DictConfig) -> None:
    """Train on this process, together with the others."""
    torch.set_num_threads(cfg.threads)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=cfg.accumulate, log_with=list(cfg.trackers),
        project_dir=HydraConfig.get().runtime.output_dir,
    )  # fmt: skip
    accelerator.init_trackers(cfg.declog.run.project, config={"learning_rate": cfg.learning_rate})
    set_seed(cfg.seed, device_specific=True)
    train(cfg, accelerator)
    accelerator.free_memory()  # the prepared objects may not outlive the process group
    accelerator.end_training()


def train(cfg: DictConfig, accelerator: Accelerator) -> None:
    """Take all steps; the processes take each step together."""
    policy = Policy(len(VOCABULARY), PROMPT_LENGTH + cfg.completion_length, **cfg.model)
    policy, optimizer = accelerator.prepare(policy, torch.optim.Adam(policy.parameters(), lr=cfg.learning_rate))
    algorithm = GRPO(cfg.group_size, cfg.beta, cfg.epsilon_low, cfg.epsilon_high)
    with start(accelerator, cfg) as log:
        for step in range(cfg.steps):
            with log.step(step):
                train_step(cfg, accelerator, policy, optimizer, algorithm, step)


def train_step(
    cfg: DictConfig, accelerator: Accelerator, policy: torch.nn.Module, optimizer: torch.optim.Optimizer,
    algorithm: GRPO, step: int,
) -> None:  # fmt: skip
    """Take one rollout and one gradient step on it, accumulated over micro-batches."""
    tokens, mask, rewards = rollout(cfg, accelerator.unwrap_model(policy))
    with torch.no_grad():
        old_logprobs, _ = token_statistics(accelerator.unwrap_model(policy)(tokens[:, :-1]), tokens, PROMPT_LENGTH)
    advantages = algorithm.advantages(rewards, mask, old_logprobs, old_logprobs)
    for rows in torch.arange(len(tokens)).chunk(cfg.accumulate):
        with accelerator.accumulate(policy):
            logprobs, entropy = token_statistics(policy(tokens[rows, :-1]), tokens[rows], PROMPT_LENGTH)
            part = mask[rows]
            loss = algorithm.loss(advantages[rows], part, logprobs, old_logprobs[rows], old_logprobs[rows])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        declog.observe(
            completion_mask=part,
            advantages=advantages[rows],
            logprobs=logprobs,
            old_logprobs=old_logprobs[rows],
            entropy=entropy,
            loss=loss,
            learning_rate=optimizer.param_groups[0]["lr"],
        )
    accelerator.log({"by_hand/reward": accelerator.gather(rewards).mean().item()}, step=step)


def rollout(cfg: DictConfig, policy: Policy) -> tuple[Tensor, Tensor, Tensor]:
    """Sample this process's completions; return them [n, prompt + completion], their mask, and weighted rewards [n]."""
    drawn = [each for each in draw_sums(cfg.prompts, cfg.largest_operand) for _ in range(cfg.group_size)]
    tokens = sample(policy, encode([prompt for prompt, _ in drawn]), cfg.completion_length)
    weights = dict(cfg.reward_weights)
    found = scored(drawn, tokens, weights)
    declog.observe(
        prompt=found.prompts,
        completion=found.completions,
        rewards=found.rewards,
        reward_weights=weights,
        length=found.length,
        truncated=found.truncated,
    )
    return tokens, found.mask, torch.stack([weights[name] * found.rewards[name] for name in weights]).sum(0)


if __name__ == "__main__":
    main()
