"""Columns that are kept for later: one value per completion, which no metric of the run reads.

They are passive. They never open, close or refuse a batch: a column that does not fit is left out, and that is told
once. The training thread copies; each rank redacts texts before it sends them; rank 0 writes them beside the rows.
Imports numpy, frames and the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from declog.engine.blocks import texts_of
from declog.engine.frame import Frame
from declog.language.patterns import redacted
from declog.plans.ops import Plan
from declog.sinks._shared import clean_text

PREFIX = "kept:"  # of their names in frames
TEXT, FLOAT = "text", "float"
_TYPES = {"b": "bool", "i": "int", "u": "int", "f": FLOAT}  # by kind of dtype: in the words of signals


def type_of(values: NDArray[Any]) -> str:
    """What a signal of such values is declared as."""
    return _TYPES.get(values.dtype.kind, TEXT)


def redacted_texts(plan: Plan, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """The texts of a column as the config redacts the signal of its name."""
    patterns = tuple(plan.redactions.get(name.removeprefix(PREFIX), ()))
    texts = [None if item is None else clean_text(str(item)) for item in values]
    return texts_of([redacted(item, patterns) if item is not None and patterns else item for item in texts])


def without_kept(frames: Mapping[str, Frame]) -> dict[str, Frame]:
    """The frames as metrics read them."""
    return {
        name: frame.named(lambda name, _: None if name.startswith(PREFIX) else name) for name, frame in frames.items()
    }
