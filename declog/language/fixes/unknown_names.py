"""Refusals of names that an expression uses and the config does not declare, with the probable meaning as the fix."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, NoReturn

from declog.errors import Entry, did_you_mean, elsewhere, in_flow, nearest
from declog.errors.elsewhere import SYNONYMS
from declog.language.dtypes import ABOVE, AXES, MEMBER, DType
from declog.language.fixes import best_so_far, bins, constants, earlier_steps, group_size, idioms, library_calls
from declog.language.fixes.best_so_far import best_of_mode, best_of_steps, compared_with_itself, of_all_steps, so_far
from declog.language.fixes.modes import MODES, in_mode, of_one_mode, of_split, without_mode
from declog.language.fixes.reward_functions import refuse_reward, reward_function, reward_stem
from declog.language.fixes.step_time import seconds_of
from declog.language.fixes.tracker_names import in_formula
from declog.language.nodes import BUILTIN, LABEL, LABELLED, MODE, Node, members_of
from declog.language.notation import SIGNS, WORD, both, bounds, is_reduction, reduced
from declog.language.parser import body_of, called, names_in, source_of, tree_of
from declog.language.scope import Scope
from declog.language.smoothing import Smoothing
from declog.language.syntax import parse, refuse

Span = tuple[int, int]  # a half-open character range of the expression
_CONDITIONS = elsewhere.words("conditions")  # other tools' keys for the condition of an alert
_CURVE = re.compile(
    r"(\w+?)_(?:ema|ewma|smooth|smoothed|running|"
    r"((?:rolling|moving)(?:_mean|_avg|_average)?|sma|ma|(?:last|mean|avg)(?=_?\d))_?(\d*))"
)
_OF_LABELS = ("mean", "sum", "min", "max", "count", "std", "pstd", "var")  # reductions of numbers with `over=label`
_TRACKED = re.compile(r"[A-Za-z_]\w*(?:/[A-Za-z_]\w*)+")  # names of metrics in trackers
_SHOWN = re.compile(r"(?<![\w./'])[A-Za-z_][\w.]*(?: */ *[A-Za-z_][\w.]*)*(?![\w./']| *\()")  # also of one word


def refuse_name(node: ast.Name, text: str, span: Span, scope: Scope) -> NoReturn:
    """Refuse a name of the expression ``text`` that the scope does not have."""
    name = node.id
    if name in AXES or name == MEMBER:
        index = f"write `{text[: span[0]]}index({name}){text[span[1] :]}`"
        fix = index if AXES.get(name) in ABOVE and text != name and scope.noun == "signal" else f"use it as over={name}"
        refuse("DL302.axis", text, span, name=name, noun=scope.noun, fix=fix)
    if name in (MODE, *MODES):
        condition = MODES.get(name, "").replace("eval", "validation" if "validation" in scope.modes else "eval")
        fix = f"write `{text[: span[0]]}{condition}{text[span[1] :]}`"
        if scope.noun != "signal":
            rest, mode = without_mode(parse(text).body)
            fix = of_one_mode(rest, mode, scope.metrics)
        refuse("DL302.mode", text, span, name=name, noun=scope.noun, fix=fix)
    if scope.noun == "signal" and (split := of_split(name, text, scope.modes)) is not None:
        refuse("DL302.undeclared", text, span, name=name, fix=split)
    if name in ("position", "token_position", "token_index", "token_idx"):
        refuse("DL302.position", text, span, name=name)
    if name.lower() in ("nan", "none", "null") and scope.noun == "signal" and (text, name) != (name, "nan"):
        here = f"write `{text[: span[0]]}missing{text[span[1] :]}`"
        refuse("DL302.missing", text, span, name=name, fix="`null`, or drop the key" if text == name else here)
    # `length >= max_length` does not mean `length >= length`
    words = {part.id for part in ast.walk(parse(text).body) if isinstance(part, ast.Name)} - {name}
    near = scope.names() if words.isdisjoint(name.split("_")) else ()
    near = near if (same := elsewhere.same_signal(name, {*scope.names()} - words)) is None else [same]
    constants.refuse_bound(name, text, span, same or name, scope)
    if scope.noun != "signal":
        best_so_far.refuse_standstill(text, span, scope)
        if (best := so_far(name, text, scope)) is None:
            refuse_tracker_name(node, text, span, scope)
        if (seconds := seconds_of(name)) is not None and scope.noun == "metric":
            refuse("DL302.time", text, span, name=name, here=f"{text[: span[0]]}{seconds}{text[span[1] :]}")
        if (defined := best or scope.definition(name) or _smoothed(name, scope)) is not None:
            refuse("DL302.undefined", text, span, name=name, fix=f"define it: metrics: {in_flow(defined)}")
        function = reward_function(name, scope.names())
        member = scope.of_tracker(f"rewards/{function}/mean") or ""
        if function is not None and member.startswith("member("):
            refuse_reward(function, member, text, span, scope)
        if scope.noun == "metric" and not near:
            fix = f"constants: {{{name}: 0.5}} for a number of the run; metrics: {{{name}: mean(...)}} for a metric"
            refuse("DL302.undefined", text, span, name=name, fix=fix)
        if scope.noun == "metric" and nearest(name, near) is None:
            refuse("DL302.of_each_step", text, span, name=name, known=near)
        refuse("DL302.name", text, span, noun=scope.noun, name=name, known=near)
    group_size.refuse_group_size(text, span, scope)
    if (meant := idioms.of_values(name, text, words, near, scope)) is not None:
        refuse("DL302.undeclared", text, span, name=name, fix=meant)
    if (number := constants.example(name)) is not None:
        refuse("DL302.limit", text, span, name=name, known=near, number=number)
    rewards = scope.resolve("rewards")
    of_function, heads = isinstance(rewards, Node) and rewards.type.family, {}
    functions = members_of(rewards) or () if isinstance(rewards, Node) else ()
    function = reward_function(name, scope.names(), functions)
    if (stem := reward_stem(name, scope.names())) is not None:
        columns = (other for other in scope.names() if scope.declaration(other).startswith("completion"))
        heads = {head: one for one in columns if (head := reward_stem(one)) is not None}
        near = [heads[head]] if (head := nearest(stem, heads)) else []
    if of_function and function is not None and not heads:  # no signals are the rewards of functions
        refuse_reward(function, f"member(rewards, '{function}')", text, span, scope, functions)
    member = f"; the values of a reward function: member(rewards, '{name}')" if of_function and not functions else ""
    refuse("DL302.signal", text, span, name=name, known=near, member=member)


def of_fewer_values(key: str, name: str, entry: Mapping[str, Any], metrics: Mapping[str, Any]) -> str | None:
    """The fix for a key that restricts an alert: to one label, by a further condition, or to a mode.

    Returns None for another key, and for an alert without a condition.
    """
    value, metric = entry[key], metrics.get(name)
    labelled = key == LABEL and isinstance(metric, Mapping) and metric.get("by") and isinstance(value, str | int)
    if not labelled and (not isinstance(value, str) or (key not in _CONDITIONS and SYNONYMS.get(key) != "where")):
        return None
    of = f"{LABEL}({in_formula(name, metric)}, {str(value)!r})" if labelled else name
    limits = bounds(of, entry)
    when = limits if labelled else str(entry.get("when", limits))
    if not when:
        return None
    if not labelled:
        if (condition := body_of(both(when, value))) is None:
            return None
        rest, mode = without_mode(condition)
        if mode is not None:
            return of_one_mode(rest, mode, metrics)
        if "when" not in entry and key in ("expr", "expression", "condition", "rule", "query", "trigger", "predicate"):
            return None  # the key holds the condition itself; the bound comes from a preset
        when = both(when, value)
    if "when" in entry:
        return in_flow({"when": when})[1:-1]
    further = {word: item for word, item in entry.items() if word not in (key, *SIGNS)}
    return f"{name}: {in_flow({'when': when, **further})}"


def _of_reduction(name: str, text: str) -> str | None:
    """The fix for another library's word: ``median(x, over=completion)``, ``quantile(x, 0.9, over=completion)``."""
    calls = (part for part in ast.walk(parse(text).body) if isinstance(part, ast.Call))
    call = next((part for part in calls if ast.unparse(part.func) == name and part.args), None)
    axis = None if call is None else next((word.value for word in call.keywords if word.arg == "over"), None)
    if call is None or axis is None:
        return None
    levels = [*call.args[1:], *(word.value for word in call.keywords if word.arg != "over")]
    word = library_calls.quantile(name, levels[0]) if levels else idioms.reduction(name)
    if word in (None, name) or not is_reduction(str(word), 1) or len(levels) > 1:
        return None
    aggregate = f"{word}({ast.unparse(call.args[0])}, over={ast.unparse(axis)})"
    return f"write `{text.replace(source_of(text, call), aggregate)}`"


def refuse_function(name: str, names: Collection[str], text: str, span: Span, scope: Scope) -> NoReturn:
    """Refuse a call of an unknown function; ``names`` are the known functions."""
    if (fix := _of_reduction(name, text)) is not None:
        refuse("DL303.function", text, span, name=name, fix=fix)
    if (reduction := scope.reduction(name)) is not None:
        call = f"{name}({', '.join('xyz'[: reduction.arity])})"
        fix = f"a metric of its own is `{call}`, without `over`; a formula computes with its value"
        of_group = f"of each group it is `{name}(x, over=completion)`; " * reduction.aggregates
        correlated = library_calls.correlation_over(text) if name == "corr" else None
        refuse("DL303.reduction", text, span, name=name, fix=correlated or of_group + fix)
    if re.fullmatch(r"p\d+(_\d+)?", name):
        refuse("DL303.quantile", text, span, name=name, fix=did_you_mean(name, ["p95"], what="for the 95th percentile"))
    what = f"`@declog.function` above `def {name}(...)` for a value of each row, `@declog.reducer` for one of all"
    if idioms.gives_text(name, text):
        what = f"`@declog.function` above `def {name}(text: str) -> str: ...`"
    alike = [one for one in names if abs(len(one) - len(name)) < 2 or one == SYNONYMS.get(name)]
    close = nearest(name, [*alike, *get_close_matches(name, names, cutoff=0.75)])
    fix = did_you_mean(close or "", names, what="functions", otherwise=library_calls.of_yours(what))
    refuse("DL303.function", text, span, name=name, fix=fix)


def refuse_mode(value: Node, other: ast.expr, text: str, span: Span, scope: Scope) -> None:
    """Refuse a comparison of ``mode`` with a text that names no mode. Any other ``value`` is accepted."""
    name = other.value if isinstance(other, ast.Constant) else None
    if value.op == BUILTIN and value.leaf == MODE and isinstance(name, str) and name not in scope.modes:
        close, modes = nearest(name, scope.modes), f"modes: {', '.join(scope.modes)}"
        new = f"declare it: modes: {{{name}: {{prefix: {name}/}}}}" if WORD.match(name) else modes
        fix = f"did you mean `{close}`?" if close else new
        refuse("DL302.mode_name", text, span, name=name, fix=fix)


def refuse_tracker_name(node: ast.expr, text: str, span: Span, scope: Scope) -> None:
    """Refuse ``completions/mean_length``, a metric's name in trackers. A quotient of two metrics is accepted."""
    if scope.noun != "signal":
        _refuse_name_of_a_mode(text, span, scope)
        refuse_tracker_names(text, scope, scope.resolve)
    parts = [*ast.walk(node)]
    names = [part.id for part in reversed(parts) if isinstance(part, ast.Name)]
    plain = all(isinstance(part, ast.Name | ast.Constant | ast.BinOp | ast.Div | ast.expr_context) for part in parts)
    if scope.noun == "signal" or not plain or all(scope.resolve(name) is not None for name in names):
        return
    start, end = span
    if (written := scope.of_tracker("".join(text[start:end].split()))) is None:
        return
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant):  # `completions/mean_length/512`
        name = source_of(text, node.left)
        end = start + len(name) if scope.of_tracker("".join(name.split())) == written else end
        span = start, end
    fix = library_calls.naming(scope.definition(written) or {}, f"{text[:start]}{written}{text[end:]}")
    refuse("DL302.tracker", text, span, name=text[start:end], fix=compared_with_itself(text, span, written) or fix)


def refuse_tracker_names(text: str, scope: Scope, resolve: Callable[[str], object], *, alone: bool = False) -> None:
    """Refuse ``len/p90 / len/p10``, where slashes both belong to names and divide.

    ``resolve`` returns None for a name without a value. ``alone``: also refuse names if no other slash divides.
    """
    names = {match: scope.of_tracker(match[0]) for match in _TRACKED.finditer(text)}
    shown = [match for match, id in names.items() if id and None in map(resolve, match[0].split("/"))]
    if shown and (alone or len(names) > 1 or " / " in text):
        ids = {match.span(): str(names[match]) for match in shown}
        here = _TRACKED.sub(lambda match: ids.get(match.span(), match[0]), text)
        refuse("DL302.tracker", text, shown[0].span(), name=shown[0][0], fix=f"write `{here}`")


def _refuse_name_of_a_mode(text: str, span: Span, scope: Scope) -> None:
    """Refuse ``eval/reward``. The fix is a metric of that mode; an expression over two modes has no values."""
    modes: dict[str, str] = {}  # the modes that the expression names, each with the name of its first metric
    beside, defined = False, {*scope.names(), *scope.metrics}

    def of_metric(match: re.Match[str]) -> str:
        nonlocal beside
        name = "".join(match[0].split())
        mode, shown = (not {*name.split("/")} <= defined and in_mode(name, scope.modes)) or (None, name)
        written = scope.of_tracker(shown)
        beside |= mode is None and written is not None
        if mode is None or written is None:
            return match[0]
        modes.setdefault(mode, name)
        return written

    at_name = _SHOWN.match(text, span[0])
    if at_name is None or of_metric(at_name) == at_name[0]:
        return
    beside, modes = False, {}
    here = _SHOWN.sub(of_metric, text)
    (mode, name), *further = modes.items()
    if further or beside:
        shown = in_mode(name, scope.modes) or (mode, name)
        curve = f"{scope.modes[mode]}{shown[1]}"
        modes_of = f"`{name}` has those of {mode}"
        refuse("DL310.formula_modes", text, span, modes=modes_of, train=shown[1], other=curve)
    fix = best_of_mode(here, mode, scope.metrics) or of_one_mode(here, mode, scope.metrics)
    refuse("DL302.mode", text, span, name=name, noun="name of a metric here", fix=fix)


def refuse_earlier_steps(node: ast.expr, text: str, span: Span, scope: Scope) -> None:
    """Refuse ``prev(kl)`` and ``kl[-1]`` in a formula or a condition, and ``median(loss)`` of a number per step.

    ``median(loss)`` means earlier steps if the expression also reads ``loss`` itself; ``std`` and ``var`` always do.
    """
    if scope.noun == "signal":
        return
    first = earlier_steps.of_first_step(node)
    if first is not None and all(map(scope.of_tracker, names_in(first.args[0]))):
        fix = of_library(first, called(first), text, scope)
        refuse("DL310.before", text, span, name=text[slice(*span)], fix=fix)
    name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    value = ast.unparse(node.args[0]) if isinstance(node, ast.Call) and node.args else ""
    again = len(re.findall(rf"\b{re.escape(value)}\b", text)) > 1 or SYNONYMS.get(name, name) in ("std", "var")
    before = earlier_steps.reads_earlier(node)
    if not before and not (again and scope.of_steps(value)):
        return
    needed = earlier_steps.over_metrics(parse(text).body, scope.of_tracker, scope.of_steps)
    if needed is not None:
        fix = library_calls.naming(*needed)
        if before:
            refuse("DL310.before", text, span, name=name or text[slice(*span)], fix=fix)
        refuse("DL303.of_a_metric", text, span, name=name, fix=fix)


def refuse_reduction(node: ast.Call, text: str, span: Span, scope: Scope) -> None:
    """Refuse ``max(kl)`` in a formula or a condition: metrics there are reduced already."""
    word = called(node)
    refuse_earlier_steps(node, text, span, scope)
    rate = library_calls.is_rate(library_calls.of_library(word, node.args))
    if scope.noun == "signal" or len(node.args) != 1 or node.keywords or rate:
        return
    parts = [*ast.walk(node.args[0])]
    if not all(isinstance(part, ast.Name | ast.Attribute | ast.BinOp | ast.Div | ast.expr_context) for part in parts):
        return
    metric = "".join(ast.unparse(node.args[0]).split())
    if _over_labels(f"{word}({metric})", scope) != f"{word}({metric})":
        refuse("DL306.needs_over", text, span, function=word, fix=f"write `{_over_labels(text, scope)}`")
    if (written := _of_rows(metric, word, scope)) is None:
        return
    plain = re.sub(rf"\b\w+\(\s*{re.escape(metric)}\s*\)", "", text)  # the expression without the metric's reductions
    again = re.search(rf"\b{re.escape(metric)}\b(?!\.\w)", plain) and written in (metric, scope.of_tracker(metric))
    if not again and (fix := _with_metrics(text, scope)) != f"write `{text}`":
        fix += of_all_steps(text, scope.metrics)
        refuse("DL303.named_metric", text, span, metric=written, call=text[slice(*span)], fix=fix)
    if again:  # the metric is compared with its own reduction
        smooth = Entry({"formula": scope.of_tracker(metric) or metric, "combine": "ema(0.9)"})
        refuse("DL303.of_a_metric", text, span, name=word, fix=library_calls.with_metric(smooth, node, text))


def _over_labels(text: str, scope: Scope) -> str:
    """Add `over=label` to each reduction without an axis of a metric with `by`."""

    def named(match: re.Match[str]) -> str:
        name, (metric, _, ending) = idioms.reduction(match[1]), match[2].partition(".")
        several = isinstance((scope.metrics.get(metric) or {}).get("reduce"), list)
        if name not in _OF_LABELS or (several and not ending):
            return match[0]
        value = scope.attribute(metric, ending) if ending else scope.resolve(metric)
        labelled = isinstance(value, Node) and LABELLED in dict(value.params)
        return f"{name}({match[2]}, over={LABEL})" if labelled else match[0]

    return re.sub(r"\b(\w+)\(\s*([a-z_]\w*(?:\.\w+)?)\s*\)", named, text)


def of_library(node: ast.Call, name: str, text: str, scope: Scope) -> str | None:
    """The fix for a call of another library's function; None for any other call.

    A smooth curve of a metric becomes a formula. In a formula or a condition, the fix defines a metric and names it.
    """
    if name in bins.CALLS and (histogram := bins.of_library(node, name)) is not None:
        return histogram
    beside = [library_calls.weight_of_past(word) for word in node.keywords if word.arg not in idioms.NO_VALUES]
    arguments, metrics = [*node.args, *beside], scope.metrics
    fix = library_calls.of_library(name, arguments, of_metrics=scope.of_alert is not None)
    fix = idioms.along_axis(name, node, text) or fix
    if scope.noun != "signal" and library_calls.is_spelt_out(node, ()):
        return _with_metrics(ast.unparse(library_calls.spelt_out(parse(text).body, ())), scope)
    if fix is not None and fix.startswith(library_calls.YOURS) and scope.reduction(name) is not None:
        return None
    if fix is not None and "`@declog.function`" in fix and idioms.gives_text(name, text):
        return fix.replace("): ...", ") -> str: ...")
    if library_calls.is_rate(fix):
        return _of_rate(node, fix, text, scope)
    of_run = isinstance(fix, Entry) and {"over": "run", "reduce": "sum"}.items() <= fix.keys.items()
    if of_run and fix is not None and scope.noun != "signal" and node.args:
        total = best_of_steps(scope.of_tracker(source_of(text, node.args[0])) or "", metrics, "sum")  # `cumsum(reward)`
        return library_calls.with_metric(Entry(total) if total else fix, node, text, metrics)
    if not isinstance(fix, Entry) or "combine" not in fix.keys or not node.args:
        return fix
    names = {part.id for part in ast.walk(node.args[0]) if isinstance(part, ast.Name)} & metrics.keys()
    if scope.noun == "signal":
        names = {one for one in names if not isinstance(scope.resolve(one), Node)}
        if not names:
            return fix
    written = scope.of_tracker(source_of(text, node.args[0]))
    if written is None:
        keys = {one: parse(in_formula(one, metrics[one])).body for one in names}
        written = ast.unparse(library_calls.Substitution(keys).visit(tree_of(ast.unparse(node.args[0])).body))
    combine = fix.keys["combine"]
    fix = Entry({"formula": written, "combine": combine}, bare=True)
    if combine in ("min", "max", "first"):
        if (best := best_of_steps(written, metrics, combine)) is None:
            return f"a metric of its own, of a signal: {library_calls.of_library(name, [ast.Name('reward')])}"
        fix = Entry(best)
    return fix if scope.noun == "signal" else library_calls.with_metric(fix, node, text, metrics)


def _of_rate(node: ast.Call, fix: str | None, text: str, scope: Scope) -> str | None:
    """The fix for ``rate(x)``, a value per second. None if x is a condition: its rate is a mean.

    In a formula or a condition, the fix defines a metric and names it.
    """
    of = node.args[0]
    value = scope.resolve(of.id) if isinstance(of, ast.Name) else None
    if isinstance(of, ast.Compare | ast.BoolOp) or (isinstance(value, Node) and value.type.dtype is DType.BOOL):
        return None
    name = "_".join([*re.findall(r"[a-z_]\w*", ast.unparse(of)), "per_second"])
    metrics = library_calls.as_rate(name, {"expr": f"sum({ast.unparse(of)})", "per": "second"})
    here = text.replace(source_of(text, node), name).strip()
    return fix if scope.noun == "signal" else library_calls.naming(metrics, here)


def refuse_statistic(node: ast.Attribute, text: str, span: Span, scope: Scope) -> None:
    """Refuse ``length.p95`` in a formula or a condition if no such metric is defined; everywhere ``group.size``."""
    group_size.refuse_group_size(text, span, scope)
    metric = ast.unparse(node.value)
    written = None if scope.noun == "signal" else _of_rows(metric, node.attr, scope)
    if written is not None and scope.definition(written) is not None:
        refuse("DL302.undefined", text, span, name=f"{metric}.{node.attr}", fix=_with_metrics(text, scope))


def _of_rows(metric: str, word: str, scope: Scope) -> str | None:
    """The name of a reduction of a metric's rows, `max` of `kl`. None if the metric cannot have such a reduction."""
    name = idioms.reduction(word)
    if not is_reduction(name, 1):
        return None
    return scope.of_tracker(f"{metric}/{name}") or (f"{metric}_{name}" if _of_other_rows(metric, name, scope) else None)


def _of_other_rows(metric: str, reduction: str, scope: Scope) -> dict[str, Any] | None:
    """A metric, by its name, with another reduction of a metric's rows; None if that is not possible."""
    entry = scope.metrics.get(metric)
    if not isinstance(entry, Mapping) or not isinstance(entry.get("expr"), str) or scope.of_steps(metric):
        return None
    called = reduced(entry["expr"]) or {"expr": entry["expr"], "reduce": entry.get("reduce", "mean")}
    if called["reduce"] != "mean" and reduction not in ("count", "sum"):
        return None
    kept = {key: entry[key] for key in ("where", "by", "weight") if key in entry}
    return {f"{metric}_{reduction}": {**called, "reduce": reduction, **kept}}


def _with_metrics(text: str, scope: Scope) -> str:
    """The fix that names metrics in place of calls and attributes, and defines the metrics that are undefined."""
    definitions: dict[str, Any] = {}

    def named(match: re.Match[str]) -> str:
        metric, word = (match[2], match[1]) if match[2] else (match[3], match[4])
        if (written := _of_rows(metric, word, scope)) is None:
            return match[0]
        defined = scope.definition(written)
        if defined is None and scope.of_tracker(written) is None:
            defined = _of_other_rows(metric, idioms.reduction(word), scope)
        definitions.update(defined or {})
        return written

    here = re.sub(r"\b(\w+)\(\s*([a-z_][\w./]*)\s*\)|\b([a-z_]\w*)\.(\w+)(?:\(\))?", named, text)
    return library_calls.naming(definitions, here)


def _smoothed(name: str, scope: Scope) -> dict[str, Any] | None:
    """The smooth curve of a metric that is meant by ``kl_ema`` or ``kl_rolling_50``, by its name; None for others."""
    if (match := _CURVE.fullmatch(name)) is None:
        return None
    metric = in_formula(match[1], scope.metrics[match[1]]) if match[1] in scope.metrics else scope.of_tracker(match[1])
    combine = "ema(0.9)" if match[2] is None else str(Smoothing.of_last(int(match[3] or 0)))
    return None if metric is None else {name: {"formula": metric, "combine": combine}}
