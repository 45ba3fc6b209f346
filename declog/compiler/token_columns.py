"""Columns of `type: tokens`: a completion's tokens as pieces of text, with values of each."""

from __future__ import annotations

from declog.compiler.draft import Draft, needs_axis
from declog.compiler.scopes import SignalScope
from declog.language.dtypes import Axis, DType, per
from declog.language.expression import compile_expression
from declog.language.nodes import Node
from declog.language.spec import ColumnSpec
from declog.plans.ops import ColumnOp, TokensOp

Path = tuple[str, ...]
PIECES = "tokens"  # the key of a cell that has the pieces
_NUMBERS = (DType.FLOAT, DType.INT, DType.BOOL)
_OTHERS = ("call", "undeclared", "role", "max_chars")  # keys of other columns


def column(draft: Draft, name: str, spec: ColumnSpec, row: Axis, path: Path) -> ColumnOp | None:
    """The column, or None where something is wrong, or what it reads is off."""
    before = len(draft.problems)
    if row is not Axis.COMPLETION:
        draft.report("DL310.tokens_rows", path, name=name)
    for key in _OTHERS:
        if getattr(spec, key) is not None:
            draft.report("DL202.tokens_option", (*path, key), key=key, fix=_INSTEAD.get(key, f"drop `{key}`"))
    place = path if spec.expr is None else (*path, "expr")
    node = _node(draft, name if spec.expr is None else str(spec.expr), place, path)
    if node is not None:
        ids = node.type.dtype is DType.INT and node.type.axis is Axis.TOKEN
        pieces = node.type.dtype is DType.OBJECT and node.type.axis is Axis.COMPLETION
        if node.type.family or not (ids or pieces):
            draft.report("DL305.tokens", place, name=name, node=node, type=node.type)
    values = []
    for key, text in spec.values.items():
        value = _node(draft, str(text), (*path, "values", key), (*path, "values", key))
        if key == PIECES:
            draft.report("DL402.tokens", (*path, "values", key))
        elif value is not None and (value.type.family or value.type.dtype not in _NUMBERS):
            draft.report("DL305.token_value", (*path, "values", key), node=value, type=value.type)
        elif value is not None and not needs_axis(value.type, Axis.TOKEN):
            draft.report("DL310.token_value", (*path, "values", key), node=value, axis=per(value.type.axis))
        elif value is not None:
            values.append((key, value))
    if node is None or len(draft.problems) > before:
        return None
    kept = spec.max_tokens.kept if spec.max_tokens is not None else TokensOp.DEFAULT
    head, tail = (kept, 0) if isinstance(kept, int) else kept
    return ColumnOp(
        id=name, template=(spec.name or name).replace("{id}", name), type=DType.OBJECT, expr=node, family=False,
        nullable=spec.nullable, max_chars=None, redact=tuple(spec.redact.items()),
        tokens=TokensOp(head=head, tail=tail, values=tuple(values)),
    )  # fmt: skip


_INSTEAD = {"max_chars": "max_tokens: {head: 100, tail: 400}"}


def refused_elsewhere(draft: Draft, spec: ColumnSpec, path: Path) -> None:
    """Keys that only columns of tokens have."""
    for key in ("values", "max_tokens"):
        if getattr(spec, key):
            draft.report("DL202.tokens_only", (*path, key), key=key)


def _node(draft: Draft, text: str, path: Path, off: Path) -> Node | None:
    with draft.at(*path, off=".".join(off)):
        return compile_expression(text, SignalScope(draft), draft.pool, draft.functions)
    return None
