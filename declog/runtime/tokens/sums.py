"""Sums over the tokens of each completion on the host, as dot products of values and a mask of 0 and 1.

numpy reads a row once. torch would multiply into a buffer, and then sum the buffer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from declog.engine.blocks import Key
from declog.plans.ops import FoldOp

Tensor = torch.Tensor
Array = np.ndarray[Any, Any]
Sums = list[tuple[torch.dtype, list[Key], Array]]  # columns, [k, completions]
LONGEST = 8192  # the most tokens of one dot product: for longer rows the BLAS library would start threads
FLOATS = {torch.float32: np.float32, torch.float64: np.float64}


def fold_sums(ops: Sequence[FoldOp], signals: Mapping[str, Tensor], shape: torch.Size) -> Sums | None:
    """Return the columns of folds that only count and sum signals ``[completions, tokens]``; None if a fold needs more.

    Also None if a value is NaN or infinite, even in the padding: then a slower fold must check which of these values
    belong to tokens that exist.
    """
    by_mask: dict[tuple[str, torch.dtype], list[tuple[Array, FoldOp]]] = {}
    counts: dict[str, list[Key]] = {}
    for op in ops:
        if op.sums is None:
            return None
        name, mask = op.sums
        if name is None:
            counts.setdefault(mask, []).append(op.keys["n"])
            continue
        value = signals.get(name)
        if value is None or value.dtype not in FLOATS or value.shape != shape or not value.is_cpu:
            return None
        by_mask.setdefault((mask, value.dtype), []).append((value.numpy(), op))
    for mask in counts:
        by_mask.setdefault((mask, torch.float32), [])
    columns: Sums = []
    with np.errstate(all="ignore"):
        for (mask, dtype), values in by_mask.items():
            exists = signals.get(mask)
            if exists is None or exists.dtype is not torch.bool or exists.shape != shape or not exists.is_cpu:
                return None
            weight = exists.numpy().astype(FLOATS[dtype])
            number = _dots(weight, weight)  # exact to 2**24 tokens
            if keys := counts.pop(mask, None):
                columns.append((torch.int64, keys, np.array([number] * len(keys), np.int64)))
            if values:
                sums = np.array([_dots(value, weight) for value, _ in values] + [number] * len(values))
                if not math.isfinite(np.add.reduce(sums, None)):
                    return None
                columns.append((dtype, [op.keys[stat] for stat in ("total", "n") for _, op in values], sums))
    return columns


def _dots(values: Array, weights: Array) -> Array:
    """The dot products of the rows of two matrices, row by row."""
    if values.shape[1] > LONGEST:
        before, rest = (_dots(values[:, part], weights[:, part]) for part in (slice(LONGEST), slice(LONGEST, None)))
        return before + rest
    products: Array = np.matmul(values[:, None, :], weights[:, :, None])
    return products.reshape(len(values))
