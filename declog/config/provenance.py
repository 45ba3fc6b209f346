"""Provenance: every key of a composed configuration, and the files and overrides that set it.

A composition keeps the files and overrides that it merged. This reads the marks of those files: only on an error, or
when somebody asks. Imports Hydra and PyYAML; the result is plain data (``source_map.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path as FilePath
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigSource
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from declog.config.hydra import Defaults, Files, FolderOfPresets, config_loader, merged_in_run, read_by
from declog.config.long_form import chosen_sinks
from declog.config.search_path import GROUP, ROOT, current_hydra
from declog.config.source_map import FilePlace, Layer, OverridePlace, Provenance, Span, StorePlace
from declog.errors import Path
from declog.language.shorthand import long
from declog.language.tree import MISSING, Node, over, said


class YamlLoader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """The YAML of OmegaConf, which has more words for numbers than PyYAML, and none for times."""

    yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers


MERGE_TAG = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class Composition:
    """The files and overrides that one composition merges, in their order, and where the files are."""

    merged: Defaults
    repository: Files

    def provenance(self) -> Provenance:
        """Every key, and the files and overrides that set it. Raises what Hydra raises, and ``OSError``."""
        return layers_of(self.merged, self.repository)


@dataclass(frozen=True)
class Origin:
    """How a configuration was composed: enough to compose it again.

    ``config_dir`` is a folder, or a place as Hydra's search path names it. ``application``: ``config_name`` is the
    primary configuration of somebody's application, not a preset; ``running``: of the one that runs, whose own loader
    composes it again. ``imports``: modules that were named beside it, and never in it.
    """

    config_name: str | None
    overrides: tuple[str, ...] = ()
    config_dir: FilePath | str | None = None
    application: bool = False
    running: bool = False
    imports: tuple[str, ...] = ()

    @property
    def root(self) -> str:
        """The primary configuration."""
        return str(self.config_name) if self.application else ROOT

    @property
    def choice(self) -> list[str]:
        """The override that chooses the preset, where declog's own primary configuration leaves it open."""
        return [] if self.application else [f"{GROUP}={self.config_name}"]

    @property
    def lines(self) -> list[str]:
        """All overrides of the primary configuration, the choice of the preset included."""
        return [*self.choice, *self.overrides]

    def composition(self) -> Composition:
        """What composing it merges, by the loader that composes it. Raises what Hydra raises."""
        if self.running:
            return Composition(*merged_in_run(self.config_name, [*HydraConfig.get().overrides.hydra, *self.lines]))
        with current_hydra():
            return Composition(*config_loader(self.config_dir).defaults(self.root, self.lines))

    def folders(self) -> list[FilePath]:
        """The folders that may hold files of one's own."""
        if self.running:
            sources = HydraConfig.get().runtime.config_sources
            places = [source.path.removeprefix("file://") for source in sources
                      if source.schema == "file" or source.path.startswith("file://")]  # fmt: skip
            return [FilePath(place) for place in dict.fromkeys(places)]
        place = str(self.config_dir or "").removeprefix("declog://")
        return [FilePath(place)] if place else []


def layers_of(merged: Defaults, repository: Files) -> Provenance:
    """The provenance of what is merged; raises what Hydra raises where a file cannot be read any more."""
    layers: dict[Path, list[Layer]] = {}
    texts: dict[str, str] = {}
    tree = Node({})
    for rank, layer in enumerate(_layers(merged, repository, texts)):
        below = tree.at((GROUP,))
        if (profile := layer.at((GROUP,))) is not None:
            chosen = chosen_sinks(profile)
            profile = profile if chosen is None else profile.holding({**profile.entries, "sinks": chosen})
            layer = layer.holding({**layer.entries, GROUP: long(profile, below)[0]})
        tree = over(tree, layer)
        for path, node in layer.walk():
            if node.place is not None:
                replaces = node.replaces or not isinstance(node.value, dict)
                leaves = node.value == MISSING and isinstance(node.place, FilePlace)
                found = Layer(0 if leaves else rank + 1, node.place, replaces=replaces and not leaves)
                layers.setdefault(path, []).append(found)
    in_order = {path: tuple(sorted(found, key=lambda layer: layer.rank)) for path, found in layers.items()}
    return Provenance(in_order, texts)


def _layers(merged: Defaults, repository: Files, texts: dict[str, str]) -> Iterator[Node]:
    """The trees that are merged, in their order, and into ``texts`` the texts of files."""
    chosen_at: set[Path] = set()
    for default in merged.defaults:
        name = default.config_path
        if name is None or name.startswith("hydra/"):
            continue
        package = tuple(part for part in (default.package or "").split(".") if part)
        source = next((each for each in map(read_by, repository.get_sources()) if each.is_config(name)), None)
        file = None if source is None else source_file(source, name)
        if file is not None:
            path, texts[path] = file
            chosen = choice_of(repository, default.parent, name)
            if package not in chosen_at and chosen is not None and chosen[0].key is not None:
                chosen_at.add(package)
                texts.setdefault(chosen[0].file, chosen[1])
                yield _under(package, Node({}, replace(chosen[0], path=package)))
            tree = of_file(path, texts[path], package)
            skipped = ("defaults",) if package else ("defaults", "hydra")
            yield _under(package, Node({key: node for key, node in tree.entries.items() if key not in skipped}))
        elif source is not None:
            content = OmegaConf.to_container(source.load_config(name).config, resolve=False)
            yield _under(package, said(content, StorePlace(f"{source.scheme()}://{name}")))
    for override in merged.config_overrides:
        yield of_override(override)


def of_override(override: Override) -> Node:
    """An override as a tree from the root of the configuration."""
    path: Path = tuple(int(key) if key.isdigit() else key for key in override.key_or_group.split("."))
    text = override.input_line or override.key_or_group
    return _under(path, _of_value(None if override.is_delete() else override.value(), text, path))


def _of_value(value: Any, text: str, path: Path) -> Node:
    place = OverridePlace(text, path)
    if isinstance(value, dict):
        return Node({key: _of_value(item, text, (*path, key)) for key, item in value.items()}, place)
    if isinstance(value, list):
        return Node([_of_value(item, text, (*path, index)) for index, item in enumerate(value)], place)
    return Node(value, place)


def _under(package: Path, node: Node) -> Node:
    for key in reversed(package):
        node = Node({key: node})
    return node


def source_file(source: ConfigSource, name: str) -> tuple[str, str] | None:
    """The path and the text of a configuration that is a file; None for one that is not."""
    if source.scheme() in ("file", "declog"):
        file = source.file(name) if isinstance(source, FolderOfPresets) else FilePath(source.path, f"{name}.yaml")
        return str(file), file.read_text(encoding="utf-8", errors="replace")
    if source.scheme() == "pkg":
        resource = resources.files(source.path).joinpath(f"{name}.yaml")
        return str(resource), resource.read_bytes().decode("utf-8", errors="replace")
    return None


def choice_of(repository: Files, parent: str | None, name: str) -> tuple[FilePlace, str] | None:
    """Where a defaults list names an option, with the group if it is written, and the text of its file."""
    sources = map(read_by, repository.get_sources())
    source = next((each for each in sources if parent is not None and each.is_config(parent)), None)
    found = None if source is None or parent is None else source_file(source, parent)
    for group, option in () if found is None else _defaults(found[1]):
        if found is not None and option.value == name.rpartition("/")[2]:
            key = None if group is None else span(group)
            return FilePlace(found[0], key, span(option), _style(option)), found[1]
    return None


@lru_cache(maxsize=128)
def _defaults(text: str) -> tuple[tuple[yaml.ScalarNode | None, yaml.ScalarNode], ...]:
    return tuple(defaults_of(text))


def defaults_of(text: str) -> Iterator[tuple[yaml.ScalarNode | None, yaml.ScalarNode]]:
    """The options that a file's defaults list names, each with its group, if one is written."""
    root = yaml.compose(text, Loader=YamlLoader)
    entries = {key.value: value for key, value in root.value} if isinstance(root, yaml.MappingNode) else {}
    defaults = entries.get("defaults")
    for entry in defaults.value if isinstance(defaults, yaml.SequenceNode) else ():
        for group, value in entry.value if isinstance(entry, yaml.MappingNode) else [(None, entry)]:
            for option in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(option, yaml.ScalarNode):
                    yield group, option


def chooses_profile(text: str) -> bool:
    """Whether a YAML file is an application's configuration, with a profile in it, and not a profile itself."""
    keys = keys_at_top(text)
    groups = [group.value for group, _ in defaults_of(text) if group is not None] if keys else []
    return GROUP in keys or any(name.split()[-1].lstrip("/").partition("@")[0] == GROUP for name in groups)


def keys_at_top(text: str) -> set[str]:
    """The keys at the top of a YAML file; none for one that is no map, or no YAML."""
    try:
        root = yaml.compose(text, Loader=YamlLoader)
    except yaml.YAMLError:
        return set()
    return {str(key.value) for key, _ in root.value} if isinstance(root, yaml.MappingNode) else set()


def keys_of_file(file: str, text: str, *, defaults: bool = False) -> Iterator[tuple[Path, FilePlace]]:
    """Every key of one YAML file, as it stands there; the defaults list too, on request."""
    for path, node in of_file(file, text).walk():
        if defaults or path[0] not in ("defaults", "hydra"):
            yield path, node.place


@lru_cache(maxsize=128)  # presets are read again and again
def of_file(file: str, text: str, path: Path = ()) -> Node:
    """A YAML file as a tree whose root stands at ``path``."""
    root = yaml.compose(text, Loader=YamlLoader)
    return Node({}) if root is None else _Reader(file).node(path, None, root)


class _Reader(yaml.constructor.SafeConstructor):
    """Makes trees of the nodes of a YAML file."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def node(self, path: Path, key: yaml.Node | None, node: yaml.Node) -> Node:
        place = FilePlace(self.file, None if key is None else span(key), span(node), _style(node), path)
        if isinstance(node, yaml.SequenceNode):
            return Node([self.node((*path, index), None, item) for index, item in enumerate(node.value)], place)
        if isinstance(node, yaml.MappingNode):
            return Node(dict(self.entries(path, node)), place)
        return Node(self.construct_object(node), place)

    def entries(self, path: Path, node: yaml.MappingNode) -> Iterator[tuple[Any, Node]]:
        """The entries of a map. What `<<` brings gives way to the map's own keys, wherever it stands."""
        for key, value in sorted(node.value, key=lambda pair: pair[0].tag != MERGE_TAG):
            if key.tag == MERGE_TAG:
                for merged in reversed(value.value) if isinstance(value, yaml.SequenceNode) else [value]:
                    yield from self.entries(path, merged)
            else:
                name = self.construct_object(key, deep=True)
                yield name, self.node((*path, str(name)), key, value)


def span(node: yaml.Node) -> Span:
    """Where a YAML node stands."""
    start, end = node.start_mark, node.end_mark
    return Span(start.line + 1, start.column + 1, end.line + 1, end.column + 1)


def _style(node: yaml.Node) -> str | None:
    return (node.style or "plain") if isinstance(node, yaml.ScalarNode) else None
