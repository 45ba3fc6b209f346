"""What the benchmarks compare are the same numbers: each alternative against declog."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch.distributed as dist

from tests.benchmarks import bench_gpu, bench_worker, collectives, completions, presets, tokens
from tests.benchmarks.contestants import ByHand, Collections, Declog
from tests.benchmarks.measure import Batch, Contestant

CLOSE = 2e-5  # float32 sums, in different orders


def _values(names: Sequence[str], contestant: Contestant, batches: Sequence[Batch]) -> dict[str, float]:
    made: Any = None
    for batch in batches:
        made = contestant.step(batch)
    return dict(made) if isinstance(contestant, Collections) else dict(zip(names, made, strict=True))


def _expected(contestants: Mapping[str, Contestant], batches: Sequence[Batch]) -> dict[str, float]:
    log = cast(Declog, contestants["declog"])
    values = dict(log.values(batches))
    log.close()
    return values


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("metrics", completions.SIGNALS)
def test_hand_fused_completions(metrics: int, every: int) -> None:
    """Hand-fused code gives declog's numbers per completion, over one step and over a window."""
    batches = completions.batches(metrics, 64)[:every]
    contestants = completions.contestants(metrics, every)
    expected = _expected(contestants, batches)
    assert metrics == len(expected)
    assert expected == pytest.approx(
        _values(completions.fused_names(metrics), contestants["hand-fused"], batches), rel=CLOSE, abs=CLOSE
    )


@pytest.mark.parametrize("metrics", completions.SIGNALS)
@pytest.mark.parametrize("name", ["per metric", "torchmetrics"])
def test_other_completions(metrics: int, name: str) -> None:
    """The other alternatives give declog's numbers per completion."""
    batches = completions.batches(metrics, 64)[:1]
    contestants = completions.contestants(metrics, 1)
    names = [f"{column}/{reduction}" for column, reduction in completions.expected(metrics)]
    found = _values(names, contestants[name], batches)
    assert _expected(contestants, batches) == pytest.approx(found, rel=CLOSE, abs=1e-3)  # a sum of squares is rough


@pytest.mark.parametrize("every", [1, 3])
def test_what_presets_have(every: int) -> None:
    """Code by hand gives declog's numbers of a preset's kind."""
    batches, contestants = presets.batches(every), presets.contestants(every)
    found = _values(presets.NAMES, contestants["by hand"], batches)
    assert _expected(contestants, batches) == pytest.approx(found, rel=CLOSE, abs=CLOSE)


def test_what_trl_grpo_has() -> None:
    """Code by hand gives the preset's numbers of a generation and its update."""
    for batch in bench_worker.steps():
        preset = bench_worker.Grpo()
        preset.step(batch)
        preset.settle()
        logged = preset.sink.last
        preset.close()
        expected = bench_worker.by_hand(batch)
        assert {name: logged[name] for name in expected} == pytest.approx(expected, rel=CLOSE, abs=CLOSE)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("reductions", [tokens.ALL, tokens.MEANS])
def test_hand_fused_tokens(reductions: Sequence[str], every: int) -> None:
    """Hand-fused code gives declog's numbers per token, over one step and over a window."""
    batches = tokens.batches(2, 16, 128)[:every]
    contestants = tokens.contestants(2, reductions, every)
    names = tokens.names(2, reductions)
    found = _values(names, cast(ByHand, contestants["hand-fused"]), batches)
    assert _expected(contestants, batches) == pytest.approx(found, rel=CLOSE, abs=CLOSE)


@pytest.mark.parametrize("reductions", [tokens.ALL, tokens.MEANS])
@pytest.mark.parametrize("name", ["per metric", "torchmetrics"])
def test_other_tokens(reductions: Sequence[str], name: str) -> None:
    """The other alternatives give declog's numbers per token."""
    batches = tokens.batches(2, 16, 128)[:1]
    contestants = tokens.contestants(2, reductions, 1)
    found = _values(tokens.names(2, reductions), contestants[name], batches)
    assert _expected(contestants, batches) == pytest.approx(found, rel=CLOSE, abs=1e-4)


@pytest.mark.parametrize("by_hand", [bench_gpu.items, bench_gpu.fused])
def test_on_a_gpu(by_hand: Callable[[Batch], dict[str, float]]) -> None:
    """Code by hand gives declog's numbers of the preset, but for those that tell the same again."""
    batches = bench_gpu.batches("cpu", 16, 64, 1)
    log = Declog(bench_gpu.profile(1))
    values = log.values(batches)
    log.close()
    again = {"completions/count", "rewards/right/mean", "rewards/right/std"}
    assert {name: value for name, value in values.items() if name not in again} == pytest.approx(
        by_hand(batches[0]), rel=CLOSE, abs=CLOSE
    )


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("way", ["per metric", "object gather", "two all_reduces", "one all_gather"])
def test_ways_over_ranks(way: str, group: None) -> None:
    """What is gathered per metric, as objects, or packed by hand, gives declog's numbers, too."""
    batches = completions.batches(40, 64)[:1]
    expected = _expected(completions.contestants(40, 1), batches)
    keys = completions.fused_names(40) if way == "object gather" else collectives.names(40)
    found = dict(zip(keys, collectives.ways(40)[way](batches[0]), strict=True))
    assert expected == pytest.approx(found, rel=CLOSE, abs=CLOSE)
