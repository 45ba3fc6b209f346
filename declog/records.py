"""What sinks receive: plain, immutable values, already reduced, named and typed.

Nothing is imported from the rest of declog, so that a sink can be written against this file alone.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple

Number = float | int | bool
Level = Literal["info", "warn", "error"]

SELF = "declog/"  # the prefix of what declog logs about itself
NONFINITE = "nonfinite/"  # the prefix of a scalar that counts a metric's NaN and infinite values, gaps left out
RANKS = SELF + "ranks"  # how many ranks there are rows of; logged under every profile where some are missing
THEIRS = "trainer/"  # before the name of a trainer's number that is not declog's of that name


def names_of(template: str) -> str:
    """A regular expression of the names that a template can give: `rewards/{member}` gives `rewards/correct`.

    Each field of the template is a group.
    """
    return "(.+)".join(map(re.escape, re.split(r"\{\w+\}", template)))


class DType(StrEnum):
    """What a value is: of a signal, of an expression, of a table's column; the words that YAML has for it.

    ``OBJECT`` is anything that JSON can hold.
    """

    FLOAT = "float"
    INT = "int"
    BOOL = "bool"
    TEXT = "text"
    OBJECT = "object"

    def holds(self, other: DType) -> bool:
        """Whether a column of this type may be given values of another."""
        return other is self or self is DType.OBJECT or other in _HOLDS.get(self, ())


_HOLDS = {DType.INT: (DType.BOOL,), DType.FLOAT: (DType.INT, DType.BOOL), DType.TEXT: (DType.OBJECT,)}


class Scalar(NamedTuple):
    """One reduced value. ``metric`` is the id in the config, ``name`` what trackers show.

    ``partial`` is true when some ranks were missing from the window.
    """

    name: str
    value: Number
    metric: str
    partial: bool = False


@dataclass(frozen=True)
class Histogram:
    """Counts of values between edges; ``len(edges) == len(counts) + 1``."""

    name: str
    counts: Sequence[int]
    edges: Sequence[float]
    metric: str


class Image(dict[str, Any]):
    """An image in the value of an ``object`` column: as data ``{"type": "image", "width": 640, "height": 480}``.

    What writes values as JSON writes that. A sink whose tracker shows images asks for ``encoded()``. It is not changed
    once it is made, and copies of it are itself.
    """

    def __init__(self, what: Mapping[str, Any], encode: Callable[[], bytes | None] | None = None) -> None:
        super().__init__({"type": "image", **what})
        self._encode = encode

    def encoded(self) -> bytes | None:
        """The image as a small PNG or JPEG file; None where it is not held, or cannot be read."""
        return None if self._encode is None else self._encode()

    def with_keys(self, keys: Mapping[str, Any]) -> Image:
        """The same image with what else is known of it."""
        return Image({**self, **keys}, self._encode)

    def __copy__(self) -> Image:
        return self

    def __deepcopy__(self, memo: Any) -> Image:
        return self

    def __reduce__(self) -> Any:
        return Image, (dict(self),)  # as data


def images_in(value: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Image]]:
    """The images in a value of lists and maps, each with its place."""
    if isinstance(value, Image):
        yield above, value
    elif isinstance(value, list | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(item, list | dict):
                yield from images_in(item, (*above, key))


@dataclass(frozen=True)
class Column:
    """A table column's contract. ``role``: its text is a message of the row's conversation, and who says it.

    ``tokens``: its objects are tokens, ``{"tokens": ["Hel", "lo"], "logprob": [-0.1, None]}``, lists of one length, and
    the names of all of them but the first; None for other columns.
    """

    name: str
    type: DType
    nullable: bool = True
    role: str | None = None
    tokens: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", DType(self.type))  # a sink's test may give the plain word


@dataclass(frozen=True)
class Places:
    """Where a table's rows come from, each list with an entry per row.

    ``step`` is the row's own: a log event may be of several. ``row`` is its number among the rows of that step, of all
    batches and ranks in their order, and ``group`` that of its group, both from 0 on; None where there are no groups.
    ``why`` names the filters that took it, as `unique, worst:bottom`; None without a filter. ``order`` is its place in
    the last choice by `top` and `bottom`, the most extreme first; None without one. Of a table that each rank writes
    itself, they count the rows and groups of that rank. ``of_window``: a filter chose from all steps of a window.
    """

    step: Sequence[int]
    row: Sequence[int]
    group: Sequence[int] | None = None
    why: Sequence[str] | None = None
    order: Sequence[int] | None = None
    of_window: bool = False

    def until(self, rows: int) -> Places:
        """Those of the first rows."""
        group, why, order = self.group, self.why, self.order
        return replace(
            self, step=self.step[:rows], row=self.row[:rows],
            group=group and group[:rows], why=why and why[:rows], order=order and order[:rows],
        )  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Rows picked at one log event, by column. Every list of ``data`` has ``rows`` entries; None is null.

    ``table`` is the id in the config, ``name`` what trackers show. Values are Python ints, floats,
    bools and strings; an ``object`` column holds values made of dicts, lists and those. ``as_trace``: each row is a
    conversation, whose messages are those of its ``object`` columns and the texts of columns with a ``role``; what
    cannot show one shows a table. ``cut``: how many more rows were picked, which `max_bytes` left out. ``places`` say
    where each row comes from, and why it was picked; a table that is made in code has none.
    """

    name: str
    table: str
    columns: tuple[Column, ...]
    data: Mapping[str, Sequence[Any]]
    rows: int
    as_trace: bool = False
    cut: int = 0
    places: Places | None = None

    def why(self, row: int) -> str:
        """The filters that picked a row; empty if the table has none."""
        return "" if self.places is None or self.places.why is None else self.places.why[row]


@dataclass(frozen=True)
class Alert:
    """An alert that fired at this log event."""

    name: str
    level: Level
    text: str


@dataclass(frozen=True)
class Records:
    """Everything one log event has for one sink."""

    mode: str = "train"
    time: float = 0.0
    scalars: tuple[Scalar, ...] = ()
    histograms: tuple[Histogram, ...] = ()
    tables: tuple[Table, ...] = ()
    alerts: tuple[Alert, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.scalars or self.histograms or self.tables or self.alerts)

    @property
    def keys(self) -> Iterator[str]:
        """The keys of the config that its records are of: ``metrics.kl``, ``tables.worst``, ``alerts.kl``."""
        yield from (f"metrics.{scalar.metric}" for scalar in self.scalars)
        yield from (f"metrics.{histogram.metric}" for histogram in self.histograms)
        yield from (f"tables.{table.table}" for table in self.tables)
        yield from (f"alerts.{alert.name}" for alert in self.alerts)


@dataclass(frozen=True)
class ResumePoint:
    """Where a resumed run goes on: behind ``step``, inside the windows of ``open``.

    ``open`` are keys of the config by mode, as ``metrics.kl``, ``tables.worst``. What is logged of these at the step
    itself is the part of a window that a run logged as it closed; the resumed run logs the whole window.
    """

    step: int
    open: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def keeps(self, step: int, mode: str, keys: Iterable[str]) -> bool:
        """Whether a log event at a step stays; ``keys`` are what is in it, at least some of it."""
        return step < self.step or (step == self.step and self.open.get(mode, frozenset()).isdisjoint(keys))


@dataclass(frozen=True)
class RunInfo:
    """What a sink knows of the run when it is opened.

    ``project`` is what trackers call so; ``name`` is the run's own, or the project's. ``output_dir`` exists when a sink
    is opened. ``config`` is how the run is configured, the trainer's configuration
    and `run.config` of the YAML, and ``declog`` the resolved declog config, as plain data; both are sent once. ``plan``
    is the plan as a text. ``sink`` is the sink's own id in the config, filled in by its runner. ``user_metrics`` are
    the ids of metrics that the user's own files and overrides declare, not a package's presets.
    """

    name: str
    run_id: str
    output_dir: Path
    fingerprint: str
    rank: int = 0
    world_size: int = 1
    config: Mapping[str, Any] = field(default_factory=dict)
    declog: Mapping[str, Any] = field(default_factory=dict)
    plan: str = ""
    version: str = ""
    sink: str = ""
    user_metrics: frozenset[str] = frozenset()
    project: str = "run"

    @property
    def shown_name(self) -> str:
        """The name of the run in a tracker: its own, or its id."""
        return self.run_id if self.name == self.project else self.name


@dataclass(frozen=True)
class Beside:
    """What a trainer reports itself, by name: rank 0's sinks get it beside the values of a log event.

    ``numbers`` and those to be ``compared``, which are shown as ``trainer/NAME`` where they are not the values, have
    the names that they have in any mode; ``exact`` have whole ones. ``alone``: they stand for a log event of no rank's
    rows, which is marked as partial.
    """

    numbers: Mapping[str, float] = field(default_factory=dict)
    compared: Mapping[str, float] = field(default_factory=dict)
    exact: Mapping[str, float] = field(default_factory=dict)
    alone: bool = False


def other_numbers(theirs: Mapping[str, float], values: Mapping[str, float]) -> dict[str, float]:
    """Of some numbers by name those that are not the values of that name; NaN is no number."""
    return {
        name: number for name, number in theirs.items()
        if name in values and number == number and not math.isclose(number, values[name], rel_tol=1e-4, abs_tol=1e-6)
    }  # fmt: skip


# -- any value as text: JSON on one line, and what the messages of a conversation say

Message = Mapping[str, Any]


def json_text(value: Any) -> str:
    """Strictly valid JSON on one line: NaN and infinities are the strings ``NaN``, ``Infinity``, ``-Infinity``.

    Python's ``float()`` reads all three back. Integers keep every digit, text stays as it is.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)
    except ValueError:
        return json.dumps(strict(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)


def strict(value: Any) -> Any:
    """The same value with non-finite numbers as strings, at any depth."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value


def as_text(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json_text(value)


def said(value: Any) -> str:
    """The text of a value: what the messages of a conversation say, line by line; else the text itself, or its JSON."""
    return "\n".join(map(spoken, value)) if is_conversation(value) else as_text(value)


def is_conversation(value: Any) -> bool:
    """Whether a value is a list of messages: maps, each with a role."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, Mapping) and isinstance(item.get("role"), str) for item in value)
    )


def spoken(message: Message) -> str:
    """A message as text: its content and its tool calls."""
    calls = message.get("tool_calls") or []
    texts = [_content(message.get("content")), *map(_tool_call, calls if isinstance(calls, list | tuple) else [calls])]
    return "\n".join(filter(None, texts))


def _content(content: Any) -> str:
    """The content as text; parts that are not text are shown by their type."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return " ".join(_part(part) for part in content)
    return json_text(content)


def _part(part: Any) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(part, Mapping) and isinstance(part.get("type"), str):
        return f"[{part['type']}]"
    return json_text(part)


def _tool_call(call: Any) -> str:
    """A call in either usual form: ``{name, arguments}``, or the same below ``function``."""
    inner = call.get("function", call) if isinstance(call, Mapping) else call
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        return json_text(call)
    arguments = inner.get("arguments", {})
    return f"→ {inner['name']}({arguments if isinstance(arguments, str) else json_text(arguments)})"
