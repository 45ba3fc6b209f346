"""Fixes for keys of other tools, from the tables of ``errors/``, filled with the key's value and entry."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class _Use:
    """The use of another tool's key in a config: the section, the id and the keys of its entry, and its value.

    ``template`` says what to write; it is empty for an unknown key. ``expr`` is what an edit of a metric computes with.
    """

    data: Mapping[str, Any]
    section: str
    id: str
    key: str
    value: Any
    entry: Mapping[str, Any]
    template: str
    expr: str

    @property
    def sinks(self) -> list[str]:
        return sinks_and_options(self.data.get("sinks") or [])[0]

    @property
    def computes(self) -> bool:
        return self.section == "metrics" and re.search("<(expr|term)>", self.template) is not None

    @property
    def recorded(self) -> dict[str, Any]:
        """The `config` of the run, which is recorded, with this key and the other keys of `run` that belong there."""
        run, sinks = map_at(self.data, "run"), self.sinks
        answers = {key: elsewhere.keys().get(f"run.{key}", "") for key in run if self.section == "run"}
        beside = {
            key: run[key] for key, text in answers.items()
            if text.startswith("config: <") or (_is_of_wandb(str(key)) and "wandb" not in sinks)
        }  # fmt: skip
        return {**map_at(run, "config"), **beside, self.key: self.value}


def of_other_tools(path: Path, data: Mapping[str, Any]) -> str | None:
    """The fix for a key of another tool, such as `limit` of a table. None if no table of ``errors/`` has the key."""
    section, *ids, key = map(str, path) if len(path) > 1 else ("", str(path[0]))
    section = "filters" if ids[1:] == ["filter"] else section
    id = "".join(ids[-1:] if section == "signals" else ids[:1])
    entry = map_at({"": at(data, path[:-1])}, "")
    template = elsewhere.keys().get(f"{section}.{key}" if section else key, "")
    expr = str(entry.get("formula", entry.get("expr", id)))
    use = _Use(data, section, id, key, at(data, path), entry, template, expr)
    use = _of_modes(use) or _of_wandb(use) or _of_value(use)
    if not use.template or (use.value is None and re.search("<(value|named|switched|profiled)>", use.template)):
        return None
    if "<listed>" in use.template and not all(isinstance(item, str) for item in listed(use.value)):
        return None
    if not use.computes:
        return _beside(use, _filled(use))
    computing = _computing(use)
    return None if computing is None else _quoted(_filled(computing))


def _of_modes(use: _Use) -> _Use | None:
    """The use of a key that names modes of the config; None where the key or its value means something else."""
    modes = {"train": "train", "training": "train", **words_of_evaluations(entry_names(use.data, "modes"))}
    named_modes = [modes.get(str(item)) for item in listed(use.value)]
    of_rows = use.key == "phase" or not use.template or use.template.startswith(("by: ", "where: ", "filter: {where: "))
    home = {"metrics": "metrics", "filters": "metrics", "tables": "tables"}.get(use.section)
    home = "alerts" if use.section == "alerts" and use.key not in _DELETING else home
    if not of_rows or home is None or not named_modes or None in named_modes:
        return None
    value = named_modes if len(named_modes) > 1 else named_modes[0]
    return replace(use, template=elsewhere.keys()[f"{home}.mode"], value=value)  # `only: eval`


def _of_wandb(use: _Use) -> _Use | None:
    """The use of a key that only wandb has, where the run has no such sink: its config records the value."""
    of_wandb = _is_of_wandb(use.key) if use.section == "run" else use.key == "tags"
    if use.section not in ("run", "") or not of_wandb or "wandb" in use.sinks:
        return None
    tagged = {"config": use.recorded}
    edit = in_flow(tagged if use.section else {"run": tagged})[1:-1]
    them, kind = ("them", "tags") if use.key == "tags" else ("it", use.key)
    return replace(use, template=f"{edit}, which records {them} with the run; as {kind} only `wandb` has {them}")


def _of_value(use: _Use) -> _Use:
    """The use with another template, or another value, where the key's template does not suit the value."""
    value, template = use.value, use.template
    if "<named>" in template and isinstance(value, Mapping) and not all(map(_is_name, value.values())):
        return replace(use, template="<defined>")  # `aliases: {w: exp(a - b)}`
    if template == "by: <value>" and _is_number(value, use.data):  # a number is no label: it names a tracker's section
        return replace(use, template="name: <value>/<id>")
    if template == "columns: <value>" and isinstance(value, str):
        return replace(use, value=re.split(r"[\s,]+", value))
    return use


def _filled(use: _Use) -> str:
    """The template with the fact for each of its words."""
    return re.sub(rf"<({'|'.join(_FACTS)})>", lambda word: _FACTS[word[1]](use), use.template)


def _quoted(fix: str) -> str:
    """An edit of an expression, in quotes where it has commas."""
    word, _, text = fix.partition(": ")
    return fix if body_of(text) is None else in_flow({word: text})[1:-1]


def _beside(use: _Use, fix: str) -> str:
    """A fix together with the condition or the filter that the entry has, and with the sinks that the config has."""
    if use.template.startswith("where: ") and use.entry.get("where") is not None:
        further = fix.removeprefix("where: ")
        further = json.loads(further) if further.startswith('"') else further
        fix = f"where: {in_flow(both(str(use.entry['where']), str(further)))}"
    if use.section == "tables" and isinstance(named := use.entry.get("filter"), str) and IDENTIFIER.match(named):
        fix = fix.replace("filter: {", f"filter: {{from: {named}, ", 1)
    of_sink = re.match(r"sink_options: \{(\w+): ", fix) if not use.section else None
    if of_sink is not None and of_sink[1] not in use.sinks:
        return f"{fix}, which takes effect with `sinks: {in_flow([*use.sinks, of_sink[1]])}`"
    return fix


def _value(use: _Use) -> str:
    """The value; an operation is in parentheses where the edit computes with it."""
    value, calls = use.value, ast.Name | ast.Call | ast.Constant | None
    operation = use.computes and isinstance(value, str) and not isinstance(body_of(value), calls)
    return f"({value})" if operation else in_flow(value)


def _good(use: _Use) -> str:
    """The better direction of a metric: ``lower_is_better: true`` is down."""
    if isinstance(use.value, bool):
        return "up" if use.value is ("lower" not in use.key and "min" not in use.key) else "down"
    return elsewhere.meanings("good").get(str(use.value).lower(), "up, or down")


def _when(use: _Use) -> str:
    """The condition of an alert."""
    return str(use.entry.get("when", bounds(use.id, use.entry) or f"{use.id} > 0.5"))


def _after(use: _Use) -> str:
    """The condition of an alert behind a step; the whole alert, where bounds in it become a condition."""
    after = {"when": both(_when(use), f"step >= {use.value}")}
    rest = {key: item for key, item in use.entry.items() if key in keys(AlertSpec) and key not in (*SIGNS, "when")}
    return in_flow({use.id: {**after, **rest}} if bounds(use.id, use.entry) else after)[1:-1]


_FACTS: Mapping[str, Callable[[_Use], str]] = {  # by the words of templates, see ``errors/keys.txt``
    "after": _after,
    "axis_ids": lambda use: "size" if type(use.value) is int else "ids" if use.id == "completion" else "of",
    "defined": lambda use: _defined(use.value, use.data),
    "ema": lambda use: Smoothing.weighing(use.value, use.key),
    "expr": lambda use: use.expr,
    "good": _good,
    "id": lambda use: use.id,
    "in_one": lambda use: of_one_mode(_when(use), use.value, map_at(use.data, "metrics")),
    "key": lambda use: use.key,
    "listed": lambda use: in_flow(listed(use.value)),
    "metric": lambda use: in_formula(use.id, map_at(use.data, "metrics").get(use.id)),
    "named": lambda use: in_flow(_named_anew(use.value, map_at(use.data, "metrics"))),
    "of_mode": lambda use: in_flow(_of_mode(use.key, use.value) or "mode == 'eval'"),
    "profiled": lambda use: in_flow({sink: {"profile": use.id} for sink in sinks_and_options(use.value)[0]}),
    "recorded": lambda use: in_flow(use.recorded),
    "room": lambda use: in_flow(_room(use.key, use.value, use.entry)),
    "rows": lambda use: str((reduced(use.expr) or {"expr": use.expr})["expr"]),
    "subject": lambda use: use.value if isinstance(use.value, str) else use.id,
    "switch": lambda use: "true" if use.value is True else "false",
    "switched": lambda use: switched(use.value),
    "term": lambda use: use.expr if isinstance(body_of(use.expr), ast.Name | ast.Call) else f"({use.expr})",
    "value": _value,
}


def of_axis(path: Path, data: Mapping[str, Any]) -> str | None:
    """The fix for an unknown key in ``axes``, at the axis that has such a key: `size` of completions is of groups."""
    fix = of_other_tools(path, data)
    edit = fix or f"{path[-1]}: {in_flow(at(data, path))}"
    owners = [axis for axis in keys_at(("axes",)) if edit.partition(":")[0] in keys_at(("axes", axis))]
    if not owners or path[1] == owners[0]:
        return fix
    return f"{owners[0]}: {{{edit}}}" if len(path) == 2 else f"axes: {{{owners[0]}: {{{edit}}}}}"


def _computing(use: _Use) -> _Use | None:
    """The use with the template of an edit that computes with the metric's expression or formula, and with that.

    An aggregate over an axis stands inside of a reduction, is of one value per completion, and no formula has one.
    """
    template, formula = use.template, "formula" in use.entry
    if " - mean(<expr>" in template and isinstance(use.value, str) and use.value not in _SCORES:
        template = elsewhere.keys().get(f"metrics.per_{use.value}", "")  # `normalize: sequence`
    if not template or (formula and "over=" in template):
        return None
    if "over=" not in template:
        return replace(use, template=template.replace("expr", "formula", 1) if formula else template)
    call = reduced(use.expr) or {}
    inside = str(call.get("expr", use.expr))
    signals = entries(use.data, "signals")
    tokens = {path[-1] for path, signal in signals if map_at({"": signal}, "").get("axis") == "token"}
    if "over=completion" in template and (body := body_of(inside)) and not tokens.isdisjoint(names_in(body)):
        inside = f"mean({inside}, over=token)"
    template = template.removeprefix("expr: ")
    return replace(use, template=f"expr: {call['reduce']}({template})" if call else f"expr: {template}", expr=inside)


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
