"""Registries of named functions, to which users add: in their code, or by entry points of installed packages.

If two packages provide the same name, using the name is an error, because it would be ambiguous.
"""

from __future__ import annotations

import abc
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from importlib.metadata import EntryPoint
from typing import Any, Generic, Protocol, TypeVar

from declog.distribution import entry_points
from declog.errors import UsageError
from declog.errors.habits import shown_at_the_call


class Named(Protocol):
    """An entry of a registry."""

    @property
    def name(self) -> str: ...

    @property
    def run(self) -> Callable[..., Any]: ...

    @property
    def help(self) -> str: ...


class _Default(Enum):
    REQUIRED = "required"  # the same value in all processes, because plans are compared and sent


REQUIRED: Any = _Default.REQUIRED  # the default of a parameter that has none

T = TypeVar("T", bound=Named)


class Registry(abc.ABC, Generic[T]):
    """Entries by name. A child registry also has its parent's entries. No entry is ever replaced silently."""

    noun: str
    group: str  # the entry-point group that installed packages add to

    def __init__(self, parent: Registry[T] | None = None) -> None:
        self._parent = parent
        self._entries: dict[str, T] = {}

    def add(self, entry: T) -> T:
        """Register an entry. A name that is taken is an error, unless it has the same function, imported again."""
        registered = self._registered(entry.name)
        origins = {_origin(registered.run)} if registered is not None else set()
        origins |= {(point.module, point.attr) for point in self._installed.get(entry.name, ())}
        if origins - {_origin(entry.run)}:
            raise UsageError.of(
                "DL303.taken", noun=self.noun, name=entry.name, word=self._word, free=self._free(entry.name),
                what=(registered and registered.help) or self.home(entry.name) or "declog's own",
                line=self._line(entry, registered),
            )  # fmt: skip
        self._entries[entry.name] = entry
        return entry

    @property
    def _word(self) -> str:
        """The decorator that registers an entry."""
        return self.group.removeprefix("declog.").removesuffix("s")

    def _free(self, name: str) -> str:
        """A free name to suggest in place of one that is taken."""
        free = f"my_{name}"
        return self._free(free) if free in self or free in self._installed else free

    def _line(self, entry: T, registered: T | None) -> str:
        """The correction of an entry's `def`, behind its decorator with a free name; empty if none is needed."""
        return ""

    def discard(self, name: str) -> None:
        """Remove an entry of this registry, if there is one of this name; the parent's entries stay."""
        self._entries.pop(name, None)

    def get(self, name: str) -> T | None:
        """The entry of this name, or None. Raises ``UsageError`` if two packages provide the name."""
        registered = self._registered(name)
        entry = provided(self.group, name, self.noun) if registered is None and name in self._installed else None
        if entry is None:
            return registered
        noun, by = self.noun, home(entry)
        try:
            run = entry.load()
            if not callable(run):
                raise UsageError.of(
                    "DL303.no_function", noun=noun, name=name, home=by, value=entry.value,
                    type=type(run).__name__, module=entry.module,
                )  # fmt: skip
            registered = self._entries.get(name)  # the module may have registered it itself, with its own facts
            return registered if registered is not None and registered.run is run else self.adopt(name, run)
        except UsageError:
            raise
        except Exception as error:  # whatever an installed package does on import is reported as its problem
            raise UsageError.of("DL303.load", noun=noun, name=name, home=by, value=entry.value, error=error) from error

    def named(self, name: str) -> T | None:
        """The entry that a config names, as `get`; also raises if a package provides a name of declog's own."""
        if name in self._installed:
            provided(self.group, name, self.noun, shipped=self._parent is not None and name in self._parent)
        return self.get(name)

    def home(self, name: str) -> str:
        """The source of an entry: the package and its version, or the module that registered it; "" for declog."""
        if (homes := self._installed.get(name, ())) or (entry := self._registered(name)) is None:
            return " and ".join(map(home, homes))
        return "" if self._parent is not None and name in self._parent else module_of(entry.run)

    def _registered(self, name: str) -> T | None:
        entry = self._entries.get(name)
        return self._parent._registered(name) if entry is None and self._parent is not None else entry

    @property
    def _installed(self) -> Mapping[str, Sequence[EntryPoint]]:
        """The entry points of installed packages, by name; empty for declog's own registry, which has no parent."""
        return {} if self._parent is None else installed(self.group)

    def __contains__(self, name: str) -> bool:
        return self._registered(name) is not None

    @abc.abstractmethod
    def adopt(self, name: str, run: Callable[..., Any]) -> T:
        """Register a plain function under a name."""

    def decorator(
        self, run: Callable[..., Any] | None, name: str | None, adopt: Callable[[str, Any], object] | None = None
    ) -> Any:
        """The decorator ``@registered`` or ``@registered(name=...)``: registers a function, by default under its name.

        Raises ``UsageError`` DL303 for an object that is no function, and for a function without a name.
        """

        @shown_at_the_call
        def register(fn: Callable[..., Any]) -> Callable[..., Any]:
            id = name or getattr(fn, "__name__", None)
            if not callable(fn) or id is None:
                shown = fn if isinstance(fn, str) else "my_name"
                raise UsageError.of("DL303.decorated", word=self._word, came=fn, name=shown)
            (adopt or self.adopt)(id, fn)
            return fn

        return register if run is None else register(run)

    def __iter__(self) -> Iterator[T]:
        if self._parent is not None:
            yield from self._parent
        yield from self._entries.values()

    def names(self) -> list[str]:
        """All names, sorted; those of installed packages included."""
        return sorted({*(entry.name for entry in self), *self._installed})


def _origin(run: Callable[..., Any]) -> tuple[str, str]:
    return module_of(run), getattr(run, "__qualname__", repr(run))


def module_of(run: Callable[..., Any]) -> str:
    """The module of a function. A function that ``exec`` made in a bare namespace has none: it gets ``__main__``."""
    return getattr(run, "__module__", None) or "__main__"


# -- installed packages


def installed(group: str) -> Mapping[str, Sequence[EntryPoint]]:
    """The entry points of a group by name: one per name, unless packages collide."""
    return _installed(group, tuple(sys.path))


@functools.cache  # unknown names are looked up often
def _installed(group: str, path: tuple[str, ...]) -> Mapping[str, Sequence[EntryPoint]]:
    homes: dict[str, dict[str, EntryPoint]] = {}
    for entry in sorted(entry_points(group), key=home):
        homes.setdefault(entry.name, {}).setdefault(entry.value, entry)  # two entry points of one object do not collide
    return {name: tuple(entries.values()) for name, entries in homes.items()}


def home(entry: EntryPoint) -> str:
    """The package that provides an entry point, and its version."""
    return entry.value if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def provided(group: str, name: str, noun: str, *, shipped: bool = False) -> EntryPoint | None:
    """The entry point of a name, or None. ``shipped``: declog has this name itself.

    Raises ``UsageError`` DL303 if two packages, or a package and declog, have the name.
    """
    homes = installed(group).get(name, ())
    owners = [*(["declog itself"] if shipped else []), *map(home, homes)]
    if len(owners) > 1:
        raise UsageError.of("DL303.two_packages", noun=noun, name=name, owners=" and by ".join(owners))
    return homes[0] if homes else None
