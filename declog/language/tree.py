"""Trees of values with their locations, for files, overrides and plain data; and the merging of two trees.

Each value keeps the location where it was written, and so do the values that are derived from it. The reader of a file
decides what a location is; this module never reads one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any

from declog.errors import Path

MISSING = "???"  # a value that another layer must give


@dataclass(frozen=True, slots=True)
class Node:
    """A map of nodes, a list of nodes, or a scalar.

    With ``replaces``, a map or ``???`` replaces the node of the lower layer completely, as any text or list does.
    ``drops`` names the keys of the lower node that are removed.
    """

    value: Any
    location: Any = None
    replaces: bool = False
    drops: frozenset[str] = frozenset()

    @property
    def entries(self) -> Mapping[Any, Node]:
        """The entries of a map; empty for any other node."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def plain(self) -> Any:
        """The value as plain data, without locations."""
        if isinstance(self.value, dict):
            return {key: node.plain for key, node in self.value.items()}
        return [node.plain for node in self.value] if isinstance(self.value, list) else self.value

    def at(self, path: Sequence[Any]) -> Node | None:
        """The node at a path, or None."""
        depth, node = self.deepest(path)
        return node if depth == len(path) else None

    def deepest(self, path: Sequence[Any]) -> tuple[int, Node]:
        """The number of a path's leading keys that exist, and the node at the last of them. Digits index a list."""
        node = self
        for depth, key in enumerate(path):
            inner = node.value
            key = int(key) if isinstance(inner, list) and str(key).isdigit() else key
            if key not in (range(len(inner)) if isinstance(inner, list) else node.entries):
                return depth, node
            node = inner[key]
        return len(path), node

    def holding(self, value: Any) -> Node:
        """A copy of the node with another value."""
        return Node(value, self.location, self.replaces, self.drops)

    def walk(self, path: Path = ()) -> Iterator[tuple[Path, Node]]:
        """Every node below this one with its path; outer nodes come first. Keys are texts, as in a problem's path."""
        items = enumerate(self.value) if isinstance(self.value, list) else self.entries.items()
        for key, node in items:
            key = key if isinstance(self.value, list) else str(key)
            yield (*path, key), node
            if isinstance(node.value, dict | list):
                yield from node.walk((*path, key))


def has(data: Any, path: Path) -> bool:
    """Whether plain data has a key at a path."""
    for key in path:
        keys = range(len(data)) if isinstance(data, list) else data if isinstance(data, Mapping) else ()
        if key not in keys:
            return False
        data = data[key]
    return True


def at(data: Any, path: Path) -> Any:
    """The value at a path of plain data, or None."""
    return reduce(getitem, path, data) if has(data, path) else None


def map_at(data: Mapping[str, Any], key: str) -> Mapping[Any, Any]:
    """The map at a key of plain data; empty if there is no map."""
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> list[Any]:
    """The items of a list; any other value alone."""
    return value if isinstance(value, list) else [value]


def said(value: Any, location: Any, *, replaces: bool = False) -> Node:
    """A tree of plain data at one location. Nodes inside of the data stay as they are."""
    if isinstance(value, Node):
        return value
    if isinstance(value, Mapping):
        return Node({key: said(inner, location) for key, inner in value.items()}, location, replaces)
    return Node([said(item, location) for item in value] if isinstance(value, list) else value, location)


def tree_of(data: Any, path: Path = (), node: Callable[[Any, Path], Node] = Node) -> Node:
    """Plain data as a tree. ``node`` makes each node from a value and its path; by default the path is the location."""
    if isinstance(data, Mapping):
        data = {key: tree_of(value, (*path, key), node) for key, value in data.items()}
    elif isinstance(data, list):
        data = [tree_of(item, (*path, index), node) for index, item in enumerate(data)]
    return node(data, path)


def over(low: Node | None, high: Node) -> Node:
    """Lay the tree ``high`` over ``low``: maps are merged, other values are replaced, ``???`` keeps the lower value.

    A map without a location over a list addresses items of the list by index: it only leads to a deeper node.
    """
    if low is None:
        return high
    if type(high.value) is str and high.value == MISSING and not high.replaces:
        return low
    if isinstance(low.value, list) and isinstance(high.value, dict) and high.location is None:
        items = {str(index): item for index, item in enumerate(low.value)}
        return low.holding([over(item, high.value[key]) if key in high.value else item for key, item in items.items()])
    if high.replaces or not (isinstance(low.value, dict) and isinstance(high.value, dict)):
        return high
    merged = {key: node for key, node in low.value.items() if key not in high.drops}
    for key, node in high.value.items():
        merged[key] = over(merged.get(key), node)
    return Node(merged, low.location if high.location is None else high.location, low.replaces)
