"""One binary container: a JSON header and arrays of numbers. Never pickle.

Ranks send containers, and captures consist of them. The layout:

    b"DECLOG"  version:u16  header length:u32  crc32 of the rest:u32
    header (JSON)  buffers, each aligned to 8 bytes
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from declog.errors import CommError

MAGIC = b"DECLOG"
VERSION = 1
_HEAD = struct.Struct("<6sHII")
UNREADABLE = (
    struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError,
    MemoryError,
)  # fmt: skip


@dataclass
class Packer:
    """Collects the arrays of one container, then seals it."""

    buffers: list[NDArray[Any]] = field(default_factory=list)

    def put(self, array: NDArray[Any]) -> dict[str, Any]:
        """Add an array; return the item that refers to it in the header."""
        shape = array.shape
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        self.buffers.append(array)
        return {"at": len(self.buffers) - 1, "dtype": array.dtype.str, "shape": shape}

    def seal(self, header: Mapping[str, Any]) -> bytes:
        """Return the container as bytes; ``header`` is JSON-serialisable and has no key ``sizes``."""
        text = json.dumps(
            {**header, "sizes": [array.nbytes for array in self.buffers]}, ensure_ascii=False
        ).encode("utf-8", "surrogatepass")  # texts with lone surrogates are logged too  # fmt: skip
        parts = [text, b"\0" * (-(_HEAD.size + len(text)) % 8)]
        for array in self.buffers:
            parts += [array.tobytes(), b"\0" * (-array.nbytes % 8)]
        checksum = 0
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        return b"".join([_HEAD.pack(MAGIC, VERSION, len(text), checksum), *parts])


class Container:
    """A container read from bytes: its header, and its arrays as views of the bytes.

    Raises ``CommError`` for bytes that are no complete container.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        length, checksum = _head(data)
        if zlib.crc32(memoryview(data)[_HEAD.size :]) != checksum:
            raise CommError.of("DL603.cut")
        try:
            self.header, self._starts, end = _header(data[_HEAD.size : _HEAD.size + length])
        except UNREADABLE as error:
            raise CommError.of("DL603.unreadable", error=error) from error
        if end != len(data):
            raise CommError.of("DL603.bytes", count=len(data), end=end)

    def get(self, item: Mapping[str, Any]) -> NDArray[Any]:
        """Return the array that an item of the header refers to."""
        try:
            shape, start = tuple(item["shape"]), self._starts[item["at"]]
            return np.frombuffer(self._data, np.dtype(item["dtype"]), int(np.prod(shape)), start).reshape(shape)
        except UNREADABLE as error:
            raise CommError.of("DL603.unreadable", error=error) from error


def read(file: BinaryIO) -> Container | None:
    """Read the next container of a file; None at the file's end, and where the file was cut or damaged."""
    try:
        head = file.read(_HEAD.size)
        length, _ = _head(head)
        text = file.read(length)
        _, _, end = _header(text)
        rest = end - _HEAD.size - length
        return Container(head + text + (file.read(rest) if rest >= 0 else b""))
    except (CommError, *UNREADABLE):
        return None


def _head(data: bytes) -> tuple[int, int]:
    """The header's length in bytes, and the checksum."""
    try:
        magic, version, length, checksum = _HEAD.unpack_from(data)
    except struct.error as error:
        raise CommError.of("DL603.unreadable", error=error) from error
    if magic != MAGIC:
        raise CommError.of("DL603.beginning")
    if version != VERSION:
        raise CommError.of("DL603.version", version=version, readable=VERSION)
    return length, checksum


def _header(text: bytes) -> tuple[dict[str, Any], list[int], int]:
    """The header, the offset of each buffer, and the offset at which the container ends."""
    header: dict[str, Any] = json.loads(text)
    at = _HEAD.size + len(text) + -(_HEAD.size + len(text)) % 8
    starts = []
    for size in header["sizes"]:
        starts.append(at)
        at += size + -size % 8
    return header, starts, at
