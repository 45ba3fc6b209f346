"""The records that sinks receive: plain, immutable values, already reduced, named and typed.

This file imports nothing from the rest of declog, so a sink can be written against this file alone.
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

SELF = "declog/"  # the prefix of values that declog logs about itself
NONFINITE = "nonfinite/"  # the prefix of a count of a metric's NaN and infinite values, without skipped missing values
RANKS = SELF + "ranks"  # the number of ranks that delivered rows; logged under every profile if some are missing
THEIRS = "trainer/"  # the prefix of a trainer's number that differs from declog's value of that name


def names_of(template: str) -> str:
    """A regular expression for the names that a template can give: `rewards/{member}` gives `rewards/correct`.

    Each field of the template is a group.
    """
    return "(.+)".join(map(re.escape, re.split(r"\{\w+\}", template)))


class DType(StrEnum):
    """The type of a signal, of an expression or of a table's column, with its word in the YAML.

    ``OBJECT`` is anything that JSON can hold.
    """

    FLOAT = "float"
    INT = "int"
    BOOL = "bool"
    TEXT = "text"
    OBJECT = "object"

    def holds(self, other: DType) -> bool:
        """Whether a column of this type may hold values of another type."""
        return other is self or self is DType.OBJECT or other in _HOLDS.get(self, ())


_HOLDS = {DType.INT: (DType.BOOL,), DType.FLOAT: (DType.INT, DType.BOOL), DType.TEXT: (DType.OBJECT,)}


class Scalar(NamedTuple):
    """One reduced value. ``metric`` is the id in the config, ``name`` is the name in trackers.

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
    """An image in the value of an ``object`` column. Its map is ``{"type": "image", "width": 640, "height": 480}``.

    Sinks that write JSON write this map. A sink whose tracker shows images calls ``encoded()``. An image is never
    modified, and a copy of an image is the image itself.
    """

    def __init__(self, what: Mapping[str, Any], encode: Callable[[], bytes | None] | None = None) -> None:
        super().__init__({"type": "image", **what})
        self._encode = encode

    def encoded(self) -> bytes | None:
        """The image as a small PNG or JPEG file; None if its content is not held or cannot be read."""
        return None if self._encode is None else self._encode()

    def with_keys(self, keys: Mapping[str, Any]) -> Image:
        """The same image with further keys in its map."""
        return Image({**self, **keys}, self._encode)

    def __copy__(self) -> Image:
        return self

    def __deepcopy__(self, memo: Any) -> Image:
        return self

    def __reduce__(self) -> Any:
        return Image, (dict(self),)  # as data


def images_in(value: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Image]]:
    """The images in a value of lists and maps, each with its path of keys and indices."""
    if isinstance(value, Image):
        yield above, value
    elif isinstance(value, list | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(item, list | dict):
                yield from images_in(item, (*above, key))


@dataclass(frozen=True)
class Column:
    """The contract of a table's column.

    ``role`` is the speaker, if the column's text is a message of the row's conversation. ``tokens`` is not None if the
    column's objects are tokens, such as ``{"tokens": ["Hel", "lo"], "logprob": [-0.1, None]}``, lists of one length. It
    has the names of all lists but the first, here ``("logprob",)``.
    """

    name: str
    type: DType
    nullable: bool = True
    role: str | None = None
    tokens: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", DType(self.type))  # the test of a sink may give the plain word


@dataclass(frozen=True)
class Places:
    """The origin of a table's rows; each list has an entry per row.

    ``step`` is the step of the row; a log event may have several steps. ``row`` is the number of the row among the rows
    of its step, of all batches and ranks in their order. ``group`` is the number of the row's group in the step; None
    without groups. Both count from 0. In a table that each rank writes itself, they count the rows and groups of that
    rank. ``why`` names the filters that took the row, as `unique, worst:bottom`; None without a filter. ``order`` is
    the row's position in the last choice by `top` and `bottom`, the most extreme first; None without such a choice.
    ``of_window``: a filter chose from all steps of a window.
    """

    step: Sequence[int]
    row: Sequence[int]
    group: Sequence[int] | None = None
    why: Sequence[str] | None = None
    order: Sequence[int] | None = None
    of_window: bool = False

    def until(self, rows: int) -> Places:
        """The places of the first ``rows`` rows."""
        group, why, order = self.group, self.why, self.order
        return replace(
            self, step=self.step[:rows], row=self.row[:rows],
            group=group and group[:rows], why=why and why[:rows], order=order and order[:rows],
        )  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Rows picked at one log event, by column. Every list of ``data`` has ``rows`` entries; None is null.

    ``table`` is the id in the config, ``name`` is the name in trackers. Values are Python ints, floats, bools and
    strings; an ``object`` column also holds dicts and lists of these. ``as_trace``: each row is a conversation, with
    the messages in its ``object`` columns and the texts of columns with a ``role``. A sink that cannot show
    conversations shows a table. ``cut`` is the number of picked rows that `max_bytes` left out. ``places`` has the
    origin of each row, and why it was picked; a table that is made in code has none.
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
    """All records of one log event for one sink."""

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
        """The config keys of the records: ``metrics.kl``, ``tables.worst``, ``alerts.kl``."""
        yield from (f"metrics.{scalar.metric}" for scalar in self.scalars)
        yield from (f"metrics.{histogram.metric}" for histogram in self.histograms)
        yield from (f"tables.{table.table}" for table in self.tables)
        yield from (f"alerts.{alert.name}" for alert in self.alerts)


@dataclass(frozen=True)
class ResumePoint:
    """The point at which a resumed run goes on: after ``step``, inside the windows of ``open``.

    ``open`` has config keys by mode, such as ``metrics.kl`` and ``tables.worst``. Their records at the step itself are
    parts of windows, which the earlier run logged when it closed. The resumed run logs the whole windows.
    """

    step: int
    open: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def keeps(self, step: int, mode: str, keys: Iterable[str]) -> bool:
        """Whether a log event at a step stays; ``keys`` has at least some of the config keys of its records."""
        return step < self.step or (step == self.step and self.open.get(mode, frozenset()).isdisjoint(keys))


@dataclass(frozen=True)
class RunInfo:
    """The facts of a run that a sink gets when it is opened.

    ``project`` is the project in trackers. ``name`` is the name of the run, or else of the project. ``output_dir``
    exists when a sink is opened. ``config`` has the trainer's configuration and `run.config` of the YAML, ``declog``
    the resolved declog config. Both are plain data, and are sent once. ``plan`` is the plan as a text. ``sink`` is the
    sink's id in the config; its runner fills it in. ``user_metrics`` has the ids of the metrics that the user's own
    files and overrides declare, without those of a package's presets.
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
    """The numbers that a trainer reports itself, by name. Rank 0's sinks get them beside the values of a log event.

    ``numbers`` and ``compared`` have names without the mode's prefix, ``exact`` has complete names. ``compared`` are
    compared with declog's values of the same names, and shown as ``trainer/NAME`` where they differ. ``alone``: no rank
    has rows in this log event, which is marked as partial.
    """

    numbers: Mapping[str, float] = field(default_factory=dict)
    compared: Mapping[str, float] = field(default_factory=dict)
    exact: Mapping[str, float] = field(default_factory=dict)
    alone: bool = False


def other_numbers(theirs: Mapping[str, float], values: Mapping[str, float]) -> dict[str, float]:
    """The numbers that differ from the value of the same name; NaN, and names without a value, are left out."""
    return {
        name: number for name, number in theirs.items()
        if name in values and number == number and not math.isclose(number, values[name], rel_tol=1e-4, abs_tol=1e-6)
    }  # fmt: skip


# -- any value as text: JSON on one line, and the messages of a conversation

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
    """A value as text: the messages of a conversation, one below the other; a text as it is; anything else as JSON."""
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
