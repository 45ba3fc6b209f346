"""The error renderer: place, caret, cause, earlier layers, fix.

Takes the problems that any layer found and, where it is known, the provenance of the configuration;
returns text. Plain data in, plain text out: nothing of Hydra, torch or the compiler is imported.

    error[DL310] conf/declog/mine.yaml:4:10
      filters.hard.where is per token; a filter needs one value per completion
        4 |   where: kl > 1
          |          ^^^^^^
      also set in: conf/declog/grpo.yaml:40:12
      fix: any(kl > 1, over=token)  or  mean(kl, over=token) > 1
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TypeVar

from declog.errors import ConfigError, Path, Problem
from declog.places import FilePlace, Layer, OverridePlace, Place, Provenance, Span
from declog.scalars import within

Error = TypeVar("Error", bound=ConfigError)

# What is wrong is the key itself, or that it has no other beside it: not its value.
KEY_CODES = frozenset({"DL201", "DL203", "DL204"})

# What ends a line in YAML, which is less than in str.splitlines.
LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


@dataclass(frozen=True)
class Excerpt:
    """A line to show, and the half-open range of it that is at fault. ``label`` is its line number."""

    label: str
    text: str
    start: int
    end: int


def render(problems: Iterable[Problem], provenance: Provenance | None = None, *, prefix: Path = ("declog",)) -> str:
    """All problems as text, with their places where ``provenance`` knows them.

    ``prefix`` is where the profile stands in the composed configuration.
    """
    return "\n\n".join(_render(problem, provenance, prefix) for problem in problems)


def attach_places(error: Error, provenance: Provenance | None, *, prefix: Path = ("declog",)) -> Error:
    """The same error with its places rendered, or as it is where nothing is known of them."""
    if provenance is None:
        return error
    return type(error)(error.problems, render(error.problems, provenance, prefix=prefix))


def render_at(problem: Problem, header: str, excerpt: Excerpt | None, earlier: Iterable[str] = ()) -> str:
    """One problem whose place the caller knows."""
    lines = [f"error[{problem.code}] {header}"]
    lines += [f"  {line}" for line in problem.message.splitlines()]
    if excerpt is not None:
        before, marked = excerpt.text[: excerpt.start], excerpt.text[excerpt.start : excerpt.end]
        bar = " | " if excerpt.label else ""
        lines.append(f"    {excerpt.label}{bar}{excerpt.text}")
        lines.append(f"    {' ' * len(excerpt.label)}{bar}{_blank(before)}{'^' * max(1, _width(marked))}")
    also = ", ".join(earlier)
    if also:
        lines.append(f"  also set in: {also}")
    if problem.fix:
        lines.append(f"  fix: {problem.fix}")
    return "\n".join(lines)


def _render(problem: Problem, provenance: Provenance | None, prefix: Path) -> str:
    if provenance is None:
        return problem.plain()
    known, layers = provenance.find((*prefix, *problem.path))
    if not layers:
        return problem.plain()
    place = layers[-1].place
    earlier = _others(layers)
    if isinstance(place, FilePlace):
        line, column, excerpt = in_file(problem, place, provenance.texts)
        return render_at(problem, f"{shown_path(place.file)}:{line}:{column}", excerpt, earlier)
    if isinstance(place, OverridePlace):
        return render_at(problem, f"override '{place.text}'", in_override(problem, place.text), earlier)
    return render_at(problem, f"{place.name} {'.'.join(map(str, known))}", _alone(problem), earlier)


def in_file(problem: Problem, place: FilePlace, texts: Mapping[str, str]) -> tuple[int, int, Excerpt | None]:
    """The line, column and excerpt of a problem in a file: at the value if that is a scalar, else at the key."""
    value, lines = place.value, LINE_BREAK.split(texts[place.file])
    raw = lines[value.line - 1][value.column - 1 : value.end_column - 1] if value.one_line else None
    if place.key is not None and (problem.code in KEY_CODES or place.style is None or raw == ""):
        return place.key.line, place.key.column, _excerpt(lines, place.key)
    if raw is None:
        # A scalar over several lines: its text does not stand in any one line of the file.
        return value.line, value.column, _alone(problem) or _excerpt(lines, value)
    start, end = 0, len(raw)
    if place.style is not None and problem.source is not None:
        start, end = within(raw, place.style, problem.source, problem.span) or (start, end)
    exact = Span(value.line, value.column + start, value.line, value.column + end)
    return exact.line, exact.column, _excerpt(lines, exact)


def in_override(problem: Problem, text: str) -> Excerpt:
    """The override with a caret under the key, the value, or the part of the value that is at fault."""
    equals = text.find("=")
    start, end = (0, len(text)) if equals < 0 else (equals + 1, len(text))
    if problem.code in KEY_CODES and problem.path:
        found = list(re.finditer(rf"(?<!\w){re.escape(str(problem.path[-1]))}(?!\w)", text))
        in_key = [match for match in found if equals < 0 or match.end() <= equals]
        if found:
            start, end = in_key[-1].span() if in_key else found[0].span()
    elif problem.source is not None and (at := text.find(problem.source, start)) >= 0:
        first, last = problem.span or (0, len(problem.source))
        start, end = at + first, at + max(last, first + 1)
    elif end - start > 2 and text[start] == text[end - 1] and text[start] in "'\"":
        start, end = start + 1, end - 1
    return Excerpt("", text, start, end)


def shown_path(file: str) -> str:
    """A path as people would type it here: relative to the working directory where it lies below it."""
    path = FilePath(file)
    return str(path.relative_to(FilePath.cwd())) if path.is_relative_to(FilePath.cwd()) else file


def _others(layers: tuple[Layer, ...]) -> list[str]:
    """The layers that lost, the latest of them first."""
    return list(dict.fromkeys(_short(layer.place) for layer in reversed(layers[:-1])))


def _short(place: Place) -> str:
    if isinstance(place, FilePlace):
        at = place.key or place.value
        return f"{shown_path(place.file)}:{at.line}:{at.column}"
    return f"override '{place.text}'" if isinstance(place, OverridePlace) else place.name


def _excerpt(lines: list[str], span: Span) -> Excerpt:
    """The first line of a span."""
    line = lines[span.line - 1]
    return Excerpt(str(span.line), line, span.column - 1, span.end_column - 1 if span.one_line else len(line))


def _alone(problem: Problem) -> Excerpt | None:
    """The expression on its own: the line of it that is at fault."""
    if problem.source is None:
        return None
    start, end = problem.span or (0, len(problem.source))
    begin = problem.source.rfind("\n", 0, start) + 1
    line = problem.source[begin:].split("\n", 1)[0]
    return Excerpt("", line, start - begin, min(end - begin, len(line)))


def _width(text: str) -> int:
    """How many columns a terminal gives a text."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _blank(text: str) -> str:
    """As much room as ``text`` takes; tabs stay tabs, which are as wide as they are."""
    return "".join("\t" if char == "\t" else " " * _width(char) for char in text)
