"""Recorded columns on their device, and their copy to the host: one copy for all columns of a log event.

The training thread collects the columns and starts the copy; the worker waits for its end.
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
    """Columns of one axis, dtype and device, or one tensor of any shape; the ``parts`` have them, in order."""

    axis: Axis
    keys: list[Key]
    parts: list[Tensor | Array]
    ready: Any = None  # the CUDA event after which the parts are complete

    @property
    def device(self) -> torch.device | None:
        """The GPU that has the columns; None if they are on the host, or on their way to it."""
        part = self.parts[0]
        return part.device if isinstance(part, Tensor) and part.is_cuda else None

    @property
    def layout(self) -> tuple[Axis, list[Key], object]:
        """A key; the rows of packs with equal keys can be concatenated."""
        return self.axis, self.keys, self.parts[0].dtype

    @property
    def rows(self) -> int:
        """The number of rows."""
        sizes = [part.numel() if isinstance(part, Tensor) else part.size for part in self.parts]
        return sum(sizes) // len(self.keys)

    @property
    def bytes(self) -> int:
        """The size of the columns in bytes."""
        return sum([part.nbytes for part in self.parts])

    def on_host(self) -> list[Array]:
        """Return the parts as numpy arrays. Waits for the device, so only the worker calls it."""
        if self.ready is not None:
            self.ready.synchronize()
        return [part.numpy(force=True) if isinstance(part, Tensor) else part for part in self.parts]

    def columns(self) -> Array:
        """Return the columns ``[k, rows]`` as a numpy array. Called by the worker."""
        flat = [part.reshape(-1) for part in self.on_host()]
        joined = flat[0] if len(flat) == 1 else np.concatenate(flat)
        return joined.reshape(len(self.keys), len(joined) // len(self.keys))


def land(device: torch.device, packs: Sequence[Pack]) -> None:
    """Start the copy of one device's packs to the host, after they are complete; returns at once.

    All packs share one buffer of pinned memory, which torch's allocator gets back when the last part is freed.
    """
    stream = torch.cuda.current_stream(device)
    for event in {id(pack.ready): pack.ready for pack in packs}.values():
        stream.wait_event(event)
    tensors = [part for pack in packs for part in pack.parts if isinstance(part, Tensor)]
    by_size = sorted({part.dtype for part in tensors}, key=lambda dtype: -dtype.itemsize)
    chosen = {dtype: [part for part in tensors if part.dtype is dtype] for dtype in by_size}
    for part in tensors:
        part.record_stream(stream)
    runs = [torch.cat([part.reshape(-1) for part in parts]).view(torch.uint8) for parts in chosen.values()]
    data = runs[0] if len(runs) == 1 else torch.cat(runs)
    host = torch.empty(data.shape, dtype=data.dtype, device="cpu", pin_memory=True).copy_(data, non_blocking=True)
    here: Any = torch.cuda.Event(blocking=True)  # a thread that waits for this event sleeps
    here.record(stream)
    memory, start = host.numpy(), 0
    landed: dict[int, Array] = {}
    for dtype, parts in chosen.items():  # large items first, so that each offset is a multiple of the item's size
        items = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
        for part in parts:
            end = start + part.nbytes
            landed[id(part)] = memory[start:end].view(items).reshape(part.shape)
            start = end
    for pack in packs:
        pack.parts, pack.ready = [landed[id(part)] for part in pack.parts], here
