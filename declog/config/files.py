"""Configuration files as trees: every key with its place in the file.

Files may come from elsewhere. Their size is checked before they are read, since expanding YAML's aliases could take
forever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path as FilePath
from typing import Any

import yaml
from hydra.plugins.config_source import ConfigSource
from omegaconf._utils import get_yaml_loader

from declog.config.search_path import GROUP
from declog.config.source_map import FileLocation, Span, shown_path
from declog.errors import CompositionError, Path, Problem, Where, in_flow
from declog.errors.nesting import MAX_DEPTH
from declog.language.tree import Node

MAX_BYTES = 4 * 2**20  # of one file
MAX_NODES = 20_000  # of one file, those of its aliases counted each time; a large config has two thousand


class YamlLoader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """The YAML of OmegaConf, which has more forms of numbers than PyYAML, and no times."""

    yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers


MERGE_TAG, MAP_TAG, LIST_TAG = (f"tag:yaml.org,2002:{word}" for word in ("merge", "map", "seq"))


def source_path(source: ConfigSource, name: str) -> Traversable | None:
    """The path of a configuration's file; None for a configuration that is not a file."""
    if source.scheme() in ("file", "declog"):
        below = name.removeprefix(f"{GROUP}/") if source.scheme() == "declog" else name
        return FilePath(source.path, below if below.endswith(".yaml") else f"{below}.yaml")
    return resources.files(source.path).joinpath(f"{name}.yaml") if source.scheme() == "pkg" else None


def source_file(source: ConfigSource, name: str) -> tuple[str, str] | None:
    """The path and the text of a configuration's file; None for a configuration that is not a file.

    Raises ``CompositionError`` as ``text_of`` does.
    """
    path = source_path(source, name)
    return None if path is None else (str(path), text_of(path))


def text_of(file: Traversable) -> str:
    """The text of a configuration file.

    Raises ``CompositionError`` for a file that is not UTF-8 (DL101), that holds too much, or that is nested too deeply
    (DL202).
    """
    size = file.stat().st_size if isinstance(file, FilePath) else 0
    if size > MAX_BYTES:
        raise _refused("DL202.file_size", str(file), 1, size=size, limit=MAX_BYTES)
    return _checked(str(file), file.read_bytes())


_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\udc80-\udcff]")  # the last range: bytes that are not UTF-8


@lru_cache(maxsize=256)  # a composition reads its files more than once
def _checked(file: str, content: bytes) -> str:
    text = content.decode("utf-8", "surrogateescape")
    if (character := _NO_TEXT.search(text)) is not None:
        before = text[: character.start()].replace("\r\n", "\n")
        column = len(before) - before.rfind("\n")
        raise _refused("DL101.utf8", file, before.count("\n") + 1, column)
    sizes: dict[str, int] = {}  # of anchors, with their aliases expanded
    open_nodes: list[tuple[str | None, int]] = []
    count = 0
    try:
        for event in yaml.parse(text, Loader=YamlLoader):
            line, column = (1, 1) if (mark := event.start_mark) is None else (mark.line + 1, mark.column + 1)
            if isinstance(event, yaml.AliasEvent) and any(event.anchor == anchor for anchor, _ in open_nodes):
                raise _refused("DL202.alias", file, line, name=event.anchor)
            if isinstance(event, yaml.AliasEvent):
                count += sizes.get(str(event.anchor), 1)
            elif isinstance(event, yaml.NodeEvent):
                count += 1
            if isinstance(event, yaml.ScalarEvent) and event.tag == "!" and not event.style:  # YAML reads `! x` as `x`
                raise _refused("DL101.yaml_tag", file, line, column, fix=in_flow(f"not {event.value}"))
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
        pass  # reported when the file is read
    return text


def _refused(key: str, file: str, line: int, column: int = 1, /, **facts: Any) -> CompositionError:
    return CompositionError([Problem.of(key, where=Where(shown_path(file), line, column), **facts)])


@dataclass(frozen=True)
class Choice:
    """An option that a defaults list names: its group, if one is written, the option, and its location."""

    group: str | None
    option: str
    location: FileLocation

    @property
    def name(self) -> str:
        """The option without its group and its package."""
        return self.option.partition("@")[0].rpartition("/")[2]


def defaults_of(file: str, text: str) -> Iterator[Choice]:
    """The options that the defaults list of a YAML file names. Raises ``yaml.YAMLError``."""
    defaults = of_file(file, text).at(("defaults",))
    for entry in defaults.value if defaults is not None and isinstance(defaults.value, list) else ():
        for group, chosen in entry.entries.items() if entry.entries else [(None, entry)]:
            for option in chosen.value if isinstance(chosen.value, list) else [chosen]:
                location = replace(option.location, key=chosen.location.key)
                yield Choice(None if group is None else str(group), str(option.plain), location)


def chooses_config(file: str, text: str) -> bool:
    """Whether a YAML file is an application's configuration, which has or chooses a config, and not a config itself."""
    keys = keys_at_top(text)
    groups = [choice.group for choice in defaults_of(file, text) if choice.group is not None] if keys else []
    return GROUP in keys or any(name.split()[-1].lstrip("/").partition("@")[0] == GROUP for name in groups)


def is_application(file: FilePath) -> bool:
    """Whether a file is an application's configuration; False if it is gone, or is not a configuration."""
    try:
        return chooses_config(str(file), text_of(file))
    except (CompositionError, OSError):
        return False


def application_with(key: str, config_dir: FilePath, config: str) -> FilePath | None:
    """The application's configuration, in a folder of presets or above it, that has a key or a group at its top.

    A configuration that chooses the preset ``config`` comes first. None if no such file has the key.
    """
    files = [file for folder in (config_dir, config_dir.parent) for file in sorted(folder.glob("*.yaml"))]
    by_choice: dict[bool, FilePath] = {}
    for file in filter(is_application, files):
        choices = [*defaults_of(str(file), text := text_of(file))]
        if key in keys_at_top(text) | {choice.group for choice in choices}:
            by_choice.setdefault(any(choice.name == config for choice in choices), file)
    return by_choice.get(True) or by_choice.get(False)


def keys_at_top(text: str) -> set[str]:
    """The keys at the top of a YAML file; none if the file is not a map, or not YAML."""
    try:
        return set(map(str, of_file("", text).entries))
    except yaml.YAMLError:
        return set()


@lru_cache(maxsize=128)  # presets are read again and again
def of_file(file: str, text: str, path: Path = ()) -> Node:
    """A YAML file as a tree whose root stands at ``path``. A file with a single word becomes a key without a value."""
    root = yaml.compose(text, Loader=YamlLoader)
    tree = Node({}) if root is None else _Reader(file, text).node(path, None, root)
    return Node({tree.value: Node(None, tree.location)}, tree.location) if isinstance(tree.value, str) else tree


class _Reader(yaml.constructor.SafeConstructor):
    """Makes trees of the nodes of a YAML file."""

    def __init__(self, file: str, text: str) -> None:
        super().__init__()
        self.file, self.text = file, text

    def node(self, path: Path, key: yaml.Node | None, node: yaml.Node) -> Node:
        if not isinstance(node, yaml.ScalarNode) and node.tag not in (MAP_TAG, LIST_TAG):
            raise yaml.constructor.ConstructorError(None, None, f"no value has the tag {node.tag}", node.start_mark)
        key_span = None if key is None else span(key)
        location = FileLocation(self.file, key_span, span(node), style(node), path, self.text)
        if isinstance(node, yaml.SequenceNode):
            return Node([self.node((*path, index), None, item) for index, item in enumerate(node.value)], location)
        if isinstance(node, yaml.MappingNode):
            return Node(dict(self.entries(path, node)), location)
        return Node(self.construct_object(node), location)

    def entries(self, path: Path, node: yaml.Node) -> Iterator[tuple[Any, Node]]:
        """The entries of a map. Its keys win over those of a map that it merges by `<<`, wherever that stands."""
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(None, None, "expected a map to merge", node.start_mark)
        names = set()
        for key, value in sorted(node.value, key=lambda pair: pair[0].tag != MERGE_TAG):
            if key.tag == MERGE_TAG:
                for merged in reversed(value.value) if isinstance(value, yaml.SequenceNode) else [value]:
                    yield from self.entries(path, merged)
                continue
            name = self.construct_object(key, deep=True)
            if name in names:
                raise yaml.constructor.ConstructorError(None, None, f"found duplicate key {name}", key.start_mark)
            names.add(name)
            yield name, self.node((*path, str(name)), key, value)


def span(node: yaml.Node) -> Span:
    """The span of a YAML node in its file."""
    start, end = node.start_mark, node.end_mark
    return Span(start.line + 1, start.column + 1, end.line + 1, end.column + 1)


def style(node: yaml.Node) -> str | None:
    """The style of a scalar: ``plain``, a quote, ``|`` or ``>``; None for a map or a list."""
    return (node.style or "plain") if isinstance(node, yaml.ScalarNode) else None
