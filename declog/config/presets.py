"""What there is to choose from: the options of declog's groups, where each comes from, and what it hides.

The search path decides between files of one name: an application's own, then the shipped ones, then those of installed
packages. Imports Hydra; the result is plain data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path as FilePath

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.plugins.config_source import ConfigSource

from declog.config.compose import project_folder
from declog.config.files import YamlLoader, source_path
from declog.config.hydra import config_loader, groups_of
from declog.config.search_path import GROUP, PROVIDER, current_hydra, preset_folders
from declog.distribution import NAME, VERSION
from declog.errors import Problem
from declog.language.shorthand import long, signal_names
from declog.language.tree import tree_of


@dataclass(frozen=True)
class Home:
    """Where an option comes from: a package and its version, or a folder of one's own (``version`` None)."""

    name: str
    version: str | None
    file: str | None

    def __str__(self) -> str:
        return f"{self.name} {self.version}" if self.version is not None else self.name


@dataclass(frozen=True)
class Option:
    """A file of a group. ``homes`` are all that have one of its name; the first is used."""

    group: str
    name: str
    homes: tuple[Home, ...]
    help: str = ""


def options(config_dir: str | FilePath | None = None) -> list[Option]:
    """Every preset, and every option of its groups, by group and name."""
    with current_hydra():
        loader = config_loader(project_folder(config_dir))
        return [_option(loader, group, name) for group in groups_of(loader) for name in loader.get_group_options(group)]


def _option(loader: ConfigLoader, group: str, name: str) -> Option:
    homes = tuple(_homes(loader, f"{group}/{name}"))
    return Option(group, name, homes, _first_comment(homes[0].file) if homes and homes[0].file else "")


def _homes(loader: ConfigLoader, name: str) -> Iterator[Home]:
    for source in loader.get_sources():
        if source.available() and source.is_config(name):
            path = source_path(source, name)
            yield home_of(source, None if path is None else str(path))


def home_of(source: ConfigSource, file: str | None) -> Home:
    """The package, or the folder, that a place of presets is."""
    package = source.path.partition(".")[0] if source.scheme() == "pkg" else None
    if package is None and source.provider != PROVIDER:
        return Home(source.path or source.provider, None, file)
    if PROVIDER in (source.provider, package):
        return Home(NAME, VERSION, file)
    for name in (source.provider, package):  # the presets of an entry point are provided by their distribution
        try:
            return Home(str(name), version(str(name)), file)
        except PackageNotFoundError:
            continue
    return Home(str(package), "", file)


def _first_comment(file: str) -> str:
    """What a file says of itself: the first sentence of the comment at its top."""
    lines = []
    for line in FilePath(file).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if "$schema" not in line:
            lines.append(line.lstrip("# ").strip())
    text = " ".join(lines)
    return text.partition(". ")[0].rstrip(".")


def pack_of(signal: str) -> str | None:
    """The pack, of those that installed packages ship, that declares a signal; the first by name."""
    files = sorted(file for _, folder in preset_folders() for file in FilePath(folder, GROUP, "packs").glob("*.yaml"))
    return next((file.stem for file in files if signal in _signals_of(file.read_text("utf-8"))), None)


@lru_cache(maxsize=64)  # of a config with many unknown names each asks for all packs
def _signals_of(pack: str) -> frozenset[str]:
    layer, _ = long(tree_of(yaml.load(pack, YamlLoader) or {}))
    return signal_names(layer)


def declared(problem: Problem) -> Problem:
    """An unknown signal that is near to none: which pack declares it."""
    match = re.fullmatch(r"unknown signal `(\w+)`", problem.message)
    pack = None if match is None or (problem.fix or "").startswith("did you mean") else pack_of(match[1])
    if pack is None:
        return problem
    return replace(problem, fix=f"the pack `{pack}` has it: defaults: [..., packs: [{pack}], _self_]")
