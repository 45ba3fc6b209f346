"""What a run's folder says of the run: versions, where its parts come from, the commit, the config in effect.

Reads metadata of installed packages and asks git; nothing of the environment. Imports the plan and PyYAML.
"""

from __future__ import annotations

import functools
import json
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, entry_points, version
from os import getpid
from pathlib import Path
from typing import Any

import yaml

from declog.distribution import VERSION
from declog.language.origins import packages_of
from declog.plans.ops import Plan
from declog.plans.words import described
from declog.sinks import ENTRY_POINTS as SINKS
from declog.sinks import traits

GIT_S = 5.0
_DUMPER: Any = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper  # the same text, five times as fast


def facts(
    plan: Plan, run_id: str, world_size: int, modules: Iterable[str], packages: Iterable[str], overrides: Sequence[str]
) -> dict[str, Any]:
    """What is known when a run starts, as plain data.

    ``modules`` are those of the functions, reductions, columns and sinks that somebody registered, ``packages`` the
    distributions that gave presets.
    """
    manifest: dict[str, Any] = {
        "run_id": run_id, "name": plan.name, "started": now(), "host": socket.gethostname(), "pid": getpid(),
        "world_size": world_size, "fingerprint": plan.fingerprint, "declog": VERSION,
        "python": platform.python_version(), "torch": version_of("torch"),
        "packages": _packages(plan, frozenset(modules), packages), "overrides": list(overrides),
    }  # fmt: skip
    git = commit(str(Path.cwd()))
    return manifest if git is None else {**manifest, "git": git}


def now() -> str:
    """The time, with its zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def yaml_text(config: Mapping[str, Any]) -> str:
    """A configuration as YAML: of the config in effect, which `declog.start` takes as it is, or of the trainer."""
    text: str = yaml.dump(plain(config), Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=120)
    return text


def plan_text(plan: Plan, places: Mapping[str, str], mask: Callable[[str], str]) -> str:
    """What the plan logs as JSON, for those who read the run later. ``places`` are those of its metrics.

    ``mask`` takes out of a text what the environment gave.
    """
    return json.dumps(_masked(described(plan, places), mask), ensure_ascii=False, indent=1) + "\n"


def _masked(value: Any, mask: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _masked(item, mask) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, mask) for item in value]
    return mask(value) if isinstance(value, str) else value


def version_of(package: str) -> str | None:
    """The version of an installed package; None for a source tree that is not installed, and for what is not there."""
    return _version(package, tuple(sys.path))


@functools.cache  # reading the metadata of what is installed is a third of the time that a start takes
def _version(package: str, path: tuple[str, ...]) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@functools.cache
def _sinks(path: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The kinds of sinks that installed packages bring, each with the package."""
    return tuple((entry.name, entry.dist.name) for entry in entry_points(group=SINKS) if entry.dist is not None)


@functools.cache  # what this process runs was loaded when it began: later commits are not of this run
def commit(folder: str) -> dict[str, Any] | None:
    """The commit that is checked out in a folder, and whether tracked files differ from it; None if there is none."""
    head = _git(folder, "rev-parse", "HEAD")
    if head is None:
        return None
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": head, "dirty": None if status is None else bool(status)}


def _git(folder: str, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", folder, *words],
            capture_output=True, text=True, timeout=GIT_S, check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or one that takes too long
        return None
    return done.stdout.strip()


def _packages(plan: Plan, modules: frozenset[str], packages: Iterable[str]) -> dict[str, str | None]:
    """The distributions that gave something to the plan, by name, with their versions."""
    names = {*packages, *(package for op in plan.sinks if (package := traits(op.kind).package))}
    kinds = {op.kind for op in plan.sinks}
    names |= {package for kind, package in _sinks(tuple(sys.path)) if kind in kinds}
    tops = {module.partition(".")[0] for module in modules | {kind for kind in kinds if ":" in kind}}
    tops = {top.partition(":")[0] for top in tops} - {"declog", "__main__"} - sys.stdlib_module_names
    names |= {name for top in tops for name in packages_of(top)}
    return {name: version_of(name) for name in sorted(names)}


def plain(value: Any) -> Any:
    """What a safe YAML can say."""
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str | int | float | bool) else str(key): plain(item) for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
