"""Named things that users can add to: functions and reductions. Imports errors only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from declog.errors import UsageError


class Named(Protocol):
    """What a registry holds."""

    @property
    def name(self) -> str: ...

    @property
    def run(self) -> Callable[..., Any]: ...


T = TypeVar("T", bound=Named)


class Registry(Generic[T]):
    """Entries by name. A child registry sees its parent's; nothing is ever replaced in silence."""

    noun = "entry"

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
        return own if own is not None or self._parent is None else self._parent.get(name)

    def __iter__(self) -> Iterator[T]:
        if self._parent is not None:
            yield from self._parent
        yield from self._own.values()

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted({entry.name for entry in self})


def _origin(run: Callable[..., Any]) -> tuple[str, str]:
    return run.__module__, run.__qualname__
