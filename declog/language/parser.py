"""Python's trees of expressions, and which part of a text a node is. Nothing is checked here. Standard library only."""

from __future__ import annotations

import ast
import re
import threading

_PARSER = threading.Lock()  # CPython 3.11 counts the depth of all threads' trees in one place, and then refuses them
WORDS = {"lt": "< ", "le": "<=", "gt": "> ", "ge": ">=", "eq": "==", "ne": "!="}
# strings are passed over, backslashes in them too; `p99.9(x)` is a quantile, not an attribute
_WORD = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|\b(?:lt|le|gt|ge|eq|ne)\b(?!\()|\bp\d{1,3}\.\d+(?=\s*\()|[\r\n]")
_TEXT = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_BACKSLASH = "\x7f"  # what stands for one while Python parses: texts have no escapes, as YAML had its own


class _Raw(str):
    """A text of an expression, which is written as it is: without escapes."""

    def __repr__(self) -> str:
        return f'"{self}"' if "'" in self else f"'{self}'"


def plain_words(text: str) -> str:
    """An expression as Python can parse it, of the same length: without words of comparison, line ends and `p99.9`."""

    def plain(match: re.Match[str]) -> str:
        word = match.group()
        if word[0] in "'\"":
            return word
        return " " if word in "\r\n" else WORDS.get(word) or word.replace(".", "_")

    return _WORD.sub(plain, text)


def tree_of(text: str) -> ast.Expression:
    """Python's tree of an expression, from any thread, with texts as they stand; raises what ``ast.parse`` does.

    Words of comparison, line ends and `p99.9` may be in it; each place in the text is that in the tree.
    """
    text = plain_words(text)
    with _PARSER:
        tree = ast.parse(_TEXT.sub(lambda match: match[0].replace("\\", _BACKSLASH), text), mode="eval")
    for node in ast.walk(tree) if "\\" in text else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = _Raw(node.value.replace(_BACKSLASH, "\\"))
    return tree


def body_of(text: str) -> ast.expr | None:
    """The tree of an expression without what Python puts around it; None for a text that is no expression."""
    try:
        return tree_of(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def conjuncts(body: ast.expr | None) -> list[ast.expr]:
    """The conditions that `and` joins, or the one that there is."""
    if isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And):
        return body.values
    return [] if body is None else [body]


def called(node: ast.expr) -> str:
    """The name of the function that a whole expression calls; empty for any other expression."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def arguments(node: ast.expr) -> list[ast.expr]:
    """What a call gives to its function, with a name or without; none of any other expression."""
    return [*node.args, *(item.value for item in node.keywords)] if isinstance(node, ast.Call) else []


def source_of(text: str, node: ast.expr | ast.keyword) -> str:
    """The part of a text that is a node of its ``tree_of``, which counts bytes of UTF-8; of any other node Python's."""
    if getattr(node, "end_col_offset", None) is None:
        return ast.unparse(node)
    return text.encode()[node.col_offset : node.end_col_offset].decode(errors="replace")


def names_in(tree: ast.AST) -> set[str]:
    """The names that a tree reads, without those of the functions that it calls."""
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in called}
