"""Alerts: their conditions, and the texts that they send."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from declog.compiler import labels, names
from declog.compiler.draft import Draft, SwitchedOff, has_type, op_of
from declog.compiler.fixes import suggestions
from declog.compiler.formulas import over_metrics
from declog.compiler.scopes import MetricScope
from declog.errors import Problem, did_you_mean, in_flow, nearest
from declog.language.dtypes import NUMERIC, DType
from declog.language.fixes import alert_keys
from declog.language.fixes.modes import alert_of_mode, in_mode
from declog.language.fixes.reward_functions import reward_function
from declog.language.nodes import CONST, LABEL, LABELLED, METRIC, Node, label_of, walk
from declog.language.notation import SIGNS, bounds
from declog.language.spec import AlertSpec
from declog.plans.needs import read
from declog.plans.ops import NAME, AlertOp

_CHANNELS = frozenset({"notify", "channel", "channels", "to", "email", "slack", "webhook", "sinks"})  # not alerts
_NO_VALUE = re.compile(r"(is )?(missing|absent|gone)|(is )?not (present|there)|no values?")
_LEVELS = {"low": "<", "small": "<", "high": ">", "large": ">", "big": ">"}  # the signs of bounds that have no number


def alerts(draft: Draft) -> None:
    """Type the conditions of alerts over metrics' values, and fill in their texts."""
    for name, spec in draft.active("alerts").items():
        problem = next(filter(None, (rule(draft, name, spec) for rule in _RULES)), None)
        if problem is not None:
            draft.problems.append(problem)
        elif (alert := _alert(draft, name, spec)) is not None:
            draft.alerts.append(alert)


def _limits(spec: AlertSpec) -> dict[str, Any]:
    """The bounds of an alert by key, `above` and `below`."""
    return {key: limit for key in SIGNS if (limit := getattr(spec, key)) is not None}


def _of_condition_and_bounds(draft: Draft, name: str, spec: AlertSpec) -> Problem | None:
    """An alert has a condition or bounds, and not both."""
    limits = _limits(spec)
    if bool(limits) != (spec.when is not None):
        return None
    ends = ", ".join(f"{key}: null" for key in limits)
    fix = f"{ends}, which drops a preset's; or drop `when`" if limits else 'when: "kl > 0.2"'
    return Problem.of("DL203.alert", ("alerts", name), fix=fix)


def _of_no_metric(draft: Draft, name: str, spec: AlertSpec) -> Problem | None:
    """Bounds are those of the metric that has the alert's name."""
    limits = _limits(spec)
    if not limits or name in draft.spec.metrics or draft.deleted(f"metrics.{name}"):
        return None
    of_mode = in_mode(name, draft.spec.modes)
    if of_mode is not None and (meant := names.in_expression(draft, of_mode[1])) is not None:
        entry = spec.model_dump(exclude_unset=True, by_alias=True)
        fix = alert_of_mode(name, entry, meant, of_mode[0], MetricScope(draft).metrics)
        return Problem.of("DL302.alert", ("alerts", name), name=name, fix=fix)
    functions = draft.observed["rewards"].members if "rewards" in draft.observed else ()
    function = reward_function(name, draft.output_keys, functions)
    of_function = function in (name, *functions)  # `reward_collapse` is an alert about all rewards
    member = names.in_expression(draft, f"rewards/{function}/mean") if of_function else None
    keys = [member] if member and member.startswith("member(") else list(draft.output_keys)
    shown = draft.metric_shown(name)
    near = shown.key if shown and shown.is_value else _named_in(name, keys)
    near = near or (keys[0] if len(keys) == 1 else None)
    when = bounds(name, limits).replace(name, labels.named_in(draft, name, near) if near else "METRIC")
    rest = spec.model_dump(exclude_unset=True, exclude={*SIGNS}, by_alias=True)
    said = f"{name}: {{when: {in_flow(when)}{', ' * bool(rest)}{in_flow(rest)[1:-1]}}}"
    fix = f"name it by its metric, or: {said}" if near else f"the condition names it: {said}"
    defined = suggestions.definition(draft, name)
    if defined is not None or near is None:
        metrics = suggestions.of_each_step(draft, name) if defined is None else f"metrics: {in_flow(defined)}"
        fix = f"define the metric: {metrics}; or {fix}"
    return Problem.of("DL302.alert", ("alerts", name), name=name, fix=fix)


def _of_channel(draft: Draft, name: str, spec: AlertSpec) -> Problem | None:
    """`alerts: {slack: ops}` names a channel, as other tools do."""
    if name not in _CHANNELS or not re.fullmatch(r"\w+", spec.when or "") or spec.when in draft.spec.metrics:
        return None
    return Problem.of("DL202.channel", ("alerts", name), name=name, value=spec.when)


def _of_no_value(draft: Draft, name: str, spec: AlertSpec) -> Problem | None:
    """`kl: missing` is about a metric without a value."""
    if not _NO_VALUE.fullmatch(spec.when or "") or spec.when in draft.output_keys:
        return None
    metric = name if name in draft.spec.metrics else next(iter(draft.output_keys), "METRIC")
    when = f"not present({metric})"
    beside = f"{name}: {when}" + (f" for {spec.for_}" if spec.for_ != 1 else "")
    fix = beside if spec.model_fields_set <= {"when", "for_"} else f"when: {when}"
    return Problem.of("DL302.no_value", ("alerts", name), value=spec.when, fix=fix)


def _of_level(draft: Draft, name: str, spec: AlertSpec) -> Problem | None:
    """`kl: high` names a side, and no bound."""
    bound = _LEVELS.get(spec.when or "")
    return None if bound is None else Problem.of("DL203.alert", ("alerts", name), fix=f'{name}: "{bound} 0.5"')


def _of_keys_inside(draft: Draft, name: str, spec: AlertSpec) -> Problem | None:
    """A condition may have the other keys of its alert in it: `kl > 0.2 level error`."""
    if spec.when is None or (inside := alert_keys.of_keys_inside(spec.when, name)) is None:
        return None
    rest = spec.model_dump(exclude_unset=True, exclude={"when"}, by_alias=True)
    span = (0, len(spec.when))
    fix = in_flow({name: {**inside, **rest}})[1:-1]
    return Problem.of("DL301.keys", ("alerts", name, "when"), source=spec.when, span=span, fix=fix)


_RULES: tuple[Callable[[Draft, str, AlertSpec], Problem | None], ...] = (
    _of_condition_and_bounds, _of_no_metric, _of_channel, _of_no_value, _of_level, _of_keys_inside,
)  # fmt: skip


def _alert(draft: Draft, name: str, spec: AlertSpec) -> AlertOp | None:
    """The alert with its typed condition, and its text with the values that the condition reads; None if reported."""
    path, text = ("alerts", name), bounds(name, _limits(spec)) if spec.when is None else spec.when
    with draft.at(*path, *(["when"] if spec.when is not None else []), off=f"alerts.{name}"):
        node = over_metrics(draft, text, of_alert=name, holds=True)
        if node.op == CONST and node.type.dtype in NUMERIC:  # kl: "0.5"
            value = node.param("value")
            good = draft.spec.about[name].good if name in draft.spec.about else None
            fix = alert_keys.of_number(name, value, draft.spec.metrics, good)
            draft.report("DL305.alert", path, value=value, fix=fix)
            return None
        if not has_type(draft, node, (*path, "when"), [DType.BOOL]):
            return None
        values = _values(draft, node)
        shown_values = ", ".join(_is_value(metric, read) for metric, read in values.items()) or name
        template = spec.text or f"{shown_values}: " + text.replace("{", "{{").replace("}", "}}")
        fields = _fields(draft, spec.text, node, (*path, "text")) if spec.text else tuple(values.items())
        if fields is not None:
            return op_of(AlertOp, spec, id=name, when=node, do=tuple(spec.do), text=template, fields=fields)
    return None


def _named_in(name: str, metrics: Iterable[str]) -> str | None:
    """The metric that an alert's name is near to, or begins with: `kl_runaway` is about `kl`."""
    begins = [metric for metric in metrics if name.startswith(f"{metric.replace('.', '_')}_")]
    return max(begins, key=len) if begins else nearest(name, metrics)


def _aggregates(draft: Draft, node: Node) -> bool:
    """Whether a node makes one value of a metric's members."""
    function = draft.functions.get(node.op)
    return node.op == "member" or (function is not None and function.stage == "aggregate")


def _read(draft: Draft, condition: Node) -> list[Node]:
    """The nodes whose values a condition reads: a metric, one label or member of it, or an aggregate of its members."""
    *nodes, _ = walk(condition)  # the condition itself may be an `any` of members, whose values are shown
    aggregates = [node for node in nodes if _aggregates(draft, node)]
    aggregated = {arg for node in aggregates for arg in walk(*node.args)}
    return [node for node in nodes if (node.op == METRIC or node in aggregates) and node not in aggregated]


def _values(draft: Draft, condition: Node) -> dict[str, Node]:
    """The values that a condition reads, by the names that a text has for them; without aggregates of members."""
    read = {
        str(node.leaf if node.op == METRIC and label_of(node) is None else node): node
        for node in _read(draft, condition) if node.op in (METRIC, "member")
    }  # fmt: skip
    # `{}[]:!` have a meaning in a text; the name of `nan_count(kl)` is `nan_count:kl`
    return {name: node for name, node in read.items() if not set(name) & set("{}[]:!")}


def _is_value(name: str, node: Node) -> str:
    """The template of `kl is 0.7`; a label and a member have the name that trackers show."""
    several = node.type.family or node.op == "member" or not {LABEL, LABELLED}.isdisjoint(dict(node.params))
    return f"{{{name}:{NAME}}} is {{{name}}}" if several else f"{name} is {{{name}}}"


def _as_read(draft: Draft, condition: Node, metric: Node) -> list[Node]:
    """The values to show for a metric that a text names: those that the condition reads of it, else the metric."""
    read = [
        node for node in _read(draft, condition)
        if any(item.op == METRIC and item.leaf == metric.leaf for item in (node, *node.args))
    ]  # fmt: skip
    return [metric] if metric in read or not read else read


_VALUE = "value", "metric", "current", "v", "val"  # words of other tools for the value that a condition judges
_BESIDE = "step", "global_step", "mode", "level", "name", "alert", "id", "time"  # shown beside a text


def _fields(draft: Draft, text: str, condition: Node, path: tuple[str, ...]) -> tuple[tuple[str, Node], ...] | None:
    """The metrics that an alert's text names; a text that cannot be filled is reported, and gives None."""
    nodes: dict[str, Node] = {}
    try:
        parts = [(name, form or "") for _, name, form, _ in string.Formatter().parse(text) if name is not None]
    except ValueError as error:
        draft.report("DL404.text", path, error=error)
        return None
    scope, before = MetricScope(draft, of_alert=path[1]), len(draft.problems)
    for name, form in parts:
        try:
            format(1.0, "" if form == NAME else form)
        except ValueError:
            draft.report("DL404.format", path, form=form, name=name)
        head, _, suffix = name.partition(".")
        try:
            if "(" in name:  # `{label(by_level, '1')}`
                with draft.at(*path):
                    nodes[name] = over_metrics(draft, name, of_alert=path[1])
                continue
            if (label := labels.in_words(draft, name, scope)) is not None:  # `{by_level/1}`
                fix = f"{{{label}{f':{form}' if form else ''}}}"
                draft.report("DL302.alert_text", path, name=f"{{{name}}}", fix=fix)
                continue
            node = scope.attribute(head, suffix) if suffix else scope.resolve(head)
        except SwitchedOff:  # the condition reads other metrics: the text is shown as it is
            continue
        if isinstance(node, Problem):
            draft.problems.append(replace(node, path=path))
        elif node is None or node.op != METRIC:
            fix = did_you_mean(name, draft.output_keys, what="metrics")
            if name in _VALUE and (judged := read(condition)):
                fix = f"{{{judged[0]}{f':{form}' if form else ''}}}"
            elif name in _BESIDE:
                fix = "drop it: an alert is shown with its name, level, mode, step and time"
            draft.report("DL302.alert_text", path, name=f"{{{name}}}", fix=fix)
        elif len(nodes_read := _as_read(draft, condition, node)) > 1:
            fix = " or ".join(f"{{{one}{f':{form}' if form else ''}}}" for one in nodes_read)
            draft.report("DL302.alert_value", path, name=f"{{{name}}}", fix=fix)
        else:
            (nodes[name],) = nodes_read
    return tuple(nodes.items()) if len(draft.problems) == before else None
