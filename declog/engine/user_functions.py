"""Calls users' functions with the values of arrays: as torch tensors, or row by row.

Imports torch only for a function of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from declog.errors import RuntimeFailure
from declog.language.absence import MISSING, Kind
from declog.language.dtypes import DType
from declog.language.functions import Function
from declog.language.nodes import Node
from declog.language.plain_values import CONVERT, plain
from declog.language.segmented import Array


def by_rows(node: Node, function: Function, arrays: Sequence[Array]) -> tuple[Array, Kind]:
    """Call a user's function of plain values for each row of arrays; returns the results and their kind.

    The kind marks bools that are neither true nor false, because the function returned None.
    """
    spread, dtype = np.broadcast_arrays(*arrays), node.type.dtype
    columns = [
        [None if item is None else CONVERT[arg.type.dtype](item) for item in plain(array.ravel())]
        for arg, array in zip(node.args, spread, strict=True)
    ]
    results = [function.of_row(dtype, row) for row in zip(*columns, strict=True)]
    shape, missing = spread[0].shape, np.array([item is None for item in results], bool)
    column_type: Any = {DType.TEXT: object, DType.BOOL: bool, DType.INT: np.int64}.get(dtype, np.float64)
    if missing.any() and dtype is not DType.TEXT:
        column_type = np.float64  # None is NaN
    kind = (missing * np.uint8(MISSING)).reshape(shape) if dtype is DType.BOOL and missing.any() else False
    return np.array(results, column_type).reshape(shape), kind


def by_tensors(run: Callable[..., Any], arrays: list[Array]) -> Array:
    """Call a user's function of tensors with arrays."""
    import torch

    arguments = np.broadcast_arrays(*(array.astype(np.float64) for array in arrays))
    with torch.no_grad():
        result = run(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arguments))
    values = np.asarray(result.numpy() if isinstance(result, torch.Tensor) else result)
    if values.shape != arguments[0].shape:
        raise RuntimeFailure.of("DL314.rows", shape=values.shape, arguments=arguments[0].shape)
    return values
