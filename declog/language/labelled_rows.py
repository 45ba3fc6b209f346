"""Rows of each value of a label, which no filter chooses: a condition, and a table for each further value.

Entries in, texts of fixes out. Imports models and errors only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declog.errors import in_flow
from declog.errors.elsewhere import SYNONYMS
from declog.language.keys import entries, keys
from declog.language.notation import both
from declog.language.spec import IDENTIFIER
from declog.language.spec_of_tables import TableSpec
from declog.language.wrong_forms import entry_names

_EACH = ("by", "group_by", "groupby", "by_group", "per", "each", "per_group", "one_per", "within", "stratify", "over")
_WITHIN = ("group", "batch", "step", "window")
_PLACES = (*_WITHIN, "prompt", "completion", "token", "rank", "epoch", "run")
_OF_LABELS = ("group_by", "groupby", "per", "each", "stratify")  # words that say nothing but this


def of_labelled_rows(word: str, entry: Mapping[str, Any], data: Mapping[str, Any]) -> str | None:
    """The fix for rows of each source, `{key: reward, top: 1, by: source}`: a table for each; None for another key."""
    types = {path[-1]: signal.get("type") for path, signal in entries(data, "signals") if isinstance(signal, Mapping)}
    label, rest = entry[word], {key: value for key, value in entry.items() if key != word}
    if word in _EACH and label in ("prompt", "prompt_id"):
        return f"filter: {in_flow({**rest, 'within': 'group'})}"
    if not isinstance(label, str) or word not in _EACH or label in _PLACES:
        return None
    named = word not in _OF_LABELS or label in entry_names(data, "signals", "derived")
    type = types.get(label, "float" if named else "text")
    if type not in ("text", "int"):
        return None
    if type == "int" and "key" not in entry:  # the key itself
        return None
    condition = f"{label} == {'1' if type == 'int' else repr('math')}"
    where = both(str(rest["where"]), condition) if "where" in rest else condition
    return f"filter: {in_flow({**rest, 'where': where})}, and a table like it for each further value of `{label}`"


def of_labelled_table(word: str, entry: Mapping[str, Any], data: Mapping[str, Any]) -> str | None:
    """The fix for the rows of each source in a table, `{filter: {key: reward, top: 1}, per: source}`, with its filter.

    None for another key. A group, a batch or a window is a place to choose within, and a label is none.
    """
    word_of_label = next((key for key in entry if key in _EACH and isinstance(entry[key], str)), None)
    if word_of_label is None or word in keys(TableSpec):
        return None
    rows, label = entry.get("filter"), {"prompt": "group"}.get(entry[word_of_label], entry[word_of_label])
    if isinstance(rows, str):
        rows = {"from" if IDENTIFIER.match(rows) else "where": rows}
    elif rows is None:  # the keys of a filter stand in the table
        said = {SYNONYMS.get(key, key): key for key in entry if key not in (word_of_label, *keys(TableSpec))}
        rows = {key: entry[said[key]] for key in ("key", "where", "top", "bottom", "random") if key in said}
        if word != word_of_label and word not in [said[key] for key in rows]:
            return None
    elif word != word_of_label:
        return None
    if not isinstance(rows, Mapping) or (not rows and label != "group"):
        return None
    if label in _WITHIN:
        return f"filter: {in_flow({**(rows or {'key': 'reward', 'top': 1}), 'within': label})}"
    return of_labelled_rows(word_of_label, {**rows, word_of_label: label}, data)
