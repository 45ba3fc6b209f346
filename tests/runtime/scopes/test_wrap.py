"""`log.wrap` around what step functions really are, and really return."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import namedtuple
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.runtime.recording.recorder import Recorder
from tests.runtime.scopes.running import run

Both = {("train", 0): (1.0, 4.0), ("train", 1): (1.0, 4.0)}
Pair = namedtuple("Pair", ["loss", "reward"])


@dataclasses.dataclass
class Result:
    """What a step function may return."""

    loss: float = 1.0
    reward: tuple[float, ...] = (4.0,)
    note: str = "not a signal"


@pytest.mark.parametrize(
    "result",
    [
        {"loss": 1.0, "reward": [4.0], "grad_norm": 2.0},
        (torch.tensor(1.0), {"reward": [4.0]}),
        (1.0, {"reward": [4.0]}),
        Result(reward=[4.0]),  # type: ignore[arg-type]
        Pair(1.0, [4.0]),
    ],
    ids=["mapping", "tensor and mapping", "loss and mapping", "dataclass", "named tuple"],
)
@pytest.mark.parametrize("kind", ["function", "async"])
def test_what_is_returned_is_observed(result: Any, kind: str, tmp_path: Path) -> None:
    """Each call is a step; the function's result comes back as it is."""

    def plain() -> Any:
        return result

    async def asynchronous() -> Any:
        await asyncio.sleep(0)
        return result

    def body(log: Recorder) -> None:
        for _ in range(2):
            if kind == "function":
                assert log.wrap(plain)() is result
            else:
                assert asyncio.run(log.wrap(asynchronous)()) is result

    logged = run(body, tmp_path)
    assert (logged.of("loss", "reward"), logged.failures) == (Both, {})


@pytest.mark.parametrize("loss", [2.0, 2, torch.tensor(2.0), torch.tensor([2.0]), np.float32(2.0)])
def test_a_bare_number_is_the_loss(loss: Any, tmp_path: Path) -> None:
    """As `GRPO_step` of small repositories returns it."""
    logged = run(lambda log: log.wrap(lambda: loss)(), tmp_path)
    assert logged.of("loss") == {("train", 0): (2.0,)}


class Opaque:
    """An object with attributes, of which nobody says which are signals."""

    loss = 5.0


@pytest.mark.parametrize("result", [Opaque(), "text", [1.0, 2.0], (1.0, 2.0), torch.ones(3), True])
def test_what_cannot_be_used_is_an_error(result: Any, tmp_path: Path) -> None:
    """Instead of a step without values, which nobody would notice."""

    def step() -> Any:
        return result

    def body(log: Recorder) -> None:
        with pytest.raises(declog.UsageError) as error:
            log.wrap(step)()
        assert str(error.value) == (
            f"[DL510] `wrap` cannot use what `step` returns: {type(result).__name__}\n"
            "  fix: return a mapping, a dataclass, a named tuple, (loss, mapping), a number as the loss, or None"
        )

    run(body, tmp_path)


def test_a_coroutine_that_a_plain_function_returns(tmp_path: Path) -> None:
    """It would run when the step is over: the error says what to wrap."""

    async def inner() -> None:
        pass

    def body(log: Recorder) -> None:
        with pytest.raises(declog.UsageError, match="wrap an `async def`, not what returns its coroutine"):
            wrapped: Callable[[], object] = log.wrap(lambda: inner())
            wrapped()

    run(body, tmp_path)


def test_what_an_asynchronous_step_observes_itself(tmp_path: Path) -> None:
    """Before and after it waits, and in the tasks that it starts."""

    async def step() -> None:
        declog.observe(loss=3.0)
        await asyncio.sleep(0)
        await asyncio.create_task(asyncio.to_thread(declog.observe, reward=[1.0]))

    async def body(log: Recorder) -> None:
        wrapped = log.wrap(step)
        for _ in range(2):
            await wrapped()

    logged = run(body, tmp_path)
    assert (logged.of("loss", "n"), logged.failures) == ({("train", 0): (3.0, 1), ("train", 1): (3.0, 1)}, {})


def test_a_generator_is_refused(tmp_path: Path) -> None:
    """Of both kinds, where it is wrapped."""

    def items() -> Iterator[int]:
        yield 0

    async def stream() -> AsyncIterator[int]:
        yield 0

    def body(log: Recorder) -> None:
        for generator in (items, stream):
            with pytest.raises(declog.UsageError, match=f"`wrap` is for functions, and `{generator.__name__}` is a"):
                log.wrap(generator)

    run(body, tmp_path)


def test_errors_of_the_step_function_come_through(tmp_path: Path) -> None:
    """Unchanged, from both kinds; what was observed before them is logged."""
    mine = ValueError("mine")

    def plain() -> None:
        declog.observe(loss=1.0)
        raise mine

    async def asynchronous() -> None:
        plain()

    def body(log: Recorder) -> None:
        for call in (
            log.wrap(plain),
            lambda: asyncio.run(log.wrap(asynchronous)()),
        ):
            with pytest.raises(ValueError, match="mine") as error:
                call()
            assert error.value is mine

    logged = run(body, tmp_path)
    assert logged.of("loss") == {("train", step): (1.0,) for step in range(2)}


def test_wrapped_steps_that_overlap(tmp_path: Path) -> None:
    """Two calls at once are two steps at once: the second says what to do, and the first is whole."""

    async def step() -> dict[str, float]:
        await asyncio.sleep(0)
        return {"loss": 1.0}

    async def body(log: Recorder) -> None:
        wrapped = log.wrap(step)
        done = await asyncio.gather(wrapped(), wrapped(), return_exceptions=True)
        assert done[0] == {"loss": 1.0}
        assert str(done[1]).startswith("[DL510] step 0 begins inside step 0")

    assert run(body, tmp_path).of("loss") == {("train", 0): (1.0,)}
