"""Beside CUDA graphs: their capture is not disturbed by the worker, nor their outputs overwritten before the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from declog.runtime.recording.recorder import Recorder
from tests.gpu.test_cuda import CONFIG, batches, close_to, recorded
from tests.running import profile, run


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_graph_is_captured_while_the_worker_waits_for_the_device(mode: str, tmp_path: Path) -> None:
    """A log event of the step before is on its way to the host."""
    expected = recorded(batches(), tmp_path / "cpu")
    steps, values = batches("cuda"), torch.zeros(1000, device="cuda")

    def body(log: Recorder) -> None:
        for step, batch in enumerate(steps):
            with log.step(step):
                log.observe(**batch)
                torch.cuda._sleep(50_000_000)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode=mode):
                for _ in range(200):
                    values.add_(1)
            graph.replay()

    assert run(CONFIG, body, tmp_path / "cuda").scalars == close_to(expected)
    torch.cuda.synchronize()
    assert values.tolist() == [200.0 * len(steps)] * 1000


@pytest.mark.filterwarnings("ignore")  # those of the compiler are its own
def test_outputs_of_a_compiled_step_are_copied(tmp_path: Path) -> None:
    """With `mode="reduce-overhead"` each call writes its outputs where those of the last call were."""
    signals = {"x": {"axis": "completion"}, "y": {"axis": "token"}}
    config = profile(signals, {"x": "mean(x)", "y": "max(y)"}, axes={"token": {"mask": "all"}})

    @torch.compile(mode="reduce-overhead")
    def forward(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return value.sum(1), value * 2

    def body(log: Recorder) -> None:
        for step in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            x, y = forward(torch.full((4, 8), float(step), device="cuda"))
            with log.step(step):
                log.observe(x=x)
                log.observe(y=y)
            del x, y

    expected: Any = {step: {"x": 8.0 * step, "y": 2.0 * step} for step in range(6)}
    assert run(config, body, tmp_path).scalars == expected
