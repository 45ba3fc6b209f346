"""Tensors of several CUDA streams: what is made on one is read on another when it is whole. CUDA is a fake."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import declog
from declog.language.dtypes import Axis
from declog.language.functions import DEFAULT
from declog.runtime.recording import timing
from declog.runtime.rows.batch import Batch
from declog.runtime.rows.folds import Folds
from declog.runtime.rows.observation import ReadObservation
from declog.runtime.rows.window import Window
from declog.runtime.run.failures import Failures
from tests.running import logged, profile

DEVICE = torch.device("cuda", 0)
EMPTY = torch.empty
SIGNALS = {
    "reward": {"axis": "completion"}, "length": {"axis": "completion", "type": "int"},
    "kl": {"axis": "token"}, "mask": {"axis": "token", "type": "bool"},
}  # fmt: skip
CONFIG = profile(SIGNALS, {"r": "mean(reward)", "n": "sum(length)", "kl": "mean(kl)"}, axes={"token": {"mask": "mask"}})
VALUES = {
    "reward": torch.tensor([1.0, 2.0]), "length": torch.tensor([3, 4]), "kl": torch.ones(2, 3),
    "mask": torch.ones(2, 3, dtype=torch.bool),
}  # fmt: skip


class Cuda:
    """What was queued on which stream, in order; ``current`` is the stream that runs."""

    def __init__(self) -> None:
        self.queued: list[tuple[str, str, str]] = []  # what, the stream, and the stream of what it is about
        self.current = "default"
        self.awaited: list[Event] = []  # by the host
        self.pinned: list[int] = []  # the bytes of each buffer

    def current_stream(self, device: torch.device) -> Stream:
        assert device == DEVICE
        return Stream(self, self.current)

    def event(self, *, blocking: bool = False) -> Event:
        return Event(self, blocking=blocking)

    def empty(self, *size: Any, pin_memory: bool = False, **named: Any) -> torch.Tensor:
        made: torch.Tensor = EMPTY(*size, **named)
        if pin_memory:
            self.pinned.append(made.nbytes)
        return made


class Event:
    """The place on a stream after which it has happened."""

    stream = "nowhere"

    def __init__(self, cuda: Cuda, *, blocking: bool) -> None:
        self._cuda = cuda
        self.blocking = blocking

    def synchronize(self) -> None:
        self._cuda.awaited.append(self)

    def record(self, stream: Stream) -> None:
        self.stream = stream.name


class Stream:
    """A stream by its name."""

    device = DEVICE

    def __init__(self, cuda: Cuda, name: str) -> None:
        self._cuda = cuda
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def wait_event(self, event: Event) -> None:
        self._cuda.queued.append(("waits", self.name, event.stream))


class OnDevice(torch.Tensor):
    """A tensor that says it is on a GPU; what is computed of it says so, too."""

    used: ClassVar[list[str]] = []  # the streams that read it

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def record_stream(self, stream: Any) -> None:
        self.used.append(stream.name)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """The fake, in the place of torch's; what would be pinned is plain memory."""
    made = Cuda()
    monkeypatch.setattr(torch.cuda, "current_stream", made.current_stream)
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch, "empty", made.empty)
    monkeypatch.setattr(OnDevice, "used", [])
    return made


def take(batch: Batch, **values: torch.Tensor) -> None:
    """Give a batch what one call gave, as if it were on a device."""
    given = ReadObservation(batch.phase, set(values))
    for name, value in values.items():
        [signal] = [signal for signal in batch.phase.signals if signal.name == name]
        given.add(signal, value)
    given.copy()
    given.copies = [(columns, torch.as_tensor(data).as_subclass(OnDevice)) for columns, data in given.copies]
    given.inputs = {name: value.as_subclass(OnDevice) for name, value in given.inputs.items()}
    given.devices = {DEVICE}
    batch.take(given)


def opened() -> Batch:
    """A batch in which nothing came yet."""
    [phase] = [phase for phase in declog.plan(CONFIG).phases.values() if phase.name != "logged"]
    return Batch(phase, Folds(phase, phase.reads, DEFAULT.get, Failures().report))


def closed(batch: Batch) -> Batch:
    """The batch, closed, its columns laid together."""
    batch.close(0.0, {}, None)
    batch.pack()
    return batch


def test_on_one_stream_nothing_waits_for_another(cuda: Cuda) -> None:
    """A stream does what is queued on it in order."""
    batch = opened()
    take(batch, reward=VALUES["reward"])
    take(batch, length=VALUES["length"])
    window = Window([{"default": [closed(batch)]}])
    window.hand_off()
    assert {(mine, other) for _, mine, other in cuda.queued} == {("default", "default")}
    assert set(OnDevice.used) == {"default"}


def test_what_was_observed_inside_a_side_stream_is_copied_after_it(cuda: Cuda) -> None:
    """The stream on which the batch closes waits for those of its calls, and the window's for that of the batch."""
    batch = opened()
    cuda.current = "side"
    take(batch, reward=VALUES["reward"])
    cuda.current = "other"
    take(batch, length=VALUES["length"])
    assert cuda.queued == []
    cuda.current = "closing"
    record = closed(batch)
    assert sorted(cuda.queued) == [("waits", "closing", "other"), ("waits", "closing", "side")]
    assert [pack.ready.stream for pack in record.packs] == ["closing"] * 2

    cuda.queued.clear()
    cuda.current = "default"
    window = Window([{"default": [record]}])
    window.hand_off()
    assert set(cuda.queued) == {("waits", "default", "closing")}
    assert [event.stream for event in cuda.awaited] == []
    assert [pack.columns().tolist() for pack in record.packs] == [[[1.0, 2.0]], [[3, 4]]]
    assert {event.stream for event in cuda.awaited} == {"default"}


def test_a_log_event_is_one_copy_to_the_host(cuda: Cuda) -> None:
    """However many batches, columns and types there are: each is found in it again, and the waits for it sleep."""
    values = {**VALUES, "kl": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])}
    records = []
    for _ in range(3):
        batch = opened()
        for name in values:
            take(batch, **{name: values[name]})
        records.append(closed(batch))
    expected = [[pack.columns().tolist() for pack in record.packs] for record in records]
    assert [pack.layout[2] for pack in records[0].packs] == [torch.float32, torch.int64]
    cuda.awaited.clear()
    window = Window([{"default": records}])
    window.hand_off()
    assert cuda.pinned == [3 * 2 * (4 + 4 + 4 + 8)]  # reward, the sum of kl, the number of tokens, length
    assert [[pack.columns().tolist() for pack in record.packs] for record in records] == expected
    assert {event.blocking for event in cuda.awaited} == {True}


def test_copies_that_waited_for_others_are_folded_after_they_are_whole(cuda: Cuda) -> None:
    """The stream of the last call waits for that of the first, and is noted where the memory of its copies is freed."""
    batch = opened()
    cuda.current = "side"
    take(batch, kl=VALUES["kl"])
    cuda.current = "default"
    take(batch, mask=VALUES["mask"])
    assert cuda.queued == [("waits", "default", "side")]
    assert OnDevice.used == ["default"]


def test_a_column_that_was_logged_inside_a_side_stream_is_copied_after_it(cuda: Cuda) -> None:
    """As what is observed is."""
    batch = opened()
    take(batch, reward=VALUES["reward"])
    cuda.current = "side"
    batch.add_extra("note", torch.tensor([5.0, 6.0]).as_subclass(OnDevice))
    cuda.current = "default"
    record = closed(batch)
    assert ("waits", "default", "side") in cuda.queued
    axis, pack = record.texts["extra:note", None]
    assert axis is Axis.COMPLETION and not isinstance(pack, list) and pack.ready.stream == "default"


def test_without_a_gpu_no_stream_is_asked(tmp_path: Path, cuda: Cuda) -> None:
    """What is on the host is whole."""
    assert logged(CONFIG, [VALUES], tmp_path) == {"r": 1.5, "n": 7, "kl": 1.0}
    assert cuda.queued == []


def test_values_of_a_graph_that_is_being_captured_are_refused(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed when the graph runs; the batch stays as it was."""
    batch = opened()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(declog.InputError, match=r"`kl`, `mask` came while a CUDA graph is captured"):
        take(batch, kl=VALUES["kl"], mask=VALUES["mask"])
    with pytest.raises(declog.InputError, match="`place` came"):
        batch.add_extra("place", torch.ones(2).as_subclass(OnDevice))
    assert (batch.names, batch.extras) == (frozenset(), {})
    monkeypatch.setattr(torch.cuda, "Event", None)  # it would tell no time
    assert timing.begin()()() >= 0.0
