"""What a config says to no effect, or to another than it looks; only the layers of a composed configuration tell.

They are read where something is suspicious, and else not. Imports Hydra, for the names of options.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path as FilePath
from pathlib import PurePosixPath
from typing import Any

from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigSource

from declog.config.compose import PACKAGE
from declog.config.composed import Composed
from declog.config.diagnostics import in_file, shown_path, written_key, written_value
from declog.config.files import defaults_of, keys_at_top, source_file
from declog.config.fold import choice_of
from declog.config.hydra import Files, config_loader, read_by, running_loader
from declog.config.interpolation import at
from declog.config.origin import Origin
from declog.config.presets import home_of, shipped_sources
from declog.config.search_path import (
    GROUP,
    HYDRA_ERRORS,
    PROVIDER,
    current_hydra,
    team_folders,
)
from declog.config.source_map import FilePlace, Layer, OverridePlace, Provenance
from declog.config.uses import declared, entries
from declog.config.yaml_lint import surprise, suspicious
from declog.errors import Path, Problem, Where
from declog.language.keys import SECTIONS

_NULL = ("", "~", "null", "Null", "NULL")
# Keys of entries, which nobody calls an entry: where they stand beside one that is empty, indentation was lost.
_KEYS_OF_ENTRIES = frozenset({"expr", "where", "reduce", "formula", "axis", "kind", "above", "below", "schema"})
_DEFAULTS = re.compile(r"^[\"']?defaults[\"']?\s*:", re.MULTILINE)
_SELF_FIRST = re.compile(r"\b_self_[\"']?\s*(?:,|(?:#.*)?\n\s*-)")  # something stands behind it


def lint(config: Composed, nulls: Iterable[Path]) -> list[Problem]:
    """All that is refused although it can be read. ``nulls`` are those at keys that users name."""
    found = (
        surprises(config),
        null_of_nothing(config, nulls),
        outside_folders(config),
        of_shells(config),
        clashes(config),
    )
    return [problem for problems in found for problem in problems]


def surprises(config: Composed) -> Iterator[Problem]:
    """Numbers with a zero in front (DL202), words as keys (DL204): those that are in effect."""
    if not any(suspicious(_text(file)) for file in config.own_files()) or (known := config.provenance) is None:
        return
    size = len(config.prefix)
    for path, layers in known.layers.items():
        place = layers[-1].place
        if path[:size] != config.prefix or known.find(path)[0] != path or not isinstance(place, FilePlace):
            continue
        below, text = path[size:], known.texts[place.file]
        if below[:2] != ("run", "config") and (odd := surprise(written_key(place, text))) is not None:
            yield Problem("DL204", odd[0], below, odd[1])
        word = written_value(place, text) if place.style == "plain" else ""
        if word[:1].isdigit() or word[:1] in ("-", "+"):
            odd = surprise(word)
            yield from [] if odd is None else [Problem("DL202", odd[0], below, odd[1])]


def null_of_nothing(config: Composed, nulls: Iterable[Path]) -> Iterator[Problem]:
    """Each `null` for an entry that no earlier layer has (DL201).

    In a file without ``defaults`` there is no earlier layer: a `null` that is written out says what there is not, as in
    a run's ``config.yaml``, or wherever composed data is kept.
    """
    paths = list(nulls)
    known = config.provenance if paths else None
    if known is None:  # a mapping: nobody knows what it was made of
        return
    for path in paths:
        layers = known.layers.get((*config.prefix, *path), ())
        if not layers or any(not _is_null(layer, known) for layer in layers) or _is_of_composed(layers[-1], known):
            continue
        above = path[:-1]
        names = {each[-1]: each for each, _ in declared(config.data, "signals")}
        if above == ("signals",) and path[-1] in names:
            *sections, name = names[path[-1]]
            fix = f"{sections[0]}: {{{': {'.join([*map(str, sections[1:]), str(name)])}: null{'}' * len(sections)}"
            yield Problem.of("DL201.no_phase", path, name=name, fix=fix)
            continue
        if above == ("metrics",) and path[-1] in names:
            yield Problem.of("DL201.empty_metric", path, name=path[-1])
            continue
        beside = [
            str(name)
            for name, entry in at(config.data, above).items()
            if entry is not None
            or any(not _is_null(layer, known) for layer in known.layers.get((*config.prefix, *above, name), ()))
        ]
        what = ".".join(map(str, above))
        if len(path) == 2 and set(beside) & _KEYS_OF_ENTRIES:
            yield Problem.of("DL201.entry_empty", path, name=path[-1])
            continue
        yield Problem.of("DL201.deletes_nothing", path, name=path[-1], what=what, known=beside)


def _is_of_composed(layer: Layer, known: Provenance) -> bool:
    """Whether a null is written out in a file that has no ``defaults``."""
    place = layer.place
    if not isinstance(place, FilePlace) or _DEFAULTS.search(text := known.texts[place.file]):
        return False
    return place.style is not None and written_value(place, text).strip() != ""


def _is_null(layer: Layer, known: Provenance) -> bool:
    place = layer.place
    if isinstance(place, FilePlace):
        return place.style is not None and written_value(place, known.texts[place.file]).strip() in _NULL
    if isinstance(place, OverridePlace):
        return place.text.startswith("~") or place.text.partition("=")[2].strip() in _NULL
    return False


def outside_folders(config: Composed) -> Iterator[Problem]:
    """DL202 for each folder outside of the run's that somebody else's preset sets: a user may, in a file of his own."""
    for path, text in _folders(config.data):
        if isinstance(text, str) and (PurePosixPath(text).is_absolute() or ".." in PurePosixPath(text).parts):
            package = config.package(path)
            if package is not None:
                yield Problem.of("DL202.outside", path, key=path[-1], text=text, package=package)


def of_shells(config: Composed) -> Iterator[Problem]:
    """DL202 for each folder with a word that only a shell replaces: it would be made under that very name."""
    for path, text in _folders(config.data):
        found = (
            re.search(r"\$(\w+)|^~(?=/|$)" if path[0] != "sink_options" else r"\$(\w+)", text)
            if isinstance(text, str)
            else None
        )
        if found is not None and isinstance(text, str):
            fixed = f"{text[: found.start()]}${{oc.env:{found[1] or 'HOME'}}}{text[found.end() :]}"
            yield Problem.of(
                "DL202.shell", path, source=text, span=found.span(), word=found[0], key=path[-1], text=fixed
            )


def _folders(data: Mapping[str, Any]) -> Iterator[tuple[Path, object]]:
    yield ("output_dir",), data.get("output_dir")
    for name, entry in entries(data, "sink_options").items():
        yield ("sink_options", str(name), "dir"), entry.get("dir") if isinstance(entry, Mapping) else None
    capture = entries(data, "run").get("capture")
    yield ("run", "capture", "folder"), capture.get("folder") if isinstance(capture, Mapping) else None


def clashes(config: Composed) -> list[Problem]:
    """The options in use that two installed packages ship: nobody could say which of them to use."""
    origin = config.origin
    if origin is None:
        return []
    with nullcontext() if origin.running else current_hydra():
        loader = running_loader() if origin.running else config_loader(origin.config_dir)
        shipped = [] if loader is None else list(shipped_sources(loader))
        if len({source.path for source, _ in shipped}) < 2:
            return []  # declog's own alone
        homes: dict[str, dict[str, ConfigSource]] = {}  # by their files: a package may be on the search path twice
        for source, group in shipped:
            for name in source.list(group, ObjectType.CONFIG):
                found = source_file(source, f"{group}/{name}")
                file = name if found is None else str(FilePath(found[0]).resolve())
                homes.setdefault(f"{group}/{name}", {}).setdefault(file, source)
        twice = {name: list(sources.values()) for name, sources in homes.items() if len(sources) > 1}
        if not twice:
            return []  # as good as always: which options a config uses takes Hydra a while to say
        try:
            composition = config.merged
        except HYDRA_ERRORS:
            return []
        assert composition is not None  # of what has an origin
        composed, repository = composition.merged, composition.repository
        installed = {PROVIDER, *(name for name, _ in team_folders())}
        problems = {}
        for each in composed.defaults:
            name = str(each.config_path)
            if name in twice:
                first = next(source for source in map(read_by, repository.get_sources()) if source.is_config(name))
                if first.provider in installed:  # `pkg://` and one's own files say which one
                    problems[name] = _clash(repository, origin, name, each.parent, twice[name])
        return list(problems.values())


def _clash(
    repository: Files, origin: Origin, name: str, parent: str | None, sources: Sequence[ConfigSource]
) -> Problem:
    """DL101 for an option of two packages: the preset that is asked for has a name in each, others stand in a file."""
    packages, preset = " and by ".join(str(home_of(source, None)) for source in sources), name.rpartition("/")[2]
    files = [source_file(source, name) for source in sources]
    places = [f"{PACKAGE}{source.path}/{preset}" if source.scheme() == "pkg" else file and file[0]
              for source, file in zip(sources, files, strict=True)]  # fmt: skip
    chosen = choice_of(repository, parent, name) if parent is not None else None
    if chosen is None and name == f"{GROUP}/{origin.config_name}":
        return Problem.of("DL101.two_packages", where=Where(name=f"preset `{preset}`"), name=name, packages=packages,
                          fix=f"name one of them: {' or '.join(map(str, places))}")  # fmt: skip
    fix = "uninstall one of them, or let its package call it something else"
    problem = Problem.of("DL101.two_packages", name=name, packages=packages, fix=fix)
    return problem if chosen is None else replace(problem, where=in_file(problem, *chosen))


def self_first(config: Composed) -> Iterator[str]:
    """A warning for each own file whose keys are overridden by what it extends, since `_self_` stands before that."""
    if not any(_SELF_FIRST.search(_text(file)) for file in config.own_files()) or (known := config.provenance) is None:
        return
    for file, text in known.texts.items():
        names = [option.value for _, option in defaults_of(text)] if _SELF_FIRST.search(text) else []
        later = names[names.index("_self_") + 1 :] if "_self_" in names else []
        winners = _extended(later, known.texts)
        lost: dict[str, str] = {}
        for path, layers in known.layers.items():
            *before, last = layers
            places = [layer.place for layer in before if layer.replaces]
            own = any(isinstance(place, FilePlace) and place.file == file for place in places)
            if own and isinstance(last.place, FilePlace) and last.replaces and last.place.file in winners - {file}:
                lost[".".join(map(str, path[len(config.prefix) :]))] = FilePath(last.place.file).stem
        if lost:
            keys = ", ".join(list(lost)[:3]) + (", ..." if len(lost) > 3 else "")
            message = f"`_self_` stands before `{later[0]}`, which overrides what this file says of {keys}"
            yield f"{shown_path(file)}: {message}; write `_self_` last: [{', '.join(later)}, _self_]"


def beside_the_node(config: Composed) -> Iterator[str]:
    """A warning for a file of presets that is read as an application's, since it chooses `declog:` in its defaults."""
    origin = config.origin
    folder = None if origin is None or not origin.application or origin.running else origin.config_dir
    file = FilePath(str(folder)) / f"{origin.config_name}.yaml" if origin is not None and folder is not None else None
    if file is None or file.parent.name != GROUP or not file.is_file():
        return
    lost = sorted(keys_at_top(_text(file)) & set(SECTIONS))
    if lost:
        names = ", ".join(f"`{name}`" for name in lost)
        place = shown_path(str(file))
        yield f"{place}: {names} beside `declog:` is no part of the config; write `defaults: [grpo, _self_]`"


def _extended(names: Iterable[str], texts: Mapping[str, str]) -> set[str]:
    """The files of options, and of all that these extend."""
    found: set[str] = set()
    waiting = [name.partition("@")[0].rpartition("/")[2] for name in names]
    while waiting:
        name = waiting.pop()
        for file in [file for file in texts if FilePath(file).stem == name and file not in found]:
            found.add(file)
            waiting += [option.value.partition("@")[0].rpartition("/")[2] for _, option in defaults_of(texts[file])]
    return found


def _text(file: FilePath) -> str:
    return file.read_text(encoding="utf-8", errors="replace")
