"""Fixes that repeat an entry show it as its file has it: with its interpolations, and without keys of presets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import yaml

from declog.errors import FLOW_MAP, Path, Problem, in_flow
from declog.language.keys import SECTIONS, entry_path
from declog.language.tree import at, has, tree_of


def as_written(
    problem: Problem, data: Mapping[str, Any], written: Mapping[str, Any], file_of: Callable[[Path], str | None]
) -> Problem:
    """The problem, with a fix that repeats only keys that the problem's file sets, and repeats them as written there.

    ``data`` has the values in effect, and ``written`` the texts in the files. ``file_of`` returns the file that sets a
    key.
    """
    fix, where = problem.fix, problem.where
    if fix is None or not problem.path:
        return problem
    file = file_of(problem.path) if where is not None and where.override is None else None
    if file is not None:
        fix = _without_layers_below(fix, problem.path, data, lambda path: file_of(path) != file)
    entry = entry_path(problem.path) if problem.path[0] in SECTIONS else problem.path[:1]
    for path, text in _interpolations(written, entry):
        if has(data, path) and (value := at(data, path)) != text:
            key = r"\w+" if path == problem.path else re.escape(str(path[-1]))
            pair = re.compile(rf"\b({key}: ?){re.escape(in_flow(value))}(?=[,}}\]\s'`]|\Z)")
            fix = pair.sub(lambda match, text=text: f"{match[1]}{in_flow(text)}", fix)  # type: ignore[misc]
            keys = value if isinstance(value, Mapping) else {"expr": value}  # of an entry in its short form
            for said in (*keys.values(), f"{keys.get('reduce')}({keys.get('expr')})"):
                fix = _with_interpolations(fix, text, str(said), re.sub(_OPEN, "", in_flow(at(written, entry))))
    return replace(problem, fix=fix)


def _interpolations(written: Mapping[str, Any], entry: Path) -> Iterator[tuple[Path, str]]:
    """The texts of an entry that have an interpolation, with their paths."""
    if isinstance(text := at(written, entry), str) and "${" in text:
        yield entry, text
    elif isinstance(at(written, entry), Mapping):
        for path, node in tree_of(at(written, entry)).walk(entry):
            if isinstance(node.value, str) and "${" in node.value:
                yield path, node.value


def _with_interpolations(fix: str, text: str, value: str, rest: str) -> str:
    """The fix, with the interpolations of ``text`` in its expressions in place of their values in ``value``.

    A value that also stands in the ``rest`` of the entry, as it is written, stays.
    """
    pieces = re.split(rf"({_OPEN})", text)
    values = re.fullmatch("".join("(.+?)" if piece[:2] == "${" else re.escape(piece) for piece in pieces), value)
    for name, said in zip(pieces[1::2], values.groups() if values else (), strict=False):
        word = re.compile(rf"(?<![\w.]){re.escape(said)}(?![\w.])")
        if not word.search(rest):
            fix = _EXPRESSION.sub(partial(_instead, word, name), fix)
    return fix


def _instead(word: re.Pattern[str], name: str, shown: re.Match[str]) -> str:
    """The part of a fix with an expression, which has ``name`` in place of a word."""
    text = yaml.safe_load(shown["text"]) if shown["key"] and shown["text"][0] == '"' else shown["text"] or shown[0]
    here = word.sub(lambda _: name, text)
    return shown[0] if here == text else f"{shown['key']}{in_flow(here)}" if shown["key"] else here


_OPEN = r"\$\{[^{}]*\}"  # an interpolation
_EXPRESSION = re.compile(
    r'\b(?P<key>(?:expr|formula|where|when|by): )(?P<text>"(?:[^"\\]|\\.)*"|[^"\s,{}][^,{}\n]*)|`[^`:]+`'
)


def _without_layers_below(fix: str, at_fault: Path, data: Mapping[str, Any], below: Callable[[Path], bool]) -> str:
    """The fix without those keys of its maps that lower layers set to the same values: a map does not change them."""

    def rest(shown: Mapping[Any, Any], path: Path) -> dict[Any, Any]:
        kept = {}
        for key, value in shown.items():
            here = (*path, str(key))
            inner = rest(value, here) if isinstance(value, Mapping) else value
            same = has(data, here) and in_flow(at(data, here)) == in_flow(value) and below(here)
            if not same and not (value and inner == {}):
                kept[key] = inner
        return kept

    def shorter(match: re.Match[str]) -> str:
        paths = [(*at_fault[:depth], match[1]) for depth in range(len(at_fault) - 1, -1, -1)]
        path = next((path for path in paths if has(data, path)), None)
        try:
            shown = yaml.safe_load(match[2])
        except yaml.YAMLError:
            return match[0]
        kept = {} if path is None else rest(shown, path)
        return f"{match[1]}: {in_flow(kept)}" if kept and kept != shown else match[0]

    return _MAP.sub(shorter, fix)


_MAP = re.compile(rf"\b(\w+): ({FLOW_MAP})")
