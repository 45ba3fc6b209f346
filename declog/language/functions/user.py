"""``@declog.function``: how users add elementwise functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

from declog.language.dtypes import NUMERIC, DType, Type
from declog.language.functions.base import DEFAULT, Call, Function, Functions, Param
from declog.language.functions.rules import broadcast, need


def function(
    run: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    returns: Literal["float", "int", "bool"] = "float",
    registry: Functions = DEFAULT,
) -> Any:
    """Register an elementwise function of tensors, for YAML to use by name.

    The function is called with as many torch tensors as it has parameters, all broadcast to one shape,
    and returns a tensor of that shape: on the training device for per-token values, on the CPU in
    float64 for the rest.

    >>> @declog.function                    # doctest: +SKIP
    ... def softplus(x):
    ...     return torch.nn.functional.softplus(x)
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        params = tuple(
            Param(item.name) for item in inspect.signature(fn).parameters.values() if item.default is item.empty
        )

        def rule(call: Call) -> Type:
            need(call, *NUMERIC, DType.BOOL)
            return broadcast(call).with_dtype(DType(returns))

        label = name or fn.__name__
        registry.add(
            Function(label, params, rule, fn, "elementwise", (fn.__doc__ or "").strip().split("\n")[0], tensors=True)
        )
        return fn

    return register if run is None else register(run)
