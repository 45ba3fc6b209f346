"""Problems of the overrides that Hydra refused in an application, as ``declog check`` finds them in the same words.

Called if the application has ended before its job began.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import yaml

from declog.config.compose import composed, presets
from declog.config.files import Choice, defaults_of, is_application
from declog.config.origin import Origin
from declog.config.overrides import ADDS, parsed, pasted, taken
from declog.config.problems.override_errors import problem_of, unreadable
from declog.config.quoting import depths
from declog.config.search_path import GROUP
from declog.errors import CompositionError, ConfigError, Problem

_OVERRIDE = re.compile(r"(\+{0,2}|~)[\w./@:\[\]*-]+\+?=|~[\w./@]+$")
_SWEEPS = frozenset(("-m", "--multirun"))


def problems(words: Sequence[str], started_with: Sequence[tuple[str, str]]) -> list[Problem]:
    """The problems of the overrides of declog in an application's command line.

    ``started_with`` is the place and the name of its primary configuration, or empty if it is unknown.
    """
    if "=" in words:
        at = words.index("=")
        text = " ".join(words[max(at - 1, 0) : at + 2])
        return [problem_of(text, "DL101.spaces", line=text.replace(" = ", "="))] if GROUP in text else []
    if (cut := _cut(words)) is not None:
        return [problem_of(cut, "DL101.spaces_inside", line=shlex.quote(cut))]
    lines = [word for word in words if _OVERRIDE.match(word)]
    sweeps = not _SWEEPS.isdisjoint(words)
    if sweeps and (unread := [problem for line in lines if (problem := _unreadable_sweep(line)) is not None]):
        return unread
    if not started_with:
        of_config = (line for line in lines if re.split(r"[^\w/]", line.lstrip("+~"))[0] in (GROUP, *ADDS))
        return [problem for line in of_config if (problem := unreadable(line)) is not None]
    folder, name = started_with[0]
    swept = {_first_of(line): line for line in lines if sweeps and _is_sweep(line)}
    lines = [*(line for line in lines if line not in swept.values()), *swept]
    try:
        composed(Origin(name, tuple(lines), config_dir=Path(folder.removeprefix("file://")), application=True))
    except (CompositionError, ConfigError) as error:
        refused = [problem for problem in error.problems if GROUP in problem.text()]
        return [_of_all_values(problem, swept) for problem in refused]
    return []


def answers(words: Sequence[str], folders: Sequence[str], started_with: Sequence[tuple[str, str]]) -> Iterator[Problem]:
    """The problems of what Hydra refused, each with what to type instead.

    Configs in the application's own folder count only if Hydra can read all words, which it does before it opens any
    file. ``folders`` are the application's folders in which a config of declog may lie.
    """
    unread = problems(words, ())
    chosen = [
        name for word in words if word.lstrip("+").startswith(f"{GROUP}=") for name in word.split("=")[1].split(",")
    ]
    beside = [] if unread else list(_among_configs(folders, started_with, chosen))
    yield from beside or problems(words, started_with) or unread


def _among_configs(
    folders: Sequence[str], started_with: Sequence[tuple[str, str]], chosen: Sequence[str]
) -> Iterator[Problem]:
    """The problem of a config of declog in an application's own folder, where Hydra does not find what it extends.

    A primary configuration that chooses its config elsewhere may have further configs beside it, used by their paths.
    Then only a config that it, or the command line, asks for by name (``chosen``) is out of place.
    """
    names, has_config = _reached(started_with)
    names |= {*chosen}
    for folder in (Path(folder.removeprefix("file://")) for folder in folders):
        for file in sorted(folder.glob("*.yaml"), key=lambda file: (file.stem not in names, file)):
            if has_config and file.stem not in names and folder.name != GROUP:
                continue
            extended = {choice.name for choice in _choices(file) if choice.group is None}
            if not any(name in presets() and not (folder / f"{name}.yaml").exists() for name in extended):
                continue
            if folder.name == GROUP:
                yield Problem.of("DL101.own_folder", folder=folder, parent=folder.parent.name)
            else:
                yield Problem.of("DL101.beside", file=file.name, folder=folder.name, name=file.stem)
            return


def _reached(started_with: Sequence[tuple[str, str]]) -> tuple[set[str], bool]:
    """The names of files that a primary configuration asks for, with its own, and whether it chooses a config."""
    names, has_config = set[str](), False
    waiting = [Path(folder.removeprefix("file://")) / f"{name}.yaml" for folder, name in started_with[:1]]
    while waiting:
        file = waiting.pop()
        names.add(file.stem)
        has_config |= is_application(file)
        for choice in _choices(file):
            if choice.name not in names:
                names.add(choice.name)
                waiting += [file.parent / f"{choice.name}.yaml"] if choice.group is None else []
    return names, has_config


def _choices(file: Path) -> list[Choice]:
    """The options of a file's defaults list; none if the file does not exist, or is not YAML."""
    with suppress(yaml.YAMLError, OSError):
        return list(defaults_of(str(file), file.read_text("utf-8", errors="replace")))
    return []


def _cut(words: Sequence[str]) -> str | None:
    """An override of declog that a shell cut at the spaces in its brackets, put together; None if it cut none."""
    for start, word in enumerate(words):
        for end in range(start + 1, len(words) + 1 if _OVERRIDE.match(word) and GROUP in word else 0):
            text = " ".join(words[start:end])
            if [*depths(text)][-1] == 0:
                return text if end > start + 1 else None
    return None


def primary(folders: Sequence[str], names: Sequence[str]) -> list[tuple[str, str]]:
    """The place and the name of a primary configuration: one of ``names``, or the only one that chooses a config.

    Needed if Hydra ends before it reads any file.
    """
    files = [file for folder in folders for file in Path(folder.removeprefix("file://")).glob("*.yaml")]
    files = [file for file in files if (file.stem in names if names else is_application(file))]
    return [(str(file.parent), file.stem) for file in files] if len(files) == 1 else []


def _unreadable_sweep(line: str) -> Problem | None:
    """The problem of a sweep over texts each of which needs quotes; None for any other override."""
    key, _, value = line.partition("=")
    ends = [at for at, depth in enumerate(depths(value)) if depth == 0 and value[at] == ","]
    texts = [value[start + 1 : end].strip() for start, end in pairwise([-1, *ends, len(value)])]
    fix = f"++{key.lstrip('+')}={','.join(map(taken, texts))}"
    if not ends or parsed(line) is not None or GROUP not in key or not _is_sweep(fix):
        return None
    return problem_of(line, "DL101.quotes", behind=True, value=value, fix=pasted(fix))


def _first_of(line: str) -> str:
    """The override of a sweep's first run."""
    override = parsed(line)
    assert override is not None
    return f"{line.partition('=')[0]}={next(iter(override.sweep_string_iterator()), '')}"


def _of_all_values(problem: Problem, swept: Mapping[str, str]) -> Problem:
    """The problem of a sweep's first run, whose fix has all values of the sweep where it ends with the first."""
    for first, line in swept.items():
        value, values = first.partition("=")[2], line.partition("=")[2]
        if first == problem.source and (fix := problem.fix) is not None and fix.endswith(f"={value}"):
            return replace(problem, fix=fix.removesuffix(value) + values)
    return problem


def _is_sweep(line: str) -> bool:
    override = parsed(line)
    return override is not None and override.is_sweep_override()
