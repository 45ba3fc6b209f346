"""Cells of token columns: the text pieces of a completion and values per token, redacted and cut to one length.

The recorder keeps one row per completion and value, made by ``Layout.trace``: the values of the first and the last
tokens, and the number of all. Pure functions of the plan and of such rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from declog.language.patterns import pattern
from declog.plans.ops import ColumnOp, TokensOp

PIECES = "tokens"


def cell(column: ColumnOp, recorded: Any, values: dict[str, Any]) -> dict[str, list[Any]] | None:
    """The cell of one completion: pieces and values by name; None if nothing was recorded.

    ``recorded`` is the row of token ids, or the list of all pieces as texts. Raises ``ValueError`` if there are not as
    many values as pieces.
    """
    op = column.tokens
    assert op is not None
    if recorded is None:
        return None
    head, tail = op.recorded
    if _is_row(recorded):
        count, ids = _row(recorded, op)
        numbers = [int(one) for one in ids]
        pieces = [*map(str, numbers)] if op.pieces is None else op.pieces(numbers)
        end = head if count > head + tail else count  # after a gap, the text goes on elsewhere
        pieces = redacted(pieces[:end], column.redact) + redacted(pieces[end:], column.redact)
    else:  # all pieces are here: redact before cutting, so that a pattern may span the cut
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
    """The first and the last tokens, and between them an entry that says how many are left out."""
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
    """Whether a value is a recorded row of numbers: an array, or a list if it came in a message."""
    return isinstance(value, np.ndarray) or (isinstance(value, list) and bool(value) and not isinstance(value[-1], str))


def _row(row: Any, op: TokensOp) -> tuple[int, Sequence[Any]]:
    """The number of all tokens, and the values of the recorded ones."""
    count = int(row[-1])
    return count, row[: min(count, sum(op.recorded))]


def _number(value: Any) -> float | int | bool | None:
    """A plain Python number; None for NaN. A float32 gets only the digits that it holds."""
    if isinstance(value, np.floating):
        value = float(str(value)) if value.dtype == np.float32 else float(value)
    elif isinstance(value, np.generic):
        value = value.item()
    return None if value is None or value != value else value


def redacted(pieces: list[str], patterns: Sequence[tuple[str, str]]) -> list[str]:
    """The pieces with each match of a (label, pattern) replaced by ``[label]``, in the piece in which it begins."""
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
