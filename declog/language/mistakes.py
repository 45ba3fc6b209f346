"""Common mistakes of a config's shape, and the edit that works for each: keys of other tools, values in another form.

Problems in, problems with a better fix out. Imports models and errors only.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from declog.errors import Path, Problem, elsewhere, in_flow, nearest
from declog.errors.elsewhere import SYNONYMS
from declog.language.keys import SECTIONS, below, entries, keys, model_of, sections_with
from declog.language.model import Scalar
from declog.language.notation import is_reduction, reduced
from declog.language.spec import AboutSpec, LogSpec, MetricSpec, RunSpec, SignalSpec
from declog.language.spec_of_tables import ColumnType

EXTENDS = ("extends", "extend", "base", "_base_", "inherit", "inherits", "parent", "preset", "include", "from")


def answered(problem: Problem, data: Mapping[str, Any]) -> Problem:
    """A problem with a better fix, if its key is a common mistake: a key of another section, or a lost indentation."""
    if problem.code == "DL202" and (fix := _in_one_form(problem.path, data)) is not None:
        return replace(problem, path=problem.path[:3], fix=fix)
    if problem.code == "DL201" and len(problem.path) == 3 and (moved := _MOVED.get(str(problem.path[0]))) is not None:
        section, name, word = map(str, problem.path)
        if section == "metrics" and _is_signal(word, data) and is_reduction(str(data[section][name][word]), 1):
            return replace(problem, fix=f"expr: {word}, reduce: {data[section][name][word]}")
        if (fix := moved(word, name, data[section][name])) is not None:
            return replace(problem, fix=fix)
    if problem.code == "DL201" and (fix := _of_other_tools(problem.path, data)) is not None:
        return replace(problem, fix=fix)
    key = str(problem.path[0]) if len(problem.path) == 1 or problem.path[0] == "sinks" else None
    if key is None:
        return problem
    if problem.code == "DL202" and key == "sinks":
        return Problem.of("DL202.sinks", problem.path, fix=as_sinks(data["sinks"]))
    if problem.code == "DL202" and key in SECTIONS:
        section = data[key]
        if isinstance(section, str) and (entry := re.match(r"([a-z_]\w*)(?::(?=\S)| *= *)(.*)", section)):
            return replace(problem, source=section, fix=f"a key needs a colon and a blank: `{entry[1]}: {entry[2]}`")
        if isinstance(section, str) and key == "profiles":
            return Problem.of("DL202.profile", "profiles", name=section)
        shown = as_map(key, section)
        return replace(problem, fix=f"signals: {{any: {shown}}}" if key == "signals" else f"{key}: {shown}")
    if problem.code != "DL201":
        return problem
    empty = [section for section in SECTIONS if section in data and data[section] is None]
    if key == "declog":
        fix = "write its keys at the top, without `declog:`; in a defaults list a preset is `grpo`, not `/declog/grpo`"
        return replace(problem, fix=fix)
    if key == "per_rank":
        return replace(problem, fix=f"axes: {{rank: {'each' if data[key] else 'all'}}}")
    if key in sinks_and_options(data.get("sinks") or [])[0]:
        return replace(problem, fix=f"sink_options: {{{key}: {in_flow(data[key])}}}")
    if data[key] is None and set(data) == {key}:  # a file with one word
        return replace(
            problem, fix=f"a preset is extended by `defaults: [{key}, _self_]`; a key has a value: `{key}: ...`"
        )
    if key in EXTENDS:
        base = data[key] if isinstance(data[key], str) else ", ".join(map(str, data[key] or ["grpo"]))
        return replace(problem, fix=f"defaults: [{base}, _self_]")
    if key == "defaults":
        return replace(
            problem,
            fix="a defaults list stands at the top of a YAML file, outside of `declog:`; start with that file's path",
        )
    if nearest(key, ["defaults"]):
        return replace(problem, fix="did you mean `defaults`?")
    if key in ("packs", "pack"):
        packs = in_flow(data[key] if isinstance(data[key], list) else [data[key]]).replace(" ", "")
        listed = f"defaults: [grpo, packs: {packs}, _self_]"
        return replace(problem, fix=f"a pack is chosen in the defaults list: {listed}, or +declog/packs@declog={packs}")
    if key in keys(RunSpec) or key == "run_config":
        return replace(problem, fix=f"run: {{{in_flow({key.removeprefix('run_'): data[key]})[1:-1]}}}")
    if empty and nearest(key, keys(LogSpec)) is None and isinstance(data.get(key), str | Mapping):
        return replace(problem, fix=f"indent it below `{empty[-1]}:`, which is empty here")
    if nearest(key, keys(LogSpec)) is not None:
        return problem
    if (fix := _elsewhere(key, data[key])) is not None:
        return replace(problem, fix=fix)
    is_metric = isinstance(data[key], str) and (is_reduction(data[key], 1) or reduced(data[key]) is not None)
    if is_metric or key in {
        str(path[-1]) for section in ("signals", "derived", "metrics") for path, _ in entries(data, section)
    }:
        return replace(problem, fix=f"metrics: {{{key}: {in_flow(data[key])}}}")
    if isinstance(data[key], Scalar):
        how = f"run: {{config: {{{key}: {in_flow(data[key])}}}}}, which records it with the run"
        return replace(problem, fix=f"{how}\n{problem.fix}")
    return problem


def application(data: Mapping[str, Any]) -> Problem | None:
    """The problem of an application's configuration without a node ``declog``: no key is nearly one of a config."""
    if len(data) < 2 or any(_of_a_config(name, value) for name, value in data.items()):
        return None
    return Problem.of("DL201.application", keys=", ".join(f"`{name}`" for name in list(data)[:5]))


def _is_signal(name: str, data: Mapping[str, Any]) -> bool:
    return any(path[-1] == name for section in ("signals", "derived") for path, _ in entries(data, section))


def _of_a_config(key: str, value: Any) -> bool:
    """Whether a key is, or seems to be meant as, one of a logging config."""
    if key in {*keys(LogSpec), *EXTENDS, *elsewhere.keys(), "defaults", "declog", "packs", "pack"}:
        return True
    if isinstance(value, str) and (is_reduction(value, 1) or reduced(value) is not None):
        return True
    near = nearest(key, [*keys(LogSpec), "defaults"])
    return near is not None and key != "model" and isinstance(value, Mapping if near in SECTIONS else Scalar)


def _of_other_tools(path: Path, data: Mapping[str, Any]) -> str | None:
    """What to write for a key of another tool, such as `limit` of a table; None where nobody knows it."""
    section, *ids, key = map(str, path) if len(path) > 1 else ("", str(path[0]))
    section = "filters" if ids[1:] == ["filter"] else section
    template = elsewhere.keys().get(f"{section}.{key}" if section else key)
    if template is None:
        return None
    value: Any = data
    for word in path:
        value = value[word]
    return template.replace("<value>", in_flow(value)).replace("<id>", "".join(ids[:1]))


def _elsewhere(key: str, value: Any) -> str | None:
    """Where a key stands that is not one of the top: `group_size` is `size` of `axes.group`, `expr` is of a metric."""
    first, _, last = ("group_size" if SYNONYMS.get(key) == "size" else key).partition("_")
    for section in keys(LogSpec):
        model = model_of(below(LogSpec, section))  # of a section with fixed keys, such as `axes`
        for name in () if model is None else keys(model):
            inner = model_of(below(model, name))
            word = last if name == first else key
            if inner is not None and word in keys(inner):
                return f"{section}: {{{name}: {{{word}: {in_flow(value)}}}}}"
    homes = sections_with(key)
    return f"it is a key of an entry: {homes[0]}: {{my_id: {{{key}: {in_flow(value)}}}}}" if homes else None


def _moved_of_metric(key: str, name: str, entry: Mapping[str, Any]) -> str | None:
    """The fix for a key that a metric does not have: its right section, or the key for the same purpose."""
    if (word := SYNONYMS.get(key, key)) in keys(AboutSpec):
        return f"about: {{{name}: {{{word}: {in_flow(entry.get(key))}}}}}"
    if key == "type" and is_reduction(str(entry[key]), 1):
        return f"reduce: {entry[key]}"
    if key in _OBSERVED and key != "mask":
        signal = {word: value for word, value in entry.items() if word in _OBSERVED}
        return f"observe: {signal['axis'] if [*signal] == ['axis'] else in_flow(signal)}"
    from declog.language.functions import BUILTIN  # numpy, which composing alone needs not

    if key in BUILTIN.names() and entry[key] is not None:
        further: list[Any] = entry[key] if isinstance(entry[key], list) else [entry[key]]
        arguments = ", ".join(map(str, [entry.get("expr", name), *further]))
        return f"expr: {in_flow(f'{key}({arguments})')}"
    return None


def _moved_of_alert(key: str, name: str, entry: Mapping[str, Any]) -> str | None:
    """The fix for `metric` of an alert: bounds are for the metric with the alert's id."""
    if key != "metric":
        return None
    if (metric := entry[key]) == name:
        return "drop it: an alert is about the metric of its name"
    signs = {"above": ">", "below": "<"}
    when = " or ".join(f"{metric} {sign} {entry[bound]}" for bound, sign in signs.items() if bound in entry)
    return f"{name}: {{when: {when or f'{metric} > 0.2'}}}"


_OBSERVED = keys(SignalSpec).keys() - keys(MetricSpec).keys()  # keys of a signal, beside `expr` and `reduce`


def _moved_of_filter(word: str, name: str, entry: Mapping[str, Any]) -> str | None:
    """`sort: length, limit: 4` is `key: length, top: 4`: an order alone takes no rows."""
    if SYNONYMS.get(word) != "key" or "key" in entry or word in ("top", "bottom"):
        return None
    count = entry.get("limit") or 4
    where = {"where": entry["where"]} if "where" in entry else {}
    chosen = in_flow({**where, "key": entry[word], "top": count})
    return f"{name}: {chosen}  or  `bottom: {count}` for the smallest"


# by section: what to write for a key that is said elsewhere
_MOVED = {"metrics": _moved_of_metric, "alerts": _moved_of_alert, "filters": _moved_of_filter}


def _in_one_form(path: Path, data: Mapping[str, Any]) -> str | None:
    """The fix for a value in another form than its key takes: a map for a list, or a list for a map."""
    section, name, key = (*map(str, path[:3]), "", "", "")[:3]
    value = data[section]
    for word in (name, key):
        value = value.get(word) if isinstance(value, Mapping) else None if word else value
    if section == "alerts" and name and not key and isinstance(value, int | float) and not isinstance(value, bool):
        return f'{name}: "> {value}"'
    if section == "alerts" and name and not key and isinstance(value, list):
        bounds = [match for item in value if (match := re.fullmatch(r"(above|below)[ :=]*(\S+)", str(item)))]
        return f"{name}: {{{', '.join(f'{match[1]}: {match[2]}' for match in bounds)}}}" if bounds else None
    if section == "axes" and not key and isinstance(value, int):
        return f"group: {{size: {value}}}"
    if section == "modes" and name and not key and isinstance(value, Scalar) and value is not False:
        return f"{name}: {{prefix: {name}/}}"
    if section == "metrics" and name and not key and isinstance(value, list) and len(value) > 1:
        *reductions, expr = value
        return f"{name}: {{expr: {in_flow(expr)}, reduce: {in_flow(reductions)}}}"
    if section == "tables" and not key and isinstance(value, list):
        return f"{name}: {{columns: {in_flow(value)}}}"
    if section == "filters" and not key and isinstance(value, str):
        return f"{name}: {{where: {in_flow(value)}}}"
    if section == "metrics" and key == "over" and value in ("token", "completion", "group"):
        expr = data[section][name].get("expr", name)
        return f"expr: {in_flow(f'mean({expr}, over={value})')}: `over` of a metric says which steps or ranks it covers"
    if section == "metrics" and key == "reduce" and isinstance(value, Mapping):
        return f"reduce: {in_flow([text if suffix == text else {suffix: text} for suffix, text in value.items()])}"
    if section == "metrics" and key == "alias" and not isinstance(value, list):
        return f"alias: {in_flow([*value.values()] if isinstance(value, Mapping) else [value])}"
    if section == "tables" and key == "to" and isinstance(value, str | list):
        return f"to: {in_flow(dict.fromkeys(value if isinstance(value, list) else [value], True))}"
    if section == "tables" and key == "filter" and isinstance(value, list):
        return f"filter: {in_flow(value[0])}, and a table of its own for each further filter"
    if section == "schemas" and not key and isinstance(value, list):
        return f"{name}: {in_flow(_columns(value))}"
    if section == "tables" and key in ("columns", "schema") and isinstance(value, Mapping | list):
        columns = value if isinstance(value, Mapping) else _columns(value)
        return f"schemas: {{{name}: {in_flow(columns)}}}   and in the table `schema: {name}`"
    if section == "schemas" and isinstance(value, str):
        type_ = nearest(value, typing.get_args(ColumnType))
        return f"{key}: {type_}" if type_ else f"{key}: {{expr: {in_flow(value)}}}"
    return None


def _columns(items: Iterable[Any]) -> dict[str, Any]:
    """The columns of a list of names and of maps, as a schema: a name alone is a signal's."""
    columns: dict[str, Any] = {}
    for item in items:
        columns.update([(item, {})] if isinstance(item, str) else filter(None, [_entry("schemas", item)]))
    return columns


def as_map(section: str, value: Any) -> str:
    """A word, a list of words, or of maps with their names in them, as a map in flow style with an id for each."""
    listed = [value] if isinstance(value, str) and section in ("signals", "metrics", "alerts") else value
    entries = [_entry(section, item) for item in listed] if isinstance(listed, list) else []
    named = [entry for entry in entries if entry is not None]
    shown = [f"{id}: {in_flow(entry)}" for id, entry in named[:3] if len(named) == len(entries)]
    return "{" + ", ".join(shown or ["my_id: ..."]) + ", ..." * (len(shown) == 3 < len(entries)) + "}"


def sinks_and_options(value: Any) -> tuple[list[str], dict[str, Any]]:
    """The names of sinks in a list or a map that also holds their options, and those options by name."""
    pairs = [*_pairs((_named(item) for item in (value if isinstance(value, list) else [value])), None)]
    options = {str(name): {"profile": item} if isinstance(item, str) else item for name, item in pairs}
    return [str(name) for name, item in pairs if item is not False], {
        name: item for name, item in options.items() if item
    }


def _named(item: Any) -> Any:
    """``{kind: wandb, project: x}`` as ``{wandb: {project: x}}``."""
    called = isinstance(item, Mapping) and not {"kind", "name", "type"}.isdisjoint(item)
    return dict([entry]) if called and (entry := _entry("sinks", item)) is not None else item


def _pairs(items: Iterable[Any], empty: Any) -> Iterator[tuple[Any, Any]]:
    """The entries of maps in a list; of a word beside them the value is ``empty``."""
    for item in items:
        yield from item.items() if isinstance(item, Mapping) else [(item, empty)]


def as_sinks(value: Any) -> str:
    """The same in YAML: a list of names, and a map of their options."""
    names, options = sinks_and_options(value)
    return f"sinks: {in_flow(names)}" + (f"\nsink_options: {in_flow(options)}" if options else "")


_NAMES = ("id", "name", "key", "metric", "signal", "kind", "type")  # keys by which entries of lists are called


def _entry(section: str, value: Any) -> tuple[str, Any] | None:
    """An entry of a list as one of a map; None where nothing in it could be its id."""
    if section == "modes":
        return (value, {"prefix": f"{value}/"}) if isinstance(value, str) else None
    if isinstance(value, str):
        id = "_".join(re.findall(r"[a-z_]\w*", value)) or "my_id"
        if section in ("signals", "metrics") and re.match(r"[a-z_]\w*\Z", value):
            return id, "completion" if section == "signals" else "mean"
        condition = re.fullmatch(r"(\w+)\s*([<>]=?\s*\S+)", value) if section == "alerts" else None
        return (condition[1], condition[2]) if condition else (id, value)
    if not isinstance(value, Mapping):
        return None
    called = next((key for key in _NAMES if isinstance(value.get(key), str)), None)
    if called is None:
        return next(((str(key), value) for key, value in value.items()), None) if len(value) == 1 else None
    rest = {key: value for key, value in value.items() if key != called}
    id = re.sub(r"[^a-z0-9_]+", "_", value[called].lower()).strip("_") or "my_id"
    return id, rest["expr"] if section == "metrics" and set(rest) == {"expr"} else rest
