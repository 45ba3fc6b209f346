"""The presets and the options of their groups: the source of each, and the files of its name that it hides.

The search path decides between files of one name: an application's own, then the shipped ones, then those of installed
packages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources.abc import Traversable
from itertools import takewhile
from pathlib import Path as FilePath
from typing import Any

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.plugins.config_source import ConfigSource

from declog.config.compose import presets, project_folder
from declog.config.composed import Composed
from declog.config.files import YamlLoader, source_path
from declog.config.hydra import config_loader, groups_of
from declog.config.overrides import pasted
from declog.config.problems.fix_trials import Check
from declog.config.search_path import GROUP, PROVIDER, ROOT, preset_folders, provider_of
from declog.distribution import NAME, VERSION
from declog.errors import Path, Problem, in_flow
from declog.language.keys import entries
from declog.language.notation import as_label, part_of
from declog.language.shorthand import long, signal_names
from declog.language.tree import Node, at, has, listed, map_at, over, tree_of


@dataclass(frozen=True)
class Option:
    """A file of a group. ``homes`` are the packages and folders that have a file of its name; the first is used."""

    group: str
    name: str
    homes: tuple[str, ...]
    help: str = ""


def options(config_dir: str | FilePath | None = None) -> list[Option]:
    """Every preset, and every option of its groups, by group and name."""
    loader = config_loader(project_folder(config_dir))
    return [_option(loader, group, name) for group in groups_of(loader) for name in loader.get_group_options(group)]


def _option(loader: ConfigLoader, group: str, name: str) -> Option:
    path = f"{group}/{name}"
    sources = [source for source in loader.get_sources() if source.available() and source.is_config(path)]
    file = source_path(sources[0], path) if sources else None
    return Option(group, name, tuple(map(home_of, sources)), "" if file is None else _first_comment(file))


def home_of(source: ConfigSource) -> str:
    """The package, with its version, or the folder that a source reads presets from."""
    package = source.path.partition(".")[0] if source.scheme() == "pkg" else None
    if PROVIDER in (source.provider, package):
        return f"{NAME} {VERSION}"
    if package is None:
        return source.path or source.provider
    for name in (source.provider, package):  # the presets of an entry point are provided by their distribution
        with suppress(PackageNotFoundError):
            return f"{name} {version(name)}"
    return package


def _first_comment(file: Traversable) -> str:
    """The help of a file: the first sentence of the comment at its top."""
    comment = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    text = " ".join(line.lstrip("# ").strip() for line in comment if "$schema" not in line)
    return text.partition(". ")[0].rstrip(".")


def _pack_of(signal: str) -> tuple[str, Node] | None:
    """The first pack by name, in installed packages, that declares a signal: its name and its keys."""
    files = sorted(file for _, folder in preset_folders() for file in (folder / GROUP / "packs").glob("*.yaml"))
    packs = ((file.stem, _layer(file.read_text("utf-8"))) for file in files)
    return next(((name, layer) for name, layer in packs if signal in signal_names(layer)), None)


def _by_length() -> Iterator[tuple[str, Node]]:
    """The shipped presets with their keys; those with the shortest names come first."""
    files = [file for _, folder in preset_folders() for file in (folder / GROUP).glob("*.yaml")]
    for file in sorted(files, key=lambda file: len(file.stem)):
        yield file.stem, _layer(file.read_text("utf-8"))


def _with_pack(pack: str) -> str | None:
    """The preset with the shortest name that has a pack; None if no preset has it."""
    for preset, layer in _by_length():
        choices = [choice for choice in layer.plain.get("defaults") or () if isinstance(choice, dict)]
        if any(pack in listed(choice.get("packs")) for choice in choices):
            return preset
    return None


def _in_phase(fix: str, problem: Problem, data: Mapping[str, Any]) -> str:
    """A fix that declares a signal, in the phase of its rows.

    That is the phase of parts of a completion, such as turns, whose signals the entry with an unknown signal reads,
    else the phase of the rewards. A phase of parts has the name that the config gives it.
    """
    entry = at(data, problem.path[:2]) if problem.code == "DL302" else None
    words, phases = {*re.findall(r"\w+", in_flow(entry))}, map_at(data, "signals")
    of_parts = {phase: part for phase in phases if (part := part_of(phase))}
    rewards = "rollout" if "rollout" in phases else "any"
    home = next((phase for phase in of_parts if words & {*map_at(phases, phase)}), rewards)
    for phase, part in of_parts.items():
        fix = fix.replace(f"signals: {{{part}s: {{", f"signals: {{{phase}: {{")
    return _ANY.sub(rf"signals: {{{home}: {{\1", fix)


def _preset_of(name: str) -> tuple[str, str, Node] | None:
    """The shipped preset that declares a signal or a metric, the word `signal` or `metric`, and the preset's keys.

    Presets with the shortest names come first.
    """
    for preset, layer in _by_length():
        if name in signal_names(layer):
            return preset, "signal", layer
        if (layer.plain.get("metrics") or {}).get(name) is not None:
            return preset, "metric", layer
    return None


@lru_cache(maxsize=64)  # each unknown name of a config reads all packs
def _layer(pack: str) -> Node:
    return long(tree_of(yaml.load(pack, YamlLoader) or {}))[0]


_BASES = re.compile(r"^defaults: *\[([\w, ]+?)(?:, *_self_)? *\]", re.MULTILINE)  # of a file that names presets only
_COMPARED = r""" *(==|!=|(not )?in\b) *[(\[]?\\?['"]"""  # behind a name that is compared with a text
_UNKNOWN_SIGNAL = ("DL302.signal", "DL302.limit", "DL302.undeclared")
_ANY = re.compile(r"signals: \{any: \{(\w+: (?:\{axis: )?(?:completion|group)\b)")


Fits = Callable[[str, Node], bool]  # whether a pack, by its name and its keys, adds no problem


def fitting(data: Mapping[str, Any], check: Check) -> Fits:
    """A function that tells whether a pack adds no problem to data, and tries each pack once.

    ``check`` returns the problems of data.
    """
    tried: dict[str, bool] = {}

    @cache
    def said() -> set[tuple[Path, str]]:
        return {(one.path, one.message) for one in check(data)}

    def fits(name: str, pack: Node) -> bool:
        if name not in tried:
            problems = check(over(pack, tree_of(data)).plain)
            tried[name] = all((one.path, one.message) in said() for one in problems)
        return tried[name]

    return fits


def declared(problem: Problem, config: Composed, fits: Fits) -> Problem:
    """The problem of an unknown signal that is near to none, with a fix that names the pack or the preset that has it.

    A pack that does not fit is not named. Also the problem of a preset that is named as a profile; others unchanged.
    """
    if problem.marked.isidentifier() and _is_label(problem.marked, config.data):
        problem = replace(problem, fix=as_label(problem.fix))
    if problem.fix is not None:
        problem = replace(problem, fix=_in_phase(problem.fix, problem, config.data))
    name = str(problem.facts.get("name"))
    of_profile = problem.message_key == "DL403.name" and problem.facts["noun"] == "profile"
    if of_profile and name in presets() and (problem.near is None or problem.path == ("profile",)):
        if _is_application(config):
            return replace(problem, fix=f"a preset is chosen by {GROUP}={name}\n{problem.fix}")
        extended = f"a preset is extended: defaults: [{name}, _self_]"
        first, second = (extended, problem.fix) if problem.near is None else (problem.fix, extended)
        return replace(problem, fix=f"{first}\n{second}")
    if problem.path[:1] == ("sinks",) and (sinks := _with_sinks(config)) is not None:
        return replace(problem, fix=f"sinks: {in_flow(sinks)}")
    line = next((line for line in config.overrides if line.startswith(f"+{GROUP}/packs=")), None)
    if problem.path == ("packs",) and line is not None:  # Hydra puts a group's files into a node of its name
        return replace(problem, fix=line.replace("packs=", f"packs@{GROUP}=", 1))
    if problem.message_key not in _UNKNOWN_SIGNAL or problem.near is not None:
        return problem
    if (home := _pack_of(name)) is None:
        to_declare = str(problem.fix).startswith("declare what you observe")
        return _of_a_preset(problem, name, config) if to_declare else problem
    pack, layer = home
    if not config.data.get("signals") and not _is_application(config) and (preset := _with_pack(pack)) is not None:
        extended = f"defaults: [{preset}, _self_], at the top: the preset `{preset}` has the signal `{name}`"
        return replace(problem, fix=f"{extended}\n{problem.fix}")
    fixes = [f"declare it: {in_flow(words)[1:-1]}" for words in _declarations(name, layer)]
    if fits(pack, layer):
        fixes.append(_extended(pack, name, config))
    return replace(problem, fix="\n".join(fixes)) if fixes else problem


def _with_sinks(config: Composed) -> list[str] | None:
    """The sinks of ``[+parquet]`` and those of the layer below it; None for a list without such a name."""
    layers = () if config.merged is None else config.merged.layers
    lists = [node.plain for layer in layers if (node := layer.at((*config.prefix, "sinks"))) is not None]
    if len(lists) < 2:
        return None
    before, said = map(listed, lists[-2:])
    if not any(str(name).startswith("+") for name in said):
        return None
    added = [str(name).removeprefix("+") for name in (*before, *said) if isinstance(name, str)]
    return [name for name in dict.fromkeys(added) if name[:1] != "-" and f"-{name}" not in added]


def _of_a_preset(problem: Problem, name: str, config: Composed) -> Problem:
    """The problem of an unknown signal that another preset has, or of a number per update, such as a loss."""
    home = _preset_of(name)
    number = home is not None and home[1] == "metric"
    if not number and not (_OF_UPDATES.search(name) and has(config.data, ("signals", "update"))):
        if home is None:
            return problem
        declarations = [in_flow(words)[1:-1] for words in _declarations(name, home[2])]
        if any("{axis: " in words for words in declarations):  # of a special kind, and its name may be of anything
            return problem
    else:
        phase = "update" if has(config.data, ("signals", "update")) else "any"
        declarations = [f"signals: {{{phase}: {{{name}: step}}}}, a number per step"]
    fixes = [f"declare what you observe: {words}" for words in declarations]
    if home is not None:
        preset, section, _ = home
        edit = f"{GROUP}={preset}" if _is_application(config) else f"defaults: [{preset}, _self_]"
        if not _is_application(config) and not any(provider_of(file) is None for file in config.provenance.texts):
            edit = f"`{preset}` in place of `{config.origin.config_name if config.origin else '...'}`"
        verb = "logs" if number else "has"
        fixes.append(f"the preset `{preset}` {verb} the {section} `{name}`: {edit}")
    return replace(problem, fix="\n".join(fixes))


_OF_UPDATES = re.compile(r"(^|_)(loss|losses|lr|learning_rate|grad|gradient)(_|$)")


def _declarations(signal: str, pack: Node) -> Iterator[dict[str, Any]]:
    """The declarations of a signal in a pack, in short; none if the pack derives the signal from others."""
    for phase, signals in (pack.plain.get("signals") or {}).items():
        said = (signals or {}).get(signal) or {}
        entry = {key: value for key, value in said.items() if key not in ("help", "from_log_extra")}
        if entry:
            words = " ".join(str(entry[key]) for key in ("axis", "type") if key in entry)
            yield {"signals": {phase: {signal: words if entry.keys() <= {"axis", "type"} else entry}}}


def _extended(pack: str, name: str, config: Composed) -> str:
    """The fix that adds a pack that has the signal ``name``."""
    files = config.provenance.texts
    extends = not files or any(provider_of(file) and FilePath(file).stem != ROOT for file in files)
    texts = [text for file, text in files.items() if provider_of(file) is None]
    bases = [match[1] for text in texts if (match := re.search(_BASES, text)) is not None]
    base = (bases[-1] if bases else "...") if extends else "grpo"  # a file that extends nothing forgot it
    if any(name in line for line in config.overrides):
        edit = f"+{GROUP}/packs@{GROUP}=[{pack}]" if _is_application(config) else f"packs=[{pack}]"
        return f"the pack `{pack}` has it: {pasted(edit)}"
    return f"the pack `{pack}` has it: defaults: [{base}, packs: [{pack}], _self_]"


def _is_label(name: str, data: Mapping[str, Any]) -> bool:
    """Whether a metric has a name in its `by`, or an expression compares this name with a text."""
    metrics = [entry for _, entry in entries(data, "metrics") if isinstance(entry, Mapping)]
    labels = {word for entry in metrics for word in re.findall(r"\w+", str(entry.get("by", "")))}
    return name in labels or re.search(rf"\b{name}{_COMPARED}", str(data)) is not None


def _is_application(config: Composed) -> bool:
    """Whether the config is a part of an application's configuration, not a file or a preset by itself."""
    return config.origin is not None and (config.origin.application or config.origin.running)
