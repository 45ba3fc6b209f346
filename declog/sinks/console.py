"""The console sink: one compact block per log event, for a person at a terminal or a log file.

    step 120 · train · 1.8 steps/s
      loss           0.01234   -0.002  ▇▇▅▄▃▂▂▁
      lr               1e-06        =  ▄▄▄▄▄▄▄▄
      rewards
        correct/mean  0.5123 ▲   format/mean         nan
      completions: 2 of 16 rows
        1 ▲ reward 1 · rank 1
          prompt      What is 2 + 2?
          completion
            assistant → add({"a": 2, "b": 2})
            tool      4
      ! warn kl_runaway: KL 0.71 left the trust region

Of a table over a window the console shows the rows of the newest step, unless a filter chose rows from the whole
window. The best and the worst rows come first. Of long texts it shows both ends, since the answer is at the end. When
the run ends, it lists the alerts again, with their counts.

This file formats text and gives it to rich in one piece: rich's tables hold the GIL for tens of milliseconds, which
would delay the training thread. Colours appear on a terminal only. There, tqdm's bars stay below; without a bar, a line
shows the progress between log events. Control and format characters become visible, so that a model's text cannot move
the cursor or reverse a line. ``format: json`` prints one JSON object per log event and per sample, each on its line.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from declog.errors import SinkError
from declog.errors.visible import visible, visible_json
from declog.records import Alert, DType, Message, Records, RunInfo, Table, as_text, is_conversation, json_text, spoken
from declog.sinks import ALERT, SCALAR, TABLE, BaseSink
from declog.sinks._live_line import LiveLine
from declog.sinks._rows import end_of, scalars_by_name, table_rows
from declog.sinks._scalar_lines import BARS, Piece, Trends, number, scalar_lines
from declog.sinks._shared import require
from declog.sinks._terminal_cells import cells, padded, wrapped

PLAIN_WIDTH = 100
LABEL_WIDTH = 20
PACES = 16  # the number of steps over which the live line computes the speed
ROLE_WIDTH = 9
INDENT = " " * 6  # of the texts on a card
STYLES = {"info": "cyan", "warn": "yellow", "error": "bold red"}
ENDS = {"best": ("▲ ", "bold green"), "worst": ("▼ ", "bold red"), "": ("", "bold")}


@dataclass
class FiredAlert:
    """An alert over the whole run: its latest firing, its first and last step, and the number of firings."""

    alert: Alert
    first: int
    last: int
    count: int = 1


class ConsoleSink(BaseSink):
    """Prints to stdout. ``max_scalars``, ``max_rows`` and ``max_chars`` bound one block; core metrics always appear.

    ``width: null`` is the terminal's width, or 100 without a terminal. ``format: json`` prints everything, one
    object on a line. ``steps`` is the number of steps of the run; a block then shows the remaining time.
    """

    kind = "console"
    package = "rich"
    shows_last = True
    accepts: ClassVar[frozenset[str]] = frozenset({SCALAR, TABLE, ALERT})

    def __init__(
        self,
        *,
        max_scalars: int = 24,
        max_rows: int = 4,
        max_chars: int = 400,
        width: int | None = None,
        format: Literal["text", "json"] = "text",
        steps: int | None = None,
    ) -> None:
        self._max_scalars, self._max_rows, self._max_chars = max_scalars, max_rows, max_chars
        self._width = width
        self._json = format == "json"
        self._steps = steps
        self._trends = Trends()
        self._fired: dict[tuple[str, str], FiredAlert] = {}  # by mode and name
        self._last: tuple[int, float] | None = None  # the step and time of the last log event of training
        self._rich = require("rich.console", kind="console")
        self._text = require("rich.text", kind="console")
        self._console: Any = None
        self._line = LiveLine()
        self._paces: deque[tuple[float, int]] = deque(maxlen=PACES)
        self.live = False

    def open(self, run: RunInfo) -> None:
        """Print the name and folder of the run."""
        self._console = self._rich.Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._trends = Trends.of(run.declog, run.user_metrics)
        self._fired = {}
        self._trends.bars = _can_show(BARS, self._console.encoding)
        self._trends.shown = self._console.is_terminal
        if self._console.is_terminal and not self._console.is_dumb_terminal and not self._json:
            self._line.begin()
            self.live = self._line.on
        if self._json:
            self._lines([{"run_id": run.run_id, "name": run.name, "output_dir": str(run.output_dir)}])
            return
        self._print([(visible(f"run {run.run_id} · {run.name} · {run.output_dir}") + "\n", "bold")])

    def write(self, step: int, records: Records) -> None:
        """Print one block."""
        if self._json:
            self._lines(_objects(step, records))
            return
        width = self._width or (self._console.width if self._console.is_terminal else PLAIN_WIDTH)
        title = " · ".join((f"step {step}", records.mode, *self._speed(step, records)))
        pieces: list[Piece] = [(visible(title) + "\n", "bold")]
        pieces += scalar_lines(records.scalars, self._max_scalars, width, self._trends, records.mode)
        self._trends.add(records.mode, records.scalars)
        for table in records.tables:
            pieces += table_cards(table, self._max_rows, self._max_chars, width, step)
        pieces += [alert_line(alert) for alert in records.alerts]
        for alert in records.alerts:
            before = self._fired.get((records.mode, alert.name), FiredAlert(alert, step, step, 0))
            self._fired[records.mode, alert.name] = FiredAlert(alert, before.first, step, before.count + 1)
        self._print(pieces)

    def progress(self, step: int, steps: int | None) -> None:
        """Show the progress of training, until the next print."""
        self._steps = self._steps or steps
        if self._paces and step < self._paces[-1][1]:  # training went back to an earlier step
            self._paces.clear()
        self._paces.append((time.monotonic(), step))
        (since, first), (now, _) = self._paces[0], self._paces[-1]
        at = f"step {step}" + ("" if self._steps is None else f" of {self._steps}")
        self._line.draw(" · ".join((at, *self._pace(step - first, now - since, step))))

    def close(self) -> None:
        """List the alerts that fired, and erase the line."""
        self.live = False
        fired, self._fired = self._fired, {}
        try:
            if fired:
                by_step = sorted(fired.items(), key=lambda item: item[1].first)
                self._print([("alerts of the run\n", "bold"), *(fired_line(mode, one) for (mode, _), one in by_step)])
        finally:
            self._line.end()

    def _print(self, pieces: Sequence[Piece]) -> None:
        encoding = self._console.encoding
        shown = [(text.encode(encoding, "replace").decode(encoding), style) for text, style in pieces]
        with _beside_bars(terminal=self._console.is_terminal), _for_a_reader():
            if not self._line.free:  # another print has left its row unfinished
                self._console.file.write("\n")
            self._console.print(self._text.Text.assemble(*shown), end="")

    def _lines(self, objects: Sequence[dict[str, Any]]) -> None:
        file = self._console.file
        text = "".join(visible_json(json_text(line)) + "\n" for line in objects)
        with _beside_bars(terminal=self._console.is_terminal), _for_a_reader():
            file.write(text.encode(self._console.encoding, "backslashreplace").decode(self._console.encoding))
            file.flush()

    def _speed(self, step: int, records: Records) -> Iterator[str]:
        """Steps per second since the last log event of training, and the remaining time."""
        if records.mode != "train" or not records.time or not self._console.is_terminal:
            return
        before, self._last = self._last, (step, records.time)
        if before is not None:
            yield from self._pace(step - before[0], records.time - before[1], step)

    def _pace(self, steps: int, seconds: float, step: int) -> Iterator[str]:
        """The speed of some steps, and the time for the steps after ``step``."""
        if steps <= 0 or seconds <= 0:
            return
        speed = steps / seconds
        yield f"{speed:.3g} steps/s" if speed >= 0.1 else f"{1 / speed:,.3g} s/step"
        if self._steps is not None and self._steps > step + 1:
            yield f"{_duration((self._steps - step - 1) / speed)} left"


def _can_show(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _duration(seconds: float) -> str:
    """``2 h 05 min``, ``5 min`` or ``40 s``."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60:,} h {minutes % 60:02} min"
    return f"{minutes} min" if seconds >= 90 else f"{seconds:.0f} s"


def _beside_bars(*, terminal: bool) -> AbstractContextManager[Any]:
    """A block for printing: it erases tqdm's bars on this terminal, and draws them again below."""
    module = sys.modules.get("tqdm")
    if not terminal or module is None or not len(module.tqdm._instances):
        return contextlib.nullcontext()
    guarded: AbstractContextManager[Any] = module.tqdm.external_write_mode(file=sys.stdout)
    return guarded


@contextlib.contextmanager
def _for_a_reader() -> Iterator[None]:
    """A block for printing. Raises ``SinkError`` if the reader has closed the pipe: rich would end the process."""
    try:
        yield
    except (BrokenPipeError, SystemExit):
        raise SinkError.of("DL602.console") from None


def _objects(step: int, records: Records) -> list[dict[str, Any]]:
    """A log event as one object, then an object for each of its samples."""
    stamp = {"step": step, "mode": records.mode}
    event = scalars_by_name(records)
    if records.alerts:
        event["alerts"] = [vars(alert) for alert in records.alerts]
    objects = [{**stamp, "time": records.time, **event}] if event else []
    for table in records.tables:
        objects += [{**stamp, "table": table.table, **row} for row in table_rows(table, step)]
    return objects


def table_cards(table: Table, max_rows: int, max_chars: int, width: int, step: int | None = None) -> Iterator[Piece]:
    """Up to ``max_rows`` rows as cards, of each kind that a filter picked.

    Short values are on a card's first line, texts and conversations wrapped below it. Each card has its step, unless
    all rows are of the ``step`` of the block. A column without any value is left out.
    """
    steps = None if table.places is None else table.places.step
    rows = _in_order(table)
    rows = [rows[index] for index in _of_each_kind([table.why(row) for row in rows], max_rows)]
    columns = [column for column in table.columns if any(value is not None for value in table.data[column.name])]
    if not rows or not columns:
        return
    stamped = steps is not None and set(steps) != {step}
    yield f"  {visible(table.name)}", "bold"
    yield f": {len(rows)} of {table.rows + table.cut} rows\n", ""
    texts = [
        column.name for column in columns
        if column.type in (DType.TEXT, DType.OBJECT) and column.tokens is None
    ]  # fmt: skip
    label_width = min(LABEL_WIDTH, max((cells(visible(name)) for name in texts), default=0))
    for card, row in enumerate(rows, 1):
        of_step = step if steps is None else steps[row]
        short = [f"step {of_step}"] if stamped else []
        short += [
            f"{visible(column.name)} {_short(table.data[column.name][row])}"
            for column in columns
            if column.name not in texts
            and column.tokens is None
            and not (column.name == "step" and table.data["step"][row] == of_step)
        ]
        mark, style = ENDS[end_of(table.why(row))]
        yield f"    {card} {mark}", style
        yield _side_by_side(short, width) + "\n", "" if style == "bold" else style.removeprefix("bold ")
        for name in texts:
            value = table.data[name][row]
            if is_conversation(value):
                yield f"{INDENT}{visible(name)}\n", "dim"
                yield from _messages(value, max_chars, width)
                continue
            text = "none" if value is None else sample(as_text(value), max_chars)
            yield f"{INDENT}{padded(visible(name), label_width)}  ", "dim"
            yield _wrap(text, width, 8 + label_width) + "\n", ""


def _in_order(table: Table) -> Sequence[int]:
    """The rows in the order in which a filter chose them; only the last step's, unless it chose from all steps."""
    rows, places = range(table.rows), table.places
    if places is None or not rows:
        return rows
    newest = [row for row in rows if places.of_window or places.step[row] == max(places.step)]
    return newest if places.order is None else sorted(newest, key=places.order.__getitem__)


def _of_each_kind(kinds: Sequence[object], most: int) -> list[int]:
    """The indices of ``most`` rows, in their order: the first of each kind, then the second of each, and so on."""
    seen: Counter[object] = Counter()
    turns = []
    for index, kind in enumerate(kinds):
        turns.append((seen[kind], index))
        seen[kind] += 1
    return sorted(index for _, index in sorted(turns)[:most])


def _messages(messages: Sequence[Message], max_chars: int, width: int) -> Iterator[Piece]:
    """The messages of a conversation, each wrapped beside its role.

    A conversation beyond ``max_chars`` shows its first message after the system prompt, and its last ones.
    """
    texts = [spoken(message) for message in messages]
    shown = {index: sample(text, max_chars) for index, text in enumerate(texts)}
    if sum(max(len(text), 1) for text in texts) > max_chars:
        first = next((index for index, message in enumerate(messages) if message["role"] != "system"), 0)
        shown = {first: sample(texts[first], max_chars // 2)}  # the question
        room = max_chars - len(shown[first])
        for index in range(len(texts) - 1, first, -1):
            if index + 1 < len(texts) and len(texts[index]) > room:
                break
            shown[index] = sample(texts[index], room)
            room -= max(len(texts[index]), 1)
    after = 0
    for index in [*sorted(shown), len(texts)]:
        if index > after:
            yield f"        … {index - after} more message{'s' * (index > after + 1)} …\n", "dim"
        after = index + 1
        if index in shown:
            yield f"        {padded(visible(messages[index]['role']), ROLE_WIDTH)} ", "dim"
            yield _wrap(shown[index], width, 9 + ROLE_WIDTH) + "\n", ""


def sample(text: str, max_chars: int) -> str:
    """A text on one line, with line ends as ⏎; a long text is cut to its head and its tail."""
    text = text.strip()
    tail = max_chars // 2
    mark = f" … {len(text) - max_chars:,} characters … "
    if len(text) <= max_chars + len(mark):  # cutting would not make the text shorter
        return _one_line(text)
    return _one_line(text[: max_chars - tail]).rstrip() + mark + _one_line(text[len(text) - tail :]).lstrip()


def _one_line(text: str) -> str:
    return visible(text.replace("\r\n", "\n").replace("\n", " ⏎ ").replace("\t", " "))


def alert_line(alert: Alert) -> Piece:
    """One alert, in the colour of its level."""
    text = visible(alert.text.replace("\n", " "))
    return f"  ! {alert.level} {visible(alert.name)}: {text}\n", STYLES[alert.level]


def fired_line(mode: str, fired: FiredAlert) -> Piece:
    """The count, steps and last text of an alert, and its mode if that is not training."""
    often = f"{fired.count} times, steps {fired.first} to {fired.last}" if fired.count > 1 else f"step {fired.first}"
    of_mode = "" if mode == "train" else f", {mode}"
    text = visible(f"{often}{of_mode}: {fired.alert.text}".replace("\n", " "))
    return f"  ! {fired.alert.level} {visible(fired.alert.name)}, {text}\n", STYLES[fired.alert.level]


def _side_by_side(parts: Sequence[str], width: int) -> str:
    """Parts with dots between them, on indented lines that break only between parts."""
    lines, room = [""], width - len(INDENT) - 2  # the first line has a mark and a number in front
    for part in parts:
        if lines[-1] and cells(lines[-1]) + 3 + cells(part) > room:
            lines.append("")
        lines[-1] += f" · {part}" if lines[-1] else part
    return f"\n{INDENT}".join(lines)


def _short(value: Any) -> str:
    return "none" if value is None else number(value)


def _wrap(text: str, width: int, indent: int) -> str:
    return ("\n" + " " * indent).join(wrapped(text, max(20, width - indent)))
