"""Schemas: columns, typed for what a row is."""

from __future__ import annotations

import re

from declog.compiler import calls, token_columns
from declog.compiler.draft import Draft, needs_axis
from declog.compiler.metrics import FIELDS
from declog.compiler.scopes import SignalScope
from declog.errors import in_flow
from declog.language import patterns
from declog.language.dtypes import Axis, DType, per
from declog.language.expression import compile_expression
from declog.language.nodes import Node
from declog.language.spec import ColumnSpec
from declog.plans.ops import ColumnOp

ROWS: dict[str, str] = {"completion": "completion", "group": "group", "step": "batch"}  # what a row is


def columns(draft: Draft, schema: str, row: Axis) -> tuple[ColumnOp, ...] | None:
    """The columns of a schema, for rows of an axis; None where something is wrong."""
    made = [_column(draft, schema, name, spec, row) for name, spec in draft.spec.schemas[schema].items()]
    seen: dict[str, str] = {}
    for column in made:
        if column is None:
            continue
        other = seen.setdefault(column.template if column.undeclared is None else "", column.id)
        if other != column.id:
            what = f"named `{column.template}`" if column.undeclared is None else "for undeclared columns"
            draft.report(
                "DL402.columns", ("schemas", schema, column.id), other=other, name=column.id, what=what,
                fix="give one of them another `name`" if column.undeclared is None else "drop one of them",
            )  # fmt: skip
    return tuple(column for column in made if column is not None)


def _column(draft: Draft, schema: str, name: str, spec: ColumnSpec, row: Axis) -> ColumnOp | None:
    path = ("schemas", schema, name)
    for key, pattern in spec.redact.items():
        try:
            patterns.pattern(pattern)
        except patterns.PatternError as error:
            draft.report("DL202.pattern", (*path, "redact", key), error=error, fix=error.fix)
    if spec.type == "tokens":
        return token_columns.column(draft, name, spec, row, path)
    token_columns.refused_elsewhere(draft, spec, path)
    given = [key for key in ("expr", "call", "undeclared") if getattr(spec, key) is not None]
    if len(given) > 1:
        shown = " and ".join(f"`{key}`" for key in given)
        draft.report("DL202.one_source", path, shown=shown)
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
        draft.report("DL310.extras", (*path, "undeclared"), row=ROWS[row.label])
        return None
    redact = tuple(spec.redact.items())
    return ColumnOp(
        id=name,
        template="{column}",
        type=DType.OBJECT,
        expr=None,
        family=False,
        nullable=True,
        max_chars=None if spec.max_chars is None else spec.max_chars.kept,
        redact=redact,
        undeclared=spec.undeclared,
    )


def _typed_column(
    draft: Draft, name: str, spec: ColumnSpec, node: Node, row: Axis, path: tuple[str, ...]
) -> ColumnOp | None:
    type = spec.dtype or node.type.dtype
    if not needs_axis(node.type, row):
        draft.report(
            "DL310.column", path, name=name, axis=per(node.type.axis),
            row="has one value" if row is Axis.COMPLETION else f"is a {ROWS[row.label]}",
            expr=in_flow(coarser(draft, node, row)),
        )  # fmt: skip
        return None
    if not type.holds(node.type.dtype):
        draft.report("DL305.column", (*path, "type"), name=name, type=type, node=node, dtype=node.type.dtype)
        return None
    if (spec.max_chars or spec.redact) and type not in (DType.TEXT, DType.OBJECT):
        draft.report("DL202.text_only", path)
    if spec.role is not None and type is not DType.TEXT:
        draft.report("DL202.role", (*path, "role"))
    template = spec.name or ("{id}/{column}" if node.type.family else "{id}")
    for field in sorted(set(re.findall(r"\{(\w*)\}", template)) - (FIELDS - {"reduce", "label"})):
        draft.report("DL404.column_field", (*path, "name"), field=f"{{{field}}}")
    if node.type.family and "{column}" not in template:
        draft.report("DL404.column_lacks", (*path, "name"), template=template)
    if not node.type.family and "{column}" in template:
        draft.report("DL404.column_has", (*path, "name"), template=template, node=node)
    return ColumnOp(
        id=name,
        template=template.replace("{id}", name),
        type=type,
        expr=node,
        family=node.type.family,
        nullable=spec.nullable,
        max_chars=None if spec.max_chars is None else spec.max_chars.kept,
        redact=tuple(spec.redact.items()),
        role=spec.role,
    )


def coarser(draft: Draft, node: Node, axis: Axis) -> str:
    """What one could write to have a value for each row of ``axis``."""
    how = (
        "first" if node.type.dtype in (DType.TEXT, DType.OBJECT) else "any" if node.type.dtype is DType.BOOL else "mean"
    )
    text, at = str(node), node.type.axis
    for fine, below in ((Axis.TOKEN, Axis.COMPLETION), (Axis.COMPLETION, Axis.GROUP), (Axis.GROUP, Axis.BATCH)):
        if at is fine and axis < fine and (fine is Axis.TOKEN or draft.grouping is not None):
            text, at = f"{how}({text}, over={fine.label})", below
    return text
