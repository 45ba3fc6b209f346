"""Values per step for the rows of all batches of a step: a value holds until the next one comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from declog.engine.blocks import Batches, Block, Key
from declog.engine.layout import KIND, Layout
from declog.language.absence import absent
from declog.language.dtypes import Axis
from declog.language.segmented import Array

Sources = Mapping[Key, NDArray[np.int64]]  # for each column the batch that each batch has its value from
Texts = Mapping[Key, tuple[Axis, Array]]


def sources_of(batches: Batches, layout: Layout, blocks: Sequence[Block], texts: Texts) -> Sources:
    """Where a frame's batches have their values per step from, by column; empty if no batch lacks a value.

    A batch that lacks one has that of an earlier batch of its step, on its rank; before the first value of a step, the
    first one counts.
    """
    per_step = {name for block in blocks if block.axis is Axis.STEP for name, _ in block.keys}
    per_step |= {name for (name, _), (axis, _) in texts.items() if axis is Axis.STEP}
    sources: dict[Key, NDArray[np.int64]] = {}
    for (marks, member), (block, row) in layout.spots.items():
        name = marks.removesuffix(KIND)
        if marks == name or name not in per_step or blocks[block].axis is not Axis.STEP:
            continue
        lacks = absent(blocks[block].data[row])
        if not lacks.any() or lacks.all():
            continue
        nearest = _nearest(batches, lacks)
        if (nearest != np.arange(len(nearest))).any():
            sources[name, member] = nearest
    return sources


def with_values(
    blocks: Sequence[Block], texts: Texts, sources: Sources
) -> tuple[list[Block], dict[Key, tuple[Axis, Array]]]:
    """The columns of a frame with the values of those batches."""

    def taken(key: Key, axis: Axis, values: Array) -> Array:
        source = _source(sources, key)
        return values if axis is not Axis.STEP or source is None else values[source]

    of_texts = {key: (axis, taken(key, axis, values)) for key, (axis, values) in texts.items()}
    return [_filled(block, sources) for block in blocks], of_texts


def _source(sources: Sources, key: Key) -> NDArray[np.int64] | None:
    """The sources of a column, or of the marks of a column; None if every batch has its own value."""
    name, member = key[0].removesuffix(KIND), key[1]
    return sources.get((name, member), sources.get((name, None)))


def _nearest(batches: Batches, lacks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The batch that each batch has its value from: itself, the last before it in its step, or else the next."""
    order = np.lexsort((batches.batch, batches.step, batches.rank))
    position, missing = np.arange(len(order)), lacks[order]
    step, rank = batches.step[order], batches.rank[order]
    before = np.maximum.accumulate(np.where(missing, -1, position))
    behind = np.minimum.accumulate(np.where(missing, len(order), position)[::-1])[::-1]
    sources = position.copy()
    for other in (behind, before):  # the earlier one counts
        near = other.clip(0, len(order) - 1)
        same = (other == near) & ~missing[near] & (step[near] == step) & (rank[near] == rank)
        sources = np.where(same, near, sources)
    result = np.empty_like(order)
    result[order] = order[sources]
    return result


def _filled(block: Block, sources: Sources) -> Block:
    """The block with each column, or the marks of each column, taken from the batches that it has its values from."""
    of_block = [_source(sources, key) for key in block.keys]
    if block.axis is not Axis.STEP or all(source is None for source in of_block):
        return block
    same_batch = np.arange(block.data.shape[1])
    index = np.array([same_batch if source is None else source for source in of_block])
    valid = None if block.valid is None else np.take_along_axis(block.valid, index, 1)
    return replace(block, data=np.take_along_axis(block.data, index, 1), valid=valid)
