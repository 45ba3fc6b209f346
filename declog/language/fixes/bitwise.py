"""Fixes for `&`, `|` and `~` between conditions, as numpy and pandas write them: the words of the language."""

from __future__ import annotations

import ast
from collections.abc import Mapping

_WORDS: Mapping[type[ast.operator], ast.boolop] = {ast.BitAnd: ast.And(), ast.BitOr: ast.Or()}


def in_words(node: ast.BinOp, text: str) -> str:
    """The fix for ``(x > 0) & (y < 1)``: the same with words; of ``x > 0 & y < 1`` the word alone."""
    words = _condition(node)
    alone = "and" if isinstance(node.op, ast.BitAnd) else "or"
    return f"write `{alone if words is None else ast.unparse(words)}`"


def _condition(node: ast.expr) -> ast.expr | None:
    """A condition with words in place of signs; None if a side is no condition."""
    if isinstance(node, ast.BinOp) and type(node.op) in _WORDS:
        sides = [side for side in map(_condition, (node.left, node.right)) if side is not None]
        return ast.BoolOp(_WORDS[type(node.op)], sides) if len(sides) == 2 else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        inside = _condition(node.operand)
        return None if inside is None else ast.UnaryOp(ast.Not(), inside)
    return node if isinstance(node, ast.Compare | ast.BoolOp | ast.Call) else None
