"""The training thread goes on while the device is busy, whatever is observed and however."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from declog.runtime.recording.recorder import Recorder
from tests.gpu.test_cuda import without_waiting
from tests.running import profile, run

ROWS, LENGTH = 6, 40_000
SIGNALS: dict[str, Any] = {
    "reward": {"axis": "completion"}, "length": {"axis": "completion", "type": "int"}, "loss": {"axis": "step"},
    "ratio": {"axis": "token"}, "steps": {"axis": "token", "type": "int"}, "mask": {"axis": "token", "type": "bool"},
    "id": {"axis": "completion", "type": "object"},
}  # fmt: skip
METRICS = {
    "reward": {"expr": "reward", "reduce": ["mean", "count"]}, "length": "sum(length)", "loss": "mean(loss)",
    "ratio": {"expr": "ratio", "reduce": ["mean", "std", "min", "max", "p50"], "name": "ratio/{reduce}"},
    "steps": "mean(steps)", "clipped": "mean(ratio > 1.2)", "first": "mean(first(ratio, over=token))",
    "shaped": "mean(sum(ratio * reward, over=token))",
}  # fmt: skip
CONFIG = profile(
    SIGNALS, METRICS, axes={"token": {"mask": "mask"}}, schemas={"s": {"id": {}, "extra": {"undeclared": "keep"}}},
    tables={"t": {"rows": "completion", "schema": "s"}},
)  # fmt: skip
Values = Mapping[str, Any]


@contextmanager
def busy_device(cycles: int = 1_000_000_000) -> Iterator[None]:
    """A block during which the device works for half a second and more; it fails if it ends only after the device."""
    torch.cuda.synchronize()
    ended: Any = torch.cuda.Event()
    torch.cuda._sleep(cycles)
    ended.record()
    yield
    assert not ended.query()
    torch.cuda.synchronize()


def tensors(device: str) -> dict[str, torch.Tensor]:
    """A step's values."""
    random = torch.Generator().manual_seed(3)
    return {
        "reward": torch.rand(ROWS, generator=random).to(device),
        "length": torch.arange(1, ROWS + 1, device=device), "loss": torch.tensor(0.5, device=device),
        "ratio": (torch.rand(ROWS, LENGTH, generator=random) + 0.5).to(device),
        "mask": torch.rand(ROWS, LENGTH, generator=random).to(device) > 0.25,
    }  # fmt: skip


def host_mask(device: str) -> Values:
    """A mask in the host's memory."""
    values = tensors(device)
    return {**values, "mask": values["mask"].cpu()}


def pinned_mask(device: str) -> Values:
    """A mask in pinned memory."""
    values = tensors(device)
    return {**values, "mask": values["mask"].cpu().pin_memory() if device == "cuda" else values["mask"]}


def rows_of_tokens(device: str) -> Values:
    """A tensor for each completion, each of another length; integers too."""
    rows = tensors(device)["ratio"]
    return {
        "ratio": [row[: 5 + place] for place, row in enumerate(rows)],
        "steps": [torch.arange(5 + place, device=device) for place in range(ROWS)],
        "mask": [torch.ones(5 + place, dtype=torch.bool, device=device) for place in range(ROWS)],
    }


def list_of_numbers(device: str) -> Values:
    """A tensor for each number, among numbers of the host and missing ones."""
    return {"reward": [torch.tensor(0.5, device=device), None, 2, 0.25, True, torch.tensor(1.5, device=device)]}


def host_lists(device: str) -> Values:
    """Nothing is on the device but what these values are combined with."""
    ratio = tensors(device)["ratio"][:, :3]
    return {"ratio": ratio, "mask": [[True] * 3] * ROWS, "reward": [0.5] * ROWS, "loss": 0.25}


def identifiers(device: str) -> Values:
    """A column of any type."""
    return {"reward": tensors(device)["reward"], "id": torch.arange(ROWS, device=device)}


WAYS: dict[str, Callable[[str], Values]] = {
    one.__name__: one
    for one in (tensors, host_mask, pinned_mask, rows_of_tokens, list_of_numbers, host_lists, identifiers)
}


def recorder_steps(values: Values, device: str) -> Callable[[Recorder], None]:
    """Three steps, each with a log event; on a GPU the last two in which all memory is there run while it is busy."""

    def step(log: Recorder, number: int) -> None:
        with log.step(number), log.timer("step"):
            log.observe(**values)
            log.log_extra("place", torch.arange(ROWS, device=device))
            log.log_metric("mine", torch.ones((), device=device))

    def body(log: Recorder) -> None:
        step(log, 0)
        log._background.settle()
        for number in (1, 2):
            if device == "cpu":
                step(log, number)
                continue
            with busy_device(), without_waiting():
                step(log, number)

    return body


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("capture", [False, True], ids=["", "captured"])
def test_a_step_ends_while_the_device_is_busy(way: str, capture: bool, tmp_path: Path) -> None:
    """With a log event each step; the numbers are those of the host."""
    make, expected = WAYS[way], {}
    for device in ("cpu", "cuda"):
        sink = run(CONFIG, recorder_steps(make(device), device), tmp_path / device, capture=capture)
        timeless = {step: {name: value for name, value in values.items() if not name.startswith("time/")}
                    for step, values in sink.scalars.items()}  # fmt: skip
        if device == "cpu":
            expected = timeless
            assert sorted(expected) == [0, 1, 2]
        assert timeless == {step: pytest.approx(values, rel=1e-5) for step, values in expected.items()}


def test_a_large_mask_on_the_host(tmp_path: Path) -> None:
    """CUDA copies small memory at once; before it copies 12 MB of plain memory it waits for the device."""
    shape = ROWS, 2_000_000
    ratio, mask = torch.ones(shape, device="cuda"), torch.ones(shape, dtype=torch.bool)
    config = profile(
        {"ratio": {"axis": "token"}, "mask": {"axis": "token", "type": "bool"}}, {"ratio": "mean(ratio)"},
        axes={"token": {"mask": "mask"}},
    )  # fmt: skip

    def body(log: Recorder) -> None:
        with busy_device(), log.step(0):
            log.observe(ratio=ratio, mask=mask)

    assert run(config, body, tmp_path).scalars == {0: {"ratio": 1.0}}


def test_the_first_step_does_not_wait_either(tmp_path: Path) -> None:
    """Although pinned memory is allocated in it."""
    torch.cuda.empty_cache()
    values = tensors("cuda")

    def body(log: Recorder) -> None:
        with busy_device(), log.step(0):
            log.observe(**values)

    assert sorted(run(CONFIG, body, tmp_path).scalars) == [0]
