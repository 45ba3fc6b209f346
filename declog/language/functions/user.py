"""``@declog.function``, with which users add elementwise functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from declog.errors.habits import shown_at_the_call
from declog.language.functions.base import DEFAULT, Functions, of_user


@shown_at_the_call
def function(
    run: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    returns: Literal["float", "int", "bool", "text"] | None = None,
    registry: Functions = DEFAULT,
) -> Any:
    """Register an elementwise function, for YAML to use by name.

    A function with a parameter annotated ``str`` is a function of texts. declog calls it once per row, in the
    background, with plain Python values. declog does not call it for a row with a missing value, unless the annotation
    is ``str | None``: such a row has no value. A parameter with a default can be left out. The function returns the
    annotated type, ``float`` by default, or None for no value. Checks and plans call it once, with the text ``text``.

    >>> @declog.function                    # doctest: +SKIP
    ... def repetition(completion: str) -> float:
    ...     words = completion.split()
    ...     return 1 - len(set(words)) / max(len(words), 1)

    Any other function is a function of tensors. declog calls it with one torch tensor per parameter, all broadcast to
    one shape. The function returns a tensor of that shape and of the type ``returns``. It runs on the training device
    for per-token values, and on the CPU in float64 for all others.

    >>> @declog.function                    # doctest: +SKIP
    ... def softplus(x):
    ...     return torch.nn.functional.softplus(x)
    """

    return registry.decorator(run, name, lambda name, fn: registry.add(of_user(fn, name, returns)))
