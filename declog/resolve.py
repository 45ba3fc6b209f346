"""A composed node as plain data: interpolations resolved where they stand, what is missing told apart.

OmegaConf's own ``to_container`` lets ``???`` through as a text and stops at the first interpolation that
does not resolve; here all of them are found. Imports OmegaConf; the result has nothing of it.
"""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path as FilePath
from typing import Any

from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from declog.composition_errors import nearest_key
from declog.errors import Path, Problem
from declog.file_errors import first_line


def resolved(node: DictConfig) -> tuple[dict[Any, Any], list[Problem]]:
    """The node as dicts, lists and scalars, and what could not be resolved: DL102 and DL103, by path below it."""
    walk = _Walk()
    return walk.mapping(node, (), ()), walk.problems


def key_path(node: Node) -> Path:
    """The keys that lead to a node from the root of its configuration."""
    parent = node._get_parent()
    return () if parent is None else (*key_path(parent), node._key())


class _Walk:
    """``above`` are the containers on the way down, by identity: an interpolation may lead back up."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def mapping(self, node: DictConfig, path: Path, above: tuple[int, ...]) -> dict[Any, Any]:
        return {key: self.entry(node, key, path, (*above, id(node))) for key in node}

    def entry(self, container: DictConfig | ListConfig, key: Any, path: Path, above: tuple[int, ...]) -> Any:
        here = (*path, key)
        dotted = ".".join(map(str, here))
        if OmegaConf.is_missing(container, key):
            full = ".".join(map(str, (*key_path(container), key)))
            self.problems.append(
                Problem("DL102", f"{dotted} has no value yet (???)", here, fix=f"give one: {full}=...")
            )
            return None
        try:
            value = container[key]
        except OmegaConfBaseException as error:
            self.problems.append(_unresolved(container, _source(container, key), error).at(*here))
            return None
        if id(value) in above:
            message = f"{dotted} refers to what it is a part of"
            self.problems.append(Problem("DL103", message, here, source=_source(container, key)))
            return None
        if isinstance(value, DictConfig):
            return self.mapping(value, here, above)
        if isinstance(value, ListConfig):
            return [self.entry(value, index, here, (*above, id(value))) for index in range(len(value))]
        if isinstance(value, Enum):
            return value.name
        return str(value) if isinstance(value, FilePath) else value


def _source(container: DictConfig | ListConfig, key: Any) -> str | None:
    """The interpolation as it was written."""
    node = container._get_node(key)
    written = node._value() if isinstance(node, Node) else None
    return written if isinstance(written, str) else None


def _unresolved(container: DictConfig | ListConfig, source: str | None, error: OmegaConfBaseException) -> Problem:
    """DL103, with the nearest key for one that is not there, if it was written from the top: ``${a.b}``."""
    cause = first_line(error).split(" raised while resolving interpolation: ")[-1].strip('"')
    named = re.search(r"'([^']+)' not found", str(error))
    root = container._get_root()
    if not isinstance(error, InterpolationKeyError) or named is None or not isinstance(root, DictConfig):
        return Problem("DL103", cause, source=source)
    written = "${" + named[1] + "}"
    at = (source or "").find(written)
    if at < 0:
        return Problem("DL103", cause, source=source)
    close = nearest_key(root, named[1])
    fix = f"did you mean `${{{close}}}`?" if close else "an interpolation starts at the top of the whole configuration"
    return Problem("DL103", f"there is no key `{named[1]}`", (), fix, source, (at, at + len(written)))
