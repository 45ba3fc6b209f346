"""Compose files and overrides: each is read as a tree, brought into the long form, and laid over those before.

Hydra decides which files there are, their order, and the package of each. Values carry their locations, so the composed
tree has the locations of all its keys.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, ValueNode
from omegaconf.errors import OmegaConfBaseException

from declog.config.files import defaults_of, of_file, source_file
from declog.config.hydra import Defaults, Files, InCode, file_of, source_of
from declog.config.problems.override_errors import Refused, problem_of, refusal
from declog.config.search_path import GROUP
from declog.config.source_map import CodeLocation, FileLocation, Layer, OverrideLocation, Provenance, StoreLocation
from declog.errors import Path, Problem
from declog.language.keys import is_entry
from declog.language.shorthand import long
from declog.language.tree import MISSING, Node, over, said, tree_of


class ListOverMap(HydraException):
    """A list in one file over a map in another, or a map over a list: there is no rule to merge them."""

    def __init__(self, path: Path, low: Node, high: Node) -> None:
        super().__init__(path)
        self.path, self.low, self.high = path, low, high


@dataclass(frozen=True)
class Composition:
    """A configuration as one tree, whose values carry their locations.

    ``layers`` are the trees of its files and overrides, in their order. ``merged`` and ``repository`` are these files
    and overrides as Hydra has them. ``texts`` are the texts of the files, by path.
    """

    tree: Node
    layers: tuple[Node, ...]
    texts: Mapping[str, str]
    merged: Defaults
    repository: Files

    @cached_property
    def provenance(self) -> Provenance:
        """Every key, and the files and overrides that set it."""
        layers: dict[Path, list[Layer]] = {}
        for rank, layer in enumerate(self.layers, 1):
            for path, node in layer.walk():
                if node.location is not None:
                    replaces = node.replaces or not isinstance(node.value, dict)
                    leaves = node.value == MISSING and isinstance(node.location, FileLocation | CodeLocation)
                    rank_here, replaces = (0, False) if leaves else (rank, replaces)
                    layers.setdefault(path, []).append(Layer(rank_here, node.location, replaces, node.value is None))
                for key in node.drops:
                    if (*path, key) in layers:
                        layers[*path, key].append(Layer(rank, node.location, True, True))
        in_order = {path: tuple(sorted(setters, key=lambda one: one.rank)) for path, setters in layers.items()}
        return Provenance(in_order, self.texts)


def fold(merged: Defaults, repository: Files, *, applied: bool = False, lenient: bool = False) -> Composition:
    """Lay files and overrides over each other in their order.

    ``applied``: Hydra has accepted the overrides, and none is refused. ``lenient``: a plain override may add a key.
    Raises ``Refused`` with all overrides that cannot be applied, ``ListOverMap``, and Hydra's error for a file that
    cannot be read.
    """
    refused = list[Problem]()
    tree, layers, texts, stored = Node({}), list[Node](), dict[str, str](), list[tuple[Path, DictConfig]]()
    for package, chosen, layer in _files(merged, repository, texts, stored):
        node = tree.at(package)
        if chosen is not None and (node is None or node.location is None):
            layers.append(_under(package, Node({}, chosen)))
            tree = over(tree, layers[-1])
        layer = _in_long_form(layer)
        if not applied:
            _refuse_lists_over_maps(tree, layer, ())
        layers.append(layer)
        tree = over(tree, layer)
    for override in merged.config_overrides:
        if override.key_or_group.startswith("hydra."):
            continue
        problem = None if applied else refusal(tree, override, lenient=lenient)
        if problem is None:
            layer, tree = overridden(tree, override)
            layers.append(layer)
        else:
            refused.append(problem)
    if refused:
        raise Refused(refused)
    for package, config in stored:
        _hold_types(config, tree.at(package) or tree)
    return Composition(tree, tuple(layers), texts, merged, repository)


def _hold_types(stored: DictConfig, node: Node) -> None:
    """Raise if a value does not have the type that a dataclass in the ConfigStore declares.

    The error is ``Refused`` for a value of an override, else OmegaConf's own.
    """
    for key, inner in node.entries.items() if isinstance(stored._value(), dict) else ():
        declared = stored._get_node(key, validate_access=False)
        if isinstance(declared, DictConfig):
            _hold_types(declared, inner)
        elif isinstance(declared, ValueNode) and not isinstance(inner.value, dict | list):
            try:
                copy.deepcopy(declared)._set_value(inner.value)
            except OmegaConfBaseException as error:
                if isinstance(inner.location, OverrideLocation):
                    line, cause = inner.location.text, str(error).split("\n")[0]
                    problem = problem_of(line, "DL101.hydra", behind=True, cause=cause)
                    raise Refused([problem]) from None
                raise


def _in_long_form(layer: Node) -> Node:
    node = layer.at((GROUP,))
    if node is None or not node.entries:
        return layer
    return layer.holding({**layer.entries, GROUP: long(node)[0]})


def _refuse_lists_over_maps(low: Node, high: Node, path: Path) -> None:
    both = {type(low.value), type(high.value)}
    if both == {dict, list} and not high.replaces:
        raise ListOverMap(path, low, high)
    for key, node in high.entries.items() if not high.replaces else ():
        if key in low.entries:
            _refuse_lists_over_maps(low.entries[key], node, (*path, str(key)))


# -- files


def _files(
    merged: Defaults, repository: Files, texts: dict[str, str], stored: list[tuple[Path, DictConfig]]
) -> Iterator[tuple[Path, FileLocation | None, Node]]:
    """The files in their order: the package of each, the location where it is chosen, and its tree from the root.

    Puts the texts of the files into ``texts``, and configurations that are not files into ``stored``.
    """
    for default in merged.defaults:
        name = default.config_path
        package = tuple(key for key in (default.package or "").split(".") if key)
        if name is None or name.startswith("hydra/") or package[:1] == ("hydra",):
            continue
        source = source_of(repository, name)
        if source is None:
            continue
        file, choice = source_file(source, name), None
        if file is None:
            config = source.load_config(name).config
            stored += [(package, config)] if isinstance(config, DictConfig) else []
            data = OmegaConf.to_container(config, resolve=False)
            tree = said(data, StoreLocation(f"{source.scheme()}://{name}"))
            tree = _of_code(data, package) if isinstance(source, InCode) else tree
        else:
            path, texts[path] = file
            tree = of_file(path, texts[path], package)
            chosen = choice_of(repository, default.parent, name)
            if chosen is not None and chosen.key is not None:
                texts.setdefault(chosen.file, chosen.text)
                choice = replace(chosen, path=package)
        entries = {key: node for key, node in tree.entries.items() if key != "defaults" and (package or key != "hydra")}
        tree = Node(entries) if isinstance(tree.value, dict) else tree
        yield package, choice, _under(package, tree)


def _of_code(data: Any, path: Path) -> Node:
    """A mapping in code as a tree whose root stands at ``path``."""

    def node(item: Any, at: Path) -> Node:
        text = item if isinstance(item, str) else ""
        return Node(item, CodeLocation(at, not isinstance(item, dict | list), text))

    return tree_of(data, path, node)


def choice_of(repository: Files, parent: str | None, name: str) -> FileLocation | None:
    """The location of an option in a defaults list, with its group if it is written."""
    file = None if parent is None else file_of(repository, parent)
    choices = () if file is None else defaults_of(*file)
    return next((choice.location for choice in choices if choice.name == name.rpartition("/")[2]), None)


def _under(package: Path, node: Node) -> Node:
    for key in reversed(package):
        node = Node({key: node})
    return node


# -- overrides


def overridden(tree: Node, override: Override) -> tuple[Node, Node]:
    """An override of a key as a layer, and the tree with it."""
    layer = _in_long_form(_of_override(override))
    path = tuple(override.key_or_group.split("."))
    if override.is_delete() and not (path[0] == GROUP and is_entry(path[1:])):
        return layer, _taken_out(tree, path)
    return layer, over(tree, layer)  # an entry that is deleted stays as null, as where a file deletes it


def _of_override(override: Override) -> Node:
    """An override as a tree from the root."""
    keys = tuple(override.key_or_group.split("."))
    value = None if override.is_delete() else override.value()
    text = override.input_line or override.key_or_group

    def node(item: Any, at: Path) -> Node:
        return Node(item, OverrideLocation(text, at), replaces=item == MISSING)  # in a file, `???` keeps the value

    return _under(keys, tree_of(value, tuple(int(key) if key.isdigit() else key for key in keys), node))


def _taken_out(node: Node, path: Path) -> Node:
    key, *below = path
    if isinstance(node.value, list):
        items, index = list(node.value), int(key)
        items[index : index + 1] = [_taken_out(items[index], tuple(below))] if below else []
        return node.holding(items)
    entries = dict(node.entries)
    if below and key in entries:
        entries[key] = _taken_out(entries[key], tuple(below))
    else:
        entries.pop(key, None)
    return node.holding(entries)
