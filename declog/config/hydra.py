"""declog's use of Hydra: its files by name, its defaults lists, and declog's plugins for it.

Only this file imports ``hydra._internal``. Hydra finds the files, and ``fold.py`` lays them over each other. In an
application Hydra itself merges. There ``ConfigFiles``, a source that Hydra finds with ``DeclogSearchPath`` in
``hydra_plugins``, gives it the configs of files and of the ConfigStore in the long form. Hydra's own sources and its
other applications do not change. Files may come from elsewhere: their size is checked before they are read, and a
package that ``hydra.searchpath`` names is not imported to find them.
"""

from __future__ import annotations

import copy
import importlib.util
import pickle
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository, IConfigRepository
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra._internal.core_plugins.structured_config_source import StructuredConfigSource
from hydra._internal.defaults_list import DefaultsList, create_defaults_list
from hydra._internal.sources_registry import SourcesRegistry
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.utils import setup_globals
from hydra.errors import CompactHydraException, ConfigCompositionException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf

from declog.config.files import of_file, source_file, source_path
from declog.config.search_path import GROUP, HYDRA_ERRORS, current_hydra, provider_of

Files = IConfigRepository  # by their names, as Hydra finds them
Defaults = DefaultsList  # the files in their order, and the overrides of keys
Merged = tuple[Defaults, Files]  # what one composition merges


class Repository(ConfigRepository):
    """Hydra's files by name; the size of each is checked before it is read. Hydra gets defaults lists, not values."""

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        """Make the source of each entry of a search path. Packages that a configuration names are not imported."""
        self.sources = []
        for element in config_search_path.get_path():
            path, provider = str(element.path), str(element.provider)
            if provider.startswith("hydra.searchpath") and path.startswith("pkg://"):
                path = _folder(path.removeprefix("pkg://"))
            scheme = self._get_scheme(path)
            source = FolderOfPresets if scheme == "declog" else SourcesRegistry.instance().resolve(scheme)
            self.sources.append(source(provider, path))

    def load_config(self, config_path: str) -> ConfigResult | None:
        """A configuration, or None; raises ``CompositionError`` for a file that is too large to be one."""
        if ".." in config_path.split("/"):  # a name is no path, although Hydra's sources find the file
            return None
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or config_path.startswith("hydra/"):
            return super().load_config(config_path)
        from declog.config.long_form import placed_defaults

        file = source_file(source, config_path)
        if file is None:
            stored = super().load_config(config_path)
            data = OmegaConf.to_container(source.load_config(config_path).config, resolve=False)
            if stored is not None and isinstance(data, dict) and "defaults" in data:
                entries = OmegaConf.create(placed_defaults(data, config_path))
                stored.defaults_list = self._create_defaults_list(config_path, entries)
            return stored
        try:
            data = of_file(*file).plain
        except yaml.YAMLError:
            data = None
        if not isinstance(data, dict):
            return super().load_config(config_path)
        defaults = placed_defaults(data, config_path)
        config = OmegaConf.create({key: data[key] if key == "hydra" else None for key in data})
        if "defaults" in data:
            config["defaults"] = defaults
        result = ConfigResult(source.provider, f"{source.scheme()}://{source.path}", config,
                              ConfigSource._get_header_dict(file[1][:512]))  # fmt: skip
        result.defaults_list = self._create_defaults_list(config_path, self._extract_defaults_list(config_path, config))
        return result

    def __deepcopy__(self, memo: object) -> Repository:
        """Share the sources, which never change: Hydra copies a repository before a configuration names more places."""
        copied = copy.copy(self)
        copied.sources = list(self.sources)
        return copied


class Loader(ConfigLoaderImpl):
    """Hydra's loader over a ``Repository``, for defaults lists."""

    repository: Repository

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        self.config_search_path = config_search_path
        self.repository = Repository(config_search_path)

    def defaults(self, root: str | None, lines: list[str]) -> Merged:
        """The files to merge in their order, with the overrides of keys. A file may ask for files of Hydra's own."""
        with current_hydra():
            parsed, repo = self._parse_overrides_and_create_caching_repo(root, lines)
            self.validate_sweep_overrides_legal(parsed, RunMode.RUN, from_shell=False)
            try:
                merged = create_defaults_list(repo, root, parsed, prepend_hydra=False, skip_missing=False)
            except HYDRA_ERRORS:
                merged = create_defaults_list(repo, root, parsed, prepend_hydra=True, skip_missing=False)
        for override in merged.config_overrides:
            if "/" in override.key_or_group or override.package is not None:
                raise ConfigCompositionException(f"there is no group {override.key_or_group}")
        return merged, repo

    def hydra_node(self, root: str, lines: list[str]) -> DictConfig:
        """The node `hydra` of an application's run, with its interpolations."""
        hydra_lines = [line for line in lines if line.lstrip("+~").startswith("hydra")]
        with current_hydra():
            node: DictConfig = self.load_configuration(root, hydra_lines, RunMode.RUN).hydra
        return node


class FolderOfPresets(FileConfigSource):
    """A folder whose files are presets although it is not called `declog`: ``declog:///home/me/configs``."""

    @staticmethod
    def scheme() -> str:
        return "declog"

    def load_config(self, config_path: str) -> ConfigResult:
        return super().load_config(self._below(config_path) or "")

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
        names: list[str] = []
        for file in (Path(self.path) / (self._below(config_path) or "")).iterdir():
            self._list_add_result(names, f"{config_path}/{file.name}", file.name, results_filter)
        return sorted(set(names))

    @staticmethod
    def _below(name: str) -> str | None:
        """The name below the group; None for a name outside the group."""
        return "" if name == GROUP else name.removeprefix(f"{GROUP}/") if name.startswith(f"{GROUP}/") else None


class InCode(ConfigSource):
    """A mapping with a defaults list, as the preset ``PRESET``."""

    PRESET = "_mapping_"  # no file of presets has this name

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__("declog", f"{self.scheme()}://{self.PRESET}")
        self.data = data

    @staticmethod
    def scheme() -> str:
        return "declog-data"

    def load_config(self, config_path: str) -> ConfigResult:
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(self.data), {"package": None})

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return False

    def is_config(self, config_path: str) -> bool:
        return config_path == f"{GROUP}/{self.PRESET}"

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return []


_shipped: dict[tuple[str, str], bytes] = {}
jobs: set[str] = set()  # the names of this process's applications that read a config
started_with: list[tuple[str, str]] = []  # the place and the name of an application's primary configuration


class NotYaml(yaml.MarkedYAMLError, CompactHydraException):
    """A config that is not YAML. Hydra prints this error without a traceback."""


class FromStore(ConfigResult):
    """A configuration of the ConfigStore, which Hydra must not merge with the store's once more, as with a schema."""

    @property
    def is_schema_source(self) -> bool:
        """Whether it is the schema itself."""
        return True

    @is_schema_source.setter
    def is_schema_source(self, value: bool) -> None:
        """Ignore what Hydra sets, by the source that the configuration came from."""


class ConfigFiles(ConfigSource):
    """The files of another source, with their configs in the long form: ``declog-files://file:///app/conf``.

    ``STORE`` is the place of the configs in Hydra's ConfigStore, and of nothing else in it.
    """

    STORE = "declog-files://structured://"

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        readers = {"file": FileConfigSource, "structured": StructuredConfigSource}
        scheme = self.path.partition("://")[0]
        self.source: ConfigSource = readers.get(scheme, ImportlibResourcesConfigSource)(provider, self.path)
        self.stored = scheme == "structured"

    @staticmethod
    def scheme() -> str:
        return "declog-files"

    def load_config(self, config_path: str) -> ConfigResult:
        if self.provider == "main" and not started_with:
            started_with.append((self.path, config_path))
        path = source_path(self.source, config_path)
        if path is None or provider_of(str(path)) is None:
            return self._in_long_form(config_path)
        key = self.source.full_path(), config_path
        if key not in _shipped:  # an application composes twice, and again to locate a mistake
            _shipped[key] = pickle.dumps(self._in_long_form(config_path))
        result: ConfigResult = pickle.loads(_shipped[key])
        return result

    def _in_long_form(self, name: str) -> ConfigResult:
        from declog.config.long_form import lengthened  # an application without a config does not import it

        try:
            result = lengthened(self.source.load_config(name), name)
        except yaml.MarkedYAMLError as error:
            if not name.startswith(f"{GROUP}/"):
                raise
            raise NotYaml(error.context, error.context_mark, error.problem, error.problem_mark, error.note) from error
        if self.stored:
            return FromStore(result.provider, result.path, result.config, result.header)
        places = OmegaConf.select(result.config, "hydra.searchpath") if "hydra" in result.config else None
        if isinstance(places, ListConfig) and all(isinstance(entry, str) for entry in places):
            OmegaConf.update(result.config, "hydra.searchpath", [with_configs(entry) or entry for entry in places])
        return result

    def available(self) -> bool:
        return self.source.available()

    def is_group(self, config_path: str) -> bool:
        return self.source.is_group(config_path)

    def is_config(self, config_path: str) -> bool:
        if not self.stored:
            return self.source.is_config(config_path)
        from declog.config.long_form import holds_config

        if config_path.startswith("hydra/") or not self.source.is_config(config_path):
            return False
        return holds_config(self.source.load_config(config_path), config_path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return self.source.list(config_path, results_filter)


def read_by(source: ConfigSource) -> ConfigSource:
    """The source that ``source`` takes its files from."""
    return source.source if isinstance(source, ConfigFiles) else source


def source_of(files: Files, name: str) -> ConfigSource | None:
    """The source that has a configuration."""
    return next((source for source in map(read_by, files.get_sources()) if source.is_config(name)), None)


def file_of(files: Files, name: str) -> tuple[str, str] | None:
    """The path and the text of a configuration; None if it is not a file, or does not exist."""
    source = source_of(files, name)
    return None if source is None else source_file(source, name)


def with_configs(entry: str) -> str | None:
    """The entry of a search path as ``ConfigFiles`` reads it, if it may have configs; None for another entry."""
    path = entry if "://" in entry else f"file://{entry}"
    scheme, _, rest = path.partition("://")
    if scheme == "pkg":
        rest = _folder(rest).removeprefix("file://")
    folder = Path(rest)
    if scheme not in ("file", "pkg") or not folder.is_dir():
        return None
    files = (file for depth in ("*.yaml", "*/*.yaml", "*/*/*.yaml") for file in folder.glob(depth))
    if not (folder / GROUP).is_dir() and not any(GROUP.encode() in file.read_bytes() for file in files):
        return None
    return f"{ConfigFiles.scheme()}://{path}"


def running_loader() -> ConfigLoaderImpl | None:
    """The loader that composed the running application; None if no application of Hydra runs."""
    loader = GlobalHydra.instance().config_loader() if GlobalHydra.instance().is_initialized() else None
    return loader if isinstance(loader, ConfigLoaderImpl) else None


def overrides_of_run(kind: str) -> list[str]:
    """The overrides of the running application, of the kind ``task`` or ``hydra``, with ``${...}`` as it was written.

    Reading the items of Hydra's list would resolve it.
    """
    overrides: Any = HydraConfig.get().overrides
    return cast("list[str]", OmegaConf.to_container(overrides[kind], resolve=False))


def merged_in_run(name: str | None, lines: list[str]) -> Merged:
    """The files and overrides that the running application merges for a configuration. Raises Hydra's errors."""
    loader = running_loader()
    assert loader is not None
    merged = loader.compute_defaults_list(name, lines, RunMode.RUN)
    return merged, loader._parse_overrides_and_create_caching_repo(name, lines)[1]


for_declog = ContextVar("for_declog", default=False)  # declog composes, and raises the errors itself


def config_loader(config_dir: Path | str | None = None, data: dict[str, Any] | None = None) -> Loader:
    """A loader over ``config_dir``, the presets and what other plugins add; not Hydra's global one.

    A ``config_dir`` that is a text is an entry of Hydra's search path, such as ``declog:///a/folder/of/presets``.
    ``data`` is one more preset.
    """
    if not OmegaConf.has_resolver("hydra"):
        setup_globals()
    mark = for_declog.set(True)
    try:
        loader = Loader(create_config_search_path(None if config_dir is None else str(config_dir)))
    finally:
        for_declog.reset(mark)
    if data is not None:
        loader.repository.sources.append(InCode(data))
    return loader


def groups_of(loader: ConfigLoader) -> list[str]:
    """The group of presets, and the groups below it."""
    return [GROUP, *(f"{GROUP}/{name}" for name in loader.list_groups(GROUP))]


def _folder(package: str) -> str:
    """The folder of a package as an entry of a search path, found without importing the package."""
    top, *below = package.replace("/", ".").rstrip(".").split(".")
    spec = importlib.util.find_spec(top)
    places = [] if spec is None or spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    folders = [Path(parent, *below) for parent in places]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    return f"file://{folder.as_posix()}" if folder is not None else f"file:///{package} is not installed"
