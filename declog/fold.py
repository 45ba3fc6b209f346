"""Folds per-token expressions on the device they live on: torch in, per-completion statistics out.

This is the only arithmetic on the training thread. Padding is never read as a value, whatever it holds, and
a NaN inside the mask is missing. Values are float32 (float64 where the input is); nothing waits for the
device. Imports torch and the typed tree only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from declog.axes import Axis, Kind
from declog.errors import InputError, RuntimeFailure
from declog.functions import DEFAULT, Functions
from declog.plan import FoldOp
from declog.tree import Node

Tensor = torch.Tensor
_HALF = (torch.bfloat16, torch.float16)


class TokenView:
    """One batch's signals on the device, and the values computed from them; each node once.

    Per-token values are ``[rows, tokens]``, per-completion values ``[rows, 1]``, step values ``[1, 1]``.
    """

    def __init__(self, signals: Mapping[str, Tensor], functions: Functions = DEFAULT) -> None:
        self._signals = signals
        self._functions = functions
        self._values: dict[int, Any] = {}
        self._masks: dict[frozenset[int], Tensor | None] = {}

    def value(self, node: Node) -> Any:
        """The value of a node: a tensor, or a Python constant."""
        known = self._values.get(node.index)
        if known is None:
            known = self._values[node.index] = self._compute(node)
        return known

    def mask(self, nodes: Sequence[Node]) -> Tensor | None:
        """The tokens that exist under all of some masks; None where every token does."""
        key = frozenset(node.index for node in nodes)
        if key not in self._masks:
            found: Tensor | None = None
            for node in nodes:
                one = self.value(node)
                if one.dtype is not torch.bool:  # it never came
                    found = one
                    break
                found = one if found is None else found & one
            self._masks[key] = found
        return self._masks[key]

    def _compute(self, node: Node) -> Any:
        if node.op == "const":
            return node.param("value")
        if node.op == "signal":
            return self._signal(node)
        if node.op == "size":
            mask = self.mask(tuple(node.mask))
            return torch.tensor(torch.nan) if mask is None else mask.sum(1, keepdim=True)
        if node.over is Axis.TOKEN:
            return self._aggregate(node)
        function = self._functions.get(node.op)
        if function is None:
            raise RuntimeFailure("DL605", f"the function `{node.op}` is not registered in this process")
        arrays = [self.value(arg) for arg in node.args]
        if function.tensors:
            whole = torch.broadcast_tensors(
                *(item if isinstance(item, Tensor) else torch.tensor(item) for item in arrays)
            )
            result = function.run(*whole)
            if not isinstance(result, Tensor) or result.shape != whole[0].shape:
                raise RuntimeFailure("DL314", f"`{node.op}` must return a tensor of shape {tuple(whole[0].shape)}")
            return result
        return function.run(torch, *arrays)

    def _signal(self, node: Node) -> Tensor:
        name = node.param("name")
        value = self._signals.get(name)
        if value is None:
            return torch.tensor(torch.nan)
        if node.type.kind is Kind.BOOL:
            value = value if value.dtype is torch.bool else value != 0
        elif value.dtype in _HALF:
            value = value.float()
        axis = node.type.axis
        return value if axis is Axis.TOKEN else value.reshape(-1, 1) if value.ndim else value.reshape(1, 1)

    def _aggregate(self, node: Node) -> Tensor:
        """A per-completion value inside a per-token expression: ``[rows, 1]``."""
        (arg,) = node.args
        found = fold(self.value(arg), self.mask(tuple(arg.mask)), ("n", "total", "m2", "min", "max", "first", "last"))
        n, total, m2 = found["n"], found["total"], found["m2"]
        nan = torch.full_like(total, torch.nan)
        some, many = n > 0, n > 1
        result = {
            "count": lambda: n,
            "sum": lambda: torch.where(some, total, nan),
            "mean": lambda: torch.where(some, total / n, nan),
            "var": lambda: torch.where(many, m2 / (n - 1), nan),
            "std": lambda: torch.where(many, (m2 / (n - 1)).sqrt(), nan),
            "pstd": lambda: torch.where(some, (m2 / n).sqrt(), nan),
            "min": lambda: torch.where(some, found["min"], nan),
            "max": lambda: torch.where(some, found["max"], nan),
            "any": lambda: total > 0,
            "all": lambda: total == n,
            "first": lambda: found["first"],
            "last": lambda: found["last"],
        }[node.op]()
        return result.reshape(-1, 1)


def run(ops: Sequence[FoldOp], signals: Mapping[str, Tensor], functions: Functions = DEFAULT) -> dict[str, Tensor]:
    """The columns ``{fold}.{stat}`` of one batch, each ``[rows]``; none where the fold's signals never came."""
    view = TokenView(signals, functions)
    columns: dict[str, Tensor] = {}
    with torch.no_grad():
        for op in ops:
            mask = view.mask(op.mask)
            if mask is not None and mask.ndim < 2:
                continue  # an optional mask never came
            if op.expr is None:
                assert mask is not None
                columns[op.column("n")] = mask.sum(1)
                continue
            value = view.value(op.expr)
            if (
                not isinstance(value, Tensor)
                or value.ndim < 2
                or (value.shape[-1] == 1 and mask is not None and mask.shape[-1] != 1)
            ):
                if not isinstance(value, Tensor) or value.ndim < 2 or mask is None:
                    continue  # an optional signal never came
                value = value.expand(mask.shape)
            if mask is not None and mask.shape != value.shape:
                raise InputError(
                    "DL503",
                    f"`{op.expr}` has shape {tuple(value.shape)}, and its mask {tuple(mask.shape)}",
                    "observe them for the same tokens",
                )
            for stat, column in fold(value, mask, op.stats).items():
                columns[op.column(stat)] = column
    return columns


def fold(value: Tensor, mask: Tensor | None, stats: Sequence[str]) -> dict[str, Tensor]:
    """Statistics of ``value[rows, tokens]`` over the tokens of ``mask``, each ``[rows]``; NaN is missing.

    ``n`` counts, ``total`` sums, ``m2`` is the sum of squared distances from the mean; ``min`` and ``max`` are
    +-inf and ``first`` and ``last`` NaN where nothing counts.
    """
    if value.dtype is torch.bool:
        return _fold_bool(value, mask, stats)
    if not value.is_floating_point():
        value = value.double()
    exists = value == value
    if mask is not None:
        exists &= mask
    found: dict[str, Tensor] = {}
    n = exists.sum(1)
    zeroed = torch.where(exists, value, 0)
    total = zeroed.sum(1)
    for stat in stats:
        if stat == "n":
            found["n"] = n
        elif stat == "total":
            found["total"] = total
        elif stat == "m2":
            mean = (total / n.clamp(min=1)).unsqueeze(1)
            distance = torch.where(exists, value - mean, 0)
            found["m2"] = torch.linalg.vecdot(distance, distance)
        elif stat == "min":
            found["min"] = (
                torch.where(exists, value, torch.inf).amin(1) if value.shape[1] else torch.full_like(total, torch.inf)
            )
        elif stat == "max":
            found["max"] = (
                torch.where(exists, value, -torch.inf).amax(1) if value.shape[1] else torch.full_like(total, -torch.inf)
            )
        else:
            found[stat] = _edge(value, exists, last=stat == "last")
    return found


def _fold_bool(value: Tensor, mask: Tensor | None, stats: Sequence[str]) -> dict[str, Tensor]:
    """A bool's statistics follow from how many tokens there are and how many are true."""
    n = torch.full((value.shape[0],), value.shape[1], device=value.device) if mask is None else mask.sum(1)
    true = (value if mask is None else value & mask).sum(1)
    found: dict[str, Tensor] = {}
    for stat in stats:
        if stat == "n":
            found["n"] = n
        elif stat == "total":
            found["total"] = true
        elif stat == "m2":
            found["m2"] = true * (n - true) / n.clamp(min=1)
        elif stat == "min":
            found["min"] = torch.where(n > 0, (true == n).float(), torch.inf)
        elif stat == "max":
            found["max"] = torch.where(n > 0, (true > 0).float(), -torch.inf)
        else:
            exists = torch.ones_like(value) if mask is None else mask
            found[stat] = _edge(value.float(), exists, last=stat == "last")
    return found


def _edge(value: Tensor, exists: Tensor, *, last: bool) -> Tensor:
    if not value.shape[1]:
        return torch.full((value.shape[0],), torch.nan, dtype=value.dtype, device=value.device)
    places = torch.arange(1, value.shape[1] + 1, device=value.device)
    weight = torch.where(exists, places if last else value.shape[1] + 1 - places, 0)
    best, place = weight.max(1)
    picked = value.gather(1, place.unsqueeze(1)).squeeze(1)
    return torch.where(best > 0, picked, torch.nan)
