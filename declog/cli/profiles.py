"""The profile that a command line names: a preset, a YAML file or an application's configuration, with overrides.

The composer of ``declog.start`` makes it, with the same overrides.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from declog.cli import suggestions
from declog.cli.arguments import DIVIDER, Wrong

if TYPE_CHECKING:
    from declog.config.composed import Composed
    from declog.config.provenance import Origin

DEFAULT = "grpo"


def chosen(given: argparse.Namespace) -> Composed:
    """The configuration that the command line names; raises ``CompositionError``."""
    return configured(given, given.words)


def configured(given: argparse.Namespace, words: Sequence[str]) -> Composed:
    """The configuration that ``words`` name: a profile first, if one is named, then overrides."""
    from declog.config.compose import composed

    imported(given)
    return composed(replace(origin(given, words), imports=tuple(given.modules or ())))


def origin(given: argparse.Namespace, words: Sequence[str]) -> Origin:
    """What is to be composed, in Hydra's words."""
    from declog.config.compose import named, overridden, project_folder
    from declog.config.provenance import Origin

    names = [word for word in words if "=" not in word and word[:1] not in ("+", "~")]
    if DIVIDER in words:
        raise Wrong("`--` divides the two profiles of `declog diff`", "leave it out")
    if names != list(words[: len(names)]) or len(names) > 1:
        odd = next((name for place, name in enumerate(names) if place or name != words[0]), names[-1])
        raise Wrong(f"`{odd}` is no override", suggestions.override(odd, words))
    for word in words:
        if (found := re.match(r"\+*(config_name|config_dir|config_path)=(.*)", word)) is not None:
            option = "--config-name" if found[1] == "config_name" else "--config-dir"
            raise Wrong(f"`{found[1]}` is an option", f"{option} {found[2]}")
    if names and not names[0].strip():
        raise Wrong("the profile's name is empty", "leave the empty word out")
    name, rest = (names[0] if names else None), words[len(names) :]
    if given.config_name is None:
        return overridden(named(name or DEFAULT, given.config_dir), rest)
    if name is not None:
        raise Wrong(f"--config-name chooses the configuration, and `{name}` is no override", f"declog={name}")
    folder = project_folder(given.config_dir) or Path.cwd()
    if not folder.is_dir():
        raise Wrong(f"there is no directory {given.config_dir}", "--config-dir takes the folder of your configuration")
    return overridden(Origin(given.config_name, config_dir=folder, application=True), rest)


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
        fix = f"--import {name.removesuffix('.py').replace('/', '.')}" if name.endswith(".py") else None
        raise Wrong(f"--import {name}: {error}", fix) from None
