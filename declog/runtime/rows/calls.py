"""Learned calls of ``observe``: the first call with some names decides which columns of later calls are stacked.

A later call with the same names is checked as a whole, by the shape and dtype of its stacks. If it differs from the
first call, it is read value by value, as the first call was (``observation.py``). So this module never accepts or
refuses values on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import torch

from declog.errors import InputError
from declog.language.dtypes import Axis
from declog.plans.ops import SignalOp
from declog.runtime.rows.observation import Array, Columns, Observation, ReadObservation, Tokens
from declog.runtime.values.inputs import DTYPES, NDIM
from declog.runtime.values.tensors import HALF, plain

Tensor = torch.Tensor
_dtype = attrgetter("dtype")
Chosen = Sequence[tuple[int, SignalOp]]  # the position of a value in the call, and its signal


class LearnedCall:
    """How to read one phase's values of a call: as stacks, as tokens for folds, or one by one.

    Learned from a first call. ``alone`` is the stack of a call that consists of a single stack on the host.
    """

    def __init__(self, first: Observation, chosen: Chosen, values: Sequence[Any]) -> None:
        self.phase = first.phase
        self.names = frozenset(first.names)
        self.labels = first.labels
        stacks: dict[tuple[Axis, torch.dtype, bool], list[tuple[int, SignalOp]]] = {}
        self._tokens: list[tuple[int, SignalOp, torch.dtype]] = []
        self._single: list[tuple[int, SignalOp]] = []
        for position, op in chosen:
            value = values[position]
            numbers = type(value) is Tensor and not op.family and value.dtype in DTYPES[op.dtype]
            alike = numbers and value.ndim == NDIM[op.shape_name] and op.folded is not op.recorded
            if alike and op.recorded:
                stacks.setdefault((op.axis, value.dtype, value.is_cpu), []).append((position, op))
            elif alike and op.axis is Axis.TOKEN and value.is_cpu:
                self._tokens.append((position, op, value.dtype))
            else:
                self._single.append((position, op))
        self._stacks = [_stack(items, values) for items in stacks.values()]
        alone = len(self._stacks) == 1 and not self._single and not self._tokens and self._stacks[0].on_host
        self.alone = self._stacks[0] if alone else None

    def read(self, values: Sequence[Any]) -> Observation | None:
        """Return the values of a call; None if the call must be read value by value."""
        call = self._read_single(values) if self._single else Observation(self.phase, self.names, self.labels)
        if call is None or (self._tokens and not self._take_tokens(call, values)):
            return None
        for stack in self._stacks:
            data = stack.copy(values)
            if data is None:
                return None
            if stack.counted is not None:
                count = data.shape[-1]
                if call.counts.setdefault(stack.counted, count) != count:
                    return None
            if stack.on_host:
                call.copies.append((stack.columns, data))
            elif isinstance(data, Tensor):
                call.put(stack.columns.pack_key[0], stack.columns.keys, data)
        return call

    def _read_single(self, values: Sequence[Any]) -> Observation | None:
        call = ReadObservation(self.phase, self.names)
        try:
            for position, op in self._single:
                call.add(op, values[position])
        except InputError:  # reading value by value raises it again
            return None
        call.labels = {**self.labels}
        return call

    def _take_tokens(self, call: Observation, values: Sequence[Any]) -> bool:
        """Take the values that folds read; return False if they are not like those of the first call."""
        inputs, tokens = dict(call.inputs), call.tokens
        for position, op, dtype in self._tokens:
            value = values[position]
            if not plain(value) or value.dtype is not dtype or not value.is_cpu or value.requires_grad:
                return False
            if tokens is None:
                if value.ndim != NDIM[op.shape_name]:
                    return False
                tokens = call.tokens = Tokens(value.shape, op.source, value.device)
                if call.counts.setdefault(op.counted, len(value)) != len(value):
                    return False
            elif value.shape != tokens.shape:
                return False
            inputs[op.name] = value
        call.inputs = inputs
        return True


def _stack(items: Chosen, values: Sequence[Any]) -> Stack:
    first = values[items[0][0]]
    alone = len(items) == 1 and first.is_cpu and first.dtype not in HALF and not first.requires_grad
    return (Column if alone else Stack)(items, first)


class Stack:
    """Columns of one axis and dtype; their number of rows is the batch's count of the axis ``counted``."""

    def __init__(self, items: Chosen, first: Tensor) -> None:
        places, ops = zip(*items, strict=True)
        op: SignalOp = ops[0]
        self._ndim = NDIM[op.shape_name]
        self._kinds = [Tensor] * len(ops), [first.dtype] * len(ops)
        self._half = first.dtype in HALF
        self.on_host = first.is_cpu
        self._take = itemgetter(*places) if len(ops) > 1 else itemgetter(slice(places[0], places[0] + 1))
        self.counted = op.counted if self._ndim else None
        host = torch.float32 if self._half else first.dtype
        self.columns = Columns((op.axis, host, -1), [one.key for one in ops])

    def copy(self, values: Sequence[Any]) -> Tensor | Array | None:
        """Return the stacked columns; None if they are not like those of the first call."""
        columns, (types, dtypes) = self._take(values), self._kinds
        if [*map(type, columns)] != types or [*map(_dtype, columns)] != dtypes:
            return None
        try:
            data = torch.stack(columns)
        except (RuntimeError, TypeError):  # different shapes, devices or layouts
            return None
        if data.ndim != self._ndim + 1 or not plain(data):
            return None
        if data.requires_grad:
            data = data.detach()
        if data.is_cpu is not self.on_host or data.is_meta:
            return None
        return data.float() if self._half and self.on_host else data


class Column(Stack):
    """A single column on the host; numpy copies it in half the time that torch takes."""

    def __init__(self, items: Chosen, first: Tensor) -> None:
        super().__init__(items, first)
        self._position, self._dtype = items[0][0], first.dtype

    def copy(self, values: Sequence[Any]) -> Array | None:
        value = values[self._position]
        if not plain(value) or value.dtype is not self._dtype:
            return None
        try:
            data: Array = value.numpy().copy()
        except (RuntimeError, TypeError):  # on a device, with gradients, or in another layout
            return None
        return data if data.ndim == self._ndim else None


class LearnedCalls(NamedTuple):
    """A learned call of ``observe``: by phase, the values that metrics read, and the columns that are only kept.

    ``stack`` is set if the call consists of one stack of columns on the host.
    """

    read: Sequence[LearnedCall]
    kept: Sequence[LearnedCall]
    stack: Stack | None


def of_phase(chosen: Chosen, phase: str) -> Chosen:
    """The chosen signals of one phase."""
    return [(position, op) for position, op in chosen if op.phase == phase]


def observations(learned: Sequence[LearnedCall], values: Sequence[Any]) -> list[Observation] | None:
    """Return the values of a call by phase, read as learned; None if the call is not like the learned one."""
    calls: list[Observation] = []
    for learned_call in learned:
        call = learned_call.read(values)
        if call is None:
            return None
        calls.append(call)
    return calls
