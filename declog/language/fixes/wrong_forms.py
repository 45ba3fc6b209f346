"""Fixes for values in the wrong form for their key, such as a list for a map, or sinks and options in one map.

The functions take plain data and return YAML.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from declog.errors import Path, elsewhere, in_flow, nearest, nested
from declog.errors.elsewhere import SYNONYMS
from declog.language.fixes import bins, idioms, unparsable
from declog.language.fixes.wrong_types import of_labels
from declog.language.keys import entry_names, keys_at
from declog.language.notation import is_reduction, over_preset, reduced
from declog.language.spec_of_tables import ColumnType
from declog.language.tree import at, listed

AXES_OF_METRICS = frozenset({"token", "completion", "group", "prompt", "tokens", "completions", "groups", "prompts"})


def of_each(name: str, entry: Mapping[str, Any], axis: str) -> dict[str, Any]:
    """The `expr` and `reduce` of a metric with one value per group or completion, aggregated over ``axis``."""
    expr, reduce = entry.get("expr", name), entry.get("reduce")
    one = isinstance(reduce, str) and not isinstance(expr, list) and is_reduction(reduce, 1)
    if isinstance(expr, list):
        expr = f"{reduce}({', '.join(map(str, expr))})"

    def over_axis(call: re.Match[str]) -> str:
        return f"{call[1]}({call[2]}, over={axis})" if is_reduction(call[1], 1) else call[0]

    calls = re.sub(r"\b(\w+)\(([^()]+)\)", over_axis, str(expr))
    inside = calls if calls != expr else f"{reduce if one else 'mean'}({expr}, over={axis})"
    return {"expr": inside, **({} if isinstance(reduce, list | None) else {"reduce": "mean"})}


def in_one_form(path: Path, data: Mapping[str, Any]) -> str | None:
    """The fix for a value in the wrong form for its key, such as a map for a list; None for an unknown mistake."""
    value = at(data, path)
    match [*map(str, path)], value:
        case ["alerts", _, "do"], [_, *_]:
            return of_actions(value)
        case ["axes", "rank"], _:
            return "rank: all, or rank: each"
        case ["axes", "completion"], str():
            return f"completion: {{ids: {value}}}"
        case ["axes"] | ["axes", _], int():
            return f"group: {{size: {value}}}"
        case ["axes", _, "ids" | "of"], int():
            return f"axes: {{group: {{size: {value}}}}}"
        case ["modes", name], bool() | int() | float() | str() if value is not False:
            return f"{name}: {{prefix: {name}/}}"
        case ["metrics", name], [_, *_] if (entry := of_calls(value)) is not None:
            return f"{name}: {in_flow(entry)}"
        case ["metrics", name], [_, *_] if all(is_reduction(str(item), 1) for item in value):
            expr = "" if name in entry_names(data, "signals", "derived") else "expr: reward, "
            return f"{name}: {{{expr}reduce: {in_flow(value)}}}"
        case ["metrics", name], [_, *_] if all(isinstance(item, str) and reduced(item) for item in value):
            return f"metrics: {in_flow(of_expressions(name, value, {}))}"
        case ["metrics", name, "expr"], Mapping() if value and all(isinstance(item, str) for item in value.values()):
            return f"metrics: {in_flow(of_expressions(name, value, data['metrics'][name]))}"
        case ["metrics", name], [_, _, *_]:
            last = is_reduction(idioms.reduction(str(value[-1])), 1)  # `[reward, mean]`
            expr, reductions = (value[0], value[1:]) if last else (value[-1], value[:-1])
            return f"{name}: {{expr: {in_flow(expr)}, reduce: {in_flow(reductions)}}}"
        case ["signals", _, name], {"axis": "prompt" | "question" | "problem"}:
            return f"{name}: {in_flow({**value, 'axis': 'group'})}"
        case ["tables", name], list():
            return f"{name}: {{columns: {in_flow(value)}}}"
        case ["metrics", _, "by"], Mapping() | [_, *_] if (labels := of_labels(value)) is not None:
            return labels
        case ["metrics", name, "by"], str() if "," in value:
            return f"by: [{value}]"
        case ["constants", name], [item, *_]:
            return f"{name}: {in_flow(item)}"
        case ["alerts", name], bool():
            return f'{name}: "> 0.5"'
        case ["profile"], Mapping() if any(not isinstance(item, str) for item in value.values()):
            return f"profiles: {in_flow({name: as_profile(name, item) for name, item in value.items()})}"
        case ["output_dir" | "profile" as key], Mapping() | list() if value:
            return f"{key}: {next(iter(value.values() if isinstance(value, Mapping) else value))}"
        case ["schemas", _, _, "redact"], str() | list() if value:
            return f"redact: {in_flow({'secret': '|'.join(map(str, listed(value)))})}"
        case ["sink_options"], list():
            return f"sinks: {in_flow(value)}"
        case ["sink_options", name], _ if not isinstance(value, Mapping | None) and name in _OPTIONS:
            options = {key: item for key, item in data["sink_options"].items() if key in _OPTIONS}
            return f"sink_options: {in_flow(dict.fromkeys(sinks_and_options(data.get('sinks') or [])[0], options))}"
        case ["sink_options", name], False:
            return without_sink(name, data)
        case (["filters", _, "fraction"], int() | float() as share) | (
            ["tables", _, "filter"],
            {"fraction": int() | float() as share},
        ) if not 0 <= share <= 1:
            return f"fraction: {share / 100 if 1 < share <= 100 else 0.1}"
        case ["filters", name], str() if (rows := unparsable.of_filter(value)) is not None:
            return f"{name}: {rows}"
        case ["run"] | ["about" | "sink_options" | "filters", _], str():
            return f"{path[-1]}: {in_flow({_OF_A_TEXT[str(path[0])]: value})}"
        case ["metrics", name, "nan"], 0 | "0" | "zero" | "zeros" | "fill" | "fillna" | "replace":
            entry = {"expr": name} | {key: item for key, item in data["metrics"][name].items() if key != "nan"}
            entry |= reduced(str(entry["expr"])) or {}
            entry["expr"] = f"{entry['expr']} if present({entry['expr']}) else 0"
            return f"{name}: {in_flow(entry)}"
        case ["metrics", name, "over"], str() if value in AXES_OF_METRICS:
            axis = "token" if value.startswith("token") else "completion"  # a group's mean is over its completions
            entry = {key: item for key, item in data["metrics"][name].items() if key != "over"}
            edit = {**entry, **of_each(name, entry, axis)}
            way = idioms.reduction(str(edit.get("combine")))
            edit.pop("combine", None)
            edit |= {"reduce": way} if is_reduction(way, 1) else {}  # `combine` was meant to reduce along the axis
            return f"{name}: {in_flow(edit)}: `over` of a metric says which steps or ranks it covers"
        case ["metrics", _, "reduce"], int() | float() | [*_] if not isinstance(value, bool):
            levels = [*map(_level, listed(value))]
            return f"reduce: {in_flow(levels if isinstance(value, list) else levels[0])}"
        case ["metrics", _, "reduce"], Mapping() if isinstance(level := _level(value), str):
            return f"reduce: {level}"
        case ["metrics", _, "reduce"], Mapping() if True in value.values():
            return f"reduce: {in_flow([*value])}"
        case ["metrics", _, "reduce"], Mapping() if value and all(isinstance(item, Mapping) for item in value.values()):
            calls = [
                f"{name}({', '.join(f'{key}={item}' for key, item in keyed.items())})" for name, keyed in value.items()
            ]
            calls = [bins.of_reduce(call, {}) or call for call in calls]
            return f"reduce: {in_flow(calls if len(calls) > 1 else calls[0])}"
        case ["metrics", _, "reduce"], Mapping():
            return f"reduce: {in_flow([text if suffix == text else {suffix: text} for suffix, text in value.items()])}"
        case ["metrics", _, "combine"], "pstd" | "stddev" | "stdev" | "std_dev" | "standard_deviation":
            return "combine: std"
        case ["metrics", _, "alias"], _ if not isinstance(value, list):
            return f"alias: {in_flow([*value.values()] if isinstance(value, Mapping) else [value])}"
        case [*_, "name"], Mapping() if value and all(item is None for item in value.values()):
            return f'name: "{{{"}/{".join(map(str, value))}}}"'
        case ["tables", _, "to"], str() | list():
            return f"to: {switched(value)}"
        case ["tables", _, "filter"], [_, *_] if all(isinstance(item, Mapping) for item in value):
            keys_of = [key for item in value for key in item]
            choices = {"bottom" if key == "top" else key for key in keys_of if key in _CHOICES}
            if len(keys_of) == len({*keys_of}) and len(choices) <= 1:  # a dash before each key
                return f"filter: {in_flow({key: word for item in value for key, word in item.items()})}"
            return f"filter: {in_flow(value[0])}, and a table of its own for each further filter"
        case ["tables", _, "filter"], {"within": int() as steps, **chosen}:
            return f"filter: {in_flow(chosen)}, and `every: {steps}` beside it"
        case ["every"], {"train": int() as steps, **modes}:
            rest = {mode: {"every": count} for mode, count in modes.items()}
            return f"every: {steps}" + (f", and modes: {in_flow(rest)}" if rest else "")
        case ["filters", _, "within"], int():
            return f"drop it, and `every: {value}` of the table"
        case ["schemas", _, column], str() | {"type": str()} if (limited := _limited(column, value, data)) is not None:
            return in_flow({column: limited})[1:-1]
        case ["tables", _, "filter"], [first, *_]:
            return f"filter: {in_flow(first)}, and a table of its own for each further filter"
        case ["schemas", name, key], str() | list() if key in _BASES and (
            extended := _with_columns(name, key, listed(value), data)
        ):
            return f"{extended}: a schema has all its columns"
        case ["schemas", name, "columns" | "fields"], list():
            return f"{in_flow(_columns(value))[1:-1]}: the columns stand below `{name}` themselves"
        case ["schemas", name], list():
            return f"{name}: {in_flow(_columns(value))}"
        case ["tables", name, "columns" | "schema"], Mapping() | list():
            columns = value if isinstance(value, Mapping) else _columns(value)
            return f"schemas: {{{name}: {in_flow(columns)}}}   and in the table `schema: {name}`"
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


_BASES = {*elsewhere.words("bases"), "defaults"}  # keys for what a schema is built on


def _with_columns(name: str, key: str, bases: list[Any], data: Mapping[str, Any]) -> str | None:
    """A schema with the columns of other schemas in place of a key that names these; None for other names."""
    schemas = data.get("schemas") or {}
    built = {str(base): schemas.get(base) if isinstance(base, str) else None for base in bases}
    if not built or name in built or any(not isinstance(one, Mapping) or _BASES & one.keys() for one in built.values()):
        return None
    columns = {column: spec for base in [*bases, name] for column, spec in schemas[base].items() if column != key}
    return in_flow({name: columns})[1:-1]


def _is_signal(name: str, data: Mapping[str, Any]) -> bool:
    return name in entry_names(data, "signals", "derived")


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


def selector_of(word: str) -> str:
    """The selector for a word that means all metrics or all tables; any other word as it is."""
    return {"all": "*", "everything": "*", "metrics": "*", "tables": "table:*"}.get(word, word)


def as_profile(name: str, value: Any) -> Any:
    """A list of metrics as a profile. `slim` exists and shows them in addition; any other profile shows only them."""
    if isinstance(value, Mapping):
        return value
    items = value if isinstance(value, list) else re.split(r"[\s,]+", value) if isinstance(value, str) else [value]
    words = [selector_of(item) if isinstance(item, str) else item for item in items]
    if words == ["*"]:
        return {"only": words} if name == "slim" else {}
    return {"show" if name == "slim" else "only": words}


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


def _columns(items: Iterable[Any]) -> dict[str, Any]:
    """The schema for a list of names and maps. A name alone is a column with the signal of that name."""
    columns: dict[str, Any] = {}
    for item in items:
        columns.update([(item, {})] if isinstance(item, str) else filter(None, [_entry("schemas", item)]))
    return columns


def as_map(section: str, value: Any, below: Mapping[str, Any] | None = None) -> str:
    """A word, or a list of words or named maps, as a YAML map in flow style with an id for each item.

    ``below`` are the entries of lower layers.
    """
    items = [value] if isinstance(value, str) and section in ("signals", "metrics", "alerts") else value
    entries = [_entry(section, item) for item in items] if isinstance(items, list) else []
    named = [entry for entry in entries if entry is not None]
    if section == "alerts":
        named = [(id, over_preset(id, entry, (below or {}).get(id, ()))) for id, entry in named]
    shown = [f"{id}: {in_flow(entry)}" for id, entry in named[:3] if len(named) == len(entries)]
    return "{" + ", ".join(shown or ["my_id: ..."]) + ", ..." * (len(shown) == 3 < len(entries)) + "}"


def sinks_and_options(value: Any) -> tuple[list[str], dict[str, Any]]:
    """Split a list or a map of sinks with options into the names of the sinks and the options by name.

    A sink that is switched off is left out, such as one with `enabled: false`, or `wandb: null` beside `console: {}`.
    """
    null = False if isinstance(value, Mapping) and any(item in ({}, True) for item in value.values()) else None
    items = map(_named, listed(value))
    pairs = [
        (str(name), null if said is None else said)
        for item in items for name, said in (item.items() if isinstance(item, Mapping) else [(item, True)])
    ]  # fmt: skip
    on = {name: _without_switches(item) for name, item in pairs if not is_off(item)}
    options = {name: item for name, item in on.items() if item and item is not True}
    return [*on], options


def _without_switches(options: Any) -> Any:
    """Options of a sink without the keys that switch it on or off. A text alone is its profile."""
    if isinstance(options, Mapping):
        return {key: value for key, value in options.items() if key not in _SWITCHES}
    return {"profile": options} if isinstance(options, str) else options


def _named(item: Any) -> Any:
    """Rewrite ``{kind: wandb, project: x}`` as ``{wandb: {project: x}}``; any other item stays."""
    called = isinstance(item, Mapping) and not {"kind", "name", "type"}.isdisjoint(item)
    return dict([entry]) if called and (entry := _entry("sinks", item)) is not None else item


def as_sinks(value: Any) -> str:
    """Sinks in YAML: the list `sinks`, and the map `sink_options` if there are options."""
    names, options = sinks_and_options(value)
    return f"sinks: {in_flow(names)}" + (f"\nsink_options: {in_flow(options)}" if options else "")


def of_prometheus(key: str, value: Any) -> tuple[str, str]:
    """The key and value for two keys of Prometheus' alerts: the level for `labels`, the text for `annotations`."""
    texts = [str(text) for text in value.values()] if isinstance(value, Mapping) else []
    if key == "labels":
        return "level", next((near for text in texts if (near := nearest(text, ("info", "warn", "error")))), "error")
    return "text", texts[0] if texts else "an alert"


def counted(text: Any) -> int | None:
    """The number in ``5m`` or ``50 steps``; None for anything else."""
    match = re.fullmatch(r"\s*(\d+) *[a-z]+\s*", str(text))
    return None if match is None else int(match[1])


_TEXTS = re.compile(  # typical names of signals with labels or texts
    r"(\w+_)?(source|dataset|domain|task|topic|category|subset|split|language|difficulty|kind|type|label|text|prompt|"
    r"answer|response|question|solution)"
)
_NAMES = ("id", "name", "key", "metric", "signal", "kind", "type", "alert")  # keys that name an entry of a list


def _entry(section: str, value: Any) -> tuple[str, Any] | None:
    """The id and the value of a list's entry, to put it into a map. None if the entry has no usable id."""
    if section == "modes":
        return (value, {"prefix": f"{value}/"}) if isinstance(value, str) else None
    if isinstance(value, str):
        id = "_".join(re.findall(r"[a-z_]\w*", value)) or "my_id"
        if section in ("signals", "metrics") and re.match(r"[a-z_]\w*\Z", value):
            ending = idioms.of_ending(value)
            metric = f"{ending[1]}({ending[0]})" if ending else "mean"
            axis = "completion text" if _TEXTS.fullmatch(value) else "completion"
            return id, axis if section == "signals" else metric
        condition = re.fullmatch(r"(\w+)\s*([<>]=?\s*\S+)", value) if section == "alerts" else None
        return (condition[1], condition[2]) if condition else (id, value)
    if not isinstance(value, Mapping):
        return None
    called = next((key for key in _NAMES if isinstance(value.get(key), str)), None)
    if called is None:
        return next(((str(key), value) for key, value in value.items()), None) if len(value) == 1 else None
    renames = {"expr": "when"} if section == "alerts" else {}
    rest = {renames.get(key, key): item for key, item in value.items() if key != called}
    for key in {"for", "every"} & rest.keys():  # both keys count steps or log events
        rest[key] = counted(rest[key]) or rest[key]
    for key in {"labels", "annotations"} & rest.keys() if section == "alerts" else ():
        rest.update([of_prometheus(key, rest.pop(key))])
    id = re.sub(r"[^a-z0-9_]+", "_", value[called].lower()).strip("_") or "my_id"
    return id, rest["expr"] if section == "metrics" and set(rest) == {"expr"} else rest


def without_sink(name: str, data: Mapping[str, Any]) -> str:
    """The fix for a sink that is switched off: the list `sinks` without it."""
    names, _ = sinks_and_options(data.get("sinks") or [])
    return as_sinks([sink for sink in names if sink != name]) if name in names else "drop it: no sink has this id"


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


def is_off(options: Any) -> bool:
    """Whether the options of a sink switch it off."""
    if not isinstance(options, Mapping):
        return options is False
    return any(options.get(key) is on for key, on in _SWITCHES.items())


_OF_A_TEXT = {"run": "name", "about": "help", "sink_options": "profile", "filters": "where"}  # the key that a text is
_SWITCHES = {"enabled": False, "enable": False, "active": False, "use": False, "disabled": True, "disable": True}


def switched(value: Any) -> str:
    """Names of sinks as a YAML map with true for each."""
    return in_flow(value if isinstance(value, Mapping) else dict.fromkeys(sinks_and_options(value)[0], True))
