"""The console sink: one compact block per log event, for a person at a terminal or a log file.

    step 120 · train
      loss           0.01234   lr                1e-06
      rewards
        correct/mean  0.5123   format/mean         nan
      completions: 2 of 16 rows
        1 reward 1 · rank 1
          prompt      What is 2 + 2?
          completion
            assistant → add({"a": 2, "b": 2})
            tool      4
      ! warn kl_runaway: KL 0.71 left the trust region

Text is formatted here and handed to rich in one piece (its own tables cost the training thread tens of
milliseconds of the GIL). Colours only on a terminal. Control and format characters are made visible: what a model
writes must not move the reader's cursor, or turn his lines around.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from declog.messages.visible import visible
from declog.records import Alert, DType, Number, Records, RunInfo, Scalar, Table
from declog.sinks import ALERT, SCALAR, TABLE, BaseSink
from declog.sinks._conversations import Message, is_conversation, spoken
from declog.sinks._shared import as_float, json_text, require

PLAIN_WIDTH = 100
LABEL_WIDTH = 20
ROLE_WIDTH = 9
GAP = "   "
STYLES = {"info": "cyan", "warn": "yellow", "error": "bold red"}

Piece = tuple[str, str]


class ConsoleSink(BaseSink):
    """Prints to stdout. ``max_scalars``, ``max_rows`` and ``max_chars`` bound one block.

    ``width: null`` is the terminal's width, or 100 where there is no terminal.
    """

    kind = "console"
    package = "rich"
    shows_last = True
    accepts: ClassVar[frozenset[str]] = frozenset({SCALAR, TABLE, ALERT})

    def __init__(
        self, *, max_scalars: int = 24, max_rows: int = 4, max_chars: int = 400, width: int | None = None
    ) -> None:
        self._max_scalars, self._max_rows, self._max_chars = max_scalars, max_rows, max_chars
        self._width = width
        self._rich = require("rich.console", kind="console")
        self._text = require("rich.text", kind="console")
        self._console: Any = None

    def open(self, run: RunInfo) -> None:
        """Say which run this is."""
        self._console = self._rich.Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._print([(visible(f"run {run.run_id} · {run.name} · {run.output_dir}") + "\n", "bold")])

    def write(self, step: int, records: Records) -> None:
        """Print one block."""
        width = self._width or (self._console.width if self._console.is_terminal else PLAIN_WIDTH)
        pieces: list[Piece] = [(visible(f"step {step} · {records.mode}") + "\n", "bold")]
        pieces += scalar_lines(records.scalars, self._max_scalars, width)
        for table in records.tables:
            pieces += table_cards(table, self._max_rows, self._max_chars, width)
        pieces += [alert_line(alert) for alert in records.alerts]
        self._print(pieces)

    def close(self) -> None:
        """Nothing to finish: every block was written whole."""

    def _print(self, pieces: Sequence[Piece]) -> None:
        encoding = self._console.encoding
        shown = [(text.encode(encoding, "replace").decode(encoding), style) for text, style in pieces]
        self._console.print(self._text.Text.assemble(*shown), end="")


def scalar_lines(scalars: Sequence[Scalar], limit: int, width: int) -> list[Piece]:
    """Scalars in aligned columns, those with a common first part of their name under a heading of it."""
    shown = scalars[:limit]
    heads: dict[str, list[Scalar]] = {}
    for scalar in shown:
        heads.setdefault(scalar.name.partition("/")[0], []).append(scalar)
    alone = [member for members in heads.values() if len(members) == 1 for member in members]
    pieces = _columns([(scalar.name, scalar) for scalar in alone], width, "  ")
    for head, members in heads.items():
        if len(members) > 1:
            pieces.append((f"  {visible(head)}\n", "bold"))
            pieces += _columns([(scalar.name.partition("/")[2] or head, scalar) for scalar in members], width, "    ")
    if len(scalars) > len(shown):
        pieces.append((f"  and {len(scalars) - len(shown)} more\n", "dim"))
    if any(scalar.partial for scalar in shown):
        pieces.append(("  * some ranks are missing from this value\n", "yellow"))
    return pieces


def _columns(cells: Sequence[tuple[str, Scalar]], width: int, indent: str) -> list[Piece]:
    rows = [(visible(label), number(scalar.value) + "*" * scalar.partial, scalar.value) for label, scalar in cells]
    if not rows:
        return []
    wide_label = max(len(label) for label, _, _ in rows)
    wide_value = max(9, *(len(text) for _, text, _ in rows))
    count = max(1, (width - len(indent) + len(GAP)) // (wide_label + 2 + wide_value + len(GAP)))
    pieces: list[Piece] = []
    for start in range(0, len(rows), count):
        line = rows[start : start + count]
        for place, (label, text, value) in enumerate(line):
            pieces.append(((GAP if place else indent) + label.ljust(wide_label) + "  ", ""))
            pieces.append((text.rjust(wide_value), "" if math.isfinite(as_float(value)) else "bold red"))
        pieces.append(("\n", ""))
    return pieces


def number(value: Number) -> str:
    """A number for a person: integers in full, floats with four significant digits, ``nan`` and ``inf`` as such."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**15 else f"{as_float(value):.4g}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def table_cards(table: Table, max_rows: int, max_chars: int, width: int) -> Iterator[Piece]:
    """Up to ``max_rows`` rows: short values on the card's first line, texts and conversations wrapped below it."""
    count = min(table.rows, max_rows)
    if not count:
        return
    yield f"  {visible(table.name)}", "bold"
    yield f": {count} of {table.rows + table.cut} rows\n", ""
    texts = [column.name for column in table.columns if column.type in (DType.TEXT, DType.OBJECT)]
    label_width = min(LABEL_WIDTH, max((len(name) for name in texts), default=0))
    for row in range(count):
        short = [
            f"{visible(column.name)} {_short(table.data[column.name][row])}"
            for column in table.columns
            if column.name not in texts
        ]
        yield f"    {row + 1} ", "bold"
        yield " · ".join(short) + "\n", ""
        for name in texts:
            value = table.data[name][row]
            if is_conversation(value):
                yield f"      {visible(name)}\n", "dim"
                yield from _messages(value, max_chars, width)
                continue
            text = "none" if value is None else sample(value if isinstance(value, str) else json_text(value), max_chars)
            yield f"      {visible(name).ljust(label_width)}  ", "dim"
            yield _wrap(text, width, 8 + label_width) + "\n", ""


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


def _short(value: Any) -> str:
    return "none" if value is None else number(value)


def _wrap(text: str, width: int, indent: int) -> str:
    from rich.cells import cell_len

    # East Asian characters and emoji take two cells, and textwrap counts characters.
    room = max(20, width - indent) * len(text) // max(1, cell_len(text))
    return ("\n" + " " * indent).join(textwrap.wrap(text, max(10, room), break_on_hyphens=False) or [""])
