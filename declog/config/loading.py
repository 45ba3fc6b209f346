"""Configuration files that may be from elsewhere, read with a bound and without running code that they name.

Hydra would import a package that ``hydra.searchpath`` names, to find its files, and would expand YAML's aliases for as
long as it takes. Imports Hydra, PyYAML and errors.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.util
import pickle
from contextlib import suppress
from dataclasses import replace
from importlib import resources
from pathlib import Path as FilePath
from typing import Any

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository, IConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.defaults_list import DefaultsList, create_defaults_list
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import ResultDefault
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from declog.config.plain import NotPlain, merged, overridden, settled
from declog.config.search_path import GROUP, HYDRA_ERRORS
from declog.errors import MAX_DEPTH, CompositionError, Problem, Where

MAX_BYTES = 4 * 2**20  # of one file
MERGED = 32  # configurations that a process keeps, 0.1 MB each
MAX_NODES = 20_000  # of one file, those of its aliases counted each time; a large profile has two thousand
_YAML: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


_TAKEN_OUT: Any = ConfigRepository._extract_defaults_list  # which looks at nothing of its repository
_merged: dict[bytes, bytes] = {}
Merged = tuple[DefaultsList, IConfigRepository]  # what a composition merges with which overrides, and the files


class Repository(ConfigRepository):
    """Hydra's files by name, each measured before it is read. ``plain`` has the data of those that have no types."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        self.plain: dict[str, Any] = {}
        super().__init__(config_search_path)

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        """Find the places of a search path; the packages that a configuration names are not imported for it."""
        places = ConfigSearchPathImpl()
        for element in config_search_path.get_path():
            path = str(element.path)
            if str(element.provider).startswith("hydra.searchpath") and path.startswith("pkg://"):
                path = _folder(path.removeprefix("pkg://"))
            places.append(str(element.provider), path)
        super().initialize_sources(places)

    def load_config(self, config_path: str) -> ConfigResult | None:
        """A configuration, or None; raises ``CompositionError`` for a file that is too large to be one."""
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.scheme() not in ("file", "declog", "pkg"):
            return super().load_config(config_path)
        name = config_path.removeprefix("declog/") if source.scheme() == "declog" else config_path
        name = name if name.endswith(".yaml") else f"{name}.yaml"
        file = None if source.scheme() == "pkg" else FilePath(source.path, name)
        text = resources.files(source.path).joinpath(name).read_bytes() if file is None else _text(file)
        place = f"{source.scheme()}://{source.path}"
        result, defaults, self.plain[config_path] = _read(
            type(source), source.provider, place, config_path, file, text
        )  # fmt: skip
        config = copy.deepcopy(result.config) if "hydra" in result.config else result.config  # Hydra takes it out
        return replace(result, config=config, defaults_list=self._create_defaults_list(config_path, defaults))

    def __deepcopy__(self, memo: object) -> Repository:
        """Hydra copies a repository before it lets a configuration name more places: sources never change."""
        copied = copy.copy(self)
        copied.sources = list(self.sources)
        return copied


class Loader(ConfigLoaderImpl):
    """Hydra's own composition over such a repository."""

    repository: Repository

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        self.config_search_path = config_search_path
        self.repository = Repository(config_search_path)

    def preset(self, root: str, lines: list[str]) -> tuple[DictConfig | dict[str, Any], Merged | None]:
        """A preset's configuration without Hydra's own node, of which nothing is needed: half of what Hydra reads.

        Plain data where nothing in it is to be resolved. With it what was merged; None where only Hydra knows.
        """
        merged = None
        try:
            merged = found, repo = self._without_hydra(root, lines)
            data = self._settled(found, repo)
            if data is not None:
                return data, merged
            config = self._compose_config_from_defaults_list(found.defaults, repo)
            OmegaConf.set_struct(config, True)
            self._apply_overrides_to_config(found.config_overrides, config)
        except HYDRA_ERRORS:  # it asks for something of Hydra's, or is wrong, which Hydra says of the whole
            config = self.load_configuration(root, lines, RunMode.RUN, from_shell=False)
        return config, merged

    def application(self, root: str, lines: list[str]) -> tuple[DictConfig | dict[str, Any], Merged | None]:
        """An application's configuration; of one whose profile asks for nothing that stands elsewhere, that alone.

        With it what was merged; None where only Hydra knows.
        """
        merged = None
        with suppress(*HYDRA_ERRORS):  # which Hydra says of the whole
            merged = self._without_hydra(root, lines)
            data = self._settled(*merged)
            if data is not None:
                return data, merged
        return self.load_configuration(root, lines, RunMode.RUN, from_shell=False), merged

    def _settled(self, found: DefaultsList, repo: IConfigRepository) -> dict[str, Any] | None:
        """The profile of a configuration as plain data; None where something in it is to be resolved."""
        with suppress(NotPlain):
            data = overridden(self._plain(found.defaults, repo), found.config_overrides)
            if "hydra" not in data and type(data.get(GROUP)) is dict and settled(data[GROUP]):
                return {GROUP: data[GROUP]}
        return None

    def defaults(self, root: str | None, lines: list[str]) -> Merged:
        """What is merged with which overrides, and the files; Hydra's own where one of the others asks for them."""
        try:
            return self._without_hydra(root, lines)
        except HYDRA_ERRORS:
            _, repo = self._parse_overrides_and_create_caching_repo(root, lines)
            return self.compute_defaults_list(root, lines, RunMode.RUN), repo

    def _without_hydra(self, root: str | None, lines: list[str]) -> Merged:
        parsed, repo = self._parse_overrides_and_create_caching_repo(root, lines)
        self.validate_sweep_overrides_legal(parsed, RunMode.RUN, from_shell=False)
        return create_defaults_list(repo, root, parsed, prepend_hydra=False, skip_missing=False), repo

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        """The files of a defaults list merged: those of Hydra itself, which come first, and then plain data."""
        ours = next((at for at, each in enumerate(defaults) if not str(each.config_path).startswith("hydra/")), 0)
        try:
            data = self._plain(defaults[ours:], repo)
            config = self._merged(defaults[:ours], repo)
            if "hydra" in data:
                config.merge_with({"hydra": data.pop("hydra")})
            with flag_override(config, "no_deepcopy_set_nodes", True):
                for key, value in data.items():
                    config[key] = value
        except (NotPlain, OmegaConfBaseException):
            config = self._merged(defaults, repo)
        return config

    def _plain(self, defaults: list[ResultDefault], repo: IConfigRepository) -> dict[Any, Any]:
        """The files of a defaults list merged as plain data; raises ``NotPlain`` where Hydra has more to do."""
        layers, schema = [], repo.get_schema_source()
        for each in defaults:
            name = str(each.config_path)
            found = repo.load_config(name)
            if found is None or name not in self.repository.plain or schema.is_config(name):
                raise NotPlain
            package = found.header["package"] if each.package is None else each.package
            layers.append((package or "", self.repository.plain[name]))
        return merged(layers)

    def _merged(self, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        """The same by Hydra; what was merged before in this process is copied, which Hydra does anew.

        What is merged is known by all that Hydra merges: the files' content, where it goes, and schemas of their names.
        """
        try:
            key = _content(defaults, repo)
        except _NOT_PICKLED:
            return super()._compose_config_from_defaults_list(defaults, repo)
        if key not in _merged:
            for oldest in list(_merged)[: len(_merged) - MERGED + 1]:
                _merged.pop(oldest, None)
            _merged[key] = pickle.dumps(super()._compose_config_from_defaults_list(defaults, repo))
        config: DictConfig = pickle.loads(_merged[key])
        return config

    @staticmethod
    def _embed_result_config(ret: ConfigResult, package_override: str | None) -> ConfigResult:
        """A copy of a file's content under its package, as Hydra has it: what is merged is changed.

        Pickle copies several times as fast as ``deepcopy``.
        """
        package = ret.header["package"] if package_override is None else package_override
        try:
            content = pickle.loads(pickle.dumps(ret.config))
        except _NOT_PICKLED:
            content = copy.deepcopy(ret.config)
        if not package:
            return replace(ret, config=content)
        config = OmegaConf.create(flags={"no_deepcopy_set_nodes": True})
        OmegaConf.update(config, package, content, merge=False)
        config._set_flag("no_deepcopy_set_nodes", None)
        return replace(ret, config=config)


_NOT_PICKLED = (pickle.PicklingError, AttributeError, TypeError)  # what a function's own class in Hydra's store raises


def _content(defaults: list[ResultDefault], repo: IConfigRepository) -> bytes:
    """A digest of all that Hydra merges for a defaults list."""
    digest = hashlib.sha256()
    for each in defaults:
        name, schema = str(each.config_path), repo.get_schema_source()
        found = repo.load_config(name)
        typed = found is not None and not found.is_schema_source and schema.is_config(name)
        for part in (each, found, schema.load_config(name) if typed else None):
            digest.update(pickle.dumps(part))  # apart: what they share by chance is no difference
    return digest.digest()


@functools.lru_cache(maxsize=256)  # a composition takes several, and parsing them is most of its time
def _read(
    source: type[ConfigSource], provider: str, place: str, name: str, file: FilePath | None, text: bytes
) -> tuple[ConfigResult, ListConfig, Any]:
    """What Hydra makes of a file that holds ``text``, its defaults list, and its plain data: nobody changes them."""
    if file is not None:
        bounded(file)
    result = source(provider, place).load_config(name)
    defaults = _TAKEN_OUT(None, name, result.config)  # which has them no longer
    return result, defaults, OmegaConf.to_container(result.config, resolve=False)


def bounded(file: FilePath) -> None:
    """Raise ``CompositionError`` DL202 where a YAML file holds too much, or is nested too deeply, to be a profile."""
    text = _text(file).decode("utf-8", "replace")
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
                raise _refused(file, line, "DL202.file_depth", limit=MAX_DEPTH)
            if count > MAX_NODES:
                raise _refused(file, line, "DL202.file_values", limit=MAX_NODES)
    except yaml.YAMLError:
        return  # Hydra reads it next, and says what is wrong


def _text(file: FilePath) -> bytes:
    size = file.stat().st_size
    if size > MAX_BYTES:
        raise _refused(file, 1, "DL202.file_size", size=size, limit=MAX_BYTES)
    return file.read_bytes()


def _refused(file: FilePath, line: int, key: str, /, **facts: Any) -> CompositionError:
    shown = str(file.relative_to(FilePath.cwd())) if file.is_relative_to(FilePath.cwd()) else str(file)
    return CompositionError([Problem.of(key, where=Where(shown, line, 1), **facts)])


def _folder(package: str) -> str:
    """Where a package's files are, found without importing it."""
    top, *below = package.replace("/", ".").rstrip(".").split(".")
    spec = importlib.util.find_spec(top)
    places = [] if spec is None or spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    folders = [FilePath(place, *below) for place in places]
    found = next((folder for folder in folders if folder.is_dir()), None)
    return f"file://{found.as_posix()}" if found is not None else f"file:///{package} is not installed"
