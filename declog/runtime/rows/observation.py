"""The checked values of one call of ``observe`` for one phase. A batch takes all of them, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from declog.engine.blocks import Key
from declog.errors import InputError, nearest
from declog.language.dtypes import Axis, DType
from declog.plans.ops import PhaseOp, SignalOp
from declog.runtime.recording.timing import Timed
from declog.runtime.values.fixes import columns_of
from declog.runtime.values.inputs import accept, describe, listed
from declog.runtime.values.packs import Pack
from declog.runtime.values.shapes import CallValues, members_fix, shape_fix, turned
from declog.runtime.values.tensors import HALF

Tensor = torch.Tensor
Array = np.ndarray[Any, Any]
PackKey = tuple[Axis, torch.dtype, int]  # axis, dtype and device: columns with equal keys are packed together
Lists = tuple[tuple[int, ...], str]  # the number of tokens of each completion, and the signal that set these numbers
NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Tokens(NamedTuple):
    """The shape that all values per token of a batch have, the signal that set it, and its device."""

    shape: torch.Size
    source: str
    device: torch.device
    lists: Lists | None = None  # the lists' lengths, if a signal's tokens were passed as lists

    def joined(self, other: Tokens | None, call: CallValues = ()) -> Tokens:
        """Join these tokens with those of another signal; raises ``InputError`` if shapes or lists' lengths differ.

        ``call`` has all signals of the call with their values, for the error's fix.
        """
        if other is None:
            return self
        if self.shape != other.shape:
            raise of_other_tokens(self, other, call)
        if self.lists is not None and other.lists is not None and self.lists[0] != other.lists[0]:
            raise of_other_lists(self.lists, other.lists)
        return self._replace(lists=self.lists or other.lists)


class Columns(NamedTuple):
    """The keys of the columns that are stacked in one copy."""

    pack_key: PackKey
    keys: Sequence[Key]


Copy = tuple[Columns, Tensor | Array]  # an array only on the host
Numbers = Mapping[Key, float | int | Timed]
Texts = Mapping[Key, tuple[Axis, list[Any] | Pack]]  # a pack if the values were a tensor


class Observation:
    """The values of one call, or columns that folds computed from tokens."""

    tokens: Tokens | None = None
    numbers: Numbers = NOTHING
    texts: Texts = NOTHING
    columns: Mapping[PackKey, tuple[list[Key], list[Tensor]]] = NOTHING  # columns that are not copied yet
    inputs: Mapping[str, Tensor] = NOTHING  # values that folds read
    devices: Set[torch.device] = frozenset()  # CUDA devices of the values
    members: Mapping[str, Set[str]] = NOTHING  # members of families

    def __init__(self, phase: PhaseOp, names: Set[str], labels: Mapping[str, str] = NOTHING) -> None:
        self.phase = phase
        self.names = names
        self.counts: dict[str, int] = {}  # the number of entries by axis
        self.labels = labels  # the signal that set each count
        self.copies: list[Copy] = []  # copied data, which later training code cannot change

    def put(self, axis: Axis, keys: Sequence[Key], data: Tensor) -> None:
        """Add stacked columns, on their device; half-precision floats become float32."""
        if data.is_cuda:
            self.devices = {*self.devices, data.device}
        data = data.float() if data.dtype in HALF else data
        self.copies.append((Columns((axis, data.dtype, data.get_device()), keys), data))

    def copy(self) -> None:
        """Copy the columns that are not copied yet."""
        for (axis, _, _), (keys, values) in self.columns.items():
            self.put(axis, keys, torch.stack(values))
        self.columns = NOTHING

    def uneven(
        self, what: str, first: tuple[int, str], other: tuple[int, str], shared: Set[str] = frozenset()
    ) -> InputError:
        """Return the error for a value with another number of rows than an earlier value of the batch.

        ``shared`` has the batch's signals that were observed in one call with another phase's signals.
        """
        (fewer, few), (more, many) = sorted((first, other))
        phase, both = self.phase.name, f"`{first[1]}` has {first[0]} {what}, `{other[1]}` has {other[0]}"
        if what == "completions" and any(op.source == first[1] and op.name in shared for op in self.phase.signals):
            return InputError.of("DL505.beside", phase=phase, both=both, name=first[1])
        of_tokens = {op.source for op in self.phase.signals if op.axis is Axis.TOKEN}
        texts = {op.source for op in self.phase.signals if op.dtype in (DType.TEXT, DType.OBJECT)}  # such as a prompt
        if what != "completions" or not few.isidentifier() or fewer < 2:
            return InputError.of("DL505.counts", phase=phase, both=both)
        if more % fewer:
            if of_tokens.isdisjoint((few, many)):
                return InputError.of("DL505.fewer", phase=phase, both=both, few=few, more=more)
            return InputError.of("DL505.counts", phase=phase, both=both)
        if few in of_tokens:  # never a value per group
            return InputError.of("DL505.micro_batch", phase=phase, both=both, few=few, many=many, fewer=fewer)
        groups = f"; where it has one per group, `[x for x in {few} for _ in range({more // fewer})]`"
        return InputError.of(
            "DL505.repeated", phase=phase, both=both, few=few, many=many, fewer=fewer, more=more,
            groups=groups if few in texts else "",
        )  # fmt: skip


class ReadObservation(Observation):
    """A call whose values are checked one by one."""

    def __init__(self, phase: PhaseOp, names: Set[str], call: CallValues = ()) -> None:
        super().__init__(phase, names)
        self.call = call  # all signals and values of the call, for the fixes of errors
        self.labels: dict[str, str] = {}
        self.numbers: dict[Key, float | int | Timed] = {}
        self.texts: dict[Key, tuple[Axis, list[Any] | Pack]] = {}
        self.inputs: dict[str, Tensor] = {}
        self.members: dict[str, set[str]] = {}
        self.columns: dict[PackKey, tuple[list[Key], list[Tensor]]] = {}

    def add(self, op: SignalOp, value: Any) -> None:
        """Check and add a signal's value; raises ``InputError`` if it does not fit the declaration."""
        if not op.family:
            self._put(op, op.key, op.source, value)
            return
        came = value
        if not isinstance(value, Tensor | Mapping):
            value = listed(value)
        alone = isinstance(value, Tensor | np.ndarray | list | tuple) and op.axis is not Axis.STEP
        if alone:  # a family with one member
            if op.axis is not Axis.TOKEN and (fix := members_fix(op, came, self.call)) is not None:
                raise InputError.of("DL503.matrix", name=op.source, came=describe(value), fix=fix)
            value = {op.source.removesuffix("s"): value}
        if not isinstance(value, Mapping):
            raise InputError.of("DL503.family", name=op.source, came=describe(value))
        members = self.members.setdefault(op.name, set())
        for member, values in value.items():
            if not isinstance(member, str):
                raise InputError.of("DL504.member", name=op.source, member=member)
            if op.members and member not in op.members:
                raise InputError.of("DL501.member", family=op.source, name=member, known=op.members)
            self._put(op, (op.name, member), op.source if alone else f"{op.source}[{member!r}]", values)
            members.add(member)

    def _put(self, op: SignalOp, key: Key, label: str, value: Any) -> None:
        if type(value) is float and op.number:
            self.numbers[key] = value
            return
        try:
            checked = accept(op, label, value)
        except InputError as error:
            families = [signal.source for signal in self.phase.signals if signal.family and signal.axis is op.axis]
            rows = [row for row in value if row is not None] if isinstance(value, list | tuple) else []
            of_rows = bool(rows) and all(isinstance(row, Mapping) for row in rows)
            if (
                not op.family
                and (isinstance(value, Mapping) or of_rows)
                and (family := nearest(op.source, families)) is not None
            ):
                fix = f"`{family}` in place of `{op.source}`: it has values by name"
                fix = f"{family}={columns_of(op.source)}, in place of `{op.source}`" if of_rows else fix
                raise InputError(error.code, error.message, fix) from None
            if error.code != "DL503" or error.fix != shape_fix(op, label, value):
                raise
            came = {signal.name for signal, _ in self.call}
            masks = {mask for fold in self.phase.folds for mask in fold.masks} - came
            mask = next((signal.source for signal in self.phase.signals if signal.name in masks), None)
            raise InputError(error.code, error.message, shape_fix(op, label, value, self.call, mask)) from None
        if isinstance(checked, Tensor):
            shape = checked.shape
            if checked.is_cuda:
                self.devices = {*self.devices, checked.device}
            if shape:
                self._count(op.counted, shape[0], label)
            if op.recorded and op.dtype is DType.OBJECT:  # becomes plain data on the host later
                copy = checked.float() if checked.dtype in HALF else checked.clone()
                self.texts[key] = op.axis, Pack(op.axis, [key], [copy])
            elif op.recorded:
                keys, tensors = self.columns.setdefault((op.axis, checked.dtype, checked.get_device()), ([], []))
                keys.append(key)
                tensors.append(checked)
            if op.folded:
                self.inputs[op.name] = checked
                if op.axis is Axis.TOKEN:
                    ragged = not isinstance(value, Tensor | np.ndarray) and not op.packed
                    lists = (tuple(map(len, listed(value))), label) if ragged else None
                    tokens = Tokens(shape, label, checked.device, lists)
                    self.tokens = tokens if self.tokens is None else self.tokens.joined(tokens, self.call)
        elif checked is not None:
            self._put_plain(op, key, label, checked)

    def _count(self, what: str, count: int, label: str) -> None:
        first = self.counts.setdefault(what, count)
        if first != count:
            both = {self.labels[what]: first, label: count}
            if what == "completions" and (name := turned([*both], both, self.call)) is not None:
                counts = f"`{self.labels[what]}` has {first} {what}, `{label}` has {count}"
                raise InputError.of("DL505.turned", phase=self.phase.name, both=counts, name=name)
            raise self.uneven(what, (first, self.labels[what]), (count, label))
        self.labels.setdefault(what, label)

    def _put_plain(self, op: SignalOp, key: Key, label: str, value: list[Any] | float | int | bool | Timed) -> None:
        if isinstance(value, list):
            if op.axis is not Axis.STEP:
                self._count(op.counted, len(value), label)
            if op.recorded:
                self.texts[key] = (op.axis, value)
        else:
            if op.folded and not isinstance(value, Timed):
                self.inputs[op.name] = torch.tensor(value, dtype=torch.float64, device="cpu")
            if op.recorded:
                self.numbers[key] = value


def of_other_tokens(first: Tokens, other: Tokens, call: CallValues = ()) -> InputError:
    """Return the error for values per token whose shape differs from an earlier signal's.

    ``call`` has all signals of the call with their values.
    """
    per_token = {op.source: value for op, value in call if op.axis is Axis.TOKEN}
    shape, name, other_shape, other_name = tuple(first.shape), first.source, tuple(other.shape), other.source
    fix = "observe signals of the same tokens together"
    shapes = {name: shape, other_name: other_shape}
    shapes |= {label: tuple(value.shape) for label, value in per_token.items() if isinstance(value, Tensor)}
    if all(len(one) == 2 and one[0] == shape[0] for one in shapes.values()):
        counts = {label: one[1] for label, one in shapes.items()}
        fewer, most = min(counts.values()), max(counts.values())
        longer = [label for label, count in counts.items() if count > fewer]
        (short, *further) = [label for label, count in counts.items() if count == fewer]
        mask = getattr(per_token.get(short), "dtype", None) is torch.bool
        if len(longer) > 1 and not further and not mask and {counts[label] for label in longer} == {most}:
            fix += f": `{short}` has {most - fewer} tokens fewer than {' and '.join(f'`{label}`' for label in longer)}"
        elif most == fewer + 1:
            cut = ", ".join(f"{label}={label}[:, 1:]" for label in longer)
            fix += f": log-probs are of the tokens from the second on, `{cut}`"
        elif fewer > 1:
            said = " and ".join(f"`{label}` has {counts[label] - fewer} tokens more" for label in longer)
            cut = ", ".join(f"{label}={label}[:, -{fewer}:]" for label in longer)
            fix += f"; {said}; if those are the prompt's, which come first: {cut}"
    return InputError.of(
        "DL503.token_shapes", name=name, shape=shape, other=other_name, other_shape=other_shape, fix=fix
    )


def of_other_lists(first: Lists, other: Lists) -> InputError:
    """Return the error for token lists whose lengths differ from an earlier signal's.

    Padding to equal lengths would hide that tokens are missing.
    """
    (counts, name), (other_counts, other_name) = first, other
    row = next(index for index, (one, two) in enumerate(zip(counts, other_counts, strict=True)) if one != two)
    return InputError.of(
        "DL503.token_counts", name=name, count=counts[row], other=other_name, other_count=other_counts[row], row=row
    )
