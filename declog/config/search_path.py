"""Where Hydra finds the presets: the search-path plugin, and a configuration loader of our own.

Everything that reaches into Hydra's machinery stands here. Nothing of Hydra's global state is left
changed but how it reads a profile's file, so that composing inside a running ``@hydra.main`` application does not
disturb it. Imports Hydra, and at first little else of declog: ``import declog`` pays for this file.
"""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
import yaml
from hydra._internal.core_plugins import file_config_source, importlib_resources_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import VersionBase
from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from declog.config.long_form import lengthened
from declog.distribution import NAME, VERSION

if TYPE_CHECKING:
    from declog.config.loading import Loader

PROVIDER = "declog"
GROUP = "declog"
ROOT = "declog_root"
TEAMS = "declog.presets"  # the entry points of installed packages with presets: each names the package of its `conf`

# All that composing raises for something that a user wrote: ValueError for malformed defaults lists and keys,
# RecursionError for presets that extend each other.
HYDRA_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError)


def conf_location() -> str:
    """The shipped presets as Hydra addresses them: in the package (a wheel) or beside it (a checkout)."""
    package = Path(__file__).resolve().parent.parent
    if (package / "conf").is_dir():
        return "pkg://declog.conf"
    return f"file://{(package.parent / 'conf').as_posix()}"


class DeclogSearchPath(SearchPathPlugin):
    """Appends the shipped presets, then those of installed packages: an application's own files of a name win."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if not _own.get():
            _explain(sys.argv[1:])
        # A reloaded module registers a second class; one entry is enough.
        if any(element.provider == PROVIDER for element in search_path.get_path()):
            return
        search_path.append(provider=PROVIDER, path=conf_location())
        for package, conf in _teams(tuple(sys.path)):
            search_path.append(provider=package, path=f"pkg://{conf}")


_own = ContextVar("_own", default=False)  # declog composes; what is wrong is raised by it
_OF_DECLOG = re.compile(r"[+~]*declog[./@\w]*=")


def _explain(words: Sequence[str]) -> None:
    """Print what to type for overrides of declog that an application's Hydra, which comes next, will not read.

    Hydra's own message speaks of its lexer, and nobody can add to it: it ends the process.
    """
    odd = [word for word in words if _OF_DECLOG.match(word)]
    if not odd:
        return
    from declog.config.composition_errors import of_application  # `import declog` does not pay for it

    for word in odd:
        if (problem := of_application(word)) is not None:
            print(f"{problem.text()}\n", file=sys.stderr)


@cache  # reading all installed packages' metadata takes some 20 ms
def _teams(path: tuple[str, ...]) -> list[tuple[str, str]]:
    """The installed packages with presets, each with the package that is its `conf`."""
    found = sorted(entry_points(group=TEAMS), key=lambda entry: entry.name)
    named = [(entry.dist.name if entry.dist else entry.name, entry.value) for entry in found]
    return [(name, conf) for name, conf in named if ":" not in conf and _places(conf)]


def team_folders() -> list[tuple[str, str]]:
    """The installed packages with presets, each with the folder of its `conf`."""
    return [(name, str(place)) for name, conf in _teams(tuple(sys.path)) for place in _places(conf)]


def _places(module: str) -> list[str]:
    """The folders of a package; none where it cannot be imported, which `packages.faults` says."""
    try:
        spec = find_spec(module)
    except Exception:  # noqa: BLE001  whatever an installed package does on import is its problem
        return []
    return list(spec.submodule_search_locations or ()) if spec is not None else []


def preset_folders() -> list[str]:
    """The folders of presets that installed packages bring, declog's own among them."""
    return [*_shipped_folders(), *(folder for _, folder in team_folders())]


def _shipped_folders() -> list[str]:
    package = Path(__file__).resolve().parent.parent
    return [str(package / "conf"), str(package.parent / "conf")]


def package_of(file: str) -> str | None:
    """The installed package that ships a preset's file, and its version; None for a file of one's own."""
    parents = Path(file).parents
    folders = [*((PROVIDER, folder) for folder in _shipped_folders()), *team_folders()]
    name = next((name for name, folder in folders if Path(folder) in parents), None)
    if name == PROVIDER:
        return f"{NAME} {VERSION}"
    return None if name is None else f"{name} {version(name)}"


class FileConfigSource(file_config_source.FileConfigSource):
    """Hydra's own files; a profile in one may be written shorter."""

    def load_config(self, config_path: str) -> ConfigResult:
        if self.path not in _shipped_folders():
            return self.read(config_path)
        return _kept(self, config_path, Path(self.path, self._normalize_file_name(config_path)))

    def read(self, config_path: str) -> ConfigResult:
        """The file in the long form."""
        return lengthened(super().load_config(config_path), config_path, partial(_beside, self))


class ImportlibResourcesConfigSource(importlib_resources_config_source.ImportlibResourcesConfigSource):
    """Hydra's own files of packages; a profile in one may be written shorter."""

    def load_config(self, config_path: str) -> ConfigResult:
        if f"pkg://{self.path}" != conf_location():
            return self.read(config_path)
        file = Path(_shipped_folders()[0], self._normalize_file_name(config_path))
        return _kept(self, config_path, file)

    def read(self, config_path: str) -> ConfigResult:
        """The file in the long form."""
        return lengthened(super().load_config(config_path), config_path, partial(_beside, self))


_read: dict[tuple[str, str, str, int], bytes] = {}


def _kept(source: FileConfigSource | ImportlibResourcesConfigSource, name: str, file: Path) -> ConfigResult:
    """A shipped file, read once in a process: an application composes twice, and more to say where a mistake is."""
    if not file.is_file():
        return source.read(name)  # which says so
    key = source.provider, source.scheme(), name, file.stat().st_mtime_ns
    if key not in _read:
        _read[key] = pickle.dumps(source.read(name))
    result: ConfigResult = pickle.loads(_read[key])
    return result


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


def is_shipped(name: str) -> bool:
    """Whether an installed package has such a preset, or option of a preset's groups: ``declog/sinks/jsonl``."""
    return any(each.is_config(name) for each in _installed())


def _installed() -> list[FileConfigSource]:
    return [FileConfigSource(PROVIDER, f"file://{folder}") for folder in preset_folders() if Path(folder).is_dir()]


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
        return lengthened(read, config_path, partial(_beside, self))

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


def register() -> None:
    """Make ``declog=<preset>`` known to every Hydra application of this process. Safe to call again."""
    Plugins.instance().register(DeclogSearchPath)
    Plugins.instance().register(FolderOfPresets)
    # Hydra keeps the first source of a scheme, its own: ours is the same but for profiles.
    SourcesRegistry.instance().types.update(
        {source.scheme(): source for source in (FileConfigSource, ImportlibResourcesConfigSource)}
    )


def config_loader(config_dir: Path | str | None = None) -> Loader:
    """A loader over ``config_dir``, the presets and what other plugins add; not Hydra's global one.

    A text names a place of Hydra's search path, such as ``declog:///a/folder/of/presets``.
    """
    register()
    if not OmegaConf.has_resolver("hydra"):
        setup_globals()
    from declog.config.loading import Loader  # `import declog` does not pay for it

    mark = _own.set(True)
    try:
        return Loader(create_config_search_path(None if config_dir is None else str(config_dir)))
    finally:
        _own.reset(mark)


def settle(config: DictConfig, name: str) -> None:
    """Put in what Hydra would answer in a run to ``${hydra:job.name}`` and the like, as far as that can be known.

    ``config`` still has its node ``hydra``; ``name`` stands for the script's, which is known when it runs.
    """
    requests = list(_requests(config))
    if not requests:
        return
    OmegaConf.set_struct(config, False)
    config.hydra.job.name = name
    config.hydra.runtime.output_dir = config.hydra.run.dir
    hydra_config = HydraConfig.instance()
    before = hydra_config.cfg
    try:
        hydra_config.set_config(config)
        for node, key in requests:
            child = node._get_node(key)
            try:
                child._set_value(_answered(str(child._value()), config))
            except OmegaConfBaseException:
                continue  # it stays as it was written, and is refused where it is needed
    finally:
        hydra_config.cfg = before


def _requests(node: Any) -> Iterator[tuple[Any, Any]]:
    """The values that ask Hydra of the run, each with the map or list that holds it."""
    for key in range(len(node)) if isinstance(node, ListConfig) else [key for key in node if key != "hydra"]:
        child = node._get_node(key)
        if isinstance(child, DictConfig | ListConfig) and not (child._is_none() or child._is_interpolation()):
            yield from [] if child._is_missing() else _requests(child)
        elif isinstance(child, Node) and "${hydra:" in str(child._value()):
            yield node, key


def _answered(text: str, config: DictConfig) -> object:
    """A text with Hydra's answers put in; what else it asks for, such as the environment, stays as it was written."""
    request = r"\$\{hydra:[\w.]*\}"
    if re.fullmatch(request, text):
        return OmegaConf.create({"answer": text}).answer
    return re.sub(request, lambda found: str(OmegaConf.create({"answer": found[0]}).answer), text)


@contextmanager
def current_hydra() -> Iterator[None]:
    """Hydra 1.3's own behaviour, whatever ``version_base`` the application requested, which is put back."""
    base = VersionBase.instance()
    before = base.version_base
    if hydra.__version__.startswith("1.3."):
        hydra.version.setbase("1.3")
    try:
        yield
    finally:
        base.version_base = before


register()
