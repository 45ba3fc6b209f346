"""Packs data for a page: numbers are reordered byte by byte to compress well; gzip's bytes become plain characters."""

from __future__ import annotations

import gzip
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL = 9
# 91 characters that HTML does not escape: two of them hold 13 bits, so texts are 8 % shorter than with base64
DIGITS = np.frombuffer(bytes(code for code in range(33, 127) if chr(code) not in "<>&"), np.uint8)
WEIGHTS = (1 << np.arange(12, -1, -1)).astype(np.uint16)


class Blobs:
    """The packed data of one page; each blob has a number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.sizes: list[int] = []  # the bytes of the compressed data in ``texts``

    def add(self, data: bytes) -> int:
        """Add a blob of some bytes, and return its number."""
        packed = gzip.compress(data, LEVEL, mtime=0)
        self.texts.append(characters(packed))
        self.sizes.append(len(packed))
        return len(self.texts) - 1

    def add_json(self, value: Any) -> int:
        """Add a blob with a value as JSON, after ``plain``, and return its number."""
        return self.add(json_bytes(value))


def characters(data: bytes) -> str:
    """Write bytes as characters: each 13 bits, highest first, are a number of two digits; zero bits fill the end."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    values = np.pad(bits, (0, -len(bits) % 13)).reshape(-1, 13) @ WEIGHTS
    digits: bytes = DIGITS[np.stack(np.divmod(values, len(DIGITS)), axis=1)].tobytes()
    return digits.decode("ascii")


def shuffled(values: NDArray[Any]) -> bytes:
    """Reorder bytes to compress better: the first bytes of all values, then the second bytes, and so on."""
    values = np.ascontiguousarray(values)
    return values.view(np.uint8).reshape(len(values), values.itemsize).T.tobytes()


def narrowed(values: NDArray[np.float64]) -> NDArray[Any]:
    """Round values to float32 with 16 significant bits, more than a curve or a label shows; integers stay exact.

    If a value is at least 65,536, or too small for float32, all values keep all bits: labels show integer parts.
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
    """JSON of any value, in UTF-8; lone surrogates, which UTF-8 cannot hold, become question marks."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def plain(value: Any) -> Any:
    """Make a value fit for JSON: NaN and infinities become null, and objects of other types become texts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, str | int) else str(value)
