"""A composed node as plain data: interpolations resolved where they stand, what is missing told apart.

OmegaConf's own ``to_container`` lets ``???`` through as a text and stops at the first interpolation that
does not resolve; here all of them are found, and so is what the environment gave: that is never written down.
Imports OmegaConf; the result has nothing of it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path as FilePath
from typing import Any

from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from declog.composition_errors import nearest_key
from declog.errors import Path, Problem
from declog.file_errors import first_line


@dataclass(frozen=True)
class Resolved:
    """A node as dicts, lists and scalars. ``problems``: what did not resolve, DL102 and DL103, by path below the node.

    ``masks`` are the leaves that the environment had a part in, each with the text that stands for it: what was
    written, or the variable it came from. ``secrets`` are what the environment gave, each with its mask.
    """

    data: dict[Any, Any]
    problems: tuple[Problem, ...]
    masks: Mapping[Path, str]
    secrets: Mapping[str, str]

    def masked(self, text: str) -> str:
        """A text without anything that the environment gave; values of less than four characters are no secrets."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= 4:
                text = text.replace(secret, self.secrets[secret])
        return text


def resolved(node: DictConfig) -> Resolved:
    """The node, and what of it could not be resolved."""
    walk = _Walk()
    with _watching(walk.used):
        data = walk.mapping(node, (), ())
    return Resolved(data, tuple(walk.problems), walk.masks, walk.secrets)


_lock = threading.RLock()
_ENVIRONMENT = ("oc.env", "env")  # the second is what older configurations and many applications call it


@contextmanager
def _watching(used: list[tuple[str, str]]) -> Iterator[None]:
    """Note what the environment gives, by name and value, however many interpolations it passes on its way."""
    with _lock:
        resolvers = BaseContainer._resolvers
        real = {name: resolvers[name] for name in _ENVIRONMENT if name in resolvers}

        def watched(name: str) -> Any:
            def resolve(config: Any, parent: Any, node: Any, args: Any, texts: Any) -> Any:
                value = real[name](config, parent, node, args, texts)
                if str(args[0]) in os.environ:  # what stands for a variable that is not set is in the profile
                    used.append((str(args[0]), str(value)))
                return value

            return resolve

        resolvers.update({name: watched(name) for name in real})
        try:
            yield
        finally:
            resolvers.update(real)


def has(data: Any, path: Path) -> bool:
    """Whether a key is there."""
    for key in path:
        keys = range(len(data)) if isinstance(data, list) else data if isinstance(data, Mapping) else ()
        if key not in keys:
            return False
        data = data[key]
    return True


def at(data: Any, path: Path) -> Any:
    """What stands at a key that is there."""
    for key in path:
        data = data[key]
    return data


def key_path(node: Node) -> Path:
    """The keys that lead to a node from the root of its configuration."""
    parent = node._get_parent()
    return () if parent is None else (*key_path(parent), node._key())


class _Walk:
    """``above`` are the containers on the way down, by identity: an interpolation may lead back up."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.used: list[tuple[str, str]] = []  # what the environment gave, latest last
        self.masks: dict[Path, str] = {}
        self.secrets: dict[str, str] = {}

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
        before = len(self.used)
        try:
            value = container[key]
        except OmegaConfBaseException as error:
            self.problems.append(_unresolved(container, _source(container, key), error).at(*here))
            return None
        finally:
            self.note(here, _source(container, key), self.used[before:])
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

    def note(self, here: Path, source: str | None, used: list[tuple[str, str]]) -> None:
        """Remember what the environment gave while a key was read."""
        for name, value in used:
            self.secrets[value] = f"${{oc.env:{name}}}"
        if used:
            own = source is not None and any(f"${{{name}:" in source for name in _ENVIRONMENT)
            self.masks[here] = source if own and source is not None else f"${{oc.env:{used[-1][0]}}}"


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
