"""What installed packages provide under a name: entry points, each with its package. Imports errors only.

Two packages that provide one name are an error where the name is used: nobody could say which of them was meant.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points

from declog.errors import UsageError


def installed(group: str) -> Mapping[str, Sequence[EntryPoint]]:
    """The entry points of a group by name: one each, unless packages collide."""
    return _installed(group, tuple(sys.path))


@functools.cache  # reading all packages' metadata takes milliseconds, and a name that nobody knows is looked up often
def _installed(group: str, path: tuple[str, ...]) -> Mapping[str, Sequence[EntryPoint]]:
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in sorted(entry_points(group=group), key=home):
        found.setdefault(entry.name, {}).setdefault(entry.value, entry)  # two of one object are no collision
    return {name: tuple(entries.values()) for name, entries in found.items()}


def home(entry: EntryPoint) -> str:
    """The package that provides an entry point, and its version."""
    return entry.value if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def provided(group: str, name: str, noun: str, *, shipped: bool = False) -> EntryPoint | None:
    """The entry point of a name, or None. ``shipped``: declog has this name itself.

    Raises ``UsageError`` DL303 where two have it.
    """
    homes = installed(group).get(name, ())
    owners = [*(["declog itself"] if shipped else []), *map(home, homes)]
    if len(owners) > 1:
        message = f"the {noun} `{name}` is provided by {' and by '.join(owners)}"
        raise UsageError("DL303", message, f"uninstall one of them, or let its package call the {noun} another name")
    return homes[0] if homes else None
