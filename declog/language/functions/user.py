"""``@declog.function``: how users add elementwise functions."""

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

    With a parameter that is annotated ``str`` it is a function of texts: called once per row, in the background, with
    plain Python values. A row of which a value is missing has none, and the function is not called, unless the
    annotation is ``str | None``. A parameter with a default can be left out. It returns what its annotation says,
    ``float`` by default, or None for no value. Checks and plans call it once, with the text ``text``.

    >>> @declog.function                    # doctest: +SKIP
    ... def repetition(completion: str) -> float:
    ...     words = completion.split()
    ...     return 1 - len(set(words)) / max(len(words), 1)

    Else it is one of tensors: called with as many torch tensors as it has parameters, all broadcast to one shape, it
    returns a tensor of that shape and of the type ``returns``: on the training device for per-token values, on the
    CPU in float64 for the rest.

    >>> @declog.function                    # doctest: +SKIP
    ... def softplus(x):
    ...     return torch.nn.functional.softplus(x)
    """

    return registry.decorator(run, name, lambda name, fn: registry.add(of_user(fn, name, returns)))
