"""The batch that is open: the training thread's side of ``observe``, kept short.

Values are kept as they were given until the batch closes; then its tokens are folded and its columns packed, one
``cat`` per dtype. Nothing is computed from rows, nothing is copied to the host. Imports torch and the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from declog import fold
from declog.axes import Axis
from declog.errors import InputError, MissingSignalError, RuntimeFailure
from declog.frame import Grouping, Key
from declog.functions import DEFAULT, Functions
from declog.inputs import DTYPES, NDIM, Observed, accept, describe, length
from declog.plan import EventOp, SignalOp
from declog.timing import Timed

Tensor = torch.Tensor
_HALF = (torch.bfloat16, torch.float16)
_Place = tuple[Axis, torch.dtype, int]  # the columns that are packed together: of one axis, dtype and device


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
    order: int
    packs: list[Pack]
    numbers: dict[Key, float | int | Timed]
    texts: dict[Key, tuple[Axis, list[Any] | Pack]]  # a pack where a tensor was given
    sketches: list[Pack] = field(default_factory=list)  # histograms of tokens, one column each
    timed: bool = False  # whether a number is a duration that is not known yet

    def read_timers(self) -> None:
        """Wait for the ends of what was timed. Called by the worker."""
        self.numbers = {
            key: number.seconds() if isinstance(number, Timed) else number for key, number in self.numbers.items()
        }
        self.timed = False


class OpenBatch:
    """The signals of one event since its last batch closed, checked as they come."""

    def __init__(self, event: EventOp, order: int = 0) -> None:
        self.event = event
        self.order = order  # among the batches that this rank opened
        self.names: set[str] = set()
        self.extras: dict[str, list[Any] | Tensor] = {}
        self.counts: dict[str, tuple[int, str]] = {}  # how many of what, and which signal said so first
        self._members: set[Key] = set()
        self._tensors: dict[_Place, tuple[list[Key], list[Tensor]]] = {}
        self._numbers: dict[Key, float | int | Timed] = {}
        self._timed = False
        self._texts: dict[Key, tuple[Axis, list[Any] | Pack]] = {}
        self._inputs: dict[str, Tensor] = {}  # what folds read
        self.failure: RuntimeFailure | None = None  # what could not be computed when it closed
        self._versions: list[tuple[SignalOp, Tensor, int]] = []

    @property
    def rows(self) -> tuple[int, str] | None:
        """How many completions the batch has, and which signal said so first."""
        return self.counts.get("completions")

    @property
    def groups(self) -> tuple[int, str] | None:
        """How many groups the batch has, and which signal said so first."""
        return self.counts.get("groups")

    def has(self, op: SignalOp, member: str) -> bool:
        """Whether a member of a family was given already."""
        return (op.name, member) in self._members

    def add(self, op: SignalOp, value: Any) -> None:
        """Keep a signal's value; raises ``InputError`` where it is not what was declared."""
        if not op.family:
            self._put(op, op.key, op.source, value)
            self.names.add(op.name)
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
            self._put(op, (op.name, member), f"{op.source}[{member!r}]", values)
            self._members.add((op.name, member))
        self.names.add(op.name)

    def _put(self, op: SignalOp, key: Key, label: str, value: Any) -> None:
        checked: Observed = value
        if (  # the common case, without a call
            type(value) is not Tensor
            or value.dtype not in DTYPES[op.kind_name]
            or value.ndim != NDIM[op.shape_name]
            or value.requires_grad
            or value.is_inference()
        ):
            checked = accept(op, label, value)
        if isinstance(checked, Tensor):
            shape = checked.shape
            if shape:
                counted = self.counts.get(op.counted)
                if counted is None or counted[0] != shape[0]:
                    self._counted(op, label, shape[0])
            self._versions.append((op, checked, checked._version))
            if op.recorded:
                place = (op.axis, checked.dtype, checked.get_device())
                columns = self._tensors.get(place)
                if columns is None:
                    self._tensors[place] = [key], [checked]
                else:
                    columns[0].append(key)
                    columns[1].append(checked)
            if op.folded:
                self._inputs[op.name] = checked
        elif checked is not None:
            self._put_plain(op, key, label, checked)

    def _put_plain(
        self, op: SignalOp, key: Key, label: str, value: list[Any] | float | int | bool | str | Timed
    ) -> None:
        self._timed |= isinstance(value, Timed)
        count = length(op, value)
        if count is not None:
            self._counted(op, label, count)
        if isinstance(value, list):
            if op.recorded:
                self._texts[key] = (op.axis, value)
        elif isinstance(value, str):
            self._texts[key] = (Axis.STEP, [value])
        else:
            if op.folded:
                self._inputs[op.name] = torch.tensor(value)
            if op.recorded:
                self._numbers[key] = value

    def _counted(self, op: SignalOp, label: str, count: int) -> None:
        """All values of one batch describe the same rows."""
        known = self.counts.get(op.counted)
        if known is None:
            self.counts[op.counted] = (count, label)
        elif known[0] != count:
            raise InputError(
                "DL505",
                f"signals of one batch of event `{self.event.name}` have different counts: "
                f"`{known[1]}` has {known[0]} {op.counted}, `{label}` has {count}",
                "observe values of the same rows together; a signal given again opens the next batch",
            )

    def add_extra(self, column: str, values: list[Any] | Tensor) -> None:
        """Keep a column of log_extra."""
        if self.rows is not None and len(values) != self.rows[0]:
            raise InputError(
                "DL509",
                f"the column `{column}` has {len(values)} values, "
                f"and the batch has {self.rows[0]} rows (`{self.rows[1]}`)",
                "give one value per row",
            )
        self.extras[column] = values

    def close(
        self,
        step: int,
        batch: int,
        elapsed: float,
        *,
        first: bool,
        grouping: Grouping | None,
        functions: Functions = DEFAULT,
    ) -> BatchRecord:
        """Fold the tokens, pack the columns. Raises where a required signal never came or a tensor was changed."""
        if self.extras and not self.counts:
            raise InputError(
                "DL509",
                f"the column `{next(iter(self.extras))}` was given for a batch of event `{self.event.name}` "
                "that has no rows",
                "give it with the rows that it describes, once: a column given again opens the next batch",
            )
        if first:
            self._complete()
        rows = self._rows(grouping)
        if self.groups is not None:
            self._grouped(rows, grouping)
        for op, value, version in self._versions:
            if value._version != version:
                raise InputError(
                    "DL506",
                    f"`{op.source}` was changed in place after it was observed",
                    "observe a clone, or change it after the step",
                )
        for column, values in self.extras.items():
            if len(values) != rows:
                raise InputError(
                    "DL509",
                    f"the column `{column}` has {len(values)} values, and the batch has {rows} rows",
                    "give one value per row",
                )
            key = (f"extra:{column}", None)
            kept = values if isinstance(values, list) else Pack(Axis.COMPLETION, (key,), values)
            self._texts[key] = (Axis.COMPLETION, kept)
        sketches = self._fold(functions) if self.event.folds and self._inputs else []
        packs = [_pack(place, keys, values) for place, (keys, values) in self._tensors.items()]
        return BatchRecord(
            step, batch, rows, elapsed, self.order, packs, self._numbers, self._texts, sketches, self._timed
        )

    def _fold(self, functions: Functions) -> list[Pack]:
        """Fold the tokens: statistics are columns like others; histograms are returned."""
        inputs = self._inputs
        per_token = [op for op in self.event.signals if op.axis is Axis.TOKEN and op.name in inputs]
        tokens = {op.source: inputs[op.name] for op in per_token}
        lengths = None if self.event.lengths is None else inputs.get(self.event.lengths)
        sketches = []
        try:
            with torch.no_grad():
                columns = fold.run(self.event.folds, inputs, tokens, lengths, functions)
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001  (a user's function may raise anything: the step goes on without)
            self.failure = RuntimeFailure(
                "DL605",
                f"per-token values of event `{self.event.name}` could not be folded: {type(error).__name__}: {error}",
            )
            self.failure.__cause__ = error
            return []
        for name, column in columns.items():
            if name.endswith(".hist"):
                sketches.append(Pack(Axis.STEP, ((name, None),), column.unsqueeze(0)))
            else:
                place = (Axis.COMPLETION, column.dtype, column.get_device())
                packed = self._tensors.get(place)
                if packed is None:
                    packed = self._tensors[place] = [], []
                packed[0].append((name, None))
                packed[1].append(column)
        return sketches

    def _complete(self) -> None:
        missing = [op for op in self.event.signals if not op.optional and op.name not in self.names]
        if missing:
            shown = ", ".join(f"`{op.source}`" for op in missing)
            error = MissingSignalError(
                "DL502",
                f"{shown} {'was' if len(missing) == 1 else 'were'} not observed "
                f"in the first batch of event `{self.event.name}`",
                f"observe({missing[0].source}=...), or declare it optional, or switch off what needs it",
            )
            error.signals = tuple(op.name for op in missing)
            raise error

    def _rows(self, grouping: Grouping | None) -> int:
        """How many completions the batch has; where only groups were observed, their size says it."""
        if self.rows is None and self.groups is not None and grouping is not None:
            return self.groups[0] * (grouping.size or 0)
        return self.rows[0] if self.rows is not None else 0

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


def _pack(place: _Place, keys: list[Key], values: list[Tensor]) -> Pack:
    """One copy for all columns, so that what the trainer does with its tensors later changes nothing."""
    axis, dtype, _ = place
    data = torch.stack(values)
    if data.ndim == 1:
        data = data.unsqueeze(1)  # one value per batch
    return Pack(axis, tuple(keys), data.float() if dtype in _HALF else data)
