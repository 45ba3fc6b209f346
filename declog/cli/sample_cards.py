"""Prints samples as cards: a line of numbers, then complete texts, with tokens in colours. Imports rich.

Without a terminal the cards are plain text, without wrapped lines.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from declog.cli.output import BOLD, DIM, aligned, coloured, paint, width
from declog.errors.visible import visible, visible_lines
from declog.records import as_text, is_conversation, spoken
from declog.runs.prompts import PROMPTS, RANK, STAMPS, is_long
from declog.sinks._scalar_lines import number
from declog.sinks._terminal_cells import beginning

ENDS = {"best": ("▲", "bold green"), "worst": ("▼", "bold red"), "": ("●", "bold")}
POSITION = ("step", RANK, "group", "row")  # the columns that identify a row
PIECES = "tokens"
STRONG = (178, 24, 43), (33, 102, 172)  # red for unlikely tokens and values above 0, blue for values below 0
Piece = tuple[str, str]


def print_samples(
    head: str, rows: Sequence[Mapping[str, Any]], score: str | None, *, colour: str | None, ends: Sequence[str]
) -> None:
    """Print a heading and a card for each row; ``ends`` has `best`, `worst` or nothing for each row."""
    from rich.console import Console
    from rich.text import Text

    shown = coloured(sys.stdout)
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=not shown,
                      no_color=not shown, force_terminal=shown)  # fmt: skip
    console.print(Text(visible(head), style="bold"))
    shades = console.color_system in ("256", "truecolor")
    stamped = len({row.get("step") for row in rows}) > 1
    for row, end in zip(rows, ends, strict=True):
        console.print()
        for indent, pieces in _card(row, end, score, colour, shades=shades, stamped=stamped):
            line = Text.assemble(*pieces)
            if not shown:
                print("\n".join(" " * indent + part if part else "" for part in line.plain.split("\n")))
                continue
            for part in line.wrap(console, max(console.width - indent, 20)):
                console.print(Text(" " * indent).append_text(part))


def print_prompts(head: str, prompts: Sequence[Mapping[str, Any]]) -> None:
    """Print a heading and a line for each prompt: its numbers, then its text, cut at the width of a terminal."""
    names = [name for name in PROMPTS if name != "prompt"]
    rows = [[*(name.replace("_", " ") for name in names), "prompt"]]
    rows += [
        [*(_prompt_cell(name, one[name]) for name in names), visible(" ".join(one["prompt"].split()))]
        for one in prompts
    ]
    heading, *lines = aligned(rows, ">" * len(names) + "<")
    room = max(width(sys.stdout), len(heading) + 14)
    print(f"{paint(visible(head), BOLD)}\n\n{paint(heading, DIM)}")
    for line in lines:
        print(beginning(line, room) if sys.stdout.isatty() else line)


def _prompt_cell(name: str, value: Any) -> str:
    if value is None:
        return "never" if name == "first_solved" else "-"
    if name == "solved":
        return f"{100 * value:.0f} %"
    return f"{value:+.3g}" if name == "trend" else number(value)


def _card(
    row: Mapping[str, Any], end: str, key: str | None, colour: str | None, *, shades: bool, stamped: bool
) -> Iterator[tuple[int, list[Piece]]]:
    """The lines of a row: each an indent, and pieces of text with their styles.

    ``shades``: the terminal has more than 16 colours; ``stamped``: the card shows the row's step.
    """
    mark, style = ENDS[end]
    position = POSITION if stamped else POSITION[1:]
    where = [f"{name.removeprefix('declog_')} {row[name]}" for name in position if row.get(name) is not None]
    title: list[Piece] = [(f"{mark} ", style), (visible(" · ".join(filter(None, [end, *where]))), style)]
    if row.get("why"):
        title.append((visible(f" · {row['why']}"), "dim"))
    numbers = {name: value for name, value in row.items() if name not in STAMPS and not is_long(value)}
    for name in sorted(numbers, key=lambda name: name != key):
        value = numbers[name]
        shown = "none" if value is None else number(value) if isinstance(value, int | float) else visible(str(value))
        title.append((f" · {visible(name)} {shown}", style if name == key else ""))
    yield 0, title
    for name, value in row.items():
        if name in STAMPS or not is_long(value):
            continue
        yield 2, [(visible(name), "bold dim")]
        if is_conversation(value):
            for message in value:
                yield 4, [(visible(str(message["role"])), "cyan")]
                yield 6, [(visible_lines(spoken(message)), "")]
        elif is_tokens(value):
            yield from _tokens(value, colour, shades=shades)
        else:
            yield 4, [(visible_lines(as_text(value)), "")]


def is_tokens(value: Any) -> bool:
    """Whether a cell holds tokens: lists of the same length by name, the first of which is ``tokens``."""
    return (
        isinstance(value, Mapping)
        and next(iter(value), None) == PIECES
        and all(isinstance(column, list) and len(column) == len(value[PIECES]) for column in value.values())
    )


def _tokens(cell: Mapping[str, list[Any]], name: str | None, *, shades: bool) -> Iterator[tuple[int, list[Piece]]]:
    """The text with coloured tokens, and a legend below it."""
    names = [column for column in cell if column != PIECES]
    name = name if name in names else next(iter(names), None)
    values = cell[name] if name is not None else [None] * len(cell[PIECES])
    there = [value for value in values if isinstance(value, int | float) and math.isfinite(value)]
    unlikely = bool(there) and max(there) <= 0 and (name or "").startswith(("logp", "log_p", "sampling_logp"))
    scale = max(map(abs, there), default=0.0)
    styles = [_style(value, scale, unlikely=unlikely, shades=shades) for value in values]
    yield 4, [(visible_lines(str(piece)), style) for piece, style in zip(cell[PIECES], styles, strict=True)]
    if there and name is not None:
        mean = sum(there) / len(there)
        figures = f"{number(min(there))} to {number(max(there))}, mean {number(mean)}"
        further = f"; also {', '.join(column for column in names if column != name)}: --color" if len(names) > 1 else ""
        yield 4, [(visible(f"coloured by {name}: {figures}{further}"), "dim")]


def _style(value: Any, scale: float, *, unlikely: bool, shades: bool) -> str:
    """The style of a token: stronger for less likely tokens, or for values farther from 0."""
    if not isinstance(value, int | float) or not math.isfinite(value) or not scale:
        return "dim italic" if value is None else ""
    strength = 1 - math.exp(value) if unlikely else abs(value) / scale
    if strength < 0.1:
        return ""
    if not shades:
        side = "red" if unlikely or value > 0 else "blue"
        return f"bold {side}" if strength > 0.6 else side if strength > 0.3 else ""
    red, green, blue = (int(255 + (part - 255) * strength) for part in STRONG[0 if unlikely or value > 0 else 1])
    return f"{'white' if strength > 0.6 else 'black'} on rgb({red},{green},{blue})"
