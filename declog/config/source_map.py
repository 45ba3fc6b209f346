"""Where a composed key was written: plain data between the composer and the error renderer.

Filled by ``fold.py``, shown by ``diagnostics.py``. Imports the errors' ``Path`` only, and no Hydra.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from declog.errors import Path


@dataclass(frozen=True)
class Span:
    """A stretch of a file. Lines and columns count from 1, in characters; the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int

    @property
    def one_line(self) -> bool:
        return self.line == self.end_line


@dataclass(frozen=True)
class FilePlace:
    """A key of a YAML file. ``key`` is None for the entry of a list.

    ``style`` is the YAML style of a scalar value: ``plain``, a quote, ``|`` or ``>``; None for a mapping
    or a list. ``path`` is the key as it stands there, which says another one where it is written shorter.
    """

    file: str
    key: Span | None
    value: Span
    style: str | None
    path: Path = ()


@dataclass(frozen=True)
class OverridePlace:
    """A key of an override, ``path`` as it stands there, and the override as it was given."""

    text: str
    path: Path = ()


@dataclass(frozen=True)
class StorePlace:
    """A configuration that is no file: a node of Hydra's ConfigStore, or of another config source."""

    name: str


Place = FilePlace | OverridePlace | StorePlace


@dataclass(frozen=True)
class Layer:
    """One place that set a key.

    ``rank`` counts the layers in the order in which Hydra composed them: the higher one wins.
    ``replaces`` is true where what earlier layers had below the key is gone, i.e. for all but mappings.
    """

    rank: int
    place: Place
    replaces: bool


@dataclass(frozen=True)
class Provenance:
    """Every composed key and the layers that set it, the winning one last; and the files' texts."""

    layers: Mapping[Path, tuple[Layer, ...]]
    texts: Mapping[str, str]

    def find(self, path: Path) -> tuple[Path, tuple[Layer, ...]]:
        """The innermost key on ``path`` that was written somewhere and still holds, with its layers."""
        for depth in range(len(path), 0, -1):
            found = self.layers.get(path[:depth])
            if found and not self._replaced(path[:depth], found[-1].rank):
                return path[:depth], found
        return (), ()

    def _replaced(self, path: Path, rank: int) -> bool:
        """Whether a later layer replaced one of the key's parents as a whole."""
        above = (self.layers.get(path[:depth], ()) for depth in range(1, len(path)))
        return any(layer.replaces and layer.rank > rank for layers in above for layer in layers)
