"""The facts in a run's folder: versions, the packages of its parts, the commit, and the effective config.

This module reads metadata of installed packages and asks git. It stores no environment variables.
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
from importlib.metadata import PackageNotFoundError, version
from os import getpid
from pathlib import Path
from typing import Any

import yaml

from declog.distribution import VERSION, entry_points
from declog.language.origins import packages_of
from declog.plans.ops import Plan
from declog.plans.words import described
from declog.sinks import ENTRY_POINTS as SINKS
from declog.sinks import traits

GIT_S = 5.0
# libyaml's dumper writes the same text, five times as fast
_DUMPER: Any = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper


def facts(
    plan: Plan, run_id: str, world_size: int, modules: Iterable[str], packages: Iterable[str], overrides: Sequence[str]
) -> dict[str, Any]:
    """Return the facts about a run at its start, as plain data.

    ``modules`` registered the plan's functions, reductions, columns and sinks; ``packages`` are the distributions that
    provided presets.
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
    """The current time, with its time zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def yaml_text(config: Mapping[str, Any]) -> str:
    """A configuration as YAML: the effective config, which `declog.start` takes, or the trainer's."""
    text: str = yaml.dump(plain(config), Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=120)
    return text


def plan_text(plan: Plan, places: Mapping[str, str], mask: Callable[[str], str]) -> str:
    """Return the plan as JSON, for later readers of the run.

    ``places`` has the location where each metric is declared. ``mask`` removes values of the environment from a text.
    """
    return json.dumps(_masked(described(plan, places), mask), ensure_ascii=False, indent=1) + "\n"


def _masked(value: Any, mask: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _masked(item, mask) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, mask) for item in value]
    return mask(value) if isinstance(value, str) else value


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not installed, for instance in a source tree."""
    return _version(package, tuple(sys.path))


@functools.cache  # reading the metadata of installed packages is a third of the time of a start
def _version(package: str, path: tuple[str, ...]) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@functools.cache  # read once: this process runs the code of the commit at its start, not of later commits
def commit(folder: str) -> dict[str, Any] | None:
    """The commit that is checked out in a folder, and whether tracked files differ from it; None if git finds none."""
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
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or git takes too long
        return None
    return done.stdout.strip()


def _packages(plan: Plan, modules: frozenset[str], packages: Iterable[str]) -> dict[str, str | None]:
    """The distributions that provided parts of the plan, with their versions."""
    names = {*packages, *(package for op in plan.sinks if (package := traits(op.kind).package))}
    kinds = {op.kind for op in plan.sinks}
    names |= {entry.dist.name for entry in entry_points(SINKS) if entry.name in kinds and entry.dist is not None}
    tops = {module.partition(".")[0] for module in modules | {kind for kind in kinds if ":" in kind}}
    tops = {top.partition(":")[0] for top in tops} - {"declog", "__main__"} - sys.stdlib_module_names
    names |= {name for top in tops for name in packages_of(top)}
    return {name: version_of(name) for name in sorted(names)}


def plain(value: Any) -> Any:
    """Return a value as safe YAML can hold it; values of other types become texts."""
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str | int | float | bool) else str(key): plain(item) for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
