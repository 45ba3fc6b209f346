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

from declog.composition_errors import unknown_key
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
            cause = first_line(error).split(" raised while resolving interpolation: ")[-1].strip('"')
            source = _source(container, key)
            fix = _interpolation_fix(container, source or "", error)
            self.problems.append(Problem("DL103", cause, here, fix=fix, source=source))
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


def _interpolation_fix(container: DictConfig | ListConfig, source: str, error: OmegaConfBaseException) -> str | None:
    """The nearest key for one that is not there, if it was written from the top: ``${a.b}``, not ``${.b}``."""
    named = re.search(r"'([^']+)' not found", str(error))
    root = container._get_root()
    if not isinstance(error, InterpolationKeyError) or named is None or not isinstance(root, DictConfig):
        return None
    return unknown_key(root, named[1]) if "${" + named[1] in source else None
