"""Find lines of a config that have no effect, or another effect than they seem to, by the layers of its keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from pathlib import PurePosixPath
from typing import Any

from hydra.plugins.config_source import ConfigSource

from declog.config.compose import PACKAGE
from declog.config.composed import Composed
from declog.config.files import defaults_of, source_path
from declog.config.fold import choice_of
from declog.config.hydra import Files, file_of, read_by
from declog.config.origin import Origin
from declog.config.overrides import ADDS, pasted
from declog.config.presets import home_of
from declog.config.problems.diagnostics import in_file
from declog.config.search_path import GROUP, PROVIDER, provider_of, teams
from declog.config.source_map import FileLocation, Layer, Location, OverrideLocation, shown_path
from declog.config.uses import declared
from declog.config.yaml_lint import surprise, suspicious
from declog.errors import ConfigError, Path, Problem, Where, in_flow, nested
from declog.language.fixes.lists_as_maps import without_sink
from declog.language.fixes.tracker_names import id_of
from declog.language.fixes.wrong_ids import plain_id
from declog.language.keys import SECTIONS
from declog.language.tree import at, has, map_at
from declog.language.validation import validate

# Keys of entries. None of them is the name of an entry: beside an empty entry, such a key has lost its indentation.
_KEYS_OF_ENTRIES = frozenset({"expr", "where", "reduce", "formula", "axis", "kind", "above", "below", "schema"})
_DEFAULTS = re.compile(r"^[\"']?defaults[\"']?\s*:", re.MULTILINE)
_SELF = "_self_"
_SEVERAL = re.compile(r"\w[\"']?\s*(?:,|(?:#.*)?\n\s*-)")  # the defaults list may have several options


def lint(config: Composed, nulls: Iterable[Path]) -> list[Problem]:
    """All problems of a config that can be composed. ``nulls`` are the paths of nulls at keys that users name."""
    of_folders = [*outside_folders(config), *of_shells(config)]
    return [*surprises(config), *null_of_nothing(config, nulls), *of_folders, *clashes(config)]


def surprises(config: Composed) -> Iterator[Problem]:
    """Numbers with a zero in front (DL202), and words such as `on` as keys (DL204), if they are in effect."""
    files = {file for file, text in config.provenance.texts.items() if suspicious(text)}
    for path, layers in config.layers.items():
        location = layers[-1].location
        if not isinstance(location, FileLocation) or location.file not in files or config.deciding(path) != layers:
            continue
        if path[:2] != ("run", "config") and (meaning := surprise(location.written_key)) is not None:
            yield Problem("DL204", meaning[0], path, meaning[1])
        word = location.written_value if location.style == "plain" else ""
        if word[:1].isdigit() or word[:1] in ("-", "+"):
            meaning = surprise(word)
            yield from [] if meaning is None else [Problem("DL202", meaning[0], path, meaning[1])]


def null_of_nothing(config: Composed, nulls: Iterable[Path]) -> Iterator[Problem]:
    """Each `null` for an entry that no earlier layer has (DL201).

    A `null` that is written out in a file without ``defaults`` is right: there is no earlier layer, and composed data,
    such as a run's ``config.yaml``, has such nulls.
    """
    said: dict[Path, Problem] = {}
    for path in nulls:
        layers = config.layers.get(path, ())
        if path[0] == GROUP or not layers or not all(layer.null for layer in layers) or _is_of_composed(layers[-1]):
            continue
        if (problem := _of_null(config, path)) is not None:
            said.setdefault(problem.path, problem)  # of `{a, b}` there is one for both
    yield from said.values()


def _of_null(config: Composed, path: Path) -> Problem | None:
    """DL201 for a `null` that deletes nothing; None for a part of a value that is refused elsewhere."""
    above, name = path[:-1], path[-1]
    entries = at(config.data, above)
    if re.fullmatch(r"-?[\d.]+|[^()]*\).*|.*\([^()]*", str(name)):  # of a text that YAML cut, which is refused
        return None
    if not has(config.data, above):  # below a key that is not a text, which is refused
        return None
    if any(other != name and plain_id(str(other)) == name for other in entries):  # that key is refused
        return None
    if len(above) > 2 and all(value is None for value in entries.values()):  # `{a, b}`
        columns = above[0] == "schemas" and above[-1] == "values"
        fix = "drop it: any value is taken" if columns else "drop it, or give each a value"
        keys = f"{{{in_flow([*entries])[1:-1]}}}"
        return Problem.of("DL201.no_values", above, key=above[-1], keys=keys, fix=fix)
    names = {path_of_signal[-1]: path_of_signal for path_of_signal, _ in declared(config.data, "signals")}
    if above == ("signals",) and name in names:
        return Problem.of("DL201.no_phase", path, name=name, fix=in_flow(nested(names[name], None))[1:-1])
    if above == ("metrics",) and name in names:
        return Problem.of("DL201.empty_metric", path, name=name)
    beside = [
        str(other) for other, entry in entries.items()
        if entry is not None or not all(layer.null for layer in config.layers.get((*above, other), ()))
    ]  # fmt: skip
    what = ".".join(map(str, above))
    if len(path) == 2 and set(beside) & _KEYS_OF_ENTRIES:
        return Problem.of("DL201.entry_empty", path, name=name)
    if above == ("sink_options",) and name in (config.data.get("sinks") or ()):
        return Problem.of("DL201.deletes_sink", path, name=name, fix=without_sink(str(name), config.data))
    if id := id_of(str(name), entries):
        return Problem.of("DL201.deletes_output", path, name=name, what=what, id=id)
    return Problem.of("DL201.deletes_nothing", path, name=name, what=what, known=beside)


def _is_of_composed(layer: Layer) -> bool:
    """Whether a null is written out in a file that has no ``defaults``."""
    location = layer.location
    if not isinstance(location, FileLocation) or _DEFAULTS.search(location.text):
        return False
    return location.style is not None and location.written_value.strip() != ""


def outside_folders(config: Composed) -> Iterator[Problem]:
    """DL202 for each folder outside of the run's that an installed package's preset sets; a user's own file may."""
    for path, text in _folders(config.data):
        if PurePosixPath(text).is_absolute() or ".." in PurePosixPath(text).parts:
            package = config.package(path)
            if package is not None:
                yield Problem.of("DL202.outside", path, key=path[-1], text=text, package=package)


def of_shells(config: Composed) -> Iterator[Problem]:
    """DL202 for each folder with a word that only a shell replaces: the folder would have this word in its name."""
    for path, text in _folders(config.data):
        match = re.search(r"\$(\w+)" if path[0] == "sink_options" else r"\$(\w+)|^~(?=/|$)", text)
        if match is not None:
            fixed = f"{text[: match.start()]}${{oc.env:{match[1] or 'HOME'}}}{text[match.end() :]}"
            yield Problem.of("DL202.shell", path, source=text, span=match.span(), word=match[0], key=path[-1],
                             text=fixed)  # fmt: skip


def _folders(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """The folders that a config names, with their keys."""
    of_sinks = [("sink_options", str(name), "dir") for name in map_at(data, "sink_options")]
    paths: list[Path] = [("output_dir",), *of_sinks, ("run", "capture", "folder")]
    for path in paths:
        if isinstance(text := at(data, path), str):
            yield path, text


def clashes(config: Composed) -> Iterator[Problem]:
    """DL101 for each option in use that two installed packages ship: nothing decides between them."""
    origin = config.origin
    if origin is None or not config.layers or (composition := config.merged) is None:
        return
    installed = {PROVIDER, *(team.name for team in teams())}
    parents = {str(default.config_path): default.parent for default in composition.merged.defaults}
    for name, parent in parents.items():
        sources = [source for source in map(read_by, composition.repository.get_sources()) if source.is_config(name)]
        shipped: dict[FilePath, ConfigSource] = {}  # by their files: a package may be on the search path twice
        for source in sources:
            if source.scheme() == "pkg" or source.provider == PROVIDER:
                shipped.setdefault(FilePath(str(source_path(source, name))).resolve(), source)
        if len(shipped) > 1 and sources[0].provider in installed:  # `pkg://` and users' own files decide
            yield _clash(composition.repository, origin, name, parent, shipped)


def below_keys(config: Composed) -> Iterator[Problem]:
    """DL101 for each file with a preset of its own that a defaults list puts below a key: `- acme@metrics.acme`."""
    if not config.layers or (composition := config.merged) is None:
        return
    depth, below = len(config.prefix), {}  # by file and key
    for one in composition.merged.defaults:
        package = tuple(filter(None, str(one.package or "").split(".")))
        if package[:depth] == config.prefix and len(package) > depth:
            below[str(one.config_path), package[depth:]] = one
    shipped = {
        key for path, key in below if path.rpartition("/")[0] == GROUP
        and (file := file_of(composition.repository, path)) is not None and provider_of(file[0])
    }  # fmt: skip
    for (path, key), one in below.items():
        if key in shipped and (str(one.parent), key) not in below:
            name = path.rpartition("/")[2]
            problem = Problem.of("DL101.below_a_key", key, name=name, key=".".join(key), fix=f"- {name}")
            chosen = choice_of(composition.repository, one.parent, path)
            yield problem if chosen is None else replace(problem, where=in_file(problem, chosen))


def _clash(
    repository: Files, origin: Origin, name: str, parent: str | None, shipped: Mapping[FilePath, ConfigSource]
) -> Problem:
    """DL101 for an option of two packages; the fix for the requested preset is its full name in one of them."""
    preset = name.rpartition("/")[2]
    packages = " and by ".join(home_of(source) for source in shipped.values())
    chosen = choice_of(repository, parent, name)
    if chosen is None and name == f"{GROUP}/{origin.config_name}":
        places = [f"{PACKAGE}{source.path}/{preset}" if source.scheme() == "pkg" else str(file)
                  for file, source in shipped.items()]  # fmt: skip
        return Problem.of("DL101.two_packages", where=Where(name=f"preset `{preset}`"), name=name, packages=packages,
                          fix=f"name one of them: {' or '.join(places)}")  # fmt: skip
    fix = "uninstall one of them, or let its package call it something else"
    problem = Problem.of("DL101.two_packages", name=name, packages=packages, fix=fix)
    return problem if chosen is None else replace(problem, where=in_file(problem, chosen))


def overruled(config: Composed) -> Iterator[str]:
    """A warning for each own file that a preset behind it in a defaults list, or behind its `_self_`, overrides."""
    texts = config.provenance.texts
    for file, text in texts.items():
        choices = [*defaults_of(file, text)] if provider_of(file) is None and _SEVERAL.search(text) else []
        for index, choice in enumerate(choices[:-1]):
            itself = choice.option == _SELF
            setter = file if itself else _file_of(choice.name, texts)
            behind = [one for one in choices[index + 1 :] if one.option != _SELF]
            later = [one.option for one in behind if itself or one.group is None]
            winners = _extended(later, texts) - {file, setter}
            if not itself:
                winners = {winner for winner in winners if provider_of(winner) is not None}
            if setter is None or not (keys := [*_keys_of_both(config, setter, winners)]):
                continue
            shown = ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
            whose, where = ("this file says", "last") if itself else ("that says", "behind it")
            order = [one.option for one in (*choices[:index], *behind, choice)]
            order += [] if itself or _SELF not in [one.option for one in choices] else [_SELF]
            edit = f"write `{choice.option}` {where}: [{', '.join(order)}]"
            if not itself and any(map(provider_of, _extended([choice.name], texts))):  # the preset of each has all keys
                edit = f"a file for several presets extends none: drop that of `{choice.option}`, and {edit}"
            message = f"`{choice.option}` stands before `{later[0]}`, which overrides what {whose} of {shown}"
            yield f"{shown_path(file)}: {message}; {edit}"


def _file_of(option: str, texts: Mapping[str, str]) -> str | None:
    """The user's own file of an option of a defaults list; None for a shipped preset."""
    files = (file for file in texts if FilePath(file).stem == option and provider_of(file) is None)
    return next(files, None)


def _keys_of_both(config: Composed, setter: str, winners: Collection[str]) -> Iterator[str]:
    """The keys that a file sets and one of the ``winners`` sets after it, without those below such a key."""
    above: Path | None = None
    for path, (*before, last) in config.provenance.layers.items():
        set_here = setter in [layer.file for layer in before if layer.replaces]
        if set_here and last.replaces and last.file in winners and (above is None or path[: len(above)] != above):
            above = path
            yield ".".join(map(str, path[len(config.prefix) :]))


def beside_the_node(config: Composed) -> Iterator[str]:
    """A warning for the keys of a config that stand beside its node in an application's configuration.

    An application may have its own metrics and tables: a key in a file counts only if it reads as a part of a config.
    """
    if not config.prefix or not config.layers or config.merged is None:
        return
    setters: dict[str, list[Location]] = {}
    for path, layers in config.provenance.layers.items():
        if path[0] in ADDS:
            setters.setdefault(str(path[0]), []).extend(layer.location for layer in layers)
    beside: list[str] = []
    for name, locations in setters.items():
        lines = dict.fromkeys(location.text for location in locations if isinstance(location, OverrideLocation))
        if all(isinstance(location, OverrideLocation) for location in locations):
            for line in lines:
                added = f"{GROUP}.{line.lstrip('+')}"
                sign = "" if has(config.data, tuple(added.partition("=")[0].split(".")[1:])) else "+"
                yield f"`{line}` is nothing to declog, whose keys are below `{GROUP}`: {pasted(sign + added)}"
        elif (node := config.merged.tree.at((name,))) is not None and _reads_as_config(name, node.plain):
            beside.append(name)
    if beside:
        named, are = " and ".join(f"`{name}`" for name in beside), "are" if beside[1:] else "is"
        shown = ", ".join(f"{name}: ..." for name in beside)
        yield (
            f"{named} beside `{GROUP}:` {are} ignored, for `{GROUP}:` in the defaults is how an application names its "
            f"config: in a config write `defaults: [grpo, _self_]`, in an application's file `{GROUP}: {{{shown}}}`"
        )


def _reads_as_config(name: str, value: object) -> bool:
    """Whether a key and its value could be those of a config."""
    if name not in (*SECTIONS, "sinks", "sink_options", "every", "profile", "axes") or name == "constants" or not value:
        return False
    try:
        validate({name: value})
    except ConfigError:
        return False
    return True


def _extended(names: Iterable[str], texts: Mapping[str, str]) -> set[str]:
    """The files of options, and of all options that these extend."""
    files: set[str] = set()
    waiting = [name.partition("@")[0].rpartition("/")[2] for name in names]
    while waiting:
        name = waiting.pop()
        for file in [file for file in texts if FilePath(file).stem == name and file not in files]:
            files.add(file)
            waiting += [choice.name for choice in defaults_of(file, texts[file])]
    return files
