"""A loop with `Accelerator`: the demo's policy learns to add, on any number of processes, with accumulated gradients.

    python examples/accelerate_grpo.py                                        about half a minute
    accelerate launch --cpu --num_processes 2 examples/accelerate_grpo.py
    python examples/accelerate_grpo.py trackers=[tensorboard,trackio] steps=20

Each process draws its own prompts and observes its own rows; numbers are of all of them. They go into the trackers that
the Accelerator has open, beside what the loop logs there itself. What is logged is said in `conf/accelerate_grpo.yaml`.
"""

from __future__ import annotations

import hydra
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from arithmetic.model import Policy, sample
from arithmetic.policy_gradient import GRPO
from arithmetic.tasks import END, PROMPT_LENGTH, REWARDS, VOCABULARY, decode, draw_sums, encode
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from torch import Tensor

import declog
from declog.integrations.accelerate import start


@hydra.main(version_base="1.3", config_path="conf", config_name="accelerate_grpo")
def main(cfg: DictConfig) -> None:
    """Train, on each process."""
    torch.set_num_threads(cfg.threads)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=cfg.accumulate, log_with=list(cfg.trackers),
        project_dir=HydraConfig.get().runtime.output_dir,
    )  # fmt: skip
    accelerator.init_trackers(cfg.declog.name, config={"learning_rate": cfg.learning_rate})
    set_seed(cfg.seed, device_specific=True)
    train(cfg, accelerator)
    accelerator.free_memory()  # before the processes part: what it prepared may not outlive their group
    accelerator.end_training()


def train(cfg: DictConfig, accelerator: Accelerator) -> None:
    """All steps; processes take each together."""
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
    """One rollout, and one gradient step on it, accumulated over its micro-batches."""
    tokens, mask, rewards = rollout(cfg, accelerator.unwrap_model(policy))
    with torch.no_grad():
        old_logprobs, _ = token_statistics(accelerator.unwrap_model(policy), tokens)
    advantages = algorithm.advantages(rewards, mask, old_logprobs, old_logprobs)
    for rows in torch.arange(len(tokens)).chunk(cfg.accumulate):
        with accelerator.accumulate(policy):
            logprobs, entropy = token_statistics(policy, tokens[rows])
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
    """This process's completions, [n, prompt + completion] and their mask, and the weighted reward of each."""
    drawn = [each for each in draw_sums(cfg.prompts, cfg.largest_operand) for _ in range(cfg.group_size)]
    prompts, answers = [prompt for prompt, _ in drawn], [answer for _, answer in drawn]
    tokens = sample(policy, encode(prompts), cfg.completion_length)
    completions = decode(tokens[:, PROMPT_LENGTH:])
    length = torch.tensor([len(text) for text in completions])
    weights = dict(cfg.reward_weights)
    rewards = {name: torch.tensor(REWARDS[name](prompts, completions, answers)) for name in weights}
    declog.observe(
        prompt=prompts,
        completion=completions,
        rewards=rewards,
        reward_weights=weights,
        length=length,
        truncated=torch.tensor([not text.endswith(END) for text in completions]),
    )
    mask = torch.arange(cfg.completion_length) < length.unsqueeze(1)
    return tokens, mask, torch.stack([weights[name] * rewards[name] for name in weights]).sum(0)


def token_statistics(policy: torch.nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each completion token and entropy of the distribution it was drawn from."""
    distribution = policy(tokens[:, :-1])[:, PROMPT_LENGTH - 1 :].log_softmax(-1)
    logprobs = distribution.gather(-1, tokens[:, PROMPT_LENGTH:].unsqueeze(-1)).squeeze(-1)
    return logprobs, -(distribution.exp() * distribution).sum(-1)


if __name__ == "__main__":
    main()
