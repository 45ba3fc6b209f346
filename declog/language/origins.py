"""Where a function comes from, in words that two processes can compare: module, name, package and version, code.

Standard library only.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

_NAMED = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, type)
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def origin(run: Callable[..., Any]) -> str:
    """``module:qualname``, and of what is not declog's own its package's version and a digest of its code.

    Two processes with one installed package, and with one source of what is in no package, say the same.
    """
    inner = inspect.unwrap(run)
    while isinstance(inner, functools.partial):
        inner = inner.func
    named = inner if isinstance(inner, _NAMED) else type(inner)
    place = f"{named.__module__}:{named.__qualname__}"
    top = (named.__module__ or "").partition(".")[0]
    if top == "declog":
        return place
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages_of(top))
    return " ".join(filter(None, (place, packages and f"of {packages}", f"({_digest(run)})")))


def packages_of(module: str) -> tuple[str, ...]:
    """The installed packages that have a top-level module; none for a script's own."""
    return tuple(sorted(set(_distributions().get(module, ()))))


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _digest(run: object) -> str:
    return hashlib.sha256(repr(_content(run, frozenset())).encode()).hexdigest()[:8]


def _content(value: object, within: frozenset[int]) -> object:
    """What a value is made of, as far as it is the same in every process: no addresses, no order of sets."""
    if isinstance(value, _PLAIN):
        return type(value).__name__, value
    if id(value) in within:
        return "recursive"
    inside = within | {id(value)}
    if isinstance(value, types.CodeType):
        return value.co_code, [_content(item, inside) for item in value.co_consts], value.co_names, value.co_varnames
    if isinstance(value, types.FunctionType):
        held = tuple(inspect.getclosurevars(value).nonlocals.values())
        given = (value.__defaults__, value.__kwdefaults__, held)
        return _content(value.__code__, inside), [_content(item, inside) for item in given]
    if isinstance(value, type):
        return value.__module__, value.__qualname__
    if isinstance(value, types.MethodType):
        return _content(value.__func__, inside)
    if isinstance(value, functools.partial):
        return [_content(item, inside) for item in (value.func, value.args, value.keywords)]
    if isinstance(value, Mapping):
        return sorted(repr((_content(key, inside), _content(item, inside))) for key, item in value.items())
    if isinstance(value, set | frozenset):
        return sorted(repr(_content(item, inside)) for item in value)
    if isinstance(value, tuple | list):
        return [_content(item, inside) for item in value]
    return type(value).__module__, type(value).__qualname__
