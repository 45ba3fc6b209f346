"""Fixes for `&`, `|` and `~`: the words of the language between conditions, and keys for ``mean(reward | topic)``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from declog.errors import Entry, Problem
from declog.language.dtypes import DType
from declog.language.nodes import Node
from declog.language.notation import reduced
from declog.language.parser import body_of

_WORDS = {"&": " and ", "|": " or ", "~": "not "}
_SIGN = re.compile(r"""("[^"]*"|'[^']*')|\s*([&|])\s*|(~)""")  # or a text in quotes, which stays
_KEYS = {DType.BOOL: "where", DType.TEXT: "by", DType.INT: "by"}


def in_words(text: str, tried: Callable[[str], Node | Problem], *, of_rows: bool) -> str:
    """The fix for ``(x > 0) & (y < 1)``: the whole text with words in place of the signs.

    Of rows, ``mean(reward | topic)`` is the mean of each topic, and ``mean(reward | length > 3)`` that of some rows.
    """
    text = numbers_of_negations(text)
    call = reduced(text) or {"expr": text.strip()}
    inner = str(call["expr"])
    signs = [sign for sign in _SIGN.finditer(inner) if sign[1] is None]
    if of_rows and [sign[2] for sign in signs] == ["|"]:
        value, condition = inner[: signs[0].start()], inner[signs[0].end() :]
        nodes = [node for side in (value, condition) if isinstance(node := tried(side), Node)]
        dtypes = [node.type.dtype for node in nodes]
        if len(dtypes) == 2 and dtypes[0] in (DType.FLOAT, DType.INT) and dtypes[1] in _KEYS:
            return Entry({**call, "expr": value, _KEYS[dtypes[1]]: condition})
    return f"write `{_SIGN.sub(lambda sign: sign[1] or _WORDS[sign[2] or sign[3]], text.strip())}`"


def numbers_of_negations(text: str) -> str:
    """Rewrite ``1 - ~x``, or ``1 - !x``, as `1 - (1 if not x else 0)`: the language computes with numbers only."""
    signs = re.sub(r"!(?!=)", "~", text)
    for start, end in sorted(_negated_numbers(signs), reverse=True):
        operand = text.encode()[start:end].decode()[1:].strip()
        before, behind = text.encode()[:start].decode(), text.encode()[end:].decode()
        paired = before.endswith("(") and behind.startswith(")") and not re.search(r"\w\($", before)
        before, behind = (before[:-1], behind[1:]) if paired else (before, behind)
        text = f"{before}(1 if not {operand} else 0){behind}"
    return text


def _negated_numbers(text: str) -> Iterator[tuple[int, int]]:
    """The spans, in bytes, of the parts ``~x`` of an expression with which it computes, as in ``1 - ~x``."""
    body = body_of(text)
    for node in () if body is None else ast.walk(body):
        match node:
            case ast.BinOp(op=op) if not isinstance(op, ast.BitAnd | ast.BitOr | ast.BitXor):
                operands = [node.left, node.right]
            case ast.UnaryOp(ast.USub() | ast.UAdd(), operand):
                operands = [operand]
            case _:
                continue
        for operand in operands:
            if isinstance(operand, ast.UnaryOp) and isinstance(operand.op, ast.Invert):
                yield operand.col_offset, operand.end_col_offset or 0
