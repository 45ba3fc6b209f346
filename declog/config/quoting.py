"""Map a range of an expression to its range in the file: YAML scalars and their quotes.

An error names characters of a value; the file holds the value quoted and escaped.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import accumulate

import yaml
from yaml.scanner import Scanner

from declog.language.parser import body_of


def within(raw: str, style: str, source: str, span: tuple[int, int] | None) -> tuple[int, int] | None:
    """The range of ``raw``, a scalar as written, that holds ``span`` of ``source``.

    ``source`` is the scalar's value or a part of it, ``span`` a half-open range of ``source`` (None: all of it). Over
    several lines YAML folds blanks and line breaks, so only the other characters are compared there. None if ``raw``
    does not hold ``source``.
    """
    first, last = span or (0, len(source))
    pieces = list(_pieces(raw, style))
    if "\n" in raw:
        pieces = [piece for piece in pieces if not piece[0].isspace()]
        source, first, last = _dense(source), len(_dense(source[:first])), len(_dense(source[:last]))
    offset = "".join(char for char, _, _ in pieces).find(source)
    if offset < 0:
        return None
    # One more place, where the text ends: a span may point behind the last character.
    starts = [start for _, start, _ in pieces]
    starts.append(pieces[-1][2] if pieces else len(raw))
    start, stop = offset + first, offset + max(last, first + 1)
    if start >= len(starts):
        return None
    end = pieces[min(stop, len(pieces)) - 1][2] if pieces else 0
    return starts[start], max(end, starts[start] + 1)


def _dense(text: str) -> str:
    return "".join(text.split())


def _pieces(raw: str, style: str) -> Iterator[tuple[str, int, int]]:
    """The characters of a scalar's value, each with its range in ``raw``."""
    at, end = 0, len(raw)
    if style in "|>":
        at = raw.find("\n") + 1 or end  # the text begins below the sign
    elif style != "plain":
        at, end = 1, len(raw) - 1
    while at < end:
        char, length = _piece(raw, at, style)
        yield char, at, at + length
        at += length


def _piece(raw: str, at: int, style: str) -> tuple[str, int]:
    if style == "'" and raw[at : at + 2] == "''":
        return "'", 2
    if style == '"' and raw[at] == "\\":
        code = raw[at + 1]
        if code == "\n":
            return "\n", 2
        if code in Scanner.ESCAPE_CODES:
            digits = Scanner.ESCAPE_CODES[code]
            return chr(int(raw[at + 2 : at + 2 + digits], 16)), 2 + digits
        return Scanner.ESCAPE_REPLACEMENTS[code], 2
    return raw[at], 1


def is_expression(text: str) -> bool:
    """Whether a text is an expression, and not a map or a list of YAML."""
    return not isinstance(body_of(text.strip()), ast.Dict | ast.Set | ast.List | ast.Tuple | None)


def stays_plain(text: str, *, in_flow: bool) -> bool:
    """Whether YAML reads a text without quotes unchanged, as the value of a key, or, ``in_flow``, of a key in {...}."""
    try:
        return bool(yaml.load(f"{{key: {text}}}" if in_flow else f"key: {text}", yaml.BaseLoader) == {"key": text})
    except yaml.YAMLError:
        return False


def value_end(text: str, start: int) -> int | None:
    """The end of a value in a list or a map on one line: its comma or bracket; None if there is neither."""
    for at, depth in enumerate(depths(text[start:]), start):
        if depth < 0 or (depth == 0 and text[at] == ","):
            return at
    return None


def depths(text: str) -> Iterator[int]:
    """The number of open brackets behind each character of a text."""
    return accumulate((char in "([{") - (char in ")]}") for char in text)
