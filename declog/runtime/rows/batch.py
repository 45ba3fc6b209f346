"""A batch of signals: the training thread's side of ``observe``, kept short.

A batch copies the values of a call at once and folds tokens (``folds.py``), so that it keeps no tensor of the trainer.
It computes nothing else, and copies nothing to the host.
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
from declog.plans.ops import Grouping, PhaseOp, SignalOp
from declog.runtime.rows.calls import LearnedCall, Stack
from declog.runtime.rows.folds import Folds
from declog.runtime.rows.observation import NOTHING, Array, Copy, Numbers, Observation, PackKey, Texts
from declog.runtime.values.packs import Pack
from declog.runtime.values.streams import NO_STREAMS, Streams, capturing

Tensor = torch.Tensor


class Batch:
    """The signals of one phase since its last batch closed.

    The last statement of `take` adds a call, so that after an interrupt the batch has all of the call or nothing.
    Copies and calls stay as they are until the worker packs them. ``order`` is the batch's position among all batches
    of this rank, 0 before it is open. ``size`` is the announced number of completions; None: not announced.
    """

    names: Set[str] = frozenset()  # the observed signals
    copies: Sequence[Copy] = ()  # copied columns that are not in packs yet
    calls: Sequence[Observation] = ()  # calls that have more than columns
    extras: Mapping[str, list[Any] | Tensor] = MappingProxyType({})  # columns of log_extra
    astray: Set[str] = frozenset()  # signals that the batch's calls observed, but only other phases read
    shared: Set[str] = frozenset()  # the batch's signals that were observed in one call with another phase's signals
    held: Mapping[str, Tensor] = MappingProxyType({})  # its values per step, which the folds of later tokens may read
    folded_without: Set[str] = frozenset()  # values per step that the batch's tokens were folded without
    loose = False  # undeclared columns decide the number of rows if no signal does
    order = 0
    # set when the batch closes:
    closed = False
    step = -1  # set when it is added to its step
    number = -1  # its position among the batches of its phase in the step
    rows = 0
    elapsed = 0.0
    block: int | None = None  # the id of the explicit batch that it belongs to
    partial = False  # it need not have all signals, because other tasks also observe in its step
    bytes = 0  # its approximate size
    ready: Mapping[torch.device, Any] | None = None  # with CUDA: by device the event after which its data is complete
    misfits: Sequence[InputError] = ()  # errors for columns that were left out
    packs: Sequence[Pack] = ()
    numbers: Numbers = NOTHING
    texts: Texts = NOTHING

    def __init__(self, phase: PhaseOp, folds: Folds, *, size: int | None = None) -> None:
        self.phase = phase
        self.size = size
        self.counts: Mapping[str, int] = {} if size is None else {"completions": size}  # the number of entries by axis
        self.labels: Mapping[str, str] = {} if size is None else {"completions": "rows"}  # the signal that set each
        self.folds = folds
        self.unfolded = folds.nothing
        self._streams = NO_STREAMS

    def copied(self) -> Batch:
        """Return a copy that may be changed. The copy is shallow: attributes are replaced, never changed in place."""
        batch = object.__new__(Batch)
        batch.__dict__ = self.__dict__.copy()
        return batch

    def with_columns(self, packs: Sequence[Pack], texts: Texts, numbers: Numbers) -> Batch:
        """Return a copy with other columns."""
        batch = self.copied()
        batch.packs, batch.texts, batch.numbers = packs, texts, numbers
        return batch

    @property
    def completions(self) -> int | None:
        """The number of completions; None until a signal or the announced size sets it."""
        return self.counts.get("completions")

    @property
    def sources(self) -> set[str]:
        """The names under which its signals were observed."""
        return {op.source for op in (*self.phase.signals, *self.phase.unread) if op.name in self.names}

    @property
    def position(self) -> tuple[int, int]:
        """The batch's step, and its number in the step."""
        return self.step, self.number

    def again(self, call: Observation) -> Set[str]:
        """The signals of a call that the batch already has."""
        return repeated(call, self.names, self.calls)

    def take(self, call: Observation) -> None:
        """Copy a call's values, and fold its tokens.

        Raises ``InputError`` if the call has another number of rows than the batch.
        """
        if call.devices:
            _not_captured(call.names, self.phase)
        counts, labels, names = self.counts, self.labels, self.names | call.names
        copies, calls, unfolded, folded, held = self.copies, self.calls, self.unfolded, None, self.held
        if not call.counts.items() <= counts.items():
            for what, count in call.counts.items():
                if counts.get(what, count) != count:
                    if self.size is not None and what == "completions":
                        raise self._not_all(call.labels[what], count, self.size)
                    raise call.uneven(what, (counts[what], labels[what]), (count, call.labels[what]), self.shared)
            counts, labels = {**counts, **call.counts}, {**call.labels, **labels}
        if call.inputs:
            unfolded, folded = self.folds.after(unfolded, call, names, self._streams)
            if of_step := self.folds.per_step & call.inputs.keys():
                held = {**held, **{name: call.inputs[name].clone() for name in of_step}}
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
        # an interrupt cannot divide this one assignment
        self.names, self.counts, self.labels, self.copies, self.calls, self.unfolded, self.held = (
            names, counts, labels, copies, calls, unfolded, held
        )  # fmt: skip

    def _not_all(self, name: str, count: int, rows: int) -> InputError:
        """Return the error for a value with another number of rows than the batch announced."""
        call = f": observe({name}=[...])" if name.isidentifier() else ""
        if call and 1 < count < rows and rows % count == 0:
            call += f"; where it has one per group, [x for x in {name} for _ in range({rows // count})]"
        return InputError.of("DL505.announced", name=name, count=count, phase=self.phase.name, rows=rows, call=call)

    def take_stack(self, call: LearnedCall, stack: Stack, data: Tensor | Array) -> bool:
        """Take a call of one stack of columns on the host, as `take` would.

        Returns False, and takes nothing, if the call has another number of rows than the batch. This is the most
        frequent call: without this method, eight calls of one column take 1.4 times as long.
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
        """Add a column of log_extra that has been copied already.

        Raises ``InputError`` if it has another number of rows than the batch.
        """
        if (rows := self.completions) not in (None, len(values)):
            signal = self.labels["completions"]
            raise InputError.of("DL509.values", column=column, count=len(values), rows=rows, signal=signal)
        if isinstance(values, Tensor) and values.is_cuda:
            _not_captured({column}, self.phase)
            self._streams = self._streams.noted([values.device])
        self.extras = {**self.extras, column: values}

    def keep(self, call: Observation, streams: Streams) -> bool:
        """Add copied columns that no metric reads; return False if their number of rows is not the batch's."""
        if self.completions is None or call.counts != {"completions": self.completions}:
            return False
        self.copies = [*self.copies, *call.copies]
        if call.texts:
            self.calls = [*self.calls, call]
        self._streams = Streams({**self._streams, **streams})
        return True

    def close(
        self, elapsed: float, held: Mapping[str, Tensor], grouping: Grouping | None, *,
        first: Collection[str] | None = None, partial: bool = False, mode: str = "train",
    ) -> None:  # fmt: skip
        """Close the batch: fold tokens that still waited for other signals, and count the rows.

        ``held`` has the latest values per step, which hold for its tokens.

        For a phase's first batch, ``first`` has the signals of its partial batches so far; a required signal that is
        neither there nor in this batch raises DL502. Columns of log_extra with another number of rows become
        ``misfits``. A second call changes nothing.
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
            self._grouped(rows, grouping, grouping.size, first is not None and mode == "train")
        if self._streams:
            tensors = [data for _, data in self.copies if isinstance(data, Tensor)]
            self._streams.join([*unfolded.kept.values(), *tensors])
        copies, calls, misfits = self.copies, self.calls, self.misfits
        held = {**held, **self.held}
        if unfolded.folds and unfolded.tokens is not None:
            self.folded_without = self.folds.per_step - names - held.keys()
        if unfolded.folds and (folded := self.folds.at_last(unfolded, names, held)) is not None:
            copies, calls = [*copies, *folded.copies], [*calls, folded]
        if self.extras:
            columns, misfits = self._columns(rows, names, counts)
            calls = [*calls, columns]
        ready = self._streams.ready() if self._streams else None
        size = _bytes_besides(calls) if calls else 0
        for _, data in copies:
            size += data.nbytes
        self.partial, self.elapsed, self.bytes = partial, elapsed, size
        # an interrupt cannot divide this one assignment
        self.names, self.copies, self.calls, self.rows, self.ready, self.misfits, self.closed = (
            names, copies, calls, rows, ready, misfits, True
        )  # fmt: skip
        self.unfolded, self._streams, self.extras = self.folds.nothing, NO_STREAMS, NOTHING

    def _columns(
        self, rows: int, names: Set[str], counts: Mapping[str, int]
    ) -> tuple[Observation, Sequence[InputError]]:
        """Return the columns of log_extra that have as many rows as the batch, as a call, and errors for the others."""
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

    def missing(self, elsewhere: Collection[str]) -> list[SignalOp]:
        """The required signals that are neither in the batch nor ``elsewhere``."""
        here = {*self.names, *elsewhere}
        return [op for op in self.phase.signals if op.required and op.name not in here]

    def _complete(self, elsewhere: Collection[str]) -> None:
        if missing := self.missing(elsewhere):
            shown = ", ".join(f"`{op.source}`" for op in missing)
            error = MissingSignalError.of(
                "DL502.first_batch", names=shown, were="was" if len(missing) == 1 else "were", phase=self.phase.name,
                argument=missing[0].argument,
            )  # fmt: skip
            error.signals = tuple(op.name for op in missing)
            raise error

    def _grouped(self, rows: int, grouping: Grouping, size: int, first: bool) -> None:
        """Raise ``InputError`` if values per group, or the ids of a first batch, contradict the group size."""
        count = self.counts.get("groups")
        if count is not None and count * size != rows:
            name = self.labels["groups"]
            raise InputError.of("DL505.groups", name=name, count=count, phase=self.phase.name, rows=rows, size=size)
        source = next((name for name in grouping.of if name in self.names), None) if first else None
        ids = None if source is None else self._on_host(source)
        if ids is None or not rows or rows % size:
            return
        one = np.zeros(rows, np.int64)  # the piece and the step of each row
        wrong = groups.contradiction(grouping, groups.digests(ids), np.arange(rows) // size, one, one, 2)
        if wrong is not None:
            names = groups.names_of(grouping)
            error = InputError.of("DL507.size", size=size, names=names, seen=wrong.seen, fix=wrong.fix)
            if not wrong.mixed and source != grouping.of[0]:
                error = InputError.of("DL507.drawn", message=error.message, fix=error.fix, name=grouping.of[0])
            raise error

    def _on_host(self, name: str) -> list[Any] | None:
        """Return a column's values; None if they are on a device, because this thread never waits for a device."""
        key: Key = (name, None)
        for call in self.calls:
            if key in call.texts:
                column = call.texts[key][1]
                return column if isinstance(column, list) else None if column.device else column.columns()[0].tolist()
        for (_, keys), data in self.copies:
            if key in keys and not (isinstance(data, Tensor) and data.is_cuda):
                values: list[Any] = data.reshape(len(keys), -1)[list(keys).index(key)].tolist()
                return values
        return None

    @property
    def members(self) -> frozenset[tuple[str, str]]:
        """The members of families that the batch has; valid only until the batch is packed."""
        families = [family for call in self.calls for family in call.members.items()]
        return frozenset((name, member) for name, members in families for member in members)

    def pack(self) -> None:
        """Collect copies of equal axis and dtype in packs. Called by the worker; for data on a GPU at the hand-off."""
        packs: dict[PackKey, Pack] = {}
        for call in self.calls:
            self.numbers = {**self.numbers, **call.numbers}
            self.texts = {**self.texts, **call.texts}
        for (pack_key, keys), data in self.copies:
            data = data.numpy(force=True) if isinstance(data, Tensor) and data.is_cpu else data
            if (pack := packs.get(pack_key)) is None:
                packs[pack_key] = Pack(pack_key[0], list(keys), [data])
            else:
                pack.keys.extend(keys)
                pack.parts.append(data)
        self.packs, self.copies, self.calls = [*self.packs, *packs.values()], (), ()
        if self.ready:
            for pack in self.tensors():
                if pack.device is not None:
                    pack.ready = self.ready.get(pack.device)

    def tensors(self) -> Iterator[Pack]:
        """Yield the packs of the batch, including those among its texts."""
        yield from self.packs
        for _, values in self.texts.values():
            if isinstance(values, Pack):
                yield values


def repeated(call: Observation, names: Set[str], earlier: Sequence[Observation]) -> Set[str]:
    """The signals of a call that are among ``names``; a family only if an earlier call has one of its members."""
    members = call.members
    return {
        name for name in names & call.names
        if name not in members
        or any(not members[name].isdisjoint(other.members.get(name, ())) for other in earlier)
    }  # fmt: skip


def _not_captured(names: Set[str], phase: PhaseOp) -> None:
    """Raise ``InputError`` while a CUDA graph is captured, because nothing is computed then."""
    if capturing():
        sources = {op.name: op.source for op in phase.signals}
        shown = sorted({sources.get(name, name) for name in names})
        raise InputError.of("DL504.graph", names=", ".join(f"`{name}`" for name in shown))


def _bytes_besides(calls: Sequence[Observation]) -> int:
    """The approximate bytes of calls without their columns: the characters of texts, and 8 bytes per object."""
    size = 0
    for _, items in chain.from_iterable([call.texts.values() for call in calls]):
        if isinstance(items, Pack):
            size += items.bytes
        else:
            size += 8 * len(items) + sum([len(item) for item in items if type(item) is str])
    return size


def _rows(counts: Mapping[str, int], grouping: Grouping | None) -> int:
    """The number of completions in a batch; if only groups were observed, it is computed from the group size."""
    if "completions" in counts:
        return counts["completions"]
    return 0 if grouping is None else counts.get("groups", 0) * (grouping.size or 0)
