"""Beside CUDA graphs: their capture is not disturbed by the worker, nor their outputs overwritten before the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from declog.errors import InputError
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


def test_values_of_a_graph_that_is_being_captured_are_refused(tmp_path: Path) -> None:
    """They are not computed yet. The capture goes on, and so does the step."""
    config = profile({"x": {"axis": "completion"}}, {"x": "mean(x)"})
    source = torch.ones(4, device="cuda")

    def body(log: Recorder) -> None:
        graph = torch.cuda.CUDAGraph()
        with log.step(0):
            with torch.cuda.graph(graph):
                output = source * 3
                with pytest.raises(InputError, match="`x` came while a CUDA graph is captured"):
                    log.observe(x=output)
                with log.timer("forward"):
                    output.add_(1)
            graph.replay()
            log.observe(x=output)

    assert run(config, body, tmp_path).scalars[0]["x"] == 4.0


def test_tokens_without_completions_are_refused(tmp_path: Path) -> None:
    """A kernel that wrote to no completion would end all work on the device."""
    signals = {"n": {"axis": "completion", "type": "int"}, "y": {"axis": "token"}}
    config = profile(signals, {"y": "mean(y)"}, axes={"token": {"lengths": "n"}})
    none, tokens = torch.zeros(0, dtype=torch.int64, device="cuda"), torch.ones(8, device="cuda")

    def body(log: Recorder) -> None:
        with log.step(0):
            with pytest.raises(InputError, match="8 tokens, and the lengths add up to 0"):
                log.observe(n=none, y=tokens)
            log.observe(n=torch.full((2,), 4, device="cuda"), y=tokens)

    assert run(config, body, tmp_path).scalars == {0: {"y": 1.0}}
