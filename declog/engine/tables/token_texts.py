"""Turns token ids into pieces of text, with a tokenizer or a user's function."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from declog.errors import UsageError
from declog.language.nodes import TEXTVALUE
from declog.plans.ops import ColumnOp, Plan

log = logging.getLogger("declog")
Pieces = Callable[[Sequence[int]], list[str]]
BROKEN = "\ufffd"  # the decoded text of an incomplete character
LONGEST = 8  # the most tokens that one character may consist of


def pieces_of(tokenizer: Any) -> Pieces:
    """A function from ids to pieces of text.

    ``tokenizer`` is a tokenizer (which is copied, because training uses it on another thread), a processor that has
    one, or a function from a list of ids to a list of as many texts. Raises ``UsageError`` DL510 for anything else.
    """
    inner = vars(tokenizer).get("tokenizer") if hasattr(tokenizer, "__dict__") else None
    if hasattr(inner, "decode"):  # ``tokenizer`` is a processor
        tokenizer = inner
    if hasattr(tokenizer, "decode"):
        return _Decoded(_copied(tokenizer))
    if callable(tokenizer):
        return _UserPieces(tokenizer)
    raise UsageError.of("DL510.tokenizer", type=type(tokenizer).__name__)


def with_texts(plan: Plan, tokenizer: Any) -> Plan:
    """The plan with the tokenizer in its token columns; unchanged if no column has ids to turn into text."""
    needed = [
        column
        for table in plan.tables
        for column in table.columns
        if column.tokens is not None and column.expr is not None and column.expr.op == TEXTVALUE
    ]
    if not needed:
        return plan
    if tokenizer is None:
        text = "the column `%s` shows ids and no texts: give `declog.start` the `tokenizer`"
        log.warning(text, needed[0].id)
        return plan
    pieces = pieces_of(tokenizer)

    def with_pieces(column: ColumnOp) -> ColumnOp:
        return replace(column, tokens=column.tokens and replace(column.tokens, pieces=pieces))

    tables = [replace(table, columns=tuple(map(with_pieces, table.columns))) for table in plan.tables]
    return replace(plan, tables=tuple(tables))


def _copied(tokenizer: Any) -> Any:
    try:
        return copy.deepcopy(tokenizer)
    except Exception as error:  # noqa: BLE001  (whatever it holds that cannot be copied)
        log.debug("the tokenizer is used as it is, and not as a copy: %s: %s", type(error).__name__, error)
        return tokenizer


class _UserPieces:
    """A user's function; checks that it returns as many texts as it got ids."""

    def __init__(self, function: Callable[[list[int]], Sequence[str]]) -> None:
        self._function = function

    def __call__(self, ids: Sequence[int]) -> list[str]:
        texts = [str(text) for text in self._function(list(ids))]
        if len(texts) != len(ids):
            raise ValueError(f"{len(ids)} ids, for which `tokenizer` gave {len(texts)} texts")
        return texts


class _Decoded:
    """Decodes ids one by one, with a cache; ids that only together form a character are decoded together."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._memo: dict[int, str] = {}

    def __call__(self, ids: Sequence[int]) -> list[str]:
        pieces = [self._piece(id) for id in ids]
        start = 0
        while start < len(pieces):
            if BROKEN not in pieces[start]:
                start += 1
                continue
            for end in range(start + 2, min(start + LONGEST, len(pieces)) + 1):
                character = self._tokenizer.decode(list(ids[start:end]))
                if BROKEN not in character:
                    pieces[start:end] = [character, *[""] * (end - start - 1)]
                    start = end
                    break
            else:
                start += 1
        return pieces

    def _piece(self, id: int) -> str:
        piece = self._memo.get(id)
        if piece is None:
            piece = self._tokenizer.decode([id])
            if hasattr(self._tokenizer, "convert_ids_to_tokens") and not piece.startswith(" "):
                (word,) = self._tokenizer.convert_ids_to_tokens([id])
                if isinstance(word, str) and word.startswith("▁"):  # a blank that sentencepiece drops at the start
                    piece = f" {piece}"
            self._memo[id] = piece
        return piece
