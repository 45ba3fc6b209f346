"""Parsing of expressions with Python's ``ast``, and the part of the text behind a node. Nothing is checked here."""

from __future__ import annotations

import ast
import re
import threading

_PARSER = threading.Lock()  # CPython 3.11 counts the depth of all threads' trees together, and refuses deep ones
WORDS = {"lt": "< ", "le": "<=", "gt": "> ", "ge": ">=", "eq": "==", "ne": "!="}
# strings are skipped, with their backslashes; `p99.9(x)` is a quantile, not an attribute
_WORD = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|\b(?:lt|le|gt|ge|eq|ne)\b(?!\()|\bp\d{1,3}\.\d+(?=\s*\()|[\r\n]")
_TEXT = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_BACKSLASH = "\x7f"  # replaces a backslash while Python parses: texts have no escapes, since YAML reads its own


class _Raw(str):
    """A text in an expression, whose ``repr`` has no escapes."""

    def __repr__(self) -> str:
        return f'"{self}"' if "'" in self else f"'{self}'"


def plain_words(text: str) -> str:
    """Replace words of comparison, line ends and `p99.9` so that Python can parse an expression. The length stays."""

    def plain(match: re.Match[str]) -> str:
        word = match.group()
        if word[0] in "'\"":
            return word
        return " " if word in "\r\n" else WORDS.get(word) or word.replace(".", "_")

    return _WORD.sub(plain, text)


def tree_of(text: str) -> ast.Expression:
    """Parse an expression, on any thread, and keep its texts as written. Raises the exceptions of ``ast.parse``.

    The expression may contain words of comparison, line ends and `p99.9`. Positions in the tree are positions in
    ``text``.
    """
    text = plain_words(text)
    with _PARSER:
        tree = ast.parse(_TEXT.sub(lambda match: match[0].replace("\\", _BACKSLASH), text), mode="eval")
    for node in ast.walk(tree) if "\\" in text else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = _Raw(node.value.replace(_BACKSLASH, "\\"))
    return tree


def body_of(text: str) -> ast.expr | None:
    """The tree of an expression without the enclosing ``ast.Expression``; None for a text that is no expression."""
    try:
        return tree_of(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def conjuncts(body: ast.expr | None) -> list[ast.expr]:
    """The conditions that `and` joins; any other condition alone."""
    if isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And):
        return body.values
    return [] if body is None else [body]


def called(node: ast.expr) -> str:
    """The name of the function that a whole expression calls; empty for any other expression."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def arguments(node: ast.expr) -> list[ast.expr]:
    """The arguments of a call, positional ones first; empty for any other expression."""
    return [*node.args, *(item.value for item in node.keywords)] if isinstance(node, ast.Call) else []


def source_of(text: str, node: ast.expr | ast.keyword) -> str:
    """The part of a text behind a node of its ``tree_of``, whose columns count bytes of UTF-8.

    A node without columns is unparsed.
    """
    if getattr(node, "end_col_offset", None) is None:
        return ast.unparse(node)
    return text.encode()[node.col_offset : node.end_col_offset].decode(errors="replace")


def names_in(tree: ast.AST) -> set[str]:
    """The names that a tree reads, without the names of called functions."""
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in called}
