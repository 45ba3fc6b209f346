"""Data packed for a page: gzip in base64, numbers byte by byte so that they compress."""

from __future__ import annotations

import base64
import gzip
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL = 9


class Blobs:
    """The blobs of one page, each known by its number."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, data: bytes) -> int:
        """Keep some bytes; returns their number."""
        self.texts.append(base64.b64encode(gzip.compress(data, LEVEL, mtime=0)).decode("ascii"))
        return len(self.texts) - 1

    def add_json(self, value: Any) -> int:
        """Keep a value as JSON; what JSON has no word for is null, or a text."""
        return self.add(json_bytes(value))


def shuffled(values: NDArray[Any]) -> bytes:
    """The first bytes of all values, then their second ones, and so on: what does not change compresses away."""
    values = np.ascontiguousarray(values)
    return values.view(np.uint8).reshape(len(values), values.itemsize).T.tobytes()


def narrowed(values: NDArray[np.float64]) -> NDArray[Any]:
    """As float32, whose seven digits are more than a curve shows, unless integers would lose some."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    finite = np.isfinite(values)
    exact = (narrow.astype(np.float64) == values) | ~finite
    whole = finite & (values == np.round(values))
    lost = (whole & ~exact) | (finite & ~np.isfinite(narrow)) | (finite & (values != 0) & (np.abs(narrow) < 1e-37))
    return values if lost.any() else narrow


def json_bytes(value: Any) -> bytes:
    """JSON of any value, in UTF-8; lone surrogates, which no browser reads, are question marks."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def plain(value: Any) -> Any:
    """A value as JSON can say it: NaN is null, infinities are too, and what is unknown is a text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, str | int) else str(value)
