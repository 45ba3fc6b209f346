"""Named things that users can add to: functions and reductions. Imports errors only."""

from __future__ import annotations

import abc
import functools
import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from declog.errors import UsageError


class Named(Protocol):
    """What a registry holds."""

    @property
    def name(self) -> str: ...

    @property
    def run(self) -> Callable[..., Any]: ...


REQUIRED: Any = object()  # the default of a parameter that has none

T = TypeVar("T", bound=Named)


class Registry(abc.ABC, Generic[T]):
    """Entries by name. A child registry sees its parent's; nothing is ever replaced in silence."""

    noun = "entry"
    group: str | None = None  # the entry-point group that installed packages add to

    def __init__(self, parent: Registry[T] | None = None) -> None:
        self._parent = parent
        self._own: dict[str, T] = {}

    def add(self, entry: T) -> T:
        """Register; a known name is an error unless it is the same implementation, imported again."""
        known = self._known(entry.name)
        installed = self._entry_points().get(entry.name)
        origins = {_origin(known.run)} if known is not None else set()
        origins |= {(installed.module, installed.attr)} if installed is not None else set()
        if origins - {_origin(entry.run)}:
            raise UsageError(
                "DL303", f"a {self.noun} named `{entry.name}` is registered already", "choose another name"
            )
        self._own[entry.name] = entry
        return entry

    def get(self, name: str) -> T | None:
        """The entry of this name, or None."""
        known = self._known(name)
        if known is not None or (installed := self._entry_points().get(name)) is None:
            return known
        try:
            run = installed.load()
        except Exception as error:  # whatever an installed package does on import is told as its problem
            message = f"the {self.noun} `{name}` cannot be loaded from `{installed.value}`: {error}"
            raise UsageError("DL303", message, "correct or uninstall the package") from error
        return self.adopt(name, run)

    def _known(self, name: str) -> T | None:
        own = self._own.get(name)
        return self._parent.get(name) if own is None and self._parent is not None else own

    def _entry_points(self) -> Mapping[str, importlib.metadata.EntryPoint]:
        """What installed packages provide. A registry without a parent holds declog's own entries only."""
        if self.group is None or self._parent is None:
            return {}
        return _entry_points(self.group, tuple(sys.path))

    @abc.abstractmethod
    def adopt(self, name: str, run: Callable[..., Any]) -> T:
        """Register a plain function under a name."""

    def __iter__(self) -> Iterator[T]:
        if self._parent is not None:
            yield from self._parent
        yield from self._own.values()

    def names(self) -> list[str]:
        """All names, sorted; those of installed packages included."""
        return sorted({*(entry.name for entry in self), *self._entry_points()})


@functools.cache
def _entry_points(group: str, path: tuple[str, ...]) -> Mapping[str, importlib.metadata.EntryPoint]:
    """Entry points by name; reading them takes milliseconds, and a name that nobody knows is looked up often."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=group)}


@functools.cache
def _entries(group: str, path: tuple[str, ...]) -> dict[str, importlib.metadata.EntryPoint]:
    """What installed packages provide; reading them takes milliseconds, so once for each search path."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=group)}


def _origin(run: Callable[..., Any]) -> tuple[str, str]:
    return run.__module__, run.__qualname__
