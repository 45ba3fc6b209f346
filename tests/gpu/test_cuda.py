"""Recording on a GPU: the numbers of the host, no wait for the device, one copy per log event."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from declog.runtime.recording.recorder import Recorder
from tests.running import profile, run

SIGNALS: dict[str, Any] = {
    "reward": {"axis": "completion"}, "length": {"axis": "completion", "type": "int"}, "loss": {"axis": "step"},
    "ratio": {"axis": "token"}, "mask": {"axis": "token", "type": "bool"},
}  # fmt: skip
METRICS = {
    "reward": {"expr": "reward", "reduce": ["mean", "std", "p90", "last"]},
    "length": "sum(length)", "loss": "mean(loss)",
    "ratio": {"expr": "ratio", "reduce": ["mean", "std", "min", "max", "p50"]}, "clipped": "mean(ratio > 1.2)",
}  # fmt: skip
CONFIG = profile(SIGNALS, METRICS, every=4, axes={"token": {"mask": "mask"}})
ROWS, LENGTH, STEPS = 8, 33, 8
Batch = Mapping[str, torch.Tensor]


def batches(device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[Batch]:
    """What steps observe; the same numbers on every device."""
    made: list[Batch] = []
    for step in range(STEPS):
        random = torch.Generator().manual_seed(step)
        values = {
            "reward": torch.rand(ROWS, generator=random).to(dtype), "loss": torch.rand((), generator=random).to(dtype),
            "ratio": (torch.rand(ROWS, LENGTH, generator=random) + 0.5).to(dtype),
            "length": torch.randint(1, LENGTH, (ROWS,), generator=random),
        }  # fmt: skip
        values["mask"] = torch.arange(LENGTH) < values["length"].unsqueeze(1)
        made.append({name: value.to(device) for name, value in values.items()})
    torch.cuda.synchronize()
    return made


def recorded(given: Sequence[Batch], folder: Path) -> dict[int, dict[str, float]]:
    """What is logged of steps."""

    def body(log: Recorder) -> None:
        for step, batch in enumerate(given):
            with log.step(step):
                log.observe(**batch)

    return run(CONFIG, body, folder).scalars


def close_to(expected: Mapping[int, Mapping[str, float]]) -> dict[int, Any]:
    """The same numbers, to the rounding of sums in another order."""
    return {step: pytest.approx(dict(values), rel=1e-4) for step, values in expected.items()}


@contextmanager
def without_waiting() -> Iterator[None]:
    """A block in which it is an error to wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that some waits are not noticed: test_waiting.py notices all
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_numbers_are_those_of_the_host(dtype: torch.dtype, tmp_path: Path) -> None:
    """In each precision."""
    expected = recorded(batches("cpu", dtype), tmp_path / "cpu")
    assert recorded(batches("cuda", dtype), tmp_path / "cuda") == close_to(expected)


@pytest.mark.parametrize("on_host", [("mask",), ("ratio",), ("length", "loss"), ("reward", "mask")])
def test_values_of_two_devices_are_recorded_together(on_host: tuple[str, ...], tmp_path: Path) -> None:
    """A mask on the host beside values on the GPU, and the other way round."""
    expected = recorded(batches(), tmp_path / "cpu")
    mixed = [
        {name: value.cpu() if name in on_host else value for name, value in batch.items()} for batch in batches("cuda")
    ]
    assert recorded(mixed, tmp_path / "mixed") == close_to(expected)


def test_recording_waits_for_nothing(tmp_path: Path) -> None:
    """Neither `observe`, nor the end of a step, nor the hand-over of a log event."""
    given = batches("cuda")

    def body(log: Recorder) -> None:
        for step, batch in enumerate(given):
            with without_waiting(), log.step(step):
                log.observe(**batch)

    assert sorted(run(CONFIG, body, tmp_path).scalars) == [3, 7]


def test_a_log_event_is_one_copy_to_the_host(tmp_path: Path) -> None:
    """However many batches and columns it has."""
    given = batches("cuda")

    def body(log: Recorder) -> None:
        for step, batch in enumerate(given):
            with log.step(step):
                for _ in range(4):
                    log.observe(**batch)
        log._background.settle()

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as seen:
        run(CONFIG, body, tmp_path)
    copies = [event for event in seen.events() if "Memcpy DtoH" in event.name]
    assert len(copies) == STEPS // 4


def test_what_other_streams_make_is_whole(tmp_path: Path) -> None:
    """Values that a side stream is still computing when they are observed there."""
    expected = recorded(batches(), tmp_path / "cpu")
    given, side = batches("cuda"), torch.cuda.Stream()

    def body(log: Recorder) -> None:
        for step, batch in enumerate(given):
            with log.step(step):
                with torch.cuda.stream(side):
                    torch.cuda._sleep(10_000_000)
                    log.observe(reward=batch["reward"] * 1, length=batch["length"] * 1)
                log.observe(loss=batch["loss"], ratio=batch["ratio"], mask=batch["mask"])

    assert run(CONFIG, body, tmp_path / "cuda").scalars == close_to(expected)


def test_static_outputs_of_a_graph_are_copied(tmp_path: Path) -> None:
    """A CUDA graph writes each step's values where those of the last were."""
    expected = recorded(batches(), tmp_path / "cpu")
    given = batches("cuda")
    inputs = {name: value.clone() for name, value in given[0].items()}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = {name: value.clone() for name, value in inputs.items()}

    def body(log: Recorder) -> None:
        for step, batch in enumerate(given):
            for name, value in batch.items():
                inputs[name].copy_(value)
            graph.replay()
            with log.step(step):
                log.observe(**outputs)

    assert run(CONFIG, body, tmp_path / "cuda").scalars == close_to(expected)


def test_pinned_memory_is_used_again(tmp_path: Path) -> None:
    """It does not grow with the number of log events."""
    given = batches("cuda")
    reserved: list[int] = []

    def body(log: Recorder) -> None:
        for step in range(40 * STEPS):
            with log.step(step):
                log.observe(**given[step % STEPS])
            if step % 4 == 3:
                log._background.settle()
                reserved.append(torch.cuda.host_memory_stats()["num_host_alloc"])

    run(CONFIG, body, tmp_path)
    assert reserved[-1] == reserved[len(reserved) // 2]
