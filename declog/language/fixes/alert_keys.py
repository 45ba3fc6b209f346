"""Fixes for keys of other tools in an alert: the metric, bounds in other words, both ends of a range.

The functions take the entry of an alert and return the fix for one of its keys.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from declog.errors import Problem, elsewhere, in_flow, nearest
from declog.errors.elsewhere import SYNONYMS
from declog.language.fixes.library_calls import SPANS
from declog.language.fixes.lists_as_maps import of_prometheus
from declog.language.fixes.modes import alert_of_mode, in_mode
from declog.language.fixes.tracker_names import Shown, in_formula, metric_of
from declog.language.fixes.unparsable import BOUNDS, spelt, with_signs
from declog.language.keys import entry_names, keys
from declog.language.notation import SIGNS, condition, over_preset
from declog.language.parser import body_of
from declog.language.spec import AlertSpec
from declog.language.tree import at, listed, map_at

_ABOUT = ("metric", "metric_name", "signal", "target", "monitor", "on", "of", "expr")  # keys for an alert's metric
_OPERATORS = ("op", "operator", "comparison", "cmp", "comparator", "direction", "condition", "rule", "trigger")
_OUTSIDE = elsewhere.words("outside")
_INSIDE = ("inside", "between", "within", "in", "in_range")
_SLOPES = ("slope", "trend", "gradient", "derivative")
_CHANGES = (*_SLOPES, "change", "delta", "diff", "difference", "rise", "increase", "drop", "decrease", "fall")
_FALLS = ("drop", "decrease", "fall")
_CONDITIONS = ("expr", "if", "query", "test", "check", "predicate", "expression")  # keys for a condition
_SIDES = elsewhere.meanings("sides")  # words for the two sides of a bound
_LIMITS = elsewhere.words("limits")
_RANGE = re.compile(r"(not +)?(in|inside|between|within|outside(?: of)?)\b *([\[({\d.-].*)")
_NUMBER = r"(?<!\w)-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"


def moved(key: str, name: str, entry: Mapping[str, Any], data: Mapping[str, Any]) -> str | None:
    """The fix for a key that alerts do not have: mostly the rewritten entry. None leaves the key to other rules.

    ``data`` is the config, with the metrics and the modes that an alert may be about.
    """
    if SYNONYMS.get(key) == "level" and (level := nearest(str(entry[key]), ("info", "warn", "error"))) is not None:
        return f"level: {level}"
    if key in ("labels", "annotations"):
        return in_flow(dict([of_prometheus(key, entry[key])]))[1:-1]
    if (of_metric := _bounds_of_metrics(name, entry, map_at(data, "metrics"))) and key in of_metric:
        named = {word: value for word, value in entry.items() if word not in of_metric} | of_metric[key]
        return moved("metric", name if len(of_metric) == 1 else f"{name}_{key}", named, data)
    about = next((word for word in _ABOUT if word in entry), None)
    if about is not None and (alone := _of_metric(name, str(entry[about]))) is not None:
        rest = {word: value for word, value in entry.items() if word != about}
        return alone if key == about else moved(key, name, rest, data)
    if about is not None and key == "mode":
        return f"drop it: the edit for `{about}` is of that mode"
    alert = _read(name, entry, about, data)
    fixes = (rule(key, alert) for rule in (_of_change, _of_bound, _of_outside, _of_condition))
    return next((fix for fix in fixes if fix is not None), None)


@dataclass(frozen=True)
class _Alert:
    """The entry of an alert: its metric, and the keys that say when and for how long.

    ``about`` is the key that names the metric, and ``span`` one that counts steps. ``rest`` are the alert's own keys.
    ``foreign`` are the bounds in other words; with ``by_operator`` a separate key gives the sign of the only one.
    """

    name: str
    entry: Mapping[str, Any]
    data: Mapping[str, Any]
    about: str | None
    metric: str
    mode: Any
    span: str | None
    bounds: Mapping[str, tuple[str, float]]
    ranges: Mapping[str, tuple[bool, float, float]]
    conditions: Mapping[str, str]
    rest: Mapping[str, Any]
    foreign: list[str]
    by_operator: bool

    @property
    def parts(self) -> set[str | None]:
        """The keys that are one condition together."""
        if self.about is None:
            together = self.by_operator or _inside(self.bounds) is not None
            return {*self.ranges, *(self.foreign if together else ()), *(_OPERATORS if self.by_operator else ())}
        is_metric = self.about != "expr" or self.conditions
        return {self.about, self.span, *self.bounds, *self.conditions, *_OPERATORS} if is_metric else set()


def _read(name: str, entry: Mapping[str, Any], about: str | None, data: Mapping[str, Any]) -> _Alert:
    metrics, modes = map_at(data, "metrics"), entry_names(data, "modes")
    metric = name if about is None else str(entry[about])
    of_mode = None if metric in metrics else in_mode(metric, modes)
    shown = None if of_mode is None else metric_of(metrics, of_mode[1])
    mode, metric = (of_mode[0], shown.expression) if of_mode and shown else (entry.get("mode"), metric)
    span = _span(entry)
    said = {word: value for word, value in entry.items() if word != span}
    conditions = dict(_conditions(said, in_formula(metric, metrics.get(metric))))
    bounds, ranges = dict(_bounds(said)), dict(_ranges(said))
    rest = _rest(entry) | ({} if span is None else {"for": entry[span]})
    foreign = [word for word in bounds if word not in SIGNS]
    by_operator = len(foreign) == 1 and _operator(entry) is not None
    return _Alert(name, entry, data, about, metric, mode, span, bounds, ranges, conditions, rest, foreign, by_operator)


def _of_bound(key: str, alert: _Alert) -> str | None:
    """The fix for a bound of an alert on the metric of its name: ``threshold: 0.9``, ``{op: lt, value: 0.9}``."""
    if alert.about is not None or key in alert.ranges:
        return None
    if alert.by_operator and key in alert.parts:
        (word,) = alert.foreign
        sign, value = alert.bounds[word]
        side = next((word for word in SIGNS if SIGNS[word] == sign), "")
        alone = side and "when" not in alert.rest and word in alert.conditions and len(alert.bounds) == 1
        return f"{alert.name}: {in_flow({side: value, **alert.rest})}" if alone else None
    either = _of_either_side(key, alert.name, alert.entry, alert.data)
    if either is not None or key not in alert.foreign or key in alert.parts or SYNONYMS.get(key) in SIGNS:
        return either
    sign, value = alert.bounds[key]  # a key outside of SYNONYMS is a near name of a bound
    return f"{'above' if sign[0] == '>' else 'below'}: {value}"


def _of_outside(key: str, alert: _Alert) -> str | None:
    """The fix for a range outside of which the metric of the alert's name must not be."""
    if alert.about is not None or key not in alert.ranges or not alert.ranges[key][0] or "when" in alert.rest:
        return None
    _, low, high = alert.ranges[key]
    return f"{alert.name}: {in_flow({'above': high, 'below': low, **alert.rest})}"


def _of_condition(key: str, alert: _Alert) -> str | None:
    """The fix for a key that is a part of a condition: the alert with `when`."""
    if key not in alert.parts:
        return None
    rest, metric = dict(alert.rest), alert.metric
    said_when = rest.pop("when", None)
    when = " or ".join([*([said_when] if isinstance(said_when, str) else []), *alert.conditions.values()])
    when = when or f"{metric} > 0.2"
    if alert.about is not None and alert.mode is not None:
        metrics = map_at(alert.data, "metrics")
        return alert_of_mode(alert.name, {"when": when, **rest}, metric, str(alert.mode), metrics)
    edit = f"{alert.name}: {in_flow({'when': when, **rest})}"
    if alert.bounds.keys().isdisjoint(_LIMITS) or _operator(alert.entry) or _inside(alert.bounds) is not None:
        return edit
    return _either(alert.name, better(metric, alert.data), edit, edit.replace(f"{metric} > ", f"{metric} < "))


def of_form(problem: Problem, data: Mapping[str, Any]) -> Problem:
    """The problem of an alert that is a number or a list, with the condition that it means as the fix."""
    name, items = str(problem.path[1]), listed(at(data, problem.path))
    if len(items) == 1 and isinstance(items[0], int | float) and not isinstance(items[0], bool):
        fix = of_number(name, items[0], map_at(data, "metrics"), better(name, data))
        return Problem.of("DL305.alert", problem.path, value=items[0], fix=fix)
    return replace(problem, fix=of_list(name, items) or problem.fix)


def of_number(name: str, bound: float, metrics: Collection[str], good: str | None) -> str:
    """The fix for a number, ``kl: 0.4``, in place of an alert; ``good`` is the better direction of its metric."""
    begins = (one for one in metrics if f"{name}_".startswith(f"{one}_"))
    metric = max(begins, key=len, default=nearest(name, metrics) or name)
    of = "" if metric == name else f"{metric} "
    edits = (f"{name}: {json.dumps(f'{of}{sign} {bound}')}" for sign in SIGNS.values())
    return _either(name, good, *edits) if bound == bound else f'{name}: "nan"'


def better(metric: str, data: Mapping[str, Any]) -> str | None:
    """The better direction of a metric, up or down; None if the config does not say it."""
    said = at(data, ("about", metric, "good"))
    return said if isinstance(said, str) else None


def _of_either_side(key: str, name: str, entry: Mapping[str, Any], data: Mapping[str, Any]) -> str | None:
    """The fix for a bound that names no side, ``threshold: 0.9``: that of the alert's other layer, or both."""
    bound = entry[key]
    if not difflib.get_close_matches(key, _LIMITS, cutoff=0.85) or type(bound) not in (int, float):
        return None
    if len(said := [side for side in SIGNS if side in entry]) == 1:
        return f"{said[0]}: {bound}"
    rest = {word: value for word, value in entry.items() if word in keys(AlertSpec)}
    edits = {side: f"{name}: {in_flow({side: bound, **rest})}" for side in SIGNS}
    sides = {_SIDES.get(value, value) for value in map(str, entry.values())} & SIGNS.keys()  # `side: below`
    return edits[sides.pop()] if len(sides) == 1 else _either(name, better(name, data), *edits.values())


def _either(name: str, good: str | None, above: str, below: str) -> str:
    """The fix with an edit for each side of a bound; with one of them where the alert's name says the side.

    The first edit is for the side of which values are bad: below, where the ``good`` direction is up.
    """
    sides = {_SIDES[word] for word in name.split("_") if word in _SIDES}
    if len(sides) == 1:
        return above if sides == {"above"} else below
    edits = (f"{above}, where it must not be greater", f"{below}, where it must not be less")
    return "  or  ".join(reversed(edits) if good == "up" else edits)


def _bounds_of_metrics(name: str, entry: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The keys of an entry that are names of metrics, each with its `metric` and the bounds below it.

    Examples are ``low: {reward: {below: 0.2}}`` and ``low: {reward: "< 0.2"}``.
    """
    bounded: dict[str, dict[str, Any]] = {}
    for word in entry.keys() - {*keys(AlertSpec), name}:
        shown = Shown(word) if word in metrics else metric_of(metrics, word)
        if shown is not None:
            metric = in_formula(word, metrics[word]) if word in metrics else shown.expression
            inner = dict(entry[word]) if isinstance(entry[word], Mapping) else {"when": entry[word]}
            if isinstance(when := inner.pop("when", None), str):
                inner |= condition(spelt(when), metric)
            if inner and not re.fullmatch(r"\w+", str(inner.get("when", ""))):
                bounded[word] = {"metric": metric, **inner}
    return bounded


def of_keys_inside(text: str, metric: str) -> dict[str, Any] | None:
    """The keys of an alert on ``metric`` for a text that holds several, ``kl > 0.5 for 3 steps, do: stop``.

    None for an expression, and for a text whose rest is no condition.
    """
    rest, keys = text.strip(), dict[str, Any]()
    while body_of(rest) is None and (part := _KEY_INSIDE.search(rest)) is not None:
        rest = rest[: part.start()]
        if (word := part["word"]) is not None:
            keys = {**({"do": ["stop"]} if word == "stop" else {"level": word}), **keys}
        else:
            key, count = part["key"].lower(), SYNONYMS.get(part["count"], part["count"])
            keys = {key if key == "cooldown" else "for": int(count), **keys} if count.isdigit() else keys
    said = condition(with_signs(spelt(rest)), metric)
    body = body_of(str(said.get("when", 0)))
    return {**said, **keys} if keys and body is not None and not isinstance(body, ast.Name) else None


def of_list(name: str, items: list[Any], below: Collection[str] = ()) -> str | None:
    """The fix for a list, ``[reward < 2, {for: 3}]``, in place of an alert's map; None for other items.

    ``below`` are the keys of a preset's alert of this name.
    """
    items = [f"> {item}" if isinstance(item, int | float) and not isinstance(item, bool) else item for item in items]
    texts = [item if isinstance(item, str) else in_flow(item).strip("{}") for item in items]
    bounds = [match for text in texts if (match := re.fullmatch(r"(above|below)[ :=]*(\S+)", text))]
    said = {match[1]: match[2] for match in bounds} or of_keys_inside(", ".join(texts), name)
    said = condition(texts[0], name) if said is None and len(texts) == 1 and texts[0][:1] in ("<", ">") else said
    return None if said is None else edit_over_preset(name, said, below)


def edit_over_preset(name: str, said: Mapping[str, Any], below: Collection[str]) -> str:
    """The edit of an alert with these keys, over a preset's alert with the keys ``below``."""
    alert = over_preset(name, said, below)
    return f"{name}: {in_flow(alert, json.dumps if isinstance(alert, str) else None)}"


_KEY_INSIDE = re.compile(
    r"[\s,;:]+(?:and\s+)?(?:(?:(?:do|then|and|level)[\s:=]+)?(?P<word>stop|warn|error|info)"
    r"|(?P<key>for|over|during|within|in|cooldown)\b[\s:=]*(?:at least |the last |last )?(?P<count>\d+|[a-z]+)"
    r"(?:[smh]|\s*\b(?:consecutive|in a row|log|step|event|[a-z]+s))*)\s*\Z",
    re.IGNORECASE,
)


def _rest(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of an entry that are keys of alerts, without the bounds."""
    return {word: value for word, value in entry.items() if word in keys(AlertSpec) and word not in SIGNS}


def _span(entry: Mapping[str, Any]) -> str | None:
    """The key that counts steps: `window: 100`, or `over: 100` beside another bound or a change. None without one."""
    counts = [word for word in entry if word in (*SPANS, "over", "steps", "within") and type(entry[word]) is int]
    said = [word for word in entry if word in (*_CHANGES, *_OPERATORS, *_INSIDE, *_OUTSIDE) or _sign(word) is not None]
    return next((word for word in counts if word != "over" or {*said} - {"over"} or len(counts) > 1), None)


def _of_change(key: str, alert: _Alert) -> str | None:
    """The fix for a change: the metric some steps earlier, and the alert on the change since then.

    The bound of a slope is per step, so it is multiplied by the number of steps.
    """
    about, span, entry, metrics = alert.about, alert.span, alert.entry, map_at(alert.data, "metrics")
    change = next((word for word in _CHANGES if word in entry), None)
    if change is None or key not in (about, change, span):
        return None
    if about is None and (span is None or alert.metric not in metrics):
        return None
    metric = in_formula(alert.metric, metrics.get(alert.metric))
    steps = 1 if span is None else entry[span]
    said = re.fullmatch(rf"\s*([<>]=?)?\s*({_NUMBER})\s*", str(entry[change]))
    bound = 0.1 if said is None else float(said[2]) * (steps if change in _SLOPES else 1)
    sign = (said and said[1]) or (">" if said is not None and change not in _SLOPES else "<")
    before = f"{re.sub(r'[^a-z0-9]+', '_', metric)}_before"
    later, earlier = (before, metric) if change in _FALLS else (metric, before)
    lagged = {before: {"formula": metric, "combine": f"lag({steps})", "log": False}}
    edit = in_flow({alert.name: {"when": f"{later} - {earlier} {sign} {bound:g}", **_rest(entry)}})[1:-1]
    if key != next(word for word in entry if word in (about, change, span)):
        return f"drop it: `{edit}` is for it, too"
    return f"no key is a {change}: metrics: {in_flow(lagged)}, and `{edit}`"


def _of_metric(name: str, metric: str) -> str | None:
    """The fix for the key that names an alert's metric, if its value is the alert's own name or a condition."""
    if metric == name:
        return "drop it: an alert is about the metric of its name"
    bound = re.fullmatch(rf"{re.escape(name)} *([<>]) *(-?[\d.]+)", metric)
    if bound is not None:
        return f"{'above' if bound[1] == '>' else 'below'}: {bound[2]}"
    return f"when: {in_flow(metric)}" if re.search("[<>=]", metric) else None


def _conditions(entry: Mapping[str, Any], metric: str) -> Iterator[tuple[str, str]]:
    """The keys of an entry that hold one bound or two, each with its condition.

    Where two keys are the ends of one interval, the first key gets the condition of both.
    """
    bounds, ranges = dict(_bounds(entry)), dict(_ranges(entry))
    inside = _inside(bounds)
    for word, value in entry.items():
        if word in ranges:
            outside, low, high = ranges[word]
            yield (
                word,
                f"{metric} > {in_flow(high)} or {metric} < {in_flow(low)}"
                if outside
                else (f"{in_flow(low)} < {metric} < {in_flow(high)}"),
            )
        elif word in _OPERATORS and re.search(r"[<>=]\s*[\w.-]", str(value)):
            yield word, f"{'' if re.search(r'[a-z]', str(value)) else f'{metric} '}{str(value).strip()}"
        elif word in bounds and inside is None:
            yield word, f"{metric} {' '.join(map(str, bounds[word]))}"
        elif word == next(iter(bounds), None) and inside is not None:
            (low, low_sign), (high, high_sign) = inside
            yield word, f"{low} {low_sign} {metric} {high_sign} {high}"


def _bounds(entry: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, float]]]:
    """The keys of an entry that hold one bound, each with its sign and its number."""
    operator = _operator(entry)
    for word, value in entry.items():
        if (sign := _sign(word)) and isinstance(value, int | float) and not isinstance(value, bool):
            yield word, (sign if word in SIGNS or operator is None else operator, value)


def _inside(bounds: Mapping[str, tuple[str, float]]) -> tuple[tuple[float, str], tuple[float, str]] | None:
    """Both ends of an interval that two bounds enclose, each with the sign between the end and the metric.

    ``{gt: 0.5, lt: 0.9}`` means the values between 0.5 and 0.9. Returns None for other bounds, and for the language's
    own ``above`` and ``below``.
    """
    ends = {sign[0]: (value, sign) for sign, value in bounds.values()}
    if len(bounds) != 2 or ends.keys() != {"<", ">"} or ends[">"][0] >= ends["<"][0] or bounds.keys() <= SIGNS.keys():
        return None
    return (ends[">"][0], ends[">"][1].replace(">", "<")), ends["<"]


def _operator(entry: Mapping[str, Any]) -> str | None:
    """The sign that a separate key gives: ``op: lt``, ``direction: below``, ``operator: '>='``."""
    said = " ".join(str(entry[word]) for word in _OPERATORS if word in entry).replace("_", " ").lower()
    words = re.findall(r"[<>=!]=|[<>]|at least|at most|[a-z]+", said)
    signs = [BOUNDS.get(word) or SIGNS.get(_SIDES.get(word, ""), word) for word in words]
    operator = next((sign for sign in signs if sign in BOUNDS.values()), None)
    return f"{operator}=" if operator in SIGNS.values() and re.search(r"or ?(?:equal|==)", said) else operator


def _ranges(entry: Mapping[str, Any]) -> Iterator[tuple[str, tuple[bool, float, float]]]:
    """The keys of an entry that hold a range, each with whether the alert is for values outside, and both ends."""
    for word, value in entry.items():
        text = (
            _RANGE.fullmatch(value.strip()) if word in (*_OPERATORS, *_CONDITIONS) and isinstance(value, str) else None
        )
        ends = _ends(value if text is None else text[3])
        if ends is not None and (text is not None or word in (*_OUTSIDE, *_INSIDE)):
            outside = word in _OUTSIDE if text is None else text[2].startswith("outside") != (text[1] is not None)
            yield word, (outside, *ends)


def _sign(key: str) -> str | None:
    """The sign of a key for a bound: ``above``, ``threshold``, ``greater_than``. None for another key."""
    meaning = elsewhere.keys().get(f"alerts.{key}", SYNONYMS.get(key, key)).partition(":")[0]
    return SIGNS.get(meaning) or BOUNDS.get(key.removesuffix("_than").replace("_", " "))


def _ends(value: Any) -> tuple[float, float] | None:
    """Both ends of a range: ``[0.2, 0.9]``, ``{min: 0.2, max: 0.9}`` or ``0.2..0.9``; None for anything else."""
    items = list(value.values()) if isinstance(value, Mapping) else value
    if isinstance(value, str):
        items = re.findall(_NUMBER, value)
    if not isinstance(items, list) or len(items) != 2:
        return None
    items = [_number(item) if isinstance(item, str) and re.fullmatch(_NUMBER, item) else item for item in items]
    if any(isinstance(item, bool) or not isinstance(item, int | float) for item in items):
        return None
    return min(items), max(items)


def _number(text: str) -> float:
    return float(text) if set(text) & {".", "e"} else int(text)
