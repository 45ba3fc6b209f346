"""Fixes for values in the wrong form for their key, such as a list for a map.

The functions take plain data and return YAML. ``lists_as_maps`` has the ids and the keys for the items of a list.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from typing import Any

from declog.errors import Path, elsewhere, in_flow, nearest, nested
from declog.errors.elsewhere import SYNONYMS
from declog.language.fixes import bins, idioms, unparsable
from declog.language.fixes.lists_as_maps import as_profile, columns_of, sinks_and_options, switched, without_sink
from declog.language.fixes.over_axes import AXES_OF_METRICS, of_each
from declog.language.fixes.wrong_types import of_labels
from declog.language.keys import entry_names, keys_at
from declog.language.notation import is_reduction, reduced
from declog.language.spec_of_tables import ColumnType
from declog.language.tree import at, listed


def in_one_form(path: Path, data: Mapping[str, Any]) -> str | None:
    """The fix for a value in the wrong form for its key, such as a map for a list; None for an unknown mistake."""
    value, keys = at(data, path), [*map(str, path)]
    if keys[-1] == "name" and isinstance(value, Mapping) and value and all(item is None for item in value.values()):
        return f'name: "{{{"}/{".join(map(str, value))}}}"'
    return _OF_SECTION.get(keys[0], _of_small_sections)(keys, value, data)


def _of_small_sections(path: list[str], value: Any, data: Mapping[str, Any]) -> str | None:
    """The fix for a value in a section with few rules."""
    match path, value:
        case ["about", name], str():
            return f"{name}: {in_flow({'help': value})}"
        case ["alerts", _, "do"], [_, *_]:
            return of_actions(value)
        case ["alerts", name], bool():
            return f'{name}: "> 0.5"'
        case ["axes", "rank"], _:
            return "rank: all, or rank: each"
        case ["axes", "completion"], str():
            return f"completion: {{ids: {value}}}"
        case ["axes"] | ["axes", _], int():
            return f"group: {{size: {value}}}"
        case ["axes", _, "ids" | "of"], int():
            return f"axes: {{group: {{size: {value}}}}}"
        case ["constants", name], [item, *_]:
            return f"{name}: {in_flow(item)}"
        case ["every"], {"train": int() as steps, **modes}:
            rest = {mode: {"every": count} for mode, count in modes.items()}
            return f"every: {steps}" + (f", and modes: {in_flow(rest)}" if rest else "")
        case ["modes", name], bool() | int() | float() | str() if value is not False:
            return f"{name}: {{prefix: {name}/}}"
        case ["profile"], Mapping() if any(not isinstance(item, str) for item in value.values()):
            return f"profiles: {in_flow({name: as_profile(name, item) for name, item in value.items()})}"
        case ["output_dir" | "profile" as key], Mapping() | list() if value:
            return f"{key}: {next(iter(value.values() if isinstance(value, Mapping) else value))}"
        case ["run"], str():
            return f"run: {in_flow({'name': value})}"
        case ["signals", _, name], {"axis": "prompt" | "question" | "problem"}:
            return f"{name}: {in_flow({**value, 'axis': 'group'})}"
    return None


def _of_metrics(path: list[str], value: Any, data: Mapping[str, Any]) -> str | None:
    match path, value:
        case ["metrics", name], [_, *_]:
            return _of_list(name, value, data)
        case ["metrics", name, "expr"], Mapping() if value and all(isinstance(item, str) for item in value.values()):
            return f"metrics: {in_flow(of_expressions(name, value, data['metrics'][name]))}"
        case ["metrics", _, "by"], Mapping() | [_, *_]:
            return of_labels(value)
        case ["metrics", _, "by"], str() if "," in value:
            return f"by: [{value}]"
        case ["metrics", name, "nan"], 0 | "0" | "zero" | "zeros" | "fill" | "fillna" | "replace":
            entry = {"expr": name} | {key: item for key, item in data["metrics"][name].items() if key != "nan"}
            entry |= reduced(str(entry["expr"])) or {}
            entry["expr"] = f"{entry['expr']} if present({entry['expr']}) else 0"
            return f"{name}: {in_flow(entry)}"
        case ["metrics", name, "over"], str() if value in AXES_OF_METRICS:
            edit = of_each(name, data["metrics"][name], value)
            return f"{name}: {in_flow(edit)}: `over` of a metric says which steps or ranks it covers"
        case ["metrics", _, "reduce"], int() | float() | [*_] | Mapping() if not isinstance(value, bool):
            return _of_reduce(value)
        case ["metrics", _, "combine"], "pstd" | "stddev" | "stdev" | "std_dev" | "standard_deviation":
            return "combine: std"
        case ["metrics", _, "alias"], _ if not isinstance(value, list):
            return f"alias: {in_flow([*value.values()] if isinstance(value, Mapping) else [value])}"
    return None


def _of_list(name: str, items: list[Any], data: Mapping[str, Any]) -> str | None:
    """The fix for a metric that is a list: of calls, of reductions, of expressions, or of both as `[reward, mean]`."""
    if (entry := of_calls(items)) is not None:
        return f"{name}: {in_flow(entry)}"
    if all(is_reduction(str(item), 1) for item in items):
        expr = "" if name in entry_names(data, "signals", "derived") else "expr: reward, "
        return f"{name}: {{{expr}reduce: {in_flow(items)}}}"
    if all(isinstance(item, str) and reduced(item) for item in items):
        return f"metrics: {in_flow(of_expressions(name, items, {}))}"
    if len(items) == 1:
        return None
    last = is_reduction(idioms.reduction(str(items[-1])), 1)
    expr, reductions = (items[0], items[1:]) if last else (items[-1], items[:-1])
    return f"{name}: {{expr: {in_flow(expr)}, reduce: {in_flow(reductions)}}}"


def _of_reduce(value: Any) -> str:
    """The fix for the `reduce` of a metric: a level of a quantile, a list with levels, or a map."""
    if isinstance(level := _level(value), str):
        return f"reduce: {level}"
    if not isinstance(value, Mapping):
        return f"reduce: {in_flow([*map(_level, value)] if isinstance(value, list) else value)}"
    shown: Any = [text if suffix == text else {suffix: text} for suffix, text in value.items()]
    if True in value.values():
        shown = [*value]
    elif value and all(isinstance(item, Mapping) for item in value.values()):
        texts = {name: ", ".join(f"{key}={item}" for key, item in keyed.items()) for name, keyed in value.items()}
        calls = [bins.of_reduce(call, {}) or call for call in (f"{name}({text})" for name, text in texts.items())]
        shown = calls if len(calls) > 1 else calls[0]
    return f"reduce: {in_flow(shown)}"


def _of_tables_and_filters(path: list[str], value: Any, data: Mapping[str, Any]) -> str | None:
    match path, value:
        case ["tables", name], list():
            return f"{name}: {{columns: {in_flow(value)}}}"
        case (["filters", _, "fraction"], int() | float() as share) | (
            ["tables", _, "filter"],
            {"fraction": int() | float() as share},
        ) if not 0 <= share <= 1:
            return f"fraction: {share / 100 if 1 < share <= 100 else 0.1}"
        case ["filters", name], str():
            return f"{name}: {unparsable.of_filter(value) or in_flow({'where': value})}"
        case ["filters", _, "within"], int():
            return f"drop it, and `every: {value}` of the table"
        case ["tables", _, "to"], str() | list():
            return f"to: {switched(value)}"
        case ["tables", _, "filter"], {"within": int() as steps, **chosen}:
            return f"filter: {in_flow(chosen)}, and `every: {steps}` beside it"
        case ["tables", _, "filter"], [_, *_]:
            return _of_filters(value)
        case ["tables", name, "columns" | "schema"], Mapping() | list():
            columns = value if isinstance(value, Mapping) else columns_of(value)
            return f"schemas: {{{name}: {in_flow(columns)}}}   and in the table `schema: {name}`"
    return None


def _of_filters(items: list[Any]) -> str:
    """The fix for a list of filters of a table: one filter, where a dash stands before each of its keys."""
    if all(isinstance(item, Mapping) for item in items):
        pairs = [pair for item in items for pair in item.items()]
        choices = {"bottom" if key == "top" else key for key, _ in pairs if key in _CHOICES}
        if len(dict(pairs)) == len(pairs) and len(choices) <= 1:
            return f"filter: {in_flow(dict(pairs))}"
    return f"filter: {in_flow(items[0])}, and a table of its own for each further filter"


def _of_sink_options(path: list[str], value: Any, data: Mapping[str, Any]) -> str | None:
    match path, value:
        case ["sink_options"], list():
            return f"sinks: {in_flow(value)}"
        case ["sink_options", name], _ if not isinstance(value, Mapping | None) and name in _OPTIONS:
            options = {key: item for key, item in data["sink_options"].items() if key in _OPTIONS}
            return f"sink_options: {in_flow(dict.fromkeys(sinks_and_options(data.get('sinks') or [])[0], options))}"
        case ["sink_options", name], False:
            return without_sink(name, data)
        case ["sink_options", name], str():
            return f"{name}: {in_flow({'profile': value})}"
    return None


def _of_schemas(path: list[str], value: Any, data: Mapping[str, Any]) -> str | None:
    match path, value:
        case ["schemas", _, _, "redact"], str() | list() if value:
            return f"redact: {in_flow({'secret': '|'.join(map(str, listed(value)))})}"
        case ["schemas", _, column], str() | {"type": str()} if (limited := _limited(column, value, data)) is not None:
            return in_flow({column: limited})[1:-1]
        case ["schemas", name, "columns" | "fields"], list():
            return f"{in_flow(columns_of(value))[1:-1]}: the columns stand below `{name}` themselves"
        case ["schemas", name], list():
            return f"{name}: {in_flow(columns_of(value))}"
        case ["schemas", _, _, "type"], "category" | "categorical" | "enum" | "label" | "choice" | "literal":
            return "type: text"
        case ["schemas", _, _, "values"], list():
            return "drop it: any value is taken"
        case ["schemas", _, key], "category" | "categorical" | "enum" | "label" if not _is_signal(value, data):
            return f"{key}: text"
        case ["schemas", _, key], str():
            type_ = nearest(re.sub(r"[(\[].*", "", value), typing.get_args(ColumnType))
            return f"{key}: {type_}" if type_ else f"{key}: {{expr: {in_flow(value)}}}"
    return None


def _limited(column: str, value: Any, data: Mapping[str, Any]) -> dict[str, Any] | None:
    """The keys of a column of texts whose type has a length, ``varchar(200)``; None for another type."""
    rest = dict(value) if isinstance(value, Mapping) else {"type": value}
    limit = re.fullmatch(r"(\w+)\W\D*(\d+)\W", rest.pop("type").strip().lower())
    if limit is None or SYNONYMS.get(limit[1], limit[1]) != "text":
        return None
    return {**({} if _is_signal(column, data) else {"type": "text"}), **rest, "max_chars": int(limit[2])}


def _is_signal(name: str, data: Mapping[str, Any]) -> bool:
    return name in entry_names(data, "signals", "derived")


_OF_SECTION = {
    "filters": _of_tables_and_filters,
    "metrics": _of_metrics,
    "schemas": _of_schemas,
    "sink_options": _of_sink_options,
    "tables": _of_tables_and_filters,
}

_OPTIONS = keys_at(("sink_options", ""))  # the options of every sink
_CHOICES = ("top", "bottom", "random", "fraction", "first", "unique")  # a filter has one, or both `top` and `bottom`

_WAYS = {key: key for key in _CHOICES} | {"key": "top", "bottom": "top"}


def in_one_way(key: str, rows: Mapping[str, Any], *, reset: bool = False) -> dict[str, Any]:
    """A filter that chooses rows by ``key`` only. Keys for other choices are removed, or become null (``reset``)."""
    other = [word for word in rows if key in _WAYS and _WAYS.get(word, _WAYS[key]) != _WAYS[key]]
    return {word: None if word in other else value for word, value in rows.items() if reset or word not in other}


_ENDS = ("abort", "break", "end", "exit", "halt", "kill", "quit", "raise", "terminate")  # words for `stop`


def of_actions(actions: Any) -> str:
    """The fix for unknown actions of an alert, a word or a list: `stop`, or nothing, since every sink gets alerts."""
    words = [*map(in_flow, listed(actions))]
    ends = [word for word in words if "stop" in word or nearest(word, ["stop"]) or word in _ENDS]
    rest = [word for word in words if word not in ends]
    if not rest:
        return "do: [stop]"
    one_by_one = ends or (isinstance(actions, list) and not words[1:])
    drop = f"drop {', '.join(f'`{word}`' for word in rest)}" if one_by_one else "drop `do`"
    fix = elsewhere.keys()["alerts.slack"].replace("drop it", f"do: [stop], and {drop}" if ends else drop)
    tables = "; a table is logged by its own `every`, with the rows that its filter takes"
    return fix + tables * any("table" in word or "sample" in word for word in rest)


def of_calls(items: list[Any]) -> dict[str, Any] | None:
    """The `expr` and `reduce` for `[mean(x), max(x)]`; None for anything else."""
    calls = [call for item in items if isinstance(item, str) and (call := reduced(item)) is not None]
    exprs = {str(call["expr"]) for call in calls}
    same = len(calls) == len(items) and len(exprs) == 1
    return {"expr": exprs.pop(), "reduce": [call["reduce"] for call in calls]} if same else None


def of_expressions(id: str, exprs: Mapping[str, str] | list[str], entry: Mapping[str, Any]) -> dict[str, Any]:
    """One metric for each of several expressions, ``parts_reward`` and ``parts_length``, with the keys of an entry."""
    texts, rest = [*exprs.values()] if isinstance(exprs, Mapping) else exprs, dict(entry)
    for key in ("expr", "name", "alias"):
        rest.pop(key, None)
    values = [str(call["expr"]) if (call := reduced(text)) is not None else text for text in texts]
    names = [*exprs] if isinstance(exprs, Mapping) else values
    if len({*names}) < len(names) or not all(re.fullmatch(r"[a-z0-9_]+", name) for name in names):
        names = [*map(str, range(1, len(names) + 1))]
    reduction = rest.get("reduce")
    if isinstance(reduction, list) and len(reduction) == 1 and isinstance(reduction[0], str):
        rest["reduce"] = reduction[0]
    short = not rest and all(map(reduced, texts))
    return {f"{id}_{name}": text if short else {"expr": text, **rest} for name, text in zip(names, texts, strict=True)}


def of_share(path: Path, data: Mapping[str, Any]) -> str | None:
    """The fix for `top: 10%`: a number of rows, or a condition for a share of each group. None for another value."""
    rows = at(data, path[:-1])
    if not isinstance(rows, Mapping) or (share := _share(rows.get(path[-1]))) is None:
        return None
    count = max(round(100 * share), 1)
    fix = f"{path[-1]}: {count}, which is {100 * share:g}% of {count / share:.0f} rows"
    shares = {"bottom": _share(rows.get("bottom")), "top": _share(rows.get("top"))}
    ranks = [f"{_RANKS[key].format(share if key == 'bottom' else 1 - share)}" for key, share in shares.items() if share]
    if not isinstance(rows.get("key"), str):
        return fix
    where = " or ".join(f"rank({rows['key']}, within=group) {rank} * size(completion)" for rank in ranks)
    edit = in_flow(nested(path[:-1] if path[0] == "filters" else path[2:-1], {"where": where}))[1:-1]
    return f"{fix}; or so many of each group, and one at least: {edit}"


_RANKS = {"bottom": "< 1 + {:g}", "top": "> {:g}"}  # conditions on the rank of a row, ascending from 1


def _share(value: Any) -> float | None:
    """The share of rows for `10%`, 0.1 or "0.1"; None for anything else."""
    match = re.fullmatch(r"\s*(\d*\.?\d+)\s*(%?)\s*", str(value))
    share = None if match is None else float(match[1]) / (100 if match[2] else 1)
    return share if share is not None and 0 < share < 1 else None


_OF_LEVELS = {*elsewhere.words("levels")}


def _level(item: Any) -> Any:
    """The reduction for the level of a quantile, 0.95 or 95; any other item as it is."""
    if isinstance(item, Mapping) and len(item) == 1 and {*item} <= _OF_LEVELS:  # `{quantile: 0.9}`
        (level,) = item.values()
        item = level if isinstance(level, int | float) else item
    number = isinstance(item, int | float) and not isinstance(item, bool) and 0 < item <= 100
    return f"p{item * (100 if item < 1 else 1):g}" if number else item


def of_never(path: Path, data: Mapping[str, Any]) -> str | None:
    """The edit that turns off an entry with ``every: 0``, which means "never" in other tools; None for other values."""
    if path[-1] != "every" or len(path) != 3:
        return None
    section, id = map(str, path[:2])
    if section not in ("metrics", "tables", "sink_options") or data[section][id]["every"] != 0:
        return None
    if section == "sink_options":
        return without_sink(id, data)
    return f"{section}: {{{id}: {'{log: false}' if section == 'metrics' else 'null'}}}"
