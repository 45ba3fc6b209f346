"""Reductions of rows with ``over=``: `p90(reward, over=completion)` is the quantile of each group's completions."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.language.dtypes import NUMERIC, Axis, DType, Type
from declog.language.functions.base import OVER, Function, Functions, Param
from declog.language.functions.rules import Call
from declog.language.functions.structure import remove_axis
from declog.language.reductions import Reduction, Reductions, finish, out_of_range, quantiles
from declog.language.segmented import Segments


class FunctionsAndReductions(Functions):
    """Functions, and for calls with ``over=`` an aggregate for each reduction of one column of numbers."""

    def __init__(self, functions: Functions, reductions: Reductions) -> None:
        super().__init__(functions._parent)
        self._entries = functions._entries  # shared: functions of packages are added there
        self._reductions = reductions

    def get(self, name: str) -> Function | None:
        return super().get(name) or self.of_reduction(name)

    def named(self, name: str) -> Function | None:
        function = super().named(name)
        return None if function is not None and function.reduces is not None else function

    def of_reduction(self, name: str) -> Function | None:
        """The aggregate for the reduction of a name; None if no such reduction turns one column into a number."""
        reduction = self._reductions.get(name)
        if reduction is None or not reduction.aggregates:
            return None
        constants = [Param(key, "constant", default, _CONSTANTS) for key, default in (reduction.params or {}).items()]
        return Function(
            name, (Param("x"), *constants, OVER), partial(_rule, reduction), partial(_of_segments, reduction),
            "aggregate", reduction.help, reduces=reduction,
        )  # fmt: skip


_CONSTANTS = (bool, int, float)


def _rule(reduction: Reduction, call: Call) -> Type:
    if out_of_range(reduction, call.params) is not None:
        call.fail("DL304.share")
    shape = remove_axis(call, accept=(*NUMERIC, DType.BOOL))
    if call.params["over"] is Axis.TOKEN:
        fix = f"of all tokens it is a metric of its own, `{call.name}({call.args[0]})`"
        fix += "; per completion there are mean, min, max, sum, std"
        call.fail("DL306.tokens_reduced", function=call.name, fix=fix)
    return shape.with_dtype(DType.FLOAT)


def _of_segments(reduction: Reduction, values: NDArray[Any], segments: Segments, **params: Any) -> NDArray[Any]:
    """Reduce each segment's values that are not missing, ``[..., rows]`` to ``[..., count]``."""
    values = values.astype(np.float64)
    if reduction.level is None:
        return segments.per_segment(values, lambda column: finish(reduction, [column], params))
    reduced = np.empty((*values.shape[:-1], segments.count))
    for size in np.unique(segments.counts).tolist():  # all segments of one size at once
        equal = np.flatnonzero(segments.counts == size)
        rows = segments.offsets[equal, None] + np.arange(size)
        reduced[..., equal] = quantiles(segments.sorted(values)[..., rows], [reduction.level])[0]
    return reduced
