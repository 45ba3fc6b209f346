"""Composing by Hydra: where it reads files, in which order it merges them, and declog's plugins of it.

The only file that imports ``hydra._internal``. A file that holds a profile is made long as soon as it is read. On
declog's own path that is done by a repository of its own; in an application, by ``ProfileFiles``, a source that Hydra
finds with ``DeclogSearchPath`` in ``hydra_plugins``: Hydra's own sources, and its other applications, are as they were.
Files may be from elsewhere: they are measured before they are read, and a package that ``hydra.searchpath`` names is
not imported to find them.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.util
import pickle
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository, IConfigRepository
from hydra._internal.core_plugins import file_config_source, importlib_resources_config_source
from hydra._internal.defaults_list import DefaultsList, create_defaults_list
from hydra._internal.sources_registry import SourcesRegistry
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.utils import setup_globals
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from declog.config.bounds import bounded, text_of
from declog.config.plain import NotPlain, merged, overridden, settled
from declog.config.search_path import (
    GROUP,
    HYDRA_ERRORS,
    PROVIDER,
    conf_location,
    preset_folders,
    shipped_folders,
)

MERGED = 32  # configurations that a process keeps, 0.1 MB each
_TAKEN_OUT: Any = ConfigRepository._extract_defaults_list  # which looks at nothing of its repository
_merged: dict[bytes, bytes] = {}
Files = IConfigRepository  # by their names, as Hydra finds them
Defaults = DefaultsList  # the files in their order, and the overrides of keys
Merged = tuple[Defaults, Files]  # what one composition merges


class Repository(ConfigRepository):
    """Hydra's files by name, each measured before it is read. ``plain`` has the data of those that have no types."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        self.plain: dict[str, Any] = {}
        super().__init__(config_search_path)

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        """Find the places of a search path; the packages that a configuration names are not imported for it."""
        self.sources = []
        for element in config_search_path.get_path():
            path, provider = str(element.path), str(element.provider)
            if provider.startswith("hydra.searchpath") and path.startswith("pkg://"):
                path = _folder(path.removeprefix("pkg://"))
            scheme = self._get_scheme(path)
            source = _READERS.get(scheme) or SourcesRegistry.instance().resolve(scheme)
            self.sources.append(source(provider, path))

    def load_config(self, config_path: str) -> ConfigResult | None:
        """A configuration, or None; raises ``CompositionError`` for a file that is too large to be one."""
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.scheme() not in ("file", "declog", "pkg"):
            return super().load_config(config_path)
        name = config_path.removeprefix("declog/") if source.scheme() == "declog" else config_path
        name = name if name.endswith(".yaml") else f"{name}.yaml"
        file = None if source.scheme() == "pkg" else Path(source.path, name)
        text = resources.files(source.path).joinpath(name).read_bytes() if file is None else text_of(file)
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

    def _settled(self, found: Defaults, repo: IConfigRepository) -> dict[str, Any] | None:
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
    source: type[ConfigSource], provider: str, place: str, name: str, file: Path | None, text: bytes
) -> tuple[ConfigResult, ListConfig, Any]:
    """What Hydra makes of a file that holds ``text``, its defaults list, and its plain data: nobody changes them."""
    if file is not None:
        bounded(file)
    result = source(provider, place).load_config(name)
    defaults = _TAKEN_OUT(None, name, result.config)  # which has them no longer
    return result, defaults, OmegaConf.to_container(result.config, resolve=False)


class FileConfigSource(file_config_source.FileConfigSource):
    """Hydra's own files; a profile in one may be written shorter."""

    def load_config(self, config_path: str) -> ConfigResult:
        if self.path not in shipped_folders():
            return self.read(config_path)
        return _kept(self, config_path, Path(self.path, self._normalize_file_name(config_path)))

    def read(self, config_path: str) -> ConfigResult:
        """The file in the long form."""
        return _lengthened(super().load_config(config_path), config_path, self)


class ImportlibResourcesConfigSource(importlib_resources_config_source.ImportlibResourcesConfigSource):
    """Hydra's own files of packages; a profile in one may be written shorter."""

    def load_config(self, config_path: str) -> ConfigResult:
        if f"pkg://{self.path}" != conf_location():
            return self.read(config_path)
        file = Path(shipped_folders()[0], self._normalize_file_name(config_path))
        return _kept(self, config_path, file)

    def read(self, config_path: str) -> ConfigResult:
        """The file in the long form."""
        return _lengthened(super().load_config(config_path), config_path, self)


_kept_files: dict[tuple[str, str, str, int], bytes] = {}


def _kept(source: FileConfigSource | ImportlibResourcesConfigSource, name: str, file: Path) -> ConfigResult:
    """A shipped file, read once in a process: an application composes twice, and more to say where a mistake is."""
    if not file.is_file():
        return source.read(name)  # which says so
    key = source.provider, source.scheme(), name, file.stat().st_mtime_ns
    if key not in _kept_files:
        _kept_files[key] = pickle.dumps(source.read(name))
    result: ConfigResult = pickle.loads(_kept_files[key])
    return result


def _lengthened(result: ConfigResult, name: str, source: ConfigSource) -> ConfigResult:
    from declog.config.long_form import lengthened  # an application without a profile does not pay for it

    return lengthened(result, name, partial(_beside, source))


def _beside(source: ConfigSource, name: str) -> ConfigResult | None:
    """A preset that a file of ``source`` extends: one beside it, or an installed one; None where it is elsewhere."""
    folders = preset_folders()
    if source.is_config(name) and source.path in folders:
        folders = [source.path]
    elif source.is_config(name) and f"pkg://{source.path}" != conf_location():
        return source.load_config(name)
    file = next((file for folder in folders if (file := Path(folder, f"{name}.yaml")).is_file()), None)
    return None if file is None else _shipped(str(file.parents[name.count("/")]), name, file.stat().st_mtime_ns)


@cache  # whatever extends a preset is read with all that this one extends
def _shipped(folder: str, name: str, changed: int) -> ConfigResult:
    return FileConfigSource(PROVIDER, f"file://{folder}").load_config(name)


class FolderOfPresets(FileConfigSource):
    """A folder whose files are presets although it is not called `declog`: ``declog:///home/me/profiles``."""

    @staticmethod
    def scheme() -> str:
        return "declog"

    def file(self, name: str) -> Path:
        """The file of a configuration, ``declog/mine``."""
        return Path(self.path) / self._normalize_file_name(self._below(name) or "")

    def load_config(self, config_path: str) -> ConfigResult:
        read = file_config_source.FileConfigSource.load_config(self, self._below(config_path) or "")
        return _lengthened(read, config_path, self)

    def available(self) -> bool:
        return Path(self.path).is_dir()

    def is_group(self, config_path: str) -> bool:
        below = self._below(config_path)
        return config_path == "" or (below is not None and super().is_group(below))

    def is_config(self, config_path: str) -> bool:
        below = self._below(config_path)
        return bool(below) and super().is_config(str(below))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if config_path == "":
            return [] if results_filter is ObjectType.CONFIG else [GROUP]
        found: list[str] = []
        for file in (Path(self.path) / (self._below(config_path) or "")).iterdir():
            self._list_add_result(found, f"{config_path}/{file.name}", file.name, results_filter)
        return sorted(set(found))

    @staticmethod
    def _below(name: str) -> str | None:
        """A name of the group, seen from the folder; None for what is outside of the group."""
        return "" if name == GROUP else name.removeprefix(f"{GROUP}/") if name.startswith(f"{GROUP}/") else None


class ProfileFiles(ConfigSource):
    """The files of another source, those that hold a profile in the long form: ``declog-files://file:///app/conf``."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self.source = _READERS[self.path.partition("://")[0]](provider, self.path)

    @staticmethod
    def scheme() -> str:
        return "declog-files"

    def load_config(self, config_path: str) -> ConfigResult:
        result = self.source.load_config(config_path)
        places = OmegaConf.select(result.config, "hydra.searchpath") if "hydra" in result.config else None
        if isinstance(places, ListConfig) and all(isinstance(each, str) for each in places):
            OmegaConf.update(result.config, "hydra.searchpath", [with_profiles(each) or each for each in places])
        return result

    def available(self) -> bool:
        return self.source.available()

    def is_group(self, config_path: str) -> bool:
        return self.source.is_group(config_path)

    def is_config(self, config_path: str) -> bool:
        return self.source.is_config(config_path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return self.source.list(config_path, results_filter)


def read_by(source: ConfigSource) -> ConfigSource:
    """The source that knows the files of ``source``."""
    return source.source if isinstance(source, ProfileFiles) else source


_READERS: dict[str, type[FileConfigSource | ImportlibResourcesConfigSource]] = {
    each.scheme(): each for each in (FileConfigSource, ImportlibResourcesConfigSource, FolderOfPresets)
}


def with_profiles(place: str) -> str | None:
    """A place of a search path whose profiles may be written shorter, read by ``ProfileFiles``; None for another."""
    path = place if "://" in place else f"file://{place}"
    scheme, _, rest = path.partition("://")
    if scheme == "pkg":
        rest = _folder(rest).removeprefix("file://")
    folder = Path(rest)
    if scheme not in ("file", "pkg") or not folder.is_dir():
        return None
    files = (file for depth in ("*.yaml", "*/*.yaml", "*/*/*.yaml") for file in folder.glob(depth))
    if not (folder / GROUP).is_dir() and not any(GROUP.encode() in file.read_bytes() for file in files):
        return None
    return f"{ProfileFiles.scheme()}://{path}"


def running_loader() -> ConfigLoaderImpl | None:
    """What composes the application that runs; None outside of one, or where it is not Hydra's."""
    loader = GlobalHydra.instance().config_loader() if GlobalHydra.instance().is_initialized() else None
    return loader if isinstance(loader, ConfigLoaderImpl) else None


def merged_in_run(name: str | None, lines: list[str]) -> Merged:
    """What the application that runs merges for a configuration and overrides. Raises what Hydra raises."""
    loader = running_loader()
    assert loader is not None
    found = loader.compute_defaults_list(name, lines, RunMode.RUN)
    return found, loader._parse_overrides_and_create_caching_repo(name, lines)[1]


for_declog = ContextVar("for_declog", default=False)  # what is wrong is raised by declog, which composes


def config_loader(config_dir: Path | str | None = None) -> Loader:
    """A loader over ``config_dir``, the presets and what other plugins add; not Hydra's global one.

    A text names a place of Hydra's search path, such as ``declog:///a/folder/of/presets``.
    """
    if not OmegaConf.has_resolver("hydra"):
        setup_globals()
    mark = for_declog.set(True)
    try:
        return Loader(create_config_search_path(None if config_dir is None else str(config_dir)))
    finally:
        for_declog.reset(mark)


def _folder(package: str) -> str:
    """Where a package's files are, found without importing it."""
    top, *below = package.replace("/", ".").rstrip(".").split(".")
    spec = importlib.util.find_spec(top)
    places = [] if spec is None or spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    folders = [Path(place, *below) for place in places]
    found = next((folder for folder in folders if folder.is_dir()), None)
    return f"file://{found.as_posix()}" if found is not None else f"file:///{package} is not installed"
