"""Tensors that change or are freed right after a call, and the settings of torch that change how tensors are made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from declog.replay import capture_reader
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.gpu.test_cuda import CONFIG, STEPS, Batch, batches, close_to, recorded
from tests.replay.keeping import captured, timeless
from tests.running import run


def test_values_that_change_right_after_the_call(tmp_path: Path) -> None:
    """On the device and in pinned memory; the log has the values that were observed."""
    expected = recorded(batches(), tmp_path / "cpu")
    steps = batches("cuda")
    masks = [values["mask"].cpu().pin_memory() for values in steps]

    def body(log: Recorder) -> None:
        for step, (values, mask) in enumerate(zip(steps, masks, strict=True)):
            torch.cuda._sleep(10_000_000)  # copies have not begun when the values change
            with log.step(step):
                log.observe(**{**values, "mask": mask})
                for value in (*values.values(), mask):
                    value.zero_()

    assert run(CONFIG, body, tmp_path / "cuda").scalars == close_to(expected)


def test_memory_that_is_freed_right_after_the_call(tmp_path: Path) -> None:
    """Its next owner writes into it at once, on the same stream and on another one."""
    expected = recorded(batches(), tmp_path / "cpu")
    steps, side = batches("cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()

    def body(log: Recorder) -> None:
        for step, values in enumerate(steps):
            with log.step(step):
                for stream in (side, torch.cuda.current_stream()):
                    with torch.cuda.stream(stream):
                        names = ("reward", "length") if stream == side else ("loss", "ratio", "mask")
                        torch.cuda._sleep(5_000_000)
                        made = {name: values[name] * 1 if name != "mask" else values[name].clone() for name in names}
                        log.observe(**made)
                        sizes = [(value.shape, value.dtype) for value in made.values()]
                        del made
                        for shape, dtype in sizes:
                            torch.zeros(shape, dtype=dtype, device="cuda")

    assert run(CONFIG, body, tmp_path / "cuda").scalars == close_to(expected)


@contextmanager
def default_device() -> Iterator[None]:
    """``torch.set_default_device("cuda")``."""
    torch.set_default_device("cuda")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def deterministic() -> Iterator[None]:
    """``torch.use_deterministic_algorithms(True)``."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


SETTINGS: dict[str, Any] = {
    "default device": default_device, "deterministic": deterministic, "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cuda", dtype=torch.bfloat16),
}  # fmt: skip


PACKED = {
    **CONFIG,
    "signals": {"any": {**CONFIG["signals"]["any"], "mask": None, "tokens": {"axis": "completion", "type": "int"}}},
    "axes": {"token": {"lengths": "tokens"}},
}


def packed(batch: Batch) -> Batch:
    """The same tokens, those of one completion after those of another."""
    rows = zip(batch["ratio"], batch["length"], strict=True)
    values = {name: value for name, value in batch.items() if name != "mask"}
    return {**values, "ratio": torch.cat([row[:length] for row, length in rows]), "tokens": batch["length"]}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_settings_of_torch_change_no_number(setting: str, layout: str, tmp_path: Path) -> None:
    """Neither of padded nor of packed tokens."""
    config = PACKED if layout == "packed" else CONFIG
    steps = [packed(batch) if layout == "packed" else batch for batch in batches()]

    def log_of(device: str, around: AbstractContextManager[Any]) -> MemorySink:
        on_device = [{name: value.to(device) for name, value in batch.items()} for batch in steps]

        def body(log: Recorder) -> None:
            with around:
                for step, batch in enumerate(on_device):
                    with log.step(step):
                        log.observe(**batch)

        return run(config, body, tmp_path / device)

    expected = log_of("cpu", torch.no_grad()).scalars
    assert sorted(expected) == [3, 7]
    assert log_of("cuda", SETTINGS[setting]()).scalars == close_to(expected)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_small_floats(dtype: torch.dtype, tmp_path: Path) -> None:
    """Of eight bits."""
    expected = recorded(batches("cpu", dtype), tmp_path / "cpu")
    assert recorded(batches("cuda", dtype), tmp_path / "cuda") == close_to(expected)


def test_a_capture_has_the_values_of_the_device(tmp_path: Path) -> None:
    """Replayed on the host they come to the same numbers, in the last digits but for sums in another order."""
    steps = batches("cuda", torch.bfloat16)

    def body(log: Recorder, rank: int) -> None:
        for step, values in enumerate(steps):
            with log.step(step):
                log.observe(**values)
                values["ratio"].zero_()

    live = captured(CONFIG, body, tmp_path)
    again = capture_reader.replay(tmp_path)["<code>"]
    assert len(timeless(live.events)) == len(timeless(again)) == STEPS // 4
    for (_, one), (_, other) in zip(live.events, again, strict=True):
        numbers = {item.name: item.value for item in other.scalars}
        assert {item.name: item.value for item in one.scalars} == pytest.approx(numbers, rel=1e-5)
