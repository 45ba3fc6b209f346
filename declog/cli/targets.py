"""Finds the configs that a command line names: presets and files with overrides, folders, packages, jobs of a sweep.

The composer of ``declog.start`` composes them, and takes the same overrides.
"""

from __future__ import annotations

import argparse
import io
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from declog.cli import suggestions
from declog.cli.arguments import DIVIDER, Wrong, options
from declog.cli.output import hide

if TYPE_CHECKING:
    from declog.config.composed import Composed
    from declog.errors import Problem

DEFAULT = "grpo"
PACKAGE = "pkg://"
GROUP = "declog"
MOST_JOBS = 256


def is_name(word: str) -> bool:
    """Whether a word of a command line names a config and is not an override."""
    return "=" not in word and word[:1] not in ("+", "~")


def names_and_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into the leading names and the overrides; raise ``Wrong`` for a word that is neither."""
    if DIVIDER in words:
        raise Wrong("`--` divides the two configs of `declog diff`", "leave it out")
    names = list(itertools.takewhile(is_name, words))
    overrides = list(words[len(names) :])
    spaced = overrides[:1] == ["="]
    for name in names:
        strange = (
            not name.strip()
            or name[0] in suggestions.DASHES
            or re.fullmatch(rf"[\w.]+ *:(?!/).*(?<!\.yaml)(?<!\.yml)|{suggestions.CONDITION}", name)
        )
        if strange or spaced:
            wrong = names[-1] if spaced else name
            raise Wrong(f"`{wrong}` is no config", suggestions.override(wrong, words))
    if key := next((name for name in names[1:] if suggestions.is_key(name) and not Path(name).exists()), None):
        raise Wrong(f"`{key}` is no config", suggestions.override(key, words))
    if late_name := next((word for word in overrides if is_name(word)), None):
        raise Wrong(f"`{late_name}` is no override", suggestions.override(late_name, words))
    for word in overrides:
        if (match := re.match(r"\+*(config_name|config_dir|config_path)=(.*)", word)) is not None:
            option = "--config-name" if match[1] == "config_name" else "--config-dir"
            raise Wrong(f"`{match[1]}` is an option", f"{option} {match[2]}")
    return names, overrides


# -- one config


def chosen(args: argparse.Namespace) -> Composed:
    """The configuration that the command line names; raises ``CompositionError``."""
    return configured(args, args.words)


def configured(args: argparse.Namespace, words: Sequence[str], sides: Sequence[Sequence[str]] = ()) -> Composed:
    """The configuration that ``words`` name: at most one config, then overrides; one of ``sides`` that are compared."""
    from declog.config.compose import composed, named, overridden, project_folder
    from declog.config.origin import Origin

    imported(args)
    names, overrides = names_and_overrides(words)
    if len(names) > 1:
        raise Wrong(f"`{names[1]}` is no override", suggestions.override(names[1], words))
    if args.config_name is None:
        name = names[0] if names else DEFAULT
        origin = named(_config_of_run(name) or _committed(name) or name, args.config_dir)
    elif names:
        reason = f"--config-name chooses the configuration, and `{names[0]}` is no override"
        raise Wrong(reason, f"declog={names[0]}")
    else:
        folder = project_folder(args.config_dir) or Path.cwd()
        if not folder.is_dir():
            reason = f"there is no directory {args.config_dir}"
            raise Wrong(reason, "--config-dir takes the folder of your configuration")
        origin = Origin(args.config_name, config_dir=folder, application=True)
    config = composed(replace(overridden(origin, overrides), imports=tuple(args.modules or ())))
    hide(config.masked)
    problems = (_of_application(problem, args, sides or [words]) for problem in config.problems)
    return replace(config, problems=tuple(problems))


def _of_application(problem: Problem, args: argparse.Namespace, sides: Sequence[Sequence[str]]) -> Problem:
    """The problem of a config that needs its application, with the whole command as a fix; another one as it is."""
    from declog.config.compose import in_application

    if problem.message_key != "DL103.of_application":
        return problem
    flags = [f"--{name}" for name, value in vars(args).items() if value is True]
    of_sides = [
        [f"declog={Path(word).stem}" if is_name(word) else in_application(word) for word in side] for side in sides
    ]
    rest = " ".join([*options(args, config=False), *flags, " -- ".join(map(" ".join, of_sides))])
    return replace(problem, fix=f"{str(problem.fix).replace(' check ', f' {args.verb} ')} {rest}")


def imported(args: argparse.Namespace) -> None:
    """Import the modules of ``--import``, with the search path of ``python -m``, and the project's modules."""
    from declog.config.project import import_script, load_imports

    load_imports()
    if args.modules and "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in args.modules or ():
        try:
            import_script(name)
        except SystemExit:
            raise Wrong(f"--import {name} runs the script", 'end it in `if __name__ == "__main__": main()`') from None
        except ImportError as error:
            fix = f"--import {name.removesuffix('.py').replace('/', '.')}" if name.endswith(".py") else None
            raise Wrong(f"--import {name}: {error}", fix) from None


# -- a run


def _config_of_run(name: str) -> str | None:
    """The file of the config that a run started with; None if the name is no run's folder."""
    from declog.sinks.run_folder import CONFIG

    facts = _run(name)
    return None if facts is None else str(Path(name) / facts.get("config", CONFIG))


def run_named(words: Sequence[str]) -> tuple[Path, Mapping[str, Any]] | None:
    """The folder and the facts of the run that the first word names; None if it names no run."""
    names, _ = names_and_overrides(words)
    facts = _run(names[0]) if names else None
    return None if facts is None else (Path(names[0]), facts)


def _run(name: str) -> Mapping[str, Any] | None:
    """The facts of the run in a folder; None for any other name. The name of a preset is never a run's folder."""
    from declog.config.compose import presets
    from declog.sinks.run_folder import run_of

    facts = run_of(Path(name))
    return None if facts is not None and name in presets() else facts


# -- a commit


def _committed(name: str) -> str | None:
    """Copy the file of ``REV:FILE`` at that commit, with the other configs of its folder; None for any other word."""
    revision, colon, file = name.partition(":")
    if not colon or file.startswith("//") or not file.endswith((".yaml", ".yml")) or Path(name).exists():
        return None
    import tarfile

    parent = Path(file).parent
    folder = parent.parent if parent.name == GROUP else parent
    configs = f":(glob){(folder / '**').as_posix()}/*.y*ml"
    command = ["git", "archive", "--format=tar", revision, "--", file, configs]
    try:
        archive = subprocess.run(command, capture_output=True, check=True).stdout
    except OSError as error:
        raise Wrong(f"`{name}` needs git: {error.strerror}") from None
    except subprocess.CalledProcessError as error:
        text = error.stderr.decode(errors="replace").strip().splitlines()
        raise Wrong(f"git has no `{name}`: {text[0] if text else ''}", f"git log --oneline -- {file}") from None
    copy = tempfile.TemporaryDirectory(prefix=f"declog-{revision[:12].replace('/', '-')}-")
    _COPIES.append(copy)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(copy.name, filter="data")
    return str(Path(copy.name) / file)


def written(text: str) -> str:
    """Write a config to a temporary file, and return its path: a config in a file takes overrides."""
    copy = tempfile.TemporaryDirectory(prefix="declog-")
    _COPIES.append(copy)
    file = Path(copy.name) / "captured.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


_COPIES: list[tempfile.TemporaryDirectory[str]] = []  # kept until the process ends: errors quote lines of these files


# -- several configs


def targets(words: Sequence[str], *, sweep: bool = False) -> list[list[str]]:
    """The words of each config: its name, if any, and its overrides; ``sweep`` splits `every=1,2` into jobs."""
    names, overrides = names_and_overrides(words)
    configs = list(dict.fromkeys(config for name in names for config in _configs(name))) if names else [""]
    jobs = list(_jobs(overrides)) if sweep else [overrides]
    if len(configs) * len(jobs) > MOST_JOBS:
        raise Wrong(f"these are {len(configs) * len(jobs)} configs; at most {MOST_JOBS} are checked at once", "fewer")
    return [[*([name] if name else []), *job] for name in configs for job in jobs]


def _configs(name: str) -> Iterator[str]:
    """The configs that a name stands for.

    They are the configs of a folder or a package, the presets beside the folder of a group's option, or the name alone.
    """
    if name.startswith(PACKAGE) and "/" not in name.removeprefix(PACKAGE):
        yield from _of_package(name)
        return
    path = Path(name)
    if path.is_dir() and _config_of_run(name) is None:
        files = sorted({*path.glob(f"**/{GROUP}/*.yaml"), *(path.glob("*.yaml") if path.name == GROUP else ())})
        if not files:
            raise Wrong(f"{name} has no config: no `{GROUP}/NAME.yaml`", "give a YAML file, or a preset's name")
        yield from map(str, files)
        return
    above = path.parent.parent
    if path.is_file() and above.name == GROUP and path.parent.name != GROUP:  # an option of a group, such as a sink
        yield from map(str, sorted(above.glob("*.yaml")))
        return
    yield name


def _of_package(name: str) -> list[str]:
    from declog.config.search_path import folders_of

    module = name.removeprefix(PACKAGE)
    try:
        folders = folders_of(module)
    except (ImportError, ValueError) as error:
        raise Wrong(f"there is no package `{module}`: {error}", "install it: pip install -e .") from None
    stems = sorted(file.stem for folder in folders for file in (folder / GROUP).glob("*.yaml"))
    if not stems:
        fix = "it is installed, and its `conf` holds a folder `declog`: pkg://acme_logging.conf"
        raise Wrong(f"the package `{module}` has no `{GROUP}/NAME.yaml`", fix)
    return [f"{name}/{stem}" for stem in stems]


def _jobs(overrides: Sequence[str]) -> Iterator[list[str]]:
    """The overrides of each job of a sweep, split by Hydra's own sweeper."""
    from declog.config.overrides import parsed

    choices: list[list[str]] = []
    for word in overrides:
        override = parsed(word)
        if override is None or not override.is_sweep_override():
            choices.append([word])
            continue
        if not override.is_discrete_sweep():
            raise Wrong(f"`{word}` is no list of values", "key=1,2,4 or key=range(1,5)")
        key = word.partition("=")[0]
        choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
    yield from map(list, itertools.product(*choices))
