"""Shows the layers of a config, and where each key was set: `declog show --why KEY`, `--yaml` and `--key`.

``why`` prints the layers that set a key, in the order in which they were read; the last one wins. KEY is a key of the
config, the id of a metric or a signal, or a name that trackers see. For a run's folder, ``why`` also prints why a
metric had no values, and finds the metrics of ``declog add``. ``effective`` prints the YAML in effect, each value with
the file and line, or the override, that set it. Both print interpolations instead of values from the environment.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from declog.api import plan
from declog.cli.arguments import Wrong
from declog.cli.output import BOLD, DIM, answer, columns, paint, wrapped
from declog.cli.targets import configured, run_named
from declog.config.composed import Composed
from declog.config.search_path import package_of
from declog.config.source_map import FileLocation, Layer, OverrideLocation
from declog.config.uses import old_names, readers
from declog.errors import ConfigError, did_you_mean
from declog.errors import Path as Key
from declog.errors.visible import visible_lines
from declog.language.keys import NAMED, is_entry, keys
from declog.language.keys import entries as paths_of
from declog.language.model import Model
from declog.language.nodes import LOGGED
from declog.language.spec import LogSpec
from declog.language.tree import at, has
from declog.language.validation import validate
from declog.plans.ops import Plan
from declog.plans.words import described
from declog.records import names_of

COMMENTS_AT = 64  # comments of the YAML start at this column at the latest, or behind a longer line


def why(args: argparse.Namespace, config: Composed) -> None:
    """Print the layers of a key."""
    key: str = args.why
    folder, run = run_named(args.words) or (None, {})
    shown, plan = _shown(config), _plan(config)
    paths = list(_paths(shown, key, plan))
    late = _asked(folder) if folder is not None and not paths else {}
    if late:
        lines = [f"metrics.{name}={line}" for name, (line, _) in late.items()]
        config = configured(args, [*args.words, *lines])
        shown, plan = _shown(config), _plan(config)
        paths = list(_paths(shown, key, plan))
    if not paths:
        raise Wrong(f"nothing is called `{key}` in this config", _close(shown, key, plan))
    facts = []
    for path in paths:
        fact = _facts(shown, path, plan)
        name = str(path[-1]) if path[0] == "metrics" else None
        if name in run.get("missing", {}):
            fact["notes"].append(f"no values in this run: {run['missing'][name]}")
        if name in late:
            line, file = late[name]
            fact["layers"] = [{"place": file, "value": line, "package": ""}]
            fact.pop("keys", None)  # the layer's line shows them
            fact["notes"].append("asked late" + "; the job goes on with it" * (name in run.get("late", {})))
        facts.append(fact)
    answer(args, facts, ["\n\n".join(map(_text, facts))])


def _asked(folder: Path) -> Mapping[str | None, tuple[str, str]]:
    """The metrics of ``declog add``, by id: the YAML of each, and its file in the run's folder."""
    if not (folder / "late").exists():
        return {}
    from declog.late import asked

    questions = [(lines, str(file.relative_to(folder))) for file, lines in asked(folder)]
    return {name: (line, file) for lines, file in questions for name, line in lines.items()}


def _known_key(config: Composed, key: str) -> Key:
    """The path of a key of the config; raises ``Wrong`` for an unknown key."""
    path = _split(key)
    if not has(config.data, path):
        raise Wrong(f"this config has no key `{key}`", _close(config, key, None))
    return path


def _split(key: str) -> Key:
    parts = key.removeprefix("declog.").split(".")
    return tuple(int(part) if part.isdigit() else part for part in parts)


def _plan(config: Composed) -> Plan | None:
    """The plan; None if the config does not compile, because ``why`` shows the layers of such a config, too."""
    try:
        return plan(config)
    except ConfigError:
        return None


def _paths(config: Composed, key: str, plan: Plan | None) -> Iterator[Key]:
    """The paths that a word names: a key, entries with this id, the metric behind a name."""
    old = {**old_names(config.data, "signals"), **old_names(config.data, "metrics")}
    name = key.rpartition(".")[2]
    if (new := old.get(name)) is not None:
        raise Wrong(f"`{key}` is called `{new}` now", f"--why {key.removesuffix(name)}{new}")
    path = _split(key)
    deleted = [path for path in config.layers if path and not has(config.data, path)]  # a later layer deleted them
    if has(config.data, path) or path in deleted or _language_key(config.data, path) is not None:
        yield path
        return
    entries = [path for section in config.data for path, _ in paths_of(config.data, section)]
    entries += filter(is_entry, deleted)
    named = [path for path in entries if path[-1] == key]
    if plan is not None:
        declared = has(config.data, ("metrics", LOGGED))  # else the template of `log_metric` matches any name
        bare = _without_prefixes(key, plan)
        for op in plan.outputs:
            templates = [names_of(item.template) for item in op.names] if declared or op.id != LOGGED else []
            if op.key == key or any(re.fullmatch(template, name) for template in templates for name in bare):
                named.append(("metrics", op.id))
    yield from dict.fromkeys(named)


def _without_prefixes(name: str, plan: Plan) -> list[str]:
    """A tracker's name without the prefixes of modes and sinks."""
    modes = ["", *(mode.prefix for mode in plan.modes.values())]
    prefixes = {sink + mode for sink in ("", *(sink.prefix for sink in plan.sinks)) for mode in modes}
    return [name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)]


def _close(config: Composed, key: str, plan: Plan | None) -> str:
    """The fix for a word that names nothing: the nearest key, id or name."""
    paths = {path[:depth]: None for path, _ in _leaves(config.data) for depth in range(1, len(path) + 1)}
    names = [str(path[-1]) for path in paths if is_entry(path) or len(path) == 1]
    if "." in key or "/" in key:
        names += [".".join(map(str, path)) for path in paths]
        names += [] if plan is None else [name.template for op in plan.outputs for name in op.names]
    return did_you_mean(key, dict.fromkeys(names), what="keys")


# ---- the facts of a key ---------------------------------------------------------------------------------


def _facts(config: Composed, path: Key, plan: Plan | None) -> dict[str, Any]:
    """The facts of a key for programs; ``_text`` shows them."""
    there = has(config.data, path)
    value = at(config.data, path) if there else None
    layers = config.layers.get(path, ())
    if there and not layers:
        layers = config.deciding(path)
    help = ""
    if (key := _language_key(config.data, path)) is not None:
        default, help = key
        if not there and not layers:
            there, value = True, default
    facts = {
        "key": ".".join(map(str, path)), "value": value, "there": there,
        "layers": [
            {
                "place": str(layer.location.where), "value": _written_value(layer),
                "package": package_of(layer.file) or "",
            }
            for layer in layers
            if there or layer.rank
        ],
    }  # fmt: skip
    if isinstance(value, Mapping):
        below = (
            (".".join(map(str, inner)), leaf, _location(config, (*path, *inner))) for inner, leaf in _leaves(value)
        )
        facts["keys"] = [{"key": key, "value": leaf, "place": origin} for key, leaf, origin in below]
    facts["notes"] = [*([help] if help else []), *(_notes(config, path, plan) if is_entry(path) else ())]
    return facts


def _written_value(layer: Layer) -> str | None:
    """The value that a layer sets, as written; None for a map."""
    origin = layer.location
    if not layer.replaces:
        return None
    if isinstance(origin, OverrideLocation):
        return "deleted" if origin.text.startswith("~") else origin.text.partition("=")[2]
    if isinstance(origin, FileLocation):
        line = origin.written_value.split("\n")[0]
        return line.rstrip() + ("" if origin.value.one_line else " ...")
    return None


def _notes(config: Composed, path: Key, plan: Plan | None) -> Iterator[str]:
    """Facts of an entry in words: why it is inactive, its outputs, its observation, its readers."""
    section, name = "signals" if path[0] == "derived" else str(path[0]), str(path[-1])
    for what, why in plan.inactive if plan is not None else ():
        if what == f"{section}.{name}":
            yield f"inactive: {why}"
    if plan is not None:
        plain = described(plan)
        outputs = [output for output in plain["outputs"] if section == "metrics" and output["metric"] == name]
        yield from (f"{output['name']}: {output['words']}" for output in outputs)
        yield from dict.fromkeys(line for op in plan.outputs if outputs and op.id == name for line in op.about.lines)
        for phase in plain["phases"] if section == "signals" else ():
            for signal in phase["signals"]:
                if signal["name"] == name:
                    yield f"observed as {signal['source']} in the phase {phase['name']}, {signal['words']}"
    if section in NAMED:
        if used := readers(config.data, section, name):
            yield f"read by {', '.join(used)}"
        elif section == "signals":
            yield "nothing reads it"


def _text(facts: Mapping[str, Any]) -> str:
    value = facts["value"]
    shown = "" if isinstance(value, Mapping) else f" = {_value(value)}" if facts["there"] else " (not there)"
    lines = [paint(facts["key"], BOLD) + shown]
    packaged = any(layer["package"] for layer in facts["layers"])
    rows = [
        (layer["place"], layer["value"] or "", *([f"({layer['package']})".replace("()", "")] if packaged else []))
        for layer in facts["layers"]
    ]
    if len(rows) > 1 and rows[-1][1]:  # a map adds to the layers before it
        rows[-1] = (*rows[-1], "<- wins")
    lines.append(columns(rows, indent="  ") if rows else "  nobody set it: that is the default")
    if facts.get("keys"):
        keys = [(f".{key['key']}", _value(key["value"]), key["place"] or "") for key in facts["keys"]]
        lines.append(columns(keys, indent="  "))
    lines += [paint(wrapped(note, "  ", 2), DIM) for note in facts.get("notes", ())]
    return "\n".join(lines)


# ---- the YAML in effect ---------------------------------------------------------------------------------


def effective(args: argparse.Namespace, config: Composed) -> None:
    """Print the YAML."""
    shown = _shown(config)
    inactive: Mapping[str, str] = {}
    broken = None
    try:
        inactive = dict(plan(config).inactive)
    except ConfigError as error:
        codes = ", ".join(sorted({problem.code for problem in error.problems}))
        broken = paint(f"# this config does not compile ({codes}): `declog check` says what is wrong", DIM)
    chosen = [_known_key(shown, key) for key in args.key or ()]
    data = {".".join(map(str, path)): at(shown.data, path) for path in chosen} if chosen else shown.data
    paths = [path for path, _ in _leaves(shown.data) if any(path[: len(key)] == key for key in chosen or [()])]
    origins = {".".join(map(str, path)): _location(shown, path) for path in paths}
    lines = [line for path in chosen or [()] for line in _yaml(shown, path, inactive)]
    lines += [] if broken is None else [broken]
    answer(args, {"config": data, "origins": origins, "inactive": inactive}, lines)


def _yaml(config: Composed, path: Key, inactive: Mapping[str, str]) -> Iterator[str]:
    """The config, or one key of it, as YAML with a comment behind each value."""
    if path:
        rows = [("  " * depth + f"{key}:", "") for depth, key in enumerate(path[:-1])]
        rows += _rows(config, path, inactive)
    else:
        rows = [row for key in config.data if key != "tests" for row in _rows(config, (key,), inactive)]
        if tests := config.data.get("tests"):
            rows.append(("tests: ...", f"{', '.join(tests)}; shown with --key tests"))
    column = min(max((len(line) for line, comment in rows if comment), default=0), COMMENTS_AT)
    for line, comment in rows:
        yield f"{line:<{column}}  {paint(f'# {comment}', DIM)}" if comment else line


def _rows(config: Composed, path: Key, inactive: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The lines of a key and of all keys below it, each with its comment."""
    value = at(config.data, path)
    line = "  " * (len(path) - 1) + f"{path[-1]}:"
    section = "signals" if path[0] == "derived" else path[0]
    why = inactive.get(f"{section}.{path[-1]}") if is_entry(path) else None
    comment = "" if why is None else f"inactive: {why}"
    if isinstance(value, Mapping) and value:
        yield line, comment
        for key in value:
            yield from _rows(config, (*path, key), inactive)
        return
    written = at(config.written, path) if has(config.written, path) else value
    origin = _location(config, path) or ""
    if isinstance(written, str) and written != value:
        origin += f"  from {written}"
    yield f"{line} {_value(value)}", "; ".join(filter(None, (origin, comment)))


# ---- values and their layers -----------------------------------------------------------------------------


def _shown(config: Composed) -> Composed:
    """The config with its keys in the language's order, and interpolations instead of values from the environment."""
    order = [*keys(LogSpec), *config.shown]
    return replace(config, data=dict(sorted(config.shown.items(), key=lambda item: order.index(item[0]))))


def _location(config: Composed, path: Key) -> str | None:
    """The layer that decides a key, as file:line:column or as the override; None if unknown."""
    layers = config.deciding(path)
    return str(layers[-1].location.where) if layers else None


def _value(value: Any) -> str:
    """A value as one line of YAML."""
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
    return visible_lines(text.removesuffix("\n").removesuffix("\n..."))


def _language_key(data: Mapping[str, Any], path: Key) -> tuple[Any, str] | None:
    """The default and the description of a key; None if the language has no such key, or the config is not valid."""
    value: Any
    try:
        value, text = validate(data), ""
    except ConfigError:
        return None
    for key in path:
        if isinstance(value, Model) and (info := keys(type(value)).get(str(key))) is not None:
            value, text = vars(value)[info.name], info.help
        elif isinstance(value, Mapping) and key in value:
            value, text = value[key], ""
        else:
            return None
    return (value.model_dump() if isinstance(value, Model) else value), text


def _leaves(data: Mapping[str, Any], path: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every key that holds a value, lists and empty maps included, in order."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value
