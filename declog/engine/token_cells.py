"""Cells of tokens: pieces of text and the values of each, cut, redacted, and of one length.

What was recorded of a completion is one row for each value, as ``Layout.trace`` gives it: the first and the last
tokens, and how many there are. Pure functions of the plan and of such rows. Imports numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from declog.language.patterns import pattern
from declog.plans.ops import ColumnOp, TokensOp

PIECES = "tokens"


def cell(column: ColumnOp, recorded: Any, values: dict[str, Any]) -> dict[str, list[Any]] | None:
    """A completion's tokens, by what was recorded of each value; None where it has none.

    ``own`` are the ids' row, or all the pieces as a list of texts. Raises ``ValueError`` where pieces and values are
    not of the same tokens.
    """
    op = column.tokens
    assert op is not None
    if recorded is None:
        return None
    head, tail = op.recorded
    if _is_row(recorded):
        count, ids = _row(recorded, op)
        pieces = _texts(op, [int(one) for one in ids])
        end = head if count > head + tail else count  # what follows it is of another part of the text
        pieces = redacted(pieces[:end], column.redact) + redacted(pieces[end:], column.redact)
    else:  # all of them are here: redacted first, then cut
        count, pieces = len(recorded), ["" if piece is None else str(piece) for piece in recorded]
        pieces = redacted(pieces, column.redact)
        if count > head + tail:
            pieces = [*pieces[:head], *_last(pieces, tail)]
    cells: dict[str, list[Any]] = {PIECES: pieces}
    for name, value in values.items():
        if _is_row(value):
            number, there = _row(value, op)
            if number != count:
                raise ValueError(f"{count} tokens, and {number} values of `{name}`")
            cells[name] = [_number(item) for item in there]
        else:
            cells[name] = [_number(value)] * min(count, head + tail)
    return _cut(cells, count, op)


def _cut(cells: dict[str, list[Any]], count: int, op: TokensOp) -> dict[str, list[Any]]:
    """The first and the last tokens, with one between them that says how many are left out."""
    omitted = count - op.head - op.tail
    if omitted <= 0:
        return cells
    return {
        name: [*items[: op.head], f"… {omitted:,} tokens …" if name == PIECES else None, *_last(items, op.tail)]
        for name, items in cells.items()
    }


def _last(items: list[Any], count: int) -> list[Any]:
    return items[len(items) - count :]


def _is_row(value: Any) -> bool:
    """Whether it is what was recorded of tokens: numbers, as an array or as a message's list."""
    return isinstance(value, np.ndarray) or (isinstance(value, list) and bool(value) and not isinstance(value[-1], str))


def _row(row: Any, op: TokensOp) -> tuple[int, Sequence[Any]]:
    """How many tokens there are, and the values of those that were recorded."""
    count = int(row[-1])
    return count, row[: min(count, sum(op.recorded))]


def _texts(op: TokensOp, ids: list[int]) -> list[str]:
    return [str(id) for id in ids] if op.pieces is None else op.pieces(ids)


def _number(value: Any) -> float | int | bool | None:
    """A number as plain Python has it; a float32 with no more digits than it holds."""
    if isinstance(value, np.floating):
        value = float(str(value)) if value.dtype == np.float32 else float(value)
    elif isinstance(value, np.generic):
        value = value.item()
    return None if value is None or value != value else value


def redacted(pieces: list[str], patterns: Sequence[tuple[str, str]]) -> list[str]:
    """Pieces with what each (label, pattern) finds in their text as ``[label]``, in the piece in which it begins."""
    for label, source in patterns:
        for start, end in reversed(pattern(source).places("".join(pieces))):
            if start == end:
                continue
            at, shown = 0, f"[{label}]"
            for number, piece in enumerate(pieces):
                first, last = max(start - at, 0), min(end - at, len(piece))
                if first < last:
                    pieces = [*pieces[:number], piece[:first] + shown + piece[last:], *pieces[number + 1 :]]
                    shown = ""
                at += len(piece)
                if at >= end:
                    break
    return pieces
