"""Rewrite fixes as overrides: the YAML edits that a fix shows become the words to type in place of an override."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import yaml

from declog.config.overrides import parsed, pasted, setting
from declog.config.quoting import is_expression
from declog.config.search_path import GROUP
from declog.errors import FLOW_MAP, Path, Problem, nearest
from declog.language.fixes.library_calls import named_by
from declog.language.fixes.mistakes import EXTENDS
from declog.language.keys import SECTIONS, entry_path
from declog.language.keys import keys as keys_of
from declog.language.keys import keys_at as keys_below
from declog.language.spec import LogSpec
from declog.language.tree import listed


def in_override_terms(problem: Problem, prefix: Path) -> Problem:
    """The problem of an override, with its fix written as an override: with a near name, or with the fix's YAML."""
    where, fix = problem.where, problem.fix
    if fix is None or where is None or where.override is None or where.excerpt is None:
        return problem
    line, start, end = where.override, where.excerpt.start, where.excerpt.end
    said = parsed(line) if problem.code == "DL201" and len(problem.path) == 1 else None
    if said is not None and (choice := choice_of(str(problem.path[0]), said.value())) is not None:
        return replace(problem, fix=choice)
    if problem.code == "DL301" and re.fullmatch(rf"\+*{GROUP}\.alerts\.\w+=", line):
        return problem.saying("DL301.bound", fix=setting(line[:-1], "> 0.5"))
    if problem.near is not None:
        named = re.fullmatch(r"\w+", line[start:end]) is not None
        return replace(problem, fix=pasted(f"{line[:start]}{problem.near}{line[end:]}")) if named else problem
    both = named_by(fix)
    override = parsed(line)
    if both is not None and override is not None:
        of = ".".join([*map(str, prefix), "metrics"])
        defined = [setting(f"++{of}.{id}", entry) for id, entry in yaml.safe_load(both[0]).items()]
        if isinstance(alert := yaml.safe_load(both[1]), dict):
            of = f"++{of.removesuffix('metrics')}alerts"
            return replace(problem, fix="\n".join([*defined, *(setting(f"{of}.{id}", alert[id]) for id in alert)]))
        value = _with_text(override.value(), str(problem.source), str(alert))
        return replace(problem, fix=" ".join([*defined, setting(line.partition("=")[0], value)]))
    if (written := _WRITTEN_HERE.fullmatch(fix)) is not None and override is not None:
        value, here = override.value(), written[1]
        entire = isinstance(value, str) and (value == problem.source or is_expression(value))
        mended = here if entire else _with_text(value, str(problem.source), here)
        return replace(problem, fix=setting(line.partition("=")[0], mended)) if mended != value else problem
    answers = [_as_overrides(answer, line, problem.path, prefix) for answer in fix.split("  or  ")]
    problem = replace(problem, fix="  or  ".join(answers))
    return problem if (sweep := _as_sweep(problem, line)) is None else replace(problem, fix=sweep)


def _as_sweep(problem: Problem, line: str) -> str | None:
    """The fix for ``every=[1,2]`` or ``every=1 2`` where one value is needed: a sweep over these; None for others."""
    of_one = problem.message_key in ("DL202.type", "DL202.one_of", "DL202.either") and "list" not in problem.message
    listing = _SEVERAL.fullmatch(line)
    if listing is None or not of_one or listing[2] != problem.path[-1]:
        return None
    values = ",".join(re.split("[,;| ]+", listing[3] or listing[4]))
    return f"{listing[1]}{values} on a command line with -m, for a run of each; of one: {problem.fix}"


_SEVERAL = re.compile(r"""(.*\b(\w+)=)(?:\[([^\[\]{}']+)\]|['"]?([\d.e+-]+(?:[;| ]+[\d.e+-]+)+)['"]?)""")


def choice_of(key: str, value: Any) -> str | None:
    """The overrides for a key that means an entry of a defaults list: `preset: rloo`, `packs: [sources]`.

    None for another key.
    """
    items = listed(value)
    if key in ("pack", "packs"):
        presets, packs = [], items
    elif key in EXTENDS or nearest(key, ["defaults"]):
        presets = [item for item in items if isinstance(item, str) and re.fullmatch(r"(?!_self_)\w+", item)]
        packs = [pack for item in items for pack in re.findall(r"packs/(\w+)", str(item))]
        packs += [pack for item in items if isinstance(item, dict) for pack in item.get("packs", [])]
    else:
        return None
    beside = f" {setting(f'+{GROUP}/packs@{GROUP}', packs)}" if packs else ""
    return "  or  ".join(f"{GROUP}={preset}{beside}" for preset in presets) or beside.strip() or None


def _as_overrides(fix: str, line: str, path: Path, prefix: Path) -> str:
    """A fix with overrides in place of its edit, or of both edits if one stands behind the other."""
    parts = re.split(r", and (?=`\w+: \{.*\}`\Z)", fix)
    shown = [_as_override(part, line, path, prefix) for part in parts]
    if None in shown:
        return _as_override(fix, line, path, prefix) or fix
    return " ".join(map(str, shown))


def _as_override(fix: str, line: str, path: Path, prefix: Path) -> str | None:
    """A fix with overrides in place of its YAML; None if the YAML does not edit what the override sets.

    ``path`` is the path of the problem with the override ``line``.
    """
    key = ".".join(map(str, (*prefix, *path)))
    name = line.partition("=")[0].lstrip("+")
    sign = line[: line.index(name)]
    if len(path) > 1 and key == name and (beside := _keys_beside(fix, path)):
        above = key.removesuffix(str(path[-1]))
        settings = [setting(("++" if word != path[-1] else sign) + above + word, item) for word, item in beside.items()]
        return " ".join(settings)
    edit = edit_of(fix, path, prefix)
    sections = tuple(".".join([*map(str, prefix), section]) for section in _DECLARED)
    config = ".".join([*map(str, prefix), "run", "config"])  # other layers set keys of this map, too
    declares = edit is not None and edit[0].startswith((*sections, config))
    if edit is None or not (f"{name}.".startswith((f"{key}.", f"{edit[0]}.")) or declares):
        return None
    of, data, (start, end) = edit
    is_above = isinstance(data, dict) and of in (config, name.rpartition(".")[0])
    entries = {f"{of}.{word}": item for word, item in data.items()} if is_above else {}
    if of == config and (override := parsed(line)) is not None:
        said = {name.rpartition(".")[2], *_words_in(override.value())}
        entries = {to: value for to, value in entries.items() if to.rpartition(".")[2] in said}
    settings = [setting((sign if to == name else "++") + to, value) for to, value in (entries or {of: data}).items()]
    words = re.sub(r"\A: (.+)", r" (\1)", fix[end:])  # a shell must not take it for a part of the override
    return f"{fix[:start]}{' '.join(settings)}{words}"


def _words_in(value: Any) -> set[str]:
    """The keys of a map, and of the maps in it."""
    items = value.items() if isinstance(value, dict) else ()
    return {word for key, item in items for word in (str(key), *_words_in(item))}


def _with_text(value: Any, text: str, new: str) -> Any:
    """A value whose texts have ``new`` in place of ``text``."""
    if isinstance(value, dict):
        return {key: _with_text(item, text, new) for key, item in value.items()}
    return value.replace(text, new) if isinstance(value, str) else value


def _keys_beside(fix: str, path: Path) -> dict[str, Any]:
    """The keys and values of a fix with several keys of an entry, ``expr: reward, reduce: p90``; empty for another."""
    try:
        data = yaml.safe_load(f"{{{fix}}}")
    except yaml.YAMLError:
        return {}
    keys = {*keys_at([*map(str, path[:-1])])}
    return data if isinstance(data, dict) and len(data) > 1 and data.keys() <= keys else {}


_WRITTEN_HERE = re.compile(r"write `((?!(?:\w+: )?\{)[^`]+)`")  # an expression, not a map
_DECLARED = ("signals.", "schemas.", "metrics.", "about.", "constants.", "axes.")  # what an edit may declare


def edit_of(fix: str, path: Path, prefix: Path) -> tuple[str, Any, tuple[int, int]] | None:
    """The dotted key, the value and the span of the first edit in YAML that a fix shows; None if it shows none.

    ``path`` is the problem's. The key in the fix is a key of this path, a key beside its last key, or a section.
    """
    match = _EDIT.search(fix)
    if match is None or "..." in match["value"] or "${" in fix:  # an interpolation is no map
        return None
    try:
        data = yaml.safe_load(match["value"])
    except yaml.YAMLError:
        return None
    keys, key, span = [str(name) for name in path], match["key"], match.span()
    if key is None and len(keys) > 2 and isinstance(data, dict) and keys[-1] in data:  # the entry, for one of its keys
        keys.pop()
    beside = keys_at(keys[:-1]) if len(keys) > 1 else ()
    if key in beside or key == keys[-1] or (data is None and key not in (None, *keys_of(LogSpec))):
        keys[-1] = key
    elif key in keys[1:-1]:  # the entry
        keys = keys[: keys.index(key) + 1]
    elif key in keys_at(keys):
        keys.append(key)
    elif key in keys_of(LogSpec) and (isinstance(data, dict) or key not in SECTIONS):
        entry, keys = [*map(str, entry_path(path))], [key]
        while isinstance(data, dict) and len(data) == 1 and keys != entry:  # what is wrong there is replaced
            ((name, data),) = data.items()
            keys.append(str(name))
    elif match["value"][0] != "{":
        return None
    elif key is not None:  # it is prose: `a filter is a map: {random: 8}`
        span = match.span("value")
    return ".".join([*map(str, prefix), *keys]), data, span


_SIGNAL = "(?:step|group|completion|token) [a-z]+"
_VALUE = rf"""{FLOW_MAP}|(?<=: )\[[^\[\]]*\]|(?<=: ){_SIGNAL}|(?<=: )(?:"[^"]*"|[^\s`]+)(?=$|  or |, where )"""
_EDIT = re.compile(rf"`?(?:(?P<key>[a-z_]\w*): )?(?P<value>{_VALUE})`?", re.MULTILINE)


def keys_at(path: list[str]) -> Collection[str]:
    """The keys that a map at a path of the configuration may have; none if their names are the user's own."""
    return keys_below(path[1:] if path[:1] == [GROUP] else path)
