"""Fixes for values with a wrong type for their key: the same value in YAML with the right type.

For a signal that is declared elsewhere, too, the fix is to keep one declaration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from declog.errors import Problem, elsewhere, in_flow
from declog.errors.elsewhere import SYNONYMS
from declog.language.fixes.unparsable import spelt
from declog.language.keys import entries
from declog.language.model import Scalar
from declog.language.tree import listed, map_at


def of_type(noun: str, example: str, key: str, value: Any, depth: int) -> str:
    """The fix for a value that must have another type: the converted value, or else ``example``.

    Without an example the fix is to drop the key: no value is invented.
    """
    said = _as_type(noun, key, value, depth) or example
    return f"{key}: {said}" if said else f"drop `{key}`, or say it as {noun}"


def _as_type(noun: str, key: str, value: Any, depth: int) -> str | None:
    """The YAML of a value converted to a type; None if the value does not show how."""
    if noun == "text" and isinstance(value, bool | int | float):
        return f'"{value}"'
    if key in ("where", "when") and isinstance(value, Mapping) and not {*value} & {*_VALUES}:
        parts = [_condition(str(name), item) for name, item in value.items()]
        return in_flow(" and ".join(map(str, parts))) if parts and None not in parts else None
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Scalar):
        return in_flow(value[0])
    if noun == "text":
        return next((in_flow(text) for text in _texts(value)), None)
    numbers = [item for item in value.values() if type(item) is int] if isinstance(value, Mapping) else []
    if numbers and "number" in noun:
        return str(numbers[0])
    if noun == "a map" and value is False and depth == 2:
        return "null"
    of_unit = spelt(value) if isinstance(value, str) else ""  # `1k`, `30%`
    if "number" in noun and (number := re.match(r"\d+(?:\.\d+)?" if "whole" not in noun else r"\d+(?![\d.])", of_unit)):
        return number[0]
    if "number" in noun and (word := SYNONYMS.get(str(value).lower(), "")).isdigit():
        return word
    if noun == "a map" and isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        return in_flow({key: item for one in value for key, item in one.items()})
    if noun == "a list" and isinstance(value, str):
        words = re.fullmatch(r"\w+([\s,]+\w+)+", value.strip())
        return in_flow(re.split(r"[\s,]+", value.strip()) if words else [value])
    if noun == "a list" and isinstance(value, Mapping) and value:
        named = all(item is None or isinstance(item, bool) for item in value.values())
        return in_flow([name for name, item in value.items() if item is not False] if named else [*value.values()])
    return None


def _condition(name: str, item: Any) -> str | None:
    """The condition for ``topic: math`` or ``length: "> 512"``; None if the item is no scalar."""
    if isinstance(item, bool):
        return name if item else f"not {name}"
    if isinstance(item, str) and re.match(r"\s*([<>]=?|[!=]=)", item):
        return f"{name} {item.strip()}"
    return f"{name} == {item!r}" if isinstance(item, str | int | float) else None


def _texts(value: Any) -> Iterator[str]:
    """The texts inside of a value, at any depth."""
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for item in inside:
        if isinstance(item, str):
            yield item
        else:
            yield from _texts(item)


_VALUES = ("key", "expr", "signal", "column", "field", "feature", "label", "value", "of", "on", "by", "bucket", "name")
_EDGES = frozenset({"bins", "buckets", "edges", "bin_edges", "bucket", "cuts", "breaks", "thresholds", "boundaries"})
_MOST = frozenset({"top", "max", "limit", "max_labels", "head", "n", "k"})


def of_labels(labels: Any) -> str | None:
    """The fix for labels that are maps: ``by: {key: lag, buckets: [1, 3]}``; None if they name no value."""
    items = listed(labels)
    texts = [text for item in items for text in _label(item)]
    if not texts:
        return None
    most = [item[word] for item in items if isinstance(item, Mapping) for word in _MOST & {*item}]
    more = f", max_labels: {most[0]}" if most and type(most[0]) is int else ""
    said = "; ".join(filter(None, map(edges_of, texts)))
    counted = any(type(item.get(word)) is int for item in items if isinstance(item, Mapping) for word in _EDGES)
    said += "; a number of buckets says no edges: write yours" if counted else ""
    return f"by: {in_flow(texts if len(texts) > 1 else texts[0])}{more}" + (f"; {said}" if said else "")


def _label(item: Any) -> Iterator[str]:
    """The expressions of the labels that a map or a text means."""
    if isinstance(item, str):
        yield item
    if not isinstance(item, Mapping):
        return
    value = next((item[word] for word in _VALUES if isinstance(item.get(word), str)), None)
    if value is not None:
        edges = next((edge for word, edge in item.items() if word in _EDGES and not isinstance(edge, str)), None)
        yield value if edges is None else bucketed(value, edges)
        return
    for name, inside in item.items():
        if isinstance(inside, list | Mapping) and _numbers(inside):
            yield bucketed(str(name), inside)
        elif name not in _MOST and name not in _EDGES:
            yield inside if isinstance(inside, str) and name in ("group", "task", "labels") else str(name)


def bucketed(label: str, edges: Any) -> str:
    """The call of `bucket` for a value and its upper edges; a number of buckets gets an example edge."""
    return f"bucket({label}, {', '.join(map(str, _numbers(edges) or [100]))})"


def _numbers(edges: Any) -> Sequence[int | float]:
    """The finite upper edges among numbers, without a leading 0: counts have no bucket below 0."""
    items = edges.values() if isinstance(edges, Mapping) else edges if isinstance(edges, list) else []
    flat = [number for item in items for number in listed(item)]
    numbers = {item for item in flat if isinstance(item, int | float) and not isinstance(item, bool)}
    finite = sorted(filter(math.isfinite, numbers))
    return finite[1:] if finite[:1] == [0] else finite


def edges_of(label: str) -> str:
    """A note on the labels that the edges of a `bucket` make; empty without edges."""
    from declog.language.fixes.wrong_calls import edges  # imports numpy, which composing alone does not need

    return edges("bucket", label).removeprefix("; ")


def declared_before(problem: Problem, data: Mapping[str, Any]) -> Problem | None:
    """The problem of a signal in the wrong form that another section of `signals` declares, too; else None."""
    for path, entry in entries(data, "signals") if problem.path[:1] == ("signals",) else ():
        sections = {path[:2], problem.path[:2]}
        if path[2:] == problem.path[2:] and len(sections) == 2 and ("signals", "any") in sections and entry is not None:
            first, other = (".".join(map(str, where[:2])) for where in (path, problem.path))
            return Problem.of("DL402.places", problem.path, related=(path,), name=path[-1], first=first, other=other)
    return None


_BASES = {*elsewhere.words("bases"), "defaults"}  # keys for what a schema is built on


def of_base(problem: Problem, data: Mapping[str, Any]) -> Problem | None:
    """The problem of a key that names other schemas, whose columns the fix writes; None for another key."""
    section, name, key, *_ = (*map(str, problem.path), "", "")
    schemas = map_at(data, section)
    if section != "schemas" or key not in _BASES:
        return None
    bases = listed(schemas[name][key])
    built = {str(base): schemas.get(base) if isinstance(base, str) else None for base in bases}
    if not built or name in built or any(not isinstance(one, Mapping) or _BASES & one.keys() for one in built.values()):
        return None
    columns = {column: spec for base in [*bases, name] for column, spec in schemas[base].items() if column != key}
    return Problem.of(
        "DL202.base", problem.path[:3], key=key, fix=f"write its columns: {in_flow({name: columns})[1:-1]}"
    )
