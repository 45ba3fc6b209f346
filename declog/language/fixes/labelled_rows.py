"""Fixes for keys of other tools, such as `by`, that ask for rows of each value of a label: the language's `within`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from declog.errors import elsewhere, in_flow
from declog.errors.elsewhere import SYNONYMS
from declog.language.keys import keys
from declog.language.spec_of_tables import FilterSpec, TableSpec

_KEYS = ("by", "over")  # words that may also name the number to order by
_DISTINCT = ("group_by", "groupby", "one_per")  # without another choice: one row of each value
_EACH = (*_KEYS, *_DISTINCT, *elsewhere.words("each"))


def of_labelled_rows(word: str, entry: Mapping[str, Any]) -> str | None:
    """The fix for a filter's key that asks for rows of each label: `by` of `{key: reward, top: 1, by: source}`.

    Returns None for another key, and if ``word`` names the number to order by, as `by` alone does.
    """
    edit = _within(word, entry[word], entry)
    return None if edit is None else in_flow(edit)[1:-1]


def of_labelled_table(word: str, entry: Mapping[str, Any]) -> str | None:
    """The fix for a table's key that asks for rows of each label: `per` of `{filter: {key: reward}, per: source}`.

    The fix contains the table's filter. Returns None for another key.
    """
    label_key = next((key for key in entry if key in _EACH), word)
    rows, said = entry.get("filter"), {}
    if rows is None:  # the keys of a filter may stand in the table itself
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
    """The keys that a filter ``rows`` needs for a word with one label or a list of labels; None for another word."""
    if word not in _EACH or not isinstance(label, str | list) or label in ("completion", "token"):
        return None
    if word in _KEYS and rows.keys().isdisjoint(("key", "unique", "first", "random", "fraction")):
        return None
    within = "group" if label in ("prompt", "prompt_id") else label
    of_groups = within == "group" and re.search("group|over=completion", str(rows.get("key")))
    return {"take": "group"} if of_groups else {"within": within}
