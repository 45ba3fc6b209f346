"""``validate``: plain data in, a ``LogSpec`` out, or everything that is wrong with its shape.

Turns what pydantic says into declog's problems: paths of the YAML, did-you-means, one problem for each place. A
``null`` entry or leaf is dropped, so that it deletes an entry and resets a leaf. Imports models and errors only.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from declog.distribution import NAME
from declog.errors import ConfigError, Path, Problem, Where, did_you_mean, in_flow, nearest, nesting
from declog.errors.elsewhere import KEYS, SYNONYMS
from declog.language.functions import BUILTIN
from declog.language.keys import (
    SECTIONS,
    atoms,
    below,
    entries,
    entry_path,
    keys,
    model_of,
    says,
    sections_with,
)  # fmt: skip
from declog.language.model import Scalar
from declog.language.notation import is_reduction, reduced
from declog.language.shorthand import long
from declog.language.spec import IDENTIFIER, AboutSpec, LogSpec, MetricSpec, RunSpec, SignalSpec
from declog.language.spec_of_tables import ColumnType, Length
from declog.language.spec_of_tests import TestSpec
from declog.language.tree import tree_of


def validate(data: Mapping[str, Any]) -> LogSpec:
    """The config as models; raises ``ConfigError`` with every mistake of its shape.

    ``data`` is plain: resolved, without interpolations, as ``declog.config_of`` returns it. An entry that is null,
    such as ``metrics.kl``, was deleted: what reads it is told so.
    """
    if not isinstance(data, Mapping):
        raise ConfigError([Problem.of("DL202.no_map", where=Where(name="config"), type=type(data).__name__)])
    if (problem := nesting(data)) is not None:
        raise ConfigError([problem])
    tree, unread = long(tree_of(_with_text_keys(data)))
    data = tree.plain
    deleted = frozenset(
        f"{'signals' if path[0] == 'derived' else path[0]}.{path[-1]}"
        for section in SECTIONS for path, value in entries(data, section) if value is None
    )  # fmt: skip
    signals = {str(path[-1]) for section in ("signals", "derived") for path, _ in entries(data, section)}
    cut = [*_cut(data, LogSpec, signals)]
    problems = [
        *unread,
        *(problem for problem, _ in cut),
        *_ids(data),
        *_period(data.get("every")),
        *_bools(data, LogSpec),
    ]
    problems += [Problem.of("DL201.key", "deleted", key="deleted", fix=None)] if "deleted" in data else []
    try:
        spec = LogSpec.model_validate({**_without_nulls(data), "deleted": deleted})
    except ValidationError as error:
        problems += [problem for item in error.errors(include_url=False) if (problem := _problem(item)) is not None]
        short = {problem.path for problem in unread}
        problems = _distinct([
            problem for problem in problems
            if problem in unread or short.isdisjoint((problem.path[:2], entry_path(problem.path)))
        ])  # fmt: skip
    cause = {piece: problem for problem, pieces in cut for piece in pieces}
    problems = [item for item in problems if all(cause.get(item.path[:depth], item) is item for depth in range(4))]
    if problems:
        outer = [problem for problem in problems if problem.path == ("declog",)]  # a config in a config
        raise ConfigError([_misplaced(problem, data) for problem in outer or problems])
    return spec


RUN_CONFIG = ("run", "config")  # whatever an application says of itself: its keys are its own
_EXTENDS = ("extends", "extend", "base", "_base_", "inherit", "inherits", "parent", "preset", "include", "from")


def _misplaced(problem: Problem, data: Mapping[str, Any]) -> Problem:
    """A problem with a better fix, if its key is a common mistake: a key of another section, or a lost indentation."""
    if problem.code == "DL202" and (fix := _in_one_form(problem.path, data)) is not None:
        return replace(problem, path=problem.path[:3], fix=fix)
    if problem.code == "DL201" and len(problem.path) == 3 and (moved := _MOVED.get(str(problem.path[0]))) is not None:
        section, name, word = map(str, problem.path)
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
    if key in _EXTENDS:
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
    if (elsewhere := _elsewhere(key, data[key])) is not None:
        return replace(problem, fix=elsewhere)
    is_metric = isinstance(data[key], str) and (is_reduction(data[key], 1) or reduced(data[key]) is not None)
    if is_metric or key in {
        str(path[-1]) for section in ("signals", "derived", "metrics") for path, _ in entries(data, section)
    }:
        return replace(problem, fix=f"metrics: {{{key}: {in_flow(data[key])}}}")
    if isinstance(data[key], Scalar):
        how = f"run: {{config: {{{key}: {in_flow(data[key])}}}}}, which records it with the run"
        return replace(problem, fix=f"{how}\n{problem.fix}")
    return problem


def _of_other_tools(path: Path, data: Mapping[str, Any]) -> str | None:
    """What to write for a key of another tool, such as `limit` of a table; None where nobody knows it."""
    section, *ids, key = map(str, path) if len(path) > 1 else ("", str(path[0]))
    section = "filters" if ids[1:] == ["filter"] else section
    template = KEYS.get(f"{section}.{key}" if section else key)
    if template is None:
        return None
    value: Any = data
    for word in path:
        value = value[word]
    return template.replace("<value>", in_flow(value)).replace("<id>", "".join(ids[:1]))


def _elsewhere(key: str, value: Any) -> str | None:
    """Where a key stands that is not one of the top: `group_size` is `size` of `axes.group`, `expr` is of a metric."""
    first, _, last = ("group_size" if SYNONYMS.get(key) == "size" else key).partition("_")
    for section in keys(LogSpec).keys() - set(SECTIONS):
        for name in keys(model) if (model := model_of(below(LogSpec, section))) is not None else ():
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
    if section == "alerts" and name and not key and isinstance(value, int | float):
        return f'{name}: "> {value}"'
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
    entry = (
        _entry("sinks", item) if isinstance(item, Mapping) and not {"kind", "name", "type"}.isdisjoint(item) else None
    )
    return item if entry is None else dict([entry])


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


def _period(every: Any) -> list[Problem]:
    if not isinstance(every, int) or every >= 1:
        return []
    return [Problem.of("DL202.every_negative", "every", every=every)]


def _cut(
    data: Mapping[Any, Any], model: Any, signals: Collection[str], path: Path = ()
) -> Iterator[tuple[Problem, list[Path]]]:
    """Values inside {...} that YAML ended at a comma: what stands behind it became keys, mostly without a value.

    With each, the keys that its pieces are: what else is wrong with these comes of it. A word behind an expression
    belongs to it where it is one of the ``signals``; else it is a key that is not known.
    """
    allowed = keys(inside) if (inside := model_of(model)) is not None else None
    parts: dict[str, str] = {}  # the value that was cut, and the keys that were made of its rest
    for key, value in [*data.items(), ("", "")]:
        is_open = sum(part.count("(") - part.count(")") for part in parts.values()) > 0
        foreign = value is None and allowed is not None and key not in allowed
        word = foreign and IDENTIFIER.match(str(key)) is not None
        misspelt = word and nearest(str(key), allowed or ()) is not None
        if word and parts and str(key) not in signals:
            misspelt |= any(said.of in ("signals", "metrics") for said in says(below(model, next(iter(parts)))))
        if parts and (is_open or (foreign and not misspelt)):
            parts[str(key)] = str(key) if value is None else f"{key}={value}"
            continue
        if len(parts) > 1 and not is_open:
            first, text = next(iter(parts)), ", ".join(parts.values())
            text = re.sub(
                r"(?<=\d), (\d{1,3})\Z", lambda match: match[1].zfill(3), text
            )  # `1,000`, whose end YAML read
            plain = all(map(IDENTIFIER.match, parts.values()))
            fix = f"{first}: [{text}]" if plain else f"{first}: {json.dumps(text, ensure_ascii=False)}"
            problem = Problem.of("DL201.cut", (*path, [*parts][1]), value=parts[first], fix=fix)
            yield problem, [(*path, part) for part in parts]
        text = value["expr"] if isinstance(value, Mapping) and [*value] == ["expr"] else value
        parts = {str(key): text} if isinstance(text, str) else {}
        if isinstance(value, Mapping) and len(path) < 5:
            yield from _cut(value, below(model, str(key)), signals, (*path, str(key)))


def _bools(data: Mapping[Any, Any], model: Any, path: Path = ()) -> Iterator[Problem]:
    """true and false where a number belongs: pydantic would read 1 and 0."""
    for key, value in data.items():
        inner = below(model, key)
        if isinstance(value, Mapping) and (*path, key) != RUN_CONFIG:
            yield from _bools(value, inner, (*path, str(key)))
        elif isinstance(value, bool) and (kinds := {*atoms(inner)} & {bool, int, float}) and bool not in kinds:
            noun, example = _KINDS["float" if float in kinds else "int"]
            yield Problem.of("DL202.type", (*path, str(key)), key=key, noun=noun, example=example)


def named_nulls(data: Mapping[Any, Any], model: Any = LogSpec, path: Path = ()) -> Iterator[Path]:
    """Where `null` stands for an entry whose name is the user's own: it takes out what another layer gave."""
    for key, value in data.items():
        if value is None and path and model_of(model) is None:
            yield (*path, str(key))
        elif isinstance(value, Mapping) and path[:1] != ("tests",) and (*path, key) != RUN_CONFIG:
            yield from named_nulls(value, below(model, str(key)), (*path, str(key)))


def _with_text_keys(data: Any, path: Path = ()) -> Any:
    """YAML's keys that are no text, such as 0 or on, as text: they are then unknown or refused like any other."""
    if not isinstance(data, Mapping):
        return data
    if path == RUN_CONFIG:
        return data
    return {str(key): _with_text_keys(value, (*path, str(key))) for key, value in data.items()}


def _without_nulls(data: Any, type_: Any = LogSpec, in_test: bool = False) -> Any:
    """The config without its nulls, each of which deletes an entry or resets a key.

    A null at an unknown key stays: the models refuse it, or a kind of sink knows the option. So does one in the
    expectations of a test, where it means that nothing is logged.
    """
    if isinstance(data, list):
        return [_without_nulls(item, below(type_, 0), in_test) for item in data]
    if not isinstance(data, Mapping):
        return data
    model = model_of(type_)
    in_test = in_test or model is TestSpec
    return {
        key: _without_nulls(value, below(type_, key), in_test) for key, value in data.items()
        if value is not None or (in_test if model is None else key not in keys(model))
    }  # fmt: skip


def _ids(data: Mapping[str, Any]) -> list[Problem]:
    problems = []
    for section in SECTIONS:
        phases = data.get(section) if section == "signals" else None
        paths = [(section, phase) for phase in phases] if isinstance(phases, Mapping) else []
        for path, entry in [*((path, None) for path in paths), *entries(data, section)]:
            key = path[-1]
            if not (isinstance(key, str) and IDENTIFIER.match(key)):
                plain = re.sub(r"[^a-z0-9_]+", "_", str(key).lower()).strip("_") or "id"
                plain = f"_{plain}" if plain[0].isdigit() else plain
                fix = f"call it `{plain}`"
                if (deleted := re.fullmatch(r"~([a-z_]\w*)", str(key))) is not None:
                    fix = f"{deleted[1]}: null"
                elif entry is None and (assigned := re.fullmatch(r"([a-z_]\w*) *= *(\S.*)", str(key))) is not None:
                    fix = f"{assigned[1]}: {in_flow(assigned[2])}"
                elif section == "alerts" and (of := re.fullmatch(r"(\w+) *([<>]=? *\S.*)", str(key))) is not None:
                    fix = f'{of[1]}: "{of[2]}"'
                elif section in ("metrics", "tables"):
                    fix = f"{plain}: {{{_spelt_out(entry)}, name: {key}}}"
                problems.append(Problem.of("DL204.id", (*path[:-1], str(key)), key=key, fix=fix))
    return problems


def _spelt_out(entry: Any) -> str:
    """The inside of an entry, so that a name can be added: `p50(reward)` is `expr: reward, reduce: p50`."""
    if isinstance(entry, str) and (call := re.fullmatch(r"(\w+)\(([\w\s.*/+-]+)\)", entry)):
        return f"expr: {call[2]}, reduce: {call[1]}"
    if isinstance(entry, Mapping) and all(isinstance(value, str | int | float) for value in entry.values()):
        return ", ".join(f"{key}: {value}" for key, value in entry.items() if key != "name")
    return "..."


def _problem(item: Any) -> Problem | None:
    kind, message = item["type"], str(item["msg"])
    if item["loc"] and item["loc"][-1] == "[key]":
        key = item["input"]
        path = (*_key_path(item["loc"][:-2]), str(key))
        return Problem.of("DL204.text", path, key=key)
    path = _key_path(item["loc"][:-1]) if kind == "extra_forbidden" else _key_path(item["loc"])
    if kind == "extra_forbidden":
        path = (*path, item["loc"][-1])  # whatever it looks like, it is a key
        return Problem.of("DL201.key", path, key=path[-1], fix=_nearest_key(path))
    if kind == "missing":
        return Problem.of("DL203.key", path[:-1], key=path[-1])
    if kind.startswith("DL"):  # a model's own check
        return Problem.of(kind, path, **item.get("ctx", {}))
    if kind in ("literal_error", "enum"):
        choices = re.findall(r"'([^']*)'|(\d+)", item["ctx"]["expected"])
        names = [text or number for text, number in choices]
        close = nearest(str(item["input"])[:80], names)
        fix = f"did you mean `{close}`?" if close is not None else None
        if isinstance(path[-1], int):
            path = path[:-1]
            fix = fix or f"{path[-1]}: {in_flow(names[:1])}"
        if path == ("spec",) and isinstance(item["input"], int) and item["input"] > 1:
            fix = f"it is of a later language, which a later declog reads: pip install -U {NAME}"
        if path[-1:] == ("rows",) and isinstance(item["input"], int):
            count = item["input"]
            fix = f"how many rows is a filter's: filter: {{random: {count}}}, or {{key: reward, bottom: {count}}}"
        if path[:1] == ("alerts",) and path[-1] == "do":
            fix = _do(str(item["input"]))
        if fix is None:
            fix = f"{path[-1]}: {names[0]}" if len(names) == 1 else "write one of these"
        return Problem.of(
            "DL202.one_of", path, key=path[-1], one_of="one of: " * (len(names) > 1), names=", ".join(names), fix=fix
        )
    if kind == "greater_than_equal":
        return Problem.of("DL202.at_least", path, key=path[-1], least=item["ctx"]["ge"])
    noun, example = _KINDS.get(kind.split("_")[0], ("", ""))
    if path and noun:
        value = item.get("input")
        if path == ("profile",) and isinstance(value, Mapping):
            return Problem.of("DL202.profiles", "profile")
        if len(path) == 2 and path[0] == "profiles" and isinstance(value, str | list):
            fix = f"{path[1]}: {{only: {in_flow(value if isinstance(value, list) else [value])}}}"
            return Problem.of("DL202.value", path, cause="a profile is a map", fix=fix)
        if path[0] == "alerts" and path[-1] == "do":
            return Problem.of("DL202.value", path, cause="`do` is a list", fix=_do(str(value)))
        if path[-1] in ("random", "first") and isinstance(value, float) and 0 < value < 1:
            return Problem.of("DL202.value", path, cause=f"`{path[-1]}` counts rows", fix=f"fraction: {value}")
        if path[-1] == "columns" and value in ("all", "*"):
            return Problem.of(
                "DL202.value", path, cause="`columns` are names", fix="columns: [prompt, completion, reward]"
            )
        if path[-1] in ("where", "when") and isinstance(value, list):
            together = in_flow(" and ".join(map(str, value)))
            return Problem.of(
                "DL202.value", path, cause=f"`{path[-1]}` is one condition", fix=f"{path[-1]}: {together}"
            )
        if noun == "text" and isinstance(value, bool | int | float):
            example = f'"{value}"'
        elif isinstance(value, list) and len(value) == 1 and isinstance(value[0], Scalar):
            example = in_flow(value[0])
        elif noun == "a map" and value is False and len(path) == 2:
            example = "null"
        elif isinstance(value, str) and (number := re.match(r"\s*(\d+)\s*([kK]\b)?", value)) and "number" in noun:
            example = number[1] + "000" * bool(number[2])
        elif noun == "a map" and isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            example = in_flow({key: item for one in value for key, item in one.items()})
        elif noun == "a list" and isinstance(value, str):
            words = re.fullmatch(r"\w+([\s,]+\w+)+", value.strip())
            example = in_flow(re.split(r"[\s,]+", value.strip()) if words else [value])
        return Problem.of("DL202.type", path, key=path[-1], noun=noun, example=example)
    return Problem.of("DL202.value", path, cause=f"{message[0].lower()}{message[1:]}", fix=None)


def _do(word: str) -> str:
    """The fix for what an alert cannot do."""
    if "stop" in word or word in _ENDS:
        return "do: [stop]"
    return "drop `do`, or end the run, do: [stop]; every sink is told of an alert, also one of your own for Slack"


_ENDS = ("abort", "break", "end", "exit", "halt", "kill", "quit", "raise", "terminate")  # words for `stop`
_KINDS = {  # by how pydantic's error begins: what is wanted, and an example
    "int": ("a whole number", "10"), "float": ("a number", "0.5"), "bool": ("true or false", "true"),
    "string": ("text", "some words"), "list": ("a list", "[...]"),
    "dict": ("a map", "{...}"), "model": ("a map", "{...}"),
}  # fmt: skip
_UNION_TAGS = re.compile(r"^(bool|int|float|str|constrained-.*|literal\[.*|dict\[.*|list\[.*|function-.*|[A-Z]\w*)$")


def _key_path(loc: tuple[str | int, ...]) -> Path:
    """pydantic's location without the names of union members and models."""
    path: list[str | int] = []
    model: Any = LogSpec
    for part in loc:
        inside = model_of(model)
        is_key = part in keys(inside) if inside is not None else typing.get_origin(model) in (dict, list)
        tag = isinstance(part, str) and _UNION_TAGS.match(part) and not is_key
        if not tag and not (inside is Length and part == "most"):  # what a plain number is
            path.append(part)
            model = below(model, part)
    return tuple(path)


def _nearest_key(path: Path) -> str | None:
    model: Any = LogSpec
    for part in path[:-1]:
        model = below(model, part)
    inside = model_of(model)
    if inside is None:
        return None
    homes = sections_with(str(path[-1])) if len(path) > 1 else []
    if len(homes) == 1 and nearest(str(path[-1]), keys(inside)) is None:
        return f"it is a key of the entries of {homes[0]}"
    return _meant(str(path[-1]), keys(inside))


def _meant(key: str, allowed: Collection[str]) -> str:
    """The fix for an unknown key of a map with the ``allowed`` ones."""
    if key in ("optional", "nullable") and "required" in allowed:
        return "drop it: that is the default, and `required: true` says the opposite"
    return did_you_mean(key, allowed, what="keys")


def _distinct(problems: list[Problem]) -> list[Problem]:
    """One problem per place: a union reports each of its members, and of a map what is wrong inside of it."""
    kept: dict[Path, Problem] = {}
    for problem in problems:
        first = kept.setdefault(problem.path, problem)
        if first.code == problem.code == "DL202" and problem.message not in first.message:
            other = problem.message.removeprefix(f"`{problem.path[-1]}` must be ")
            kept[problem.path] = Problem.of(
                "DL202.either", problem.path, message=first.message, other=other, fix=first.fix
            )
    inner = [path[:depth] for path in kept for depth in range(len(path))]
    return [problem for path, problem in kept.items() if problem.code != "DL202" or path not in inner]
