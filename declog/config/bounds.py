"""Configuration files that may be from elsewhere are measured before they are read.

YAML's aliases would be expanded for as long as it takes. Imports PyYAML and errors.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any

import yaml

from declog.config.source_map import shown_path
from declog.errors import MAX_DEPTH, CompositionError, Problem, Where

MAX_BYTES = 4 * 2**20  # of one file
MAX_NODES = 20_000  # of one file, those of its aliases counted each time; a large config has two thousand
_YAML: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def bounded(file: FilePath) -> None:
    """Raise ``CompositionError`` DL202 where a YAML file holds too much, or is nested too deeply, to be a config."""
    _bounded(file, text_of(file))


@lru_cache(maxsize=256)  # a composition reads its files more than once
def _bounded(file: FilePath, content: bytes) -> None:
    text = content.decode("utf-8", "replace")
    sizes: dict[str, int] = {}  # of anchors, with what their aliases stand for
    open_nodes: list[tuple[str | None, int]] = []
    count = 0
    try:
        for phase in yaml.parse(text, Loader=_YAML):
            line = 1 if phase.start_mark is None else phase.start_mark.line + 1
            if isinstance(phase, yaml.AliasEvent) and any(phase.anchor == anchor for anchor, _ in open_nodes):
                raise _refused(file, line, "DL202.alias", name=phase.anchor)
            if isinstance(phase, yaml.AliasEvent):
                count += sizes.get(str(phase.anchor), 1)
            elif isinstance(phase, yaml.NodeEvent):
                count += 1
            if isinstance(phase, yaml.CollectionStartEvent):
                open_nodes.append((phase.anchor, count))
            elif isinstance(phase, yaml.CollectionEndEvent):
                anchor, before = open_nodes.pop()
                if anchor is not None:
                    sizes[anchor] = count - before + 1
            if len(open_nodes) > MAX_DEPTH:
                raise _refused(file, line, "DL202.too_deep", limit=MAX_DEPTH)
            if count > MAX_NODES:
                raise _refused(file, line, "DL202.file_values", limit=MAX_NODES)
    except yaml.YAMLError:
        return  # Hydra reads it next, and says what is wrong


def text_of(file: FilePath) -> bytes:
    """The bytes of a file; raises ``CompositionError`` DL202 for one that is too large to be a configuration."""
    size = file.stat().st_size
    if size > MAX_BYTES:
        raise _refused(file, 1, "DL202.file_size", size=size, limit=MAX_BYTES)
    return file.read_bytes()


def _refused(file: FilePath, line: int, key: str, /, **facts: Any) -> CompositionError:
    return CompositionError([Problem.of(key, where=Where(shown_path(file), line, 1), **facts)])
