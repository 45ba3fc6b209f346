"""``log.wrap``: a step function whose calls are steps, and whose result is observed, whatever kind of function it is.

Imports the scopes and errors only.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from typing import Any

from declog.errors import UsageError
from declog.runtime.scopes import Recording

LOSS = "loss"
_USES = "return a mapping, a dataclass, a named tuple, (loss, mapping), a number as the loss, or None"


def wrap(recorder: Recording, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, observed."""
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def streaming(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            inside = contextvars.copy_context()  # what runs between two items is not of the step
            step = recorder._next_step()
            inside.run(step.__enter__)
            items = function(*args, **kwargs)
            failed = True
            try:
                while True:
                    try:
                        item = await asyncio.get_running_loop().create_task(_next(items), context=inside)
                    except StopAsyncIteration:
                        failed = False
                        return
                    yield item
            except GeneratorExit:  # nobody asks for more
                failed = False
                raise
            finally:
                await items.aclose()
                inside.run(step.__exit__, Exception if failed else None, None, None)

        return streaming
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def asynchronous(*args: Any, **kwargs: Any) -> Any:
            with recorder._next_step():
                result = await function(*args, **kwargs)
                take(recorder, function, result)
            return result

        return asynchronous
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generating(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            inside = contextvars.copy_context()
            step = recorder._next_step()
            inside.run(step.__enter__)
            failed = True
            try:
                result = yield from _Inside(inside, function(*args, **kwargs))
                inside.run(take, recorder, function, result)
                failed = False
                return result
            except GeneratorExit:
                failed = False
                raise
            finally:
                inside.run(step.__exit__, Exception if failed else None, None, None)

        return generating

    @functools.wraps(function)
    def synchronous(*args: Any, **kwargs: Any) -> Any:
        with recorder._next_step():
            result = function(*args, **kwargs)
            take(recorder, function, result)
        return result

    return synchronous


async def _next(items: Any) -> Any:
    return await items.__anext__()


class _Inside(Generator[Any, Any, Any]):
    """A generator that runs in a context of its own: what it enters does not leak to who asks for its items."""

    def __init__(self, context: contextvars.Context, items: Any) -> None:
        self._context = context
        self._items = items

    def send(self, value: Any) -> Any:
        """What the caller sends."""
        return self._context.run(self._items.send, value)

    def throw(self, *error: Any) -> Any:
        """What the caller throws."""
        return self._context.run(self._items.throw, *error)


def take(recorder: Recording, function: Callable[..., Any], result: Any) -> None:
    """Observe what a step function returned; raises ``UsageError`` for what has no names."""
    found = fields_of(result)
    if found is None:
        name = function.__name__ if inspect.isroutine(function) else type(function).__name__
        fix = "wrap an `async def`, not what returns its coroutine" if inspect.isawaitable(result) else _USES
        if inspect.iscoroutine(result):
            result.close()
        raise UsageError.of("DL510.wrap", name=name, type=type(result).__name__, fix=fix)
    if found:
        recorder._observe((), found, strict=False)


def fields_of(result: Any) -> Mapping[str, Any] | None:
    """What a step function returned, by name; None where it has none."""
    if result is None:
        return {}
    if isinstance(result, Mapping):
        return {str(key): value for key, value in result.items()}
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {item.name: getattr(result, item.name) for item in dataclasses.fields(result)}
    if isinstance(result, tuple) and hasattr(result, "_asdict"):
        fields: Mapping[str, Any] = result._asdict()
        return fields
    if _is_number(result):
        return {LOSS: result}
    if isinstance(result, tuple) and len(result) == 2 and _is_number(result[0]):
        others = fields_of(result[1])
        if isinstance(result[1], Mapping) and others is not None:
            return {LOSS: result[0], **others}
    return None


def _is_number(value: Any) -> bool:
    """A number, or a tensor or array of one."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return True
    return hasattr(value, "item") and hasattr(value, "shape") and all(size == 1 for size in value.shape)
