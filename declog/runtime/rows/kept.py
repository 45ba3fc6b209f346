"""Columns that are kept for later: one value per completion, which no metric of the run reads.

They are passive. They never open, close or refuse a batch: a column that does not fit is left out, and that is told
once. The training thread copies; each rank redacts texts before it sends them; rank 0 writes them beside the rows.
Imports numpy, torch, frames and the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from declog.engine.blocks import texts_of
from declog.engine.frame import Frame
from declog.errors import InputError
from declog.language.patterns import redacted
from declog.plans.ops import Plan
from declog.runtime.values.extras import plain_column
from declog.sinks._shared import clean_text

PREFIX = "kept:"  # of their names in frames
TEXT, FLOAT = "text", "float"
_TYPES = {"b": "bool", "i": "int", "u": "int", "f": FLOAT}  # by kind of dtype: in the words of signals


def column_of(name: str, values: Any) -> torch.Tensor | list[Any]:
    """A copy of a column: numbers as a tensor, where they are; texts as a list. ``InputError`` for what is neither."""
    plain = plain_column(name, values)
    if isinstance(plain, torch.Tensor):
        if plain.ndim != 1:
            raise InputError.of("DL509.kept", column=name, type=f"a tensor of the shape {list(plain.shape)}")
        return plain
    kinds = {type(value) for value in plain} - {type(None)}
    if kinds <= {str}:
        return plain
    if None not in plain and (kinds == {bool} or kinds == {int}):
        return torch.tensor(plain)
    if kinds <= {bool, int, float}:
        return torch.tensor([float("nan") if value is None else float(value) for value in plain], dtype=torch.float64)
    other = next(kind for kind in kinds if kind not in (bool, int, float, str)) if len(kinds) == 1 else None
    raise InputError.of("DL509.kept", column=name, type="mixed values" if other is None else f"{other.__name__} values")


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
    return {name: _without(frame) for name, frame in frames.items()}


def _without(frame: Frame) -> Frame:
    if not any(name.startswith(PREFIX) for name, _ in frame.keys):
        return frame
    places = [
        np.flatnonzero([not name.startswith(PREFIX) for name, _ in block.keys]).tolist() for block in frame.blocks
    ]
    blocks = [block.some(rows) for block, rows in zip(frame.blocks, places, strict=True) if rows]
    texts = {key: column for key, column in frame.texts.items() if not key[0].startswith(PREFIX)}
    return replace(frame, blocks=blocks, texts=texts)
