"""The syntax of expressions: ``parse`` turns a text into a syntax tree of bounded size. Nothing is typed here."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

from declog.errors import Problem
from declog.language.fixes.unparsable import fix_of, with_patterns
from declog.language.parser import called, plain_words, tree_of

MAX_LENGTH = 4_000  # characters
MAX_NODES = 600
MAX_DEPTH = 60

_ESCAPED = {"\a": "a", "\b": "b", "\v": "v", "\f": "f", "\x1b": "e", "\0": "0"}  # YAML's escapes in double quotes
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class ExpressionError(Exception):
    """The problem with an expression. The caller adds the path of the key that holds the expression."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.text())


@dataclass(frozen=True)
class Parsed:
    """The text of an expression and its untyped syntax tree."""

    text: str
    body: ast.expr

    @property
    def call(self) -> str:
        """The name of the function if the whole expression is one call; otherwise empty."""
        return called(self.body)


def refuse(key: str, source: str, span: tuple[int, int] | None = None, /, **facts: Any) -> NoReturn:
    """Raise ``ExpressionError`` for a text. ``span`` is the half-open range of the wrong characters."""
    raise ExpressionError(Problem.of(key, source=source, span=span, **facts))


@lru_cache(maxsize=512)  # several ranks or plans of a process have the same expressions; a tree is never changed
def parse(text: str) -> Parsed:
    """Parse an expression and check its size. Raises ``ExpressionError``."""
    if len(text) > MAX_LENGTH:
        refuse("DL308.length", text[:60] + "...", count=len(text), limit=MAX_LENGTH)
    if not text.strip():
        refuse("DL301.empty", text)
    if (control := _CONTROL.search(text)) is not None:
        letter = _ESCAPED.get(control.group())
        escape = f"in double quotes YAML reads `\\{letter}` as one character: write `\\\\{letter}`"
        fix = escape if letter else "delete it"
        refuse("DL301.control", text, control.span(), control=control.group(), fix=fix)
    lead = len(text) - len(text.lstrip())
    try:
        tree = tree_of(text.strip())
    except SyntaxError as error:
        plain = plain_words(text)
        offset = error.offset or len(text.strip()) + 1  # 0: the expression ends too early
        start = min(offset - 1 + lead, len(text))
        end = max(start + 1, min((error.end_offset or 0) - 1 + lead, len(text)))
        refuse("DL301.parse", text, (start, end), cause=error.msg, fix=fix_of(error.msg, plain, text[start:end]))
    except (ValueError, MemoryError, RecursionError):
        refuse("DL308.depth", text)
    count = 0
    stack: list[tuple[ast.AST, int]] = [(tree.body, 1)]
    while stack:
        node, depth = stack.pop()
        count += 1
        if count > MAX_NODES or depth > MAX_DEPTH:
            refuse("DL308.size", text, nodes=MAX_NODES, depth=MAX_DEPTH)
        match node:  # Python reads `f(x =~ 'a')` as an argument with a name
            case ast.UnaryOp(ast.Invert(), ast.Constant(str())) if (written := with_patterns(text)) != text:
                refuse("DL301.parse", text, cause="`=~` is no operator", fix=f"write `{written.strip()}`")
        if isinstance(node, ast.expr | ast.keyword) and node.end_col_offset is not None:
            node.col_offset += lead
            node.end_col_offset += lead
        stack.extend((child, depth + 1) for child in ast.iter_child_nodes(node))
    return Parsed(text, tree.body)
