"""The batch that is open: the training thread's side of ``observe``, kept short.

What a call gave is copied at once. Tokens are folded as soon as all that folds read in the batch before has come; until
then copies wait: nothing of the trainer's is kept. Nothing is computed from rows, nothing is copied to the host.
Imports torch and the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from declog.engine import groups
from declog.engine.blocks import Key
from declog.errors import InputError, MissingSignalError, RuntimeFailure, error_text
from declog.language.dtypes import Axis
from declog.language.functions import DEFAULT, Functions
from declog.plans.ops import FoldOp, Grouping, PhaseOp
from declog.runtime import token_fold
from declog.runtime.calls import Stack
from declog.runtime.observation import (
    Array,
    Columns,
    Copy,
    Counts,
    Lists,
    Observation,
    Place,
    Tokens,
    of_other_lists,
    of_other_tokens,
)  # fmt: skip
from declog.runtime.packs import Pack
from declog.runtime.streams import Streams
from declog.runtime.tensors import HALF
from declog.runtime.timing import Timed

Tensor = torch.Tensor
_ROWS = Axis.COMPLETION.label


@dataclass(slots=True)
class BatchRecord:
    """One closed batch of one phase."""

    step: int
    batch: int
    rows: int
    elapsed: float
    order: int
    packs: list[Pack]
    numbers: dict[Key, float | int | Timed]
    texts: dict[Key, tuple[Axis, list[Any] | Pack]]  # a pack where a tensor was given
    sketches: list[Pack] = field(default_factory=list)  # histograms of tokens, one column each
    timed: bool = False  # whether a number is a duration that is not known yet
    copies: Sequence[Copy] = ()  # which are not in packs yet
    ready: Mapping[torch.device, Any] | None = None  # where there is CUDA, what all waits for
    names: Set[str] = frozenset()  # the signals that came

    @property
    def bytes(self) -> int:
        """About how many bytes it takes: texts by their characters, other objects by their number."""
        size = sum([data.nbytes for _, data in self.copies])
        if self.packs or self.sketches or self.texts:
            size += sum(pack.bytes for pack in self.tensors())
            lists = (given for _, given in self.texts.values() if isinstance(given, list))
            size += sum(8 * len(items) + sum([len(item) for item in items if type(item) is str]) for items in lists)
        return size

    def pack(self) -> None:
        """Lay what each call copied to what is like it. Called by the worker, but for what is on a GPU."""
        packs: dict[Place, Pack] = {}
        for (place, axis, keys), data in self.copies:
            if isinstance(data, Tensor) and data.is_cpu:
                data = data.numpy(force=True)
            pack = packs.get(place)
            if pack is None:
                packs[place] = Pack(axis, list(keys), [data])
            else:
                pack.keys.extend(keys)
                pack.parts.append(data)
        self.packs, self.copies = [*self.packs, *packs.values()], ()
        if self.ready:
            for pack in self.tensors():
                pack.ready = None if pack.device is None else self.ready.get(pack.device)

    def tensors(self) -> Iterator[Pack]:
        """All that is tensors, in packs."""
        yield from self.packs
        yield from self.sketches
        for _, given in self.texts.values():
            if isinstance(given, Pack):
                yield given

    def read_timers(self) -> None:
        """Wait for the ends of what was timed. Called by the worker."""
        self.numbers = {
            key: number.seconds() if isinstance(number, Timed) else number for key, number in self.numbers.items()
        }
        self.timed = False


class OpenBatch:
    """The signals of one phase since its last batch closed.

    A call that has columns only is taken in one statement; any other one by a copy, which then stands in the batch's
    place: whatever interrupts a call, a batch has all of it or none. ``expected`` names what folds should wait for, so
    that they run once. ``order``: among the batches of this rank, 0 for one that is not open yet. ``size`` is how many
    completions it has, where somebody says so beforehand.
    """

    order = 0
    loose = False  # nobody declared what these columns are: where no signal has rows, they are the batch's
    record: BatchRecord | None = None  # what it became when it closed
    names: frozenset[str] = frozenset()
    members: frozenset[tuple[str, str]] = frozenset()  # of families
    extras: Mapping[str, list[Any] | Tensor] = MappingProxyType({})
    misfits: Sequence[InputError] = ()  # columns that were left out when it closed
    failures: Sequence[RuntimeFailure] = ()  # what could not be computed
    copies: Sequence[Copy] = ()
    _plain: Sequence[Observation] = ()  # numbers and texts of calls
    _folded: Sequence[token_fold.Folded] = ()
    _kept: Mapping[str, Tensor] = MappingProxyType({})  # copies of what the folds that wait will read
    _tokens: Tokens | None = None
    _lists: Lists | None = None

    def __init__(self, phase: PhaseOp, expected: frozenset[str] = frozenset(), *, size: int | None = None) -> None:
        self.phase = phase
        self.size = size
        self.counts: Counts = {} if size is None else {"completions": (size, "rows")}
        self._expected = expected
        self._waiting: Sequence[FoldOp] = phase.folds
        self._streams = Streams()

    def copied(self) -> OpenBatch:
        """The same batch, to be changed: what it holds is replaced there, never changed."""
        batch = object.__new__(OpenBatch)
        batch.__dict__ = self.__dict__.copy()
        return batch

    @property
    def rows(self) -> tuple[int, str] | None:
        """How many completions the batch has, and which signal said so first."""
        return self.counts.get("completions")

    @property
    def groups(self) -> tuple[int, str] | None:
        """How many groups the batch has, and which signal said so first."""
        return self.counts.get("groups")

    def again(self, names: Set[str], members: Mapping[str, Set[str]]) -> Set[str]:
        """The signals of a call that the batch has already; of a family those of which a member comes again."""
        return {
            name for name in self.names & names
            if name not in members or any((name, member) in self.members for member in members[name])
        }  # fmt: skip

    def add(self, names: frozenset[str], stack: Stack, data: Tensor | Array) -> bool:
        """Take copies of columns, all at one moment; false where they are not of the batch's rows."""
        counts, what = self.counts, stack.counted
        if what is not None:
            count, known = data.shape[-1], counts.get(what)
            if known is None:
                counts = {**counts, what: (count, stack.label)}
            elif known[0] != count:
                return False
        copies = [*self.copies, (stack.columns, data)]
        names |= self.names
        self.names, self.counts, self.copies = names, counts, copies  # no interrupt comes within such a statement
        return True

    def check(self, given: Observation) -> None:
        """Raise ``InputError`` where what a call gave is of other rows than what came before."""
        for what, count in given.counts.items():
            known = self.counts.get(what)
            if known is not None and known[0] != count[0]:
                raise given.uneven(what, known, count)
        if not given.inputs:
            return
        if given.tokens is not None and self._tokens is not None and given.tokens[0] != self._tokens[0]:
            raise of_other_tokens(self._tokens, given.tokens)
        if given.lists is not None and self._lists is not None and given.lists[0] != self._lists[0]:
            raise of_other_lists(self._lists, given.lists)
        if self.phase.lengths is not None:
            self._check_lengths(given, self.phase.lengths)

    def _check_lengths(self, given: Observation, name: str) -> None:
        lengths = given.inputs.get(name, self._kept.get(name))
        tokens = given.tokens or self._tokens
        if lengths is None or tokens is None or (name not in given.inputs and given.tokens is None):
            return
        if not lengths.is_cpu:
            return
        if len(odd := lengths[(lengths >= 0).logical_not()]):  # negative ones, and what is missing
            raise InputError.of("DL503.token_length", name=name, length=odd[0].item())
        if len(torch.nonzero(lengths.sum() - tokens[0][0])):
            raise InputError.of("DL503.token_count", name=tokens[1], count=tokens[0][0], lengths=int(lengths.sum()))

    def take(self, given: Observation, functions: Functions = DEFAULT) -> None:
        """Copy what a call gave, and fold what can be folded."""
        self.names |= given.names
        if given.members:
            self.members |= {(name, member) for name, members in given.members.items() for member in members}
        if given.counts:
            self.counts = {**given.counts, **self.counts}
        if type(given) is not Observation:
            given.copy()
        if given.numbers or given.texts:
            self._plain = [*self._plain, given.plain()]
        if given.copies:
            self.copies = [*self.copies, *given.copies]
        if given.inputs:
            self._tokens = self._tokens or given.tokens
            self._lists = self._lists or given.lists
            if self._waiting:
                self._streams.join(self._kept.values())
                self._fold({**self._kept, **given.inputs} if self._kept else given.inputs, functions)
        if given.devices:
            self._streams.made(given.devices)

    def add_extra(self, column: str, values: list[Any] | Tensor) -> None:
        """Keep a column of log_extra, which is a copy already."""
        if self.rows is not None and len(values) != self.rows[0]:
            raise InputError.of(
                "DL509.values", column=column, count=len(values), rows=self.rows[0], signal=self.rows[1]
            )
        if isinstance(values, Tensor) and values.is_cuda:
            self._streams.made([values.device])
        self.extras = {**self.extras, column: values}

    def close(
        self,
        elapsed: float,
        *,
        first: Collection[str] | None = None,
        grouping: Grouping | None,
        functions: Functions = DEFAULT,
    ) -> BatchRecord:
        """Fold what has waited for signals that never came, pack the columns; its step and number are not known yet.

        With ``first``, what of a phase's first batch came elsewhere, it raises where a required signal never came.
        Columns of log_extra that are not of its rows are ``misfits``. Called again it gives the same record.
        """
        if self.record is None:
            changes = self._waiting or self.extras
            batch = self.copied() if changes else self
            record = batch._closed(elapsed, first, grouping, functions)
            if changes:
                self.names, self.misfits, self.failures = batch.names, batch.misfits, batch.failures
            self.record = record
        return self.record

    def _closed(
        self, elapsed: float, first: Collection[str] | None, grouping: Grouping | None, functions: Functions
    ) -> BatchRecord:
        if first is not None and self.names:
            self._complete(first)
        if self.loose and self.rows is None and self.groups is None:
            column, values = next(iter(self.extras.items()))
            self.counts = {**self.counts, "completions": (len(values), column)}
            self.names |= {column}
        rows = self._rows(grouping)
        if grouping is not None and grouping.size is not None and grouping.split == "none":
            self._grouped(rows, grouping, grouping.size, first is not None)
        if self._streams:
            self._streams.join([*self._kept.values(), *(data for _, data in self.copies if isinstance(data, Tensor))])
        if self._waiting:
            self._fold(self._kept, functions, last=True)
        record = BatchRecord(-1, -1, rows, elapsed, self.order, [], {}, {}, copies=self.copies, names=self.names)
        for call in self._plain:
            record.numbers |= call.numbers
            record.texts |= call.texts
            record.timed |= call.timed
        for folded in self._folded:
            _keep_folded(record, folded)
        for column, values in self.extras.items() if self.extras else ():
            if misfit := self._misfit(column, len(values), rows):
                self.misfits = [*self.misfits, misfit]
                continue
            key = (f"extra:{column}", None)
            kept = values if isinstance(values, list) else Pack(Axis.COMPLETION, [key], [values])
            record.texts[key] = (Axis.COMPLETION, kept)
        record.ready = self._streams.whole() if self._streams else None
        return record

    def _misfit(self, column: str, count: int, rows: int) -> InputError | None:
        if not self.names or not self.counts:
            return InputError.of("DL509.no_rows", column=column, phase=self.phase.name)
        if count != rows:
            return InputError.of("DL509.rows", column=column, count=count, rows=rows)
        return None

    def _fold(self, inputs: Mapping[str, Tensor], functions: Functions, *, last: bool = False) -> None:
        """Fold what has all that it reads, or at the ``last`` what it gets; keep copies of what the others have."""
        lengths = self.phase.lengths
        placed = self._expected <= self.names and self._tokens is not None and (lengths is None or lengths in inputs)
        ready, waiting = self._waiting, list[FoldOp]()
        if not last and not (placed and self.phase.reads <= inputs.keys()):
            ready = []
            for op in self._waiting:
                (ready if placed and op.reads <= inputs.keys() else waiting).append(op)
        self._waiting, kept = waiting, self._kept
        if waiting:
            needed = {lengths, *(name for op in waiting for name in op.reads)}
            self._kept = {
                name: kept[name] if name in kept else value.clone() for name, value in inputs.items() if name in needed
            }
        elif kept:
            self._kept = {}
        if ready and (tokens := self._known_tokens(inputs)) is not None:
            shape, _, device = tokens
            for value in inputs.values():  # a mask on the host is copied to the values on a GPU, and not they to it
                if value.is_cuda:
                    device = value.device if device.type != "cuda" else device
                    break
            folded = token_fold.run(ready, inputs, shape, device, lengths, functions)
            self._folded = [*self._folded, folded]
            self.failures = [*self.failures, *(self._failure(what, error) for what, error in folded.failed.values())]

    def _failure(self, what: str, error: BaseException) -> RuntimeFailure:
        failure = RuntimeFailure.of("DL605.tokens", what=what, phase=self.phase.name, error=error_text(error))
        failure.__cause__ = error
        return failure

    def _known_tokens(self, inputs: Mapping[str, Tensor]) -> Tokens | None:
        """Which tokens there are: as many as came, or, where none came, as the lengths say without a wait."""
        name = self.phase.lengths
        if name is None or (self._tokens is not None and name in inputs):
            return self._tokens
        if name in inputs and inputs[name].is_cpu:
            return torch.Size([int(inputs[name].sum())]), name, inputs[name].device
        return None

    def _complete(self, elsewhere: Collection[str]) -> None:
        here = self.names.union(elsewhere)
        missing = [op for op in self.phase.signals if not op.optional and op.name not in here]
        if missing:
            shown = ", ".join(f"`{op.source}`" for op in missing)
            error = MissingSignalError.of(
                "DL502", names=shown, were="was" if len(missing) == 1 else "were", phase=self.phase.name,
                source=missing[0].source,
            )  # fmt: skip
            error.signals = tuple(op.name for op in missing)
            raise error

    def _rows(self, grouping: Grouping | None) -> int:
        """How many completions the batch has; where only groups were observed, their size says it."""
        if (rows := self.counts.get("completions")) is not None:
            return rows[0]
        return 0 if grouping is None or self.groups is None else self.groups[0] * (grouping.size or 0)

    def _grouped(self, rows: int, grouping: Grouping, size: int, first: bool) -> None:
        """Raise where values per group, or the ids of a first batch, are not of groups of the size."""
        if self.groups is not None and self.groups[0] * size != rows:
            raise InputError.of(
                "DL505.groups", name=self.groups[1], count=self.groups[0], phase=self.phase.name, rows=rows, size=size
            )
        source = next((name for name in grouping.of if name in self.names), None) if first else None
        ids = None if source is None else self._on_host(source)
        if ids is None or not rows or rows % size:
            return
        wrong = groups.contradiction(groups.digests(ids), np.arange(rows) // size, np.zeros(rows, np.int64), size)
        if wrong is not None:
            names = groups.names_of(grouping)
            raise InputError.of("DL507.size", size=size, names=names, seen=wrong.seen, fix=wrong.fix)

    def _on_host(self, name: str) -> list[Any] | None:
        """A column's values; None where they lie on a device, for which nobody waits here."""
        key: Key = (name, None)
        for call in self._plain:
            if key in call.texts:
                given = call.texts[key][1]
                return given if isinstance(given, list) else None if given.device else given.columns()[0].tolist()
        for (_, _, keys), data in self.copies:
            if key in keys and not (isinstance(data, Tensor) and data.is_cuda):
                values: list[Any] = data.reshape(len(keys), -1)[list(keys).index(key)].tolist()
                return values
        return None


def _keep_folded(record: BatchRecord, folded: token_fold.Folded) -> None:
    """Statistics are columns like others; histograms are of the whole batch."""
    copies = [*record.copies]
    for dtype, keys, sums in folded.sums:
        copies.append((Columns((_ROWS, dtype, -1), Axis.COMPLETION, keys), sums))
    for key, column in folded.columns.items():
        column = column.float() if column.dtype in HALF else column
        place = (_ROWS, column.dtype, column.get_device())
        copies.append((Columns(place, Axis.COMPLETION, (key,)), column))
    record.copies = copies
    for key, rows in folded.traces.items():
        record.texts[key] = (Axis.COMPLETION, Pack(Axis.COMPLETION, [key], [rows]))
    record.sketches += [Pack(Axis.STEP, [key], [counts]) for key, counts in folded.sketches.items()]
