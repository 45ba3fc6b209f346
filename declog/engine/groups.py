"""Groups of completions: their ids, as digests that are equal on all ranks, and their rows.

An id is a number, a text, or anything that JSON can hold, such as the messages of a prompt. Ranks send a digest of
its canonical JSON, so that no text is sent for grouping.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from declog.errors import RuntimeFailure
from declog.language.absence import Kind
from declog.language.segmented import Array, Segments, aggregate, count, present
from declog.plans.ops import Grouping
from declog.records import Image

_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


def digests(ids: Iterable[Any]) -> Array:
    """A 64-bit digest of each id, None for a row without an id. The array has objects only if it has a None."""
    once = lru_cache(maxsize=None, typed=True)(_digest)  # a prompt is repeated for each of its completions
    numbers = [
        None if item is None or item != item else once(item) if isinstance(item, str | int) else _digest(item)
        for item in (ids.tolist() if isinstance(ids, np.ndarray) else ids)
    ]
    return np.array(numbers, object if None in numbers else np.int64)


def _digest(item: Any) -> int:
    return digest(_JSON.encode(_canonical(item)))


def digest(text: str) -> int:
    """A 64-bit number of a text."""
    data = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(data, "little", signed=True)


def _canonical(item: Any) -> Any:
    """An id in a form whose JSON is equal for equal ids: integers of any dtype, mappings in any order, equal images."""
    if isinstance(item, np.generic):
        item = item.item()
    if isinstance(item, float) and item.is_integer():
        return int(item)
    if isinstance(item, Image):
        content = item.encoded()
        return {**item, "content": None if content is None else hashlib.blake2b(content).hexdigest()}
    if isinstance(item, Mapping):
        return {str(key): _canonical(value) for key, value in item.items()}
    if isinstance(item, list | tuple | np.ndarray):
        return [_canonical(value) for value in item]
    return item


def segments(
    grouping: Grouping, ids: Array | None, pieces: Segments, steps: Array, least: int | None = 1
) -> Segments:  # fmt: skip
    """The group of each row, by id or by a fixed group size; no group spans two of the ``pieces``.

    Where groups are split and each id has whole groups of the size, the rows of a group are those of its id.
    ``contradiction`` compares the ids with the size, and explains ``steps`` and ``least``.
    """
    size = grouping.size
    if size is None:
        if ids is None:  # no groups: values per group are absent
            return Segments(np.zeros(len(pieces.index), np.int64), 0)
        there = present(ids)  # a row without an id is a group of its own
        alone = np.where(there, -1, np.arange(len(ids)))
        return Segments.of_keys(pieces.index, np.where(there, ids, 0).astype(np.int64), alone)
    if (pieces.counts % size).any():
        raise RuntimeFailure.of("DL507.pieces", size=size, counts=pieces.counts.tolist())
    if pieces.order is None:
        total = len(pieces.index)
        groups = Segments(np.arange(total) // size, total // size, size if total else None)
    else:
        groups = Segments.of_keys(pieces.index, pieces.position // size)
    if ids is not None:
        if grouping.split != "none" and present(ids).all():
            of_ids = Segments.of_keys(pieces.index, ids.astype(np.int64))
            groups = groups if (of_ids.counts % size).any() else Segments.of_keys(of_ids.index, of_ids.position // size)
        order = np.argsort(pieces.index, kind="stable")
        wrong = contradiction(grouping, ids[order], groups.index[order], pieces.index[order], steps[order], least)
        if wrong is not None:
            raise RuntimeFailure.of("DL507.size", size=size, names=names_of(grouping), seen=wrong.seen, fix=wrong.fix)
    return groups


# by `axes.group.split`, the edits that let a group be spread further
_WIDER = {"none": "axes.group.split=batches or axes.group.split=ranks", "batches": "axes.group.split=ranks"}


class Contradiction(NamedTuple):
    """A contradiction between ids and a group size, for a message: what the ids show, and a size that fits them.

    ``mixed``: a group has several ids. Else each id fills several groups in a row.
    """

    seen: str
    fix: str
    mixed: bool


def contradiction(
    grouping: Grouping, ids: Array, groups: Array, pieces: Array, steps: Array, least: int | None
) -> Contradiction | None:
    """Compare ids with groups of a fixed size; None: they agree. Ids, groups, pieces and steps are ``[rows]``.

    A group with several ids is a contradiction. So are ids with more than the size's rows in a row: with ``least`` 1
    any such id; with a greater ``least`` only if a step has at least so many ids, and all are such; with None never. An
    id that comes again elsewhere is no contradiction: a prompt may be drawn twice.
    """
    size = grouping.size or 1
    rows = np.flatnonzero(present(ids))
    if not len(rows):
        return None
    names, index = np.unique(ids[rows].astype(np.int64), return_inverse=True)
    groups, pieces, steps = groups[rows], pieces[rows], steps[rows]
    other = np.diff(index) != 0
    starts = np.flatnonzero(np.r_[True, other | (np.diff(pieces) != 0)])
    lengths = np.diff(np.r_[starts, len(rows)])
    mixed = bool((other & (np.diff(groups) == 0)).any())
    extreme = np.max if least == 1 else np.min
    of_steps = [] if least is None else [steps[starts] == step for step in np.unique(steps)]
    longer = any(len(np.unique(index[starts[of]])) >= (least or 0) and extreme(lengths[of]) > size for of in of_steps)
    if not mixed and not longer:
        return None
    few, many = int(lengths.min()), int(lengths.max())
    counts = f"each in {few if few == many else f'{few} to {many}'} rows on end"
    seen = (
        f"{len(rows)} rows have {len(names)} ids, {counts if many > 1 else 'and no two rows of an id stand together'}"
    )
    fix = f"axes.group.size={few}, or " if few == many > 1 else ""
    parts = np.unique(np.unique(np.stack([pieces, index]), axis=1, return_counts=True)[1]).tolist()
    if len(parts) == 1 and parts[0] < size and size % parts[0] == 0 and grouping.split in _WIDER:
        fix = f"{_WIDER[grouping.split]}, by where the other {size - parts[0]} rows of each id are; else {fix}"
    return Contradiction(seen, fix, mixed)


def names_of(grouping: Grouping) -> str:
    """The signals that name groups, for messages."""
    return " or ".join(f"`{name}`" for name in grouping.of)


def id_signal(grouping: Grouping) -> str:
    """The signal that a message asks for, so that rows are grouped by ids."""
    return "prompt_id" if "prompt_id" in grouping.of or not grouping.of else grouping.of[0]


def uneven(grouping: Grouping, step: int, rank: int, rows: int) -> RuntimeFailure:
    """The failure of a batch whose number of rows is no multiple of the group size. Groups by ids may have any size."""
    size = grouping.size or 1
    keys = '"axes.group.size=null" (axes: {group: {size: null}})'
    ids = f"a short last batch? {keys}, and log.observe({id_signal(grouping)}=...), the prompt of each completion"
    split = 'groups spread over batches? "axes.group.split=batches"; over ranks? "axes.group.split=ranks"'
    short = [ids] * bool(grouping.of)
    entire = f"else observe whole groups in a batch, a multiple of {size} completions"
    fixes = [split, *short, entire] if rows < size else [*short, split, entire]
    return RuntimeFailure.of("DL507.batch", size=size, step=step, rank=rank, rows=rows, fix="\n".join(fixes))


def too_few(values: Array, parts: Segments | None, least: int) -> Kind:
    """The segments with fewer values than ``least``; without segments, the rows of a family ``[members, rows]``."""
    counts = present(values).sum(0) if parts is None else aggregate(count, values, parts)
    return few(counts, least)


def few(counts: Array, least: int) -> Kind:
    """Where counts are below ``least``; False: nowhere.

    0 does not count as too small: an aggregate of only missing values is missing, not absent.
    """
    too_small: Array = (counts > 0) & (counts < least)
    return too_small if too_small.any() else False
