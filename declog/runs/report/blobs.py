"""Data packed for a page: gzip as plain characters, numbers byte by byte so that they compress."""

from __future__ import annotations

import gzip
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL = 9
# characters that HTML needs no escape for: two of these 91 hold 13 bits, 8 % less than base64 takes
DIGITS = np.frombuffer(bytes(code for code in range(33, 127) if chr(code) not in "<>&"), np.uint8)
WEIGHTS = (1 << np.arange(12, -1, -1)).astype(np.uint16)


class Blobs:
    """The blobs of one page by number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.sizes: list[int] = []  # in bytes, of the data in ``texts``

    def add(self, data: bytes) -> int:
        """Keep some bytes; returns the number of their blob."""
        packed = gzip.compress(data, LEVEL, mtime=0)
        self.texts.append(characters(packed))
        self.sizes.append(len(packed))
        return len(self.texts) - 1

    def add_json(self, value: Any) -> int:
        """Keep a value as JSON, as ``plain`` makes it; returns the number of its blob."""
        return self.add(json_bytes(value))


def characters(data: bytes) -> str:
    """Bytes as characters: each 13 bits, the first the highest, as a number of two digits; zeros at the end."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    values = np.pad(bits, (0, -len(bits) % 13)).reshape(-1, 13) @ WEIGHTS
    digits: bytes = DIGITS[np.stack(np.divmod(values, len(DIGITS)), axis=1)].tobytes()
    return digits.decode("ascii")


def shuffled(values: NDArray[Any]) -> bytes:
    """The first bytes of all values, then their second ones, and so on: constant bytes compress well."""
    values = np.ascontiguousarray(values)
    return values.view(np.uint8).reshape(len(values), values.itemsize).T.tobytes()


def narrowed(values: NDArray[np.float64]) -> NDArray[Any]:
    """Values as float32 of 16 significant bits, more than a curve or a label shows; integers stay exact.

    Great values keep all bits, since a label shows their integer part.
    """
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    finite = np.isfinite(values)
    if (values[finite] == np.round(values[finite])).all():
        return narrow if (narrow[finite] == values[finite]).all() else values
    if (finite & (values != 0) & (np.abs(narrow) < 1e-37)).any() or (np.abs(values[finite]) >= 1 << 16).any():
        return values
    bits = narrow.view(np.uint32)
    rounded = ((bits + np.uint32(0x7F)) & np.uint32(0xFFFFFF00)).view(np.float32)  # the last byte compresses away
    return np.where(np.isfinite(rounded) & finite, rounded, narrow)


def json_bytes(value: Any) -> bytes:
    """JSON of any value, in UTF-8; lone surrogates, which no browser reads, are question marks."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def plain(value: Any) -> Any:
    """A value for JSON: NaN and infinities are null, and an object of another type is a text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, str | int) else str(value)
