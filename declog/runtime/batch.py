"""The batch that is open: the training thread's side of ``observe``, kept short.

What a call gave is copied at once, and tokens are folded (``folds.py``): nothing of the trainer's is kept. Nothing is
computed from rows, nothing is copied to the host. Imports torch and the plan.
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
from declog.errors import InputError, MissingSignalError
from declog.language.dtypes import Axis
from declog.language.functions import DEFAULT, Functions
from declog.plans.ops import Grouping, PhaseOp
from declog.runtime import token_fold
from declog.runtime.calls import Stack
from declog.runtime.folds import Folds
from declog.runtime.kept import PREFIX as KEPT
from declog.runtime.observation import Array, Columns, Copy, Counts, Observation, Place, Plain
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

    A call is taken in one statement, at the end: whatever interrupts it, a batch has all of it or none. ``order``:
    among the batches of this rank, 0 for one that is not open yet. ``size`` is how many completions it has, where
    somebody says so beforehand.
    """

    order = 0
    loose = False  # nobody declared what these columns are: where no signal has rows, they are the batch's
    record: BatchRecord | None = None  # what it became when it closed
    names: frozenset[str] = frozenset()
    members: frozenset[tuple[str, str]] = frozenset()  # of families
    extras: Mapping[str, list[Any] | Tensor] = MappingProxyType({})
    kept: Mapping[str, list[Any]] = MappingProxyType({})  # texts that no metric reads
    misfits: Sequence[InputError] = ()  # columns that were left out when it closed
    _copies: Sequence[Copy] = ()
    _plain: Sequence[Plain] = ()  # numbers and texts of calls

    def __init__(self, phase: PhaseOp, folds: Folds, *, size: int | None = None) -> None:
        self.phase = phase
        self.size = size
        self.counts: Counts = {} if size is None else {"completions": (size, "rows")}
        self.folds = folds
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

    def again(self, names: Set[str], members: Mapping[str, Set[str]]) -> Set[str]:
        """The signals of a call that the batch has already; of a family those of which a member comes again."""
        return {
            name for name in self.names & names
            if name not in members or any((name, member) in self.members for member in members[name])
        }  # fmt: skip

    def take(self, given: Observation, functions: Functions = DEFAULT) -> None:
        """Copy what a call gave, and fold what can be folded. Raises ``InputError`` where it is of other rows."""
        counts, copies, plain, members, folds = self.counts, self._copies, self._plain, self.members, self.folds
        names = self.names | given.names
        for what, count in given.counts.items():
            known = counts.get(what)
            if known is None:
                counts = {**counts, what: count}
            elif known[0] != count[0]:
                raise given.uneven(what, known, count)
        if given.inputs:
            folds = folds.after(given, names, self._streams, functions)
        if given.columns:
            given.copy()
        if given.copies:
            copies = [*copies, *given.copies]
        if given.numbers or given.texts:
            plain = [*plain, (given.numbers, given.texts, given.timed)]
        if given.members:
            members |= {(name, member) for name, some in given.members.items() for member in some}
        if given.devices:
            self._streams.made(given.devices)
        # no interrupt comes within such a statement
        self.names, self.counts, self._copies, self._plain, self.members, self.folds = (
            names, counts, copies, plain, members, folds
        )  # fmt: skip

    def take_stack(self, names: frozenset[str], stack: Stack, data: Tensor | Array) -> bool:
        """Take a call of one stack of columns on the host, as ``take`` would; false where it is of other rows.

        It is the most frequent call: eight of one column in a step take 1.4 times as long without this.
        """
        counts, what = self.counts, stack.counted
        if what is not None:
            count, known = data.shape[-1], counts.get(what)
            if known is None:
                counts = {**counts, what: (count, stack.label)}
            elif known[0] != count:
                return False
        copies, names = [*self._copies, (stack.columns, data)], self.names | names
        self.names, self.counts, self._copies = names, counts, copies
        return True

    def add_extra(self, column: str, values: list[Any] | Tensor) -> None:
        """Keep a column of log_extra, which is a copy already."""
        if self.rows is not None and len(values) != self.rows[0]:
            raise InputError.of(
                "DL509.values", column=column, count=len(values), rows=self.rows[0], signal=self.rows[1]
            )
        if isinstance(values, Tensor) and values.is_cuda:
            self._streams.made([values.device])
        self.extras = {**self.extras, column: values}

    def keep(self, name: str, column: list[Any] | Tensor, streams: Streams) -> bool:
        """Keep a column that no metric reads; false where it is not of the batch's completions."""
        if self.rows is None or len(column) != self.rows[0]:
            return False
        key = f"{KEPT}{name}"
        if isinstance(column, list):
            self.kept = {**self.kept, key: column}
        else:
            place = (_ROWS, column.dtype, column.get_device())
            self._copies = [*self._copies, (Columns(place, Axis.COMPLETION, ((key, None),)), column)]
            self._streams.update(streams)
        return True

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
        if self.record is not None:
            return self.record
        names, counts, folds = self.names, self.counts, self.folds
        if first is not None and names:
            self._complete(first)
        if self.loose and "completions" not in counts and "groups" not in counts:
            column, values = next(iter(self.extras.items()))
            counts, names = {**counts, "completions": (len(values), column)}, names | {column}
        rows = _rows(counts, grouping)
        if grouping is not None and grouping.size is not None and grouping.split == "none":
            self._grouped(rows, grouping, grouping.size, first is not None)
        if self._streams:
            self._streams.join([*folds.kept.values(), *(data for _, data in self._copies if isinstance(data, Tensor))])
        if folds.waiting:
            folds = folds.at_last(names, functions)
        record = BatchRecord(-1, -1, rows, elapsed, self.order, [], {}, {}, copies=self._copies, names=names)
        for numbers, texts, timed in self._plain:
            record.numbers |= numbers
            record.texts |= texts
            record.timed |= timed
        for folded in folds.results:
            _keep_folded(record, folded)
        record.texts |= {(key, None): (Axis.COMPLETION, texts) for key, texts in self.kept.items()}
        misfits = self._keep_extras(record, names, counts) if self.extras else ()
        record.ready = self._streams.whole() if self._streams else None
        self.names, self.misfits, self.folds, self.record = names, misfits, folds, record
        return record

    def _keep_extras(self, record: BatchRecord, names: Set[str], counts: Counts) -> Sequence[InputError]:
        """Columns of log_extra, of as many rows as the batch has; the others are errors."""
        misfits = []
        for column, values in self.extras.items():
            if not names or not counts:
                misfits.append(InputError.of("DL509.no_rows", column=column, phase=self.phase.name))
            elif len(values) != record.rows:
                misfits.append(InputError.of("DL509.rows", column=column, count=len(values), rows=record.rows))
            else:
                key = (f"extra:{column}", None)
                kept = values if isinstance(values, list) else Pack(Axis.COMPLETION, [key], [values])
                record.texts[key] = (Axis.COMPLETION, kept)
        return misfits

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

    def _grouped(self, rows: int, grouping: Grouping, size: int, first: bool) -> None:
        """Raise where values per group, or the ids of a first batch, are not of groups of the size."""
        known = self.counts.get("groups")
        if known is not None and known[0] * size != rows:
            raise InputError.of(
                "DL505.groups", name=known[1], count=known[0], phase=self.phase.name, rows=rows, size=size
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
        for _, texts, _ in self._plain:
            if key in texts:
                given = texts[key][1]
                return given if isinstance(given, list) else None if given.device else given.columns()[0].tolist()
        for (_, _, keys), data in self._copies:
            if key in keys and not (isinstance(data, Tensor) and data.is_cuda):
                values: list[Any] = data.reshape(len(keys), -1)[list(keys).index(key)].tolist()
                return values
        return None


def _rows(counts: Counts, grouping: Grouping | None) -> int:
    """How many completions a batch has; where only groups were observed, their size says it."""
    if "completions" in counts:
        return counts["completions"][0]
    return 0 if grouping is None or "groups" not in counts else counts["groups"][0] * (grouping.size or 0)


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
