"""The distribution of this project: ``declog-rl`` for pip, whose package is ``declog``.

On the package index the name ``declog`` belongs to another project, whose package has the same name. Our name is
written here and in pyproject.toml, which reads the version from here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

NAME = "declog-rl"
VERSION = "0.9.0"

_PACKAGE = "declog"
_SCRIPT = "declog.cli:main"  # an entry point of ours, under whichever name an older checkout was installed


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install '{NAME}[{extra}]'"


def entry_points(group: str) -> Iterator[EntryPoint]:
    """The entry points of a group, of all installed packages."""
    yield from _entry_points(tuple(sys.path)).select(group=group)


@functools.cache  # all packages' metadata is read for any group, which takes some 20 ms
def _entry_points(path: tuple[str, ...]) -> Any:
    from importlib import metadata

    return metadata.entry_points()


def namesake() -> str | None:
    """The version of the other distribution ``declog`` if it is installed, else None."""
    return _namesake(tuple(sys.path))


@functools.cache  # the folders of sys.path are searched for it, and a process starts many runs
def _namesake(path: tuple[str, ...]) -> str | None:
    from importlib import metadata

    versions = (
        package.version
        for package in metadata.distributions(name=_PACKAGE, path=list(path))
        if all(entry.value != _SCRIPT for entry in package.entry_points)
    )
    return next(versions, None)
