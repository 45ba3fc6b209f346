"""Folds per-token expressions to statistics per completion, on the device of the tokens.

This is the only arithmetic on the training thread. Padding is never read as a value, whatever it holds, and a NaN
inside the mask is missing. Nothing waits for a device.

Half-precision floats are computed in float32, float32 and float64 in their own precision. Integers and bools become
float64 before any arithmetic, like the numbers per completion; comparisons among integers use int64. So no number
wraps.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from declog.engine.blocks import Key
from declog.errors import RuntimeFailure
from declog.language import absence
from declog.language.absence import COMPARISONS, Kind, either, elementwise
from declog.language.dtypes import Axis, DType
from declog.language.functions import DEFAULT, FunctionOf
from declog.language.moments import FORMULAS
from declog.language.nodes import Node, walk
from declog.plans.ops import FoldOp
from declog.runtime.tokens.layout import Layout, Packed, Padded, in_blocks
from declog.runtime.tokens.sums import Sums, fold_sums
from declog.runtime.values.tensors import HALF, INTEGERS

Tensor = torch.Tensor
_ON_HOST = COMPARISONS - {"isclose"}  # arrays of one dtype: numpy compares them in a tenth of the time
_CPU_BLOCK = 2**15  # tokens: 128 KiB of float32, so that all values computed from a block stay in the cache
_GPU_BLOCK = 2**24  # tokens: 64 MiB of float32; smaller blocks would mean more kernels to launch


class TokenView:
    """The signals of one batch on the device, and the values computed from them; each node is computed once.

    Values per token have the layout's shape, values per completion ``[completions]``, values per step ``[]``. An absent
    signal is one NaN, ``[]``.
    """

    def __init__(
        self,
        signals: Mapping[str, Tensor],
        layout: Layout,
        device: torch.device,
        function_of: FunctionOf = DEFAULT.get,
        *,
        complete: bool = False,
    ) -> None:
        self.layout = layout
        self._complete = complete  # nothing is absent
        self._device = device
        self._signals = signals
        self._function_of = function_of
        self._values: dict[int, Any] = {}
        self._absences: dict[int, Kind] = {}
        self._masks: dict[frozenset[int], Tensor | None] = {}
        self._undecided: dict[int, Kind] = {}
        self._missing: dict[int, Kind] = {}
        self._failed: dict[int, BaseException] = {}

    def value(self, node: Node) -> Any:
        """The value of a node: a tensor, or a Python constant. A function that failed once is not called again."""
        cached = self._values.get(node.index)
        if cached is None:
            if node.index in self._failed:
                raise self._failed[node.index]
            try:
                cached = self._values[node.index] = self._compute(node) if self._complete else self._evaluate(node)
            except BaseException as error:
                self._failed[node.index] = error
                raise
        return cached

    def _evaluate(self, node: Node) -> Any:
        absent = self.absent(node)
        if absent is True:
            return torch.tensor(math.nan, device="cpu")
        return self._compute(node) if absent is False else _there(absent.logical_not(), self._compute(node))

    def absent(self, node: Node) -> Kind:
        """Where a value is absent, because the batch lacks a signal."""
        if self._complete or node.op == "const":
            return False
        if node.op == "signal":
            return node.leaf not in self._signals
        cached = self._absences.get(node.index)
        if cached is None:
            cached = self._absences[node.index] = self._absent(node)
        return cached

    def _absent(self, node: Node) -> Kind:
        if node.op in ("size", "index") or node.over is Axis.TOKEN:
            if any(self.absent(part) is True for part in (*node.mask, *node.args)) or any(map(self.nowhere, node.args)):
                return True
            return either(*(self.without(arg, arg.mask) for arg in node.args), self._few(node))
        of_args = [self.absent(arg) for arg in node.args]
        if all(part is False for part in of_args):
            return False
        absent = absence.absent(self._passed_on(node, of_args))  # a missing float is NaN
        # one bool is enough if the whole batch lacks the signal; reading it from the host waits for no device
        return bool(absent) if isinstance(absent, Tensor) and not absent.ndim and absent.is_cpu else absent

    def _few(self, node: Node) -> Kind:
        """The completions that have tokens, but too few for the aggregate."""
        least = FORMULAS[node.op].least if node.over is Axis.TOKEN else 1
        if least < 2:
            return False
        (arg,) = node.args
        counts = self.statistics(arg, self.mask(arg.mask), ("n",))["n"]
        return (counts > 0) & (counts < least)

    def statistics(self, node: Node, mask: Tensor | None, stats: Sequence[str]) -> dict[str, Tensor]:
        """Return statistics of a value over the tokens of a mask; a comparison with a missing value is missing."""
        return self.layout.fold(self._per_token(node), self._but(self.undecided(node), node, mask), stats)

    def nowhere(self, node: Node) -> bool:
        """Whether nothing tells which tokens a value has: no mask, no lengths, and no observed signal that it reads."""
        if node.mask or isinstance(self.layout, Packed):
            return False
        read = [leaf for leaf in walk(node) if leaf.op == "signal" and leaf.type.axis is Axis.TOKEN]
        return all(leaf.leaf not in self._signals for leaf in read)

    def _passed_on(self, node: Node, parts: Sequence[Kind]) -> Kind:
        """Where an elementwise value is absent or undecided, given in ``parts`` where its arguments are."""
        per_token = node.type.axis is Axis.TOKEN

        def over(position: int, value: Any) -> Any:
            return self._over(value, node.args[position].type.axis) if per_token else value

        def truth(position: int) -> Tensor:
            return _is_true(self._tensor(over(position, self.value(node.args[position]))))

        return elementwise(
            node, [over(position, part) for position, part in enumerate(parts)], truth,
            lambda position: over(position, self.undecided(node.args[position])),
        )  # fmt: skip

    def undecided(self, node: Node) -> Kind:
        """Where a bool is neither true nor false, because it compares a missing value."""
        if node.type.dtype is not DType.BOOL:
            return False
        function = self._function_of(node.op)
        if function is None or function.stage != "elementwise":
            return self._gaps(node)
        cached = self._undecided.get(node.index)
        if cached is None:
            find = self._gaps if node.op in COMPARISONS else self.undecided
            parts = [find(arg) for arg in node.args]
            cached = False if all(part is False for part in parts) else self._passed_on(node, parts)
            self._undecided[node.index] = cached
        return cached

    def _gaps(self, node: Node) -> Kind:
        """Where a value is missing. On a GPU a mask, even if no value is missing: a check would wait for the device."""
        value = self.value(node)
        if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
            return False
        cached = self._missing.get(node.index)
        if cached is None:
            cached = self._missing[node.index] = _missing(value)
        return cached

    def traced(self, node: Node, mask: Tensor | None) -> Tensor:
        """The value of each token, with integers unchanged; NaN outside of the value's own mask."""
        value, own_mask = self._per_token(node), self.mask(node.mask)
        return value if own_mask is None or own_mask is mask else _there(own_mask, value)

    def present(self, node: Node, mask: Tensor | None) -> Tensor | None:
        """The tokens of a mask at which a value is present; all of them if the whole value is absent."""
        return self._but(self.absent(node), node, mask)

    def _but(self, out: Kind, node: Node, mask: Tensor | None) -> Tensor | None:
        """The tokens of a mask, without the tokens where ``out`` is true."""
        if isinstance(out, bool):
            return mask
        there = torch.broadcast_to(self._over(out, node.type.axis).logical_not(), self.layout.shape)
        return there if mask is None else mask & there

    def without(self, node: Node, masks: Collection[Node]) -> Kind:
        """The completions that have tokens under the masks, and whose value is absent at all of these tokens."""
        absent = self.absent(node)
        if absent is False:
            return False
        mask = self.mask(masks)
        here = torch.broadcast_to(absent, self.layout.shape).logical_not()
        some = self.layout.count(here if mask is None else here & mask)
        return (some == 0) & (self.layout.count(mask) > 0)

    def mask(self, nodes: Collection[Node]) -> Tensor | None:
        """The tokens that exist under all of these masks; None if every token does."""
        key = frozenset([node.index for node in nodes])
        if key not in self._masks:
            combined: Tensor | None = None
            for node in nodes:
                one = _is_true(self._spread(node))  # a token does not exist where part of the mask is absent
                combined = one if combined is None else combined & one
            self._masks[key] = None if combined is None else torch.broadcast_to(combined, self.layout.shape)
        return self._masks[key]

    def _spread(self, node: Node) -> Any:
        """The value of a node in a shape that broadcasts with values per token."""
        return self._over(self.value(node), node.type.axis)

    def _over(self, value: Any, axis: Axis | None) -> Any:
        """A value of an axis in a shape that broadcasts with values per token."""
        return self.layout.spread(value) if axis is Axis.COMPLETION and isinstance(value, Tensor) else value

    def _per_token(self, node: Node) -> Tensor:
        """The value of a node for each token, on the device of the tokens."""
        value = self._tensor(self._spread(node))
        value = value if value.ndim else value.to(self._device)
        return value if value.shape == self.layout.shape else value.expand(self.layout.shape)

    def _compute(self, node: Node) -> Any:
        if node.op == "const":
            return node.leaf
        if node.op == "signal":
            return self._signal(node)
        if node.op == "size":
            return self.layout.count(self.mask(node.mask))
        if node.op == "index":
            mask = self.mask(node.mask)
            assert mask is not None
            return self.layout.places(mask)
        if node.over is Axis.TOKEN:
            formula, (arg,) = FORMULAS[node.op], node.args
            return formula(torch, self.statistics(arg, self.mask(arg.mask), formula.takes))
        function = self._function_of(node.op)
        assert function is not None
        per_token = node.type.axis is Axis.TOKEN
        arrays = []
        for arg in node.args:
            value = self._spread(arg) if per_token else self.value(arg)
            if isinstance(value, Tensor) and value.dtype in INTEGERS and arg.type.dtype is not DType.BOOL:
                value = value.to(_wide(node))
            arrays.append(value)
        if function.takes != "tensors":
            if node.op in _ON_HOST:
                tensors = [item for item in arrays if isinstance(item, Tensor)]
                if len({item.dtype for item in tensors}) == 1 and all(item.is_cpu for item in tensors):
                    arrays = [item.numpy() if isinstance(item, Tensor) else item for item in arrays]
                    return torch.from_numpy(np.asarray(function.run(np, *arrays)))
            return function.run(torch, *arrays)
        arguments = torch.broadcast_tensors(*(self._tensor(item) for item in arrays))
        # copies, because a user's function may write into its arguments, or keep them
        result = function.run(*(item.clone() for item in arguments))
        if not isinstance(result, Tensor) or result.shape != arguments[0].shape:
            raise RuntimeFailure.of("DL314.tokens", function=node.op, shape=tuple(arguments[0].shape))
        return result

    def _tensor(self, value: Any) -> Tensor:
        """Return a constant as a float64 tensor, a tensor as it is."""
        if isinstance(value, Tensor):
            return value
        return torch.full((), value, dtype=torch.float64, device=self._device)

    def _signal(self, node: Node) -> Tensor:
        value = self._signals.get(node.leaf)
        if value is None:
            return torch.tensor(math.nan, device="cpu")
        if node.type.dtype is DType.BOOL:
            if value.dtype.is_floating_point:  # a NaN is missing, so it stays neither true nor false
                return _there(value == value, value != 0)
            return value if value.dtype is torch.bool else value != 0
        return value.float() if value.dtype in HALF else value


def _wide(node: Node) -> torch.dtype:
    """The dtype in which an operation reads integers: int64 for comparisons of integers only, else float64."""
    exact = node.op in COMPARISONS and all(arg.type.dtype is DType.INT for arg in node.args)
    return torch.int64 if exact else torch.float64


def _missing(value: Tensor) -> Kind:
    """Where floats are NaN. On a CPU a finite sum proves quickly that none is."""
    if value.is_cpu and math.isfinite(value.sum()):
        return False
    gaps = value != value
    return gaps if not gaps.is_cpu or bool(gaps.any()) else False


def _is_true(value: Tensor) -> Tensor:
    """Where a value is true; a missing one is not."""
    return value if value.dtype is torch.bool else (value != 0) & (value == value)


def _there(keep: Tensor, values: Tensor) -> Tensor:
    return torch.where(keep, values if values.dtype.is_floating_point else values.double(), math.nan)


@dataclass
class Folded:
    """The columns of folds, their sketches, and the errors of failed folds.

    A column is ``[completions]``; a trace, a column of first and last values, is ``[completions, k]``.
    """

    sums: Sums = field(default_factory=list)
    columns: dict[Key, Tensor] = field(default_factory=dict)
    sketches: dict[Key, Tensor] = field(default_factory=dict)  # each covers all completions
    failed: dict[str, tuple[str, BaseException]] = field(default_factory=dict)


def run(
    ops: Sequence[FoldOp],
    signals: Mapping[str, Tensor],
    shape: torch.Size,
    device: torch.device,
    lengths: str | None = None,
    function_of: FunctionOf = DEFAULT.get,
) -> Folded:
    """Fold tokens of one shape on a device to statistics; a fold whose signals are absent has none.

    ``n`` counts, ``total`` sums, ``m2`` is the sum of squared distances from the mean. Without any value ``min`` and
    ``max`` are +-inf, ``first`` and ``last`` NaN. ``hist`` is a sketch of the whole batch, ``[sketch.SIZE]``.
    ``lengths`` names the signal with the number of packed tokens of each completion; None: tokens are padded.
    """
    sums: Sums = []
    if lengths is None and device.type == "cpu":
        simple = [op for op in ops if op.sums is not None]
        if any(op.expr is not None for op in simple) and (plain_sums := fold_sums(simple, signals, shape)) is not None:
            sums, ops = plain_sums, [op for op in ops if op.sums is None]
            if not ops:
                return Folded(sums)
    here = {
        name: _to_device(value, device) if value.ndim and value.device != device else value
        for name, value in signals.items()
    }
    traced = [op for op in ops if op.trace is not None]
    if traced and len(traced) < len(ops):  # traces run separately, so that they cost the other folds nothing
        folded = run([op for op in ops if op.trace is None], here, shape, device, lengths, function_of)
        rows = run(traced, here, shape, device, lengths, function_of)
        folded.sums += sums
        folded.columns |= rows.columns
        folded.failed |= rows.failed
        return folded
    if lengths is not None:
        parts = [_fold(ops, here, Packed(shape, here[lengths]), device, function_of)]
    else:
        step = _block(ops, shape, device)
        parts = [
            _fold(ops, some, Padded(torch.Size((rows, shape[1]))), device, function_of)
            for some, rows in in_blocks(here, shape[0], step)
        ]
    for _, error in (failure for part in parts for failure in part.failed.values()):
        traceback.clear_frames(error.__traceback__)  # the frames' locals are tensors of the trainer
    folded = parts[0] if len(parts) == 1 else _joined(ops, parts)
    folded.sums = sums
    return folded


def _to_device(value: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device. The host does not wait, and the trainer may change its own memory at once."""
    if value.is_cpu and device.type == "cuda":
        value = torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=True).copy_(value)
    return value.to(device, non_blocking=device.type != "cpu")


def _joined(ops: Sequence[FoldOp], parts: Sequence[Folded]) -> Folded:
    """Join the results of several blocks; a fold that failed in one block has failed."""
    failed = {name: failure for part in reversed(parts) for name, failure in part.failed.items()}
    lost = {key for op in ops if op.name in failed for key in op.keys.values()}
    first = parts[0]
    columns = {key: torch.cat([part.columns[key] for part in parts]) for key in first.columns if key not in lost}
    sketches = {
        key: torch.stack([part.sketches[key] for part in parts]).sum(0) for key in first.sketches if key not in lost
    }
    return Folded([], columns, sketches, failed)


def _block(ops: Iterable[FoldOp], shape: torch.Size, device: torch.device) -> int:
    """The number of completions to fold at a time: all, or fewer if expressions need memory for intermediate values."""
    if all(op.expr is None or op.expr.op == "signal" for op in ops):
        return shape[0]
    return max(1, (_CPU_BLOCK if device.type == "cpu" else _GPU_BLOCK) // max(shape[1], 1))


@torch.no_grad()
def _fold(
    ops: Sequence[FoldOp], signals: Mapping[str, Tensor], layout: Layout, device: torch.device, function_of: FunctionOf
) -> Folded:
    """Run the folds one by one; users' functions run without gradients."""
    complete = all(op.reads <= signals.keys() and op.complete for op in ops)
    view = TokenView(signals, layout, device, function_of, complete=complete)
    folded = Folded()
    for op in ops:
        what: Sequence[Node] = op.mask
        try:
            if not complete:
                values = tuple(node for node in (op.expr, op.of) if node is not None)
                never = any(view.absent(node) is True for node in (*op.mask, *values))
                if never or (not op.mask and any(map(view.nowhere, values))):
                    continue  # an optional signal is absent
            mask = view.mask(op.mask)
            what = () if op.expr is None else (op.expr,)
            if op.expr is None:
                statistics = {"n": layout.count(mask if op.of is None else view.present(op.of, mask))}
            elif op.trace is not None:
                statistics = {"trace": layout.trace(view.traced(op.expr, mask), mask, *op.trace)}
            else:
                statistics = view.statistics(op.expr, mask, op.stats)
                # the statistic of a completion is absent if the value is absent at all its tokens
                if "n" in statistics and (absent := view.without(op.expr, op.mask)) is not False:
                    statistics["n"] = _there(absent.logical_not(), statistics["n"])
        except (KeyboardInterrupt, SystemExit):  # on the training thread the error may come from a signal handler
            raise
        except BaseException as error:  # noqa: BLE001  (a user's function may raise anything; other folds go on)
            folded.failed[op.name] = " and ".join(f"`{node}`" for node in what), error
        else:
            for stat, column in statistics.items():
                (folded.sketches if stat == "hist" else folded.columns)[op.keys[stat]] = column
    return folded
