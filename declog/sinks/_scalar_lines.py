"""Scalars as lines for a person: core first, then by the first part of their names, each with its trend."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from declog.errors.visible import visible
from declog.records import NONFINITE, SELF, Number, Scalar
from declog.sinks._shared import as_float
from declog.sinks._terminal_cells import cells, ending, padded

GAP = "   "
BARS = "▁▂▃▄▅▆▇█"
POINTS = 16  # of a sparkline, at most
ALWAYS = frozenset({"loss", "learning_rate", "lr", "grad_norm"})  # core, whatever a config tags
Piece = tuple[str, str]


@dataclass
class Course:
    """A scalar's values over the whole run, in a bounded number of parts of equally many log events.

    ``last`` is its last finite value. Each part is the sum and the count of its finite values.
    """

    last: float = math.nan
    _parts: tuple[tuple[float, int], ...] = ()
    _size: int = 1  # log events in a part
    _free: int = 0  # log events for which the last part has room

    def and_then(self, value: float) -> Course:
        """The course with one more value. If there are too many parts, neighbours merge in pairs."""
        parts, size, free = self._parts, self._size, self._free
        if not free and len(parts) == POINTS:
            parts = tuple((a + b, m + n) for (a, m), (b, n) in zip(parts[::2], parts[1::2], strict=True))
            size *= 2
        if not free:
            parts, free = (*parts, (0.0, 0)), size
        last = self.last
        if math.isfinite(value):
            total, count = parts[-1]
            parts, last = (*parts[:-1], (total + value, count + 1)), value
        return replace(self, last=last, _parts=parts, _size=size, _free=free - 1)

    def means(self) -> list[float]:
        """The mean of each part, the latest last; NaN for a part without a finite value."""
        return [total / count if count else math.nan for total, count in self._parts]


@dataclass
class Trends:
    """The course of each scalar by mode and name, and the config's facts of its metric.

    ``core`` has the ids of metrics to show first, ``good`` the better direction of metrics that have one, ``shipped``
    the ids of metrics that presets declare.
    """

    core: frozenset[str] = frozenset()
    good: Mapping[str, str] = field(default_factory=dict)
    shipped: frozenset[str] = frozenset()
    shown: bool = True  # a log file has values only
    bars: bool = True  # whether the stream can show sparklines and arrows
    _courses: dict[tuple[str, str], Course] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Mapping[str, Any], user_metrics: frozenset[str] = frozenset()) -> Trends:
        """The trends for the metrics of a resolved config, some of which are the user's own."""
        metrics, about = ((config.get(section) or {}).items() for section in ("metrics", "about"))
        core = frozenset(id for id, one in metrics if isinstance(one, Mapping) and "core" in _words(one.get("tags")))
        good = {id: one["good"] for id, one in about if one and one.get("good") in ("up", "down")}
        return cls(core, good, frozenset(id for id, _ in metrics) - user_metrics)

    def is_core(self, scalar: Scalar) -> bool:
        """Whether a scalar is always shown, before the others."""
        return scalar.metric.partition(".")[0] in self.core or scalar.name.rpartition("/")[2] in ALWAYS

    def turn(self, scalar: Scalar) -> int:
        """The turn in which a scalar gets room: 0 warnings and the user's metrics, 1 a preset's, 2 declog's costs."""
        if scalar.metric.startswith(SELF):
            return 2
        return int(scalar.metric.partition(".")[0] in self.shipped and NONFINITE not in scalar.name)

    def before(self, mode: str, name: str) -> Course | None:
        """The course of a scalar up to the last log event; None at its first log event."""
        return self._courses.get((mode, name))

    def add(self, mode: str, scalars: Sequence[Scalar]) -> None:
        """Add the scalars of a log event."""
        for scalar in scalars:
            course = self._courses.get((mode, scalar.name)) or Course()
            self._courses[mode, scalar.name] = course.and_then(as_float(scalar.value))

    def better(self, scalar: Scalar, change: float) -> str:
        """The style of a change."""
        good = self.good.get(scalar.metric.partition(".")[0])
        if good is None or not change or math.isnan(change):
            return "dim"
        return "green" if (change > 0) == (good == "up") else "red"


def _words(tags: Any) -> list[str]:
    return re.split(r"[,\s]+", tags) if isinstance(tags, str) else list(tags or ())


def scalar_lines(
    scalars: Sequence[Scalar], limit: int, width: int, trends: Trends | None = None, mode: str = "train"
) -> list[Piece]:
    """Scalars in aligned columns: all core ones, then others up to ``limit``, below headings with their shared prefix.

    Of the others, the user's own metrics get room before a preset's. The shown ones are in the order of the log event.
    declog's own counts and costs are left out if they are 0. If ``trends`` has earlier values, core scalars have their
    change and a sparkline, and others an arrow.
    """
    trends = trends or Trends()
    scalars = [scalar for scalar in scalars if scalar.value or not scalar.metric.startswith(SELF)]
    core = [scalar for scalar in scalars if trends.is_core(scalar)]
    rest = [scalar for scalar in scalars if not trends.is_core(scalar)]
    by_turn = sorted(range(len(rest)), key=lambda index: trends.turn(rest[index]))
    shown = [rest[index] for index in sorted(by_turn[: max(limit - len(core), 0)])]
    if trends.shown:
        pieces = _columns([(scalar.name, scalar) for scalar in core], width, "  ", trends, mode, full=True)
        pieces += _sections(shown, width, trends, mode)
    else:
        pieces = _sections([*core, *shown], width, trends, mode)
    if len(rest) > len(shown):
        pieces.append((f"  and {len(rest) - len(shown)} more\n", "dim"))
    if any(scalar.partial for scalar in (*core, *shown)):
        pieces.append(("  * some ranks are missing from this value\n", "yellow"))
    return pieces


def _sections(scalars: Sequence[Scalar], width: int, trends: Trends, mode: str) -> list[Piece]:
    """Scalars without a group, then each group below a heading: the first part of its names."""
    heads: dict[str, list[Scalar]] = {}
    for scalar in scalars:
        heads.setdefault(scalar.name.partition("/")[0], []).append(scalar)
    alone = [member for members in heads.values() if len(members) == 1 for member in members]
    pieces = _columns([(scalar.name, scalar) for scalar in alone], width, "  ", trends, mode)
    for head, members in heads.items():
        if len(members) > 1:
            pieces.append((f"  {visible(head)}\n", "bold"))
            entries = [(scalar.name.partition("/")[2] or head, scalar) for scalar in members]
            pieces += _columns(entries, width, "    ", trends, mode)
    return pieces


def _columns(
    entries: Sequence[tuple[str, Scalar]], width: int, indent: str, trends: Trends, mode: str, *, full: bool = False
) -> list[Piece]:
    """Entries side by side, as many as fit on a line. A long label loses its start; a value is never cut."""
    if not entries:
        return []
    ends = [list(_end(scalar, trends, mode, full=full)) for _, scalar in entries]
    wide_end = max(sum(len(text) for text, _ in end) for end in ends)
    values = [number(scalar.value) + "*" * scalar.partial for _, scalar in entries]
    wide_value = max(9, *map(len, values))
    room = width - len(indent) - 2 - wide_value - wide_end
    labels = [ending(visible(label), max(room, 8)) for label, _ in entries]
    wide_label = max(map(cells, labels))
    count = max(1, (width - len(indent) + len(GAP)) // (wide_label + 2 + wide_value + wide_end + len(GAP)))
    pieces: list[Piece] = []
    for index, ((_, scalar), label, value, end) in enumerate(zip(entries, labels, values, ends, strict=True)):
        last = index + 1 == len(entries) or (index + 1) % count == 0
        pieces.append(((GAP if index % count else indent) + padded(label, wide_label) + "  ", ""))
        pieces.append((value.rjust(wide_value), "" if math.isfinite(as_float(scalar.value)) else "bold red"))
        pieces += end
        pieces.append(("\n" if last else " " * (wide_end - sum(len(text) for text, _ in end)), ""))
    return pieces


def _end(scalar: Scalar, trends: Trends, mode: str, *, full: bool) -> Iterator[Piece]:
    """The text after a value: an arrow or, if ``full``, its change and its sparkline; empty at its first log event."""
    course, now = trends.before(mode, scalar.name), as_float(scalar.value)
    if not trends.shown or course is None:
        return
    change = now - course.last if math.isfinite(now) and math.isfinite(course.last) else math.nan
    style = trends.better(scalar, change)
    if not full:
        yield f" {'▲' if change > 0 else '▼' if change < 0 else ' '}" if trends.bars else "", style
        return
    yield "  " + ("" if math.isnan(change) else _short(change) if change else "=").rjust(7), style
    if trends.bars:
        yield "  " + sparkline(course.and_then(now).means()), "dim"


def _short(change: float) -> str:
    """A change in at most seven characters with its sign."""
    return re.sub(r"e([+-])0*", lambda exponent: "e" + exponent[1].strip("+"), f"{change:+.2g}")


def sparkline(values: Sequence[float]) -> str:
    """A bar for each value, from the least to the greatest; a gap for a value that is not finite."""
    finite = [value for value in values if math.isfinite(value)]
    least, most = (min(finite), max(finite)) if finite else (0.0, 0.0)
    level = most == least or not math.isfinite(most - least)

    def bar(value: float) -> str:
        if not math.isfinite(value):
            return " "
        return BARS[3] if level else BARS[round((value - least) / (most - least) * (len(BARS) - 1))]

    return "".join(map(bar, values))


def number(value: Number) -> str:
    """A number for a person: integers in full, floats with four significant digits, ``nan`` and ``inf`` as such."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**15 else f"{as_float(value):.4g}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"
