"""Rows of each value of a label, in other words than `within`.

Entries in, texts of fixes out. Imports models and errors only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from declog.errors import elsewhere, in_flow
from declog.errors.elsewhere import SYNONYMS
from declog.language.keys import keys
from declog.language.spec_of_tables import FilterSpec, TableSpec

_KEYS = ("by", "over")  # words that also say the key
_DISTINCT = ("group_by", "groupby", "one_per")  # where nothing else is chosen, one row of each
_EACH = (*_KEYS, *_DISTINCT, *elsewhere.words("each"))


def of_labelled_rows(word: str, entry: Mapping[str, Any]) -> str | None:
    """The fix for rows of each source, `{key: reward, top: 1, by: source}`; None for another key, and for the key."""
    edit = _within(word, entry[word], entry)
    return None if edit is None else in_flow(edit)[1:-1]


def of_labelled_table(word: str, entry: Mapping[str, Any]) -> str | None:
    """The fix for the rows of each source in a table, `{filter: {key: reward, top: 1}, per: source}`, with its filter.

    None for another key.
    """
    label_key = next((key for key in entry if key in _EACH), word)
    rows, said = entry.get("filter"), {}
    if rows is None:  # the keys of a filter stand in the table
        beside = {SYNONYMS.get(key, key): key for key in entry if key not in (label_key, *keys(TableSpec))}
        said = {key: beside[key] for key in keys(FilterSpec) if key in beside}
        rows = {key: entry[other] for key, other in said.items()}
        rows = rows or ({} if label_key in (*_KEYS, *_DISTINCT) else {"key": "reward", "top": 1})
    edit = _within(label_key, entry[label_key], rows if isinstance(rows, Mapping) else {"key": rows})
    if not rows or edit is None or word not in (label_key, *said.values()):
        return None
    if isinstance(rows, str):
        return f"drop it, and filters: {in_flow({rows: edit})}"
    return f"filter: {in_flow({**rows, **edit})}" if isinstance(rows, Mapping) else None


def _within(word: str, label: Any, rows: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a filter of these rows says for a word with a label, or with several."""
    if word not in _EACH or not isinstance(label, str | list) or label in ("completion", "token"):
        return None
    if word in _KEYS and rows.keys().isdisjoint(("key", "unique", "first", "random", "fraction")):
        return None
    within = "group" if label in ("prompt", "prompt_id") else label
    of_groups = within == "group" and re.search("group|over=completion", str(rows.get("key")))
    return {"take": "group"} if of_groups else {"within": within}
