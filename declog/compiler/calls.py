"""Columns that a registered Python function computes: its parameters are names of signals or constants."""

from __future__ import annotations

from declog.compiler.draft import Draft, SwitchedOff, needs_axis
from declog.compiler.scopes import SignalScope
from declog.errors import UsageError, did_you_mean
from declog.language.dtypes import Axis, DType, per
from declog.language.expression import compile_expression
from declog.language.nodes import Node
from declog.language.row_functions import RowFunction
from declog.language.spec import ColumnSpec
from declog.plans.ops import ColumnOp

Path = tuple[str, ...]
_REGISTER = "register it with @declog.column; on the command line, `--import MODULE` loads the module that does"


def column(draft: Draft, name: str, spec: ColumnSpec, row: Axis, path: Path) -> ColumnOp | None:
    """The column of a `call:`, or None where it is wrong, or something that it reads is off."""
    assert spec.call is not None
    try:
        function = draft.columns.named(spec.call)
    except UsageError as error:
        draft.refused(error, (*path, "call"))
        return None
    if function is None:
        known = draft.columns.names()
        draft.report(
            "DL303.column_function", (*path, "call"), name=spec.call,
            fix=did_you_mean(spec.call, known, what="column functions") if known else _REGISTER,
        )  # fmt: skip
        return None
    type = _type(draft, function, name, spec, path)
    before = len(draft.problems)
    try:
        args = _arguments(draft, function, name, row, path)
    except SwitchedOff as off:
        draft.inactive[".".join(path)] = off.reason
        return None
    if spec.name is not None and "{" in spec.name.replace("{id}", ""):
        draft.report("DL404.column_fields", (*path, "name"), name=spec.name)
    if (spec.max_chars or spec.redact) and type not in (None, DType.TEXT, DType.OBJECT):
        draft.report("DL202.text_only", path)
    if spec.role is not None and type not in (None, DType.TEXT):
        draft.report("DL202.role", (*path, "role"))
    if type is None or len(draft.problems) > before:
        return None
    template = (spec.name or name).replace("{id}", name)
    redact = tuple(spec.redact.items())
    return ColumnOp(
        id=name, template=template, type=type, expr=None, family=False, nullable=spec.nullable,
        max_chars=None if spec.max_chars is None else spec.max_chars.kept, redact=redact, call=function, args=args,
        role=spec.role,
    )  # fmt: skip


def _type(draft: Draft, function: RowFunction, name: str, spec: ColumnSpec, path: Path) -> DType | None:
    """The declared type, or what the function's annotation says; the two must agree."""
    promised = function.returns
    if spec.dtype is None and promised is None:
        draft.report("DL203.column_type", path, name=name)
    if spec.dtype is None or promised is None or promised == spec.dtype:
        return spec.dtype or promised
    if (promised, spec.dtype) != (DType.INT, DType.FLOAT) and spec.dtype is not DType.OBJECT:
        draft.report(
            "DL305.column_returns", (*path, "type"), name=name, type=spec.dtype, function=function.name,
            returned=promised,
        )  # fmt: skip
    return spec.dtype


def _arguments(draft: Draft, function: RowFunction, name: str, row: Axis, path: Path) -> tuple[tuple[str, Node], ...]:
    args: list[tuple[str, Node]] = []
    scope = SignalScope(draft)
    for parameter, required in function.params:
        node = None
        try:
            if scope.resolve(parameter) is not None:
                with draft.at(*path, "call"):
                    node = compile_expression(parameter, scope, draft.pool, draft.functions)
        except SwitchedOff:
            if required:
                raise
        if node is not None and not needs_axis(node.type, row):
            draft.report(
                "DL310.column_parameter", (*path, "call"), function=function.name, parameter=parameter,
                axis=per(node.type.axis), label=row.label,
            )  # fmt: skip
        elif node is not None:
            args.append((parameter, node))
        elif required and scope.resolve(parameter) is None:
            draft.report(
                "DL302.column_parameter", (*path, "call"), function=function.name, name=parameter, known=scope.names()
            )
    return tuple(args)
