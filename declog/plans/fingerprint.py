"""The plan as flat text, which ranks compare, and its digest.

The text is made from the fields of the ops, so it includes a new field of an op without further work. ``OWN`` are the
fields that may differ between ranks. This module reads the plan's classes by their fields only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from declog.language.dtypes import Axis
from declog.language.functions import Function
from declog.language.nodes import Node, definition, walk
from declog.language.origins import origin

# The fields that may differ between ranks, by the reason.
_OWN = {
    "rank 0 opens them, and those that each rank writes to are in the table": "Plan.sinks",
    "rank 0 tells the others where the run's folder is": "Plan.output_dir Plan.append",
    "kept for the run's metadata; the ops have the meaning": "Plan.name Plan.project Plan.config Plan.run_config",
    "words for people": "Plan.inactive Plan.unseen Plan.warnings Plan.renamed Reduction.help RowFunction.help",
    "words, and which values are healthy": "MetricOp.about FormulaOp.about",
    "whose lines declare them, for errors of `strict` and warnings": "Plan.user_metrics Plan.user_columns",
    "whether this rank's `close` raises": "Plan.strict",
    "rank 0 computes them beside the plan's own": "Plan.late",
    "rank 0 writes them, and no value depends on them": "Plan.keep_bytes PhaseOp.unread",
    "the memory of one rank; no value depends on it": "Plan.window_bytes Plan.backlog_bytes",
    "each rank keeps its own calls": "Plan.capture",
    "what an adapter offers; the expressions have the constants that they use": "Plan.offered",
    "which profiles code requested; the ops have what they show": "Plan.requested",
    "ranks agree on it before they make their plans": "Plan.in_code",
    "rank 0 makes the texts": "TokensOp.pieces",
    "the order in which this process met the expressions": "Node.index",
    "what the config calls an expression": "Node.names",
}
# The fields that may also differ between a run and its continuation, by the reason. Rows and states stay the same.
_SHOWN = {
    "a name": "ModeOp.prefix MetricOp.names TableOp.name ColumnOp.template",
    "computed from finished metrics": "Plan.formulas Plan.alerts MetricOp.empty",
    "what a sink shows of the finished values": "Plan.profiles MetricOp.tags MetricOp.shown MetricOp.when",
    "whether the training thread waits": "Plan.blocking",
    "no value depends on signals that nothing reads": "Plan.signal_names Plan.homes Plan.extras Plan.known_phases",
    "where the rows of a finished table go": "TableOp.sinks TableOp.local TableOp.max_bytes",
    "how trackers show rows": "TableOp.as_trace ColumnOp.role",
}
OWN = frozenset(" ".join(_OWN.values()).split())
SHOWN = frozenset(" ".join(_SHOWN.values()).split())

# the words of the config for fields with other names
_WORDS: Mapping[str, str] = {
    "Plan.grouping": "axes.group", "Plan.ids": "axes.completion.ids", "Plan.formulas": "metrics",
    "MetricOp.reduction": "reduce", "MetricOp.args": "expr", "SignalOp.source": "from", "SignalOp.dtype": "type",
    "ColumnOp.template": "name", "TableOp.axis": "rows",
}  # fmt: skip
_FIRST = ("every", "grouping", "ids", "modes", "metrics", "formulas", "tables", "alerts", "functions")
_IDENTITY = ("key", "id", "name", "template")  # the field that identifies one of several ops
THERE, ABSENT = "there", "not there"


def canonical(plan: Any, besides: Set[str] = frozenset()) -> dict[str, str]:
    """The plan as text by path, such as ``metrics.reward.every``. Equal plans on two ranks have equal texts.

    Fields in ``besides`` are left out, like the fields in ``OWN``.
    """
    collected = _Parts(OWN | besides)
    for name in dict.fromkeys((*_FIRST, *_fields(plan))):  # the user's own entries come first
        collected.add_field("", plan, name)
    return collected.parts


def digest(parts: Mapping[str, str]) -> str:
    """A digest of the parts: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def difference(plans: Sequence[Mapping[str, str]]) -> str | None:
    """The first difference between the plans of ranks: ``every is 1 on rank 0 and 2 on rank 1``.

    Returns None if the plans are equal.
    """
    for path in dict.fromkeys(path for parts in plans for path in parts):
        values: dict[str, list[int]] = {}
        for rank, parts in enumerate(plans):
            values.setdefault(parts.get(path, ABSENT), []).append(rank)
        if len(values) > 1:
            return f"{path} is " + " and ".join(f"{value} on {_ranks(ranks)}" for value, ranks in values.items())
    return None


def expressions(value: Any) -> Iterator[Node]:
    """Every expression inside of a plan or an op, including token masks, in the order of fields."""
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, Node):
            yield one
            for node in walk(one):
                yield from node.mask
        elif names := _fields(one):
            stack += [getattr(one, name) for name in reversed(names)]
        elif isinstance(one, tuple | frozenset):
            stack += reversed(tuple(one))
        elif isinstance(one, Mapping):
            stack += reversed(tuple(one.values()))


def _fields(op: Any) -> tuple[str, ...]:
    """The names of an op's fields; empty for a value that is no dataclass."""
    kind: Any = type(op)
    return _fields_of(kind)


@cache
def _fields_of(kind: Any) -> tuple[str, ...]:
    """The names of a class's fields; empty for a class that is no dataclass."""
    return tuple(item.name for item in fields(kind)) if is_dataclass(kind) else ()


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


class _Parts:
    """Collects the parts of one plan, without the fields in ``without``."""

    def __init__(self, without: Set[str]) -> None:
        self._without = without
        self.parts: dict[str, str] = {}
        self._types: dict[Node, str] = {}

    def add_field(self, path: str, op: Any, name: str) -> None:
        """Add a field of an op, unless the field is left out."""
        label = f"{type(op).__name__}.{name}"
        if label not in self._without:
            word = _WORDS.get(label, name)
            self.add(f"{path}.{word}" if path else word, getattr(op, name))

    def add(self, path: str, value: Any, *, listed: bool = False) -> None:
        """Add a value: an op by its fields, a collection by the names of its items, an expression by its text."""
        if isinstance(value, Node):
            self.parts[path] = definition(value)
            self.parts[f"{path} (types)"] = self._typed(value)
        elif isinstance(value, Function):
            self.parts[path] = origin(value.run if value.reduces is None else value.reduces.run)
        elif is_dataclass(value):
            names = _fields(value)
            called = next((getattr(value, name) for name in _IDENTITY if name in names), THERE)
            self.parts[path] = THERE if listed else str(called)
            for name in names:
                self.add_field(path, value, name)
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
        """A digest of the types, token masks and parts of an expression's nodes, which its text does not show."""
        if node not in self._types:
            values = {name: getattr(node, name) for name in _fields(node) if f"Node.{name}" not in OWN}
            values["args"] = list(map(self._typed, node.args))
            values["mask"] = sorted(map(self._typed, node.mask))
            text = "; ".join(f"{name}={value!r}" for name, value in values.items())
            self._types[node] = hashlib.sha256(text.encode()).hexdigest()[:12]
        return self._types[node]


def _plain(value: Any) -> bool:
    """Whether a value contains neither an op nor an expression."""
    if isinstance(value, tuple):
        return all(map(_plain, value))
    return not is_dataclass(value)


def _keys(values: tuple[Any, ...]) -> list[str]:
    """The keys of a collection's items: their names if all names differ, else their positions."""
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
