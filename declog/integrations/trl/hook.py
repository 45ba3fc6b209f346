"""One method of one object, wrapped: an attribute of the instance hides its class's method.

A hook is a generator. What stands before its ``yield`` runs before the method, what follows runs after it and gets what
the method returned. The method itself is called here, once, whatever declog's part does: that part is guarded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

Guard = Callable[..., AbstractContextManager[None]]  # of the recorder
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Part = Generator[Arguments | None, Any, Any]
"""It yields the arguments to call the method with (None: those that came), and returns what its caller gets instead
of the method's result (None: that)."""


def hook(owner: Any, name: str, around: Callable[..., Part], guard: Guard) -> None:
    """Run ``around(*args, **kwargs)`` where somebody calls ``owner.name(*args, **kwargs)``."""
    original = getattr(owner, name)
    what = f"declog's part of `{name}` failed"

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        part: Part | None = None
        given: Arguments = args, kwargs
        with guard(what):
            part = around(*args, **kwargs)
            given = next(part, None) or given
        try:
            result = original(*given[0], **given[1])
        except BaseException as error:
            trace = error.__traceback__
            with guard(what):
                _thrown(part, error)
            error.__traceback__ = trace  # nobody sees that it passed here
            raise
        with guard(what):
            if part is not None:
                try:
                    part.send(result)
                except StopIteration as end:
                    return result if end.value is None else end.value
        return result

    setattr(owner, name, hooked)


def _thrown(part: Part | None, error: BaseException) -> None:
    """Let declog's part end with the method's own error."""
    try:
        if part is not None:
            part.throw(error)
    except StopIteration:
        pass
    except BaseException as raised:
        if raised is not error:
            raise
