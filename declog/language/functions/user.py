"""``@declog.function``: how users add elementwise functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from declog.language.functions.base import DEFAULT, Functions, of_tensors


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

    return registry.decorator(run, name, lambda name, fn: registry.add(of_tensors(fn, name, returns)))
