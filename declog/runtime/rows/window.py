"""The window: the closed batches since the last log event, and how they reach the host.

On CUDA the hand-off starts one copy to pinned memory on the training thread, and the worker waits for it.
Imports torch and the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch

from declog.engine.blocks import Block, Key, batches_of, texts_of
from declog.engine.frame import GROUP_ID, Frame
from declog.errors import RuntimeFailure, error_text
from declog.language import quantile_sketch as sketch
from declog.language.dtypes import Axis, DType
from declog.plans.ops import TRACE, Grouping, PhaseOp
from declog.records import Beside
from declog.runtime.recording.timing import Timed
from declog.runtime.rows.batch import Batch
from declog.runtime.rows.kept import SIGNALS, with_kept_groups
from declog.runtime.values.packs import Pack, land

Report = Callable[[BaseException], None]


@dataclass
class Window:
    """The batches since the last log event: those of each of its steps, by phase."""

    steps: Sequence[dict[str, list[Batch]]] = ()
    earlier: dict[str, Frame] = field(default_factory=dict)  # rows of before a checkpoint, on the host
    intact: bool = True  # whether all that should have been recorded was
    beside: Beside = field(default_factory=Beside)
    bytes: int = 0  # about how many the rows take

    def hand_off(self) -> None:
        """Start the copy of what is on a CUDA device to pinned memory, one for all of it; returns at once."""
        records = chain.from_iterable(chain.from_iterable(map(dict.values, self.steps)))
        devices: dict[torch.device, list[Pack]] = {}
        for record in [record for record in records if record.ready]:
            record.pack()
            for pack in record.tensors():
                if pack.device is not None:
                    devices.setdefault(pack.device, []).append(pack)
        for device, packs in devices.items():
            land(device, packs)

    def batches(self) -> dict[str, list[Batch]]:
        """Those of all steps, by phase, laid together. Called by the worker."""
        by_phase: dict[str, list[Batch]] = {}
        for phase, records in chain.from_iterable(map(dict.items, self.steps)):
            by_phase.setdefault(phase, []).extend(records)
        for record in chain.from_iterable(by_phase.values()):
            record.pack()
        return by_phase

    def frames(
        self, phases: Mapping[str, PhaseOp], rank: int, grouping: Grouping | None, report: Report
    ) -> dict[str, Frame]:
        """The window on the host, one frame per phase that had a batch; ``report`` gets what must be left out.

        Called by the worker.
        """
        frames = {name: frame.with_group_ids() for name, frame in self.earlier.items() if name in phases}
        for name, records in self.batches().items():
            if name in phases:
                counted = _counted(phases[name], records, rank, grouping, report)
                frame = _frame(phases[name], counted, rank, grouping, report)
                frames[name] = Frame.merge([frames[name], frame]) if name in frames else frame
        return frames


def _frame(phase: PhaseOp, records: Sequence[Batch], rank: int, grouping: Grouping | None, report: Report) -> Frame:
    runs: list[list[Batch]] = []
    before: Any = None
    for record in records:
        layout = _layout(record)
        if runs and layout == before and (runs[-1][-1].step, runs[-1][-1].batch) < (record.step, record.batch):
            runs[-1].append(record)
        else:
            runs.append([record])
        before = layout
    return Frame.merge([_joined(phase, run, rank, grouping, report) for run in runs])


def _counted(
    phase: PhaseOp, records: Sequence[Batch], rank: int, grouping: Grouping | None, report: Report
) -> Sequence[Batch]:
    """The batches without values per group whose number is not that of the groups that begin in them, reported."""
    if grouping is None or not any(signal.axis is Axis.GROUP for signal in phase.signals):
        return records
    names = set(grouping.of)
    named = [
        record.with_columns(
            [pack for pack in record.packs if names & {name for name, _ in pack.keys}],
            {key: values for key, values in record.texts.items() if key[0] in names}, {},
        )
        for record in records
    ]  # fmt: skip
    bare = _frame(phase, named, rank, grouping, lambda error: None)  # it is reported where all columns are read
    if grouping.size is None and bare.column(GROUP_ID) is None:
        return records
    try:
        sizes = bare._sizes(Axis.GROUP).tolist()
    except RuntimeFailure:  # rows that cannot be grouped: it is reported where groups are read
        return records
    places = zip(bare.batches.step.tolist(), bare.batches.batch.tolist(), strict=True)
    begun = dict(zip(places, sizes, strict=True))
    checked = []
    for record in records:
        groups = begun[record.step, record.batch]
        values = _group_counts(record)
        wrong = [name for name, count in values.items() if count != groups]
        if wrong:
            where = f"step {record.step} of phase `{phase.name}` has {groups} in its batch {record.batch}"
            report(RuntimeFailure.of("DL505.window", name=wrong[0], count=values[wrong[0]], where=where))
            packs = [pack for pack in record.packs if pack.axis is not Axis.GROUP]
            texts = {key: item for key, item in record.texts.items() if item[0] is not Axis.GROUP}
            record = record.with_columns(packs, texts, record.numbers)
        checked.append(record)
    return checked


def _group_counts(record: Batch) -> dict[str, int]:
    """How many values each signal per group has in a batch."""
    packs = {name: pack.rows for pack in record.packs if pack.axis is Axis.GROUP for name, _ in pack.keys}
    texts = {
        name: len(values) if isinstance(values, list) else values.rows
        for (name, _), (axis, values) in record.texts.items() if axis is Axis.GROUP
    }  # fmt: skip
    return packs | texts


def _layout(record: Batch) -> tuple[object, ...]:
    """What must be equal for the columns of two batches to be laid one after the other."""
    return (
        [pack.layout for pack in record.packs],
        [(key, type(number)) for key, number in record.numbers.items()],
        [(key, axis) for key, (axis, _) in record.texts.items()],
    )


def _joined(phase: PhaseOp, records: Sequence[Batch], rank: int, grouping: Grouping | None, report: Report) -> Frame:
    """The frame of batches of one layout, in order; what cannot be read is left out, and reported."""

    @contextmanager
    def guarded(*keys: Key) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  (the other columns are logged)
            names = ", ".join(f"`{name.removeprefix('extra:')}`" for name, _ in keys)
            failure = RuntimeFailure.of("DL605.read", names=names, phase=phase.name, error=error_text(error))
            failure.__cause__ = error
            report(failure)

    first = records[0]
    integers = {signal.name for signal in phase.signals if signal.dtype is DType.INT}
    integers |= {SIGNALS + signal.name for signal in phase.unread if signal.dtype is DType.INT}
    blocks = []
    for index, pack in enumerate(first.packs):
        with guarded(*pack.keys):
            parts = [record.packs[index].columns() for record in records]
            data = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
            blocks.append(Block(pack.axis, tuple(pack.keys), data))
    by_type: dict[type, list[Key]] = {}
    for key, number in first.numbers.items():
        by_type.setdefault(type(number), []).append(key)
    for keys in by_type.values():
        numbers = [[record.numbers[key] for record in records] for key in keys]
        data = np.array([[one.seconds() if isinstance(one, Timed) else one for one in row] for row in numbers])
        blocks.append(Block(Axis.STEP, tuple(keys), data))
    texts = {}
    for key, (axis, _) in first.texts.items():
        with guarded(key):
            values = texts_of([item for record in records for item in _items(key, *record.texts[key])])
            if key[0] in integers:  # a list with None in it
                blocks.append(Block.of_integers(axis, (key,), values))
            else:
                texts[key] = axis, values
    entries = [(record.step, record.batch, rank, record.rows, record.elapsed, record.order) for record in records]
    frame = Frame(phase.name, batches_of(entries), blocks, texts, grouping)
    return with_kept_groups(frame.with_group_ids())


def _items(key: Key, axis: Axis, values: list[Any] | Pack) -> list[Any]:
    if isinstance(values, list):
        return values
    array = values.on_host()[0]
    if axis is Axis.STEP:  # a histogram of all the batch's tokens
        return [sketch.sparse(array)]
    items: list[Any] = list(array.copy()) if key[0].endswith(TRACE) else array.tolist()  # rows of tokens stay arrays
    return items
