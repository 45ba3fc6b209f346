"""Who uses a name of a profile: the keys and the texts in which a metric, a signal, a filter or a schema is named.

Plain data in its long form; imports the errors' ``Path`` only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from declog.errors import Path

# Keys whose texts are expressions over signals; those over metrics; those that hold one name.
OVER_SIGNALS = frozenset({"expr", "where", "weight", "by", "key", "mask", "of", "ids", "lengths", "enabled", "instead"})
OVER_METRICS = frozenset({"formula", "when", "metric"})
_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")


@dataclass(frozen=True)
class Use:
    """A place where a name is used: the key ``path`` itself, or the range ``span`` of the text ``source`` at it."""

    path: Path
    source: str | None = None
    span: tuple[int, int] | None = None


def uses(data: Mapping[str, Any], section: str, name: str) -> Iterator[Use]:
    """Every use of the entry ``name`` of a section, its own entry's key among them."""
    if name in entries(data, section):
        yield Use((section, name))
    for path, value in leaves(data):
        if section == "metrics" and (found := _expected(path, name)) is not None:
            yield found
        if section == "signals" and (found := _observed(path, name)) is not None:
            yield found
        if isinstance(value, str) and path[0] != "run_config":
            yield from (Use(path, value, span) for span in _named(path, value, section, name))
    if section == "signals":
        for table, columns in entries(data, "schemas").items():
            column = (columns or {}).get(name, "") if isinstance(columns, Mapping) else ""
            if isinstance(column, Mapping) and not {"expr", "call", "undeclared"} & set(column):
                yield Use(("schemas", table, name))


def entries(data: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    """The entries of a section; none where it is no map."""
    found = data.get(section)
    return found if isinstance(found, Mapping) else {}


def _named(path: Path, text: str, section: str, name: str) -> Iterator[tuple[int, int]]:
    """Where a text names it."""
    key = path[-2] if isinstance(path[-1], int) else path[-1]
    if section in ("filters", "schemas"):
        if path[0] in ("tables", "filters") and key in (section[:-1], "from") and text == name:
            yield 0, len(text)
        return
    selects = path[0] == "profiles" and len(path) > 3 and path[-1] != "when"
    if section == "metrics" and selects:
        for word in re.finditer(r"[^\s,]+", text):
            if word[0].split(".")[0] == name:
                yield word.start(), word.start() + len(name)
        return
    if section == "metrics" and path[0] == "alerts" and key == "text":
        yield from (found.span(1) for found in re.finditer(rf"\{{({re.escape(name)})(?=[.:}}])", text))
        return
    over = key in (OVER_METRICS if section == "metrics" else OVER_SIGNALS)
    if section == "constants":
        over = key in OVER_SIGNALS | OVER_METRICS
    if over and path[0] in ("metrics", "signals", "filters", "schemas", "axes", "alerts", "profiles"):
        behind = r"(?![\w'\"(])" if section == "metrics" else r"(?![\w.'\"(])"
        blank = _TEXT.sub(lambda found: " " * len(found[0]), text)
        yield from (found.span() for found in re.finditer(rf"(?<![\w.]){re.escape(name)}{behind}", blank))


def _expected(path: Path, name: str) -> Use | None:
    """A metric that a test expects."""
    key = next((at for at in range(2, len(path)) if path[0] == "tests" and path[at - 1] == "expect"), None)
    return Use(path[: key + 1]) if key is not None and str(path[key]).split(".")[0] == name else None


def _observed(path: Path, name: str) -> Use | None:
    """A signal that a test gives."""
    if path[0] != "tests":
        return None
    others = ("expect", "tables", "alerts", "constants", "columns", "with")
    places = (at for at in range(2, len(path)) if path[at] == name and path[at - 1] not in others)
    return next((Use(path[: at + 1]) for at in places), None)


def leaves(data: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every key that holds a value, lists and empty maps included, in order; a list's entries one by one."""
    for key, value in data.items():
        here = (*path, key)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, here)
        elif isinstance(value, list) and any(isinstance(item, str | Mapping) for item in value):
            for place, item in enumerate(value):
                yield from leaves(item, (*here, place)) if isinstance(item, Mapping) else [((*here, place), item)]
        else:
            yield here, value


def readers(data: Mapping[str, Any], section: str, name: str) -> list[str]:
    """The entries, such as ``alerts.kl``, that use an entry."""
    found = [use.path[:2] for use in uses(data, section, name) if use.path[:2] != (section, name)]
    if section == "signals" and isinstance(metric := entries(data, "metrics").get(name), Mapping):
        found += [("metrics", name)] if not {"expr", "formula", "axis"} & set(metric) else []
    return list(dict.fromkeys(".".join(map(str, path)) for path in found if path[0] != "tests"))


def old_names(data: Mapping[str, Any], section: str) -> dict[str, str]:
    """The names that entries of a section had, each with the one that it has now."""
    found: dict[str, str] = {}
    for name, entry in entries(data, section).items():
        before = entry.get("renamed") if isinstance(entry, Mapping) else None
        for old in [before] if isinstance(before, str) else before if isinstance(before, list) else ():
            found[str(old)] = str(name)
    return found
