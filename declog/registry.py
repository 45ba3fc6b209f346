"""Named things that users can add to: functions and reductions. Imports errors only."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
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


class Registry(Generic[T]):
    """Entries by name. A child registry sees its parent's; nothing is ever replaced in silence."""

    noun = "entry"
    group: str | None = None  # the entry-point group that installed packages add to

    def __init__(self, parent: Registry[T] | None = None) -> None:
        self._parent = parent
        self._own: dict[str, T] = {}

    def add(self, entry: T) -> T:
        """Register; a known name is an error unless it is the same implementation, imported again."""
        known = self.get(entry.name)
        if known is not None and _origin(known.run) != _origin(entry.run):
            raise UsageError(
                "DL303", f"a {self.noun} named `{entry.name}` is registered already", "choose another name"
            )
        self._own[entry.name] = entry
        return entry

    def get(self, name: str) -> T | None:
        """The entry of this name, or None."""
        own = self._own.get(name)
        if own is None and self._parent is not None:
            own = self._parent.get(name)
        return own if own is not None or self._parent is None else self._installed(name)

    def _installed(self, name: str) -> T | None:
        """What an installed package provides under this name, registered at its first use."""
        if self.group is None:
            return None
        entry = _entries(self.group, tuple(sys.path)).get(name)
        return None if entry is None else self.adopt(name, entry.load())

    def adopt(self, name: str, run: Callable[..., Any]) -> T:
        """Register a plain function under a name."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[T]:
        if self._parent is not None:
            yield from self._parent
        yield from self._own.values()

    def names(self) -> list[str]:
        """All names, sorted; those of installed packages included."""
        installed = _entries(self.group, tuple(sys.path)) if self.group and self._parent else ()
        return sorted({*(entry.name for entry in self), *installed})


@functools.cache
def _entries(group: str, path: tuple[str, ...]) -> dict[str, importlib.metadata.EntryPoint]:
    """What installed packages provide; reading them takes milliseconds, so once for each search path."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=group)}


def _origin(run: Callable[..., Any]) -> tuple[str, str]:
    return run.__module__, run.__qualname__
