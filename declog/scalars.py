"""From a place in an expression to its place in the file: YAML scalars and their quotes.

An error speaks of characters of a value; the file holds the value quoted and escaped. Standard library and
PyYAML's escape tables only.
"""

from __future__ import annotations

from collections.abc import Iterator

from yaml.scanner import Scanner


def within(raw: str, style: str, source: str, span: tuple[int, int] | None) -> tuple[int, int] | None:
    """The range of ``raw``, a one-line scalar as written, that holds ``span`` of ``source``.

    ``source`` is the scalar's value or a part of it, ``span`` a half-open range of it (None: all of it).
    None where ``raw`` does not hold ``source``.
    """
    pieces = list(_pieces(raw, style))
    text = "".join(char for char, _ in pieces)
    offset = text.find(source)
    if offset < 0:
        return None
    # One more place, where the text ends: a span may point behind the last character.
    starts = [at for _, at in pieces] + [len(raw) - (0 if style == "plain" else 1)]
    first, last = span or (0, len(source))
    start, end = offset + first, offset + max(last, first + 1)
    if start >= len(starts):
        return None
    return starts[start], max(starts[min(end, len(starts) - 1)], starts[start] + 1)


def _pieces(raw: str, style: str) -> Iterator[tuple[str, int]]:
    """The characters of a scalar's value, each with where it is written."""
    at, end = (0, len(raw)) if style == "plain" else (1, len(raw) - 1)
    while at < end:
        char, length = _piece(raw, at, style)
        yield char, at
        at += length


def _piece(raw: str, at: int, style: str) -> tuple[str, int]:
    if style == "'" and raw[at : at + 2] == "''":
        return "'", 2
    if style == '"' and raw[at] == "\\":
        code = raw[at + 1]
        if code in Scanner.ESCAPE_CODES:
            digits = Scanner.ESCAPE_CODES[code]
            return chr(int(raw[at + 2 : at + 2 + digits], 16)), 2 + digits
        return Scanner.ESCAPE_REPLACEMENTS[code], 2
    return raw[at], 1
