"""One method of one object, wrapped: an attribute of the instance hides its class's method."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Around = Callable[..., Any]


def hook(owner: Any, name: str, around: Around) -> None:
    """Call ``around(original, *args, **kwargs)`` where somebody calls ``owner.name(*args, **kwargs)``."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, hooked)
