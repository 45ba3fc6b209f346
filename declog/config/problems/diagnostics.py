"""Find the place of a problem: the file, line and column or the override, the line to show, the earlier layers.

``located`` takes the problems that any layer found and the provenance of the configuration, and returns the problems
with their places. ``Problem.text`` shows such a problem; ``as_dict`` gives it to programs. Hydra, torch and the
compiler are not imported.

    error[DL310] conf/declog/mine.yaml:4:10 in filters.hard.where
      `where` is per token, and rows are per completion: it may not be finer
        4 |   where: kl > 1
          |          ^^^^^^
      also set in: conf/declog/grpo.yaml:40:12
      fix: any(kl > 1, over=token)  or  mean(kl, over=token) > 1
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import yaml

from declog.config.quoting import is_expression, stays_plain, value_end, within
from declog.config.source_map import (
    CodeLocation,
    FileLocation,
    Layer,
    Location,
    OverrideLocation,
    Provenance,
    StoreLocation,
)
from declog.config.yaml_lint import surprise
from declog.errors import Excerpt, Path, Problem, Where, in_flow
from declog.language.keys import entry_path

# The key itself is wrong, or another key beside it is missing; its value is not at fault.
KEY_CODES = frozenset({"DL201", "DL203", "DL204"})


def located(problems: Iterable[Problem], provenance: Provenance, *, prefix: Path = ("declog",)) -> tuple[Problem, ...]:
    """The problems with their places, if ``provenance`` has them.

    ``prefix`` is the path of the config in the composed configuration. The problems of a file are in the order of its
    lines.
    """
    distinct: list[Problem] = []
    seen: set[Problem] = set()
    problems = [*problems]
    for problem in (_with_alike(_located(problem, provenance, prefix), problem, problems) for problem in problems):
        in_file = problem.where is not None and problem.where.line is not None
        same = replace(problem, path=()) if in_file else problem  # entries that share an anchor share its problem
        if same not in seen:
            seen.add(same)
            distinct.append(problem)
    files = list(dict.fromkeys(problem.where.file for problem in distinct if problem.where is not None))

    def reading(problem: Problem) -> tuple[int, int, int]:
        where = problem.where
        if where is None:
            return len(files), 0, 0
        return files.index(where.file), where.line or 0, where.column or 0

    return tuple(sorted(distinct, key=reading))


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
        "earlier": [_place_dict(where) for where in where.earlier],
        "related": [{"path": key, **_place_dict(where)} for key, where in where.related],
        "fix": problem.fix,
    }


def _place_dict(where: Where) -> dict[str, Any]:
    fields = {"file": where.file, "line": where.line, "column": where.column}
    values = {**fields, "override": where.override, "name": where.name}
    return {name: value for name, value in values.items() if value is not None}


def _located(problem: Problem, provenance: Provenance, prefix: Path) -> Problem:
    if problem.where is not None:
        return problem
    key, layers = provenance.find((*prefix, *problem.path))
    if not layers:
        return problem
    problem = _in_place(problem, provenance.layers.get((*prefix, *entry_path(problem.path)), ()))
    for path in problem.related:
        later_key, later = provenance.find((*prefix, *path))
        if path[:2] == problem.path[:2] and later and later[-1].rank > layers[-1].rank:
            fix = f"{problem.fix}\nor another id than `{path[1]}`, which an earlier layer has"
            problem = replace(problem, path=path, related=(problem.path,), fix=fix)
            key, layers = later_key, later
            break
    location = layers[-1].location
    if isinstance(location, FileLocation) and key == (*prefix, *problem.path):
        problem = _as_written(problem, location)
    where = where_of(problem, location, ".".join(map(str, key)))
    if isinstance(location, FileLocation) and problem.fix is not None:
        problem = _quoted(entire(problem, _text(location)), location)
    elif isinstance(location, OverrideLocation):
        problem = entire(problem, location.text.partition("=")[2].strip("'\""))
    elif isinstance(location, CodeLocation):
        problem = entire(problem, location.text)
    related = tuple(_related(problem, provenance, prefix))
    below = problem.path[len(key) - len(prefix) :]
    if not isinstance(location, StoreLocation):
        if isinstance(location, FileLocation):
            is_text = location.style is not None
        elif isinstance(location, CodeLocation):
            is_text = location.is_text
        else:
            is_text = location.text.partition("=")[2][:1] not in "{["
        if location.path != key or (below and is_text):  # a text holds all that is below
            problem = replace(problem, path=(*location.path[len(prefix) :], *(() if is_text else below)))
    earlier = dict.fromkeys(layer.location.where for layer in reversed(layers[:-1]))
    return replace(problem, where=replace(where, earlier=tuple(earlier), related=related))


def _as_written(problem: Problem, location: FileLocation) -> Problem:
    """The problem of a word that YAML reads as another value, `off` or `010`, with a message and a fix about this."""
    of_key = problem.code == "DL204"
    if not of_key and (problem.code != "DL202" or location.style != "plain"):
        return problem
    meaning = surprise(location.written_key if of_key else location.written_value)
    if meaning is None:
        return problem
    message, fix = meaning
    whole_message = message if of_key or message in problem.message else f"{problem.message}; {message}"
    no_text = re.match(r"\w+: null", str(problem.fix)) or "number" in problem.message  # `kl: off`, `every: off`
    quoted = fix.startswith("put it in quotes")
    return replace(problem, message=whole_message, fix=problem.fix if no_text and quoted else fix)


def _text(location: FileLocation) -> str:
    """The text of a scalar in a file; empty for a map or a list."""
    if location.style in (None, "plain"):
        return location.written_value if location.style else ""
    return str(yaml.safe_load(location.written_value)).strip()


def entire(problem: Problem, value: str) -> Problem:
    """The problem of the argument in ``max(x / y)``: the expressions in its fix become the whole text ``value``."""
    source = problem.source
    if not source or source == value or value.count(source) != 1 or not is_expression(value):
        return problem

    def written(match: re.Match[str]) -> str:
        means = value.startswith("mean(") and match[2].startswith("mean(")  # the mean of a mean is what that is alone
        return f"{match[1]}`{value.replace(source, match[2])}`" if is_expression(match[2]) and not means else match[0]

    return replace(problem, fix=_WRITTEN.sub(written, problem.fix or "") or None)


def _in_place(problem: Problem, layers: Collection[Layer]) -> Problem:
    """A problem of an entry whose fix sets the entry to null only if a lower layer has it, as the line goes anyway."""
    null, fix = f"{entry_path(problem.path)[-1]}: null", problem.fix or ""
    if null not in fix or len(layers) != 1:
        return problem
    return replace(problem, fix="drop it" if fix == null else fix.replace(f"{null}, ", ""))


def _with_alike(located: Problem, problem: Problem, problems: Iterable[Problem]) -> Problem:
    """A located problem in ``corr(f(x), f(y))``, whose fix also edits the other arguments that have its mistake."""
    fix = located.fix or ""
    for one in problems:
        alike = one.message_key == problem.message_key and one.path[:-1] == problem.path[:-1] and one is not problem
        edit = re.fullmatch("write `([^`]+)`", one.fix or "") if alike else None
        fix = fix.replace(one.source or fix, edit[1]) if edit is not None else fix
    return replace(located, fix=fix or None)


def _quoted(problem: Problem, location: FileLocation) -> Problem:
    """The problem of a text, with its fix in quotes if YAML would read the fix as something else.

    If the fix is for a part of the text, the whole text stands in the quotes.
    """
    fix, in_flow_style = problem.fix or "", location.in_flow
    if location.style != "plain" and (location.style != '"' or "\\" not in fix):  # it stands in quotes already
        return problem
    value = _text(location)
    if location.style != "plain" and value != problem.source:
        return problem

    def needs_quotes(text: str) -> bool:
        return is_expression(text) and not (location.style == "plain" and stays_plain(text, in_flow=in_flow_style))

    def written(match: re.Match[str]) -> str:
        return f"{match[1]}`{in_flow(match[2])}`" if needs_quotes(match[2]) else match[0]

    part = _OF_A_PART.match(fix)
    if problem.source == value and problem.span is not None and part is not None and is_expression(problem.marked):
        start, end = problem.span
        mended = f"{value[:start]}{part[1] or part[2]}{value[end:]}"
        if needs_quotes(mended):
            return replace(problem, fix=f"{'' if fix[0] == '`' else 'write '}`{in_flow(mended)}`{fix[part.end() :]}")
    elif problem.source in (None, value) and problem.span in (None, (0, len(value))):
        answers = fix.split("  or  ")
        fix = "  or  ".join(in_flow(text) if needs_quotes(text) else text for text in answers)
    return replace(problem, fix=_WRITTEN.sub(written, fix))


_OF_A_PART = re.compile(r"(?:did you mean )?`([^`]+)`\??|(\w+\([^`\n]*\)[^`\n,]*)\Z")  # a fix for the marked part
_WRITTEN = re.compile(r"(\bwrite |, and )`([^`]+)`")  # a fix for the whole text


def _related(problem: Problem, provenance: Provenance, prefix: Path) -> Iterable[tuple[str, Where]]:
    for path in problem.related:
        _, layers = provenance.find((*prefix, *path))
        if layers:
            yield ".".join(map(str, path)), layers[-1].location.where


def where_of(problem: Problem, location: Location, key: str) -> Where:
    """The place of a problem in the layer that set the key ``key``."""
    if isinstance(location, FileLocation):
        return in_file(problem, location)
    if isinstance(location, OverrideLocation):
        return Where(override=location.text, excerpt=in_override(problem, location.text))
    name = f"{location.name} {key}".rstrip() if isinstance(location, StoreLocation) else location.where.name
    return Where(name=name, excerpt=_alone(problem))


def in_file(problem: Problem, location: FileLocation) -> Where:
    """The place of a problem in a file: at the value if that is a scalar, else at the key."""
    at = value = location.value
    raw = location.written_value
    # the key itself is the name at fault
    in_test = problem.path[:1] == ("tests",) and problem.path[-2:-1] in (("expect",), ("observe",), ("tables",))
    named = problem.code in KEY_CODES or problem.path[-2:-1] == ("to",) or in_test
    named = named or (problem.replacement is not None and problem.source is None)
    if location.key is not None and (named or location.style is None or raw == ""):
        at = location.key
    elif location.style is not None and problem.source is not None:
        marked = within(raw, location.style, problem.source, problem.span)
        of_key = problem.replacement is not None or location.written_key == problem.source
        whole_value = location.key or value if of_key else value
        at = whole_value if marked is None else value.part(raw, *marked)
    elif location.style in ("|", ">") and (text_of := re.search(r"\n\s*(\S.*)", raw)) is not None:
        at = value.part(raw, *text_of.span(1))  # its first line, not the sign above it
    return location.shown(at)


def in_override(problem: Problem, text: str, sign: str = "=") -> Excerpt:
    """The override with a caret under the key, the value, or the part of the value that is at fault.

    ``sign`` stands between the key and the value.
    """
    equals = text.find(sign)
    start, end = (0, len(text)) if equals < 0 else (equals + 1, len(text))
    start += len(text[start:]) - len(text[start:].lstrip())
    if problem.code in KEY_CODES and problem.path:
        matches = list(re.finditer(rf"(?<!\w){re.escape(str(problem.path[-1]))}(?!\w)", text))
        in_key = [match for match in matches if equals < 0 or match.end() <= equals]
        if matches:
            start, end = in_key[-1].span() if in_key else matches[0].span()
        return Excerpt("", text, start, end)
    inside = _entry(problem, text, start) if text[start : start + 1] == "{" else None
    source, begin = problem.source, start if inside is None else inside[0]
    if source is not None and (at := text.find(source, begin if source in text[begin:] else start)) >= 0:
        first, last = problem.span or (0, len(source))
        start, end = at + first, at + max(last, first + 1)
    elif inside is not None:
        start, end = inside
    elif end - start > 2 and text[start] == text[end - 1] and text[start] in "'\"":
        start, end = start + 1, end - 1
    return Excerpt("", text, start, end)


def _entry(problem: Problem, text: str, start: int) -> tuple[int, int] | None:
    """The value of the problem's key in an override's `{...}`."""
    name = next((str(key) for key in reversed(problem.path) if not str(key).isdigit()), "")  # not an item's number
    match = re.compile(rf"(?<!\w){re.escape(name)}\s*:\s*").search(text, start)
    end = None if match is None else value_end(text, match.end())
    return None if match is None or end is None else (match.end(), end)


def _alone(problem: Problem) -> Excerpt | None:
    """The line of the expression that is at fault, without a place."""
    if problem.source is None:
        return None
    start, end = problem.span or (0, len(problem.source))
    begin = problem.source.rfind("\n", 0, start) + 1
    line = problem.source[begin:].split("\n", 1)[0]
    return Excerpt("", line, start - begin, min(end - begin, len(line)))
