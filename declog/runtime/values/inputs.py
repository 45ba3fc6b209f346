"""Checks an observed value against its signal's declaration, in the call.

A checked value is a readable tensor (NaN for None), a list of texts or objects, or a plain number. Nothing waits for a
device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from decimal import Decimal
from fractions import Fraction
from types import NoneType
from typing import Any

import numpy as np
import torch

from declog.errors import InputError
from declog.language.dtypes import Axis, DType
from declog.plans.ops import SignalOp
from declog.runtime.recording.timing import Timed
from declog.runtime.values.extras import plain_value, plain_values
from declog.runtime.values.fixes import ADDED, columns_of, entry_of, fix_of
from declog.runtime.values.shapes import array_fix, mean_alone, shape_fix, text_fix
from declog.runtime.values.tensors import FLOATS, INTEGERS, described_array, is_scalar, named_dtype, readable

Tensor = torch.Tensor
Observed = Tensor | float | int | bool | list[Any] | None | Timed


def accept(op: SignalOp, label: str, value: Any) -> Observed:
    """Return a value as it can be recorded: a tensor of numbers (perhaps the trainer's own), a list or a number.

    Raises ``InputError``, with an edit if possible, for a value that does not fit the declaration.
    """
    try:
        return _accepted(op, label, value)
    except InputError as error:
        if error.code != "DL504" or error.fix is not None:
            raise
        fix = (text_fix(op, label, value) if op.dtype is DType.TEXT else None) or fix_of(op, label, value, _accepted)
        raise InputError(error.code, error.message, fix) from error.__cause__


def _accepted(op: SignalOp, label: str, value: Any) -> Observed:
    if not isinstance(value, _KNOWN):
        value = listed(value)
    if op.dtype in (DType.TEXT, DType.OBJECT):
        return _texts(op, label, value)
    if isinstance(value, Tensor):
        return _tensor(op, label, value)
    if op.axis is Axis.STEP:
        return _number(op, label, value)
    if isinstance(value, np.ndarray):
        return _of_array(op, label, value)
    if isinstance(value, list | tuple):
        return _list(op, label, value)
    if isinstance(value, Mapping):
        raise InputError.of(
            "DL503.mapping", label=label, declared=_declared(op),
            fix=f"give one value per {op.axis.label}, or declare `{entry_of(op, 'family: true')}` for values by name",
        )  # fmt: skip
    declares = not op.family and op.name == op.source and isinstance(value, int | float)
    words = "axis: step, type: int" if isinstance(value, int) else "axis: step"
    of_step = f", or declare `{entry_of(op, words)}`, if it is a number of the step" if declares else ""
    raise InputError.of(
        "DL503.tensor", label=label, declared=_declared(op), came=describe(value), axis=op.axis.label,
        mean=f", not their mean; {mean_alone(op.source)}" if isinstance(value, float) else "", of_step=of_step,
    )  # fmt: skip


_KNOWN = (Tensor, np.ndarray, list, tuple, float, int, str)


def listed(value: Any) -> Any:
    """Return a sequence such as a pandas series, ``range`` or ``dict.values()`` as an array or a list.

    A Decimal or Fraction becomes a float; other values stay as they are.
    """
    if isinstance(value, str | bytes | Mapping | Set | list | tuple | Tensor | np.ndarray | np.generic):
        return value
    if isinstance(value, Decimal | Fraction):
        return float(value)
    if hasattr(type(value), "__array__"):  # numpy's protocol
        return _with_none(value, np.asarray(value))
    return list(value) if isinstance(value, Collection) else value


def _with_none(value: Any, array: np.ndarray[Any, Any]) -> Any:
    """Return a column's ``array``, or a list with None for missing values, which numpy's integers cannot hold."""
    if array.ndim != 1 or not (array.dtype.kind == "O" or (array.dtype.kind == "f" and np.isnan(array).any())):
        return array
    if hasattr(type(value), "isna"):  # pandas
        return value.to_numpy(dtype=object, na_value=None)
    if array.dtype.kind == "f":
        for lists in ("to_pylist", "to_list"):  # Arrow, polars
            if hasattr(type(value), lists):
                return list(getattr(value, lists)())
    return array


DTYPES = {
    DType.FLOAT: INTEGERS | FLOATS, DType.INT: INTEGERS, DType.BOOL: INTEGERS, DType.TEXT: (), DType.OBJECT: (),
}  # fmt: skip
NDIM = {"step": 0, "group": 1, "completion": 1, "token": 2, "packed": 1}
_SHAPES = {
    "step": "one number",
    "group": "shape [groups]",
    "completion": "shape [completions]",
    "token": "shape [completions, tokens]",
    "packed": "shape [tokens]",
}


def _tensor(op: SignalOp, label: str, value: Tensor) -> Tensor:
    value, ndim = _readable(op, label, value), NDIM[op.shape_name]
    if value.ndim != ndim:
        if op.axis is Axis.STEP and value.numel() == 1:
            value = value.reshape(())
        elif ndim == 1 and value.ndim > 1 and value.numel() == len(value):  # a column `[n, 1]`, as of losses
            value = value.reshape(-1)
        else:
            raise InputError.of(
                "DL503.shape", label=label, declared=_declared(op), expected=_SHAPES[op.shape_name],
                shape=tuple(value.shape), fix=shape_fix(op, label, value),
            )  # fmt: skip
    if not value.numel() and op.dtype is not DType.FLOAT:  # `torch.tensor([])` and `np.array([])` are floats
        value = value.to(_EMPTY[op.dtype])
    dtype = value.dtype
    if dtype.is_complex or (op.dtype in (DType.INT, DType.BOOL) and dtype.is_floating_point):
        raise InputError.of("DL504.dtype", label=label, declared=_declared(op), dtype=named_dtype(dtype))
    if is_added(op, value):
        raise InputError.of("DL504.added", label=label, declared=_declared(op))
    return value


def is_added(op: SignalOp, value: Tensor) -> bool:
    """Whether a mask of integers is one that is added to logits, where 0 keeps a token. A GPU's values are not read."""
    of_tokens = op.dtype is DType.BOOL and op.axis is Axis.TOKEN and value.dtype is not torch.bool
    return of_tokens and value.is_cpu and value.numel() > 0 and bool(value.amin() < ADDED and value.amax() <= 0)


def _readable(op: SignalOp, label: str, value: Tensor) -> Tensor:
    try:
        if value.dtype is torch.uint64 and op.dtype is DType.FLOAT:
            value = value.double()
        return readable(value)
    except ValueError as error:
        raise InputError.of("DL504.tensor", label=label, declared=_declared(op), error=error) from error


def _number(op: SignalOp, label: str, value: Any) -> float | int | bool | Timed | None:
    if isinstance(value, np.ma.MaskedArray) and value.size == 1 and np.ma.is_masked(value):
        return None
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size == 1):
        value = value.item()
    if value is None or isinstance(value, Timed):
        return value
    if not isinstance(value, float | int | str | bytes | complex):
        raise InputError.of(
            "DL503.one_number", label=label, declared=_declared(op), came=describe(value),
            fix=shape_fix(op, label, value),
        )  # fmt: skip
    if isinstance(value, str) and op.family:
        raise InputError.of("DL504.family_text", label=label, declared=_declared(op), came=describe(value))
    if isinstance(value, str | bytes | complex) or (op.dtype in (DType.INT, DType.BOOL) and isinstance(value, float)):
        raise InputError.of("DL504.type", label=label, declared=_declared(op), came=describe(value))
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        if op.dtype is not DType.FLOAT or abs(value) >= 2**1023:
            raise _too_great(op, label)
        return float(value)
    return value


def _list(op: SignalOp, label: str, value: Sequence[Any]) -> Observed:
    if op.axis is Axis.TOKEN:
        return _tokens(op, label, value)
    types = {type(item) for item in value}
    among = {float, int, bool, type(None)} if op.dtype is DType.FLOAT else {int, bool}
    if Tensor in types <= {Tensor, *among} and all(type(item) is not Tensor or is_scalar(item) for item in value):
        on = next(item.device for item in value if isinstance(item, Tensor))
        items = [_readable(op, label, item) if isinstance(item, Tensor) else _as_tensor(item, on) for item in value]
        mixed = len({item.dtype for item in items}) > 1 and any(item.is_floating_point() for item in items)
        return _tensor(op, label, torch.stack([item.double() for item in items] if mixed else items))
    if any(issubclass(type_, np.generic) for type_ in types):
        return _list(op, label, [item.item() if isinstance(item, np.generic) else item for item in value])
    if op.dtype is DType.FLOAT and types & {Decimal, Fraction}:
        return _list(op, label, [float(item) if isinstance(item, Decimal | Fraction) else item for item in value])
    wrong = types - {float, int, bool, type(None)}
    if op.dtype in (DType.INT, DType.BOOL):
        wrong |= types & {float}
    if wrong:
        places = [position for position, item in enumerate(value) if type(item) in wrong]
        at = next((position for position in places if not is_scalar(value[position])), places[0])
        if op.family and isinstance(value[at], Mapping):
            raise InputError.of(
                "DL504.family_maps", name=op.source, declared=_declared(op), position=at, columns=columns_of(op.source)
            )
        if op.family and isinstance(value[at], Sequence) and not isinstance(value[at], str):
            raise InputError.of(
                "DL504.family_rows", label=label, declared=_declared(op), position=at, item=describe(value[at]),
                name=op.name,
            )  # fmt: skip
        raise InputError.of("DL504.value", label=label, declared=_declared(op), position=at, item=describe(value[at]))
    if op.dtype is DType.INT and type(None) in types and not op.folded:  # a list, because floats would lose bits
        if any(item is not None and not -(2**63) <= item < 2**63 for item in value):
            raise _too_great(op, label)
        return list(value)
    try:
        if op.dtype is DType.FLOAT or type(None) in types:  # NaN means missing, also among bools
            if op.dtype is DType.INT and any(item is not None and abs(item) > 2**53 for item in value):
                raise _too_great(op, label, "53 bits, as it must where tokens are folded with it")
            floats = [np.nan if item is None else float(item) for item in value]
            return torch.tensor(floats, dtype=torch.float64, device="cpu")
        return torch.tensor(value, dtype=torch.bool if op.dtype is DType.BOOL else torch.int64, device="cpu")
    except (OverflowError, RuntimeError, ValueError) as error:
        raise _too_great(op, label) from error


def _as_tensor(item: float | None, device: torch.device) -> Tensor:
    """Return a number as a tensor on a device, without waiting for the device; None becomes NaN."""
    value = item if isinstance(item, int) and -(2**63) <= item < 2**63 else np.nan if item is None else float(item)
    return torch.full((), value, dtype=torch.float64 if isinstance(value, float) else None, device=device)


def _too_great(op: SignalOp, label: str, bits: str = "64 bits") -> InputError:
    return InputError.of("DL504.bits", label=label, bits=bits, entry=entry_of(op, "type: float"))


def _of_array(op: SignalOp, label: str, value: np.ndarray[Any, Any]) -> Observed:
    """Check an array, of any strides and byte order; masked entries are missing."""
    if value.dtype.kind == "O" and value.ndim == 1:
        return _list(op, label, list(value))
    if value.dtype.kind not in "fiub":
        raise InputError.of("DL504.type", label=label, declared=_declared(op), came=describe(value))
    if isinstance(value, np.ma.MaskedArray):
        if op.dtype is not DType.FLOAT and value.ndim == 1 and np.ma.is_masked(value):
            return _list(op, label, value.tolist())
        value = _unmasked(op, label, value)
    return _tensor(op, label, _native(value))


def _native(value: np.ndarray[Any, Any]) -> Tensor:
    """Copy an array of numbers into a tensor."""
    kept = value.astype(np.float64) if value.dtype.itemsize > 8 else np.array(value, value.dtype.newbyteorder("="))
    return torch.from_numpy(np.ascontiguousarray(kept).reshape(value.shape))


def _unmasked(op: SignalOp, label: str, value: np.ma.MaskedArray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a masked array with NaN for masked entries; raises ``InputError`` if only floats could hold the NaN."""
    if not np.ma.is_masked(value):
        return np.asarray(value.data)
    if op.dtype is DType.FLOAT:
        return np.ma.filled(value.astype(np.float64), np.nan)
    raise InputError.of("DL504.masked", label=label, declared=_declared(op), dtype=op.dtype)


# the dtype for an empty list
_EMPTY = {DType.FLOAT: torch.float64, DType.INT: torch.int64, DType.BOOL: torch.bool}


def _tokens(op: SignalOp, label: str, value: Sequence[Any]) -> Tensor:
    """Return a list with the tokens of each completion as one tensor: packed, or padded with NaN for missing."""
    try:
        rows = [_token_row(op, label, item) for item in value]
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise InputError.of("DL504.elements", label=label, declared=_declared(op), error=error) from error
    if any(row.ndim != (0 if op.packed and rows[0].ndim == 0 else 1) for row in rows):
        raise InputError.of("DL503.token_lists", label=label, declared=_declared(op))
    if not rows:
        return torch.zeros((0,) if op.packed else (0, 0), dtype=_EMPTY[op.dtype], device="cpu")
    if len({row.dtype for row in rows}) > 1:  # `pad_sequence` would give all rows the first row's dtype
        wide = torch.float64 if any(row.is_floating_point() for row in rows) else torch.int64
        rows = [row.to(wide) for row in rows]
    if op.dtype is DType.BOOL and not any(row.is_floating_point() for row in rows):  # floats are refused below
        if any(is_added(op, row) for row in rows):
            raise InputError.of("DL504.added", label=label, declared=_declared(op))
        rows = [row != 0 for row in rows]
    if op.packed:
        return _tensor(op, label, torch.stack(rows) if rows[0].ndim == 0 else torch.cat(rows))
    padded = _tensor(op, label, torch.nn.utils.rnn.pad_sequence(rows, batch_first=True))
    if len({len(row) for row in rows}) == 1:
        return padded
    if op.unmasked:
        raise InputError.of("DL503.ragged", label=label)
    if op.dtype is DType.INT and padded.is_cpu and len(torch.nonzero(padded.abs() > 2**53)):
        raise _too_great(op, label, "53 bits, as it must in lists of different lengths")
    floats = rows if padded.is_floating_point() else [row.double() for row in rows]
    return torch.nn.utils.rnn.pad_sequence(floats, batch_first=True, padding_value=torch.nan)


def _token_row(op: SignalOp, label: str, item: Any) -> Tensor:
    if isinstance(item, Tensor):
        if not item.numel():
            return torch.zeros(item.shape, dtype=_EMPTY[op.dtype], device=item.device)
        return _readable(op, label, item)
    if isinstance(item, np.ma.MaskedArray):
        item = _unmasked(op, label, item)
    row = np.array(item)
    if not row.size:
        return torch.zeros(row.shape, dtype=_EMPTY[op.dtype], device="cpu")
    if row.dtype.kind == "O" and all(isinstance(one, int) for one in row.flat):  # integers that no dtype holds
        if op.dtype is not DType.FLOAT:
            raise _too_great(op, label)
        row = row.astype(np.float64)
    return _readable(op, label, torch.from_numpy(row))


def _texts(op: SignalOp, label: str, value: Any) -> Observed:
    if op.axis is Axis.STEP:
        if op.dtype is DType.TEXT and value is not None and not isinstance(value, str):
            raise InputError.of("DL504.type", label=label, declared=_declared(op), came=describe(value))
        return [plain_value(value)] if op.dtype is DType.OBJECT else None if value is None else [value]
    if op.dtype is DType.OBJECT and isinstance(value, Tensor):
        if value.ndim == 1 and value.dtype in INTEGERS | FLOATS and not value.is_meta:
            return _readable(op, label, value)
        value = plain_value(value)
    if isinstance(value, str) or not isinstance(value, list | tuple | np.ndarray):
        if isinstance(value, Tensor) and value.ndim:
            raise InputError.of(
                "DL503.texts", label=label, declared=_declared(op), came=describe(value),
                fix=text_fix(op, label, value) or array_fix(op, label, value),
            )  # fmt: skip
        example = f": {label}=[{value!r}] * n" if isinstance(value, str) and len(value) < 40 else ""
        raise InputError.of("DL503.list", label=label, declared=_declared(op), came=describe(value), example=example)
    items = list(value)
    if op.dtype is DType.OBJECT:
        return plain_values(items)
    if {*map(type, items)} <= {str, NoneType}:  # the usual case
        return items
    for position, item in enumerate(items):
        if item is not None and not isinstance(item, str):
            raise InputError.of(
                "DL504.value", label=label, declared=_declared(op), position=position, item=describe(item)
            )
    return items


def _declared(op: SignalOp) -> str:
    return f"{op.dtype} per {op.axis.label}"


def describe(value: Any) -> str:
    """Describe a value in a few words, for messages."""
    if isinstance(value, Tensor | np.ndarray):
        return described_array(value)
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


def undeclared(value: Any) -> tuple[Axis | None, Any]:
    """Return the axis of an undeclared value, and the value: a number per step, or one number per completion.

    Further axes are averaged for each completion. Other lists are returned without an axis, as columns of texts or
    objects. Any other value gives (None, None).
    """
    value = listed(value)
    alone = isinstance(value, Tensor | np.ndarray) and not value.ndim
    if alone or isinstance(value, bool | int | float | np.generic):
        return Axis.STEP, value.item() if isinstance(value, np.generic | np.ndarray) else value
    if isinstance(value, list | tuple) and all(isinstance(item, bool | int | float | type(None)) for item in value):
        value = np.array([np.nan if item is None else item for item in value], np.float64)
    if isinstance(value, list | tuple) and value and all(map(is_scalar, value)):
        value = torch.stack([item.detach().double() for item in value])
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        value = _native(value)
    if isinstance(value, Tensor) and not value.is_complex():
        rows = value.detach()
        return Axis.COMPLETION, rows if rows.ndim == 1 else rows.flatten(1).double().mean(1)
    if isinstance(value, list | tuple | np.ndarray) and not (isinstance(value, np.ndarray) and value.dtype.kind == "c"):
        return None, list(value)
    return None, None


def words_of(value: object) -> str:
    """Return the short declaration of a signal with such a value: by the shape of numbers, a family, text or object."""
    if isinstance(value, Mapping):
        return f"{words_of(next(iter(value.values()), 0.0)).split()[0]} family"
    if isinstance(value, str):
        return "step text"
    first = next((item for item in value if item is not None), None) if isinstance(value, list | tuple) else None
    if isinstance(first, str):
        return "completion text"
    axis, _ = undeclared(value)
    if axis is None:
        return "completion object"
    return Axis.TOKEN.label if isinstance(value, Tensor | np.ndarray) and value.ndim == 2 else axis.label
