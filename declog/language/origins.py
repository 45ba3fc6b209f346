"""The origin of a function as a text that two processes can compare: module, name, package, version, digest of code."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import types
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from declog.registry import module_of

_NAMED = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, type)
_PROGRAM = ("__main__", "__mp_main__")  # the names of a program's main module in itself, and in spawned processes
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def origin(run: Callable[..., Any]) -> str:
    """``module:qualname`` of a function. Outside of declog, its packages with versions and a digest of its code follow.

    Two processes get the same text if they have the same installed package, or the same source outside of packages.
    """
    inner = inspect.unwrap(run)
    while isinstance(inner, functools.partial):
        inner = inner.func
    named = inner if isinstance(inner, _NAMED) else type(inner)
    module = _module(named)
    name = f"{module}:{named.__qualname__}"
    top = module.partition(".")[0]
    if top == "declog":
        return name
    packages = ", ".join(f"{item} {importlib.metadata.version(item)}" for item in packages_of(top))
    return " ".join(filter(None, (name, packages and f"of {packages}", f"({_digest(run)})")))


def packages_of(module: str) -> tuple[str, ...]:
    """The installed packages that provide a top-level module; empty for a script's own module."""
    return tuple(sorted(set(_distributions().get(module, ()))))


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _module(named: Any) -> str:
    """The module of a function or class. ``__main__`` becomes the name of the program's file, as importers see it.

    Code without a file, such as a notebook's cell or the text after ``-c``, stays in ``__main__``.
    """
    module = module_of(named)
    if module not in _PROGRAM:
        return module
    inner = named.__func__ if isinstance(named, types.MethodType) else named
    functions = [one for one in (inner, *vars(inner).values()) if isinstance(one, types.FunctionType)]
    file = PurePath(functions[0].__code__.co_filename if functions else "")
    of_cell = file.parent.name.startswith("ipykernel_")
    return file.stem if file.suffix == ".py" and not of_cell else _PROGRAM[0]


def _digest(run: object) -> str:
    return hashlib.sha256(repr(_content(run, frozenset())).encode()).hexdigest()[:8]


def _content(value: object, within: frozenset[int]) -> object:
    """The content of a value in a form that is equal in every process: without addresses and the order of sets."""
    if isinstance(value, _PLAIN):
        return type(value).__name__, value
    if id(value) in within:
        return "recursive"
    inside = within | {id(value)}
    if isinstance(value, types.CodeType):
        return value.co_code, [_content(item, inside) for item in value.co_consts], value.co_names, value.co_varnames
    if isinstance(value, types.FunctionType):
        enclosed = tuple(inspect.getclosurevars(value).nonlocals.values())
        values = (value.__defaults__, value.__kwdefaults__, enclosed)
        return _content(value.__code__, inside), [_content(item, inside) for item in values]
    if isinstance(value, type):
        return _module(value), value.__qualname__
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
    return _module(type(value)), type(value).__qualname__
