"""What is known of a call of ``observe`` after the first one with the same names: which columns are stacked together.

A later call is checked as a whole, by what its stacks come to. One that is not like the first is read value by value,
as the first one was (``observation.py``): nothing is accepted or refused here that is not there. Imports torch and the
plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from declog.errors import InputError
from declog.plans.ops import SignalOp
from declog.runtime.inputs import DTYPES, NDIM
from declog.runtime.observation import Observation, Place, ReadObservation
from declog.runtime.tensors import HALF

Tensor = torch.Tensor
Chosen = Sequence[tuple[int, SignalOp]]  # the place of a value in the call, and the signal that it is


class Known:
    """What a call gives to one phase: stacks, and what is read for itself; learned from what a first call came to."""

    def __init__(self, first: Observation, chosen: Chosen, values: Sequence[Any]) -> None:
        self.phase = first.phase
        self.names = frozenset(first.names)
        self._said = {what: label for what, (_, label) in first.counts.items()}
        stacks: dict[tuple[str, torch.dtype], list[tuple[int, SignalOp]]] = {}
        self._others: list[tuple[int, SignalOp]] = []
        for place, op in chosen:
            value = values[place]
            plain = type(value) is Tensor and not op.family and not op.folded and op.recorded
            if plain and value.dtype in DTYPES[op.dtype] and value.ndim == NDIM[op.shape_name]:
                stacks.setdefault((op.shape_name, value.dtype), []).append((place, op))
            else:
                self._others.append((place, op))
        self._stacks = [_Stack(items, dtype) for (_, dtype), items in stacks.items()]

    def given(self, values: Sequence[Any]) -> Observation | None:
        """What a call gives; None where it must be read value by value."""
        if not self._others:
            given = Observation(self.phase, self.names)
        elif (read := self._read(values)) is None:
            return None
        else:
            given = read
        for stack in self._stacks:
            if not stack.add(given, values):
                return None
        return given

    def _read(self, values: Sequence[Any]) -> Observation | None:
        given = ReadObservation(self.phase, self.names)
        try:
            for place, op in self._others:
                given.add(op, values[place])
        except InputError:  # it is said where all values are read
            return None
        given.counts = {what: (count, self._said.get(what, label)) for what, (count, label) in given.counts.items()}
        return given


class _Stack:
    """Columns of one axis and dtype."""

    def __init__(self, items: Chosen, dtype: torch.dtype) -> None:
        places, ops = zip(*items, strict=True)
        op: SignalOp = ops[0]
        ndim = NDIM[op.shape_name]
        # a column alone is copied by what costs least
        self._lay: Callable[[tuple[Tensor, ...]], Tensor] = torch.cat if len(ops) == 1 and ndim else torch.stack
        self._take: Callable[[Sequence[Any]], tuple[Any, ...]] = (
            itemgetter(*places) if len(ops) > 1 else _alone(*places)
        )
        self._ndim = ndim + (self._lay is torch.stack)
        self._dtype = dtype
        self._counted = op.counted if ndim else None
        self._label = op.source
        self._place: Place = (op.shape_name, torch.float32 if dtype in HALF else dtype, -1)  # on the host
        self._axis = op.axis
        self._keys = [one.key for one in ops]

    def add(self, given: Observation, values: Sequence[Any]) -> bool:
        """Copy the columns; false where they are not those of the first call."""
        columns, dtype = self._take(values), self._dtype
        for column in columns:
            if type(column) is not Tensor or column.dtype is not dtype:
                return False
        try:
            data = self._lay(columns)
        except (RuntimeError, TypeError):  # of other shapes, devices or layouts
            return False
        shape = data.shape
        if len(shape) != self._ndim or data.layout is not torch.strided or data.is_nested or type(data) is not Tensor:
            return False
        if self._counted is not None:
            known = given.counts.get(self._counted)
            if known is None:
                given.counts[self._counted] = shape[-1], self._label
            elif known[0] != shape[-1]:
                return False
        if data.requires_grad:
            data = data.detach()
        if data.is_cpu:
            given.copies.append((self._place, self._axis, self._keys, data.float() if dtype in HALF else data))
            return True
        if not data.is_meta:
            given.put((self._place[0], dtype, data.get_device()), self._axis, self._keys, data)
        return not data.is_meta


def _alone(place: int) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    return lambda values: (values[place],)
