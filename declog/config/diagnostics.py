"""From a problem to its place: the file, line and column or the override, the line to show, the earlier layers.

Takes the problems that any layer found and, where it is known, the provenance of the configuration;
returns the problems with their places, which ``Problem.text`` shows, and ``as_dict`` for programs. Plain data in,
plain data out: nothing of Hydra, torch or the compiler is imported.

    error[DL310] conf/declog/mine.yaml:4:10 in filters.hard.where
      `where` is per token, and rows are per completion: it may not be finer
        4 |   where: kl > 1
          |          ^^^^^^
      also set in: conf/declog/grpo.yaml:40:12
      fix: any(kl > 1, over=token)  or  mean(kl, over=token) > 1
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, TypeVar

from declog.config.quoting import value_end, within
from declog.config.source_map import FilePlace, Layer, OverridePlace, Place, Provenance, Span, StorePlace
from declog.config.yaml_lint import surprise
from declog.errors import ConfigError, Excerpt, Path, Problem, Where

Error = TypeVar("Error", bound=ConfigError)

# What is wrong is the key itself, or that it has no other beside it: not its value.
KEY_CODES = frozenset({"DL201", "DL203", "DL204"})

# What ends a line in YAML, which is less than in str.splitlines.
LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


def located(
    problems: Iterable[Problem], provenance: Provenance | None, *, prefix: Path = ("declog",)
) -> tuple[Problem, ...]:
    """The problems with their places, where ``provenance`` knows them.

    ``prefix`` is where the config stands in the composed configuration. Those of one file come in the order of its
    lines, wherever they were found.
    """
    found: list[Problem] = []
    seen: set[Problem] = set()
    for problem in (_located(each, provenance, prefix) for each in problems):
        in_file = problem.where is not None and problem.where.line is not None
        same = replace(problem, path=()) if in_file else problem  # what entries share by an anchor is wrong once
        if same not in seen:
            seen.add(same)
            found.append(problem)
    files = list(dict.fromkeys(problem.where.file for problem in found if problem.where is not None))

    def reading(problem: Problem) -> tuple[int, int, int]:
        where = problem.where
        if where is None:
            return len(files), 0, 0
        return files.index(where.file), where.line or 0, where.column or 0

    return tuple(sorted(found, key=reading))


def attach_places(error: Error, provenance: Provenance | None, *, prefix: Path = ("declog",)) -> Error:
    """The same error, each of its problems with its place."""
    return error if provenance is None else type(error)(located(error.problems, provenance, prefix=prefix))


def as_dict(problem: Problem) -> dict[str, Any]:
    """A problem for programs: plain values, None for what is not known; columns count from 1, in characters."""
    where = problem.where or Where()
    excerpt = where.excerpt
    return {
        "code": problem.code,
        "severity": "error",
        "message": problem.message,
        "path": problem.key or None,
        "file": where.file,
        "line": where.line,
        "column": where.column,
        "override": where.override,
        "source": None if excerpt is None else excerpt.text,
        "marked": None if excerpt is None else [excerpt.start + 1, excerpt.end + 1],
        "earlier": [_place_dict(each) for each in where.earlier],
        "related": [{"path": key, **_place_dict(each)} for key, each in where.related],
        "fix": problem.fix,
    }


def _place_dict(where: Where) -> dict[str, Any]:
    fields = {"file": where.file, "line": where.line, "column": where.column}
    found = {**fields, "override": where.override, "name": where.name}
    return {name: value for name, value in found.items() if value is not None}


def _located(problem: Problem, provenance: Provenance | None, prefix: Path) -> Problem:
    if provenance is None or problem.where is not None:
        return problem
    known, layers = provenance.find((*prefix, *problem.path))
    if not layers:
        return problem
    place = layers[-1].place
    if isinstance(place, FilePlace) and known == (*prefix, *problem.path):
        problem = _as_written(problem, place, provenance.texts[place.file])
    where = place_of(problem, place, provenance.texts, ".".join(map(str, known)))
    related = tuple(_related(problem, provenance, prefix))
    below = problem.path[len(known) - len(prefix) :]
    if not isinstance(place, StorePlace):
        # a text says all that is below
        text = place.style is not None if isinstance(place, FilePlace) else place.text.partition("=")[2][:1] not in "{["
        if place.path != known or (below and text):
            problem = replace(problem, path=(*place.path[len(prefix) :], *(() if text else below)))
    return replace(problem, where=replace(where, earlier=tuple(dict.fromkeys(others(layers))), related=related))


def written_key(place: FilePlace, text: str) -> str:
    """A key as it stands in its file; empty for the entry of a list."""
    return "" if place.key is None else _raw(LINE_BREAK.split(text), place.key)


def written_value(place: FilePlace, text: str) -> str:
    """A value as it stands in its file."""
    return _raw(LINE_BREAK.split(text), place.value)


def _as_written(problem: Problem, place: FilePlace, text: str) -> Problem:
    """The problem of a word that YAML takes for something else, in terms of that word."""
    word = written_key(place, text) if problem.code == "DL204" else written_value(place, text)
    odd = surprise(word) if problem.code == "DL204" or place.style == "plain" else None
    if odd is None or problem.code not in ("DL202", "DL204"):
        return problem
    message = odd[0] if odd[0] in problem.message or problem.code == "DL204" else f"{problem.message}; {odd[0]}"
    return replace(problem, message=message, fix=odd[1])


def _related(problem: Problem, provenance: Provenance, prefix: Path) -> Iterable[tuple[str, Where]]:
    for path in problem.related:
        _, layers = provenance.find((*prefix, *path))
        if layers:
            yield ".".join(map(str, path)), next(iter(others((*layers, layers[-1]))))


def place_of(problem: Problem, place: Place, texts: Mapping[str, str], key: str = "") -> Where:
    """Where a problem stands in the layer that set its key."""
    if isinstance(place, FilePlace):
        return in_file(problem, place, texts[place.file])
    if isinstance(place, OverridePlace):
        return Where(override=place.text, excerpt=in_override(problem, place.text))
    return Where(name=f"{place.name} {key}".rstrip(), excerpt=_alone(problem))


def in_file(problem: Problem, place: FilePlace, text: str) -> Where:
    """The place of a problem in a file: at the value if that is a scalar, else at the key."""
    value, lines = place.value, LINE_BREAK.split(text)
    raw = _raw(lines, value)
    at = value
    # the key itself is the name at fault
    in_test = problem.path[:1] == ("tests",) and problem.path[-2:-1] in (("expect",), ("observe",), ("tables",))
    named = problem.code in KEY_CODES or problem.path[-2:-1] == ("to",) or in_test
    named = named or (problem.replacement is not None and problem.source is None)
    if place.key is not None and (named or place.style is None or raw == ""):
        at = place.key
    elif place.style is not None and problem.source is not None:
        found = within(raw, place.style, problem.source, problem.span)
        at = (place.key or value if problem.replacement else value) if found is None else _part(raw, value, *found)
    elif place.style in ("|", ">") and (text_of := re.search(r"\n\s*(\S.*)", raw)) is not None:
        at = _part(raw, value, *text_of.span(1))  # its first line, not the sign above it
    return Where(shown_path(place.file), at.line, at.column, excerpt=_excerpt(lines, at))


def at_key(place: FilePlace, text: str) -> Where:
    """The place of a key."""
    at = place.key or place.value
    return Where(shown_path(place.file), at.line, at.column, excerpt=_excerpt(LINE_BREAK.split(text), at))


def _raw(lines: list[str], span: Span) -> str:
    """What stands in a stretch of a file, with plain line breaks."""
    covered = lines[span.line - 1 : span.end_line]
    if len(covered) > span.end_line - span.line:
        covered[-1] = covered[-1][: span.end_column - 1]
    covered[0] = covered[0][span.column - 1 :]
    return "\n".join(covered)


def _part(raw: str, whole: Span, start: int, end: int) -> Span:
    """A range of what stands in a stretch of a file, as a stretch of its own."""
    return Span(*_position(raw, whole, start), *_position(raw, whole, end))


def _position(raw: str, whole: Span, offset: int) -> tuple[int, int]:
    row = raw.count("\n", 0, offset)
    begin = raw.rfind("\n", 0, offset) + 1
    return whole.line + row, offset - begin + (1 if row else whole.column)


def in_override(problem: Problem, text: str, sign: str = "=") -> Excerpt:
    """The override with a caret under the key, the value, or the part of the value that is at fault.

    ``sign`` stands between the key and the value.
    """
    equals = text.find(sign)
    start, end = (0, len(text)) if equals < 0 else (equals + 1, len(text))
    start += len(text[start:]) - len(text[start:].lstrip())
    if problem.code in KEY_CODES and problem.path:
        found = list(re.finditer(rf"(?<!\w){re.escape(str(problem.path[-1]))}(?!\w)", text))
        in_key = [match for match in found if equals < 0 or match.end() <= equals]
        if found:
            start, end = in_key[-1].span() if in_key else found[0].span()
    elif problem.source is not None and (at := text.find(problem.source, start)) >= 0:
        first, last = problem.span or (0, len(problem.source))
        start, end = at + first, at + max(last, first + 1)
    elif text[start : start + 1] == "{" and (inside := _entry(problem, text, start)) is not None:
        start, end = inside
    elif end - start > 2 and text[start] == text[end - 1] and text[start] in "'\"":
        start, end = start + 1, end - 1
    return Excerpt("", text, start, end)


def _entry(problem: Problem, text: str, start: int) -> tuple[int, int] | None:
    """The value of the problem's key in an override's `{...}`."""
    key = re.compile(rf"(?<!\w){re.escape(str(problem.path[-1] if problem.path else ''))}\s*:\s*")
    found = key.search(text, start)
    end = None if found is None else value_end(text, found.end())
    return None if found is None or end is None else (found.end(), end)


def shown_path(file: str) -> str:
    """A path as people would type it here: relative to the working directory where it lies below it."""
    path = FilePath(file)
    return str(path.relative_to(FilePath.cwd())) if path.is_relative_to(FilePath.cwd()) else file


def shown_place(place: Place) -> str:
    """A place as people would type it here: file, line and column, or the override."""
    return str(place_alone(place))


def place_alone(place: Place) -> Where:
    """Where a place is, without its lines."""
    if isinstance(place, FilePlace):
        at = place.key or place.value
        return Where(shown_path(place.file), at.line, at.column)
    return Where(override=place.text) if isinstance(place, OverridePlace) else Where(name=place.name)


def others(layers: tuple[Layer, ...]) -> Iterable[Where]:
    """The layers that lost, the latest of them first."""
    return (place_alone(layer.place) for layer in reversed(layers[:-1]))


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
