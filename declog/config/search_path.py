"""The places of presets: declog's own, and those of installed packages.

Hydra's global state is put back, so that composing inside a running ``@hydra.main`` application does not disturb it.
This file imports little of declog: each application of Hydra that finds declog's plugin pays for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import hydra
import yaml
from hydra.errors import HydraException
from hydra.version import VersionBase
from omegaconf.errors import OmegaConfBaseException

from declog.distribution import NAME, VERSION, entry_points

PROVIDER = "declog"
GROUP = "declog"
ROOT = "declog_root"
_PACKAGE = Path(__file__).resolve().parent.parent
TEAMS = "declog.presets"  # the entry points of installed packages with presets: each names the package of its `conf`

# All that composing raises for mistakes of users: ValueError for malformed defaults lists and keys, TypeError for a key
# below a list (OmegaConf), RecursionError for presets that extend each other.
HYDRA_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, TypeError, RecursionError)


def conf_location() -> str:
    """The shipped presets as Hydra addresses them: in the package (a wheel) or beside it (a checkout)."""
    if (_PACKAGE / "conf").is_dir():
        return "pkg://declog.conf"
    return f"file://{(_PACKAGE.parent / 'conf').as_posix()}"


@dataclass(frozen=True)
class Team:
    """An installed package with presets: its name, the package that is its `conf`, and the folders of the latter."""

    name: str
    conf: str
    folders: tuple[Path, ...]


def teams() -> list[Team]:
    """The installed packages with presets, by the names of their entry points.

    A package that cannot be imported is left out; ``packages.faults`` reports it.
    """
    return _teams_on(tuple(sys.path))


@cache  # their folders are looked for
def _teams_on(path: tuple[str, ...]) -> list[Team]:
    packages = []
    for entry in sorted(entry_points(TEAMS), key=lambda entry: entry.name):
        name = entry.dist.name if entry.dist else entry.name
        with suppress(Exception):  # an installed package may raise anything on import
            folders = () if ":" in entry.value else tuple(folders_of(entry.value))
            packages += [Team(name, entry.value, folders)] if folders else []
    return packages


def folders_of(package: str) -> list[Path]:
    """The folders of a package; none if there is no such package.

    The packages above it are imported: this raises whatever they raise, mostly ``ImportError``.
    """
    spec = find_spec(package)
    return [] if spec is None else [*map(Path, spec.submodule_search_locations or ())]


def preset_folders() -> list[tuple[str, Path]]:
    """The installed packages with presets, declog first, each with a folder of its `conf`.

    declog's own may be in the package (a wheel) or beside it (a checkout).
    """
    shipped = [(PROVIDER, _PACKAGE / "conf"), (PROVIDER, _PACKAGE.parent / "conf")]
    return shipped + [(team.name, folder) for team in teams() for folder in team.folders]


def provider_of(file: str | None) -> str | None:
    """The installed package that ships a preset's file, declog among them; None for a user's own file, or no file."""
    parents = () if file is None else Path(file).parents
    return next((name for name, folder in preset_folders() if folder in parents), None)


def package_of(file: str | None) -> str | None:
    """The installed package that ships a preset's file, with its version; None for a user's own file, or no file."""
    name = provider_of(file)
    if name == PROVIDER:
        return f"{NAME} {VERSION}"
    return None if name is None else f"{name} {version(name)}"


@contextmanager
def current_hydra() -> Iterator[None]:
    """Use Hydra 1.3's own behaviour, and put back the ``version_base`` that the application requested."""
    base = VersionBase.instance()
    before = base.version_base
    if hydra.__version__.startswith("1.3."):
        hydra.version.setbase("1.3")
    try:
        yield
    finally:
        base.version_base = before
