"""Hydra's exceptions as problems, each with a plain cause and a fix to paste.

Hydra stops at the first override that chooses no file, and names it in prose. Here each override is tried by itself, on
top of the good ones, so that all wrong ones are reported, each at its place. This code runs only after an error.
"""

from __future__ import annotations

import re
import shlex
import typing
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path as FilePath
from typing import Any

import yaml
from hydra.core.override_parser.types import Override

from declog.config.hydra import Loader, groups_of
from declog.config.origin import Origin
from declog.config.overrides import ADDS, parsed, pasted, quoted
from declog.config.packages import files_named, known_presets, notes
from declog.config.problems.file_errors import file_problem, first_line
from declog.config.problems.override_errors import Refused, problem_of, unreadable
from declog.config.search_path import GROUP, HYDRA_ERRORS
from declog.errors import CompositionError, Problem, Where, did_you_mean, elsewhere, nearest
from declog.language.keys import atoms, below, keys
from declog.language.spec import LogSpec
from declog.language.tree import Node, listed

_PROFILES = ("slim", "full")  # of every preset


def composition_error(loader: Loader, origin: Origin, error: Exception) -> CompositionError:
    """The error of an origin that ``loader`` could not compose: every wrong override, or else the problem in a file."""
    problems = []
    good = list(origin.choice)
    try:
        composition = origin.fold(loader, good)
    except HYDRA_ERRORS:
        unread = [problem for line in origin.overrides if (problem := unreadable(line)) is not None]
        return CompositionError(unread or [file_problem(loader, origin, error)])
    for line in origin.overrides:
        problem = unreadable(line, composition.tree) or _of_group(loader, origin, good, line, composition.tree)
        if problem is None:
            good.append(line)
        else:
            problems.append(problem)
    try:
        composition = origin.fold(loader, good)
    except Refused as refused:
        problems += refused.problems
    except HYDRA_ERRORS as other:
        error = other
    order = {line: index for index, line in reversed([*enumerate(origin.overrides)])}
    problems.sort(key=lambda problem: order.get(str(problem.source), -1))
    return CompositionError(problems or [file_problem(loader, origin, error, composition)])


def _data_in(text: str) -> Mapping[str, Any] | None:
    """The map that a text in YAML holds, in place of the name of a preset; None for any other text."""
    try:
        data = yaml.safe_load(text) if ":" in text else None
    except yaml.YAMLError:
        return None
    return data if isinstance(data, Mapping) else None


def unknown_preset(name: str, names: Sequence[str], directory: FilePath | None = None) -> Problem:
    """DL104 for an unknown preset. ``directory`` is the folder that was searched for the caller's own presets."""
    fix = known_presets(name, names)
    if (data := _data_in(name)) is not None:
        fix = f"give data, or write it into a file: declog.start({data!r})"
    elif files := files_named(name):
        fix = f"did you mean the file `{files[0]}`?"
    elif len(listed := name.strip(",").split(",")) > 1 and {*listed} <= {*names}:
        fix = f"a run has one config; of each by itself: declog check {' '.join(listed)}"
    elif name in _PROFILES:
        fix = f"what a preset shows is its profile: grpo profile={name}"
    elif name in keys(LogSpec):
        fix = f"a key is changed by {name}=VALUE"
    elif elsewhere.keys().get(name, "").startswith("sink_options"):
        fix = f"sinks are chosen by sinks=[{name}]"
    if directory is not None and directory.name == GROUP and (directory / f"{name}.yaml").is_file():
        fix = f"--config-dir {directory.parent.name}"
    elif directory is not None and (directory / f"{name}.yaml").is_file():
        fix = f"move {name}.yaml into a folder `{GROUP}` of that directory: presets are Hydra's group `{GROUP}`"
    elif FilePath(f"{name}.yaml").is_file():
        fix = f"did you mean the file `{name}.yaml`?"
    return Problem.of("DL104.preset", where=Where(name="config"), name=name, notes=notes(), fix=fix)


def nearest_key(root: Node, dotted: str) -> str | None:
    """The key nearest to a dotted key that the configuration lacks; None if it has this key, or no key is close."""
    keys = dotted.split(".")
    depth, node = root.deepest(keys)
    if depth == len(keys):
        return None
    if depth == 0 and root.at([GROUP, *keys]) is not None:
        return f"{GROUP}.{dotted}"
    close = nearest(keys[depth], map(str, node.entries))
    return ".".join([*keys[:depth], close, *keys[depth + 1 :]]) if close else None


def _of_group(loader: Loader, origin: Origin, good: list[str], line: str, tree: Node) -> Problem | None:
    """The problem of a sweep, or of an override that chooses files, on top of the ``good`` ones; else None."""
    override = parsed(line)
    assert override is not None
    key, value = override.key_or_group, line.partition("=")[2]
    if override.is_sweep_override():
        first, *rest = key.split(".")
        type_ = reduce(below, rest, LogSpec if first == GROUP else None)
        kinds = {typing.get_origin(atom) for atom in atoms(type_)}
        is_list, are_words = type_ is None or list in kinds, re.fullmatch(r"\w+(,\w+)+", value) is not None
        numbers = {*atoms(type_)} <= {bool, float, int, type(None)}
        decimal = re.fullmatch(r"-?\d+,\d+", value) is not None and float in atoms(type_)
        texts = [f"{key}={value.replace(',', '.')}"] * decimal
        is_text = type_ is None or not (numbers or kinds == {list} or are_words)
        is_group = loader.repository.group_exists(key)  # `declog=mine,acme`
        texts += [f"{key}=[{value}]"] * (is_list or is_group) + [f"{key}={quoted(value)}"] * is_text
        texts += [] if is_list else [f"--multirun {line}"]
        fix = "  or  ".join(text if text.startswith("--") else shlex.quote(text) for text in texts)
        return problem_of(line, "DL101.sweep", behind=True, value=value, fix=fix)
    if loader.repository.group_exists(key):
        try:
            loader.defaults(origin.root, [*good, line])
        except yaml.YAMLError as error:  # of the file that it chooses
            return file_problem(loader, origin, error)
        except HYDRA_ERRORS as error:
            return _group_problem(loader, origin, override, line, error)
        return None
    if "/" not in key and override.package is None:
        return None
    span = (line.find(key), line.find(key) + len(key))
    if (keys := key.split("/"))[0] == GROUP and tree.at(keys) is not None:
        return problem_of(line, "DL101.no_group", span, name=key, fix=line.replace(key, ".".join(keys), 1))
    return problem_of(line, "DL101.no_group", span, name=key, fix=did_you_mean(key, groups_of(loader), what="groups"))


def _group_problem(loader: Loader, origin: Origin, override: Override, line: str, error: Exception) -> Problem:
    """The problem of an override that chooses files: in the override, or in a file that it chooses."""
    group, value = override.key_or_group, override.value()
    options = loader.get_group_options(group)
    for name in listed(value):
        if isinstance(name, str) and name not in options:
            at = line.find(name, line.find("="))
            span = (at, at + len(name)) if at >= 0 else None
            if group == GROUP:
                fix = f"{group}.profile={name}" if name in _PROFILES else known_presets(name, options)
                return problem_of(line, "DL104.preset", span, name=name, notes=notes(), fix=fix)
            fix = did_you_mean(name, options, what="options")
            return problem_of(line, "DL101.default", span, group=group, name=name, fix=fix)
    if override.is_delete():
        return problem_of(line, "DL101.list_group", group=group)
    if "Multiple values for" in str(error):
        fix = pasted(line.lstrip("+").replace(f"@{group}=", "=", 1))
        return problem_of(line, "DL101.there_already", key=f"a choice of {group}", fix=fix)
    if "No match in the defaults list" in str(error):
        # Files of a group that is not a section of a config, such as packs, are merged into the config itself.
        in_config = group == GROUP or "@" in line.partition("=")[0] or group.removeprefix(f"{GROUP}/") in ADDS
        fix = f"+{line}" if in_config else f"+{line.replace(group, f'{group}@{GROUP}', 1)}"
        return problem_of(line, "DL101.not_chosen", (0, line.find("=")), group=group, fix=fix)
    problem = file_problem(loader, origin, error)
    return problem if problem.message_key != "DL101.hydra" else problem_of(line, "DL101.hydra", cause=first_line(error))
