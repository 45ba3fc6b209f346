"""Copies of a call's arguments, of any type, and their encoding in a capture.

``Snapshot`` copies on the training thread and never waits for a device; ``encode`` and ``decode`` are for the file.
Tensors keep their dtype, texts and conversations become JSON; values of other types are only described in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from declog.runtime.ranks.wire import Container, Packer
from declog.runtime.recording.timing import Timed
from declog.runtime.values.inputs import describe
from declog.runtime.values.tensors import named_dtype, wrapped

Tensor = torch.Tensor
Redact = Callable[[str], str]

_SIMPLE = (str, int, float, bool, type(None))
_FLAT = frozenset(_SIMPLE)
_STORED = {
    dtype: named_dtype(dtype)
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool,
    )
}  # fmt: skip
_BYTES = 8  # the bytes that a number or an item of a list counts as


class Full(Exception):
    """The copy would exceed the room of its snapshot."""


class Uncaptured:
    """The description of a value that no capture can hold, in the place of the value."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Snapshot:
    """The copied arguments of one call; more than ``room`` bytes raise ``Full``."""

    def __init__(self, room: int) -> None:
        self.bytes = 0
        self._room = room
        self._waiting: list[tuple[Tensor, Any]] = []  # tensors that are being copied, and their events

    def copy(self, value: Any) -> Any:
        """Return a copy that later training code cannot change."""
        if isinstance(value, (*_SIMPLE, Timed)):  # `encode` reads a duration, on a thread that may wait
            self._count(len(value) if isinstance(value, str) else _BYTES)
            return value
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, np.generic):
            return self.copy(value.item()) if value.dtype.kind in "fiubU" else Uncaptured(describe(value))
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, list | tuple):
            return self._list(value)
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {key: self.copy(item) for key, item in value.items()}
        return Uncaptured(describe(value))

    def wait(self) -> None:
        """Wait until data from devices is on the host; called by the thread that writes the capture."""
        for _, event in self._waiting:
            event.synchronize()
        self._waiting.clear()

    def _count(self, size: int) -> None:
        self.bytes += size
        if self.bytes > self._room:
            raise Full

    def _list(self, value: list[Any] | tuple[Any, ...]) -> list[Any]:
        types = set(map(type, value))
        if types <= _FLAT:
            texts = sum(len(item) for item in value if isinstance(item, str)) if str in types else 0
            self._count(_BYTES * len(value) + texts)
            return list(value)
        return [self.copy(item) for item in value]

    def _array(self, value: np.ndarray[Any, Any]) -> Any:
        if value.dtype.kind in "OU":
            return self._list(value.tolist()) if value.ndim else self.copy(value.item())
        if value.dtype.kind not in "fiub":
            return Uncaptured(describe(value))
        self._count(value.nbytes)
        native = value.astype(np.float64) if value.dtype.itemsize > _BYTES else value
        return np.array(native, native.dtype.newbyteorder("="))

    def _tensor(self, value: Tensor) -> Any:
        if value.dtype not in _STORED or value.layout is not torch.strided or value.is_meta or wrapped(value):
            return Uncaptured(describe(value))
        self._count(value.nbytes)
        with torch.inference_mode(False), torch.no_grad():
            value = value.detach()
            if value.device.type != "cuda":
                return value.clone(memory_format=torch.contiguous_format) if value.is_cpu else value.cpu()
            host = torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=True)
            host.copy_(value, non_blocking=True)
            event = torch.cuda.Event(blocking=True)
            event.record(torch.cuda.current_stream(value.device))
            self._waiting.append((value, event))
            return host


def encode(value: Any, packer: Packer, redact: Redact | None = None) -> Any:
    """Return a copied value as JSON, with its arrays in ``packer``."""
    if isinstance(value, Timed):
        return {"plain": value.seconds()}
    if isinstance(value, Tensor):
        return {"tensor": packer.put(_numpy(value)), "dtype": _STORED[value.dtype]}
    if isinstance(value, np.ndarray):
        return {"array": packer.put(value)}
    if isinstance(value, Uncaptured):
        return {"uncaptured": value.text}
    if isinstance(value, dict):
        return {"map": [[key, encode(item, packer, redact)] for key, item in value.items()]}
    if isinstance(value, list) and not set(map(type, value)) <= _FLAT:
        return {"list": [encode(item, packer, redact) for item in value]}
    if redact is None:
        return {"plain": value}
    if isinstance(value, list):
        return {"plain": [redact(item) if isinstance(item, str) else item for item in value]}
    return {"plain": redact(value) if isinstance(value, str) else value}


def decode(node: Mapping[str, Any], container: Container) -> Any:
    """Return the value that ``encode`` was given, with tensors on the host."""
    if "plain" in node:
        return node["plain"]
    if "tensor" in node:
        array = np.array(container.get(node["tensor"]))
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if node["dtype"] == "bfloat16" else tensor
    if "array" in node:
        return np.array(container.get(node["array"]))
    if "map" in node:
        return {key: decode(item, container) for key, item in node["map"]}
    if "list" in node:
        return [decode(item, container) for item in node["list"]]
    return Uncaptured(node["uncaptured"])


def _numpy(value: Tensor) -> np.ndarray[Any, Any]:
    """Return the tensor's numbers; numpy has no bfloat16, so bfloat16 becomes its bits, as integers."""
    return (value.view(torch.int16) if value.dtype is torch.bfloat16 else value).numpy()
