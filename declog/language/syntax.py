"""The syntax of an expression: text in, a syntax tree of bounded size out. Nothing is typed here.

Imports Python's ``ast`` and errors only.
"""

from __future__ import annotations

import ast
import re
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

from declog.errors import Problem
from declog.language import idioms

_PARSER = threading.Lock()  # CPython 3.11 counts the depth of all threads' trees in one place, and then refuses them
MAX_LENGTH = 4_000  # characters
MAX_NODES = 600
MAX_DEPTH = 60

WORDS = {"lt": "< ", "le": "<=", "gt": "> ", "ge": ">=", "eq": "==", "ne": "!="}
# strings are passed over, backslashes in them too; `p99.9(x)` is a quantile, not an attribute
_WORD = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|\b(?:lt|le|gt|ge|eq|ne)\b(?!\()|\bp\d{1,3}\.\d+(?=\s*\()|[\r\n]")
_TEXT = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_BACKSLASH = "\x7f"  # what stands for one while Python parses: texts have no escapes, as YAML had its own
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class ExpressionError(Exception):
    """What is wrong with an expression; the caller adds the path of the key that holds it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.text())


@dataclass(frozen=True)
class Parsed:
    """An expression's text and its syntax tree, not typed yet."""

    text: str
    body: ast.expr

    @property
    def call(self) -> str | None:
        """The name of the function, where the whole expression is one call."""
        if isinstance(self.body, ast.Call) and isinstance(self.body.func, ast.Name):
            return self.body.func.id
        return None


class _Raw(str):
    """A text of an expression, which is written as it is: without escapes."""

    def __repr__(self) -> str:
        return f'"{self}"' if "'" in self else f"'{self}'"


def refuse(key: str, source: str, span: tuple[int, int] | None = None, /, **facts: Any) -> NoReturn:
    """Refuse a text; ``span`` is the half-open range of characters at fault."""
    raise ExpressionError(Problem.of(key, source=source, span=span, **facts))


def tree_of(text: str) -> ast.Expression:
    """Python's tree of an expression, from any thread, with texts as they stand; raises what ``ast.parse`` does."""
    with _PARSER:
        tree = ast.parse(_TEXT.sub(lambda match: match[0].replace("\\", _BACKSLASH), text), mode="eval")
    for node in ast.walk(tree) if "\\" in text else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = _Raw(node.value.replace(_BACKSLASH, "\\"))
    return tree


def names_in(tree: ast.AST) -> set[str]:
    """The names that a tree reads, without those of the functions that it calls."""
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in called}


@lru_cache(maxsize=512)  # ranks of a process, and its next plan, have the same expressions; nobody changes a tree
def parse(text: str) -> Parsed:
    """The syntax of an expression, checked for size; raises ``ExpressionError``."""
    if len(text) > MAX_LENGTH:
        refuse("DL308.length", text[:60] + "...", count=len(text), limit=MAX_LENGTH)
    if not text.strip():
        refuse("DL301.empty", text)
    if (control := _CONTROL.search(text)) is not None:
        refuse("DL301.control", text, control.span(), control=control.group())
    plain = _WORD.sub(_plain, text)
    lead = len(plain) - len(plain.lstrip())
    try:
        tree = tree_of(plain.strip())
    except SyntaxError as error:
        offset = error.offset or len(plain.strip()) + 1  # 0: it ends too early
        start = min(offset - 1 + lead, len(text))
        end = max(start + 1, min((error.end_offset or 0) - 1 + lead, len(text)))
        refuse("DL301.parse", text, (start, end), cause=error.msg, fix=_syntax_fix(error.msg, plain, text[start:end]))
    except (ValueError, MemoryError, RecursionError):
        refuse("DL308.depth", text)
    count = 0
    stack: list[tuple[ast.AST, int]] = [(tree.body, 1)]
    while stack:
        node, depth = stack.pop()
        count += 1
        if count > MAX_NODES or depth > MAX_DEPTH:
            refuse("DL308.size", text, nodes=MAX_NODES, depth=MAX_DEPTH)
        if isinstance(node, ast.expr | ast.keyword) and node.end_col_offset is not None:
            node.col_offset += lead
            node.end_col_offset += lead
        stack.extend((child, depth + 1) for child in ast.iter_child_nodes(node))
    return Parsed(text, tree.body)


def _plain(match: re.Match[str]) -> str:
    """A piece of an expression as Python can parse it, of the same length."""
    word = match.group()
    if word[0] in "'\"":
        return word
    return " " if word in "\r\n" else WORDS.get(word) or word.replace(".", "_")


_OPERATORS = {"&": "and", "|": "or", "!": "not"}  # doubled, in other languages


def _in_words(match: re.Match[str]) -> str:
    """An operator as a word; a text in quotes as it is."""
    word = match[0].strip()
    return match[0] if word[0] in "'\"" else f" {_OPERATORS[word[0]]} "


def _syntax_fix(message: str, plain: str, marked: str) -> str:
    if (fix := idioms.of_text(plain, marked)) is not None:
        return fix
    if "never closed" in message:
        if "\n" not in plain and "," not in plain and not plain.rstrip().endswith("("):
            return f"write `{plain.strip()}{')' * (plain.count('(') - plain.count(')'))}`"
        return "close it; inside {...}, YAML ends a value at a comma: put the expression in quotes"
    if re.search(r"(?<![=<>!])=(?!=)", plain) and "==" not in plain and "over=" not in plain:
        return "compare with `==`"
    if not marked.strip():
        return "it ends too early: a value is missing"
    if marked in _OPERATORS and (marked == "!" or marked * 2 in plain):
        words = re.sub(r"'[^']*'|\"[^\"]*\"|\s*(?:&&|\|\||!(?!=))\s*", _in_words, plain)
        return f"write `{words.strip()}`"
    word = marked[0].isalnum() or marked[0] == "_"
    return f"an operator is missing before `{marked}`" if word else f"delete `{marked}`, or put a value before it"
