"""Evaluates typed trees over a frame: numpy in, numpy out, each node once.

The arrays are float64 with NaN for what is missing, int64, bool, or objects. A value has the rows of its
node's axis; a family has its members in front: ``[members, rows]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog import kernels
from declog.axes import COLUMN, Axis, Kind
from declog.errors import RuntimeFailure
from declog.frame import Frame
from declog.functions import DEFAULT, Function, Functions
from declog.kernels import Segments
from declog.tree import CONST, METRIC, Node

Array = NDArray[Any]
Members = tuple[str, ...]


class View:
    """One frame's values by node. Holds what was computed, so that equal expressions are computed once."""

    def __init__(self, frame: Frame, functions: Functions = DEFAULT) -> None:
        self.frame = frame
        self._functions = functions
        self._values: dict[int, Array] = {}
        self._members: dict[int, Members] = {}

    def segments(self, fine: Axis, coarse: Axis) -> Segments:
        """How the entries of an axis fall into those of a coarser one; ``STEP`` pools a batch over its ranks."""
        return self.frame.parts(fine, Axis.BATCH if coarse is Axis.STEP and fine is not Axis.STEP else coarse)

    def members(self, node: Node) -> Members:
        """The members of a family's value."""
        self.value(node)
        return self._members.get(node.index, ())

    def came(self, node: Node) -> bool:
        """Whether anything of a value was observed: an optional signal's may be absent."""
        return node.type.axis is None or self.value(node).ndim > 0

    def value(self, node: Node) -> Array:
        """The value of a node on its own axis; 0-dimensional where it is a constant or absent."""
        known = self._values.get(node.index)
        if known is None:
            known = self._values[node.index] = self._compute(node)
        return known

    def rows(self, node: Node, axis: Axis) -> Array:
        """The value repeated over ``axis``: ``[rows]`` or ``[members, rows]``."""
        values = self.value(node)
        own = node.type.axis
        if own is None or not values.ndim:
            return np.broadcast_to(values, (*values.shape, self.frame.count(axis)))
        return self.frame.spread(values, own, axis)

    def picked(self, node: Node, axis: Axis, rows: Array) -> Array:
        """The value at some rows of ``axis``; what is elementwise is computed for those alone.

        An integer keeps its bits also where others are missing: the values are objects then.
        """
        values = self._picked(node, axis, rows)
        if node.type.kind is Kind.INT and values.dtype.kind == "f":
            values = self._at(node, self._whole(node), axis, rows)
        return values if values.ndim else np.broadcast_to(values, rows.shape)

    def _picked(self, node: Node, axis: Axis, rows: Array) -> Array:
        plain = node.type.axis is axis and not node.type.family and node.index not in self._values
        function = self._functions.get(node.op) if plain else None
        if function is None or function.stage != "elementwise":
            return self._at(node, self.value(node), axis, rows)
        arrays = [self._picked(arg, axis, rows) for arg in node.args]
        return _by_tensors(function.run, arrays) if function.tensors else np.asarray(function.run(np, *arrays))

    def _at(self, node: Node, values: Array, axis: Axis, rows: Array) -> Array:
        own = node.type.axis
        if own is None or not values.ndim:
            return values
        return np.asarray(values[..., rows if own is axis else self.frame.parts(axis, own).index[rows]])

    def _whole(self, node: Node) -> Array:
        """An integer's value where something is missing: objects where it is a column, or its first or last."""
        if node.op in ("signal", "local", "carried"):
            values = self.frame.column(node.param("name"), exact=True)
            return self.value(node) if values is None else values
        if node.op in ("first", "last") and node.over is Axis.COMPLETION:
            values = self._whole(node.args[0])
            groups = self.frame.parts(Axis.COMPLETION, Axis.GROUP)
            whole = values.astype(object) if values.dtype.kind == "i" else values
            return kernels.aggregate(kernels.AGGREGATES[node.op], whole, groups) if values.ndim else values
        return self.value(node)

    def _compute(self, node: Node) -> Array:
        match node.op:
            case "const":
                value = node.param("value")
                return np.asarray(value, object if isinstance(value, str) else None)
            case "signal" | "local" | "carried":
                return self._signal(node)
            case "builtin":
                return self._builtin(node)
            case "fold":
                return self._fold(node)
        function = self._functions.get(node.op)
        if function is None:
            raise RuntimeFailure("DL605", f"the function `{node.op}` is not registered in this process")
        if function.stage == "aggregate":
            return self._aggregate(node, function.run)
        if function.stage == "elementwise":
            return self._elementwise(node, function)
        if node.type.family and node.args:
            self._members[node.index] = self.members(node.args[0])
        return np.asarray(function.run(self, node, *(self._own(arg) for arg in node.args)))

    def _own(self, node: Node) -> Array:
        """A value with all its rows, also where it is absent."""
        values = self.value(node)
        axis = node.type.axis
        return values if axis is None or values.ndim else np.broadcast_to(values, (self.frame.count(axis),))

    def _signal(self, node: Node) -> Array:
        name = node.param("name")
        values = self.frame.column(name)
        if values is None:
            return np.asarray(None, object) if node.type.kind in (Kind.TEXT, Kind.OBJECT) else np.asarray(np.nan)
        if node.type.family:
            self._members[node.index] = self.frame.members(name)
        return typed(values, node.type.kind)

    def _builtin(self, node: Node) -> Array:
        batches = self.frame.batches
        name = node.param("name")
        return {"step": batches.step, "rank": batches.rank, "elapsed": batches.elapsed}[name]

    def _fold(self, node: Node) -> Array:
        name, stat = node.param("name"), node.param("stat")

        def column(part: str) -> Array:
            values = self.frame.column(f"{name}.{part}")
            return np.asarray(np.nan) if values is None else values.astype(np.float64)

        if stat in ("first", "last"):
            return column(stat)
        n = column("n")
        if stat == "count":
            return np.where(n == n, n, 0).astype(np.int64) if n.ndim else n
        if stat in ("mean", "sum", "any", "all"):
            total = column("total")
            values = (
                total / np.maximum(n, 1)
                if stat == "mean"
                else total
                if stat == "sum"
                else total > 0
                if stat == "any"
                else total == n
            )
            return values if stat in ("any", "all") else np.where(n > 0, values, np.nan)
        if stat in ("min", "max"):
            return np.where(n > 0, column(stat), np.nan)
        m2 = column("m2")
        if stat == "pstd":
            return np.where(n > 0, np.sqrt(m2 / np.maximum(n, 1)), np.nan)
        spread = np.where(n > 1, m2 / np.maximum(n - 1, 1), np.nan)
        return np.sqrt(spread) if stat == "std" else spread

    def _aggregate(self, node: Node, run: Callable[[Array, Segments], Array]) -> Array:
        (arg,) = node.args
        over = node.over
        values = self._own(arg)
        if over == COLUMN:
            if values.ndim < 2 and not self.members(arg):
                return np.asarray(np.nan)
            if not values.ndim or len(values) == 0:
                return np.asarray(np.nan)
            turned = np.ascontiguousarray(values.T)  # [rows, members] or [members]
            flat = turned.reshape(-1, turned.shape[-1])
            reduced = run(flat, Segments.whole(flat.shape[-1]))[..., 0]
            return reduced.reshape(turned.shape[:-1])
        if arg.type.family:
            self._members[node.index] = self.members(arg)
        fine = arg.type.axis
        assert isinstance(over, Axis) and fine is not None
        coarse = {Axis.COMPLETION: Axis.GROUP, Axis.GROUP: Axis.BATCH}[over]
        return kernels.aggregate(run, values, self.frame.parts(fine, coarse))

    def _elementwise(self, node: Node, function: Function) -> Array:
        axis = node.type.axis
        arrays = [
            self.value(arg) if axis is None or arg.type.axis in (None, axis) else self._spread(arg, axis)
            for arg in node.args
        ]
        if node.type.family:
            arrays = self._aligned(node, arrays)
        if function.tensors:
            return _by_tensors(function.run, arrays)
        return np.asarray(function.run(np, *arrays))

    def _spread(self, arg: Node, axis: Axis) -> Array:
        values = self.value(arg)
        own = arg.type.axis
        return self.frame.spread(values, own, axis) if values.ndim and own is not None else values

    def _aligned(self, node: Node, arrays: list[Array]) -> list[Array]:
        """Families with their members in one order; different members are an error."""
        families = [
            (place, self.members(arg)) for place, arg in enumerate(node.args) if arg.type.family and self.members(arg)
        ]
        if not families:
            return arrays
        first = families[0][1]
        self._members[node.index] = first
        for place, members in families[1:]:
            if set(members) != set(first):
                missing = sorted(set(first) ^ set(members))
                raise RuntimeFailure(
                    "DL503",
                    f"families in `{node}` have different members: {', '.join(missing)} is not in all of them",
                    "observe the same members",
                )
            if members != first:
                arrays[place] = arrays[place][[members.index(member) for member in first]]
        return arrays


def typed(values: Array, kind: Kind) -> Array:
    """A recorded column as the evaluators want it: by its kind, and by whether something is missing."""
    if kind in (Kind.TEXT, Kind.OBJECT):
        return values
    if values.dtype.kind == "O":  # given as a list with None in it
        values = (
            np.vectorize(lambda item: math.nan if item is None else float(item), otypes=[np.float64])(values)
            if values.size
            else values.astype(np.float64)
        )
    if kind is Kind.NUMBER:
        return values if values.dtype == np.float64 else values.astype(np.float64)
    if values.dtype.kind == "f":  # something is missing
        return values if kind is Kind.INT or np.isnan(values).any() else values != 0
    if kind is Kind.BOOL:
        return values if values.dtype.kind == "b" else values != 0
    return values if values.dtype == np.int64 else values.astype(np.int64)


def _by_tensors(run: Callable[..., Any], arrays: list[Array]) -> Array:
    import torch

    whole = np.broadcast_arrays(*(array.astype(np.float64) for array in arrays))
    with torch.no_grad():
        result = run(*(torch.from_numpy(np.ascontiguousarray(array)) for array in whole))
    values = np.asarray(result.numpy() if isinstance(result, torch.Tensor) else result)
    if values.shape != whole[0].shape:
        raise RuntimeFailure(
            "DL314", f"a registered function returned shape {values.shape} for arguments of shape {whole[0].shape}"
        )
    return values


class Formula:
    """Evaluates a tree over metrics' values: METRIC leaves are looked up in ``values``.

    Values are float64 ``[members, labels, pieces]`` arrays that broadcast; see ``cells.py``.
    """

    def __init__(self, values: Mapping[str, Array], functions: Functions = DEFAULT) -> None:
        self._values = values
        self._functions = functions

    def value(self, node: Node) -> Array:
        """The value of a node; NaN where a metric is absent."""
        if node.op == CONST:
            return np.asarray(node.param("value"))
        if node.op == METRIC:
            return self._values.get(node.param("name"), np.asarray(np.nan))
        function = self._functions.get(node.op)
        if function is None:
            raise RuntimeFailure("DL605", f"the function `{node.op}` is not registered in this process")
        arrays = [self.value(arg) for arg in node.args]
        if function.tensors:
            return _by_tensors(function.run, arrays)
        return np.asarray(function.run(np, *arrays))
