"""``log.wrap``: makes each call of a step function, plain or ``async def``, a step, and observes its result."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from declog.errors import UsageError
from declog.runtime.rows.scopes import Recording, within

LOSS = "loss"
_USES = "return a mapping, a dataclass, a named tuple, (loss, mapping), a number as the loss, or None"


def wrap(recorder: Recording, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a step function: each call is a step, and its result is observed.

    Raises ``UsageError`` for a generator function, because its calls are no steps.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError.of("DL510.wrap_generator", name=function.__name__)

    @contextmanager
    def step() -> Iterator[Callable[[Any], Any]]:
        with recorder._next_step():
            yield functools.partial(observed, recorder, function)

    return within(function, step)


def observed(recorder: Recording, function: Callable[..., Any], result: Any) -> Any:
    """Observe a step function's result, and return it; raises ``UsageError`` for a result without names."""
    signals = fields_of(result)
    if signals is None:
        name = function.__name__ if inspect.isroutine(function) else type(function).__name__
        fix = "wrap an `async def`, not what returns its coroutine" if inspect.isawaitable(result) else _USES
        if inspect.iscoroutine(result):
            result.close()
        raise UsageError.of("DL510.wrap", name=name, type=type(result).__name__, fix=fix)
    if signals:
        recorder._observe((), signals, strict=False)
    return result


def fields_of(result: Any) -> Mapping[str, Any] | None:
    """Return the values of a step function's result by name; None if the result has no names."""
    if result is None:
        return {}
    if isinstance(result, Mapping):
        return {str(key): value for key, value in result.items()}
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {item.name: getattr(result, item.name) for item in dataclasses.fields(result)}
    if isinstance(result, tuple) and hasattr(result, "_asdict"):
        fields: Mapping[str, Any] = result._asdict()
        return fields
    if _may_be_loss(result):
        return {LOSS: result}
    if isinstance(result, tuple) and len(result) == 2 and _may_be_loss(result[0]):
        named = fields_of(result[1])
        if isinstance(result[1], Mapping) and named is not None:
            return {LOSS: result[0], **named}
    return None


def _may_be_loss(value: Any) -> bool:
    """Whether a step's result may be its loss: a number but no bool, or a tensor or array with one element."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return True
    return hasattr(value, "item") and hasattr(value, "shape") and all(size == 1 for size in value.shape)
