"""Printing of the command line: plain text, with colours on a terminal only. Standard library only."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO, cast

from declog.cli.arguments import Wrong
from declog.errors import FLOW_MAP, ConfigError, DeclogError, Problem
from declog.errors.visible import visible, visible_json, visible_lines

RED, YELLOW, GREEN, DIM, BOLD = "31", "33", "32", "2", "1"


WIDTH = 100  # the most columns of a table
SPECIAL = "%\r\n"  # characters to escape in the workflow commands of GitHub
_masks: ContextVar[list[Callable[[str], str]]] = ContextVar("_masks")  # hide the secrets of this command's configs


class _Masked:
    """A stream that never shows a value that a config of this command line read from the environment."""

    def __init__(self, stream: TextIO, masks: list[Callable[[str], str]]) -> None:
        self._stream, self._masks = stream, masks

    def write(self, text: str) -> int:
        for mask in self._masks:  # not the context variable: other threads write, too
            text = mask(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def masked() -> Iterator[None]:
    """A block in which standard output and standard error show no secret of a config passed to ``hide``."""
    masks: list[Callable[[str], str]] = []
    token = _masks.set(masks)
    try:
        out, err = (cast(TextIO, _Masked(stream, masks)) for stream in (sys.stdout, sys.stderr))
        with redirect_stdout(out), redirect_stderr(err):
            yield
    finally:
        _masks.reset(token)


def hide(mask: Callable[[str], str]) -> None:
    """From now on, pass all printed text through ``mask``."""
    if (masks := _masks.get(None)) is not None:
        masks.append(mask)


def coloured(stream: TextIO) -> bool:
    """Whether a stream is a terminal that wants colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    """The text in a colour if standard output is a terminal."""
    text = visible_lines(text)
    return f"\x1b[{colour}m{text}\x1b[0m" if coloured(sys.stdout) else text


def warning(text: str) -> str:
    """A line with a warning."""
    return f"{paint('warning:', YELLOW)} {text}"


def write_error(error: DeclogError) -> None:
    """Print an error to standard error."""
    sys.stdout.flush()
    if isinstance(error, ConfigError):
        print(error.text(colour=coloured(sys.stderr), width=width(sys.stderr)), file=sys.stderr)
    else:
        text = visible_lines(str(error))  # with its position, if known
        mark = "" if text.startswith("error[") else "error" if text.startswith("[") else "error: "
        print(f"{mark}{text}", file=sys.stderr)


def width(stream: TextIO) -> int:
    """The width of the terminal in columns; 80 without a terminal."""
    return max(shutil.get_terminal_size((80, 24)).columns, 80) if stream.isatty() else 80


def wrapped(text: str, mark: str, indent: int) -> str:
    """Wrap words to the terminal's width behind a mark of ``indent`` columns; text to copy stays on one line."""
    text = _PASTED.sub(lambda edit: edit[0].replace(" ", "\0"), text)
    room = {"width": width(sys.stdout) - indent, "break_long_words": False, "break_on_hyphens": False}
    lines = [line for part in text.split("\n") for line in textwrap.wrap(part, **room) or [""]]  # type: ignore[arg-type]
    return mark + f"\n{' ' * indent}".join(lines).replace("\0", " ")


_PASTED = re.compile(rf"\w+: {FLOW_MAP}|(?<!\w)'[^'\n]*'(?!\w)|`[^`\n]*`")


def as_github(problems: Sequence[Problem], warnings: Sequence[str]) -> Iterator[str]:
    """Problems and warnings as annotations of a pull request, which are workflow commands of GitHub."""
    for problem in problems:
        where = problem.where
        properties: dict[str, Any] = {"title": problem.code}
        if where is not None and where.file is not None:
            ends = {} if where.excerpt is None else {"endColumn": where.excerpt.end + 1}
            properties = {"file": where.file, "line": where.line, "col": where.column, **ends, **properties}
        text = problem.message + (f"\nfix: {problem.fix}" if problem.fix else "")
        if where is not None and where.override is not None:
            text = f"override {where.override}: {text}"
        yield _command("error", properties, text)
    for text in warnings:
        match = re.match(r"(?P<file>\S+\.yaml):(?P<line>\d+)(?::(?P<col>\d+))?: ", text)
        yield _command("warning", {} if match is None else match.groupdict("1"), text)


def _command(level: str, properties: Mapping[str, Any], text: str) -> str:
    shown = ",".join(f"{key}={_escaped(str(value), SPECIAL + ':,')}" for key, value in properties.items())
    return f"::{level} {shown}".rstrip() + f"::{_escaped(text, SPECIAL)}"


def _escaped(text: str, special: str) -> str:
    return visible("".join(f"%{ord(char):02X}" if char in special else char for char in text))


def counted(n: int, noun: str) -> str:
    """A number with its noun: "1 table", "2,000 tables"."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def write_file(file: Path, text: str, *, folders: bool = False) -> None:
    """Write the file of ``-o``, and the ``folders`` above it; raises ``Wrong`` if that fails."""
    try:
        if folders:
            file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Wrong(f"{file} cannot be written: {error.strerror}") from None


def write_json(data: Any) -> None:
    """Print data for programs."""
    print(visible_json(json.dumps(data, indent=2, ensure_ascii=False, default=str)))


def answer(args: argparse.Namespace, data: Any, lines: Iterable[str]) -> None:
    """Print the answer of a verb: ``data`` under ``--format json``, else ``lines``."""
    if args.format == "json":
        write_json(data)
        return
    for line in lines:
        print(line, flush=True)


def paragraphs(text: str) -> str:
    """Markdown with its paragraphs wrapped to the terminal's width; unchanged in a pipe."""
    if not sys.stdout.isatty():
        return text
    width = min(shutil.get_terminal_size().columns, 100)
    fenced, lines = False, []
    for line in text.split("\n"):
        fenced ^= line.startswith("```")
        lines += [line] if fenced or line[:1] in "|`#" else textwrap.wrap(line, width) or [""]
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]], sides: str = "<") -> Iterator[str]:
    """Align rows in columns. ``sides`` has `<` or `>` for each column; its last character also holds for all others."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{side}{width}" for side, width in zip_longest(sides[: len(widths)], widths, fillvalue=sides[-1])]
    for row in rows:
        yield "  ".join(map(format, row, forms)).rstrip()


def columns(rows: Sequence[Sequence[str]], indent: str = "", colour: str | None = None) -> str:
    """Rows as text in aligned columns, at most ``WIDTH`` wide; the first column in ``colour``.

    If the columns do not fit, the texts of wide columns wrap to several lines, except those of the first column.
    """
    cells = list(zip_longest(*([visible(cell) for cell in row] for row in rows), fillvalue=""))
    widths = [max(map(len, column)) for column in cells]
    longest = [max(len(word) for cell in column for word in [*cell.split(), ""]) for column in cells]
    while len(indent) + sum(widths) + 2 * (len(widths) - 1) > WIDTH:
        wide = [index for index in range(1, len(widths)) if widths[index] > longest[index]]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
    lines: list[tuple[str, ...]] = []
    for row in zip(*cells, strict=True):
        lines += zip_longest(*map(_folded, row, widths), fillvalue="")
    painted = [
        paint(first, colour) + line[len(first) :] if colour and first else line
        for (first, *_), line in zip(lines, aligned(lines), strict=True)
    ]
    return "\n".join(f"{indent}{line}".rstrip() for line in painted)


def _folded(text: str, width: int) -> list[str]:
    """Wrap a text to lines of ``width`` characters, without breaking words."""
    if len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
