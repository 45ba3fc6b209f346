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
from declog.runtime.observation import Columns, Observation, ReadObservation
from declog.runtime.tensors import HALF

Tensor = torch.Tensor
Chosen = Sequence[tuple[int, SignalOp]]  # the place of a value in the call, and the signal that it is


class Known:
    """What a call gives to one phase: stacks, and what is read for itself; learned from what a first call came to."""

    def __init__(self, first: Observation, chosen: Chosen, values: Sequence[Any]) -> None:
        self.phase = first.phase
        self.name = first.phase.name
        self.names = frozenset(first.names)
        self._labels = {what: label for what, (_, label) in first.counts.items()}
        stacks: dict[tuple[str, torch.dtype], list[tuple[int, SignalOp]]] = {}
        self._others: list[tuple[int, SignalOp]] = []
        for place, op in chosen:
            value = values[place]
            plain = type(value) is Tensor and not op.family and not op.folded and op.recorded
            if plain and value.dtype in DTYPES[op.dtype] and value.ndim == NDIM[op.shape_name]:
                stacks.setdefault((op.shape_name, value.dtype), []).append((place, op))
            else:
                self._others.append((place, op))
        self._stacks = [Stack(items, dtype) for (_, dtype), items in stacks.items()]
        # the one stack of a call that has nothing else, on the host
        alone = len(self._stacks) == 1 and not self._others and all(values[place].is_cpu for place, _ in chosen)
        self.alone = self._stacks[0] if alone else None

    def given(self, values: Sequence[Any]) -> Observation | None:
        """What a call gives; None where it must be read value by value."""
        if not self._others:
            given = Observation(self.phase, self.names)
        elif (read := self._read(values)) is None:
            return None
        else:
            given = read
        for stack in self._stacks:
            data = stack.copy(values)
            if data is None:
                return None
            if stack.counted is not None:
                known = given.counts.setdefault(stack.counted, (data.shape[-1], stack.label))
                if known[0] != data.shape[-1]:
                    return None
            if data.is_cpu:
                given.copies.append((stack.columns, data))
            else:
                given.put(stack.columns, data)
        return given

    def _read(self, values: Sequence[Any]) -> Observation | None:
        given = ReadObservation(self.phase, self.names)
        try:
            for place, op in self._others:
                given.add(op, values[place])
        except InputError:  # it is said where all values are read
            return None
        given.counts = {what: (count, self._labels.get(what, label)) for what, (count, label) in given.counts.items()}
        return given


class Stack:
    """Columns of one axis and dtype; ``counted`` is what their number of rows counts, ``label`` one's name."""

    def __init__(self, items: Chosen, dtype: torch.dtype) -> None:
        places, ops = zip(*items, strict=True)
        op: SignalOp = ops[0]
        ndim = NDIM[op.shape_name]
        # a column alone is copied by what costs least
        self._lay: Callable[[Any], Tensor] = torch.cat if len(ops) == 1 and ndim else torch.stack
        self._take = itemgetter(*places) if len(ops) > 1 else itemgetter(slice(places[0], places[0] + 1))
        self._ndim = ndim + (self._lay is torch.stack)
        self._dtype = dtype
        self._half = dtype in HALF
        self.counted = op.counted if ndim else None
        self.label = op.source
        self.width = len(ops)
        host = torch.float32 if self._half else dtype
        self.columns = Columns((op.shape_name, host, -1), op.axis, [one.key for one in ops])

    def copy(self, values: Sequence[Any]) -> Tensor | None:
        """The columns one above the other; None where they are not those of the first call."""
        columns, dtype = self._take(values), self._dtype
        for column in columns:
            if type(column) is not Tensor or column.dtype is not dtype:
                return None
        try:
            data = self._lay(columns)
        except (RuntimeError, TypeError):  # of other shapes, devices or layouts
            return None
        if data.ndim != self._ndim or data.layout is not torch.strided or data.is_nested or type(data) is not Tensor:
            return None
        if data.requires_grad:
            data = data.detach()
        if data.is_cpu:
            return data.float() if self._half else data
        return None if data.is_meta else data
