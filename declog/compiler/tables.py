"""Tables and alerts: their contents, their rows, and their sinks."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from dataclasses import replace

from declog.compiler import labels, names
from declog.compiler.draft import Draft, SwitchedOff, has_type, needs_axis, op_of
from declog.compiler.filters import filter_of
from declog.compiler.fixes import suggestions
from declog.compiler.formulas import over_metrics
from declog.compiler.schemas import coarser, columns, of_schema, of_table
from declog.compiler.scopes import MetricScope
from declog.errors import Problem, did_you_mean, in_flow, nearest
from declog.language import notation
from declog.language.dtypes import AXES, NUMERIC, Axis, DType, per
from declog.language.fixes import alert_keys, unparsable
from declog.language.fixes.modes import alert_of_mode, in_mode
from declog.language.fixes.unknown_names import says_reward
from declog.language.nodes import CONST, LABEL, LABELLED, METRIC, Node, label_of, reads_other_ranks, walk
from declog.language.notation import SIGNS, bounds
from declog.language.spec_of_tables import TableSpec
from declog.plans.needs import read
from declog.plans.ops import NAME, AlertOp, ColumnOp, FilterOp, TableOp
from declog.sinks import known_kinds

_CHANNELS = frozenset({"notify", "channel", "channels", "to", "email", "slack", "webhook", "sinks"})  # not alerts
_NO_VALUE = re.compile(r"(is )?(missing|absent|gone)|(is )?not (present|there)|no values?")
_LEVELS = {"low": "<", "small": "<", "high": ">", "large": ">", "big": ">"}  # the signs of bounds that have no number


def tables(draft: Draft) -> None:
    """Compile every table: its filter, its columns, its sinks."""
    used = {table for profile in draft.profiles.values() for table in profile.tables}
    for name, spec in draft.active("tables").items():
        table = _table(draft, name, spec)
        if table is None:
            continue
        if name not in used:
            draft.inactive[f"tables.{name}"] = f"no active profile ({', '.join(sorted(draft.profiles))}) shows it"
        elif not table.sinks and not draft.requested:
            draft.inactive[f"tables.{name}"] = "no sink takes it"
            if draft.sinks:
                draft.warn(f"tables.{name}: no sink takes this table; {_untaken(draft, name, spec)}")
        else:
            draft.tables.append(table)
    for schema in draft.spec.schemas:
        if all(spec.schema_ != schema for spec in draft.spec.tables.values()):
            columns(draft, of_schema(draft, schema), Axis.COMPLETION)
    keeping = [table for table in draft.tables if any(column.keeps for column in table.columns)]
    for table in keeping:
        if table.phase != keeping[0].phase:
            draft.warn(
                f"tables.{table.id}: columns of log_extra belong to rows of phase `{keeping[0].phase}`, "
                f"and this table's are of phase `{table.phase}`: it gets none"
            )


def _untaken(draft: Draft, name: str, spec: TableSpec) -> str:
    """An edit that gives a table a sink."""
    named = [sink for sink, on in spec.to.items() if on]
    if named and not any(sink in draft.spec.sinks for sink in named):
        return "its `to:` names no sink that is there"
    showing = {sink.id for sink in draft.sinks if name in draft.profiles[sink.profile].tables}
    if showing and not any("table" in sink.accepts for sink in draft.sinks):
        return f"{', '.join(sorted(showing))} {'takes' if len(showing) == 1 else 'take'} no tables"
    return "add one that takes tables, or `enabled: false`"


def _table(draft: Draft, name: str, spec: TableSpec) -> TableOp | None:
    path = ("tables", name)
    before = len(draft.problems)
    axis = AXES[spec.rows]
    if spec.rows == "group" and draft.grouping is None:
        draft.report("DL306.group_key", (*path, "rows"), key="rows")
    if spec.schema_ is not None and spec.schema_ not in draft.spec.schemas:
        declare = suggestions.of_schema(draft, spec.schema_)
        draft.report("DL403.schema", (*path, "schema"), name=spec.schema_, fix=declare)
    chosen = None
    if spec.filter is not None:
        id = filter_of(draft, name)
        if isinstance(spec.filter, str) and id not in draft.spec.filters:
            word = id.rstrip("0123456789")  # `worst_8`
            if id in notation.ALL_ROWS:
                draft.report("DL403.all_rows", (*path, "filter"), name=id)
            elif (fix := unparsable.of_filter(f"{word.rstrip('_')} {id.removeprefix(word) or 4}")) is not None:
                draft.report("DL403.filter", (*path, "filter"), name=id, fix=fix)
            else:
                draft.report("DL403.name", (*path, "filter"), noun="filter", name=id, known=draft.spec.filters)
        chosen = draft.filters.get(id)
        if f"filters.{id}" in draft.inactive:
            draft.inactive[f"tables.{name}"] = f"its filter `{id}` is off"
            return None
    for one in chosen.chain if chosen is not None else ():
        _fits_rows(draft, name, one, axis)
    takers = _takers(draft, name, spec)
    every = draft.window(spec.every, *path, "every")
    ops = columns(draft, of_table(draft, name), axis)
    if len(draft.problems) > before:
        return None
    if spec.as_ == "trace" and all(
        (column.type is not DType.OBJECT and column.role is None) or column.undeclared for column in ops
    ):
        draft.report("DL203.trace", (*path, "as"), schema=spec.schema_ or name)
        return None
    phase = _phase(draft, name, axis, ops, chosen)
    table = op_of(
        TableOp, spec, id=name, name=spec.name or name, axis=axis, columns=ops, filter=chosen, every=every,
        phase=phase, sinks=takers, as_trace=spec.as_ == "trace",
    )  # fmt: skip
    per_rank = frozenset(sink.id for sink in draft.sinks if sink.ranks == "each") & set(takers)
    return replace(table, local=per_rank) if per_rank and _stands_alone(draft, table) else table


def _stands_alone(draft: Draft, table: TableOp) -> bool:
    """Whether a rank can write its own rows: all of them, at each log event, without a look at other ranks."""
    split = draft.split_groups
    nodes = [node for column in table.columns for node in column.nodes]
    far = any(node.type.phase not in (None, table.phase) or reads_other_ranks(node, split) for node in nodes)
    plain = table.filter is None and table.keep == "window" and table.every == draft.period
    return plain and not far and not (split and table.axis is Axis.GROUP)


def _fits_rows(draft: Draft, table: str, op: FilterOp, axis: Axis) -> None:
    """Report a filter that does not choose rows of the table's axis, or reads more than one value for each row."""
    path = ("tables", table, "filter")
    if op.take == "group" and axis is Axis.STEP:
        draft.report("DL310.filter_rows", path, filter=op.id, table=table, row=axis.row, does="takes groups",
                     fix="without `take`")  # fmt: skip
    for field, node in op.reads.items():
        if not needs_axis(node.type, axis) and op.take == "row":
            draft.report(
                "DL310.filter_axis", path, filter=op.id, field=field, axis=per(node.type.axis), table=table,
                row=axis.row, expr=in_flow(coarser(draft, node, axis)),
            )  # fmt: skip
    if "group" in op.within and axis is not Axis.COMPLETION:
        draft.report("DL310.filter_rows", path, filter=op.id, table=table, row=axis.row,
                     does="chooses within a group", fix="with `within: step`")  # fmt: skip


def _takers(draft: Draft, name: str, spec: TableSpec) -> tuple[str, ...]:
    able = {sink.id for sink in draft.sinks if "table" in sink.accepts and name in draft.profiles[sink.profile].tables}
    for sink, on in spec.to.items():
        if sink not in draft.spec.sinks:
            if not on or sink in draft.spec.sink_options:  # an option of a sink that is not opened
                continue
            at = ("tables", name, "to", sink)
            if sink in known_kinds():
                draft.report("DL403.sink_to_add", at, name=sink)
            else:
                draft.report("DL403.name", at, noun="sink", name=sink, known=draft.spec.sinks)
        elif on and any(op.id == sink and "table" not in op.accepts for op in draft.sinks):
            draft.report("DL405.tables", ("tables", name, "to", sink), sink=sink)
    by_default = not any(spec.to.values())
    return tuple(sorted(sink for sink in able if spec.to.get(sink, by_default)))


def _phase(draft: Draft, name: str, axis: Axis, columns: tuple[ColumnOp, ...], chosen: FilterOp | None) -> str:
    """The phase whose rows a table has: the latest that it reads; values of earlier ones are looked up."""
    readers: dict[str, dict[str, None]] = {}  # by phase, who reads a value of it
    chain = chosen.chain if chosen is not None else ()
    tokens = set()  # the phases of values per token, which cannot be looked up
    for column in columns:
        for node in column.nodes:
            readers.setdefault(node.type.phase or "", {})[f"`{column.id}`"] = None
            tokens |= {node.type.phase} - {None} if node.type.axis is Axis.TOKEN else set()
    for op in chain:
        readers.setdefault(op.phase, {})[f"the filter `{op.id}`"] = None
    readers.pop("", None)
    phase = draft.latest(readers, ("tables", name)) if readers else draft.default_phase
    fixed = axis is not Axis.COMPLETION or any(op.take == "group" for op in chain)
    if len(readers) > 1 and (fixed or tokens - {phase}):
        texts = {phase: ", ".join(names) for phase, names in sorted(readers.items())}
        phases = " and ".join(f"{text} of `{phase}`" for phase, text in texts.items())
        fewest = texts[min(texts, key=lambda phase: len(readers[phase]))]
        draft.report("DL313.table", ("tables", name), name=name, phases=phases, fewest=fewest)
    return phase


def alerts(draft: Draft) -> None:
    """Type the conditions of alerts over metrics' values, and fill in their texts."""
    for name, spec in draft.active("alerts").items():
        path = ("alerts", name)
        limits = {key: limit for key in SIGNS if (limit := getattr(spec, key)) is not None}
        of_limits = bounds(name, limits)
        if bool(limits) == (spec.when is not None):
            ends = ", ".join(f"{key}: null" for key in limits)
            fix = f"{ends}, which drops a preset's; or drop `when`" if limits else 'when: "kl > 0.2"'
            draft.report("DL203.alert", path, fix=fix)
            continue
        if limits and name not in draft.spec.metrics and not draft.deleted(f"metrics.{name}"):
            of_mode = in_mode(name, draft.spec.modes)
            if of_mode is not None and (meant := names.in_expression(draft, of_mode[1])) is not None:
                entry = spec.model_dump(exclude_unset=True, by_alias=True)
                fix = alert_of_mode(name, entry, meant, of_mode[0], MetricScope(draft).metrics)
                draft.report("DL302.alert", path, name=name, fix=fix)
                continue
            member = names.in_expression(draft, f"rewards/{name}/mean") if says_reward(name) else None
            keys = [member] if member and member.startswith("member(") else list(draft.output_keys)
            shown = draft.metric_shown(name)
            near = shown.key if shown and shown.is_value else _named_in(name, keys)
            near = near or (keys[0] if len(keys) == 1 else None)
            when = of_limits.replace(name, labels.named_in(draft, name, near) if near else "METRIC")
            defined = suggestions.definition(draft, name)
            rest = spec.model_dump(exclude_unset=True, exclude={*SIGNS}, by_alias=True)
            said = f"{name}: {{when: {in_flow(when)}{', ' * bool(rest)}{in_flow(rest)[1:-1]}}}"
            fix = f"name it by its metric, or: {said}" if near else f"the condition names it: {said}"
            if defined is not None or near is None:
                metrics = suggestions.of_each_step(draft, name) if defined is None else f"metrics: {in_flow(defined)}"
                fix = f"define the metric: {metrics}; or {fix}"
            draft.report("DL302.alert", path, name=name, fix=fix)
            continue
        if name in _CHANNELS and re.fullmatch(r"\w+", spec.when or "") and spec.when not in draft.spec.metrics:
            draft.report("DL202.channel", path, name=name, value=spec.when)
            continue
        if _NO_VALUE.fullmatch(spec.when or "") and spec.when not in draft.output_keys:
            metric = name if name in draft.spec.metrics else next(iter(draft.output_keys), "METRIC")
            when = f"not present({metric})"
            beside = f"{name}: {when}" + (f" for {spec.for_}" if spec.for_ != 1 else "")
            fix = beside if spec.model_fields_set <= {"when", "for_"} else f"when: {when}"
            draft.report("DL302.no_value", path, value=spec.when, fix=fix)
            continue
        if (bound := _LEVELS.get(spec.when or "")) is not None:
            draft.report("DL203.alert", path, fix=f'{name}: "{bound} 0.5"')
            continue
        text = spec.when if spec.when is not None else of_limits
        if (inside := alert_keys.of_keys_inside(text, name)) is not None:
            rest = spec.model_dump(exclude_unset=True, exclude={"when"}, by_alias=True)
            fix = in_flow({name: {**inside, **rest}})[1:-1]
            draft.report("DL301.keys", (*path, "when"), source=text, span=(0, len(text)), fix=fix)
            continue
        with draft.at(*path, *(["when"] if spec.when is not None else []), off=f"alerts.{name}"):
            node = over_metrics(draft, text, of_alert=name, holds=True)
            if node.op == CONST and node.type.dtype in NUMERIC:  # kl: "0.5"
                value = node.param("value")
                good = draft.spec.about[name].good if name in draft.spec.about else None
                fix = alert_keys.of_number(name, value, draft.spec.metrics, good)
                draft.report("DL305.alert", path, value=value, fix=fix)
                continue
            if not has_type(draft, node, (*path, "when"), [DType.BOOL]):
                continue
            values = _values(draft, node)
            shown_values = ", ".join(_is_value(metric, read) for metric, read in values.items()) or name
            template = spec.text or f"{shown_values}: " + text.replace("{", "{{").replace("}", "}}")
            fields = _fields(draft, spec.text, node, (*path, "text")) if spec.text else tuple(values.items())
            if fields is not None:
                op = op_of(AlertOp, spec, id=name, when=node, do=tuple(spec.do), text=template, fields=fields)
                draft.alerts.append(op)


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
    return f"{{{name}:{NAME}}} is {{{name}:.6g}}" if several else f"{name} is {{{name}:.6g}}"


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
