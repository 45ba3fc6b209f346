"""What the training thread records: batches of packed columns, and the window that holds them.

A batch's signals are kept as they were given until it closes; then its tokens are folded and its columns
packed, one ``cat`` per dtype. Nothing is copied to the host here: on CUDA the hand-off starts a copy to pinned
memory, and the worker waits for its event. Imports torch and the plan.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from declog import fold, sketch
from declog.axes import Axis
from declog.errors import InputError, MissingSignalError
from declog.frame import Block, Frame, Grouping, Key, batches_of, texts_of
from declog.functions import DEFAULT, Functions
from declog.inputs import Observed, accept, describe, length
from declog.plan import EventOp, SignalOp

Tensor = torch.Tensor
_HALF = (torch.bfloat16, torch.float16)


@dataclass
class Pack:
    """Columns of one axis and dtype: ``data[k, rows]`` on the device, or on the host once copied."""

    axis: Axis
    keys: tuple[Key, ...]
    data: Tensor
    ready: Any = None  # the CUDA event after which the host copy is whole


@dataclass
class BatchRecord:
    """One closed batch of one event."""

    step: int
    batch: int
    rows: int
    elapsed: float
    packs: list[Pack]
    numbers: dict[Key, float | int]
    texts: dict[Key, tuple[Axis, list[Any]]]
    sketches: list[Pack] = field(default_factory=list)  # histograms of tokens, one column each


@dataclass
class Window:
    """The batches since the last log event, by event."""

    mode: str = "train"
    batches: dict[str, list[BatchRecord]] = field(default_factory=dict)
    steps: int = 0

    def __bool__(self) -> bool:
        return bool(self.batches) or self.steps > 0

    def hand_off(self) -> None:
        """Start copying what is on a CUDA device to pinned memory; returns at once."""
        events: dict[torch.device, Any] = {}
        for records in self.batches.values():
            for record in records:
                for pack in (*record.packs, *record.sketches):
                    device = pack.data.device
                    if device.type != "cuda":
                        continue
                    host = torch.empty(pack.data.shape, dtype=pack.data.dtype, pin_memory=True)
                    host.copy_(pack.data, non_blocking=True)
                    pack.data = host
                    pack.ready = events.setdefault(device, torch.cuda.Event())
        for device, event in events.items():
            event.record(torch.cuda.current_stream(device))

    def frames(self, events: Mapping[str, EventOp], rank: int, grouping: Grouping | None) -> dict[str, Frame]:
        """The window on the host, one frame per event that had a batch. Called by the worker."""
        return {name: _frame(name, records, rank, grouping) for name, records in self.batches.items() if name in events}


def _frame(event: str, records: Sequence[BatchRecord], rank: int, grouping: Grouping | None) -> Frame:
    return Frame.merge([_one(event, record, rank, grouping) for record in records])


def _one(event: str, record: BatchRecord, rank: int, grouping: Grouping | None) -> Frame:
    blocks = []
    for pack in record.packs:
        blocks.append(Block(pack.axis, pack.keys, _on_host(pack)))
    by_type: dict[type, list[Key]] = {}
    for key, number in record.numbers.items():
        by_type.setdefault(type(number), []).append(key)
    for keys in by_type.values():
        blocks.append(Block(Axis.STEP, tuple(keys), np.array([[record.numbers[key]] for key in keys])))
    texts = {key: (axis, texts_of(values)) for key, (axis, values) in record.texts.items()}
    for pack in record.sketches:
        texts[pack.keys[0]] = (Axis.STEP, texts_of([sketch.sparse(_on_host(pack)[0])]))
    return Frame(
        event, batches_of([(record.step, record.batch, rank, record.rows, record.elapsed)]), blocks, texts, grouping
    )


def _on_host(pack: Pack) -> np.ndarray[Any, Any]:
    if pack.ready is not None:
        pack.ready.synchronize()
    data = pack.data if pack.data.device.type == "cpu" else pack.data.cpu()
    return data.numpy()


class OpenBatch:
    """The signals of one event since its last batch closed, checked as they come."""

    def __init__(self, event: EventOp) -> None:
        self.event = event
        self.values: dict[Key, tuple[SignalOp, Observed, int | None]] = {}
        self.names: set[str] = set()
        self.counts: dict[str, tuple[int, str]] = {}  # how many of what, and which signal said so first
        self.extras: dict[str, list[Any]] = {}

    @property
    def rows(self) -> tuple[int, str] | None:
        """How many completions the batch has, and which signal said so first."""
        return self.counts.get("completions")

    @property
    def groups(self) -> tuple[int, str] | None:
        """How many groups the batch has, and which signal said so first."""
        return self.counts.get("groups")

    def add(self, op: SignalOp, value: Any) -> None:
        """Keep a signal's value; raises ``InputError`` where it is not what was declared."""
        self.names.add(op.name)
        if not op.family:
            self._put(op, None, value)
            return
        if not isinstance(value, Mapping):
            raise InputError(
                "DL503",
                f"`{op.source}` is a family: a mapping of member to values is expected, and {describe(value)} came",
                f"observe({op.source}={{'name': values}})",
            )
        for member, values in value.items():
            if not isinstance(member, str):
                raise InputError("DL504", f"`{op.source}` has the member {member!r}: members are named by text")
            self._put(op, member, values)

    def _put(self, op: SignalOp, member: str | None, value: Any) -> None:
        label = op.source if member is None else f"{op.source}[{member!r}]"
        checked = accept(op, label, value)
        count = length(op, checked)
        if count is not None:
            self._counted(op, label, count)
        version = checked._version if isinstance(checked, Tensor) else None
        self.values[op.name, member] = (op, checked, version)

    def _counted(self, op: SignalOp, label: str, count: int) -> None:
        """All values of one batch describe the same rows."""
        what = "groups" if op.axis is Axis.GROUP else "tokens" if op.packed else "completions"
        known = self.counts.setdefault(what, (count, label))
        if known[0] != count:
            raise InputError(
                "DL505",
                f"signals of one batch of event `{self.event.name}` have different counts: "
                f"`{known[1]}` has {known[0]} {what}, `{label}` has {count}",
                "observe values of the same rows together; a signal given again opens the next batch",
            )  # fmt: skip

    def add_extra(self, column: str, values: Sequence[Any]) -> None:
        """Keep a column of log_extra."""
        if column in self.extras:
            raise InputError("DL509", f"the column `{column}` was given twice for one batch", "give each column once")
        if self.rows is not None and len(values) != self.rows[0]:
            raise InputError(
                "DL509",
                f"the column `{column}` has {len(values)} values, "
                f"and the batch has {self.rows[0]} rows (`{self.rows[1]}`)",
                "give one value per row",
            )
        self.extras[column] = list(values)

    def close(
        self,
        step: int,
        batch: int,
        started: float,
        *,
        first: bool,
        grouping: Grouping | None,
        functions: Functions = DEFAULT,
    ) -> BatchRecord:
        """Fold the tokens, pack the columns. Raises where a required signal never came or a tensor was changed."""
        if first:
            self._complete()
        rows = self.rows[0] if self.rows is not None else 0
        self._grouped(rows, grouping)
        for column, values in self.extras.items():
            if len(values) != rows:
                raise InputError(
                    "DL509",
                    f"the column `{column}` has {len(values)} values, and the batch has {rows} rows",
                    "give one value per row",
                )
        tensors: dict[tuple[Axis, torch.dtype, torch.device], list[tuple[Key, Tensor]]] = {}
        numbers: dict[Key, float | int] = {}
        texts: dict[Key, tuple[Axis, list[Any]]] = {
            (f"extra:{name}", None): (Axis.COMPLETION, values) for name, values in self.extras.items()
        }
        inputs: dict[str, Tensor] = {}
        with torch.no_grad():
            for key, (op, value, version) in self.values.items():
                if isinstance(value, Tensor):
                    if version != value._version:
                        raise InputError(
                            "DL506",
                            f"`{op.source}` was changed in place after it was observed",
                            "observe a clone, or change it after the step",
                        )
                    if op.folded:
                        inputs[op.name] = value
                    if op.recorded:
                        tensors.setdefault((op.axis, value.dtype, value.device), []).append((key, value))
                elif isinstance(value, list):
                    if op.recorded:
                        texts[key] = (op.axis, value)
                elif value is not None:
                    assert isinstance(value, float | int | bool | str)
                    if isinstance(value, str):
                        texts[key] = (Axis.STEP, [value])
                    else:
                        if op.folded:
                            inputs[op.name] = torch.tensor(value)
                        if op.recorded:
                            numbers[key] = value
            sketches: list[Pack] = []
            if self.event.folds and inputs:
                for name, folded in self._folded(inputs, functions).items():
                    if name.endswith(".hist"):
                        sketches.append(Pack(Axis.STEP, ((name, None),), folded.unsqueeze(0)))
                        continue
                    place = (Axis.COMPLETION, folded.dtype, folded.device)
                    tensors.setdefault(place, []).append(((name, None), folded))
            packs = [_pack(axis, dtype, items) for (axis, dtype, _), items in tensors.items()]
        return BatchRecord(step, batch, rows, time.perf_counter() - started, packs, numbers, texts, sketches)

    def _folded(self, inputs: Mapping[str, Tensor], functions: Functions) -> dict[str, Tensor]:
        per_token = [op for op in self.event.signals if op.axis is Axis.TOKEN and op.name in inputs]
        tokens = {op.source: inputs[op.name] for op in per_token}
        lengths = None if self.event.lengths is None else inputs.get(self.event.lengths)
        return fold.run(self.event.folds, inputs, tokens, lengths, functions)

    def _complete(self) -> None:
        missing = [op.source for op in self.event.signals if not op.optional and op.name not in self.names]
        if missing:
            shown = ", ".join(f"`{name}`" for name in missing)
            raise MissingSignalError(
                "DL502",
                f"{shown} {'was' if len(missing) == 1 else 'were'} not observed "
                f"in the first batch of event `{self.event.name}`",
                f"observe({missing[0]}=...), or declare it optional, or switch off what needs it",
            )  # fmt: skip

    def _grouped(self, rows: int, grouping: Grouping | None) -> None:
        if self.groups is None or grouping is None or grouping.size is None or grouping.split != "none":
            return
        if self.groups[0] * grouping.size != rows:
            raise InputError(
                "DL505",
                f"`{self.groups[1]}` has {self.groups[0]} groups, and the batch of event `{self.event.name}` "
                f"has {rows} completions in groups of {grouping.size}",
                "observe one value per group",
            )  # fmt: skip


def _pack(axis: Axis, dtype: torch.dtype, items: Sequence[tuple[Key, Tensor]]) -> Pack:
    """One ``cat``: a copy, so that what the trainer does with its tensors later changes nothing."""
    keys = tuple(key for key, _ in items)
    values = [value for _, value in items]
    data = (
        torch.stack(values).unsqueeze(1)
        if values[0].ndim == 0
        else torch.cat(values).view(len(values), -1)
        if values[0].numel()
        else torch.empty(len(values), 0)
    )
    return Pack(axis, keys, data.float() if dtype in _HALF else data)
