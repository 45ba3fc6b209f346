"""The closed batches since the last log event, and their way to the host.

With CUDA, the training thread starts one copy to pinned memory at the hand-off, and the worker waits for the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Any

import numpy as np
import torch

from declog.engine.blocks import Block, Key, batches_of, texts_of
from declog.engine.frame import GROUP_ID, Frame
from declog.engine.layout import KIND
from declog.engine.same_rows import Came, same_rows, united
from declog.errors import RuntimeFailure, error_text
from declog.language import quantile_sketch as sketch
from declog.language.dtypes import Axis
from declog.plans.needs import marks
from declog.plans.ops import TRACE, Grouping, PhaseOp, Plan
from declog.records import Beside
from declog.runtime.recording.timing import Timed
from declog.runtime.rows.batch import Batch
from declog.runtime.rows.kept import SIGNALS, with_kept_groups
from declog.runtime.rows.paired_rows import PairedRows
from declog.runtime.values.packs import Pack, land

Report = Callable[[BaseException], None]
Position = tuple[int, int]  # of a batch: its step, and its number in the step


@dataclass
class Window:
    """The batches since the last log event, by step and phase."""

    steps: Sequence[dict[str, list[Batch]]] = ()
    earlier: dict[str, Frame] = field(default_factory=dict)  # rows from before a checkpoint, on the host
    intact: bool = True  # False: the window lacks values that should have been recorded
    beside: Beside = field(default_factory=Beside)  # the trainer's own numbers
    bytes: int = 0  # the approximate size of the rows

    def hand_off(self) -> None:
        """Start one copy of all data on CUDA devices to pinned memory; returns at once."""
        batches = chain.from_iterable(chain.from_iterable(map(dict.values, self.steps)))
        devices: dict[torch.device, list[Pack]] = {}
        for batch in [batch for batch in batches if batch.ready]:
            batch.pack()
            for pack in batch.tensors():
                if pack.device is not None:
                    devices.setdefault(pack.device, []).append(pack)
        for device, packs in devices.items():
            land(device, packs)

    def batches(self) -> dict[str, list[Batch]]:
        """Pack the batches of all steps, and return them by phase. Called by the worker."""
        by_phase: dict[str, list[Batch]] = {}
        for phase, batches in chain.from_iterable(map(dict.items, self.steps)):
            by_phase.setdefault(phase, []).extend(batches)
        for batch in chain.from_iterable(by_phase.values()):
            batch.pack()
        return by_phase

    def frames(self, plan: Plan, rank: int, report: Report, paired: PairedRows | None = None) -> dict[str, Frame]:
        """Return the window on the host, one frame per phase that had a batch. Called by the worker.

        ``report`` gets an error for each batch or column that is left out. ``paired``, if given, warns of batches of a
        step that row ids did not join.
        """
        phases, grouping = plan.phases, plan.grouping
        frames = {name: frame.with_group_ids() for name, frame in self.earlier.items() if name in phases}
        for name, batches in self.batches().items():
            if name in phases:
                counted = _counted(phases[name], batches, rank, grouping, report)
                read = _of_steps(plan, phases[name], counted, rank, report, paired)
                before = [frames[name]] if name in frames else []
                if before or read:
                    frames[name] = Frame.merge(before + read)
        return frames


def _of_steps(
    plan: Plan, phase: PhaseOp, batches: Sequence[Batch], rank: int, report: Report, paired: PairedRows | None
) -> list[Frame]:
    """Return the frames of batches; batches of one step that row ids mark as the same rows are joined."""
    values = _values(plan, phase, batches) if plan.ids is not None and len(batches) > 1 else {}
    groups = {op.name for op in phase.signals if op.axis is Axis.GROUP}
    steps = _of_same_rows(str(plan.ids), batches, values)
    # by step: the sets of signals of its batches after joining, each with the ids of its rows
    kinds: dict[int, dict[frozenset[str], set[object]]] = {}
    for step in {batch.step for batch in batches if batch.step in steps and not groups.isdisjoint(batch.names)}:
        steps.remove(step)  # values per group belong to the groups of their batch, so these batches are not joined
        kinds[step] = {
            frozenset(batch.names): set() for batch in batches if batch.step == step and plan.ids in batch.names
        }  # fmt: skip
    rest = [batch for batch in batches if batch.step not in steps]
    frames = _frames(phase, rest, rank, plan.grouping, report) if rest else []
    parts = _frames(phase, [batch for batch in batches if batch.step in steps], rank, plan.grouping, report)
    if parts:
        frames.append(_joined_by_ids(plan, phase, batches, parts, values, kinds, report))
    if paired is not None:
        for step, of_step in kinds.items():
            calls = {frozenset(batch.names) for batch in batches if batch.step == step}
            paired.compare_ids(phase.name, of_step, calls)
            paired.compare_tokens(phase.name, calls)
    return frames


def _joined_by_ids(
    plan: Plan, phase: PhaseOp, batches: Sequence[Batch], parts: Sequence[Frame],
    values: Mapping[Position, frozenset[Key]], kinds: dict[int, dict[frozenset[str], set[object]]],
    report: Report,
) -> Frame:  # fmt: skip
    """Merge the frames ``parts`` and join batches of the same rows, whose signals and ids ``kinds`` gets."""
    per_step = {op.name for op in phase.signals if op.axis is Axis.STEP}
    came: dict[Position, Came] = {}
    by_position = {batch.position: batch for batch in batches}
    for part in parts:
        columns = frozenset(key for key in part.layout.keys if not key[0].endswith(KIND))
        has = any(name in per_step for name, _ in columns)
        came |= {key: Came(values[key], columns, has, by_position[key].block) for key in _batches(part)}
    merged = Frame.merge(parts)
    positions = _batches(merged)
    of_batches = [came[key] for key in positions]

    def twice(batch: int, value: Key) -> None:
        what, step = " of ".join(f"`{name}`" for name in reversed(value) if name), int(merged.batches.step[batch])
        report(RuntimeFailure.of("DL509.twice_by_id", what=what, phase=phase.name, ids=plan.ids, step=step))

    all_rows = same_rows(merged, of_batches, str(plan.ids), twice)
    for rows in all_rows:
        position = positions[rows.host]
        if plan.ids in by_position[position].names:
            kind = frozenset(name for name, _ in rows.there)
            kinds.setdefault(position[0], {}).setdefault(kind, set()).update(rows.by_id)
    return united(merged, of_batches, all_rows, per_step)


def _batches(frame: Frame) -> list[Position]:
    return list(zip(frame.batches.step.tolist(), frame.batches.batch.tolist(), strict=True))


def _values(plan: Plan, phase: PhaseOp, batches: Sequence[Batch]) -> dict[Position, frozenset[Key]]:
    """The values of each batch: members of families, and other signals with rows, without ids and masks."""
    no_values = marks(plan) | {op.name for op in phase.signals if op.axis is Axis.STEP}
    families = {op.name for op in phase.signals if op.family}
    values = {}
    for batch in batches:
        keys = (*(key for pack in batch.packs for key in pack.keys), *batch.texts)
        members = {key for key in keys if key[0] in families} if families else set()
        names = batch.names - no_values - {name for name, _ in members}
        values[batch.position] = frozenset({*members, *((name, None) for name in names)})
    return values


def _of_same_rows(ids: str, batches: Sequence[Batch], values: Mapping[Position, frozenset[Key]]) -> set[int]:
    """The steps in which two batches with row ids may have the same rows.

    Two batches may if they have no value in common, or belong to one explicit batch, which takes each value of a row
    once.
    """
    by_step: dict[int, list[Batch]] = {}
    for batch in batches if values else ():
        if ids in batch.names:
            by_step.setdefault(batch.step, []).append(batch)
    steps = set()
    for step, of_step in by_step.items():
        kinds = {values[batch.position] for batch in of_step}
        blocks = [batch.block for batch in of_step if batch.block is not None]
        if len({*blocks}) < len(blocks) or any(one.isdisjoint(other) for one, other in combinations(kinds, 2)):
            steps.add(step)
    return steps


def _frames(
    phase: PhaseOp, batches: Sequence[Batch], rank: int, grouping: Grouping | None, report: Report
) -> list[Frame]:
    """Return the frames of batches, in order: one for each run of consecutive batches with equal layouts."""
    runs: list[list[Batch]] = []
    before: Any = None
    for batch in batches:
        layout = _layout(batch)
        if runs and layout == before and runs[-1][-1].position < batch.position:
            runs[-1].append(batch)
        else:
            runs.append([batch])
        before = layout
    return [frame for run in runs for frame in _readable(phase, run, rank, grouping, report)]


def _readable(
    phase: PhaseOp, batches: Sequence[Batch], rank: int, grouping: Grouping | None, report: Report
) -> list[Frame]:
    """Return the frame of batches with one layout; if that fails, one frame per batch that can be read.

    Reports batches that cannot be read.
    """
    try:
        return [_joined(phase, batches, rank, grouping)]
    except Exception as error:  # noqa: BLE001  (the other batches are logged)
        if len(batches) > 1:
            return [frame for batch in batches for frame in _readable(phase, [batch], rank, grouping, report)]
        failure = RuntimeFailure.of("DL605.read", step=batches[0].step, phase=phase.name, error=error_text(error))
        failure.__cause__ = error
        report(failure)
        return []


def _counted(
    phase: PhaseOp, batches: Sequence[Batch], rank: int, grouping: Grouping | None, report: Report
) -> Sequence[Batch]:
    """Return the batches without values per group if their number is not the batch's number of groups; report this."""
    if grouping is None or not any(signal.axis is Axis.GROUP for signal in phase.signals):
        return batches
    names = set(grouping.of)
    named = [
        batch.with_columns(
            [pack for pack in batch.packs if names & {name for name, _ in pack.keys}],
            {key: values for key, values in batch.texts.items() if key[0] in names}, {},
        )
        for batch in batches
    ]  # fmt: skip
    frames = _frames(phase, named, rank, grouping, lambda error: None)  # errors are reported when all columns are read
    if not frames:
        return batches
    bare = Frame.merge(frames)
    if grouping.size is None and bare.column(GROUP_ID) is None:
        return batches
    try:
        sizes = bare._sizes(Axis.GROUP).tolist()
    except RuntimeFailure:  # rows that cannot be grouped are reported where groups are read
        return batches
    begun = dict(zip(_batches(bare), sizes, strict=True))
    checked = []
    for batch in batches:
        groups = begun.get(batch.position)
        values = _group_counts(batch) if groups is not None else {}
        wrong = [name for name, count in values.items() if count != groups]
        if wrong:
            where = f"step {batch.step} of phase `{phase.name}` has {groups} in its batch {batch.number}"
            report(RuntimeFailure.of("DL505.window", name=wrong[0], count=values[wrong[0]], where=where))
            packs = [pack for pack in batch.packs if pack.axis is not Axis.GROUP]
            texts = {key: item for key, item in batch.texts.items() if item[0] is not Axis.GROUP}
            batch = batch.with_columns(packs, texts, batch.numbers)
        checked.append(batch)
    return checked


def _group_counts(batch: Batch) -> dict[str, int]:
    """The number of values that each signal per group has in a batch."""
    packs = {name: pack.rows for pack in batch.packs if pack.axis is Axis.GROUP for name, _ in pack.keys}
    texts = {
        name: len(values) if isinstance(values, list) else values.rows
        for (name, _), (axis, values) in batch.texts.items() if axis is Axis.GROUP
    }  # fmt: skip
    return packs | texts


def _layout(batch: Batch) -> tuple[object, ...]:
    """Return a key; the columns of batches with equal keys can be concatenated."""
    return (
        [pack.layout for pack in batch.packs],
        [(key, type(number)) for key, number in batch.numbers.items()],
        [(key, axis) for key, (axis, _) in batch.texts.items()],
    )


def _joined(phase: PhaseOp, batches: Sequence[Batch], rank: int, grouping: Grouping | None) -> Frame:
    """Return one frame of batches with equal layouts, in order."""
    first = batches[0]
    blocks = []
    for index, pack in enumerate(first.packs):
        parts = [batch.packs[index].columns() for batch in batches]
        data = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        blocks.append(Block(pack.axis, tuple(pack.keys), data))
    by_type: dict[type, list[Key]] = {}
    for key, number in first.numbers.items():
        by_type.setdefault(type(number), []).append(key)
    for keys in by_type.values():
        numbers = [batch.numbers[key] for key in keys for batch in batches]
        data = np.array([one.seconds() if isinstance(one, Timed) else one for one in numbers])
        blocks.append(Block(Axis.STEP, tuple(keys), data.reshape(len(keys), len(batches))))
    texts = {}
    for key, (axis, _) in first.texts.items():
        values = texts_of([item for batch in batches for item in _items(key, *batch.texts[key])])
        if key[0].removeprefix(SIGNALS) in phase.integers:  # a list that contains None
            blocks.append(Block.of_integers(axis, (key,), values))
        else:
            texts[key] = axis, values
    entries = [(batch.step, batch.number, rank, batch.rows, batch.elapsed, batch.order) for batch in batches]
    frame = Frame(phase.name, batches_of(entries), blocks, texts, grouping)
    return with_kept_groups(frame.with_group_ids())


def _items(key: Key, axis: Axis, values: list[Any] | Pack) -> list[Any]:
    if isinstance(values, list):
        return values
    array = values.on_host()[0]
    if axis is Axis.STEP:  # a histogram covers all tokens of the batch
        return [sketch.sparse(array)]
    items: list[Any] = list(array.copy()) if key[0].endswith(TRACE) else array.tolist()  # traces of tokens stay arrays
    return items
