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
        draft.report(error.code, error.message, *path, "call", fix=error.fix)
        return None
    if function is None:
        known = draft.columns.names()
        fix = did_you_mean(spec.call, known, what="column functions") if known else _REGISTER
        draft.report("DL303", f"no column function `{spec.call}` is registered", *path, "call", fix=fix)
        return None
    type = _type(draft, function, name, spec, path)
    before = len(draft.problems)
    try:
        args = _arguments(draft, function, name, row, path)
    except SwitchedOff as off:
        draft.inactive[".".join(path)] = off.reason
        return None
    if spec.name is not None and "{" in spec.name.replace("{id}", ""):
        draft.report("DL404", f"the name `{spec.name}` has fields that are not known here", *path, "name", fix="{id}")
    if (spec.max_chars or spec.redact) and type not in (None, DType.TEXT, DType.OBJECT):
        draft.report("DL202", "`max_chars` and `redact` are for text", *path, fix="drop them")
    if spec.role is not None and type not in (None, DType.TEXT):
        draft.report("DL202", "`role` is of a text: messages say theirs", *path, "role", fix="drop it")
    if type is None or len(draft.problems) > before:
        return None
    template = (spec.name or name).replace("{id}", name)
    redact = tuple(spec.redact.items())
    return ColumnOp(
        id=name, template=template, type=type, expr=None, family=False, nullable=spec.nullable,
        max_chars=spec.max_chars, redact=redact, call=function, args=args,
        role=spec.role,
    )  # fmt: skip


def _type(draft: Draft, function: RowFunction, name: str, spec: ColumnSpec, path: Path) -> DType | None:
    """The declared type, or what the function's annotation says; the two must agree."""
    promised = function.returns
    if spec.type is None and promised is None:
        draft.report("DL203", f"the column `{name}` has a `call` and no `type`", *path, fix="type: text")
    if spec.type is None or promised is None or promised == spec.type:
        return spec.type or promised
    if (promised, spec.type) != (DType.INT, DType.FLOAT) and spec.type is not DType.OBJECT:
        draft.report(
            "DL305",
            f"the column `{name}` is declared {spec.type}, and `{function.name}` returns {promised}",
            *path,
            "type",
            fix=f"type: {promised}",
        )
    return spec.type


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
                "DL310",
                f"`{function.name}` takes `{parameter}`, which is {per(node.type.axis)}, "
                f"and is called with one {row.label}",
                *path,
                "call",
                fix="declare a signal of what it needs, with `over=`, and name that",
            )
        elif node is not None:
            args.append((parameter, node))
        elif required and scope.resolve(parameter) is None:
            draft.report(
                "DL302",
                f"`{function.name}` takes `{parameter}`, and the profile has no such signal",
                *path,
                "call",
                fix=did_you_mean(parameter, scope.names(), what="signals"),
            )
    return tuple(args)
