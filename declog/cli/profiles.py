"""The profile that a command line names: a preset, a YAML file or an application's configuration, with overrides.

The same composer as at run time makes it. On declog's own command line overrides are relative to the profile and
expressions need no second pair of quotes (``config/overrides.py``); an application's own overrides are Hydra's, as they
are.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from declog.cli.arguments import DIVIDER, Wrong
from declog.errors import nearest

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from declog.config.provenance import Origin

DEFAULT = "grpo"


def chosen(given: argparse.Namespace) -> DictConfig:
    """The configuration that the command line names; raises ``CompositionError``."""
    return configured(given, given.words)


def configured(given: argparse.Namespace, words: Sequence[str]) -> DictConfig:
    """The configuration that ``words`` name: a profile first, if one is named, then overrides."""
    from declog.config.compose import composed

    imported(given)
    return composed(replace(origin(given, words), imports=tuple(given.modules or ())))


def origin(given: argparse.Namespace, words: Sequence[str]) -> Origin:
    """What is to be composed, in Hydra's words."""
    from declog.config.provenance import Origin

    names = [word for word in words if "=" not in word and word[:1] not in ("+", "~")]
    if DIVIDER in words:
        raise Wrong("`--` divides the two profiles of `declog diff`", "leave it out")
    if names != list(words[: len(names)]) or len(names) > 1:
        raise Wrong(f"`{names[-1]}` is no override", "one profile, then key=value, +key=value or ~key")
    name, rest = (names[0] if names else None), tuple(words[len(names) :])
    if given.config_name is not None:
        if name is not None:
            raise Wrong(f"--config-name chooses the configuration, and `{name}` is no override", f"declog={name}")
        return Origin(given.config_name, rest, _directory(given.config_dir or "."), application=True)
    if name is not None and (name.endswith((".yaml", ".yml")) or "/" in name):
        if given.config_dir is not None:
            raise Wrong("--config-dir is for presets by name; a file is found as it is", f"declog ... {name}")
        base = _of_file(Path(name))
        if base.application:
            return Origin(base.config_name, rest, base.config_dir, application=True)
    else:
        base = Origin(name or DEFAULT, (), None if given.config_dir is None else _directory(given.config_dir))
    return _in_hydras_words(rest, base)


def imported(given: argparse.Namespace) -> None:
    """Load the modules of ``--import``, and those of the project that one works in."""
    from declog.config.project import load_imports

    load_imports()
    for name in given.modules or ():
        _import(name)


def _import(name: str) -> None:
    """Load a module that registers functions, reductions or sinks, found as ``python -m`` would find it."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise Wrong(f"--import {name}: {error}") from None


def _in_hydras_words(words: tuple[str, ...], base: Origin) -> Origin:
    from declog.config.overrides import Adds, in_hydras_words
    from declog.language.spec import SECTIONS, LogSpec

    adds: dict[str, Adds] = {key: "entries" if key in SECTIONS else "anything" for key in LogSpec.model_fields}
    return in_hydras_words(words, base, {**adds, "constants": "nothing"})


def _directory(name: str) -> Path:
    directory = Path(name).absolute()
    if not directory.is_dir():
        raise Wrong(f"there is no directory {name}", "--config-dir takes the folder that holds your `declog` folder")
    return directory


def _of_file(file: Path) -> Origin:
    """A profile in a file: a preset in a folder `declog`, one in any other folder, or an application's own."""
    from declog.config.loading import bounded
    from declog.config.provenance import Origin, chooses_profile

    if not file.is_file():
        beside = [each.name for each in file.parent.glob("*.y*ml")] if file.parent.is_dir() else []
        close = nearest(file.name, beside)
        raise Wrong(f"there is no file {file}", f"did you mean `{file.with_name(close)}`?" if close else None)
    if file.suffix != ".yaml":
        raise Wrong(f"Hydra reads files that end in .yaml, not {file.name}", f"mv {file} {file.with_suffix('.yaml')}")
    bounded(file)
    folder = file.absolute().parent
    if chooses_profile(file.read_text(encoding="utf-8", errors="replace")):
        return Origin(file.stem, (), folder, application=True)
    return Origin(file.stem, (), folder.parent if folder.name == "declog" else f"declog://{folder.as_posix()}")
