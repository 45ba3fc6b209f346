"""Folds per-token expressions on the device they live on: torch in, per-completion statistics out.

This is the only arithmetic on the training thread. Padding is never read as a value, whatever it holds, and a
NaN inside the mask is missing. Values are float32 (float64 where the input is); nothing waits for a device.
Imports torch, the plan and the typed tree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from declog.axes import Axis, Kind
from declog.errors import InputError, RuntimeFailure
from declog.functions import DEFAULT, Functions
from declog.layout import Layout, Packed, Padded
from declog.plan import FoldOp
from declog.tree import Node

Tensor = torch.Tensor
_HALF = (torch.bfloat16, torch.float16)
_CPU_BLOCK = 2**15  # tokens: 128 KiB of float32, so that all that is computed from them stays in the cache
_GPU_BLOCK = 2**24  # tokens: 64 MiB of float32; more blocks would be more kernels to launch


class TokenView:
    """One batch's signals on the device, and the values computed from them; each node once.

    Per-token values have the layout's shape, per-completion values ``[completions]``, step values ``[]``; a
    signal that never came is a NaN ``[]``.
    """

    def __init__(self, signals: Mapping[str, Tensor], layout: Layout, functions: Functions = DEFAULT) -> None:
        self.layout = layout
        self._signals = signals
        self._functions = functions
        self._values: dict[int, Any] = {}
        self._masks: dict[int | frozenset[int], Tensor | None] = {}

    def value(self, node: Node) -> Any:
        """The value of a node: a tensor, or a Python constant."""
        known = self._values.get(node.index)
        if known is None:
            known = self._values[node.index] = self._compute(node)
        return known

    def mask(self, nodes: Sequence[Node]) -> Tensor | None:
        """The tokens that exist under all of some masks; None where every token does."""
        key = nodes[0].index if len(nodes) == 1 else frozenset(node.index for node in nodes)
        if key not in self._masks:
            found: Tensor | None = None
            for node in nodes:
                one = self._spread(node)
                if one.dtype is not torch.bool:  # an optional mask that never came: nothing is known to exist
                    found = torch.zeros(self.layout.shape, dtype=torch.bool)
                    break
                found = one if found is None else found & one
            self._masks[key] = None if found is None else torch.broadcast_to(found, self.layout.shape)
        return self._masks[key]

    def _spread(self, node: Node) -> Any:
        """A value as it combines with per-token values."""
        value = self.value(node)
        return self.layout.spread(value) if node.type.axis is Axis.COMPLETION and isinstance(value, Tensor) else value

    def _compute(self, node: Node) -> Any:
        if node.op == "const":
            return node.param("value")
        if node.op == "signal":
            return self._signal(node)
        if node.op == "size":
            mask = self.mask(tuple(node.mask))
            return self.layout.fold(None, mask, ("n",))["n"]
        if node.over is Axis.TOKEN:
            (arg,) = node.args
            value = torch.broadcast_to(torch.as_tensor(self._spread(arg)), self.layout.shape)
            return _AGGREGATES[node.op](self.layout.fold(value, self.mask(tuple(arg.mask)), _NEEDS[node.op]))
        function = self._functions.get(node.op)
        if function is None:
            raise RuntimeFailure("DL605", f"the function `{node.op}` is not registered in this process")
        per_token = node.type.axis is Axis.TOKEN
        arrays = [self._spread(arg) if per_token else self.value(arg) for arg in node.args]
        if not function.tensors:
            return function.run(torch, *arrays)
        whole = torch.broadcast_tensors(*(item if isinstance(item, Tensor) else torch.tensor(item) for item in arrays))
        result = function.run(*whole)
        if not isinstance(result, Tensor) or result.shape != whole[0].shape:
            raise RuntimeFailure("DL314", f"`{node.op}` must return a tensor of shape {tuple(whole[0].shape)}")
        return result

    def _signal(self, node: Node) -> Tensor:
        value = self._signals.get(node.param("name"))
        if value is None:
            return torch.tensor(math.nan)
        if node.type.kind is Kind.BOOL:
            return value if value.dtype is torch.bool else value != 0
        return value.float() if value.dtype in _HALF else value


_NEEDS: Mapping[str, tuple[str, ...]] = {
    "count": ("n",), "sum": ("n", "total"), "mean": ("n", "total"), "var": ("n", "total", "m2"),
    "std": ("n", "total", "m2"), "pstd": ("n", "total", "m2"), "min": ("n", "min"), "max": ("n", "max"),
    "any": ("n", "total"), "all": ("n", "total"), "first": ("first",), "last": ("last",),
}  # fmt: skip

_AGGREGATES: Mapping[str, Any] = {
    "count": lambda s: s["n"],
    "sum": lambda s: _there(s["n"] > 0, s["total"]),
    "mean": lambda s: _there(s["n"] > 0, s["total"] / s["n"]),
    "var": lambda s: _there(s["n"] > 1, s["m2"] / (s["n"] - 1)),
    "std": lambda s: _there(s["n"] > 1, (s["m2"] / (s["n"] - 1)).sqrt()),
    "pstd": lambda s: _there(s["n"] > 0, (s["m2"] / s["n"]).sqrt()),
    "min": lambda s: _there(s["n"] > 0, s["min"]),
    "max": lambda s: _there(s["n"] > 0, s["max"]),
    "any": lambda s: s["total"] > 0,
    "all": lambda s: s["total"] == s["n"],
    "first": lambda s: s["first"],
    "last": lambda s: s["last"],
}


def _there(keep: Tensor, values: Tensor) -> Tensor:
    return torch.where(keep, values, math.nan)


def run(ops: Sequence[FoldOp], signals: Mapping[str, Tensor], tokens: Mapping[str, Tensor], lengths: Tensor | None,
        functions: Functions = DEFAULT) -> dict[str, Tensor]:  # fmt: skip
    """The columns ``{fold}.{stat}`` of one batch, each ``[completions]``; none where nothing per token came.

    ``n`` counts, ``total`` sums, ``m2`` is the sum of squared distances from the mean; ``min`` and ``max`` are
    +-inf and ``first`` and ``last`` NaN where nothing counts; ``hist`` is a sketch of the whole batch,
    ``[sketch.SIZE]``. ``tokens`` are the per-token signals among ``signals``; ``lengths`` says how they are
    packed.
    """
    if not tokens:
        return {}
    layout = _layout(tokens, lengths)
    rows = layout.shape[0]
    step = rows if lengths is not None else _block(ops, next(iter(tokens.values())))
    if step >= rows:
        return _fold(ops, signals, layout, functions)
    parts = []
    for start in range(0, rows, step):
        some = {name: value[start : start + step] if value.ndim else value for name, value in signals.items()}
        parts.append(_fold(ops, some, Padded(torch.Size((min(step, rows - start), layout.shape[1]))), functions))
    return {
        name: torch.stack([part[name] for part in parts]).sum(0)
        if name.endswith(".hist")
        else torch.cat([part[name] for part in parts])
        for name in parts[0]
    }


def _block(ops: Sequence[FoldOp], tokens: Tensor) -> int:
    """How many completions are folded at a time, where expressions need memory for what they compute."""
    if all(op.expr is None or op.expr.op == "signal" for op in ops):
        return len(tokens)
    return max(1, (_CPU_BLOCK if tokens.is_cpu else _GPU_BLOCK) // max(tokens.shape[1], 1))


def _fold(
    ops: Sequence[FoldOp], signals: Mapping[str, Tensor], layout: Layout, functions: Functions
) -> dict[str, Tensor]:
    view = TokenView(signals, layout, functions)
    columns: dict[str, Tensor] = {}
    for op in ops:
        mask = view.mask(op.mask)
        if op.expr is None:
            found = layout.fold(None, mask, op.stats)
        else:
            value = view._spread(op.expr)
            if not isinstance(value, Tensor) or not value.ndim:
                continue  # an optional signal never came
            found = layout.fold(value if value.shape == layout.shape else value.expand(layout.shape), mask, op.stats)
        for stat, column in found.items():
            columns[op.column(stat)] = column
    return columns


def _layout(tokens: Mapping[str, Tensor], lengths: Tensor | None) -> Layout:
    """One layout for all per-token signals of a batch; different shapes are an error."""
    first, *others = tokens.items()
    for name, value in others:
        if value.shape != first[1].shape:
            raise InputError(
                "DL503",
                f"`{first[0]}` has shape {tuple(first[1].shape)}, and `{name}` {tuple(value.shape)}",
                "observe signals of the same tokens together",
            )
    if lengths is None:
        return Padded(first[1].shape)
    if lengths.device.type == "cpu" and len(torch.nonzero(lengths.sum() - len(first[1]))):
        raise InputError(
            "DL503",
            f"`{first[0]}` has {len(first[1])} tokens, and the lengths add up to {int(lengths.sum())}",
            "check axes.token.lengths",
        )
    return Packed(first[1].shape, lengths)
