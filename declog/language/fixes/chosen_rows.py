"""Fixes for keys of other tools that choose rows: an order, its direction and a count are one filter together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import reduce
from typing import Any

from declog.errors import elsewhere, in_flow
from declog.errors.elsewhere import SYNONYMS
from declog.language.keys import keys
from declog.language.notation import WORD, both
from declog.language.spec_of_tables import FilterSpec

_ENDS = elsewhere.meanings("ends")  # words for the direction of an order
_OTHER_END = {"top": "bottom", "bottom": "top"}
_CHOICES = ("top", "bottom", "first", "random", "fraction", "unique")  # a filter has one, or both `top` and `bottom`


def of_rows(section: str, word: str, name: str, entry: Mapping[str, Any]) -> str | None:
    """The filter for all keys of an entry that choose rows: `{sort_values: reward, ascending: false, head: 2}`.

    ``section`` is `filters` or `tables`. Returns None for a key that chooses no rows, and for one that does it alone.
    """
    said = {key: rows for key, value in entry.items() if (rows := _read(section, key, value))}
    rows = {role: value for part in said.values() for role, value in part.items()}
    conditions = [str(part["where"]) for part in said.values() if "where" in part]
    rows |= {"where": reduce(both, conditions)} if conditions else {}
    ordered = not {"key", "end"}.isdisjoint(rows)
    if section == "tables" and "key" in _read(section, word, entry[word]) and "key" in said.get("filter", {}):
        return "drop it: `filter` chooses the rows, and whoever reads the table sorts them"
    if word not in said or not (ordered or len(said) > 1):
        return None
    if not ordered:
        return f"{name}: {in_flow(rows)}" if len(rows.keys() & {*_CHOICES}) < 2 else None
    counts = {role: rows.pop(role) for role in (*_CHOICES[:4], "limit") if role in rows}
    count = next((value for value in counts.values() if type(value) is int), 4)
    end, order = rows.pop("end", None), rows.pop("key", "reward")
    if not entry.keys().isdisjoint(("tail", "last")):
        end = _OTHER_END.get(end)
    choices = [{key: value if type(value := counts[key]) is int else count for key in _OTHER_END if key in counts}]
    if not choices[0]:
        choices = [{key: count} for key in ([end] if end else ["bottom", "top"])]
    answers = [f"{name}: {in_flow({**rows, 'key': order, **choice})}" for choice in choices]
    return answers[0] if len(answers) == 1 else f"{answers[0]} for the smallest  or  {answers[1]} for the greatest"


def _read(section: str, key: str, value: Any) -> dict[str, Any]:
    """The keys of a filter that a key means, with `end` for the direction of an order; empty for another key."""
    if section == "tables" and key == "filter":
        inside = value if isinstance(value, Mapping) else {"from": value}
        return {
            role: item for word, one in inside.items()
            for role, item in (_read("filters", word, one) or {word: one}).items()
        }  # fmt: skip
    if (end := _ENDS.get(key)) is not None:
        if isinstance(value, bool):
            end = end if value else _OTHER_END.get(end)
        elif (end := _ENDS.get(str(value).lower())) not in _OTHER_END:
            return _ordered(value) if key == "order" else {}
        return {"end": end}
    template = elsewhere.keys().get(f"{section}.{key}", "")
    if section == "tables" and not template.startswith("filter: "):
        return {}
    named = re.search(r"(\w+): <value>", template)
    own_role = key if key in keys(FilterSpec) else SYNONYMS.get(key)
    role = named[1] if named else own_role if section == "filters" else None
    if role == "key":
        return _ordered(value)
    if role is not None and role in keys(FilterSpec):
        return {role: value}
    return {"within": "group"} if "within: group" in template else {}


def _ordered(value: Any) -> dict[str, Any]:
    """The `key`, and the `end` if it is said, for `reward desc`, `-reward`, `{by: reward, ascending: true}`, a list."""
    if isinstance(value, list):
        return _ordered(value[0]) if value else {}
    if isinstance(value, Mapping):
        inside = {role: item for key, one in value.items() for role, item in _read("filters", key, one).items()}
        return inside if "key" in inside else _ordered(" ".join(map(str, next(iter(value.items()), ()))))
    order = re.fullmatch(r"(-?) *(.*?)(?:[ :]+(\w+))?", str(value), re.DOTALL)
    assert order is not None
    end = "top" if order[1] else _ENDS.get(str(order[3]).lower())
    field = order[2] if order[3] is None or end in _OTHER_END else str(value)
    return {"key": field, **({"end": end} if end in _OTHER_END else {})}


def best_of(key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a filter for `argmax: length` in a metric, or for `key: length, top: 1`; empty for other keys."""
    end = {"argmax": "top", "argmin": "bottom"}.get(key)
    if end is not None:
        return {"key": entry[key], end: 1}
    rows = {SYNONYMS.get(word, word): value for word, value in entry.items()}
    if SYNONYMS.get(key, key) not in ("key", *_OTHER_END):
        return {}
    return {word: rows[word] for word in ("key", *_OTHER_END) if word in rows}


def condition_of(chosen: Mapping[str, Any]) -> str | None:
    """The `where` of a metric for `filter: {key: length, top: 1}`: rows of each group. None without a key and a count.

    The rows with the best value of their group are all chosen, unless the filter says `within: group`.
    """
    of_group = any(value in ("group", "prompt") for value in chosen.values())
    within = "group" if of_group else chosen.get("within")
    if within not in (None, "group", "step"):
        return None
    order = next((chosen[word] for word in chosen if SYNONYMS.get(word, word) == "key" and type(word) is str), None)
    if not isinstance(order, str):
        return None
    end = next((end for end in _OTHER_END if chosen.get(end) == 1), None)
    if within is None and end is not None:
        return f"{order} == {'max' if end == 'top' else 'min'}({order}, over=completion)"
    ends = {"top": f"-{order}" if WORD.match(order) else f"-({order})", "bottom": order}
    ranked = [(f"rank({ends[end]}, within={within or 'group'})", chosen[end]) for end in ends if chosen.get(end)]
    return " or ".join(f"{rank} <= {count}" if count != 1 else f"{rank} == 1" for rank, count in ranked) or None
