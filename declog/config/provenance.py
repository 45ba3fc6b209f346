"""Provenance: every key of a composed configuration, and the files and overrides that set it.

A composition keeps the files and overrides that it merged. This reads the marks of those files: only on an error, or
when somebody asks. Imports Hydra and PyYAML; the result is plain data (``source_map.py``).
"""

from __future__ import annotations

import marshal
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path as FilePath
from typing import Any, Literal, cast

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigSource
from omegaconf import OmegaConf

from declog.config.hydra import Defaults, Files, FolderOfPresets, config_loader, merged_in_run, read_by
from declog.config.long_form import LongResult
from declog.config.search_path import GROUP, ROOT, current_hydra
from declog.config.source_map import FilePlace, Layer, OverridePlace, Place, Provenance, Span, StorePlace
from declog.errors import Path
from declog.language.shorthand import Long

YAML_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
MERGE_TAG = "tag:yaml.org,2002:merge"

# What a layer does to what earlier ones have of a key: a mapping merges, ??? in a file leaves it as it is.
Effect = Literal["replaces", "merges", "leaves"]
Setting = tuple[Path, Place, Effect]


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
    rank = 0

    def add(found: Iterable[Setting]) -> None:
        nonlocal rank
        rank += 1
        for path, place, effect in found:
            layer = Layer(rank if effect != "leaves" else 0, place, replaces=effect == "replaces")
            layers.setdefault(path, []).append(layer)

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
            if package not in layers and chosen is not None and chosen[0].key is not None:
                texts.setdefault(chosen[0].file, chosen[1])
                add([(package, chosen[0], "merges")])
            skipped = ("defaults",) if package else ("defaults", "hydra")
            read = repository.load_config(name)
            held: Any = (read.data, read.origins) if isinstance(read, LongResult) else None
            long = None if held is None else marshal.dumps(held, 2)
            add(_settings(path, texts[path], package, skipped, long))
        elif source is not None:
            content = OmegaConf.to_container(source.load_config(name).config, resolve=False)
            add(_in_value(package, content, StorePlace(f"{source.scheme()}://{name}")))
    for override in merged.config_overrides:
        add(_in_override(override))
    in_order = {path: tuple(sorted(found, key=lambda layer: layer.rank)) for path, found in layers.items()}
    return Provenance(in_order, texts)


@lru_cache(maxsize=128)  # presets are read again and again, and what each key of a file says does not change
def _settings(file: str, text: str, package: Path, skipped: tuple[str, ...], long: bytes | None) -> tuple[Setting, ...]:
    """The keys of a file; ``long`` is its long form with the origins of its keys, where it is written shorter."""
    settings = _in_file(file, text, package, skipped)
    if long is None:
        return tuple(settings)
    data, origins = cast("tuple[Any, Any]", marshal.loads(long))
    return tuple(_in_long_form(settings, data, origins, package))


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
    root = yaml.compose(text, Loader=YAML_LOADER)
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
        root = yaml.compose(text, Loader=YAML_LOADER)
    except yaml.YAMLError:
        return set()
    return {str(key.value) for key, _ in root.value} if isinstance(root, yaml.MappingNode) else set()


def keys_of_file(file: str, text: str, *, defaults: bool = False) -> Iterator[tuple[Path, FilePlace]]:
    """Every key of one YAML file, as it stands there; the defaults list too, on request."""
    for path, place, _ in _in_file(file, text, (), () if defaults else ("defaults", "hydra")):
        if isinstance(place, FilePlace):
            yield path, place


def _in_file(file: str, text: str, package: Path, skipped: Collection[str] = ("defaults",)) -> Iterator[Setting]:
    root = yaml.compose(text, Loader=YAML_LOADER)
    if isinstance(root, yaml.MappingNode):
        for key, value in root.value:
            if key.value not in skipped:
                yield from _in_entry(file, package, key, value)


def _in_long_form(
    settings: Iterable[Setting], data: Any, given: Mapping[Path, Path], package: Path
) -> Iterator[Setting]:
    """The keys of a file's long form, each at the place of the key that says it; a null that nobody wrote has none."""
    places = {tuple(map(str, path[len(package) :])): place for path, place, _ in settings}
    origins = {tuple(map(_text_key, new)): tuple(map(_text_key, old)) for new, old in given.items()}
    long = Long({}, origins)
    for path, value in _keys(data, ()):
        written = tuple(map(str, long.written(path)))
        place = next(
            (places[written[:depth]] for depth in range(len(written), 0, -1) if written[:depth] in places), None
        )
        if place is None or (value is None and written not in places):
            continue
        if isinstance(place, FilePlace) and written != tuple(map(str, path)):
            place = replace(place, written=(*package, *written))
        # a word is all that is said of an entry; of a sink it says one key
        word = isinstance(place, FilePlace) and place.style is not None and path[0] != "sinks"
        effect: Effect = "merges" if isinstance(value, dict) and not word else "replaces"
        yield (*package, *path), place, "leaves" if value == "???" else effect


def _text_key(key: Any) -> Any:
    return key if isinstance(key, int) and not isinstance(key, bool) else str(key)


def _keys(data: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    named: Any = ()
    if isinstance(data, dict):
        named = [(str(key), value) for key, value in data.items()]
    elif isinstance(data, list):
        named = enumerate(data)
    for key, value in named:
        yield (*path, key), value
        yield from _keys(value, (*path, key))


def _in_entry(file: str, path: Path, key: yaml.Node, value: yaml.Node) -> Iterator[Setting]:
    if key.tag == MERGE_TAG:
        for merged in reversed(value.value) if isinstance(value, yaml.SequenceNode) else [value]:
            yield from _in_node(file, path, merged)
        return
    here = (*path, str(yaml.constructor.SafeConstructor().construct_object(key, deep=True)))
    yield here, FilePlace(file, span(key), span(value), _style(value)), _effect(value)
    yield from _in_node(file, here, value)


def _in_node(file: str, path: Path, node: yaml.Node) -> Iterator[Setting]:
    if isinstance(node, yaml.MappingNode):
        # What `<<` brings gives way to the mapping's own keys, wherever it stands.
        for key, value in sorted(node.value, key=lambda pair: pair[0].tag != MERGE_TAG):
            yield from _in_entry(file, path, key, value)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*path, index), FilePlace(file, None, span(value), _style(value)), _effect(value)
            yield from _in_node(file, (*path, index), value)


def span(node: yaml.Node) -> Span:
    """Where a YAML node stands."""
    start, end = node.start_mark, node.end_mark
    return Span(start.line + 1, start.column + 1, end.line + 1, end.column + 1)


def _style(node: yaml.Node) -> str | None:
    return (node.style or "plain") if isinstance(node, yaml.ScalarNode) else None


def _effect(node: yaml.Node) -> Effect:
    if isinstance(node, yaml.MappingNode):
        return "merges"
    return "leaves" if node.value == "???" else "replaces"


def _in_override(override: Override) -> Iterator[Setting]:
    keys = override.key_or_group.split(".")
    path: Path = tuple(int(key) if key.isdigit() else key for key in keys)
    place = OverridePlace(override.input_line or override.key_or_group)
    if override.is_delete():
        yield path, place, "replaces"
    else:
        yield from _in_value(path, override.value(), place)


def _in_value(path: Path, value: object, place: Place) -> Iterator[Setting]:
    if path:
        yield path, place, "merges" if isinstance(value, dict) else "replaces"
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in entries:
        yield from _in_value((*path, key), each, place)
