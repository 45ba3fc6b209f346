"""Recorded columns on their device, and their way to the host: one copy for all columns of a log event.

The training thread collects the columns and starts the copy; the worker waits for its end. Imports torch only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from declog.engine.blocks import Key
from declog.language.dtypes import Axis

Tensor = torch.Tensor
Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Pack:
    """Columns of one axis, dtype and device, or one tensor of any shape.

    Each of the ``parts`` has some of the columns, in order. After they are copied to the host there are no parts any
    more, and ``landed`` has the columns.
    """

    axis: Axis
    keys: list[Key]
    parts: list[Tensor | Array]
    ready: Any = None  # the CUDA event after which the parts are complete
    landed: Sequence[Landed] = ()

    @property
    def device(self) -> torch.device | None:
        """The GPU on which the columns are; None if they are on the host."""
        part = self.parts[0] if self.parts else None
        return part.device if isinstance(part, Tensor) and part.is_cuda else None

    @property
    def layout(self) -> tuple[Axis, list[Key], object]:
        """A key: rows of packs with equal keys can be concatenated."""
        part = self.landed[0] if self.landed else self.parts[0]
        return self.axis, self.keys, part.dtype

    @property
    def rows(self) -> int:
        """The number of rows."""
        sizes = [one.count for one in self.landed] or [_size(part) for part in self.parts]
        return sum(sizes) // len(self.keys)

    @property
    def bytes(self) -> int:
        """The bytes of the columns."""
        return sum([one.end - one.start for one in self.landed] or [part.nbytes for part in self.parts])

    def on_host(self) -> list[Array]:
        """The parts as numpy arrays. Called by the worker: it waits for the device."""
        if self.landed:
            return [one.array() for one in self.landed]
        if self.ready is not None:
            self.ready.synchronize()
        return [part.numpy(force=True) if isinstance(part, Tensor) else part for part in self.parts]

    def columns(self) -> Array:
        """The columns ``[k, rows]`` as a numpy array. Called by the worker."""
        flat = [part.reshape(-1) for part in self.on_host()]
        joined = flat[0] if len(flat) == 1 else np.concatenate(flat)
        return joined.reshape(len(self.keys), len(joined) // len(self.keys))


def _size(part: Tensor | Array) -> int:
    return part.numel() if isinstance(part, Tensor) else part.size


class Landing:
    """A buffer of pinned memory, to which all data of a log event on one device is copied.

    The memory returns to torch's allocator, which reuses it, together with the last array that was read from it.
    """

    def __init__(self, source: Tensor, stream: Any) -> None:
        self._host = torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=True)
        self._host.copy_(source, non_blocking=True)
        self._here: Any = torch.cuda.Event(blocking=True)  # a thread that waits for this event sleeps
        self._here.record(stream)

    def bytes(self) -> Array:
        """The copied bytes. Called by the worker: it waits for the device."""
        self._here.synchronize()
        return self._host.numpy()


@dataclass(frozen=True, slots=True)
class Landed:
    """The position of a tensor in a ``Landing``."""

    landing: Landing
    dtype: torch.dtype
    shape: torch.Size
    start: int
    end: int

    @property
    def count(self) -> int:
        """The number of values."""
        return self.shape.numel()

    def array(self) -> Array:
        """The tensor as a numpy array. Called by the worker: it waits for the device."""
        data = torch.from_numpy(self.landing.bytes()[self.start : self.end])
        return data.view(self.dtype).view(self.shape).numpy()


def land(device: torch.device, packs: Sequence[Pack]) -> None:
    """Start the copy of one device's packs to the host, after they are complete; returns at once."""
    stream = torch.cuda.current_stream(device)
    for event in {id(pack.ready): pack.ready for pack in packs}.values():
        stream.wait_event(event)
    tensors = [part for pack in packs for part in pack.parts if isinstance(part, Tensor)]
    by_size = sorted({part.dtype for part in tensors}, key=lambda dtype: -dtype.itemsize)
    chosen = {dtype: [part for part in tensors if part.dtype is dtype] for dtype in by_size}
    for part in tensors:
        part.record_stream(stream)
    runs = [torch.cat([part.reshape(-1) for part in parts]).view(torch.uint8) for parts in chosen.values()]
    landing = Landing(runs[0] if len(runs) == 1 else torch.cat(runs), stream)
    places: dict[int, Landed] = {}
    start = 0
    for dtype, parts in chosen.items():  # large items first, so that each offset is a multiple of the item's size
        for part in parts:
            end = start + part.numel() * dtype.itemsize
            places[id(part)] = Landed(landing, dtype, part.shape, start, end)
            start = end
    for pack in packs:
        pack.landed, pack.parts = [places[id(part)] for part in pack.parts], []
