"""Edits that make observed values fit their declaration; each is tried on the values before an error shows it.

Missing values (None, NaN and pandas' NA) stay missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from declog.language.dtypes import Axis, DType
from declog.plans.ops import SignalOp

Accept = Callable[[SignalOp, str, Any], Any]  # raises an error if a value does not fit
Convert = Callable[[Any], Any]
Edit = tuple[str, Convert]  # the code to type, and a function that does the same
TYPES = {  # by type of a signal: other types to try in its declaration, before `object`
    DType.FLOAT: (DType.TEXT,), DType.INT: (DType.FLOAT, DType.TEXT), DType.BOOL: (DType.FLOAT, DType.TEXT),
    DType.TEXT: (), DType.OBJECT: (),
}  # fmt: skip
NUMBERS: dict[DType, Convert] = {DType.FLOAT: float, DType.INT: int, DType.BOOL: bool}
ADDED = -1e3  # a number below drops a token in a mask that is added to logits
METHODS = {DType.INT: "long", DType.BOOL: "bool"}  # the methods of tensors that convert to a type


def fix_of(op: SignalOp, label: str, value: Any, accept: Accept) -> str | None:
    """Return an edit of the value, another declaration of its signal, or both; None if nothing that is tried fits."""

    def fits(op: SignalOp, convert: Convert) -> bool:
        try:
            accept(op, label, convert(value))
        except Exception:  # noqa: BLE001  (the items may be of a user's class)
            return False
        return True

    is_mask = op.dtype is DType.BOOL and op.axis is Axis.TOKEN
    shown = f"pass it as bool: `{label}={{}}`" if is_mask else "`{}`"
    edits = [shown.format(text) for text, convert in _edits(op, label, value) if fits(op, convert)][:1]
    types = [*TYPES[op.dtype], *([] if edits and op.dtype in NUMBERS else [DType.OBJECT])]
    if op.family or op.axis is Axis.TOKEN:  # members of families and values per token are numbers
        types = [DType.FLOAT] if op.dtype is DType.INT else []
    fitting = [type_ for type_ in types if fits(replace(op, dtype=type_), lambda value: value)][:1]
    return ", or ".join([*edits, *(f"declare `{entry_of(op, f'type: {type_}')}`" for type_ in fitting)]) or None


def entry_of(op: SignalOp, keys: str) -> str:
    """Return the edit of the config that declares a signal with other ``keys``."""
    return f"signals: {{{(*op.homes, 'any')[0]}: {{{op.name}: {{{keys}}}}}}}"


def _edits(op: SignalOp, label: str, value: Any) -> Iterator[Edit]:
    """Yield edits that may make a value of this kind fit, the likeliest first."""
    kinds = "fci" if op.dtype is DType.BOOL else "fc"
    if isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in kinds):
        yield from _of_array(op, label, value)
    elif op.axis is Axis.STEP:
        yield from _of_items(op, [value], lambda text: text.replace("x", label), lambda convert: convert)
    elif op.axis is Axis.TOKEN:
        items = [item for row in value for item in row]
        if op.dtype is DType.BOOL and (kept := _kept(items)) is not None:
            yield (
                f"[[x == {kept} for x in row] for row in {label}]",
                lambda rows: [[item == kept for item in row] for row in rows],
            )
        yield from _of_items(
            op, items, lambda text: f"[[{text} for x in row] for row in {label}]",
            lambda convert: lambda rows: [[convert(item) for item in row] for row in rows],
        )  # fmt: skip
    else:
        items = list(value)
        if items and all(isinstance(item, torch.Tensor) and item.ndim for item in items):
            if any(item.numel() != 1 for item in items):
                yield f"torch.cat({label})", torch.cat
        elif any(isinstance(item, list | tuple) for item in items):
            yield f"[x for row in {label} for x in row]", lambda rows: [item for row in rows for item in row]
        yield from _of_items(
            op, items, lambda text: f"[{text} for x in {label}]", lambda convert: lambda items: [*map(convert, items)]
        )


def _of_array(op: SignalOp, label: str, value: Any) -> Iterator[Edit]:
    """Yield edits of a tensor or an array of floats.

    A mask ``[completions, tokens]`` may be compared with a number. A single row with a NaN is converted item by item.
    """
    tensor = isinstance(value, torch.Tensor)
    if value.dtype.is_complex if tensor else value.dtype.kind == "c":
        yield f"{label}.real", lambda value: value.real
        return
    infinite, missing = (torch.isinf, torch.isnan) if tensor else (np.isinf, np.isnan)
    kept = _kept(value.flatten().tolist()) if op.dtype is DType.BOOL and value.ndim == 2 else None
    if kept is not None:
        yield f"{label} == {kept}", lambda value: value == kept
    elif op.dtype in METHODS and missing(value).any():
        if value.ndim == 1:
            listed = f"{label}.tolist()"
            yield from _of_items(
                op, value.tolist(), lambda text: f"[{text} for x in {listed}]",
                lambda convert: lambda value: [*map(convert, value.tolist())],
            )  # fmt: skip
    elif op.dtype in METHODS and not infinite(value).any():
        kind = NUMBERS[op.dtype]
        if tensor:
            yield f"{label}.{METHODS[op.dtype]}()", lambda value: getattr(value, METHODS[op.dtype])()
        else:
            yield f"{label}.astype({op.dtype})", lambda value: value.astype(kind)


def _kept(items: Sequence[Any]) -> int | None:
    """The number by which a mask keeps a token, if the mask is to be compared with it.

    It is 1 in a mask with NaN, and 0 in a mask that is added to logits, where a very negative number drops a token.
    """
    if any(item != item for item in items):
        return 1
    nonzero = [item for item in items if item != 0]
    numbers = all(isinstance(item, int | float | np.number | torch.Tensor) for item in nonzero)
    return 0 if nonzero and numbers and max(nonzero) <= 0 and min(nonzero) < ADDED else None


def _of_items(
    op: SignalOp, items: Sequence[Any], shown: Callable[[str], str], over: Callable[[Convert], Convert]
) -> Iterator[Edit]:
    """Yield edits of each item ``x``; they leave missing items None."""
    guard, missing = _guard(op, items)
    came = [item for item in items if not missing(item)]
    for text, convert in _of_item(op, came):

        def guarded(item: Any, convert: Convert = convert) -> Any:
            return None if missing(item) else convert(item)

        yield shown(f"None if {guard} else {text}" if guard else text), over(guarded)


def _guard(op: SignalOp, items: Sequence[Any]) -> tuple[str, Callable[[Any], bool]]:
    """Return the test for missing items, as code and as a function; the code is empty if no item is missing."""
    kinds = {type(item).__name__ for item in items if item is not None}
    if kinds & {"NAType", "NaTType"}:
        missing: Callable[[Any], bool] = sys.modules["pandas"].isna
        return "pd.isna(x)", missing
    tests: dict[str, Callable[[Any], bool]] = {
        "x is None": lambda item: item is None,
        "x != x": lambda item: op.dtype is not DType.FLOAT and isinstance(item, float | np.floating) and item != item,
        "x == ''": lambda item: op.dtype in NUMBERS and isinstance(item, str) and not item,
    }
    needed = {text: test for text, test in tests.items() if any(map(test, items))}
    return " or ".join(needed), lambda item: any(test(item) for test in needed.values())


def _of_item(op: SignalOp, items: Sequence[Any]) -> Iterator[Edit]:
    """Yield edits that make a number or a text of one item ``x``, if that keeps its meaning."""
    texts = all(isinstance(item, str | bytes) for item in items)
    if op.dtype in NUMBERS and any(isinstance(item, complex) for item in items):
        yield "x.real", lambda item: item.real
    elif op.dtype is DType.BOOL and texts:
        if {str(item) for item in items} <= {"True", "False"}:
            yield "x == 'True'", lambda item: item == "True"
    elif op.dtype in NUMBERS:
        yield f"{op.dtype}(x)", NUMBERS[op.dtype]
        if op.dtype is DType.INT and texts:
            yield "int(float(x))", lambda item: int(float(item))
    elif op.dtype is DType.TEXT:
        if all(isinstance(item, str) for item in items):
            yield "x", lambda item: item
        elif all(isinstance(item, bytes) for item in items):
            yield "x.decode()", lambda item: item.decode()
        else:
            other = "x" if texts else "str(x)"
            has_bytes = any(isinstance(item, bytes) for item in items)
            yield (
                f"x.decode() if isinstance(x, bytes) else {other}" if has_bytes else other,
                lambda item: item.decode() if isinstance(item, bytes) else str(item),
            )


def columns_of(rows: str) -> str:
    """The Python that turns a list of mappings, one per row, into a mapping of member to values; ``rows`` names it."""
    return f"{{key: [(row or {{}}).get(key) for row in {rows}] for key in set().union(*filter(None, {rows}))}}"
