"""The uses of a name in a config: every key whose text names metrics, signals, constants, filters or schemas.

The models mark these keys. A config is plain data in its long form.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from declog.errors import Path
from declog.language.keys import atoms, entries, entry_path, says, values
from declog.language.model import Says
from declog.language.tree import map_at, tree_of

_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")
Spans = Iterator[tuple[int, int]]


@dataclass(frozen=True)
class Use:
    """A place where a name is used: the key ``path`` itself, or the range ``span`` of the text ``source`` at it."""

    path: Path
    source: str | None = None
    span: tuple[int, int] | None = None


def uses(data: Mapping[str, Any], section: str, name: str) -> Iterator[Use]:
    """Every use of the entry ``name`` of a section, its own entry's key among them."""
    yield from (Use(path) for path, _ in declared(data, section) if path[-1] == name)
    for path, text, said in texts(data):
        if said.of == section or (section == "constants" and said.form == "expression"):
            yield from (Use(path, text, span) for span in SPANS[said.form](text, name, said.of))
    if section in OF_TESTS:
        paths = (path for path, _ in tree_of({"tests": map_at(data, "tests")}).walk())
        yield from filter(None, dict.fromkeys(OF_TESTS[section](path, name) for path in paths))
    if section == "metrics" and isinstance(alert := map_at(data, "alerts").get(name), Mapping):
        yield from [Use(("alerts", name))] if {"above", "below"} & set(alert) else []
    if section == "metrics" and name in map_at(data, "about"):
        yield Use(("about", name))
    if section == "signals":
        for table, columns in map_at(data, "schemas").items():
            column = (columns or {}).get(name, "") if isinstance(columns, Mapping) else ""
            if isinstance(column, Mapping) and not {"expr", "call", "undeclared"} & set(column):
                yield Use(("schemas", table, name))


def declared(data: Mapping[str, Any], section: str) -> Iterator[tuple[Path, Any]]:
    """The entries of a section, with their paths; for `signals` also the derived values, which are read as signals."""
    for kind in (section, "derived") if section == "signals" else (section,):
        yield from entries(data, kind)


def texts(data: Any) -> Iterator[tuple[Path, str, Says]]:
    """The texts of a config that use names, with what the models say of their keys."""
    for path, value, type_ in values(data):
        if isinstance(value, str) and not any(value in typing.get_args(atom) for atom in atoms(type_)):
            yield from ((path, value, said) for said in says(type_))  # not for a word of the key's own


def _in_expression(text: str, name: str, section: str) -> Spans:
    """The spans of a name outside of quotes, where it is not a function, an attribute or a keyword of a call."""
    blank = _TEXT.sub(lambda quoted: " " * len(quoted[0]), text)
    behind = r"(?![\w'\"(]|\s*=(?!=))" if section == "metrics" else r"(?![\w.'\"(]|\s*=(?!=))"
    return (match.span() for match in re.finditer(rf"(?<![\w.]){re.escape(name)}{behind}", blank))


def _as_text(text: str, name: str, section: str) -> Spans:
    yield from [(0, len(text))] if text == name else []


def _in_selector(text: str, name: str, section: str) -> Spans:
    words = (word for word in re.finditer(r"[^\s,]+", text) if word[0].split(".")[0] == name)
    return ((word.start(), word.start() + len(name)) for word in words)


def _in_template(text: str, name: str, section: str) -> Spans:
    return (match.span(1) for match in re.finditer(rf"\{{({re.escape(name)})(?=[.:}}])", text))


SPANS: Mapping[str, Callable[[str, str, str], Spans]] = {
    "expression": _in_expression, "name": _as_text, "selector": _in_selector, "template": _in_template,
}  # fmt: skip


def _expected(path: Path, name: str) -> Use | None:
    """The use of a metric that a test expects."""
    key = next((at for at in range(2, len(path)) if path[0] == "tests" and path[at - 1] == "expect"), None)
    return Use(path[: key + 1]) if key is not None and str(path[key]).split(".")[0] == name else None


def _observed(path: Path, name: str) -> Use | None:
    """The use of a signal that a test gives."""
    if path[0] != "tests":
        return None
    not_signals = ("expect", "tables", "alerts", "constants", "columns", "with")
    places = (at for at in range(2, len(path)) if path[at] == name and path[at - 1] not in not_signals)
    return next((Use(path[: at + 1]) for at in places), None)


OF_TESTS: Mapping[str, Callable[[Path, str], Use | None]] = {"metrics": _expected, "signals": _observed}


def readers(data: Mapping[str, Any], section: str, name: str) -> list[str]:
    """The entries, such as ``alerts.kl``, that use an entry."""
    declarations = {path for path, _ in declared(data, section) if path[-1] == name}
    paths = [path for use in uses(data, section, name) if (path := entry_path(use.path)) not in declarations]
    if section == "signals" and isinstance(metric := map_at(data, "metrics").get(name), Mapping):
        paths += [("metrics", name)] if not {"expr", "formula", "observe"} & set(metric) else []
    return list(dict.fromkeys(".".join(map(str, path)) for path in paths if path[0] not in ("tests", "about")))


def old_names(data: Mapping[str, Any], section: str) -> dict[str, str]:
    """The old names of a section's entries, each with the name that the entry has now."""
    names: dict[str, str] = {}
    for path, entry in declared(data, section):
        before = entry.get("renamed") if isinstance(entry, Mapping) else None
        for old in [before] if isinstance(before, str) else before if isinstance(before, list) else ():
            names[str(old)] = str(path[-1])
    return names
