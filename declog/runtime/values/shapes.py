"""Edits for values whose shape does not fit their signal, for the errors of ``observe``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from declog.language.dtypes import Axis
from declog.plans.ops import SignalOp
from declog.runtime.values.fixes import entry_of

MEMBERS = "abcd"  # names of members in an edit
CallValues = Sequence[tuple[SignalOp, Any]]  # signals of one call, with their values
_OF_PARAMETERS = re.compile(r"(\w+[_/])?(lr|learning_rate|weight_decay|momentum)s?")  # values per parameter group
_TEXTS = ("content", "text", "completion", "response", "output", "answer")  # keys whose value is a text


def mean_alone(name: str) -> str:
    """The call for one float where each row has a value: unlike an int, it may be the mean of the rows."""
    return f'a mean alone is `log.scalars({{"{name}_mean": x}})`'


def shape_fix(op: SignalOp, label: str, value: Any, call: CallValues = (), mask: str | None = None) -> str:
    """Return an edit that gives a value the expected shape; ``call`` has the signals of its call, which lacks ``mask``.

    Declaring another axis with rows is offered only if the signal's name in the config is the observed name: otherwise
    a preset renames the signal, and its expressions need the declared axis.
    """
    ndim = 1 if isinstance(value, Sequence) else getattr(value, "ndim", 0)
    rows = rows_of_others(label, call)
    if op.axis is Axis.STEP:
        edit, axis = _of_step(label, value, ndim)
    elif ndim == 0 and not isinstance(value, Sequence):
        if "int" not in str(getattr(value, "dtype", "")):
            said = f"one value per {op.axis.label}, as before it is reduced: `{label}=...` without `.mean()`"
            return f"{said}; {mean_alone(label)}"
        edit, axis = f"one value per {op.axis.label}", "step"
    elif op.axis is Axis.COMPLETION and ndim == 2:
        edit, axis = f"`{label}.flatten()` for groups of completions", "token"
        if rows == len(value):
            edit = f"`{label}.{'sum' if 'reward' in label else 'mean'}(1)` of values per token"
        if rows == value.shape[0] * value.shape[1]:
            axis = ""
        elif _is_of_tokens(value, call) and op.name == op.source:
            return f"declare `{entry_of(op, 'axis: token')}`, or {edit}"
    elif op.axis is Axis.TOKEN and ndim == 3 and "logp" in label:
        picked = f"`{label}={label}.gather(-1, completion_ids[..., None])[..., 0]`, of the sampled tokens' ids"
        edit, axis = f"{picked}; of logits take `torch.log_softmax({label}, -1)` first", ""
    elif op.axis is Axis.TOKEN and ndim == 1:
        edit, axis = _of_packed(label, value, rows, call, mask)
    else:
        edit, axis = "reduce or index it", {1: "completion", 2: "token"}.get(ndim, "")
    declares = axis and not op.family and (op.axis is Axis.STEP or op.name == op.source)
    return f"{edit}, or declare `{entry_of(op, f'axis: {axis}')}`" if declares else edit


def members_fix(op: SignalOp, value: Any, call: CallValues) -> str | None:
    """Return the edit that makes a mapping of member to values of a table or a matrix; None for other values.

    The members are the columns, or the rows where the other values of the call, or else more columns than rows, say so.
    A matrix with a value for each completion of the call is none of members, but of groups.
    """
    name, one = op.source, op.source.removesuffix("s")
    rows, shape = rows_of_others(name, call), tuple(getattr(value, "shape", ()))
    if isinstance(value, list | tuple):
        lists = all(isinstance(item, list | tuple) or getattr(item, "ndim", 0) == 1 for item in value)
        shape = (len(value), *({*map(len, value)} if lists else ()))
    if len(shape) != 2 or min(shape) < 2 or rows == shape[0] * shape[1]:
        return None
    if hasattr(value, "iloc"):  # pandas
        texts = all(isinstance(column, str) for column in value.columns)
        return f"{name}={name}{'' if texts else f'.add_prefix({one!r})'}.to_dict('list')"
    if hasattr(value, "columns"):
        return f"{name}={name}.{'to_pydict' if hasattr(value, 'to_pydict') else 'to_dict'}()"  # Arrow, polars
    of_rows = rows != shape[0] and (rows == shape[1] or shape[0] < shape[1])
    number = shape[0] if of_rows else shape[1]
    columns = f"[row[{{}}] for row in {name}]" if isinstance(value, list | tuple) else f"{name}[:, {{}}]"
    part = f"{name}[{{}}]" if of_rows else columns
    if number > len(MEMBERS):
        return f"{name}={{f'{one}{{i}}': {part.format('i')} for i in range({number})}}"
    names = op.members if len(op.members) == number else MEMBERS[:number]
    return f"{name}={{{', '.join(f'{member!r}: {part.format(at)}' for at, member in enumerate(names))}}}"


def _of_step(label: str, value: Any, ndim: int) -> tuple[str, str]:
    """Return the edit that makes one number of a value, and the axis that the signal may have instead, or ''."""
    if _OF_PARAMETERS.fullmatch(label) and ndim == 1:
        return f"`{label}[0]`, of the first parameter group", ""
    if isinstance(value, Sequence):  # a number per micro-batch, never per row
        return f"`sum({label}) / len({label})`", ""
    of_tokens = f", of the tokens that exist `({label} * mask).sum() / mask.sum()`" if ndim == 2 else ""
    return f"`{label}.mean()`{of_tokens}", {1: "completion", 2: "token"}.get(ndim, "")


def _of_packed(label: str, value: Any, rows: int | None, call: CallValues, mask: str | None) -> tuple[str, str]:
    """Return the edit for the tokens of all completions in one row, and the axis that the signal may have instead."""
    alone = [op for op, other in call if op.axis is Axis.TOKEN and _dimensions(other) == 1][1:] == []
    axis = "completion" if alone and rows in (None, len(value)) else ""  # with several, changing one would be wrong
    if rows == len(value):
        return f"one value per token: `{label}` as before it is reduced", axis
    lengths = next((op.source for op, other in call if _are_lengths(op, other, len(value))), None)
    said = f"{lengths}.tolist()" if lengths else "lengths"
    split = f"{label}.split({said})"
    if mask is not None:
        split = f"{label}={split}, {mask}=[[True] * n for n in {said}]"
    split = f"the tokens of each completion: `{split}`" + ", with a list of them" * (lengths is None)
    if rows and len(value) % rows == 0:
        return f"`{label}.view({rows}, -1)`, if completions have equally many tokens; else {split}", axis
    return split, axis


def _are_lengths(op: SignalOp, value: Any, tokens: int) -> bool:
    """Whether a signal has the number of tokens of each completion."""
    plain = isinstance(value, torch.Tensor) and value.ndim == 1 and not value.is_floating_point() and value.is_cpu
    return plain and op.axis is Axis.COMPLETION and "length" in op.source and int(value.sum()) == tokens


def _is_of_tokens(value: Any, call: CallValues) -> bool:
    """Whether a signal per token has the shape of a value."""
    shapes = [tuple(other.shape) for op, other in call if op.axis is Axis.TOKEN and hasattr(other, "shape")]
    return tuple(value.shape) in shapes


def rows_of_others(label: str, call: CallValues) -> int | None:
    """The number of completions that the other values of a call have; None if no other value tells it."""
    counts = {
        axis: [
            len(value) for op, value in call
            if op.source != label and op.axis is axis and not op.packed and not op.family and _dimensions(value) == ndim
        ]
        for axis, ndim in ((Axis.COMPLETION, 1), (Axis.TOKEN, 2))
    }  # fmt: skip
    return next((count[0] for count in counts.values() if count), None)


def _dimensions(value: Any) -> int | None:
    return 1 if isinstance(value, list | tuple) else getattr(value, "ndim", None)


def turned(labels: Sequence[str], counts: Mapping[str, int], call: CallValues) -> str | None:
    """Return which of two signals has its axes turned, [tokens, completions]; None if neither seems to.

    The other signals' number of completions decides first, then a name with "mask".
    """
    opposite = dict(zip(labels, labels[::-1], strict=True))
    fits = [
        op.source for op, value in call
        if op.source in opposite and op.axis is Axis.TOKEN and _dimensions(value) == 2
        and value.shape[1] == counts[opposite[op.source]]
    ]  # fmt: skip
    rows = {label: rows_of_others(label, [pair for pair in call if pair[0].source not in labels]) for label in fits}
    wrong = [label for label in fits if rows[label] is not None and rows[label] != counts[label]]
    masks = [label for label in fits if "mask" in label]
    return next(iter([*wrong, *masks, *fits[::-1]]), None)


def text_fix(op: SignalOp, label: str, values: Any) -> str | None:
    """Return an edit that makes texts of token ids, messages or lists of texts; None for other values."""
    listed = isinstance(values, list | tuple | torch.Tensor | np.ndarray)
    item = next((one for one in values if one is not None), None) if listed else None
    ids = item.flatten().tolist() if isinstance(item, torch.Tensor | np.ndarray) and item.ndim else item
    if isinstance(ids, list | tuple) and ids and all(type(one) is int for one in ids):
        fix = f"the texts of token ids: `{label}=tokenizer.batch_decode({label}, skip_special_tokens=True)`"
        return fix + f"; the ids are `{label}_ids={label}`" * (label == "completion")
    declare = f"declare `{entry_of(op, 'type: object')}`"
    if isinstance(item, list | tuple) and item and all(isinstance(part, str) for part in item):
        return f"`[''.join(x) for x in {label}]`, or {declare}"
    if (part := _part(item)) is not None:
        return f"`[x{part} for x in {label}]`, or {declare}"
    return declare if isinstance(item, Mapping | list | tuple) else None


def array_fix(op: SignalOp, label: str, values: torch.Tensor) -> str:
    """Return an edit that makes texts of numbers, or declares the type of the numbers."""
    kind = "float" if values.is_floating_point() else "bool" if values.dtype is torch.bool else "int"
    return f"`[str(x) for x in {label}.tolist()]`, or declare `{entry_of(op, f'type: {kind}')}`"


def _part(item: Any) -> str | None:
    """Return the subscripts of the last text in messages, as code; None if the messages have no text."""
    if isinstance(item, list | tuple):
        inside = _part(item[-1]) if item and not isinstance(item[-1], str) else None
        return None if inside is None else f"[-1]{inside}"
    key = next((key for key in _TEXTS if key in item), None) if isinstance(item, Mapping) else None
    if key is None:
        return None
    inside = "" if isinstance(item[key], str) else _part(item[key])
    return None if inside is None else f'["{key}"]{inside}'
