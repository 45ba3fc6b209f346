"""Fixes for names of a metric's best or first value, such as ``best_reward``: a metric with `over: run_step`."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from declog.errors import Entry, elsewhere, in_flow
from declog.language.fixes.library_calls import naming, of_library
from declog.language.fixes.tracker_names import in_formula, reductions_of
from declog.language.keys import keys
from declog.language.notation import both
from declog.language.parser import body_of
from declog.language.scope import Scope
from declog.language.smoothing import MOST
from declog.language.spec import MetricSpec
from declog.language.syntax import parse, refuse


def so_far(name: str, text: str, scope: Scope) -> dict[str, Any] | None:
    """The metric that ``highest``, ``best_reward`` or ``max_so_far`` means, by this name: the best value of all steps.

    ``reward_start`` means the value of the first step. The name says the metric (``best_reward``), or the expression
    ``text`` compares one metric with the name (``highest``). ``best`` means the minimum if ``text`` asks whether a
    value is above it. Returns None for other names, and if ``text`` asks whether the metric is beyond its own extreme,
    which is never true.
    """
    plain = _LASTING.sub("", name)
    names = {part.id for part in ast.walk(parse(text).body) if isinstance(part, ast.Name)} & scope.metrics.keys()
    words = "|".join(_EXTREMES) if plain != name else "best|highest|lowest|peak|start|initial|at_start"
    match = re.fullmatch(rf"(?:(?P<of>\w+)_)?(?P<way>{words})(?:_(?P<what>\w+))?", plain)
    alone = plain if plain in _EXTREMES else None
    way = alone or (match and match["way"])
    metric = next(iter(names)) if alone and len(names) == 1 else match and (match["of"] or match["what"])
    if way is None or metric is None or metric not in scope.metrics:
        return None
    combine = _EXTREMES[way]
    if way == "best" and re.search(rf">=? *[^<>]*\b{name}\b|\b{name}\b[^<>]*<", text):
        combine = "min"
    beyond = ("<", ">") if combine == "min" else (">", "<")
    if combine != "first" and re.fullmatch(
        rf"{metric}[\w.]* *{beyond[0]} *{name}|{name} *{beyond[1]} *{metric}[\w.]*", text.strip()
    ):
        return None
    entry = best_of_steps(in_formula(metric, scope.metrics[metric]), scope.metrics, combine)
    return None if entry is None else {name: entry}


_EXTREME = re.compile(r"\s*(max|min)\(\s*(\w+)\s*\)\s*")  # a whole text
_EXTREMES = elsewhere.meanings("extremes")
_LASTING = re.compile(
    r"_(?:so_far|ever|yet|to_date|until_now)\Z|\A(?:running_|cum(?=max|min)|all_time_|overall_|global_)"
)


def refuse_standstill(text: str, span: tuple[int, int], scope: Scope) -> None:
    """Refuse ``not improving`` and ``stalled`` in an alert. The fix compares its metric with the best value so far.

    Any other condition is accepted.
    """
    said, metric = re.fullmatch(r"\s*(not\s+)?(\w+)\s*", text), str(scope.of_alert)
    ways = elsewhere.meanings("progress" if said and said[1] else "standstill")
    if said is None or said[2] not in ways or metric not in scope.metrics:
        return
    combine, sign, best = ("min", ">", "least") if ways[said[2]] == "min" else ("max", "<", "best")
    here = in_formula(metric, scope.metrics[metric])
    entry = best_of_steps(here, scope.metrics, combine)
    fix = naming({} if entry is None else {f"{metric}_{best}": entry}, f"{here} {sign} {metric}_{best}")
    fix += "\nwhere less is better, `>` and `combine: min`" if ways[said[2]] == "best" else ""
    refuse("DL302.undefined", text, span, name=said[2], fix=fix)


def best_of_steps(metric: str, metrics: Mapping[str, Any], combine: str) -> dict[str, Any] | None:
    """The keys of a metric for another metric's best value over the run's steps. None for a metric with a formula."""
    id, _, ending = metric.partition(".")
    entry = metrics.get(id)
    if entry is None or "formula" in entry:
        return None
    said = {**entry, "reduce": reductions_of(entry)[ending] if ending else entry.get("reduce", "mean")}
    kept = {key: said[key] for key in ("reduce", "where", "by", "weight") if said.get(key, "mean") != "mean"}
    return {"expr": entry.get("expr", id), **kept, "over": "run_step", "combine": combine}


def of_run(key: str, name: str, entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """The metric for ``summary: max`` or ``running_max: true``, and one for each word of ``summary: min,max``.

    None for another key, and for a word without such a metric: trackers keep the last value.
    """
    falls = "down" in map(elsewhere.meanings("good").get, map(str, entry.values()))  # `goal: minimize`
    extremes = {**_EXTREMES, "best": "min" if falls else "max"}
    words = re.findall(r"\w+", str(entry[key])) if key in _SUMMARIES else []
    if entry[key] is True and elsewhere.keys().get(f"metrics.{key}") is None:
        words = [key]
    ways = {word: f"running_{extremes.get(word, word)}" if key in _SUMMARIES else word for word in words}
    kept = {word: value for word, value in entry.items() if word in keys(MetricSpec)}
    expr = body_of(str(kept.get("expr", name)))
    entries: dict[str, Any] = {}
    for word, way in ways.items():
        meaning = expr and of_library(way, [expr])
        if isinstance(meaning, Entry) and "formula" not in kept:
            entries[word] = {**kept, **meaning.keys}
        elif isinstance(meaning, Entry) and (combine := meaning.keys.get("combine")) in ("max", "min"):
            entries[word] = {**kept, "combine": f"rolling_{combine}({MOST})"}
    several = len(entries) > 1
    return {f"{name}_{word}" if several else name: metric for word, metric in entries.items()} or None


_SUMMARIES = elsewhere.words("summaries")


def best_of_mode(text: str, mode: str, metrics: Mapping[str, Any]) -> str | None:
    """The fix for ``max(eval/reward)``, here `max(reward)` and the mode: the best value of its steps so far.

    None for any other text, and for a metric with a formula.
    """
    call = _EXTREME.fullmatch(text)
    entry = None if call is None else metrics.get(call[2])
    if call is None or entry is None:
        return None
    of_mode = f"mode == '{mode}'"
    where = both(str(entry["where"]), of_mode) if entry.get("where") else of_mode
    best = best_of_steps(call[2], {call[2]: {**entry, "where": where}}, call[1])
    name = f"{'best' if call[1] == 'max' else 'least'}_{call[2]}_{mode}"
    return None if best is None else naming({name: best}, name)


def of_all_steps(text: str, metrics: Mapping[str, Any]) -> str:
    """The end of the fix for ``max(reward)``, which may mean the rows or the steps: the metric for the steps."""
    call = _EXTREME.fullmatch(text)
    best = None if call is None else best_of_steps(call[2], metrics, call[1])
    return "" if best is None else f"\nof all steps so far it is a metric of its own: {in_flow(best)}"


def compared_with_itself(text: str, span: tuple[int, int], metric: str) -> str | None:
    """The fix for ``kl > 2 * kl_mean``, where trackers show ``metric`` by the name at ``span``: its smooth curve.

    None if the expression ``text`` does not read the metric elsewhere, and for another name.
    """
    name = text[slice(*span)]
    if not re.fullmatch(rf"{metric}_(?:mean|avg|average)", name) or not re.search(
        rf"(?<![\w.]){metric}(?![\w.])", text
    ):
        return None
    return f"define it, the mean of the last values: metrics: {{{name}: {{formula: {metric}, combine: rolling(50)}}}}"
