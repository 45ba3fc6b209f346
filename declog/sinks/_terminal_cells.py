"""The width of text in cells of a terminal: a Chinese character takes two cells, a combining character none.

A terminal draws a cluster as one character: a letter with its combining marks, an emoji with its modifiers and joined
emojis, a flag. No line ends inside a cluster.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

JOINER = "\u200d"
MODIFIERS = range(0x1F3FB, 0x1F400)  # skin tones
FLAGS = range(0x1F1E6, 0x1F200)  # letters of which two are a flag


def cells(text: str) -> int:
    """The number of cells that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return int(cell_len(text))


def clusters(text: str) -> Iterator[str]:
    """A text's clusters, in their order."""
    cluster = ""
    for char in text:
        if cluster and not _extends(cluster, char):
            yield cluster
            cluster = ""
        cluster += char
    if cluster:
        yield cluster


def _extends(cluster: str, char: str) -> bool:
    if unicodedata.category(char).startswith("M") or char == JOINER or cluster[-1] == JOINER:
        return True
    return ord(char) in MODIFIERS or (ord(char) in FLAGS and len(cluster) == 1 and ord(cluster) in FLAGS)


def padded(text: str, width: int) -> str:
    """A text padded with blanks to a width in cells."""
    return text + " " * (width - cells(text))


def ending(text: str, width: int) -> str:
    """The end of a text within a width in cells; a cut text begins with an ellipsis."""
    if cells(text) <= width:
        return text
    return "…" + "".join(reversed(list(_within(width - 1, reversed(list(clusters(text)))))))


def beginning(text: str, width: int) -> str:
    """The beginning of a text within a width in cells; a cut text ends with an ellipsis."""
    if cells(text) <= width:
        return text
    return "".join(_within(width - 1, clusters(text))) + "…"


def _within(room: int, parts: Iterable[str]) -> Iterator[str]:
    """The first parts that fit."""
    for part in parts:
        room -= cells(part)
        if room < 0:
            return
        yield part


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text within a width in cells, broken between words, or inside a word wider than a line."""
    lines, line, used = [], "", 0
    for word in re.findall(r" +|[^ ]+", text):
        blank = word[0] == " "
        for part in [word] if blank or cells(word) <= width else clusters(word):
            takes = cells(part)
            if used + takes > width:
                lines.append(line)
                line, used = "", 0
                if blank:  # a line must not begin with the rest of a gap
                    continue
            line, used = line + part, used + takes
    return [part.rstrip(" ") for part in (*lines, line) if part.strip(" ")] or [""]
