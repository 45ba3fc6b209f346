"""Where presets are: declog's own, those of installed packages, and what Hydra answers of a run.

Nothing of Hydra's global state is left changed, so that composing inside a running ``@hydra.main`` application does not
disturb it. Imports Hydra, and little else of declog: each application of Hydra that finds declog's plugin pays for
this file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.version import VersionBase
from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from declog.distribution import NAME, VERSION, entry_points

PROVIDER = "declog"
GROUP = "declog"
ROOT = "declog_root"
TEAMS = "declog.presets"  # the entry points of installed packages with presets: each names the package of its `conf`

# All that composing raises for something that a user wrote: ValueError for malformed defaults lists and keys,
# RecursionError for presets that extend each other.
# OmegaConf raises a TypeError for a key below a list.
HYDRA_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, TypeError, RecursionError)


def conf_location() -> str:
    """The shipped presets as Hydra addresses them: in the package (a wheel) or beside it (a checkout)."""
    package = Path(__file__).resolve().parent.parent
    if (package / "conf").is_dir():
        return "pkg://declog.conf"
    return f"file://{(package.parent / 'conf').as_posix()}"


@cache  # their folders are looked for
def _teams_on(path: tuple[str, ...]) -> list[tuple[str, str]]:
    """The installed packages with presets, each with the package that is its `conf`."""
    presets = sorted(entry_points(TEAMS), key=lambda entry: entry.name)
    named = [(entry.dist.name if entry.dist else entry.name, entry.value) for entry in presets]
    return [(name, conf) for name, conf in named if ":" not in conf and _places(conf)]


def teams() -> list[tuple[str, str]]:
    """The installed packages with presets, each with the package that is its `conf`."""
    return _teams_on(tuple(sys.path))


def team_folders() -> list[tuple[str, str]]:
    """The installed packages with presets, each with the folder of its `conf`."""
    return [(name, str(folder)) for name, conf in teams() for folder in _places(conf)]


def folders_of(package: str) -> list[Path]:
    """The folders of a package; none where there is no such package.

    The packages above it are imported: it raises whatever they raise, mostly ``ImportError``.
    """
    spec = find_spec(package)
    return [] if spec is None else [*map(Path, spec.submodule_search_locations or ())]


def _places(package: str) -> list[Path]:
    """The same; none where one of them cannot be imported, which `packages.faults` says."""
    try:
        return folders_of(package)
    except Exception:  # noqa: BLE001  whatever an installed package does on import is its problem
        return []


def preset_folders() -> list[tuple[str, str]]:
    """The installed packages with presets, declog first, each with the folder of its `conf`.

    declog's own may be in the package (a wheel) or beside it (a checkout).
    """
    package = Path(__file__).resolve().parent.parent
    return [*((PROVIDER, str(folder / "conf")) for folder in (package, package.parent)), *team_folders()]


def provider_of(file: str) -> str | None:
    """The installed package that ships a preset's file, declog among them; None for a file of one's own."""
    parents = Path(file).parents
    return next((name for name, folder in preset_folders() if Path(folder) in parents), None)


def package_of(file: str) -> str | None:
    """The same with its version."""
    name = provider_of(file)
    if name == PROVIDER:
        return f"{NAME} {VERSION}"
    return None if name is None else f"{name} {version(name)}"


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
    return re.sub(request, lambda match: str(OmegaConf.create({"answer": match[0]}).answer), text)


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
