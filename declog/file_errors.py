"""Configuration files that Hydra cannot load: YAML that does not parse, defaults that do not exist.

Finds the file and the line where Hydra's message has neither. Used on errors only; imports Hydra.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.object_type import ObjectType
from hydra.errors import MissingConfigException
from hydra.plugins.config_source import ConfigSource
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from declog.diagnostics import LINE_BREAK, in_file, shown_path
from declog.errors import Excerpt, Problem, Where, did_you_mean
from declog.places import FilePlace
from declog.provenance import YAML_LOADER, keys_of_file, source_file, span
from declog.searchpath import GROUP


def first_line(error: Exception) -> str:
    """What a library says, without its advice: the first line of the message, or of its cause's."""
    lines = [line for each in (error, error.__cause__) if each is not None for line in str(each).splitlines()]
    told = next((line.strip() for line in lines if line.strip()), type(error).__name__)
    return told.rstrip(".")


def file_problem(loader: ConfigLoaderImpl, error: Exception) -> Problem:
    """What is wrong in the configuration files, with its place."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return _not_yaml(error, error.problem_mark)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file is not None:
        return _missing_default(loader, error, error.missing_cfg_file)
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return _bad_value(loader, cause, cause.full_key)
    return Problem("DL101", first_line(error))


# What PyYAML and OmegaConf say of a file, and what to do about it.
YAML_FIXES = (
    ("mapping values are not allowed", "quote the text: in YAML a colon and a space start a mapping"),
    ("found duplicate key", "keep one of the two"),
    ("'\\t'", "indent with spaces"),
    ("could not find expected ':'", "a key needs a colon and a space behind it"),
)


def _not_yaml(error: yaml.MarkedYAMLError, mark: yaml.Mark) -> Problem:
    cause = error.problem or first_line(error)
    fix = next((fix for told, fix in YAML_FIXES if told in cause), None)
    file = FilePath(mark.name)
    lines = LINE_BREAK.split(file.read_text(encoding="utf-8")) if file.is_file() else []
    line = lines[mark.line] if mark.line < len(lines) else None
    excerpt = None if line is None else Excerpt(str(mark.line + 1), line, mark.column, mark.column + 1)
    where = Where(shown_path(mark.name), mark.line + 1, mark.column + 1, excerpt=excerpt)
    return Problem("DL101", f"this is not valid YAML: {cause}", fix=fix, where=where)


def _missing_default(loader: ConfigLoaderImpl, error: Exception, missing: str) -> Problem:
    group, _, option = missing.rpartition("/")
    code = "DL104" if group == GROUP else "DL101"
    fix = did_you_mean(option, loader.get_group_options(group), what="presets" if group == GROUP else "options")
    problem = Problem(code, f"there is no `{option}` in the group {group}", fix=fix, source=option)
    parent = re.match(r"In '([^']+)'", str(error))
    for name, file, text in _files(loader):
        if parent is not None and name == parent[1]:
            for node in _defaults(text):
                if node.value.split("@")[0] == option:
                    place = FilePlace(file, None, span(node), node.style or "plain")
                    return replace(problem, where=in_file(problem, place, text))
    return problem


def _bad_value(loader: ConfigLoaderImpl, error: OmegaConfBaseException, key: str) -> Problem:
    path = tuple(re.findall(r"[^.\[\]]+", key))
    if isinstance(error, GrammarParseError):
        problem = Problem("DL103", first_line(error), path, fix="a text that holds ${ as it is needs \\${")
    else:
        problem = Problem("DL101", first_line(error), path)
    for _, file, text in _files(loader, failing=key):
        for here, place in keys_of_file(file, text):
            if tuple(map(str, here)) == path:
                return replace(problem, where=in_file(problem, place, text))
    return problem


def _defaults(text: str) -> Iterator[yaml.ScalarNode]:
    """The scalars of a file's defaults list."""
    root = yaml.compose(text, Loader=YAML_LOADER)
    entries = {key.value: value for key, value in root.value} if isinstance(root, yaml.MappingNode) else {}
    for entry in entries["defaults"].value if "defaults" in entries else ():
        values = [value for _, value in entry.value] if isinstance(entry, yaml.MappingNode) else [entry]
        for value in values:
            yield from value.value if isinstance(value, yaml.SequenceNode) else [value]


def _files(loader: ConfigLoaderImpl, failing: str | None = None) -> Iterator[tuple[str, str, str]]:
    """The files of declog's groups as (name, path, text); only those that fail to load at a key, if one is given."""
    for group in (GROUP, *(f"{GROUP}/{name}" for name in loader.list_groups(GROUP))):
        for source in loader.get_sources():
            options = source.list(group, ObjectType.CONFIG) if source.is_group(group) else []
            for name in (f"{group}/{option}" for option in options):
                found = source_file(source, name)
                if found is not None and (failing is None or _fails_at(source, name, failing)):
                    yield name, *found


def _fails_at(source: ConfigSource, name: str, key: str) -> bool:
    try:
        source.load_config(name)
    except OmegaConfBaseException as error:
        return error.full_key == key
    except yaml.YAMLError:
        return False
    return False
