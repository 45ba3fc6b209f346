"""A stand-in for tinker's service, and an environment: whole training runs of tinker-cookbook without a model.

Each sample is a token of its own, so that what was rewarded, and what `forward_backward` got in which step, is known
here, whatever the loop and its loggers say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any

import chz
import numpy as np
import tinker
from tinker_cookbook.rl.types import (
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Metrics,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
    Trajectory,
)

GROUP, GROUPS = 4, 4  # trajectories of a prompt, prompts of a batch
FIRST = 1000  # the token of the first sample; those below are prompts
Observe = Callable[[list[int], list[float], bool], None]  # samples, their rewards, whether of an evaluation


class Done:
    """What the service's calls return: to be awaited, or asked for its result."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, Any]:
        yield from asyncio.sleep(0).__await__()
        return self.value

    def result(self) -> Any:
        return self.value


class Service:
    """The service with its one model, and what it knows: steps, their samples, each sample's reward and version."""

    def __init__(self, steps: int, lag: int) -> None:
        self.steps, self.lag = steps, lag  # of the whole run; those that an evaluation lasts
        self.trained: list[list[int]] = [[]]  # the samples of each optimizer step; the last is the open one
        self.evaluated: dict[int, list[int]] = {}  # by version
        self.versions: dict[int, int] = {}
        self.rewards: dict[int, float] = {}
        self.stepped = asyncio.Event()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def create_lora_training_client(self, *_: Any, **__: Any) -> Done:
        return Done(self)

    @property
    def version(self) -> int:
        return len(self.trained) - 1

    # -- the training client

    def forward_backward(self, data: Sequence[tinker.Datum], **_: Any) -> Done:
        targets = [datum.loss_fn_inputs["target_tokens"].to_torch() for datum in data]
        self.trained[-1] += [int(token) for each in targets for token in each if token >= FIRST]
        outputs = [{"logprobs": tinker.TensorData.from_torch(-each / 5000.0)} for each in targets]
        return Done(tinker.ForwardBackwardOutput("logprobs", outputs))

    def optim_step(self, _: Any) -> Done:
        self.trained.append([])
        self.stepped.set()
        self.stepped = asyncio.Event()
        return Done(tinker.OptimStepResponse(metrics={"optim/grad_norm": 1 / self.version}))

    def saved(self, name: str, **_: Any) -> Done:
        return Done(tinker.types.SaveWeightsForSamplerResponse(path=f"tinker://{name}/{self.version}"))

    save_state = save_weights_for_sampler = saved

    def save_weights_and_get_sampling_client(self, **_: Any) -> Done:
        return Done(Sampler(self, self.version))

    def create_sampling_client(self, path: str, **_: Any) -> Done:
        return Done(Sampler(self, int(path.rpartition("/")[2])))


class Sampler:
    """The weights of one version."""

    def __init__(self, service: Service, version: int) -> None:
        self.service, self.version = service, version

    async def sample(self, prompt: tinker.ModelInput, **options: Any) -> tinker.SampleResponse:
        service = self.service
        number = FIRST + len(service.versions)
        service.versions[number] = self.version
        (place,) = prompt.to_ints()
        for _ in range(1 + number * 7 % 11):  # others overtake it
            await asyncio.sleep(0)
        while place == 0 and service.version < min(self.version + service.lag, service.steps):
            await service.stepped.wait()  # an evaluation goes on while training does
        sequence = tinker.SampledSequence(
            "stop", f"sequence-{number}", np.array([number], np.int32), np.array([-number / 4000.0], np.float32)
        )
        return tinker.SampleResponse([sequence])


class Place(Env):  # type: ignore[misc]  # tinker-cookbook is not typed here
    """One turn: a sample's reward is drawn by its number; where `constant` it is one half."""

    def __init__(self, service: Service, prompt: int, constant: bool) -> None:
        self.service, self.prompt, self.constant = service, prompt, constant
        self.number = -1

    async def initial_observation(self) -> tuple[tinker.ModelInput, list[str]]:
        return tinker.ModelInput.from_ints([self.prompt]), []

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        (self.number,) = action
        reward = 0.5 if self.constant else float(np.random.default_rng(self.number).random())
        self.service.rewards[self.number] = reward
        if self.prompt == 0:
            self.service.evaluated.setdefault(self.service.versions[self.number], []).append(self.number)
        return StepResult(reward, True, tinker.ModelInput.from_ints([]), [], {"drawn": reward})


class Prompt(EnvGroupBuilder):  # type: ignore[misc]  # tinker-cookbook is not typed here
    """The trajectories of one prompt, whose rewards `observe` gets in the task that made them."""

    def __init__(self, service: Service, prompt: int, constant: bool, observe: Observe) -> None:
        self.service, self.prompt, self.constant, self.observe = service, prompt, constant, observe

    async def make_envs(self) -> Sequence[Env]:
        return [Place(self.service, self.prompt, self.constant) for _ in range(GROUP)]

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        numbers = [trajectory.transitions[0].ac.tokens[0] for trajectory in trajectory_group]
        rewards = [trajectory.transitions[0].reward for trajectory in trajectory_group]
        self.observe(numbers, rewards, self.prompt == 0)
        return [(0.0, {}) for _ in trajectory_group]


class Prompts(RLDataset):  # type: ignore[misc]  # tinker-cookbook is not typed here
    """Batches of prompts; one of each batch has constant rewards where `constant`."""

    def __init__(self, service: Service, batches: int, constant: bool, observe: Observe, *, test: bool = False) -> None:
        self.service, self.batches, self.constant = service, batches, constant
        self.observe, self.test = observe, test

    def __len__(self) -> int:
        return self.batches

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return [
            Prompt(self.service, 0 if self.test else 1 + each, self.constant and each == index % GROUPS, self.observe)
            for each in range(GROUPS)
        ]


@chz.chz
class Builder(RLDatasetBuilder):  # type: ignore[misc]  # tinker-cookbook is not typed here
    """Training prompts, and as many to evaluate."""

    service: Any
    batches: int
    constant: bool
    observe: Any

    async def __call__(self) -> tuple[RLDataset, RLDataset]:
        training = Prompts(self.service, self.batches, self.constant, self.observe)
        return training, Prompts(self.service, 1, False, self.observe, test=True)
