"""Fixes for keys of other tools, from the tables of ``errors/``, filled with the key's value and entry."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from declog.errors import Path, elsewhere, in_flow
from declog.errors.elsewhere import SYNONYMS
from declog.language.fixes.lists_as_maps import is_off, sinks_and_options, switched, without_sink
from declog.language.fixes.modes import of_one_mode, words_of_evaluations
from declog.language.fixes.tracker_names import id_of, in_formula, reductions_of
from declog.language.keys import entries, entry_names, keys, keys_at
from declog.language.notation import SIGNS, WORD, both, bounds, reduced
from declog.language.parser import body_of, names_in
from declog.language.smoothing import Smoothing
from declog.language.spec import IDENTIFIER, AboutSpec, AlertSpec
from declog.language.tree import at, listed, map_at


def of_other_tools(path: Path, data: Mapping[str, Any]) -> str | None:
    """The fix for a key of another tool, such as `limit` of a table. None if no table of ``errors/`` has the key."""
    section, *ids, key = map(str, path) if len(path) > 1 else ("", str(path[0]))
    section = "filters" if ids[1:] == ["filter"] else section
    value, entry = at(data, path), at(data, path[:-1])
    modes = {"train": "train", "training": "train", **words_of_evaluations(entry_names(data, "modes"))}
    template = elsewhere.keys().get(f"{section}.{key}" if section else key)
    named_modes = [modes.get(str(item)) for item in listed(value)]
    of_rows = key == "phase" or template is None or template.startswith(("by: ", "where: ", "filter: {where: "))
    home = {"metrics": "metrics", "filters": "metrics", "tables": "tables"}.get(section)
    home = "alerts" if section == "alerts" and key not in _DELETING else home
    if of_rows and home is not None and named_modes and None not in named_modes:
        template = elsewhere.keys()[f"{home}.mode"]  # `only: eval`
        value = named_modes if len(named_modes) > 1 else named_modes[0]
    of_wandb = _is_of_wandb(key) if section == "run" else key == "tags"
    sinks, _ = sinks_and_options(data.get("sinks") or [])
    recorded = {**_recorded(data.get("run"), sinks, moved=section == "run"), key: at(data, path)}
    if section in ("run", "") and of_wandb and "wandb" not in sinks:
        tagged = {"config": recorded}
        edit = in_flow(tagged if section else {"run": tagged})[1:-1]
        them, kind = ("them", "tags") if key == "tags" else ("it", key)
        template = f"{edit}, which records {them} with the run; as {kind} only `wandb` has {them}"
    if template is None or (value is None and re.search("<(value|named|switched|profiled)>", template)):
        return None
    if "<named>" in template and isinstance(value, Mapping) and not all(map(_is_name, value.values())):
        template = "<defined>"  # `aliases: {w: exp(a - b)}`
    if template == "by: <value>" and _is_number(value, data):  # a number is no label: it names a tracker's section
        template = "name: <value>/<id>"
    if template == "columns: <value>" and isinstance(value, str):
        value = re.split(r"[\s,]+", value)
    id = "".join(ids[-1:] if section == "signals" else ids[:1])
    expr = str(entry.get("formula", entry.get("expr", id))) if isinstance(entry, Mapping) else id
    is_computed = section == "metrics" and re.match("expr: .*<(expr|term)>", template) is not None
    shown = in_flow(value)
    if is_computed:
        if (computed := _computed(template, expr, value, data, formula="formula" in entry)) is None:
            return None
        template, expr = computed
        operation = isinstance(value, str) and not isinstance(body_of(value), ast.Name | ast.Call | ast.Constant | None)
        shown = f"({value})" if operation else shown
    facts = {"key": key, "value": shown, "id": id, "expr": expr, "switched": switched(value)}
    facts["rows"] = str((reduced(expr) or {"expr": expr})["expr"])
    facts["term"] = expr if isinstance(body_of(expr), ast.Name | ast.Call) else f"({expr})"
    items = listed(value)
    if "<listed>" in template and not all(isinstance(item, str) for item in items):
        return None
    facts["recorded"] = in_flow(recorded)
    facts["listed"] = in_flow(items)
    facts["axis_ids"] = "size" if type(value) is int else "ids" if ids[:1] == ["completion"] else "of"
    facts["room"], facts["ema"] = in_flow(_room(key, value, entry)), Smoothing.weighing(value, key)
    facts["of_mode"] = in_flow(_of_mode(key, value) or "mode == 'eval'")
    facts["switch"] = "true" if value is True else "false"
    good = {True: "up", False: "down"}.get(value is ("lower" not in key and "min" not in key), "up")
    if not isinstance(value, bool):
        good = elsewhere.meanings("good").get(str(value).lower(), "up, or down")
    facts["good"], facts["subject"] = good, value if isinstance(value, str) else id
    metrics = map_at(data, "metrics")
    if section == "alerts" and isinstance(entry, Mapping):
        limit = bounds(id, entry)
        when = str(entry.get("when", limit or f"{id} > 0.5"))
        rest = {word: item for word, item in entry.items() if word in keys(AlertSpec) and word not in (*SIGNS, "when")}
        facts["in_one"] = of_one_mode(when, value, metrics)
        after = {"when": both(when, f"step >= {value}")}
        facts["after"] = in_flow({id: {**after, **rest}} if limit else after)[1:-1]
    facts["defined"] = _defined(value, data)
    facts["profiled"] = in_flow({sink: {"profile": id} for sink in sinks_and_options(value)[0]})
    facts["named"], facts["metric"] = in_flow(_named_anew(value, metrics)), in_formula(id, metrics.get(id))
    fix = re.sub(rf"<({'|'.join(facts)})>", lambda match: facts[match[1]], template)
    word, _, text = fix.partition(": ")
    if is_computed and body_of(text) is not None:  # with quotes, where it has commas
        return in_flow({word: text})[1:-1]
    if template.startswith("where: ") and isinstance(entry, Mapping) and entry.get("where") is not None:
        further = fix.removeprefix("where: ")
        further = json.loads(further) if further.startswith('"') else further
        fix = f"where: {in_flow(both(str(entry['where']), str(further)))}"
    if section == "tables" and isinstance(entry, Mapping) and isinstance(named := entry.get("filter"), str):
        fix = fix.replace("filter: {", f"filter: {{from: {named}, ", 1) if IDENTIFIER.match(named) else fix
    of_sink = re.match(r"sink_options: \{(\w+): ", fix) if not section else None
    if of_sink is not None and of_sink[1] not in sinks:
        return f"{fix}, which takes effect with `sinks: {in_flow([*sinks, of_sink[1]])}`"
    return fix


def of_axis(path: Path, data: Mapping[str, Any]) -> str | None:
    """The fix for an unknown key in ``axes``, at the axis that has such a key: `size` of completions is of groups."""
    fix = of_other_tools(path, data)
    edit = fix or f"{path[-1]}: {in_flow(at(data, path))}"
    owners = [axis for axis in keys_at(("axes",)) if edit.partition(":")[0] in keys_at(("axes", axis))]
    if not owners or path[1] == owners[0]:
        return fix
    return f"{owners[0]}: {{{edit}}}" if len(path) == 2 else f"axes: {{{owners[0]}: {{{edit}}}}}"


def _computed(
    template: str, expr: str, value: Any, data: Mapping[str, Any], *, formula: bool
) -> tuple[str, str] | None:
    """The template of an edit that computes with the expression or the formula of a metric, and what it computes with.

    An aggregate over an axis stands inside of a reduction, is of one value per completion, and no formula has one.
    """
    if " - mean(<expr>" in template and isinstance(value, str) and value not in _SCORES:  # `normalize: sequence`
        template = elsewhere.keys().get(f"metrics.per_{value}", "")
    if not template or (formula and "over=" in template):
        return None
    if "over=" not in template:
        return template.replace("expr", "formula", 1) if formula else template, expr
    call = reduced(expr) or {}
    inside = str(call.get("expr", expr))
    tokens = {path[-1] for path, signal in entries(data, "signals") if map_at({"": signal}, "").get("axis") == "token"}
    if "over=completion" in template and (body := body_of(inside)) and not tokens.isdisjoint(names_in(body)):
        inside = f"mean({inside}, over=token)"
    template = template.removeprefix("expr: ")
    return f"expr: {call['reduce']}({template})" if call else f"expr: {template}", inside


_SCORES = ("batch", "group", "prompt", "standard", "std", "mean_std", "whiten", "zscore", "z_score", "z-score")


def of_verb(section: str, word: str, data: Mapping[str, Any]) -> str | None:
    """The fix for ``rename: {reward: score}`` in a section, here `metrics: {reward: {name: score}}`.

    ``word`` is a key of entries, here or in another tool, and its value names entries. Returns None for anything else.
    """
    if section not in _OF_ENTRIES:
        return None
    template = elsewhere.keys().get(f"{section}.{word}", "")
    said = re.match(r"(\w+): (?:(<ema>)|(<value>)|(true|false)\b)", template)
    entry_key = next((key for key in (word, SYNONYMS.get(word, "")) if key in keys_at((section, ""))), None)
    of_about = SYNONYMS.get(word, word) in keys(AboutSpec) and section == "metrics"
    if not (template or entry_key or of_about or word in (*_DELETING, *_KEEPING) or is_off({word: True})):
        return None
    ids, beside = map_at(data, section), map_at(data, "metrics") if section in ("alerts", "about") else {}
    parts = [item if isinstance(item, Mapping) else {str(item): True} for item in listed(ids[word])]
    names = {str(name): item for part in parts for name, item in part.items()}
    id_by_name = {name: name if name in {**ids, **beside} else id_of(name, ids) for name in names}
    if not names or None in id_by_name.values() or word in id_by_name.values():
        return None
    if template.startswith("drop it"):
        return template
    if word in _KEEPING and section == "metrics":
        return f"profiles: {{full: {{only: {in_flow([*id_by_name.values()])}}}}}"
    if of_about and said is None is entry_key:
        section, entry_key = "about", SYNONYMS.get(word, word)
    entries: dict[str, Any] = {}
    entry: dict[str, Any] | None
    switch = (said[1] if said and said[3] else entry_key) in (None, "enabled", "log")
    for name, item in names.items():
        if item is True and not switch:  # of a list
            return None
        if said is not None and entry_key != word:
            entry = {said[1]: Smoothing.weighing(item, word) if said[2] else item if said[3] else said[4] == "true"}
            entry = named(str(item), ids.get(id_by_name[name])) if said[1] == "name" else entry
        elif entry_key is not None:
            entry = {entry_key: item}
        elif item is True and is_off({word: True}):
            entry = {"enabled": False}
        elif word in _DELETING:
            entry = None
        else:
            return None
        entries[str(id_by_name[name])] = entry
    return f"{section}: {in_flow(entries)}"


_OF_ENTRIES = ("metrics", "tables", "alerts", "about")
_DELETING, _KEEPING = elsewhere.words("deleting"), elsewhere.words("keeping")


def _recorded(run: Any, sinks: Collection[str], *, moved: bool) -> dict[str, Any]:
    """The `config` of a run, which is recorded, with the other keys of `run` that belong there.

    ``moved`` says whether such keys stand in `run` itself.
    """
    if not isinstance(run, Mapping):
        return {}
    answers = {key: elsewhere.keys().get(f"run.{key}", "") for key in run if moved}
    beside = {
        key: run[key] for key, text in answers.items()
        if text.startswith("config: <") or (_is_of_wandb(str(key)) and "wandb" not in sinks)
    }  # fmt: skip
    return {**map_at(run, "config"), **beside}


def _is_of_wandb(key: str) -> bool:
    """Whether a key of `run` is an option of wandb."""
    return elsewhere.keys().get(f"run.{key}", "").startswith("sink_options: {wandb:")


def _is_number(name: Any, data: Mapping[str, Any]) -> bool:
    """Whether a name is a float signal or a derived signal, whose values are no labels."""
    if not isinstance(name, str):
        return False
    signals = [entry for path, entry in entries(data, "signals") if path[-1] == name and isinstance(entry, Mapping)]
    return name in entry_names(data, "derived") or any(one.get("type", "float") == "float" for one in signals)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w/.{}-]*", value) is not None


def _defined(value: Any, data: Mapping[str, Any]) -> str:
    """The sections for a map of numbers and expressions; examples for any other value."""
    if not isinstance(value, Mapping):
        of_signals = "derived: {ratio: exp(logprobs - old_logprobs)}"
        return f"of signals `{of_signals}`, of metrics `metrics: {{ratio: {{formula: kl / reward}}}}`"
    of_rows = entry_names(data, "signals", "derived", "constants") | {*value}
    sections: dict[str, dict[str, Any]] = {"constants": {}, "derived": {}, "metrics": {}}
    for name, item in value.items():
        body = body_of(item) if isinstance(item, str) else None
        if body is None or not names_in(body):
            sections["constants"][name] = item
        elif reduced(item) or not names_in(body) <= of_rows - sections["metrics"].keys():
            sections["metrics"][name] = item if reduced(item) else {"formula": item}
        else:
            sections["derived"][name] = item
    return "\n".join(in_flow({section: named})[1:-1] for section, named in sections.items() if named)


def _of_mode(key: str, value: Any) -> str | None:
    """The condition on `mode` for a key that names modes: `mode: eval`, `modes: [eval, test]`, `train: false`."""
    if isinstance(value, bool):
        mode = "eval" if "eval" in key else "train" if "train" in key else None
        return None if mode is None else f"mode {'==' if value else '!='} '{mode}'"
    names = re.split(r"[\s,]+", value) if isinstance(value, str) else value
    if not isinstance(names, list) or not names:
        return None
    if not all(isinstance(name, str) and WORD.match(name) for name in names):
        return None
    if key in _DELETING:
        return f"mode != '{names[0]}'" if len(names) == 1 else f"mode not in {names}"
    return f"mode == '{names[0]}'" if len(names) == 1 else f"mode in {names}"


def _room(key: str, value: Any, entry: Any) -> Any:
    """The `max_chars` for a key that says how much of a long text is kept, or which end is kept or cut."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    room = entry.get("max_chars", 400) if isinstance(entry, Mapping) else 400
    start = ("right", "end", "tail", "last") if "trunc" in key else ("left", "start", "head", "first")
    return room if value in start or isinstance(room, Mapping) else {"tail": room}


def of_sink_option(sink: str, key: str, data: Mapping[str, Any]) -> str | None:
    """The fix for an option that a sink does not have, or not in that form.

    An option that switches a sink off becomes an edit of the list `sinks`. Returns None for an unknown option.
    """
    value = data["sink_options"][sink][key]
    if sink in ("wandb", "trackio") and key in ("dir", "directory", "path", "save_dir"):
        return f"drop it: {sink} writes where {sink.upper()}_DIR of the environment says"
    if key in ("path", "file", "filename", "file_name") and "." in (name := str(value).rsplit("/", 1)[-1]):
        folder, named = str(value).removesuffix(name).rstrip("/"), "the name of the file is the sink's"
        if not folder:
            return f"drop it: its files lie in the run's folder, and {named}"
        return f"dir: {folder}, {'which all runs share' if folder[0] in '/~' else 'below the run folder'}; {named}"
    if (fix := of_other_tools(("sink_options", sink, key), data)) is not None:
        return fix
    if is_off({key: value}):
        return without_sink(sink, data)
    return None


def _named_anew(names: Any, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `metrics` for a map of metrics to new names; an example for any other value."""
    if not isinstance(names, Mapping):
        names = {next(iter(metrics), "reward"): "train/reward"}
    swapped = {name for name, new in names.items() if _is_name(new) and new in metrics and name not in metrics}
    pairs = [(new, name) if name in swapped else (name, new) for name, new in names.items()]
    ids = {id_of(str(name), metrics) or str(name): new for name, new in pairs}
    return {id: named(str(new), metrics.get(id)) for id, new in ids.items()}


def named(name: str, entry: Any) -> dict[str, Any]:
    """The key `name` of a metric; each of several reductions and each label needs a name of its own."""
    labelled = isinstance(entry, Mapping) and bool(entry.get("by"))
    fields = {"{reduce}": len(reductions_of(entry)) > 1, "{label}": labelled}
    return {"name": "/".join([name, *(field for field, needed in fields.items() if needed and field not in name)])}
