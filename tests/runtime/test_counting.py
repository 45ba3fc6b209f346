"""Counted, not timed: what the training thread may not do at all, and how many messages a log event costs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import declog
from declog.runtime.ranks.store_comm import CHUNK, StoreComm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.running import profile

Tensor = torch.Tensor
ROWS, TOKENS = 16, 6
# operators that a CUDA device would have to be waited for: their result, or its size, is needed on the host
WAITING = {
    "aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::nonzero", "aten::nonzero_static",
    "aten::equal", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    "aten::repeat_interleave", "aten::allclose",
}  # fmt: skip
METHODS = ("item", "tolist", "numpy", "cpu", "__array__", "__bool__", "__float__", "__int__", "__index__", "__len__")


class Operators(TorchDispatchMode):
    """Counts operators on this thread that wait, and copies from one device to another."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        boolean = name == "aten::index" and any(item is not None and item.dtype is torch.bool for item in args[1])
        if name in WAITING or boolean:
            self._found[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """What this thread does inside the block that would wait for a device, were its tensors on one.

    Tensors say that they are on no CPU, so that code takes the way that it takes on a GPU.
    """
    found: Counter[str] = Counter()
    here = threading.get_ident()

    def counting(name: str) -> Any:
        original = getattr(Tensor, name)

        def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == here and name != "__len__":
                found[name] += 1
            return original(self, *args, **kwargs)

        return method

    with monkeypatch.context() as patch, Operators(found):
        patch.setattr(Tensor, "is_cpu", property(lambda self: threading.get_ident() != here))
        for name in METHODS:
            patch.setattr(Tensor, name, counting(name))
        yield found


@pytest.mark.parametrize(
    "code",
    [
        "x.item()", "float(x)", "bool(x > 0)", "x.view(1).tolist()", "x.cpu()", "x.numpy()", "torch.nonzero(y)",
        "y[y > 0]", "torch.equal(y, y)", "torch.unique(y)", "np.asarray(y)", "f'{x:.2f}'", "int(x)",
        "range(9)[x.long()]",
    ],
)  # fmt: skip
def test_the_count_sees_what_waits(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these would stop a training thread until its device has come that far."""
    with waits(monkeypatch) as found:
        eval(code, {"torch": torch, "np": np, "x": torch.tensor(1.0), "y": torch.ones(3)})
    assert found.total() > 0


def test_the_count_sees_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arithmetic, shapes and copies on the device are free."""
    y = torch.ones(3, 4)
    with waits(monkeypatch) as found:
        assert (y * 2 + torch.cat([y, y])[:3]).sum(1).shape == (3,)
        assert torch.where(y > 0, y, 0.0).clone().dtype is torch.float32
    assert found == Counter()


def full() -> dict[str, Any]:
    """The GRPO preset with tables, alerts, quantiles, labels, token histograms, a family and columns of log_extra."""
    data: dict[str, Any] = declog.config_of(declog.compose("grpo", ["declog.sinks=[]"]))
    data["signals"]["rollout"]["source"] = {"axis": "completion", "type": "text"}
    data["metrics"] |= {
        "by_source": {"expr": "reward", "by": "source", "reduce": ["mean", "p95"]},
        "entropies": {"expr": "entropy", "reduce": ["p50", "p99", "std", "min", "max"]},
        "logprob": {"expr": "logprobs", "where": "ratio > 1", "reduce": ["mean", "std"]},
    }
    data["alerts"] = {"odd": {"when": "kl > 0.1"}}
    data["run"] = {"strict": True}
    return data


def observe(log: Recorder, step: int, *, broken: bool) -> None:
    """All that a step can give: tensors, arrays, lists, numbers, a family, columns, metrics; with NaN, or without."""
    seed = torch.Generator().manual_seed(step)

    def tokens() -> Tensor:
        values = torch.rand(ROWS, TOKENS, generator=seed)
        return values.masked_fill(values > 0.8, float("nan")) if broken else values

    log.observe(
        rewards={"correct": tokens()[:, 0], "format": np.ones(ROWS)}, reward_weights={"correct": 1.0, "format": 0.5},
        length=torch.randint(1, TOKENS, (ROWS,), generator=seed), truncated=tokens()[:, 1] > 0.5,
        prompt=[f"p{row}" for row in range(ROWS)], completion=["c"] * ROWS, source=["a", "b"] * (ROWS // 2),
    )  # fmt: skip
    log.log_extra("judge", [0.5] * ROWS)
    log.log_extra("host", np.arange(ROWS))
    log.log_metric("mine", torch.tensor(2.0))
    for _ in range(2):
        log.observe(
            completion_mask=tokens() > 0.2, advantages=tokens()[:, 2], logprobs=tokens(), old_logprobs=tokens(),
            ref_logprobs=tokens(), entropy=tokens().bfloat16(), loss=torch.tensor(0.5), learning_rate=1e-4,
            grad_norm=torch.tensor(float("nan") if broken else 1.0),
        )  # fmt: skip


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("every", [1, 2])
def test_the_training_thread_waits_for_no_device(
    every: int, broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No `.item()`, `.cpu()`, `.tolist()`, `.numpy()` nor what amounts to one in whole steps, log events included."""
    sink = MemorySink()
    log = declog.start({**full(), "every": every}, sinks=[sink], output_dir=tmp_path)
    with waits(monkeypatch) as found:
        for step in range(4):
            with log.step(step):
                observe(log, step, broken=broken)
    log.close()
    assert found == Counter()
    assert sorted(sink.scalars) == ([0, 1, 2, 3] if every == 1 else [1, 3])
    assert {"reward", "kl", "entropies/p99", "rewards/format/mean"} <= set(sink.scalars[3])


# ---- messages


class Counted:
    """A store that counts what goes through it, by operation and key."""

    def __init__(self, store: Any, calls: Counter[tuple[str, str]]) -> None:
        self._store = store
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            key = args[0] if args and isinstance(args[0], str) else ""
            self._calls[name, key] += 1
            return operation(*args, **kwargs)

        return call


def sent(ranks: int, steps: int, text: str, folder: Path) -> list[Counter[tuple[str, str]]]:
    """What each rank's store was asked to do between `start` and `close`, over a real TCPStore."""
    job = dist.HashStore()  # type: ignore[attr-defined]  # torch does not declare it
    calls: list[Counter[tuple[str, str]]] = [Counter() for _ in range(ranks)]
    config = profile(
        {"x": {"axis": "completion"}, "source": {"axis": "completion", "type": "text"}},
        {f"x{place}": {"expr": f"x + {place}", "by": "source"} for place in range(40)},
    )

    def main(rank: int) -> None:
        comm = StoreComm.connect(rank, ranks, job, 10.0, "counting")
        log = declog.start(config, sinks=[] if rank else [MemorySink()], output_dir=folder, comm=comm)
        comm._store = Counted(comm._store, calls[rank])
        for step in range(steps):
            with log.step(step):
                log.observe(x=[1.0, 2.0], source=[text, "b"])
        log.close()

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    return calls


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_log_event_is_one_message_of_each_rank(ranks: int, tmp_path: Path) -> None:
    """Whatever the number of metrics; what says how it went is read once."""
    steps = 3
    for rank, calls in enumerate(sent(ranks, steps, "a", tmp_path)[1:], 1):
        events = range(steps + 1)  # and the tail
        assert sorted(key for name, key in calls if name == "set") == [
            f"left/{rank}",
            *(f"w/train/{event}/{rank}/0" for event in events),
        ]
        assert sum(count for (name, _), count in calls.items() if name == "set") == steps + 2
        assert {name for name, _ in calls} == {"set", "get"}
        assert sum(count for (name, _), count in calls.items() if name == "get") == steps + 1


def test_a_long_message_is_as_many_as_it_has_chunks(tmp_path: Path) -> None:
    """4 MiB each."""
    calls = sent(2, 1, "a" * (2 * CHUNK), tmp_path)[1]
    assert sorted(key for name, key in calls if name == "set" and key.startswith("w/train/0/")) == [
        f"w/train/0/1/{n}" for n in range(3)
    ]
