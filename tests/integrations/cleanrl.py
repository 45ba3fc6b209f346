"""The loop of cleanrl's ``ppo.py`` (vwxyzjn/cleanrl, MIT): rollouts of several environments, flat minibatches of steps.

Its own lines are kept, down to what its writer gets; declog's are the two calls of ``log.observe``. Nothing here is a
token: a row of a rollout is an environment and a "token" one of its steps, and a minibatch is one row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.distributions.categorical import Categorical

import declog


@dataclass
class Args:
    """Those of cleanrl's that this loop has."""

    learning_rate: float = 2.5e-3
    num_envs: int = 4
    num_steps: int = 32
    num_iterations: int = 4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    num_minibatches: int = 4
    update_epochs: int = 3
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


class CartPoles:
    """Poles on carts (Barto, Sutton and Anderson 1983), one per row; one that falls is set up again."""

    def __init__(self, count: int) -> None:
        self.random = np.random.default_rng(0)
        self.state = self.random.uniform(-0.05, 0.05, (count, 4))
        self.age = np.zeros(count)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[float]]:
        """The next states, rewards, which fell, and how long those stood."""
        _, speed, angle, turn = self.state.T
        push = np.where(action == 1, 10.0, -10.0)
        part = (push + 0.05 * turn**2 * np.sin(angle)) / 1.1
        faster = (9.8 * np.sin(angle) - np.cos(angle) * part) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        pushed = part - 0.05 * faster * np.cos(angle) / 1.1
        self.state = self.state + 0.02 * np.stack([speed, pushed, turn, faster], 1)
        self.age += 1
        done = (abs(self.state[:, 0]) > 2.4) | (abs(self.state[:, 2]) > 0.2095) | (self.age >= 200)
        lengths = self.age[done].tolist()
        self.state[done] = self.random.uniform(-0.05, 0.05, (int(done.sum()), 4))
        self.age[done] = 0
        return self.state, np.ones(len(done)), done, lengths


class Agent(nn.Module):
    """An actor and a critic, each of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Actions, their log-probabilities and entropies, and values."""
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def train(args: Args, log: declog.Recorder) -> list[dict[str, float]]:
    """What cleanrl gives to its writer, by iteration."""
    torch.manual_seed(1)
    np.random.seed(1)
    envs, agent = CartPoles(args.num_envs), Agent()
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    batch_size = args.num_envs * args.num_steps
    minibatch_size = batch_size // args.num_minibatches
    written: list[dict[str, float]] = []

    obs = torch.zeros((args.num_steps, args.num_envs, 4))
    actions, logprobs, rewards, dones, values = (torch.zeros((args.num_steps, args.num_envs)) for _ in range(5))
    next_obs, next_done = torch.Tensor(envs.state), torch.zeros(args.num_envs)

    for iteration in range(1, args.num_iterations + 1):
        with log.step(iteration):
            frac = 1.0 - (iteration - 1.0) / args.num_iterations
            optimizer.param_groups[0]["lr"] = frac * args.learning_rate
            for step in range(args.num_steps):
                obs[step], dones[step] = next_obs, next_done
                with torch.no_grad():
                    action, logprob, _, value = agent.get_action_and_value(next_obs)
                    values[step] = value.flatten()
                actions[step], logprobs[step] = action, logprob
                state, reward, done, lengths = envs.step(action.numpy())
                rewards[step] = torch.tensor(reward)
                next_obs, next_done = torch.Tensor(state), torch.Tensor(done)
                for each in lengths:
                    log.log_metric("charts/episodic_return", each)

            with torch.no_grad():
                next_value = agent.critic(next_obs).reshape(1, -1)
                advantages = torch.zeros_like(rewards)
                lastgaelam: Tensor | float = 0.0
                for t in reversed(range(args.num_steps)):
                    last = t == args.num_steps - 1
                    nextnonterminal = 1.0 - (next_done if last else dones[t + 1])
                    nextvalues = next_value if last else values[t + 1]
                    delta = rewards[t] + args.gamma * nextvalues * nextnonterminal - values[t]
                    advantages[t] = lastgaelam = delta + args.gamma * args.gae_lambda * nextnonterminal * lastgaelam
                returns = advantages + values
            log.observe(
                reward=rewards.sum(0), completion_mask=torch.ones_like(rewards.T, dtype=torch.bool),
                old_logprobs=logprobs.T, old_values=values.T, returns=returns.T, advantages=advantages.T,
                episode=iteration * batch_size,
            )  # fmt: skip

            b_obs, b_actions = obs.reshape(-1, 4), actions.reshape(-1)
            b_logprobs, b_advantages = logprobs.reshape(-1), advantages.reshape(-1)
            b_returns, b_values = returns.reshape(-1), values.reshape(-1)
            b_inds, clipfracs = np.arange(batch_size), []
            for _ in range(args.update_epochs):
                np.random.shuffle(b_inds)
                for start in range(0, batch_size, minibatch_size):
                    mb_inds = b_inds[start : start + minibatch_size]
                    _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb_inds], b_actions[mb_inds])
                    logratio = newlogprob - b_logprobs[mb_inds]
                    ratio = logratio.exp()
                    with torch.no_grad():
                        approx_kl = ((ratio - 1) - logratio).mean()
                        clipfracs += [((ratio - 1.0).abs() > args.clip_coef).float().mean().item()]
                    mb_advantages = b_advantages[mb_inds]
                    mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
                    pg_loss1 = -mb_advantages * ratio
                    pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
                    pg_loss = torch.max(pg_loss1, pg_loss2).mean()
                    newvalue = newvalue.view(-1)
                    v_loss_unclipped = (newvalue - b_returns[mb_inds]) ** 2
                    v_clipped = b_values[mb_inds] + torch.clamp(
                        newvalue - b_values[mb_inds], -args.clip_coef, args.clip_coef
                    )
                    v_loss = 0.5 * torch.max(v_loss_unclipped, (v_clipped - b_returns[mb_inds]) ** 2).mean()
                    entropy_loss = entropy.mean()
                    loss = pg_loss - args.ent_coef * entropy_loss + v_loss * args.vf_coef
                    optimizer.zero_grad()
                    loss.backward()
                    grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                    optimizer.step()
                    row = {
                        "logprobs": newlogprob, "old_logprobs": b_logprobs[mb_inds], "advantages": mb_advantages,
                        "values": newvalue, "old_values": b_values[mb_inds], "returns": b_returns[mb_inds],
                        "entropy": entropy, "completion_mask": torch.ones(len(mb_inds), dtype=torch.bool),
                    }  # fmt: skip
                    log.observe(
                        **{name: value.unsqueeze(0) for name, value in row.items()}, loss=loss, grad_norm=grad_norm,
                        learning_rate=optimizer.param_groups[0]["lr"],
                    )  # fmt: skip

            y_pred, y_true = b_values.numpy(), b_returns.numpy()
            var_y = np.var(y_true)
            written.append({
                "charts/learning_rate": optimizer.param_groups[0]["lr"],
                "losses/value_loss": v_loss.item(),
                "losses/policy_loss": pg_loss.item(),
                "losses/entropy": entropy_loss.item(),
                "losses/approx_kl": approx_kl.item(),
                "losses/clipfrac": float(np.mean(clipfracs)),
                "losses/explained_variance": float(1 - np.var(y_true - y_pred) / var_y),
            })  # fmt: skip
    return written
