"""Fixes for a key that a YAML file has twice: one entry in place of both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from declog.config.source_map import LINE_BREAK
from declog.errors import in_flow

MOST = 400  # characters of an entry that is shown as a whole


def of_twice(name: str, text: str, row: int) -> str:
    """The fix for a key that a file has twice, the second time in line ``row``: the entries of two maps are merged."""
    lines = LINE_BREAK.split(text)
    section = rf"\s*{re.escape(name)}:\s*(#.*)?$"
    if row < len(lines) and re.match(section, lines[row]) and any(re.match(section, line) for line in lines[:row]):
        return f"delete this line, and move what is below it to the other `{name}:`"
    for first, second in _pairs(text, name, row):
        before, behind = _written(first), _written(second)
        entry = _merged(before, behind)
        if isinstance(entry, dict) and len(shown := f"{name}: {in_flow(entry, str)}") <= MOST:
            return f"{shown}: in place of both"
        if isinstance(entry, dict) and not first.flow_style and before.keys().isdisjoint(behind):
            further = [f"{key}: {in_flow(value, str)}" for key, value in behind.items()]
            return "\n".join([f"delete this line, and write below the other `{name}:`", *further])
    return "keep one of the two"


def _pairs(text: str, name: str, row: int) -> Iterator[tuple[Any, Any]]:
    """The values of a key that one map has both before a row and in it; none if an anchor shares one of them."""
    try:
        open_nodes = [yaml.compose(text, Loader=yaml.SafeLoader)]
    except yaml.YAMLError:
        return
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, yaml.MappingNode):
            named = [(key, value) for key, value in node.value if key.value == name]
            second = next((at for at, (key, _) in enumerate(named) if at and key.start_mark.line == row), None)
            if second is not None:
                pair = named[0][1], named[second][1]
                sources = "".join(text[part.start_mark.index : part.end_mark.index] for part in pair)
                if not re.search(r"(?<![\w)\]]) *[&*][a-zA-Z_]|<<", sources):
                    yield pair
        inside: Sequence[Any] = node.value if isinstance(node, yaml.CollectionNode) else ()
        open_nodes += [part for item in inside for part in (item if isinstance(item, tuple) else [item])]


def _written(node: Any) -> Any:
    """A node as maps, lists and texts; each text is written as in flow style."""
    if isinstance(node, yaml.MappingNode):
        return {key.value: _written(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_written(item) for item in node.value]
    if node.style is not None:
        return json.dumps(node.value, ensure_ascii=False)
    return in_flow(node.value) if node.value else "null"


def _merged(first: Any, second: Any) -> Any:
    """Two maps merged, or a value that both have; None if they have different values for a key."""
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return first if first == second else None
    merged = {**second, **first}
    for key in first.keys() & second.keys():
        merged[key] = _merged(first[key], second[key])
    ordered = [*first, *(key for key in second if key not in first)]
    return None if None in merged.values() else {key: merged[key] for key in ordered}
