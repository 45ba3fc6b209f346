"""Filters, schemas and tables, and alerts: parsed and typed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from declog.axes import AXES, KINDS, Axis, Kind, per
from declog.compiler import calls
from declog.compiler.draft import Draft, needs_axis
from declog.compiler.metrics import FIELDS
from declog.compiler.scopes import MetricScope, SignalScope
from declog.errors import did_you_mean
from declog.expr import compile_expression, join
from declog.plan import AlertOp, ColumnOp, FilterOp, TableOp
from declog.spec import ColumnSpec, FilterSpec, TableSpec
from declog.tree import JOIN, Node, reads_other_ranks, walk

ColumnType = Literal["int", "float", "bool", "text", "json"]
_TYPES: dict[str, ColumnType] = {"int": "int", "float": "float", "bool": "bool", "text": "text", "object": "json"}
_NATURAL: dict[Kind, ColumnType] = {
    Kind.INT: "int",
    Kind.NUMBER: "float",
    Kind.BOOL: "bool",
    Kind.TEXT: "text",
    Kind.OBJECT: "json",
}
_ACCEPTS: dict[ColumnType, tuple[Kind, ...]] = {
    "int": (Kind.INT, Kind.BOOL), "float": (Kind.NUMBER, Kind.INT, Kind.BOOL), "bool": (Kind.BOOL,),
    "text": (Kind.TEXT,),
    "json": (Kind.OBJECT, Kind.TEXT, Kind.INT, Kind.NUMBER, Kind.BOOL),
}  # fmt: skip


def filters(draft: Draft) -> None:
    """Every filter, after the one it filters."""
    visiting: list[str] = []

    def visit(name: str) -> FilterOp | None:
        if name in draft.filters:
            return draft.filters[name]
        spec = draft.spec.filters[name]
        if f"filters.{name}" in draft.inactive:
            return None
        if name in visiting:
            draft.report(
                "DL309",
                f"filters filter each other in a circle: {' -> '.join([*visiting, name])}",
                "filters",
                name,
                "from",
                fix="break the circle",
            )
            return None
        source = None
        if spec.from_ is not None:
            if spec.from_ not in draft.spec.filters:
                draft.report(
                    "DL403",
                    f"unknown filter `{spec.from_}`",
                    "filters",
                    name,
                    "from",
                    fix=did_you_mean(spec.from_, draft.spec.filters, what="filters"),
                )
            else:
                visiting.append(name)
                source = visit(spec.from_)
                visiting.pop()
                if f"filters.{spec.from_}" in draft.inactive:
                    draft.inactive[f"filters.{name}"] = f"the filter `{spec.from_}`, which it filters, is off"
                    return None
        made = _filter(draft, name, spec, source)
        if made is not None:
            draft.filters[name] = made
        return made

    for name in draft.spec.filters:
        visit(name)


def _filter(draft: Draft, name: str, spec: FilterSpec, source: FilterOp | None) -> FilterOp | None:
    before = len(draft.problems)
    needed = {"top_bottom": "key", "unique": "key", "random": "n", "first": "n", "fraction": "fraction"}.get(spec.kind)
    if needed and getattr(spec, needed) is None:
        draft.report("DL203", f"`kind: {spec.kind}` needs `{needed}`", "filters", name, fix=f"add `{needed}:`")
    takes = {"top_bottom": ("key", "top", "bottom"), "unique": ("key",), "random": ("n",), "first": ("n",)}
    for option in ("key", "top", "bottom", "n", "fraction"):
        if getattr(spec, option) and option not in takes.get(spec.kind, (needed,)):
            message = f"`kind: {spec.kind}` has no `{option}`"
            draft.report("DL202", message, "filters", name, option, fix=f"drop `{option}`")
    if spec.kind == "top_bottom" and not spec.top and not spec.bottom:
        draft.report("DL203", "`kind: top_bottom` needs `top` or `bottom`", "filters", name, fix="add `top: 2`")
    if spec.within == "group" and draft.grouping is None:
        draft.report(
            "DL306",
            "`within: group`, and this profile does not say what a group is",
            "filters",
            name,
            "within",
            fix="set `axes.group`, or `within: step`",
        )
    key, where = (
        _row_value(draft, name, "key", spec.key, tuple(Kind) if spec.kind == "unique" else (Kind.NUMBER, Kind.INT)),
        _row_value(draft, name, "where", spec.where, (Kind.BOOL,)),
    )
    if len(draft.problems) > before or f"filters.{name}" in draft.inactive:
        return None
    events = {node.type.event for node in (key, where) if node is not None and node.type.event}
    event = max(events, key=lambda item: draft.event_order.get(item, 0), default="")
    key, where = (
        node if node is None or node.type.event in (None, event) else join(draft.pool, node, event)
        for node in (key, where)
    )
    return FilterOp(
        name,
        spec.kind,
        event,
        key,
        where,
        spec.top,
        spec.bottom,
        spec.within,
        spec.n or 0,
        spec.fraction or 0.0,
        spec.seed,
        spec.limit,
        source,
    )


def _row_value(draft: Draft, name: str, field: str, text: str | None, kinds: tuple[Kind, ...]) -> Node | None:
    if text is None:
        return None
    with draft.at("filters", name, field, off=f"filters.{name}"):
        node = compile_expression(text, SignalScope(draft), draft.pool, draft.functions)
        path = ("filters", name, field)
        if node.type.kind not in kinds:
            fix = (
                f"compare it, such as `{node} > 0`"
                if kinds == (Kind.BOOL,)
                else f"`1 if {node} else 0`"
                if node.type.kind is Kind.BOOL
                else None
            )
            draft.report(
                "DL305",
                f"`{field}` needs {' or '.join(k.value for k in kinds)}, and `{node}` is {node.type.kind.value}",
                *path,
                fix=fix,
            )
        elif not needs_axis(node.type, Axis.COMPLETION):
            fix = (
                f"any({node}, over=token)  or  all({node}, over=token)"
                if kinds == (Kind.BOOL,)
                else f"mean({node}, over=token)"
            )
            draft.report(
                "DL310", f"filters.{name}.{field} is per token; a filter needs one value per completion", *path, fix=fix
            )
        elif node.type.family:
            draft.report(
                "DL305",
                f"`{field}` cannot be a family",
                *path,
                fix="pick a member: column(family, 'name'), or sum(family, over=column)",
            )
        else:
            return node
    return None


def tables(draft: Draft) -> None:
    """Every table: its filter, its schema's columns, its sinks."""
    used = {table for profile in draft.profiles.values() for table in profile.tables}
    for name, spec in draft.spec.tables.items():
        if f"tables.{name}" in draft.inactive:
            continue
        table = _table(draft, name, spec)
        if table is None:
            continue
        if name not in used:
            draft.inactive[f"tables.{name}"] = f"no active profile ({', '.join(sorted(draft.profiles))}) shows it"
        elif not table.sinks and not draft.wanted:
            draft.inactive[f"tables.{name}"] = "no sink takes it"
            if draft.sinks:
                draft.warn(f"tables.{name}: no sink takes this table; {_untaken(draft, name, spec)}")
        else:
            draft.tables.append(table)
    for schema in draft.spec.schemas:
        if all(spec.schema_ != schema for spec in draft.spec.tables.values()):
            _columns(draft, schema, Axis.COMPLETION)
    places = {column.undeclared: table for table in draft.tables for column in table.columns if column.undeclared}
    if "keep" in places:
        for table in draft.tables:
            if table.event != places["keep"].event and any(column.keeps for column in table.columns):
                draft.warn(
                    f"tables.{table.id}: columns of log_extra belong to rows of event `{places['keep'].event}`, "
                    f"and this table's are of event `{table.event}`: it gets none"
                )


def _untaken(draft: Draft, name: str, spec: TableSpec) -> str:
    """What would give a table a sink."""
    wanted = [sink for sink, on in spec.to.items() if on]
    if wanted and not any(sink in draft.spec.sinks for sink in wanted):
        return "its `to:` names no sink that is there"
    showing = {sink.id for sink in draft.sinks if name in draft.profiles[sink.profile].tables}
    if showing and not any("table" in sink.accepts for sink in draft.sinks):
        return f"{', '.join(sorted(showing))} {'takes' if len(showing) == 1 else 'take'} no tables"
    return "add one that takes tables, or `enabled: false`"


ROWS: dict[str, str] = {"completion": "completion", "group": "group", "step": "batch"}  # what a row is


def _table(draft: Draft, name: str, spec: TableSpec) -> TableOp | None:
    path = ("tables", name)
    before = len(draft.problems)
    axis = AXES[spec.rows]
    if spec.rows == "group" and draft.grouping is None:
        draft.report(
            "DL306",
            "`rows: group`, and this profile does not say what a group is",
            *path,
            "rows",
            fix="set `axes.group: {size: N}` or `{of: SIGNAL}`",
        )
    if spec.schema_ not in draft.spec.schemas:
        draft.report(
            "DL403",
            f"unknown schema `{spec.schema_}`",
            *path,
            "schema",
            fix=did_you_mean(spec.schema_, draft.spec.schemas, what="schemas"),
        )
    chosen = None
    if spec.filter is not None:
        if spec.filter not in draft.spec.filters:
            draft.report(
                "DL403",
                f"unknown filter `{spec.filter}`",
                *path,
                "filter",
                fix=did_you_mean(spec.filter, draft.spec.filters, what="filters"),
            )
        chosen = draft.filters.get(spec.filter)
        if f"filters.{spec.filter}" in draft.inactive:
            draft.inactive[f"tables.{name}"] = f"its filter `{spec.filter}` is off"
            return None
    for one in chosen.chain if chosen is not None else ():
        _fits_rows(draft, name, one, axis)
    takers = _takers(draft, name, spec)
    every = draft.window(spec.every, *path, "every")
    columns = _columns(draft, spec.schema_, axis) if spec.schema_ in draft.spec.schemas else None
    if columns is None or len(draft.problems) > before:
        return None
    if spec.as_ == "trace" and all(column.type != "json" or column.undeclared for column in columns):
        draft.report(
            "DL203",
            f"`as: trace` shows conversations, and the schema `{spec.schema_}` has no column of those",
            *path,
            "as",
            fix="a column of `type: object`, whose values are lists of messages",
        )
        return None
    table = TableOp(
        name,
        spec.name or name,
        axis,
        _event(draft, name, columns, chosen),
        columns,
        chosen,
        every,
        spec.keep,
        takers,
        as_trace=spec.as_ == "trace",
        max_bytes=spec.max_bytes,
    )
    each = frozenset(sink.id for sink in draft.sinks if sink.ranks == "each") & set(takers)
    return replace(table, apart=each) if each and _stands_alone(draft, table) else table


def _stands_alone(draft: Draft, table: TableOp) -> bool:
    """Whether a rank can write its own rows: all of them, at each log event, without a look at other ranks."""
    split = draft.grouping is not None and draft.grouping.split == "ranks"
    nodes = [node for column in table.columns for node in column.nodes]
    far = any(node.op in (JOIN, "prev") for node in walk(*nodes)) or (split and table.axis is Axis.GROUP)
    plain = table.filter is None and table.keep == "window" and table.every == draft.period
    return plain and not far and not any(reads_other_ranks(node, split) for node in nodes)


def _fits_rows(draft: Draft, table: str, op: FilterOp, axis: Axis) -> None:
    """A filter picks rows of the table's axis: what it reads has one value for each."""
    path = ("tables", table, "filter")
    for field, node in (("key", op.key), ("where", op.where)):
        if node is not None and not needs_axis(node.type, axis):
            draft.report(
                "DL310",
                f"filters.{op.id}.{field} is {per(node.type.axis)}, and a row of the table `{table}` is a "
                f"{ROWS[axis.label]}",
                *path,
                fix=f"a filter with `{field}: {coarser(draft, node, axis)}`",
            )
    if op.within == "group" and axis is not Axis.COMPLETION:
        draft.report(
            "DL310",
            f"filters.{op.id} chooses within a group, and a row of the table `{table}` is a {ROWS[axis.label]}",
            *path,
            fix="a filter with `within: step`",
        )


def coarser(draft: Draft, node: Node, axis: Axis) -> str:
    """What one could write to have a value for each row of ``axis``."""
    how = "first" if node.type.kind in (Kind.TEXT, Kind.OBJECT) else "any" if node.type.kind is Kind.BOOL else "mean"
    text, at = str(node), node.type.axis
    for fine, below in ((Axis.TOKEN, Axis.COMPLETION), (Axis.COMPLETION, Axis.GROUP), (Axis.GROUP, Axis.BATCH)):
        if at is fine and axis < fine and (fine is Axis.TOKEN or draft.grouping is not None):
            text, at = f"{how}({text}, over={fine.label})", below
    return text


def _takers(draft: Draft, name: str, spec: TableSpec) -> tuple[str, ...]:
    able = (
        {sink.id for sink in draft.sinks if "table" in sink.accepts and name in draft.profiles[sink.profile].tables}
        if draft.profiles
        else set()
    )
    for sink, wanted in spec.to.items():
        if sink not in draft.spec.sinks:
            if draft.deleted(f"sinks.{sink}") or not wanted:
                continue
            draft.report(
                "DL403",
                f"unknown sink `{sink}`",
                "tables",
                name,
                "to",
                sink,
                fix=did_you_mean(sink, draft.spec.sinks, what="sinks"),
            )
        elif wanted and any(op.id == sink and "table" not in op.accepts for op in draft.sinks):
            draft.report(
                "DL405", f"the sink `{sink}` takes no tables", "tables", name, "to", sink, fix="send it to another sink"
            )
    if not any(spec.to.values()):
        return tuple(sorted(able - {sink for sink, wanted in spec.to.items() if not wanted}))
    return tuple(sorted(sink for sink in able if spec.to.get(sink)))


def _event(draft: Draft, name: str, columns: tuple[ColumnOp, ...], chosen: FilterOp | None) -> str:
    events = {node.type.event for column in columns for node in column.nodes if node.type.event}
    events |= {op.event for op in chosen.chain if op.event} if chosen else set()
    if len(events) > 1:
        draft.report(
            "DL313",
            f"the table `{name}` reads values of different events: {', '.join(sorted(events))}",
            "tables",
            name,
            fix="observe them in one event",
        )
    return sorted(events)[0] if events else draft.default_event


def _columns(draft: Draft, schema: str, row: Axis) -> tuple[ColumnOp, ...] | None:
    made = [_column(draft, schema, name, spec, row) for name, spec in draft.spec.schemas[schema].items()]
    seen: dict[str, str] = {}
    for column in made:
        if column is None:
            continue
        other = seen.setdefault(column.template if column.undeclared is None else "", column.id)
        if other != column.id:
            what = f"named `{column.template}`" if column.undeclared is None else "for undeclared columns"
            draft.report(
                "DL402",
                f"the columns `{other}` and `{column.id}` are both {what}",
                "schemas",
                schema,
                column.id,
                fix="give one of them another `name`" if column.undeclared is None else "drop one of them",
            )
    return tuple(column for column in made if column is not None)


def _column(draft: Draft, schema: str, name: str, spec: ColumnSpec, row: Axis) -> ColumnOp | None:
    path = ("schemas", schema, name)
    for key, pattern in spec.redact.items():
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            draft.report(
                "DL202",
                f"the pattern cannot be read: {error}",
                *path,
                "redact",
                key,
                fix="escape it as a Python regular expression",
            )
    given = [key for key in ("expr", "call", "undeclared") if getattr(spec, key) is not None]
    if len(given) > 1:
        shown = " and ".join(f"`{key}`" for key in given)
        draft.report("DL202", f"a column has one of {shown}, not both", *path, fix="drop one of them (null)")
        return None
    if spec.undeclared is not None:
        return _undeclared(draft, name, spec, row, path)
    if spec.call is not None:
        return calls.column(draft, name, spec, row, path)
    text = name if spec.expr is None else str(spec.expr)
    with draft.at(*path, *(("expr",) if spec.expr is not None else ()), off=f"schemas.{schema}.{name}"):
        node = compile_expression(text, SignalScope(draft), draft.pool, draft.functions)
        return _typed_column(draft, name, spec, node, row, path)
    return None


def _undeclared(draft: Draft, name: str, spec: ColumnSpec, row: Axis, path: tuple[str, ...]) -> ColumnOp | None:
    if row is not Axis.COMPLETION and spec.undeclared != "drop":
        draft.report(
            "DL310",
            f"columns of log_extra are per completion; a row is a {ROWS[row.label]}",
            *path,
            "undeclared",
            fix="undeclared: drop, or a schema of its own",
        )
        return None
    redact = tuple(spec.redact.items())
    return ColumnOp(name, "{column}", "json", None, False, True, spec.max_chars, redact, spec.undeclared)


def _typed_column(
    draft: Draft, name: str, spec: ColumnSpec, node: Node, row: Axis, path: tuple[str, ...]
) -> ColumnOp | None:
    type = _TYPES[spec.type] if spec.type else _NATURAL[node.type.kind]
    if not needs_axis(node.type, row):
        draft.report(
            "DL310",
            f"the column `{name}` is {per(node.type.axis)}; a row "
            + ("has one value" if row is Axis.COMPLETION else f"is a {ROWS[row.label]}"),
            *path,
            fix=f"expr: {coarser(draft, node, row)}",
        )
        return None
    if node.type.kind not in _ACCEPTS[type]:
        wanted = next((label for label, kind in KINDS.items() if kind is node.type.kind), node.type.kind.value)
        draft.report(
            "DL305",
            f"the column `{name}` is declared {spec.type}, and `{node}` is {node.type.kind.value}",
            *path,
            "type",
            fix=f"type: {wanted}",
        )
        return None
    if (spec.max_chars or spec.redact) and type not in ("text", "json"):
        draft.report("DL202", "`max_chars` and `redact` are for text", *path, fix="drop them")
    template = spec.name or ("{id}/{column}" if node.type.family else "{id}")
    for field in sorted(set(re.findall(r"\{(\w*)\}", template)) - (FIELDS - {"reduce", "label"})):
        draft.report("DL404", f"`{{{field}}}` is not known in a column's name", *path, "name", fix="fields: column, id")
    if node.type.family and "{column}" not in template:
        draft.report(
            "DL404",
            f"a family has one column per member, and the name `{template}` has no {{column}}",
            *path,
            "name",
            fix=template + "/{column}",
        )
    if not node.type.family and "{column}" in template:
        draft.report(
            "DL404",
            f"the name `{template}` has {{column}}, and `{node}` is not a family",
            *path,
            "name",
            fix="drop {column}",
        )
    return ColumnOp(
        name,
        template.replace("{id}", name),
        type,
        node,
        node.type.family,
        spec.nullable,
        spec.max_chars,
        tuple(spec.redact.items()),
    )


def alerts(draft: Draft) -> None:
    """Conditions over metrics' values. They are typed here; a profile that has one says what it would do."""
    for name, spec in draft.spec.alerts.items():
        if f"alerts.{name}" in draft.inactive:
            continue
        path = ("alerts", name)
        bounds = [f"{spec.metric} > {spec.above!r}"] * (spec.above is not None) + [
            f"{spec.metric} < {spec.below!r}"
        ] * (spec.below is not None)
        if (spec.metric is None) == (spec.when is None) or (spec.metric is not None and not bounds):
            draft.report(
                "DL203", "an alert has `when`, or a `metric` with `above` or `below`", *path, fix='when: "kl > 0.2"'
            )
            continue
        text = spec.when if spec.when is not None else " or ".join(bounds)
        with draft.at(*path, "when" if spec.when is not None else "metric", off=f"alerts.{name}"):
            scope = MetricScope(draft)
            if spec.metric is not None:
                compile_expression(spec.metric, scope, draft.pool, draft.functions)  # an error shows the name alone
            node = compile_expression(text, scope, draft.pool, draft.functions)
            if node.type.kind is not Kind.BOOL:
                draft.report(
                    "DL305",
                    f"an alert's condition is a bool, and `{node}` is {node.type.kind.value}",
                    *path,
                    "when",
                    fix=f"compare it, such as `{node} > 0`",
                )
                continue
            draft.alerts.append(AlertOp(name, node, spec.patience, spec.level, spec.text or f"{name}: {text}"))
