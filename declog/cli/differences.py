"""Compares two plans, for ``declog diff`` and ``declog check --locked``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from declog.cli.output import BOLD, GREEN, RED, YELLOW, paint

if TYPE_CHECKING:
    from declog.plans.words import Facts

Change = Mapping[str, str | None]


def differences(
    before: Mapping[str, Facts], after: Mapping[str, Facts], *, renamed: bool = False
) -> dict[str, list[Change]]:
    """The differences between two plans, by title; with ``renamed`` an output with a new name is one change."""
    changes: dict[str, list[Change]] = {}
    for title in before:
        old, new = dict(before[title]), dict(after[title])
        names = _renamed(old, new) if renamed and title == "outputs" else {}
        for name, now in names.items():
            del old[name], new[now]
        changes[title] = [*({"name": name, "now": now} for name, now in names.items()), *_changes(old, new)]
    return {title: changed for title, changed in changes.items() if changed}


def _renamed(before: Facts, after: Facts) -> dict[str, str]:
    """The outputs with a new name: exactly one removed name and one added name have the same definition."""

    def only(some: Facts, other: Facts) -> dict[tuple[str, ...], str]:
        names: dict[tuple[str, ...], list[str]] = {}
        for name in some.keys() - other.keys():
            names.setdefault(some[name][1:], []).append(name)
        return {words: same[0] for words, same in names.items() if len(same) == 1}

    went, came = only(before, after), only(after, before)
    return {went[words]: came[words] for words in sorted(went.keys() & came.keys())}


def _changes(before: Facts, after: Facts) -> Iterator[Change]:
    """The entries that only one plan has, or that differ, each with its words before and after."""
    for name in dict.fromkeys([*before, *after]):
        a, b = before.get(name), after.get(name)
        if a != b:
            was, now = _words(a, b)
            yield {"name": name, "before": was, "after": now}


def _words(a: tuple[str, ...] | None, b: tuple[str, ...] | None) -> tuple[str | None, str | None]:
    """A change in words; if both sides have the same words, the first detail that differs."""
    if a is None or b is None:
        return (None if a is None else a[0]), (None if b is None else b[0])
    return next(((was, now) for was, now in zip(a, b, strict=True) if was != now), (a[0], b[0]))


def text(differences: Mapping[str, list[Change]]) -> str:
    """The differences between two plans as text, by title."""
    return "\n\n".join(
        "\n".join([paint(title, BOLD), *(line for change in changes for line in _lines(change))])
        for title, changes in differences.items()
    )


def _lines(change: Change) -> Iterator[str]:
    name = change["name"]
    if "now" in change:
        yield paint(f"  ~ {name} is called {change['now']} now", YELLOW)
        return
    before, after = change["before"], change["after"]
    if after is None:
        yield paint(f"  - {name}: {before}".rstrip(": "), RED)
    elif before is None:
        yield paint(f"  + {name}: {after}".rstrip(": "), GREEN)
    elif len(before) + len(after) < 60:
        yield paint(f"  ~ {name}: {before} -> {after}", YELLOW)
    else:
        yield paint(f"  ~ {name}", YELLOW)
        yield paint(f"      - {before}", RED)
        yield paint(f"      + {after}", GREEN)
