"""The layout of a batch's tokens in memory, padded or packed, and their statistics per completion."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from declog.language import quantile_sketch as sketch
from declog.language.moments import STATS

Tensor = torch.Tensor
R = TypeVar("R")
_HOST = torch.device("cpu")
_EXTREMES = {"min": (torch.amin, math.inf), "max": (torch.amax, -math.inf)}  # each with its result for no value
_SPREAD = frozenset({"m2", *_EXTREMES})  # statistics that need a scratch buffer


class Layout(ABC):
    """The positions of each completion's tokens. ``shape`` is the shape of values per token."""

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape
        # results that several folds need of a mask, with the mask itself, so that Python does not reuse its id
        self._of_masks: dict[tuple[Any, ...], tuple[Tensor | None, Any]] = {}

    @abstractmethod
    def spread(self, values: Tensor) -> Tensor:
        """Return values per completion in a shape that broadcasts with values per token."""

    @abstractmethod
    def places(self, mask: Tensor) -> Tensor:
        """The position of each token of a mask among its completion's tokens of the mask, from 0."""

    def fold(self, value: Tensor, mask: Tensor | None, stats: Sequence[str]) -> dict[str, Tensor]:
        """Return statistics per completion of a value over the tokens of a mask."""
        moments = [stat for stat in stats if stat in STATS]
        computed: Mapping[str, Tensor] = {}
        if not value.dtype.is_floating_point and value.dtype is not torch.bool:
            value = value.double()
        if moments and value.dtype is torch.bool:
            computed = _of_bools(self.count(mask, value.device), self._true(value, mask), moments)
        elif moments:
            computed = self._moments(value, mask, moments)
        statistics: dict[str, Tensor] = {stat: computed[stat] for stat in moments}
        if len(moments) == len(stats):
            return statistics
        value = value if value.dtype.is_floating_point else value.float()
        for stat in ("first", "last"):
            if stat in stats:
                statistics[stat] = self._edge(value, mask, last=stat == "last")
        if "hist" in stats:
            statistics["hist"] = histogram(value, mask)
        return statistics

    def trace(self, value: Tensor, mask: Tensor | None, head: int, tail: int) -> Tensor:
        """Return the first and last values of the tokens of a mask, and the number of tokens: ``[completions, k]``.

        ``k`` is ``head + tail + 1``. A completion with at most ``head + tail`` tokens has all their values, followed by
        NaN or, for integers, 0.
        """
        size = head + tail
        slots, counts = self._once("slots", mask, lambda: self._slotted(mask, value.device, head, tail), head, tail)
        value = value if value.dtype.is_floating_point else value.long()
        nothing = math.nan if value.dtype.is_floating_point else 0
        rows = torch.full((len(counts), size + 1), nothing, dtype=value.dtype, device=value.device)
        rows.view(-1).scatter_(0, slots.reshape(-1), value.reshape(-1))
        rows[:, size] = counts
        return rows

    def _once(self, what: str, mask: Tensor | None, make: Callable[[], R], *kind: object) -> R:
        """Return a result that several folds need of a mask, computed once; it depends also on ``kind``."""
        key = (what, id(mask), *kind)
        if key not in self._of_masks:
            self._of_masks[key] = mask, make()
        result: R = self._of_masks[key][1]
        return result

    def _slotted(self, mask: Tensor | None, device: torch.device, head: int, tail: int) -> tuple[Tensor, Tensor]:
        """Return each token's flat position in the result of ``trace``, and the number of tokens of each completion.

        Tokens that are left out have the position of their completion's last entry, which ``trace`` overwrites.
        """
        size = head + tail
        exists = torch.ones(self.shape, dtype=torch.bool, device=device) if mask is None else mask
        places, counts = self.places(exists), self.count(mask, device).to(device)
        number = self.spread(counts)
        before = (places < head) | (number <= size)
        slots = torch.where(before, places, places - number + size)
        slots = torch.where(exists & (before | (slots >= head)), slots, size)
        return slots + self.spread(torch.arange(len(counts), device=device)) * (size + 1), counts

    @abstractmethod
    def count(self, mask: Tensor | None, device: torch.device = _HOST) -> Tensor:
        """The number of tokens of each completion."""

    @abstractmethod
    def _true(self, value: Tensor, mask: Tensor | None) -> Tensor:
        """The number of true bools of each completion."""

    @abstractmethod
    def _moments(self, value: Tensor, mask: Tensor | None, stats: Sequence[str]) -> dict[str, Tensor]:
        """Return the statistics ``stats`` of floats, named as in ``language.moments``."""

    @abstractmethod
    def _edge(self, value: Tensor, mask: Tensor | None, *, last: bool) -> Tensor:
        """The first or last value of each completion that is not missing; NaN if there is none."""


class Padded(Layout):
    """``[completions, tokens]``. Folds with one mask share its weight and its wall; all folds share a scratch buffer.

    On the CPU, values are folded as plain numbers until a row's sum is NaN or infinite: it is if any value of the row
    is, also in the padding. On a GPU, asking for this would wait for the device.
    """

    def __init__(self, shape: torch.Size) -> None:
        super().__init__(shape)
        self._scratch: dict[torch.dtype, Tensor] = {}
        self._plain = True  # False once a NaN or an infinity was found

    def spread(self, values: Tensor) -> Tensor:
        return values.unsqueeze(1) if values.ndim else values

    def places(self, mask: Tensor) -> Tensor:
        return mask.cumsum(1) - 1

    def _moments(self, value: Tensor, mask: Tensor | None, stats: Sequence[str]) -> dict[str, Tensor]:
        plain = self._fold_plain(value, mask, stats) if self._plain and value.is_cpu else None
        return self._fold_any(value, mask, stats) if plain is None else plain

    def _fold_plain(self, value: Tensor, mask: Tensor | None, stats: Sequence[str]) -> dict[str, Tensor] | None:
        """Fold plain numbers; return None if a value is NaN or infinite, also in the padding."""
        weight = None if mask is None else self._weight(mask, value.dtype)
        total = value.sum(1) if weight is None else torch.mul(value, weight, out=self._buffer(value)).sum(1)
        if not np.isfinite(total.numpy()).all():
            self._plain = False
            return None
        scratch = value if _SPREAD.isdisjoint(stats) else self._buffer(value)
        n = self._number(value, mask)
        statistics = {"n": n, "total": total}
        if "m2" in stats:
            torch.sub(value, (total / n.clamp(min=1)).unsqueeze(1).to(value.dtype), out=scratch)
            if weight is not None:
                scratch.mul_(weight)
            statistics["m2"] = scratch.mul_(scratch).sum(1)
        for stat, moved in (("min", torch.add), ("max", torch.sub)):
            if stat in stats:
                walled = value if mask is None else moved(value, self._wall(mask, value.dtype), out=scratch)
                statistics[stat] = _extreme(stat, walled)
        return statistics

    def _fold_any(self, value: Tensor, mask: Tensor | None, stats: Sequence[str]) -> dict[str, Tensor]:
        """Fold any values and padding: values of tokens that do not exist become NaN, and NaN is left out."""
        # free the buffers of `_fold_plain`, so that there are at most three
        self._of_masks = {key: item for key, item in self._of_masks.items() if key[0] not in ("weight", "wall")}
        kept = value if mask is None else _masked(value, mask)
        scratch = self._buffer(value)
        n, total = torch.isnan(kept).logical_not_().sum(1).to(value.dtype), torch.nansum(kept, 1)
        statistics = {"n": n, "total": total}
        if "m2" in stats:
            distance = torch.sub(kept, (total / n.clamp(min=1)).unsqueeze(1), out=scratch)
            statistics["m2"] = torch.where(total.isfinite(), torch.nansum(distance.mul_(distance), 1), math.nan)
        for stat, (_, wall) in _EXTREMES.items():
            if stat in stats:
                torch.nan_to_num(kept, nan=wall, posinf=math.inf, neginf=-math.inf, out=scratch)
                statistics[stat] = _extreme(stat, scratch)
        return statistics

    def _true(self, value: Tensor, mask: Tensor | None) -> Tensor:
        return _true(value if mask is None else value & mask)

    def _edge(self, value: Tensor, mask: Tensor | None, *, last: bool) -> Tensor:
        if not value.shape[1]:
            return torch.full((value.shape[0],), math.nan, dtype=value.dtype, device=value.device)
        exists = _exists(value, mask)
        places = torch.arange(1, value.shape[1] + 1, device=value.device)
        best, position = torch.where(exists, places if last else value.shape[1] + 1 - places, 0).max(1)
        return torch.where(best > 0, value.gather(1, position.unsqueeze(1)).squeeze(1), math.nan)

    # -- results that several folds share

    def count(self, mask: Tensor | None, device: torch.device = _HOST) -> Tensor:
        if mask is None:
            return torch.full((self.shape[0],), self.shape[1], device=device)
        _, weighed = self._of_masks.get(("number", id(mask), torch.float32), (mask, None))
        return self._once("count", mask, lambda: _true(mask) if weighed is None else weighed.long())

    def _weight(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """The mask as numbers: 1 where a token exists, else 0."""
        return self._once("weight", mask, lambda: _numbers(mask, dtype), dtype)

    def _number(self, value: Tensor, mask: Tensor | None) -> Tensor:
        """The number of tokens of each completion, in the values' dtype: exact up to 2**24."""
        if mask is None:
            return self.count(mask, value.device)
        return self._once("number", mask, lambda: self._weight(mask, value.dtype).sum(1), value.dtype)

    def _wall(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """Numbers to add or subtract before an extreme: 0 where a token exists, else infinity."""
        return self._once("wall", mask, lambda: torch.reciprocal(self._weight(mask, dtype)).sub_(1.0), dtype)

    def _buffer(self, value: Tensor) -> Tensor:
        if value.dtype not in self._scratch:
            self._scratch[value.dtype] = torch.empty(self.shape, dtype=value.dtype, device=value.device)
        return self._scratch[value.dtype]


class Packed(Layout):
    """``[tokens]``: the tokens of one completion follow those of another; ``lengths`` is ``[completions]``."""

    def __init__(self, shape: torch.Size, lengths: Tensor) -> None:
        super().__init__(shape)
        self._rows = len(lengths)
        ends = lengths.cumsum(0)
        places = torch.arange(shape[0], device=lengths.device)
        # a search instead of repeat_interleave, which would wait for the device
        self._row = torch.searchsorted(ends, places, right=True).clamp_(max=max(self._rows - 1, 0))

    def spread(self, values: Tensor) -> Tensor:
        return values.index_select(0, self._row) if values.ndim else values

    def places(self, mask: Tensor) -> Tensor:
        counted = self._sum(mask.long())
        return mask.cumsum(0) - 1 - (counted.cumsum(0) - counted).index_select(0, self._row)

    def count(self, mask: Tensor | None, device: torch.device = _HOST) -> Tensor:
        return self._sum(torch.ones_like(self._row) if mask is None else mask.long())

    def _true(self, value: Tensor, mask: Tensor | None) -> Tensor:
        return self._sum((value if mask is None else value & mask).long())

    def _moments(self, value: Tensor, mask: Tensor | None, stats: Sequence[str]) -> dict[str, Tensor]:
        value = value.double()  # index_add_ adds many tokens in order, which would lose digits in float32
        exists = _exists(value, mask)
        n = self._sum(exists.long())
        total = self._sum(torch.where(exists, value, 0.0))
        statistics = {"n": n, "total": total}
        if "m2" in stats:
            distance = torch.where(exists, value - (total / n.clamp(min=1)).index_select(0, self._row), 0.0)
            statistics["m2"] = self._sum(distance * distance)
        for stat, (_, wall) in _EXTREMES.items():
            if stat in stats:
                start = torch.full((self._rows,), wall, dtype=value.dtype, device=value.device)
                statistics[stat] = start.scatter_reduce_(0, self._row, torch.where(exists, value, wall), f"a{stat}")
        return statistics

    def _sum(self, values: Tensor) -> Tensor:
        return torch.zeros(self._rows, dtype=values.dtype, device=values.device).index_add_(0, self._row, values)

    def _edge(self, value: Tensor, mask: Tensor | None, *, last: bool) -> Tensor:
        value, tokens, exists = value.double(), len(value), _exists(value, mask)
        places = torch.arange(tokens, device=value.device)
        none = -1 if last else tokens
        start = torch.full((self._rows,), none, device=value.device)
        best = start.scatter_reduce_(0, self._row, torch.where(exists, places, none), "amax" if last else "amin")
        if not tokens:
            return torch.full((self._rows,), math.nan, dtype=value.dtype, device=value.device)
        return torch.where(best != none, value.index_select(0, best.clamp(0, tokens - 1)), math.nan)


def _exists(value: Tensor, mask: Tensor | None) -> Tensor:
    """Where tokens exist and their value is not missing."""
    return value == value if mask is None else (value == value) & mask


def _numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bool mask as 0 and 1; converting it as bytes takes a fifth of the time."""
    return mask.view(torch.uint8).to(dtype)


def _true(values: Tensor) -> Tensor:
    """The number of true bools in each row. On a CPU summing floats takes a third of the time, exact up to 2**24."""
    return _numbers(values, torch.float32).sum(1).long() if values.is_cpu and values.shape[1] < 2**24 else values.sum(1)


def _masked(value: Tensor, mask: Tensor) -> Tensor:
    """Return a new tensor: the value where the mask is true, else NaN."""
    if not value.is_cpu:
        return torch.where(mask, value, math.nan)
    return _numbers(mask, value.dtype).reciprocal_().mul_(0.0).add_(value)  # 0 * inf is NaN; faster than torch.where


def _extreme(stat: str, values: Tensor) -> Tensor:
    """The least or greatest value of each row; +-inf for rows without tokens."""
    reduce, wall = _EXTREMES[stat]
    return reduce(values, 1) if values.shape[1] else values.new_full((values.shape[0],), wall)


def _of_bools(n: Tensor, true: Tensor, stats: Sequence[str]) -> dict[str, Tensor]:
    statistics = {"n": n, "total": true}
    if "m2" in stats:
        statistics["m2"] = (true * (n - true)).double() / n.clamp(min=1)
    if "min" in stats:
        statistics["min"] = torch.where(n > 0, (true == n).float(), math.inf)
    if "max" in stats:
        statistics["max"] = torch.where(n > 0, (true > 0).float(), -math.inf)
    return statistics


def histogram(value: Tensor, mask: Tensor | None) -> Tensor:
    """The number of tokens in each bin of a sketch, ``[sketch.SIZE]``."""
    exists = _exists(value, mask)
    size = value.abs()
    bins = torch.log(size.clamp(sketch.SMALLEST, sketch.GREATEST) / sketch.SMALLEST).div_(sketch.GROWTH).round_().long()
    bin = torch.where(value < 0, sketch.SIDE - 1 - bins, sketch.SIDE + 1 + bins)
    bin = torch.where(size < sketch.SMALLEST, sketch.SIDE, bin)
    bin = torch.where(exists, bin, sketch.SIZE)  # an extra bin for tokens that do not exist
    counts = torch.zeros(sketch.SIZE + 1, dtype=torch.int64, device=value.device)
    return counts.scatter_add_(0, bin.flatten(), torch.ones_like(bin).flatten()).narrow(0, 0, sketch.SIZE)


def in_blocks(signals: Mapping[str, Tensor], rows: int, step: int) -> Iterator[tuple[Mapping[str, Tensor], int]]:
    """Yield the signals of ``step`` completions at a time, with the number of these completions."""
    if step >= rows:
        yield signals, rows
        return
    for start in range(0, rows, step):
        some = {name: value[start : start + step] if value.ndim else value for name, value in signals.items()}
        yield some, min(step, rows - start)
