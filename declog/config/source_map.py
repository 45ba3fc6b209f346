"""The locations of composed keys: plain data between the composer and the error renderer.

``fold.py`` fills it, and ``problems/diagnostics.py`` shows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath

import yaml

from declog.errors import Excerpt, Path, Where

# The ends of lines in YAML: fewer than str.splitlines knows.
LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


def shown_path(file: str | FilePath) -> str:
    """A path as people would type it: relative to the working directory if it lies below that."""
    path = FilePath(file)
    return str(path.relative_to(FilePath.cwd())) if path.is_relative_to(FilePath.cwd()) else str(file)


@dataclass(frozen=True)
class Span:
    """A range of a file. Lines and columns count from 1, in characters; the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int

    @property
    def one_line(self) -> bool:
        return self.line == self.end_line

    def part(self, raw: str, start: int, end: int) -> Span:
        """The span of a part of ``raw``, which is the text of this span."""
        return Span(*self._position(raw, start), *self._position(raw, end))

    def _position(self, raw: str, offset: int) -> tuple[int, int]:
        row = raw.count("\n", 0, offset)
        begin = raw.rfind("\n", 0, offset) + 1
        return self.line + row, offset - begin + (1 if row else self.column)


@dataclass(frozen=True)
class FileLocation:
    """A key of a YAML file. ``key`` is None for the entry of a list.

    ``style`` is the YAML style of a scalar value: ``plain``, a quote, ``|`` or ``>``; None for a mapping or a list.
    ``path`` is the path of the key in the file; in a short form it differs from the composed path. ``text`` is the text
    of the file.
    """

    file: str
    key: Span | None
    value: Span
    style: str | None
    path: Path = ()
    text: str = field(default="", repr=False, compare=False)

    @property
    def written_key(self) -> str:
        """The key as it is written in its file; empty for the entry of a list."""
        return "" if self.key is None else self._read(self.key)

    @property
    def written_value(self) -> str:
        """The value as it is written in its file."""
        return self._read(self.value)

    @property
    def in_flow(self) -> bool:
        """Whether the value stands in {...} or [...], which may begin on a line above."""
        depth, at = 0, (self.value.line, self.value.column)
        for token in yaml.scan(self.text):
            if (token.start_mark.line + 1, token.start_mark.column + 1) >= at:
                break
            depth += isinstance(token, yaml.FlowMappingStartToken | yaml.FlowSequenceStartToken)
            depth -= isinstance(token, yaml.FlowMappingEndToken | yaml.FlowSequenceEndToken)
        return depth > 0

    @property
    def where(self) -> Where:
        """File, line and column."""
        at = self.key or self.value
        return Where(shown_path(self.file), at.line, at.column)

    def shown(self, span: Span) -> Where:
        """The place where a span of the file begins, with the span's first line."""
        line = LINE_BREAK.split(self.text)[span.line - 1]
        end = span.end_column - 1 if span.one_line else len(line)
        excerpt = Excerpt(str(span.line), line, span.column - 1, end)
        return Where(shown_path(self.file), span.line, span.column, excerpt=excerpt)

    def _read(self, span: Span) -> str:
        """The text of a span of the file, with plain line breaks."""
        covered = LINE_BREAK.split(self.text)[span.line - 1 : span.end_line]
        if len(covered) > span.end_line - span.line:
            covered[-1] = covered[-1][: span.end_column - 1]
        covered[0] = covered[0][span.column - 1 :]
        return "\n".join(covered)


@dataclass(frozen=True)
class OverrideLocation:
    """A key of an override: ``path`` is its path there, ``text`` the override as it was given."""

    text: str
    path: Path = ()

    @property
    def where(self) -> Where:
        """The override."""
        return Where(override=self.text)


@dataclass(frozen=True)
class StoreLocation:
    """A configuration that is not a file: a node of Hydra's ConfigStore, or of another config source."""

    name: str

    @property
    def where(self) -> Where:
        """Its name."""
        return Where(name=self.name)


@dataclass(frozen=True)
class CodeLocation:
    """A key of a mapping in code: ``path`` is its path there. ``is_text``: a scalar, which holds all that is below.

    ``text`` is the value if it is a text.
    """

    path: Path
    is_text: bool
    text: str = field(default="", repr=False, compare=False)

    @property
    def where(self) -> Where:
        """The argument."""
        return Where(name="config")


Location = FileLocation | OverrideLocation | StoreLocation | CodeLocation


@dataclass(frozen=True)
class Layer:
    """One location that set a key.

    ``rank`` counts the layers in the order in which Hydra composed them: the higher one wins. ``replaces``: the value
    replaces what earlier layers had below the key, as all values except mappings do. ``null``: the layer sets the key
    to null, or deletes it.
    """

    rank: int
    location: Location
    replaces: bool
    null: bool = False

    @property
    def file(self) -> str | None:
        """The file of the location; None if it is not in a file."""
        return self.location.file if isinstance(self.location, FileLocation) else None


@dataclass(frozen=True)
class Provenance:
    """Every composed key and the layers that set it, the winning one last; and the files' texts."""

    layers: Mapping[Path, tuple[Layer, ...]]
    texts: Mapping[str, str]

    def find(self, path: Path) -> tuple[Path, tuple[Layer, ...]]:
        """The innermost key on ``path`` that was written somewhere and still holds, with its layers.

        For an entry that exists only because a key in it was set, this key.
        """
        if len(path) > 1 and path not in self.layers:
            inside = next((key for key in self.layers if key[: len(path)] == path), None)
            if inside is not None:
                return inside, self.layers[inside]
        for depth in range(len(path), 0, -1):
            layers = self.layers.get(path[:depth])
            if layers and not self._replaced(path[:depth], layers[-1].rank):
                return path[:depth], layers
        return (), ()

    def _replaced(self, path: Path, rank: int) -> bool:
        """Whether a later layer replaced one of the key's parents as a whole."""
        above = (self.layers.get(path[:depth], ()) for depth in range(1, len(path)))
        return any(layer.replaces and layer.rank > rank for layers in above for layer in layers)
