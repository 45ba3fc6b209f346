r"""Text that a terminal shows and does not obey: a model's text must not move the cursor, or turn words around.

Control characters (C0, C1), direction overrides and isolates, zero-width and other format characters, line separators
and lone surrogates are shown by a picture or an escape: ``␛``, ``\x9b``, ``\u202e``. Joiners stay between emoji, and
between letters of scripts that need them. A filter on declog's logger passes all that declog logs through here.
Lines are also wrapped and measured in the columns of a terminal.
"""

from __future__ import annotations

import json
import logging
import re
import textwrap
import unicodedata

SHOWN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # categories of Unicode that have no shape of their own


class _Escapes(dict[int, str | int]):
    """A table for ``str.translate`` that looks up a character when the character first occurs."""

    def __init__(self, *, pictures: bool, keep: str = "") -> None:
        super().__init__({ord(char): char for char in keep})
        self._pictures = pictures

    def __missing__(self, code: int) -> str | int:
        escape: str | int = code
        if unicodedata.category(chr(code)) in SHOWN:
            if self._pictures and code < 0x20:
                escape = chr(0x2400 + code)
            elif self._pictures:
                escape = chr(code).encode("unicode_escape").decode()
            else:
                escape = f"\\u{code:04x}" if code < 0x10000 else json.dumps(chr(code))[1:-1]
        self[code] = escape
        return escape


_BESIDE = "[^\x00-\u058f\u2000-\u206f\ud800-\udfff\ufeff\U000e0000-\U000e0fff]"  # Latin, Greek, Cyrillic join nothing
_JOINED = re.compile(f"(?<={_BESIDE})([\u200c\u200d])(?={_BESIDE})")
_LINE = _Escapes(pictures=True)
_LINES = _Escapes(pictures=True, keep="\n\t")
_JSON = _Escapes(pictures=False, keep="\n")


def visible(text: str) -> str:
    """The text on one line, with nothing in it that a terminal would obey."""
    return text if text.isascii() and text.isprintable() else _escaped(text, _LINE)


def visible_lines(text: str) -> str:
    """The text with its line ends and tabs, and with nothing else in it that a terminal would obey."""
    return text if text.isascii() and text.isprintable() else _escaped(text, _LINES)


def visible_json(text: str) -> str:
    """A JSON text with the same meaning, with escapes of JSON in place of such characters."""
    return text if text.isascii() else _escaped(text, _JSON)


def _escaped(text: str, escapes: _Escapes) -> str:
    if "\u200c" not in text and "\u200d" not in text:
        return text.translate(escapes)
    parts = _JOINED.split(text)  # every second one is a joiner
    return "".join(part if index % 2 else part.translate(escapes) for index, part in enumerate(parts))


class _Logged(logging.Filter):
    """Makes log messages visible: they quote columns, texts and errors of other libraries."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if (shown := visible_lines(text)) != text:
            record.msg, record.args = shown, ()
        if record.exc_info and not record.exc_text:
            record.exc_text = visible_lines(logging.Formatter().formatException(record.exc_info))
        return True


def wrapped(line: str, width: int | None) -> list[str]:
    """A line of words, wrapped to ``width`` columns; the lines after the first are indented."""
    if width is None or len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def columns(text: str) -> int:
    """The number of a terminal's columns that a text takes."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def blank(text: str) -> str:
    """Blanks as wide as ``text``; tabs stay tabs."""
    return "".join("\t" if char == "\t" else " " * columns(char) for char in text)


logging.getLogger("declog").addFilter(_Logged())
