"""Fixes for common mistakes in a config's shape: keys of other tools, values in another form.

``answered`` takes a problem and returns it with a better fix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from declog.errors import Path, Problem, elsewhere, in_flow, nearest, nested
from declog.errors.elsewhere import SYNONYMS
from declog.language.dtypes import AXES
from declog.language.fixes import (
    alert_keys,
    best_so_far,
    bins,
    chosen_rows,
    idioms,
    lists_as_maps,
    over_axes,
    profiles,
    wrong_forms,
)
from declog.language.fixes.earlier_steps import BEFORE, CHANGES, RATIOS, SLOPES
from declog.language.fixes.labelled_rows import of_labelled_rows, of_labelled_table
from declog.language.fixes.library_calls import SPANS, as_rate, of_level_beside
from declog.language.fixes.other_tools import of_axis, of_other_tools, of_verb
from declog.language.fixes.unknown_names import of_fewer_values
from declog.language.fixes.wrong_types import bucketed, declared_before, edges_of, of_base
from declog.language.keys import SECTIONS, entries, entry_names, keys, keys_at, model_of, section_of, sections_with
from declog.language.model import Scalar
from declog.language.notation import OF_PARTS, both, is_reduction, of_parts, reduced, signal_of
from declog.language.smoothing import MOST, Smoothing
from declog.language.spec import COMBINE, AboutSpec, LogSpec, MetricSpec, SignalSpec
from declog.language.tree import at, listed, map_at

EXTENDS = elsewhere.words("bases")  # words for the defaults list


def answered(problem: Problem, data: Mapping[str, Any]) -> Problem | None:
    """The problem, with a better fix if its key or the form of its value is a common mistake.

    Returns None if another problem reports the same mistake.
    """
    section, *names = map(str, problem.path)
    if problem.message_key == "DL202.lists":
        return problem
    if names and (verb := of_verb(section, names[0], data)):
        first = next(iter(at(data, (section, names[0]))))
        edit = verb if verb.startswith("drop it") else f"{verb}, which replaces `{names[0]}`"
        said = Problem.of("DL201.key", (section, names[0]), key=names[0], fix=edit)
        return said if names[1:] in ([], [first]) else None
    if problem.code == "DL201" and not names and _is_config(data[section]):
        return Problem.of("DL201.wrapped", section, name=section)
    if problem.code == "DL201" and problem.path == ("defaults",):
        return Problem.of("DL201.under_declog", "defaults")
    if problem.code == "DL202":
        return declared_before(problem, data) or of_base(problem, data) or _of_form(problem, data)
    entry = at(data, problem.path[:2]) if problem.code == "DL201" and section == "metrics" else None
    if isinstance(entry, Mapping) and (call := idioms.of_target(names[0], entry, keys(MetricSpec))) is not None:
        return replace(problem, fix=call) if names[1] in idioms.CALLED else None
    fix = _of_unknown_key(problem, data) if problem.code == "DL201" else None
    if problem.code == "DL203" and section == "signals" and "type" in (signal := at(data, problem.path)):
        fix = f"{names[-1]}: {signal_of(signal)}"
    if len(problem.path) > 2 and re.fullmatch(r"about: \{.*\}", fix or ""):
        fix = f"{fix}, a section of its own"
    return problem if fix is None else replace(problem, fix=fix)


def _is_config(value: Any) -> bool:
    """Whether a value is a whole config: it has a defaults list."""
    return isinstance(value, Mapping) and isinstance(value.get("defaults"), list)


def _of_form(problem: Problem, data: Mapping[str, Any]) -> Problem | None:
    """The problem of a value in the wrong form for its key. None for a `combine` beside an axis in `over`."""
    key, section = str(problem.path[0]), data.get(str(problem.path[0]))
    if (never := wrong_forms.of_never(problem.path, data)) is not None:
        return replace(problem, fix=f"{problem.fix}, or where it is never to be logged: {never}")
    if problem.path[-1] in ("top", "bottom") and (fix := wrong_forms.of_share(problem.path, data)) is not None:
        return replace(problem, fix=fix)
    if key == "alerts" and len(problem.path) == 2:
        problem = alert_keys.of_form(problem, data)
    for depth in (3, 4) if problem.path[0] == "schemas" else (3,):
        if (fix := wrong_forms.in_one_form(problem.path[:depth], data)) is not None:
            return replace(problem, path=problem.path[:depth], fix=fix)
    if problem.path[::2] == ("metrics", "over"):
        fix = _of_last_steps("over", str(problem.path[1]), at(data, problem.path[:2]))
        return problem if fix is None else replace(problem, fix=fix)
    if problem.path[::2] == ("metrics", "combine") and isinstance(entry := at(data, problem.path[:2]), Mapping):
        if str(entry.get("over")) in over_axes.AXES_OF_METRICS:
            return None
        fix = _of_combine(str(problem.path[1]), entry)
        return problem if fix is None else replace(problem, fix=fix)
    if key == "sinks":
        return Problem.of("DL202.sinks", problem.path, fix=lists_as_maps.as_sinks(section))
    if len(problem.path) > 1 or key not in SECTIONS:
        return problem
    if isinstance(section, str) and (entry := re.match(r"([a-z_]\w*)(?::(?=\S)| *= *)(.*)", section)):
        return replace(problem, source=section, fix=f"a key needs a colon and a blank: `{entry[1]}: {entry[2]}`")
    if isinstance(section, str) and key == "profiles":
        return Problem.of("DL202.profile", "profiles", name=section)
    shown = lists_as_maps.as_map(key, section)
    return replace(problem, fix=f"signals: {{any: {shown}}}" if key == "signals" else f"{key}: {shown}")


def _of_unknown_key(problem: Problem, data: Mapping[str, Any]) -> str | None:
    """The fix for an unknown key: the right key for its purpose, or the section that it belongs to."""
    *names, word = map(str, problem.path)
    if (fix := _of_dotted_key(problem.path, data)) is not None:
        return fix
    if names == ["axes"] and (signals := of_parts(word, data)):
        return f"drop it, and signals: {in_flow({f'{word}s': signals})}{OF_PARTS}"
    section = "filters" if names[2:] == ["filter"] else names[0] if len(names) == 2 else ""
    if names and (fix := _of_entry(section, word, names[-1], at(data, problem.path[:-1]), data)) is not None:
        return fix
    if len(problem.path) > 1:
        fix = of_axis(problem.path, data) if names[0] == "axes" else of_other_tools(problem.path, data)
        return fix or _of_lost_sign(problem.path)
    key, value = word, data[word]
    if "<named>" not in elsewhere.keys().get(word, ""):
        moved = of_verb("metrics", word, {"metrics": {**map_at(data, "metrics"), word: value}})
        if moved is not None and isinstance(value, Mapping | list):
            return moved
    bare = key.removeprefix("run_")
    home = next((section for section in keys(LogSpec) if bare in keys_at([section])), None)
    moved_key = None if home is None else in_flow({home: {bare: value}})[1:-1]
    of_tool = isinstance(value, str | None) and value not in entry_names(data, "signals")  # `group: math` is wandb's
    if (fix := (not of_tool and moved_key) or of_other_tools(problem.path, data) or moved_key) is not None:
        return fix
    if key == "per_rank":
        return f"axes: {{rank: {'each' if value else 'all'}}}"
    if key in lists_as_maps.sinks_and_options(data.get("sinks") or [])[0]:
        return f"sink_options: {{{key}: {in_flow(value)}}}"
    if value is None and set(data) == {key}:  # a file with one word
        return f"a preset is extended by `defaults: [{key}, _self_]`; a key has a value: `{key}: ...`"
    if key in EXTENDS:
        base = ", ".join(re.sub(r"\.ya?ml$", "", one) for one in listed(value) if isinstance(one, str)) or "grpo"
        return f"defaults: [{base}, _self_]"
    if nearest(key, ["defaults"]):
        return "did you mean `defaults`?"
    if key in ("packs", "pack"):
        packs = in_flow(listed(value)).replace(" ", "")
        defaults = f"defaults: [grpo, packs: {packs}, _self_]"
        return f"a pack is chosen in the defaults list: {defaults}, or +declog/packs@declog={packs}"
    near = nearest(key, keys(LogSpec))
    empty = [section for section in SECTIONS if section in data and data[section] is None]
    if empty and near is None and isinstance(value, str | Mapping):
        return f"indent it below `{empty[-1]}:`, which is empty here"
    if near is not None:
        return None
    if isinstance(value, Mapping) and (home := section_of(value)) is not None:
        return in_flow({home: {"any": {key: value}} if home == "signals" else {key: value}})[1:-1]
    if (fix := _elsewhere(key, value)) is not None:
        return fix
    if _is_metric(value) or key in entry_names(data, "signals", "derived", "metrics"):
        return f"metrics: {{{key}: {in_flow(value)}}}"
    if isinstance(value, Scalar):
        return f"run: {{config: {{{key}: {in_flow(value)}}}}}, which records it with the run\n{problem.fix}"
    return None


def _of_entry(section: str, word: str, name: str, entry: Any, data: Mapping[str, Any]) -> str | None:
    """The fix for an unknown key of an entry of a section; None if it is no known mistake there."""
    match section:
        case "metrics" if word in entry_names(data, "signals", "derived") and is_reduction(str(entry[word]), 1):
            return _rewritten(name, entry, word, expr=word, reduce=entry[word])
        case "metrics" | "filters" | "tables" | "profiles" | "alerts" if word == "phase" and (
            (fix := _of_phase(str(entry[word]), str(entry.get("expr", name)), data)) is not None
        ):
            return fix
        case "metrics":
            return _moved_of_metric(word, name, entry)
        case "filters":
            return of_labelled_rows(word, entry) or chosen_rows.of_rows("filters", word, name, entry)
        case "tables":
            return of_labelled_table(word, entry) or chosen_rows.of_rows("tables", word, "filter", entry)
        case "profiles":
            return profiles.of_extended(word, name, entry, data) or profiles.of_tables(word, name, entry)
        case "alerts":
            fix = of_fewer_values(word, name, entry, map_at(data, "metrics"))
            return fix or alert_keys.moved(word, name, entry, data)
    return None


def _of_dotted_key(path: Path, data: Mapping[str, Any]) -> str | None:
    """The fix for a key that is a path, as in an override: `axes.group.size: 8`. None for another key."""
    parts = str(path[-1]).removeprefix("declog.").split(".")
    if len(parts) < 2 or parts[0] not in keys_at(path[:-1]):
        return None
    if parts[0] == "sinks":
        parts[0] = "sink_options"
    return in_flow(nested(parts, at(data, path)))[1:-1]


def _of_phase(phase: str, text: str, data: Mapping[str, Any]) -> str | None:
    """The fix for the key `phase` of a metric: declare its signals in that phase only, or drop the key.

    Returns None if a signal of the metric is not declared in that phase.
    """
    exprs = {str(path[-1]): item.get("expr") for path, item in entries(data, "derived") if isinstance(item, Mapping)}
    words = set(re.findall(r"[a-z_]\w*", text))
    for _ in exprs:  # adds the signals that derived signals read
        words |= {word for name in words & exprs.keys() for word in re.findall(r"[a-z_]\w*", str(exprs[name]))}
    homes: dict[str, list[str]] = {}
    for path, item in entries(data, "signals"):
        if path[-1] in words and item is not None:
            homes.setdefault(str(path[-1]), []).append(str(path[1]))
    if not homes or any(phase not in named for named in homes.values()):
        return None
    moved = [name for name, named in homes.items() if named[0] != phase]  # by default the first phase is read
    if not moved or [phase] in homes.values():
        return "drop it: its signals are read in that phase"
    edits: dict[str, dict[str, None]] = {}
    for moving in moved:
        for home in homes[moving]:
            if home != phase:
                edits.setdefault(home, {})[moving] = None
    verb, names = "comes" if len(moved) == 1 else "come", " and ".join(f"`{name}`" for name in moved)
    return f"drop it, and where {names} {verb} in `{phase}` only: `{in_flow({'signals': edits})[1:-1]}`"


def _of_lost_sign(path: Path) -> str | None:
    """The fix for a section that is indented too far, and for a key without a colon before its value."""
    if len(path) > 2 and path[1] in SECTIONS:
        return f"move `{path[1]}:` to the left: it stands at the top, beside `{path[0]}:`"
    said = re.fullmatch(r"(\w+)(?: *=(?!=)| ) *(.+)", str(path[-1]))
    if said is None or said[1] not in keys_at(path[:-1]) or said[2].count("(") < said[2].count(")"):
        return None
    return f"{said[1]}: {said[2]}"


def application(data: Mapping[str, Any]) -> Problem | None:
    """The problem of a whole application's configuration without a node ``declog``. None if a key fits a config."""
    if len(data) < 2 or any(_of_a_config(name, value) for name, value in data.items()):
        return None
    return Problem.of("DL201.application", keys=", ".join(f"`{name}`" for name in list(data)[:5]))


def _is_metric(value: Any) -> bool:
    """Whether a value is the short form of a metric: a reduction, or a call of a reduction."""
    return isinstance(value, str) and (is_reduction(value, 1) or reduced(value) is not None)


def _of_a_config(key: str, value: Any) -> bool:
    """Whether a key belongs to a logging config, or was probably meant to."""
    if key in {*keys(LogSpec), *EXTENDS, "packs", "pack"} or _is_metric(value):
        return True
    near = nearest(key, [*keys(LogSpec), "defaults"])
    return near is not None and key != "model" and isinstance(value, Mapping if near in SECTIONS else Scalar)


def _elsewhere(key: str, value: Any) -> str | None:
    """The place of a key that does not belong at the top: `group_size` is `axes.group.size`, `expr` is a metric's."""
    if isinstance(value, Mapping) and key.removesuffix("s") in AXES:
        return f"axes: {in_flow({key.removesuffix('s'): value})}"
    first, _, last = ("group_size" if SYNONYMS.get(key) == "size" else key).partition("_")
    for section in keys(LogSpec):
        for name, inner_key in keys_at([section]).items():
            inner = model_of(inner_key.type)
            word = last if name == first else key
            if inner is not None and word in keys(inner):
                return f"{section}: {{{name}: {{{word}: {in_flow(value)}}}}}"
    homes = sections_with(key)
    return f"it is a key of an entry: {homes[0]}: {{my_id: {{{key}: {in_flow(value)}}}}}" if homes else None


def _moved_of_metric(key: str, name: str, entry: Mapping[str, Any]) -> str | None:
    """The fix for an unknown key of a metric: the right section, or the key for the same purpose."""
    inner = reduced(str(entry[key])) or entry[key]
    foreign = entry.keys().isdisjoint(keys(MetricSpec)) and not nearest(key, keys(MetricSpec))
    if isinstance(inner, Mapping) and inner and foreign:
        named = {**inner, "name": f"{name}/{key}"}
        return f"sections of metrics are prefixes of names: metrics: {{{name}_{key}: {in_flow(named)}}}"
    chosen = entry[key] if SYNONYMS.get(key) == "where" else chosen_rows.best_of(key, entry)
    if isinstance(chosen, Mapping) and (where := chosen_rows.condition_of(chosen)) is not None:
        where = both(str(entry["where"]), where) if "where" in entry else where
        return _rewritten(name, entry, key, expr=entry.get("expr", name), where=where)
    if (shares := _of_shares(key, name, entry)) is not None:
        return shares
    if key == "label" and " " in str(entry[key]):
        return f"about: {{{name}: {{title: {in_flow(entry[key])}}}}}"
    if key in bins.WORDS | {bins.HISTOGRAM} and (histogram := bins.of_keys(name, entry)) is not None:
        return _rewritten(name, entry, key, **histogram)
    if (word := SYNONYMS.get(key, key)) in keys(AboutSpec):
        return f"about: {{{name}: {{{word}: {in_flow(entry.get(key))}}}}}"
    if (so_far := best_so_far.of_run(key, name, entry)) is not None:
        return f"metrics: {in_flow(so_far)}" if len(so_far) > 1 else in_flow(so_far)[1:-1]
    if (levels := of_level_beside(str(entry.get("reduce")), key, entry[key])) is not None:
        return levels
    if key == "per" and entry[key] in ("second", "sec", "s"):
        rest = {word: value for word, value in entry.items() if word in keys(MetricSpec)}
        summed = {"expr": name} if reduced(str(entry.get("expr"))) else {"expr": name, "reduce": "sum"}
        return f"metrics: {in_flow(as_rate(name, {**summed, **rest, 'per': 'second'}))}"
    if key == "per" and entry[key] not in ("group", "prompt"):
        return f"by: {in_flow(entry[key])}"
    if key in over_axes.PER_GROUP:  # per group is an aggregate, per anything else a label
        return f"{name}: {in_flow(over_axes.of_each(name, entry, 'group'))}"
    if key in SPANS and (fix := _of_last_steps(key, name, entry)) is not None:
        return fix
    if SYNONYMS.get(key, key) in ("top", "limit", "head") and "by" in entry and type(entry[key]) is int:
        return f"max_labels: {entry[key]}, of the most frequent labels; no key takes those of the greatest values"
    if key == "window" and not isinstance(entry[key], int):
        return f"over: {SYNONYMS.get(str(entry[key]), 'run')}"
    if isinstance(entry[key], list) and SYNONYMS.get(key, key) in ("bins", "buckets", "edges", "bin_edges"):
        expr, edges = str(entry.get("expr", name)), entry[key]
        if isinstance(label := entry.get("by"), str):
            by = bucketed(label, edges)
            return f"{_rewritten(name, entry, key, by=by)}; {edges_of(by)}"
        by = f"bucket({expr}, {', '.join(map(str, edges))})"
        return f"{_rewritten(name, entry, key, expr=expr, reduce='count', by=by)}: so many between two edges"
    if key in ("type", "kind", "op", "func") and is_reduction(str(entry[key]), 1):
        return f"reduce: {entry[key]}"
    if is_reduction(key, 1) and isinstance(entry[key], str) and "expr" not in entry:  # `mean: reward`
        return _rewritten(name, entry, key, expr=entry[key], reduce=key)
    if key in _OBSERVED and key != "mask":
        signal = {word: value for word, value in entry.items() if word in _OBSERVED}
        return f"observe: {signal['axis'] if [*signal] == ['axis'] else in_flow(signal)}"
    from declog.language.functions import BUILTIN  # imports numpy, which composing alone does not need

    is_function = key in {*BUILTIN.names()} - {"exp", "label", "only", "without"}
    if is_function and SYNONYMS.get(key) != "where" and entry[key] is not None:
        further = listed(entry[key])
        expr = entry.get("expr", name)
        call = reduced(str(expr)) or {"expr": expr}  # the function applies to rows, before the reduction
        arguments = ", ".join(map(str, [call["expr"], *(item for item in further if item is not True)]))
        written = f"{key}({arguments})" if "reduce" not in call else f"{call['reduce']}({key}({arguments}))"
        return _rewritten(name, entry, key, expr=written)
    return None


def _of_shares(key: str, name: str, entry: Mapping[str, Any]) -> str | None:
    """The metrics for the share of each label: ``{expr: count(reward), by: level, share: true}``, ``as: percent``."""
    word = entry[key] if isinstance(entry[key], str) and key not in _SHARES else key
    call = reduced(str(entry.get("expr"))) or entry
    if "by" not in entry or word not in _SHARES or not entry[key] or call.get("reduce") not in ("count", "sum"):
        return None
    parts = {word: value for word, value in entry.items() if word in keys(MetricSpec) and word not in ("name", "tags")}
    shown = {word: entry[word] for word in ("name", "tags") if word in entry}
    percent = "100 * " * word.startswith(("percent", "pct"))
    formula = f"{percent}{name}_1 / sum({name}_1, over=label)"
    hidden = {"expr": name, **parts, "log": False}
    return f"metrics: {in_flow({f'{name}_1': hidden, name: {'formula': formula, **shown}})}"


_SHARES = elsewhere.words("shares")


def _of_last_steps(key: str, name: str, entry: Mapping[str, Any]) -> str | None:
    """The metric over the number of last steps that ``key`` holds; None if ``key`` holds no number of steps."""
    rolling = None if isinstance(entry[key], float) else Smoothing.meant(f"last {entry[key]}")
    if rolling is None:
        return None
    steps = f"{rolling.number:g}"
    pooled = f"every: {steps}, one value for each {steps} steps"
    if "histogram" in str(entry.get("reduce")):
        return pooled
    kept = {word: value for word, value in entry.items() if word in keys(MetricSpec) and word not in (key, "combine")}
    of = {} if "formula" in kept else {"expr": kept.pop("expr", name)}
    over = {"over": kept.pop("over", "step")} if of else {}
    smooth = in_flow({name: {**of, **kept, **over, "combine": str(rolling)}})[1:-1]
    way = kept.get("reduce") or (reduced(str(of.get("expr"))) or {}).get("reduce", "mean")
    if way == "mean" or not of:
        return f"{smooth}; or {pooled}"
    window = in_flow({name: {**of, **kept, "every": int(rolling.number)}})[1:-1]
    return f"{smooth}; or of all rows of {steps} steps, one value for each {steps}: {window}"


def _of_combine(name: str, entry: Mapping[str, Any]) -> str | None:
    """The fix for an unknown `combine`: `delta`, the change since an earlier step, or `rolling_p90(4)` and others."""
    combine = str(entry["combine"])
    rest = {word: value for word, value in entry.items() if word != "combine"}
    said = re.fullmatch(r"([a-z_]+)(?:\((\d+)\))?", combine)
    shown: dict[str, Any] = {word: rest[word] for word in ("name", "tags") if word in rest}
    spans = {word: value for word, value in rest.items() if word not in shown and (word != "over" or value == "run")}
    hidden = {f"{name}_value": {**({} if "formula" in rest else {"expr": name}), **spans, "log": False}}
    one_value = not isinstance(rest.get("reduce"), list) and not isinstance(rest.get("expr"), list)
    one_value = one_value and "observe" not in rest
    if said is not None and said[1] in BEFORE | CHANGES | RATIOS | SLOPES:
        steps = max(int(said[2] or 10) - 1, 1) if said[1] in SLOPES else int(said[2] or 1) or 1
        lag = f"lag({min(steps, MOST)})"
        if said[1] in BEFORE or not one_value:
            return f"combine: {lag}" if said[1] in BEFORE else None
        before = {f"{name}_before": {"formula": f"{name}_value", "combine": lag, "log": False}}
        ratio = f"{name}_value / {name}_before - 1"
        change = f"{name}_value - {name}_before"
        formula = ratio if said[1] in RATIOS else f"({change}) / {steps}" if said[1] in SLOPES else change
        fix = f"metrics: {in_flow({**hidden, **before, name: {'formula': formula, **shown}})}"
        return f"{fix}: from the first to the last of {steps + 1} values" if said[1] in SLOPES else fix
    if said is not None and said[1] == "last" and said[2]:
        return _of_last_steps("last", name, {**rest, "last": int(said[2])})
    other = idioms.reduction(combine)
    if is_reduction(other, 1) and other not in COMBINE and not {"formula", "reduce"} & rest.keys():
        call = reduced(str(rest.get("expr", name))) or {"expr": rest.get("expr", name), "reduce": "mean"}
        rest = {word: value for word, value in rest.items() if word not in ("over", "expr")}
        edit = in_flow({**call, "reduce": other, **rest})
        return f"{name}: {edit}: of all rows of a log event" if call["reduce"] == "mean" else None
    count = int(said[2]) if said is not None and said[2] and said[1][:4] == "pool" else Smoothing.other(combine)
    if not count or Smoothing.meant(combine) is not None or "formula" in rest:
        return None
    rest = {word: value for word, value in rest.items() if word != "over"}
    quantile = re.search(r"p\d+", combine)
    way = next((word for word in COMBINE if word in combine), quantile and quantile[0])
    call = reduced(str(rest.get("expr"))) or {"reduce": rest.get("reduce", "mean")}
    if way in COMBINE and way != call["reduce"]:
        rest |= {"over": "step", "combine": way}
    elif way not in (None, call["reduce"]):
        rest |= {**call, "reduce": way}
    return f"{name}: {in_flow({**rest, 'every': count})}: one value for each {count} steps"


def _rewritten(name: str, entry: Mapping[str, Any], key: str, **new: Any) -> str:
    """The YAML of an entry with new keys in place of an unknown one."""
    rest = {word: value for word, value in entry.items() if word in keys(MetricSpec) and word not in (key, *new)}
    return f"{name}: {in_flow({**new, **rest})}"


_OBSERVED = keys(SignalSpec).keys() - keys(MetricSpec).keys()  # keys of signals only
