"""Rows of a table as complete texts, for trackers whose tables cut their cells."""

from __future__ import annotations

from typing import Any

from declog.errors.visible import visible_lines
from declog.records import DType, Table, as_text
from declog.sinks._shared import clean_text

LONG = (DType.TEXT, DType.OBJECT)


def rows_as_text(table: Table) -> str:
    """The rows in Markdown, one below the other."""
    return "\n\n".join(row_as_text(table, row) for row in range(table.rows)) + "\n"


def row_as_text(table: Table, row: int) -> str:
    """One row in Markdown: a heading of its short values, then a block for each complete text."""
    texts = []
    for column in table.columns:
        value = table.data[column.name][row]
        if value is not None and column.type in LONG:
            texts.append((column.name, as_text(value)))
    return "\n\n".join(
        [f"## {caption(table, row)}", *(f"**{clean_text(name)}**\n\n{_block(text)}" for name, text in texts)]
    )


def caption(table: Table, row: int) -> str:
    """A row in one line: why it was picked, its step and number, its short values."""
    places = table.places
    why = [table.why(row)] if table.why(row) else []
    position = [] if places is None else [f"step {places.step[row]}", f"row {places.row[row]}"]
    values = [(column.name, table.data[column.name][row]) for column in table.columns if column.type not in LONG]
    return clean_text(
        ", ".join([*why, *position, *(f"{name} {_number(value)}" for name, value in values)]) or f"row {row}"
    )


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _block(text: str) -> str:
    """A code block whose fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{clean_text(visible_lines(text))}\n{fence}"
