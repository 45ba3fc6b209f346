"""A composed node as plain data: interpolations are resolved in place, and missing values are reported.

OmegaConf's own ``to_container`` lets ``???`` through as a text, and stops at the first interpolation that does not
resolve. Here all of them are found, and so are the values of the environment, which are never written down. The result
has no objects of OmegaConf.
"""

from __future__ import annotations

import copy
import os
import re
import threading
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import reduce
from pathlib import Path as FilePath
from typing import Any, cast

from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from declog.config.problems.composition_errors import nearest_key
from declog.config.problems.file_errors import first_line
from declog.config.search_path import GROUP
from declog.errors import Path, Problem, in_flow
from declog.language.keys import atoms, below
from declog.language.keys import keys as keys_of
from declog.language.secrets import without_secrets
from declog.language.spec import LogSpec
from declog.language.tree import at, has, tree_of

MAX_READ = 50_000  # values that all interpolations may bring in, each as often as it is brought in


_INNERMOST = re.compile(r"\$\{(?P<select>oc\.select:)?\s*(?P<path>[\w.\-\[\]]*)[^{}]*\}")


def _exploding(node: DictConfig) -> Problem | None:
    """DL103 if interpolations of interpolations read so many values that OmegaConf would take forever; else None."""
    plain = OmegaConf.to_container(node._get_root(), resolve=False)
    costs: dict[Path, int] = {}

    def cost(path: Path) -> int:
        """The number of values that are read for the value at a path, itself and its parts included."""
        if path not in costs and has(plain, path):
            costs[path] = 1  # until it is known: OmegaConf reports a circle
            value = at(plain, path)
            if isinstance(value, Mapping | list):
                keys = value if isinstance(value, Mapping) else range(len(value))
                costs[path] = 1 + sum(cost((*path, key)) for key in keys)
            elif isinstance(value, str):
                costs[path] = read(value, path[:-1])
        return costs.get(path, 1)

    def read(text: str, above: Path) -> int:
        total = 1
        while total <= MAX_READ and (inner := _INNERMOST.search(text)) is not None:
            target = _target(inner["path"], above)
            total += cost(target)
            value = at(plain, target) if has(plain, target) else ""
            is_text = isinstance(value, str | int) and "${" not in str(value)
            text = f"{text[: inner.start()]}{value if is_text else '_'}{text[inner.end() :]}"
        return total

    paths = [path for path, inner in tree_of(plain).walk() if isinstance(inner.value, str) and "${" in inner.value]
    if sum(map(cost, paths)) <= MAX_READ:
        return None
    largest, prefix = max(paths, key=cost), key_path(node)
    below = largest[len(prefix) :] if largest[: len(prefix)] == prefix else ()
    return Problem.of("DL103.reads_too_much", below, limit=MAX_READ)


def _target(written: str, above: Path) -> Path:
    """The path that an interpolation points to; one dot is the map that it stands in."""
    dots = len(written) - len(written.lstrip("."))
    base = above[: len(above) - dots + 1] if dots else ()
    keys = [key for key in re.split(r"[.\[\]]+", written.lstrip(".")) if key]
    return (*base, *(int(key) if key.isdigit() else key for key in keys))


_lock = threading.RLock()
_ENVIRONMENT = ("oc.env", "env")  # the second is what older configurations and many applications call it


@contextmanager
def _watching(used: list[tuple[str, str]]) -> Iterator[None]:
    """Note the names and values that are read from the environment, through however many interpolations."""
    with _lock:
        resolvers = BaseContainer._resolvers
        real = {name: resolvers[name] for name in _ENVIRONMENT if name in resolvers}

        def watched(name: str) -> Any:
            def resolve(config: Any, parent: Any, node: Any, args: Any, texts: Any) -> Any:
                value = real[name](config, parent, node, args, texts)
                if str(args[0]) in os.environ:  # the default of a variable that is not set is in the config
                    used.append((str(args[0]), str(value)))
                return value

            return resolve

        resolvers.update({name: watched(name) for name in real})
        try:
            yield
        finally:
            resolvers.update(real)


def masked(data: Mapping[str, Any], masks: Mapping[Path, str]) -> dict[str, Any]:
    """A copy of data with ``masks`` in place of values of the environment."""
    shown = copy.deepcopy(dict(data))
    for path, mask in masks.items():
        if has(shown, path):
            at(shown, path[:-1])[path[-1]] = mask
    return shown


def key_path(node: Node) -> Path:
    """The keys that lead to a node from the root of its configuration."""
    parent = node._get_parent()
    return () if parent is None else (*key_path(parent), node._key())


class Resolved:
    """A node as ``data``: dicts, lists and scalars.

    ``problems`` are the values that are missing (DL102) or do not resolve (DL103). Paths begin below the node.
    ``masks`` are the leaves with values of the environment, each with the text to show instead: the text that was
    written, or the variable. ``secrets`` are these values, each with its mask.
    """

    def __init__(self, node: DictConfig) -> None:
        self.problems: list[Problem] = []
        self.masks: dict[Path, str] = {}
        self.secrets: dict[str, str] = {}
        self._used: list[tuple[str, str]] = []  # names and values of the environment, latest last
        if (exploding := _exploding(node)) is not None:
            self.problems = [exploding]
            self.data = cast("dict[Any, Any]", OmegaConf.to_container(node, resolve=False))
            return
        with _watching(self._used):
            self.data = self._mapping(node, (), ())

    def _mapping(self, node: DictConfig, path: Path, above: tuple[int, ...]) -> dict[Any, Any]:
        """The map at a node; ``above`` are the ids of the containers on the way: an interpolation may lead back up."""
        return {key: self._entry(node, key, path, (*above, id(node))) for key in node}

    def _entry(self, container: DictConfig | ListConfig, key: Any, path: Path, above: tuple[int, ...]) -> Any:
        here, source = (*path, key), _source(container, key)
        dotted = ".".join(map(str, here))
        if OmegaConf.is_missing(container, key):
            full = ".".join(map(str, (*key_path(container), key)))
            self.problems.append(Problem.of("DL102.value", here, key=dotted, full=full))
            return None
        before = len(self._used)
        try:
            value = container[key]
        except OmegaConfBaseException as error:
            refused = here[0] == "metrics" and isinstance(container, DictConfig) and "_target_" in container
            if refused:  # the key `_target_`, with all beside it
                return source
            self.problems.append(_unresolved(container, source, error, here).at(*here))
            return None
        finally:
            self._note(here, source, self._used[before:])
        if id(value) in above:
            self.problems.append(Problem.of("DL103.itself", here, source=source, key=dotted))
            return None
        if isinstance(value, DictConfig):
            return self._mapping(value, here, above)
        if isinstance(value, ListConfig):
            return [self._entry(value, index, here, (*above, id(value))) for index in range(len(value))]
        if isinstance(value, Enum):
            return value.name
        return str(value) if isinstance(value, FilePath) else value

    def _note(self, here: Path, source: str | None, used: list[tuple[str, str]]) -> None:
        """Remember the values of the environment that were read for a key."""
        for name, value in used:
            self.secrets[value] = f"${{oc.env:{name}}}"
        if used:
            names_variable = source is not None and any(f"${{{name}:" in source for name in _ENVIRONMENT)
            self.masks[here] = source if names_variable and source is not None else f"${{oc.env:{used[-1][0]}}}"


def beside(config: object) -> dict[str, Any]:
    """An application's configuration beside its node ``declog``, resolved; empty if ``config`` is only a config.

    It configures the trainer, and is kept with the run and given to trackers. Values of the environment are shown as
    they were written, and keys whose names mean a secret are left out.
    """
    if isinstance(config, DictConfig):
        root = config._get_root()
        if not isinstance(root, DictConfig) or GROUP not in list(root):
            return {}
        values = Resolved(root)
        data = masked(values.data, values.masks)
    elif isinstance(config, Mapping) and GROUP in config:
        data = copy.deepcopy(dict(config))
    else:
        return {}
    rest: dict[str, Any] = without_secrets({key: data[key] for key in data if key not in (GROUP, "hydra")})
    return rest


def _source(container: DictConfig | ListConfig, key: Any) -> str | None:
    """The text of a value as it was written; None if it is not a text."""
    node = container._get_node(key)
    written = node._value() if isinstance(node, Node) else None
    return written if isinstance(written, str) else None


def _default(here: Path, *, alone: bool) -> str:
    """A default of an interpolation that the key at a path accepts, alone or as a part of its text."""
    types = atoms(reduce(below, here, LogSpec))
    defaults = {float: "1.0", type(None): "null", Any: "null", bool: "false", int: "1"} if alone else {}
    is_text = here[0] not in ("constants", "metrics", "derived", "filters", "alerts") or here[-1] in ("name", "text")
    words = {"reduce": "mean", "sinks": "console"}
    text = next((words[key] for key in here if key in words), "local" if is_text else "1")
    return next((default for kind, default in defaults.items() if kind in types), text)


def _unresolved(
    container: DictConfig | ListConfig, source: str | None, error: OmegaConfBaseException, here: Path
) -> Problem:
    """DL103 for an interpolation that does not resolve, ``${a.b}``, with a fix if its key does not exist."""
    cause = first_line(error).split(" raised while resolving interpolation: ")[-1].strip('"')
    named = re.search(r"'([^']+)' not found", str(error))
    root = container._get_root()
    if not isinstance(error, InterpolationKeyError) or named is None or not isinstance(root, DictConfig):
        if (match := re.search(r"\$\{env:([^}]*)\}", source or "")) is not None:
            return Problem.of("DL103.env", source=source, span=match.span(), name=match[1])
        if (match := re.search(r"\$\{oc\.env:\s*(\w+)\s*\}", source or "")) is not None and match[1] not in os.environ:
            default = _default(here, alone=match[0] == source)
            return Problem.of("DL103.unset", source=source, span=match.span(), name=match[1], default=default)
        return Problem.of("DL103.hydra", source=source, cause=cause)
    key, text = named[1], source or ""
    written = re.search(rf"\$\{{\.*{re.escape(key)}\}}", text)
    if written is None:
        return Problem.of("DL103.hydra", source=source, cause=cause)
    span = written.span()
    if key.startswith("hydra."):
        return Problem.of("DL103.hydra_key", source=source, span=span, key=key, inner=key.removeprefix("hydra."))
    tree = tree_of(OmegaConf.to_container(root, resolve=False))
    section, _, leaf = key.rpartition(".")
    value = tree.at((GROUP, key)) if key not in keys_of(LogSpec) else None
    values = tree.at((GROUP, section)) if section not in keys_of(LogSpec) else None
    constants = tree.at((GROUP, "constants"))

    def alone(names: Container[Any]) -> str:
        """The text with each interpolation of the section, of one of ``names``, as the name alone."""
        of_section = rf"\$\{{\.*{re.escape(f'{section}.' if section else '')}(\w+)\}}"
        return re.sub(of_section, lambda match: match[1] if match[1] in names else match[0], text)

    if value is not None:
        fix = f"run: {{config: {{{key}: {in_flow(value.plain)}}}}}, and `${{{GROUP}.run.config.{key}}}`"
    elif values is not None and leaf in values.entries:  # `params: {clip: 0.2}`
        fix = f"constants: {in_flow(values.plain)}, and `{alone(values.entries)}`: a constant stands alone"
    elif constants is not None and leaf in constants.entries:
        fix = f"write `{alone(constants.entries)}`: a constant stands alone"
    elif written[0].startswith("${."):  # relative: what it is relative to is not told
        return Problem.of("DL103.hydra", source=source, cause=cause)
    elif (close := nearest_key(tree, key)) is not None:
        fix = f"did you mean `${{{close}}}`?"
    elif "." in key:
        default = _default(here, alone=text == written[0])
        fix = f"${{oc.select:{key},{default}}}, the value of your application there, and {default} elsewhere"
    else:
        fix = f"an interpolation starts at the top of the whole configuration; a signal stands alone: `{key}`"
    return Problem.of("DL103.no_key", source=source, span=span, key=key, fix=fix)
