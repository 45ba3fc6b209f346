"""Where Hydra finds the presets: the search-path plugin, and a configuration loader of our own.

Everything that reaches into Hydra's machinery stands here. Nothing of Hydra's global state is left
changed, so that composing inside a running ``@hydra.main`` application does not disturb it. Imports
Hydra, and nothing else of declog: ``import declog`` pays for this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hydra
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import VersionBase
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

PROVIDER = "declog"
GROUP = "declog"
ROOT = "declog_root"

# All that composing raises for something that a user wrote: ValueError for malformed defaults lists and keys.
HYDRA_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError)


def conf_location() -> str:
    """The shipped presets as Hydra addresses them: in the package (a wheel) or beside it (a checkout)."""
    package = Path(__file__).resolve().parent
    if (package / "conf").is_dir():
        return "pkg://declog.conf"
    return f"file://{(package.parent / 'conf').as_posix()}"


class DeclogSearchPath(SearchPathPlugin):
    """Appends the shipped presets, so that an application's own files of the same name win."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        # A reloaded module registers a second class; one entry is enough.
        if all(element.provider != PROVIDER for element in search_path.get_path()):
            search_path.append(provider=PROVIDER, path=conf_location())


def register() -> None:
    """Make ``declog=<preset>`` known to every Hydra application of this process. Safe to call again."""
    Plugins.instance().register(DeclogSearchPath)


def config_loader(config_dir: Path | None = None) -> ConfigLoaderImpl:
    """A loader over ``config_dir``, the presets and what other plugins add; not Hydra's global one."""
    register()
    if not OmegaConf.has_resolver("hydra"):
        setup_globals()
    return ConfigLoaderImpl(create_config_search_path(None if config_dir is None else str(config_dir)))


@contextmanager
def current_hydra() -> Iterator[None]:
    """Hydra 1.3's own behaviour, whatever ``version_base`` the application asked for, which is put back."""
    base = VersionBase.instance()
    before = base.version_base
    if hydra.__version__.startswith("1.3."):
        hydra.version.setbase("1.3")
    try:
        yield
    finally:
        base.version_base = before
