"""Configuration files that may be from elsewhere are measured before they are read.

YAML's aliases would be expanded for as long as it takes. Imports PyYAML and errors.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources.abc import Traversable
from pathlib import Path as FilePath
from typing import Any

import yaml

from declog.config.source_map import shown_path
from declog.errors import MAX_DEPTH, CompositionError, Problem, Where

MAX_BYTES = 4 * 2**20  # of one file
MAX_NODES = 20_000  # of one file, those of its aliases counted each time; a large config has two thousand
_YAML: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def text_of(file: Traversable) -> str:
    """The text of a configuration file.

    Raises ``CompositionError`` for a file that no configuration is: one that is no UTF-8 (DL101), that holds too much,
    or that is nested too deeply (DL202).
    """
    size = file.stat().st_size if isinstance(file, FilePath) else 0
    if size > MAX_BYTES:
        raise _refused("DL202.file_size", str(file), 1, size=size, limit=MAX_BYTES)
    return _checked(str(file), file.read_bytes())


_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\udc80-\udcff]")  # the last are bytes that are no UTF-8


@lru_cache(maxsize=256)  # a composition reads its files more than once
def _checked(file: str, content: bytes) -> str:
    text = content.decode("utf-8", "surrogateescape")
    if (character := _NO_TEXT.search(text)) is not None:
        before = text[: character.start()].replace("\r\n", "\n")
        column = len(before) - before.rfind("\n")
        raise _refused("DL101.utf8", file, before.count("\n") + 1, column)
    sizes: dict[str, int] = {}  # of anchors, with what their aliases stand for
    open_nodes: list[tuple[str | None, int]] = []
    count = 0
    try:
        for event in yaml.parse(text, Loader=_YAML):
            line = 1 if event.start_mark is None else event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent) and any(event.anchor == anchor for anchor, _ in open_nodes):
                raise _refused("DL202.alias", file, line, name=event.anchor)
            if isinstance(event, yaml.AliasEvent):
                count += sizes.get(str(event.anchor), 1)
            elif isinstance(event, yaml.NodeEvent):
                count += 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((event.anchor, count))
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before_it = open_nodes.pop()
                if anchor is not None:
                    sizes[anchor] = count - before_it + 1
            if len(open_nodes) > MAX_DEPTH:
                raise _refused("DL202.too_deep", file, line, limit=MAX_DEPTH)
            if count > MAX_NODES:
                raise _refused("DL202.file_values", file, line, limit=MAX_NODES)
    except yaml.YAMLError:
        pass  # whoever reads the file next says what is wrong
    return text


def _refused(key: str, file: str, line: int, column: int = 1, /, **facts: Any) -> CompositionError:
    return CompositionError([Problem.of(key, where=Where(shown_path(file), line, column), **facts)])
