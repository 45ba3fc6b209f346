"""The plan as flat text, which ranks compare, and its digest.

The text is made from the fields of the ops, so a new field of an op is included without further work. Fields that may
differ between ranks are in ``OWN``, with the reason. Imports the tree and the origins of functions; the plan's classes
are only read by their fields.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any

from declog.language.dtypes import Axis
from declog.language.nodes import Node, definition, walk
from declog.language.origins import origin

OWN: Mapping[str, str] = {
    "Plan.sinks": "rank 0 opens them, and those that each rank writes to are in the table",
    "Plan.output_dir": "rank 0 tells the others where the run's folder is",
    "Plan.append": "as `output_dir`",
    "Plan.config": "kept for the run's metadata; what it means is in the ops",
    "Plan.run_config": "as `config`",
    "Plan.inactive": "words about what is not compiled",
    "Plan.unseen": "words about what no sink shows",
    "Plan.user_metrics": "whose lines declare a metric, for what `strict` raises",
    "Plan.warnings": "words of the compiler",
    "Plan.renamed": "words of an error",
    "Plan.strict": "whether this rank's `close` raises",
    "Plan.late": "rank 0 computes them beside the plan's own",
    "Plan.keep_bytes": "rank 0 writes them, and values do not depend on it",
    "Plan.window_bytes": "how much memory rank 0 may take; values do not depend on it",
    "Plan.backlog_bytes": "how much memory this rank may take",
    "Plan.capture": "each rank keeps its own calls",
    "Plan.offered": "what an adapter offers; what is used of it is in the expressions",
    "Plan.requested": "which profiles code requested; what they show is in the ops",
    "Plan.in_code": "ranks agree on it before they make their plans",
    "PhaseOp.unread": "columns that rank 0 writes for later questions, and values do not depend on them",
    "TokensOp.pieces": "rank 0 makes the texts",
    "MetricOp.about": "words, and what is healthy",
    "FormulaOp.about": "words, and what is healthy",
    "Reduction.help": "words",
    "RowFunction.help": "words",
    "Node.index": "the order in which this process met the expressions",
    "Node.names": "what the config calls an expression",
}

# fields that may differ between a run and its continuation, besides ``OWN``: rows and states stay the same
SHOWN: Mapping[str, str] = {
    "Plan.name": "a word",
    "Plan.formulas": "computed from finished metrics",
    "Plan.alerts": "computed from finished metrics",
    "Plan.profiles": "what a sink shows of what is computed",
    "Plan.blocking": "whether the training thread waits",
    "Plan.signal_names": "no value depends on signals that nothing reads",
    "Plan.homes": "as `signal_names`",
    "Plan.extras": "as `signal_names`",
    "Plan.known_phases": "as `signal_names`",
    "ModeOp.prefix": "a name",
    "MetricOp.names": "names",
    "MetricOp.tags": "what profiles select by",
    "MetricOp.shown": "as `profiles`",
    "MetricOp.when": "as `profiles`",
    "MetricOp.empty": "stands for a finished value",
    "TableOp.name": "a name",
    "TableOp.sinks": "where rows go",
    "TableOp.local": "as `sinks`",
    "TableOp.as_trace": "how trackers show rows",
    "TableOp.max_bytes": "how much of a finished table sinks take",
    "ColumnOp.template": "a name",
    "ColumnOp.role": "as `as_trace`",
}

# the words of the config for fields with other names
_WORDS: Mapping[str, str] = {
    "Plan.grouping": "axes.group", "Plan.ids": "axes.completion.ids", "Plan.formulas": "metrics",
    "MetricOp.reduction": "reduce", "MetricOp.args": "expr", "SignalOp.source": "from", "SignalOp.dtype": "type",
    "ColumnOp.template": "name", "TableOp.axis": "rows",
}  # fmt: skip
_FIRST = ("name", "every", "grouping", "ids", "modes", "metrics", "formulas", "tables", "alerts", "functions")
_IDENTITY = ("key", "id", "name", "template")  # the field that identifies one of several ops
THERE, ABSENT = "there", "not there"


def canonical(plan: Any, besides: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The plan as text by path, such as ``metrics.reward.every``: equal on two ranks if their plans are.

    Fields in ``besides`` are left out, as those in ``OWN`` are.
    """
    collected = _Parts(OWN.keys() | besides.keys())
    by_name = {item.name: item for item in fields(plan)}
    for name in dict.fromkeys((*_FIRST, *by_name)):  # the user's own entries come first
        collected.add_field("", plan, by_name[name])
    return collected.parts


def windows(plan: Any) -> str:
    """A digest of everything that an open window depends on: if it is equal, a run can continue there.

    It covers the window's rows and states.
    """
    return digest(canonical(plan, SHOWN))


def digest(parts: Mapping[str, str]) -> str:
    """16 hexadecimal digits, which differ if the parts do."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def difference(plans: Sequence[Mapping[str, str]]) -> str | None:
    """The first difference between the plans of ranks: ``every is 1 on rank 0 and 2 on rank 1``.

    None: they are equal.
    """
    for path in dict.fromkeys(path for parts in plans for path in parts):
        values: dict[str, list[int]] = {}
        for rank, parts in enumerate(plans):
            values.setdefault(parts.get(path, ABSENT), []).append(rank)
        if len(values) > 1:
            return f"{path} is " + " and ".join(f"{value} on {_ranks(ranks)}" for value, ranks in values.items())
    return None


def expressions(value: Any) -> Iterator[Node]:
    """Every expression of a plan, including token masks, with the fields of its op."""
    stack = [value]
    while stack:
        one = stack.pop()
        if one is None or isinstance(one, str | int | float):
            continue  # most values have no parts
        if isinstance(one, Node):
            yield one
            for node in walk(one):
                yield from node.mask
        elif is_dataclass(one) and not isinstance(one, type):
            stack += [getattr(one, name) for name in reversed(_names(type(one)))]
        elif isinstance(one, Mapping):
            stack += reversed(tuple(one.values()))
        elif isinstance(one, tuple | frozenset):
            stack += reversed(tuple(one))


def _fields(op: Any) -> set[str]:
    return {item.name for item in fields(op)}


@cache
def _names(op: type[Any]) -> tuple[str, ...]:
    return tuple(item.name for item in fields(op))


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


class _Parts:
    """Collects the parts of one plan, without the fields in ``without``."""

    def __init__(self, without: Set[str]) -> None:
        self._without = without
        self.parts: dict[str, str] = {}
        self._types: dict[Node, str] = {}

    def add_field(self, path: str, op: Any, item: Field[Any]) -> None:
        """Add a field of an op, unless it may differ between ranks."""
        label = f"{type(op).__name__}.{item.name}"
        if label not in self._without:
            word = _WORDS.get(label, item.name)
            self.add(f"{path}.{word}" if path else word, getattr(op, item.name))

    def add(self, path: str, value: Any, *, listed: bool = False) -> None:
        """Add a value: an op by its fields, a collection by the names of its items, an expression as it is written."""
        if isinstance(value, Node):
            self.parts[path] = definition(value)
            self.parts[f"{path} (types)"] = self._typed(value)
        elif is_dataclass(value):
            called = next((getattr(value, name) for name in _IDENTITY if name in _fields(value)), THERE)
            self.parts[path] = THERE if listed else str(called)
            for item in fields(value):
                self.add_field(path, value, item)
        elif isinstance(value, Mapping):
            for key, one in value.items():
                self.add(f"{path}.{key}", one, listed=True)
        elif isinstance(value, frozenset):
            for text in sorted(map(_text, value)):
                self.parts[f"{path}: {text}"] = THERE
        elif isinstance(value, tuple) and not _plain(value):
            for key, one in zip(_keys(value), value, strict=True):
                self.add(f"{path}.{key}" if key else path, one, listed=bool(key))
        else:
            self.parts[path] = _text(value)

    def _typed(self, node: Node) -> str:
        """A digest of an expression beyond its text: the types, token masks and parts of all its nodes."""
        if node not in self._types:
            texts = []
            for item in fields(node):
                if f"Node.{item.name}" not in OWN:
                    value = getattr(node, item.name)
                    if item.name == "args":
                        value = [self._typed(one) for one in value]
                    elif item.name == "mask":
                        value = sorted(self._typed(one) for one in value)
                    texts.append(f"{item.name}={value!r}")
            self._types[node] = hashlib.sha256("; ".join(texts).encode()).hexdigest()[:12]
        return self._types[node]


def _plain(value: Any) -> bool:
    """Whether a value contains neither an op nor an expression."""
    if isinstance(value, tuple):
        return all(map(_plain, value))
    return not is_dataclass(value)


def _keys(values: tuple[Any, ...]) -> list[str]:
    """The keys of a collection's items: their names if these differ, else their positions."""
    if len(values) == 1 and isinstance(values[0], Node):
        return [""]
    for name in _IDENTITY:
        if all(is_dataclass(item) and name in _fields(item) for item in values):
            keys = [str(getattr(item, name)) for item in values]
            if len(set(keys)) == len(keys):
                return keys
    return [str(position) for position in range(len(values))]


def _text(value: Any) -> str:
    """A value without parts, as the config writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Axis):
        return value.label
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_text, value))}]"
    return origin(value) if callable(value) else str(value) or "empty"
