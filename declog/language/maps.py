"""Maps laid over maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """``low`` with the keys of ``high``: a map over a map is merged, anything else replaces what was there."""
    result = dict(low)
    for key, value in high.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both and old is not None else value
    return result
