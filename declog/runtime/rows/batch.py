"""The batch that is open: the training thread's side of ``observe``, kept short.

What a call gave is copied at once, and tokens are folded (``folds.py``): nothing of the trainer's is kept. Nothing is
computed from rows, nothing is copied to the host. Imports torch and the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from declog.engine import groups
from declog.engine.blocks import Key
from declog.errors import InputError, MissingSignalError
from declog.language.dtypes import Axis
from declog.plans.ops import Grouping, PhaseOp
from declog.runtime.rows.calls import LearnedCall, Stack
from declog.runtime.rows.folds import Folds
from declog.runtime.rows.observation import NOTHING, Array, Copy, Numbers, Observation, PackKey, Texts
from declog.runtime.values.packs import Pack
from declog.runtime.values.streams import NO_STREAMS, Streams

Tensor = torch.Tensor


class Batch:
    """The signals of one phase: those since its last batch closed, and when it has closed, the rows of its step.

    A call is taken in one statement, at the end: whatever interrupts it, a batch has all of it or none. Copies and
    calls stay as they came until the worker packs them. ``order``: among the batches of this rank, 0 for one that is
    not open yet. ``size`` is how many completions it has, where somebody says so beforehand.
    """

    names: Set[str] = frozenset()  # the signals that came
    copies: Sequence[Copy] = ()  # of columns, which are not in packs yet
    calls: Sequence[Observation] = ()  # that gave more than columns
    extras: Mapping[str, list[Any] | Tensor] = MappingProxyType({})
    loose = False  # nobody declared what these columns are: where no signal has rows, they are the batch's
    order = 0
    # of one that has closed
    closed = False
    step = -1  # until it is in its step
    number = -1  # among the batches of its phase in the step
    rows = 0
    elapsed = 0.0
    partial = False  # others of its step observe, too, so that it need not have all signals
    bytes = 0  # about how many all of it takes
    ready: Mapping[torch.device, Any] | None = None  # where there is CUDA, what all waits for
    misfits: Sequence[InputError] = ()  # columns that were left out
    packs: Sequence[Pack] = ()
    numbers: Numbers = NOTHING
    texts: Texts = NOTHING

    def __init__(self, phase: PhaseOp, folds: Folds, *, size: int | None = None) -> None:
        self.phase = phase
        self.size = size
        self.counts: Mapping[str, int] = {} if size is None else {"completions": size}  # how many of what
        self.labels: Mapping[str, str] = {} if size is None else {"completions": "rows"}  # which signal said so first
        self.folds = folds
        self.unfolded = folds.nothing
        self._streams = NO_STREAMS

    def copied(self) -> Batch:
        """The same batch, to be changed: what it holds is replaced there, never changed."""
        batch = object.__new__(Batch)
        batch.__dict__ = self.__dict__.copy()
        return batch

    def with_columns(self, packs: Sequence[Pack], texts: Texts, numbers: Numbers) -> Batch:
        """The same batch with other columns."""
        batch = self.copied()
        batch.packs, batch.texts, batch.numbers = packs, texts, numbers
        return batch

    @property
    def completions(self) -> int | None:
        """How many completions the batch has; None where nothing said so yet."""
        return self.counts.get("completions")

    def again(self, call: Observation) -> Set[str]:
        """The signals of a call that the batch has already; of a family those of which a member comes again."""
        names, members = self.names & call.names, call.members
        return {
            name for name in names
            if name not in members
            or any(not members[name].isdisjoint(earlier.members.get(name, ())) for earlier in self.calls)
        }  # fmt: skip

    def take(self, call: Observation) -> None:
        """Copy what a call gave, and fold what can be folded. Raises ``InputError`` where it is of other rows."""
        counts, labels, names = self.counts, self.labels, self.names | call.names
        copies, calls, unfolded, folded = self.copies, self.calls, self.unfolded, None
        if not call.counts.items() <= counts.items():
            for what, count in call.counts.items():
                if counts.get(what, count) != count:
                    raise call.uneven(what, (counts[what], labels[what]), (count, call.labels[what]))
            counts, labels = {**counts, **call.counts}, {**call.labels, **labels}
        if call.inputs:
            unfolded, folded = self.folds.after(unfolded, call, names, self._streams)
            call.inputs = {}
        if call.columns:
            call.copy()
        if call.devices:
            self._streams = self._streams.noted(call.devices)
        for part in (call,) if folded is None else (call, folded):
            if part.copies:
                copies = [*copies, *part.copies]
            if part.numbers or part.texts or part.members:
                calls = [*calls, part]
        # no interrupt comes within such a statement
        self.names, self.counts, self.labels, self.copies, self.calls, self.unfolded = (
            names, counts, labels, copies, calls, unfolded
        )  # fmt: skip

    def take_stack(self, call: LearnedCall, stack: Stack, data: Tensor | Array) -> bool:
        """Take a call of one stack of columns on the host, as ``take`` would; false where it is of other rows.

        It is the most frequent call: eight of one column in a step take 1.4 times as long without this.
        """
        counts, labels, what = self.counts, self.labels, stack.counted
        if what is not None:
            count = data.shape[-1]
            if what not in counts:
                counts, labels = {**counts, what: count}, {**call.labels, **labels} if labels else call.labels
            elif counts[what] != count:
                return False
        copies, names = [*self.copies, (stack.columns, data)], self.names | call.names if self.names else call.names
        self.names, self.counts, self.labels, self.copies = names, counts, labels, copies
        return True

    def add_extra(self, column: str, values: list[Any] | Tensor) -> None:
        """Keep a column of log_extra, which is a copy already."""
        if (rows := self.completions) not in (None, len(values)):
            signal = self.labels["completions"]
            raise InputError.of("DL509.values", column=column, count=len(values), rows=rows, signal=signal)
        if isinstance(values, Tensor) and values.is_cuda:
            self._streams = self._streams.noted([values.device])
        self.extras = {**self.extras, column: values}

    def keep(self, call: Observation, streams: Streams) -> bool:
        """Keep columns that no metric reads, which are copies; false where they are not of the batch's completions."""
        if self.completions is None or call.counts != {"completions": self.completions}:
            return False
        self.copies = [*self.copies, *call.copies]
        if call.texts:
            self.calls = [*self.calls, call]
        self._streams = Streams({**self._streams, **streams})
        return True

    def close(
        self, elapsed: float, *, first: Collection[str] | None = None, grouping: Grouping | None, partial: bool = False
    ) -> None:
        """Fold what has waited for signals that never came; its step and number are not known yet.

        With ``first``, what of a phase's first batch came elsewhere, it raises where a required signal never came.
        Columns of log_extra that are not of its rows are ``misfits``. Called again it changes nothing.
        """
        if self.closed:
            return
        names, counts, unfolded = self.names, self.counts, self.unfolded
        if first is not None and names:
            self._complete(first)
        if self.loose and "completions" not in counts and "groups" not in counts:
            column, values = next(iter(self.extras.items()))
            counts, names = {**counts, "completions": len(values)}, names | {column}
        rows = _rows(counts, grouping)
        if grouping is not None and grouping.size is not None and grouping.split == "none":
            self._grouped(rows, grouping, grouping.size, first is not None)
        if self._streams:
            tensors = [data for _, data in self.copies if isinstance(data, Tensor)]
            self._streams.join([*unfolded.kept.values(), *tensors])
        copies, calls, misfits = self.copies, self.calls, self.misfits
        if unfolded.folds and (folded := self.folds.at_last(unfolded, names)) is not None:
            copies, calls = [*copies, *folded.copies], [*calls, folded]
        if self.extras:
            columns, misfits = self._columns(rows, names, counts)
            calls = [*calls, columns]
        ready = self._streams.ready() if self._streams else None
        size = _bytes_besides(calls) if calls else 0
        for _, data in copies:
            size += data.nbytes
        self.partial, self.elapsed, self.bytes = partial, elapsed, size
        # no interrupt comes within such a statement
        self.names, self.copies, self.calls, self.rows, self.ready, self.misfits, self.closed = (
            names, copies, calls, rows, ready, misfits, True
        )  # fmt: skip
        self.unfolded, self._streams, self.extras = self.folds.nothing, NO_STREAMS, NOTHING

    def _columns(
        self, rows: int, names: Set[str], counts: Mapping[str, int]
    ) -> tuple[Observation, Sequence[InputError]]:
        """Columns of log_extra, of as many rows as the batch has, as a call that gave them; the others are errors."""
        misfits = []
        texts: dict[Key, tuple[Axis, list[Any] | Pack]] = {}
        for column, values in self.extras.items():
            if not names or not counts:
                misfits.append(InputError.of("DL509.no_rows", column=column, phase=self.phase.name))
            elif len(values) != rows:
                misfits.append(InputError.of("DL509.rows", column=column, count=len(values), rows=rows))
            else:
                key: Key = (f"extra:{column}", None)
                kept = values if isinstance(values, list) else Pack(Axis.COMPLETION, [key], [values])
                texts[key] = (Axis.COMPLETION, kept)
        call = Observation(self.phase, frozenset())
        call.texts = texts
        return call, misfits

    def _complete(self, elsewhere: Collection[str]) -> None:
        here = {*self.names, *elsewhere}
        missing = [op for op in self.phase.signals if op.required and op.name not in here]
        if missing:
            shown = ", ".join(f"`{op.source}`" for op in missing)
            error = MissingSignalError.of(
                "DL502.first_batch", names=shown, were="was" if len(missing) == 1 else "were", phase=self.phase.name,
                source=missing[0].source,
            )  # fmt: skip
            error.signals = tuple(op.name for op in missing)
            raise error

    def _grouped(self, rows: int, grouping: Grouping, size: int, first: bool) -> None:
        """Raise where values per group, or the ids of a first batch, are not of groups of the size."""
        count = self.counts.get("groups")
        if count is not None and count * size != rows:
            name = self.labels["groups"]
            raise InputError.of("DL505.groups", name=name, count=count, phase=self.phase.name, rows=rows, size=size)
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
        for call in self.calls:
            if key in call.texts:
                column = call.texts[key][1]
                return column if isinstance(column, list) else None if column.device else column.columns()[0].tolist()
        for (_, _, keys), data in self.copies:
            if key in keys and not (isinstance(data, Tensor) and data.is_cuda):
                values: list[Any] = data.reshape(len(keys), -1)[list(keys).index(key)].tolist()
                return values
        return None

    @property
    def members(self) -> frozenset[tuple[str, str]]:
        """The members of families that came; until it is packed."""
        families = [family for call in self.calls for family in call.members.items()]
        return frozenset((name, member) for name, members in families for member in members)

    def pack(self) -> None:
        """Lay what each call gave to what is like it. Called by the worker, but for what is on a GPU."""
        packs: dict[PackKey, Pack] = {}
        for call in self.calls:
            self.numbers = {**self.numbers, **call.numbers}
            self.texts = {**self.texts, **call.texts}
        for (pack_key, axis, keys), data in self.copies:
            if isinstance(data, Tensor) and data.is_cpu:
                data = data.numpy(force=True)
            pack = packs.get(pack_key)
            if pack is None:
                packs[pack_key] = Pack(axis, list(keys), [data])
            else:
                pack.keys.extend(keys)
                pack.parts.append(data)
        self.packs, self.copies, self.calls = [*self.packs, *packs.values()], (), ()
        if self.ready:
            for pack in self.tensors():
                pack.ready = None if pack.device is None else self.ready.get(pack.device)

    def tensors(self) -> Iterator[Pack]:
        """All that is tensors, in packs."""
        yield from self.packs
        for _, values in self.texts.values():
            if isinstance(values, Pack):
                yield values


def _bytes_besides(calls: Sequence[Observation]) -> int:
    """About how many bytes calls take besides columns: texts by their characters, objects by their number."""
    size = 0
    for _, items in chain.from_iterable([call.texts.values() for call in calls]):
        if isinstance(items, Pack):
            size += items.bytes
        else:
            size += 8 * len(items) + sum([len(item) for item in items if type(item) is str])
    return size


def _rows(counts: Mapping[str, int], grouping: Grouping | None) -> int:
    """How many completions a batch has; where only groups were observed, their size says it."""
    if "completions" in counts:
        return counts["completions"]
    return 0 if grouping is None else counts.get("groups", 0) * (grouping.size or 0)
