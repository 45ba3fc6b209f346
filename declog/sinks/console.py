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

Text is formatted here and handed to rich in one piece (its own tables cost the training thread tens of
milliseconds of the GIL). Colours only on a terminal, where the bars of tqdm stay below, and where no bar is a line
says between two log events where training is. Control and format characters
are made visible: what a model writes must not move the reader's cursor, or turn his lines around. With ``format: json``
it is an object for each log event and for each sample, one on a line.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal

from declog.errors.visible import visible, visible_json
from declog.records import Alert, DType, Records, RunInfo, Table
from declog.sinks import ALERT, SCALAR, TABLE, BaseSink
from declog.sinks._conversations import Message, is_conversation, spoken
from declog.sinks._live_line import LiveLine
from declog.sinks._scalar_lines import BARS, Piece, Trends, number, scalar_lines
from declog.sinks._shared import end_of, json_text, origins, require

PLAIN_WIDTH = 100
LABEL_WIDTH = 20
PACES = 16  # how many times back the live line's speed reaches
ROLE_WIDTH = 9
STYLES = {"info": "cyan", "warn": "yellow", "error": "bold red"}
ENDS = {"best": ("▲ ", "bold green"), "worst": ("▼ ", "bold red"), "": ("", "bold")}


class ConsoleSink(BaseSink):
    """Prints to stdout. ``max_scalars``, ``max_rows`` and ``max_chars`` bound one block; core metrics are always in it.

    ``width: null`` is the terminal's width, or 100 where there is no terminal. ``format: json`` prints all of it, one
    object on a line. ``steps`` is how many steps the run will have, where a block should say when it ends.
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
        self._last: tuple[int, float] | None = None  # the step and time of the last log event of training
        self._rich = require("rich.console", kind="console")
        self._text = require("rich.text", kind="console")
        self._console: Any = None
        self._line = LiveLine()
        self._paces: deque[tuple[float, int]] = deque(maxlen=PACES)
        self.live = False

    def open(self, run: RunInfo) -> None:
        """Say which run this is."""
        self._console = self._rich.Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._trends = Trends.of(run.config)
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
        self._print(pieces)

    def progress(self, step: int, steps: int | None) -> None:
        """Show where training is, until something is printed."""
        self._steps = self._steps or steps
        if self._paces and step < self._paces[-1][1]:  # it goes on from an earlier one
            self._paces.clear()
        self._paces.append((time.monotonic(), step))
        (since, first), (now, _) = self._paces[0], self._paces[-1]
        at = f"step {step}" + ("" if self._steps is None else f" of {self._steps}")
        self._line.draw(" · ".join((at, *self._pace(step - first, now - since, step))))

    def close(self) -> None:
        """Take the line away; every block was written whole."""
        self.live = False
        self._line.end()

    def _print(self, pieces: Sequence[Piece]) -> None:
        encoding = self._console.encoding
        shown = [(text.encode(encoding, "replace").decode(encoding), style) for text, style in pieces]
        with _beside_bars(terminal=self._console.is_terminal):
            if not self._line.free:  # somebody's row has no end yet
                self._console.file.write("\n")
            self._console.print(self._text.Text.assemble(*shown), end="")

    def _lines(self, objects: Sequence[dict[str, Any]]) -> None:
        file = self._console.file
        text = "".join(visible_json(json_text(each)) + "\n" for each in objects)
        with _beside_bars(terminal=self._console.is_terminal):
            file.write(text.encode(self._console.encoding, "backslashreplace").decode(self._console.encoding))
            file.flush()

    def _speed(self, step: int, records: Records) -> Iterator[str]:
        """Steps per second since the last log event of training, and how long the others take."""
        if records.mode != "train" or not records.time or not self._console.is_terminal:
            return
        before, self._last = self._last, (step, records.time)
        if before is not None:
            yield from self._pace(step - before[0], records.time - before[1], step)

    def _pace(self, steps: int, seconds: float, step: int) -> Iterator[str]:
        """The speed of some steps, and how long those after ``step`` take."""
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
    """Where tqdm draws bars on this terminal, they are taken away meanwhile, and drawn again below."""
    module = sys.modules.get("tqdm")
    if not terminal or module is None or not len(module.tqdm._instances):
        return contextlib.nullcontext()
    guarded: AbstractContextManager[Any] = module.tqdm.external_write_mode(file=sys.stdout)
    return guarded


def _objects(step: int, records: Records) -> list[dict[str, Any]]:
    """A log event as one object, then each of its samples as one."""
    stamp = {"step": step, "mode": records.mode}
    event: dict[str, Any] = {**stamp, "time": records.time}
    if records.scalars:
        event["scalars"] = {scalar.name: scalar.value for scalar in records.scalars}
    if partial := [scalar.name for scalar in records.scalars if scalar.partial]:
        event["partial"] = partial
    if records.alerts:
        event["alerts"] = [{"name": each.name, "level": each.level, "text": each.text} for each in records.alerts]
    objects = [event] if len(event) > len(stamp) + 1 else []
    for table in records.tables:
        columns = {**origins(table, step), **table.data}
        for values in zip(*columns.values(), strict=True):
            objects.append({**stamp, "table": table.table, **dict(zip(columns, values, strict=True))})
    return objects


def table_cards(table: Table, max_rows: int, max_chars: int, width: int, step: int | None = None) -> Iterator[Piece]:
    """Up to ``max_rows`` rows, of each kind that a filter picked: short values on the card's first line, texts and
    conversations wrapped below it.

    That a row is of the ``step`` of its block is not said again.
    """
    why = None if table.places is None else table.places.why
    rows = _of_each_kind(range(table.rows) if why is None else why, max_rows)
    if not rows:
        return
    yield f"  {visible(table.name)}", "bold"
    yield f": {len(rows)} of {table.rows + table.cut} rows\n", ""
    texts = [
        column.name for column in table.columns
        if column.type in (DType.TEXT, DType.OBJECT) and column.tokens is None
    ]  # fmt: skip
    label_width = min(LABEL_WIDTH, max((len(name) for name in texts), default=0))
    for place, row in enumerate(rows, 1):
        short = [
            f"{visible(column.name)} {_short(table.data[column.name][row])}"
            for column in table.columns
            if column.name not in texts
            and column.tokens is None
            and not (column.name == "step" and table.data["step"][row] == step)
        ]
        mark, style = ENDS["" if why is None else end_of(why[row])]
        yield f"    {place} {mark}", style
        yield _side_by_side(short, width, 6) + "\n", "" if style == "bold" else style.removeprefix("bold ")
        for name in texts:
            value = table.data[name][row]
            if is_conversation(value):
                yield f"      {visible(name)}\n", "dim"
                yield from _messages(value, max_chars, width)
                continue
            text = "none" if value is None else sample(value if isinstance(value, str) else json_text(value), max_chars)
            yield f"      {visible(name).ljust(label_width)}  ", "dim"
            yield _wrap(text, width, 8 + label_width) + "\n", ""


def _of_each_kind(kinds: Sequence[object], most: int) -> list[int]:
    """The places of up to so many rows, in their order: the first of each kind, then the second of each, and so on."""
    seen: Counter[object] = Counter()
    turns = []
    for place, kind in enumerate(kinds):
        turns.append((seen[kind], place))
        seen[kind] += 1
    return sorted(place for _, place in sorted(turns)[:most])


def _messages(messages: Sequence[Message], max_chars: int, width: int) -> Iterator[Piece]:
    """One line per message, wrapped; ``max_chars`` of all of them together."""
    for place, message in enumerate(messages):
        if max_chars <= 0:
            yield f"        and {len(messages) - place} more messages\n", "dim"
            return
        text = sample(spoken(message), max_chars)
        max_chars -= len(text)
        yield f"        {visible(message['role']).ljust(ROLE_WIDTH)} ", "dim"
        yield _wrap(text, width, 9 + ROLE_WIDTH) + "\n", ""


def sample(text: str, max_chars: int) -> str:
    """A text on one line, cut with an ellipsis; line ends are shown as ⏎."""
    cut = text[: max_chars + 1]
    line = visible(cut.strip().replace("\r\n", "\n").replace("\n", " ⏎ ").replace("\t", " "))
    return line if len(cut) <= max_chars else line[:max_chars].rstrip() + "…"


def alert_line(alert: Alert) -> Piece:
    """One alert, in the colour of its level."""
    text = visible(alert.text.replace("\n", " "))
    return f"  ! {alert.level} {visible(alert.name)}: {text}\n", STYLES[alert.level]


def _side_by_side(parts: Sequence[str], width: int, indent: int) -> str:
    """Parts with dots between them, in lines that break between two parts only."""
    lines, room = [""], width - indent - 2  # a mark and a number stand before the first
    for part in parts:
        if lines[-1] and len(lines[-1]) + 3 + len(part) > room:
            lines.append("")
        lines[-1] += f" · {part}" if lines[-1] else part
    return f"\n{' ' * indent}".join(lines)


def _short(value: Any) -> str:
    return "none" if value is None else number(value)


def _wrap(text: str, width: int, indent: int) -> str:
    from rich.cells import cell_len

    # East Asian characters and emoji take two cells, and textwrap counts characters.
    room = max(20, width - indent) * len(text) // max(1, cell_len(text))
    return ("\n" + " " * indent).join(textwrap.wrap(text, max(10, room), break_on_hyphens=False) or [""])
