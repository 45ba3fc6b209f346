"""``validate``: it turns plain data into a ``LogSpec``, or reports every mistake in the data's shape.

Errors of pydantic become declog's problems, with paths of the YAML and did-you-means, one problem for each path. A
``null`` is dropped: it deletes an entry, or resets a key.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from declog.distribution import NAME
from declog.errors import ConfigError, Path, Problem, Where, did_you_mean, in_flow, nearest
from declog.errors.nesting import nesting
from declog.language.fixes import wrong_ids
from declog.language.fixes.lists_as_maps import as_profile, counted, selector_of
from declog.language.fixes.mistakes import answered, application
from declog.language.fixes.tracker_names import id_of
from declog.language.fixes.unparsable import of_filter
from declog.language.fixes.wrong_forms import of_actions
from declog.language.fixes.wrong_types import of_type
from declog.language.keys import (
    SECTIONS,
    atoms,
    below,
    entries,
    entry_names,
    entry_path,
    is_model,
    keys,
    keys_at,
    model_of,
    says,
    sections_with,
    values,
)  # fmt: skip
from declog.language.shorthand import long
from declog.language.spec import IDENTIFIER, LogSpec
from declog.language.spec_of_tables import Length
from declog.language.spec_of_tests import TestSpec
from declog.language.tree import listed, map_at, tree_of


def validate(data: Mapping[str, Any]) -> LogSpec:
    """The config as models; raises ``ConfigError`` with every mistake of its shape.

    ``data`` is plain: resolved, without interpolations, as ``declog.config_of`` returns it. An entry that is null,
    such as ``metrics.kl``, counts as deleted: errors about its readers say so.
    """
    if not isinstance(data, Mapping):
        raise ConfigError([Problem.of("DL202.no_map", where=Where(name="config"), type=type(data).__name__)])
    if (problem := nesting(data)) is not None:
        raise ConfigError([problem])
    tree, unread = long(tree_of(_with_text_keys(data)))
    data = tree.plain
    deleted = frozenset(
        f"{'signals' if path[0] == 'derived' else path[0]}.{path[-1]}"
        for section in SECTIONS for path, value in entries(data, section) if value is None
    )  # fmt: skip
    cut = [*_cut(data, LogSpec, entry_names(data, "signals", "derived")), *_lists_in_lists(data)]
    problems = [*unread, *(problem for problem, _ in cut)]
    problems += [*_ids(data), *_period(data.get("every")), *_bools(data), *_switches(data)]
    problems += [Problem.of("DL201.key", "deleted", key="deleted", fix=None)] if "deleted" in data else []
    try:
        spec = LogSpec.model_validate({**_without_nulls(data), "deleted": deleted})
    except ValidationError as error:
        problems += map(_problem, error.errors(include_url=False))
        problems = _without_pieces(problems, cut)
        short = {problem.path for problem in unread}
        problems = _distinct([
            problem for problem in problems
            if problem in unread or short.isdisjoint((problem.path[:2], entry_path(problem.path)))
        ])  # fmt: skip
    if problems := _without_pieces(problems, cut):
        if (problem := application(data)) is not None:
            raise ConfigError([problem])
        outer = [problem for problem in problems if problem.path == ("declog",)]  # a config in a config
        answers = [answered(problem, data) for problem in outer or problems]
        raise ConfigError([problem for problem in answers if problem is not None])
    return spec


RUN_CONFIG = ("run", "config")  # the application's own configuration, with keys of any name


def _period(every: Any) -> list[Problem]:
    if not isinstance(every, int) or every >= 1:
        return []
    return [Problem.of("DL202.every_negative", "every", every=every)]


def _cut(
    data: Mapping[Any, Any], model: Any, signals: Collection[str], path: Path = ()
) -> Iterator[tuple[Problem, list[Path]]]:
    """The problems of values inside {...} that YAML ended at a comma: the rest became keys, mostly without a value.

    Each problem comes with the paths of the keys that are pieces of the value. Other problems of these keys are not
    shown. A word behind an expression belongs to the expression if it is one of the ``signals``; otherwise it is an
    unknown key.
    """
    allowed = keys(inside) if (inside := model_of(model)) is not None else None
    parts: dict[str, str] = {}  # the value that was cut, and the keys that YAML made of its rest
    ends = [key for key, value in data.items() if value is None and str(key).count(")") > str(key).count("(")]
    if ends:  # of several it is unknown which is whose
        texts = [str(_text_of(value)) for value in data.values()]
        ends = ends if len(ends) == sum(text.count("(") > text.count(")") for text in texts) == 1 else []
    for key, value in [*data.items(), ("", "")]:
        plain = _text_of(value)
        is_open = sum(part.count("(") - part.count(")") for part in parts.values()) > 0
        if key in ends[:1]:
            del ends[0]
        elif ends and is_open and value is not None:  # of another layer: the rest of the value follows all its keys
            if isinstance(value, Mapping) and len(path) < 5:
                yield from _cut(value, below(model, str(key)), signals, (*path, str(key)))
            continue
        said = re.match(r"(\w+) *=(?!=)", str(key))  # `every=2` lacks a colon
        foreign = value is None and allowed is not None and key not in allowed and not (said and said[1] in allowed)
        word = foreign and IDENTIFIER.match(str(key)) is not None
        misspelt = word and nearest(str(key), allowed or ()) is not None
        if word and parts and str(key) not in signals:
            misspelt |= any(said.of in ("signals", "metrics") for said in says(below(model, next(iter(parts)))))
        if parts and (is_open or (foreign and not misspelt)):
            parts[str(key)] = str(key) if plain is None else f"{key}={plain}"
            continue
        if len(parts) > 1 and not is_open:
            first, text = next(iter(parts)), ", ".join(parts.values())
            # YAML reads the end of `1,000` as a number
            text = re.sub(r"(?<=\d), (\d{1,3})\Z", lambda match: match[1].zfill(3), text)
            plain = all(map(IDENTIFIER.match, parts.values()))
            fix = f"{first}: [{text}]" if plain else f"{first}: {json.dumps(text, ensure_ascii=False)}"
            if first == "filter" and (rows := of_filter(text)) is not None:
                fix = f"filter: {rows}"
            problem = Problem.of("DL201.cut", (*path, [*parts][1]), value=parts[first], fix=fix)
            yield problem, [(*path, part) for part in parts]
        parts = {str(key): plain} if isinstance(plain, str) else {}
        if isinstance(value, Mapping) and len(path) < 5:
            yield from _cut(value, below(model, str(key)), signals, (*path, str(key)))


def _without_pieces(problems: list[Problem], cut: list[tuple[Problem, list[Path]]]) -> list[Problem]:
    """The problems without those of paths at or below the pieces of a value whose own problem is reported."""
    cause = {piece: problem for problem, pieces in cut for piece in pieces}
    return [item for item in problems if all(cause.get(item.path[:depth], item) is item for depth in range(5))]


def _lists_in_lists(data: Mapping[str, Any]) -> Iterator[tuple[Problem, list[Path]]]:
    """The problems of lists among the items of a list of words or maps, with the paths of the outer lists."""
    for path, value, type_ in values({**data, "tests": None}):
        items = {*atoms(below(type_, 0))}
        of_words = not items.isdisjoint((str, int, float)) or any(map(is_model, items))
        if of_words and isinstance(value, list) and any(isinstance(item, list) for item in value):
            words = in_flow([word for item in value for word in listed(item)])
            yield Problem.of("DL202.lists", path, key=path[-1], fix=f"{path[-1]}: {words}"), [path]


def _text_of(value: Any) -> Any:
    """The text of an entry that was written as one; any other value as it is."""
    texts = [text for word, text in value.items() if word in _TEXTS] if isinstance(value, Mapping) else []
    return texts[0] if len(texts) == 1 == len(value) else value


_TEXTS = ("expr", "when", "where")  # an entry with only one of these keys was written as a text


def _bools(data: Mapping[str, Any]) -> Iterator[Problem]:
    """The problems of true and false in place of numbers, which pydantic would read as 1 and 0."""
    for path, value, type_ in values(data):
        if isinstance(value, bool) and (kinds := {*atoms(type_)} & {bool, int, float}) and bool not in kinds:
            noun, example = _KINDS["float" if float in kinds else "int"]
            yield Problem.of("DL202.type", path, key=path[-1], noun=noun, fix=f"{path[-1]}: {example}")


def _switches(data: Mapping[str, Any]) -> Iterator[Problem]:
    """The problems of `kl: false`, meant to switch a metric off, and of keys below a metric's name in trackers."""
    signals = entry_names(data, "signals", "derived")
    for path, entry in entries(data, "metrics"):
        name = str(path[-1])
        if not isinstance(entry, Mapping) or not IDENTIFIER.match(name):
            continue
        switched = [*entry] == ["expr"] and isinstance(entry["expr"], bool)
        changes = switched or (entry.keys().isdisjoint(_VALUES) and name not in signals)
        id = id_of(name, data["metrics"]) if changes else None
        if switched:
            alerts = (f"{of[-1]} {alert}" for of, alert in entries(data, "alerts"))
            read = id is None and any(re.search(rf"\b{name}\b", alert) for alert in alerts)
            hidden = f"; or {name}: {{log: false}}, and its alerts stay" * read
            fix = "drop it: what a preset has is logged anyway" if entry["expr"] else f"{id or name}: null{hidden}"
            yield Problem.of("DL202.switch", path, name=name, fix=fix)
        elif id is not None:
            yield Problem.of("DL201.output", path, name=name, id=id, fix=f"metrics: {{{id}: {in_flow(entry)}}}")


_VALUES = ("expr", "formula", "observe", "reduce")  # keys that give a metric its values


def named_nulls(data: Mapping[Any, Any], model: Any = LogSpec, path: Path = ()) -> Iterator[Path]:
    """The paths of `null` in place of an entry that the user named: such a `null` deletes another layer's entry."""
    for key, value in data.items():
        if value is None and path and model_of(model) is None:
            yield (*path, str(key))
        elif isinstance(value, Mapping) and path[:1] != ("tests",) and (*path, key) != RUN_CONFIG:
            yield from named_nulls(value, below(model, str(key)), (*path, str(key)))


def _with_text_keys(data: Any, path: Path = ()) -> Any:
    """Turn YAML keys that are no texts, such as 0 or on, into texts, so that they are refused like any other key."""
    if not isinstance(data, Mapping):
        return data
    if path == RUN_CONFIG:
        return data
    return {str(key): _with_text_keys(value, (*path, str(key))) for key, value in data.items()}


def _without_nulls(data: Any, type_: Any = LogSpec, in_test: bool = False) -> Any:
    """The config without its nulls, each of which deletes an entry or resets a key.

    A null at an unknown key stays: the models refuse it, or a kind of sink knows the option. A null in the expectations
    of a test stays, too: it means that nothing is logged.
    """
    if isinstance(data, list):
        return [_without_nulls(item, below(type_, 0), in_test) for item in data]
    if not isinstance(data, Mapping):
        return data
    model = model_of(type_)
    in_test = in_test or model is TestSpec
    return {
        key: _without_nulls(value, below(type_, key), in_test) for key, value in data.items()
        if value is not None or (in_test if model is None else key not in keys(model))
    }  # fmt: skip


def _ids(data: Mapping[str, Any]) -> list[Problem]:
    problems = []
    for section in SECTIONS:
        paths = [(section, phase) for phase in map_at(data, section)] if section == "signals" else []
        for path, entry in [*((path, None) for path in paths), *entries(data, section)]:
            key = path[-1]
            if not (isinstance(key, str) and IDENTIFIER.match(key)):
                fix = wrong_ids.answer(section, str(key), entry, data)
                problems.append(Problem.of("DL204.id", (*path[:-1], str(key)), key=key, fix=fix))
    return problems


def _problem(item: Any) -> Problem:
    """Turn an error of pydantic into a problem."""
    kind, value, facts, loc = item["type"], item["input"], item.get("ctx", {}), item["loc"]
    if loc[-1:] == ("[key]",):
        return Problem.of("DL204.text", (*_key_path(loc[:-2]), str(value)), key=value)
    if kind == "extra_forbidden":
        path = (*_key_path(loc[:-1]), loc[-1])  # the last part is always a key, even if it looks like a union tag
        return Problem.of("DL201.key", path, key=path[-1], fix=_nearest_key(path))
    path = _key_path(loc)
    if kind == "missing":
        return Problem.of("DL203.key", path[:-1], key=path[-1])
    if kind.startswith("DL"):  # a model's own check
        return Problem.of(kind, path, **facts)
    if kind in ("literal_error", "enum"):
        return _not_one_of([text or digits for text, digits in _CHOICE.findall(facts["expected"])], path, value)
    of_ids = kind == "greater_than_equal" or of_type("a whole number", "", "size", value, len(path)).startswith("drop")
    if path == ("axes", "group", "size") and of_ids:  # `size: auto`, `size: -1`
        return Problem.of("DL202.group_size", path)
    if kind == "greater_than_equal":
        return Problem.of("DL202.at_least", path, key=path[-1], least=facts["ge"])
    noun, example = _KINDS.get(kind.split("_")[0], ("", ""))
    if path and noun:
        return _of_type(noun, example, path, value)
    message = str(item["msg"])
    return Problem.of("DL202.value", path, cause=f"{message[0].lower()}{message[1:]}", fix=None)


def _not_one_of(names: list[str], path: Path, value: Any) -> Problem:
    """The problem of a value that is none of the words that its key accepts."""
    close = nearest(str(value)[:80], names)
    fix = f"did you mean `{close}`?" if close is not None else None
    if isinstance(path[-1], int):
        path = path[:-1]
        fix = fix or f"{path[-1]}: {in_flow(names[:1])}"
    match path, value:
        case ["spec"], int() if value > 1:
            fix = f"it is of a later language, which a later declog reads: pip install -U {NAME}"
        case [*_, "rows"], int():
            fix = f"how many rows is a filter's: filter: {{random: {value}}}, or {{key: reward, bottom: {value}}}"
        case [*_, "rows"], Mapping():
            fix = f"which rows is a filter's: filter: {in_flow(value)}"
    if fix is None:
        fix = f"{path[-1]}: {names[0]}" if len(names) == 1 else "write one of these"
    one_of = "one of: " * (len(names) > 1)
    return Problem.of("DL202.one_of", path, key=path[-1], one_of=one_of, names=", ".join(names), fix=fix)


def _of_type(noun: str, example: str, path: Path, value: Any) -> Problem:
    """The problem of a value with a wrong type for its key."""
    match path, value:
        case ["profile"], Mapping():
            return Problem.of("DL202.profiles", "profile")
        case ["profiles", name], str() | list():
            cause, fix = "a profile is a map", f"{name}: {in_flow(as_profile(str(name), value))}"
        case ["alerts", *_, "do"], _:
            cause, fix = "`do` is a list", of_actions(value)
        case [*_, key], str() if noun == _KINDS["int"][0] and _SPAN_OF_TIME.fullmatch(value):
            steps = "log events" if key in ("for", "cooldown") else "steps"
            cause, fix = f"`{key}` counts {steps}, and no time", f"{key}: {counted(value) or 1}"
        case [*_, "random" | "first" as key], float() if 0 < value < 1:
            cause, fix = f"`{key}` counts rows", f"fraction: {value}"
        case [*_, "random" | "first" as key], str() if percent := re.fullmatch(r"\s*(\d+)\s*%\s*", value):
            cause, fix = f"`{key}` counts rows", f"fraction: {int(percent[1]) / 100:g}"
        case ["profiles", _, "only" | "hide" | "show" as key], str():
            words = in_flow([*map(selector_of, re.split(r"[\s,]+", value))])
            cause, fix = f"`{key}` is a list", f"{key}: {words}"
        case [*_, "columns"], "all" | "*":
            cause, fix = "`columns` are names", "columns: [prompt, completion, reward]"
        case [*_, "where" | "when" as key], list():
            cause, fix = f"`{key}` is one condition", f"{key}: {in_flow(' and '.join(map(str, value)))}"
        case _:
            key = next(str(part) for part in reversed(path) if isinstance(part, str))
            fix = of_type(noun, example, key, value, len(path))
            if isinstance(path[-1], int):
                fix = fix.removeprefix(f"{key}: ")
                return Problem.of("DL202.item", path, key=key, noun=noun, fix=fix)
            return Problem.of("DL202.type", path, key=key, noun=noun, fix=fix)
    return Problem.of("DL202.value", path, cause=cause, fix=fix)


_KINDS = {  # by the beginning of pydantic's error: the noun for the type, and a value that any such key accepts
    "int": ("a whole number", "10"), "float": ("a number", "0.5"), "bool": ("true or false", "true"),
    "string": ("text", ""), "list": ("a list", ""), "dict": ("a map", ""), "model": ("a map", ""),
}  # fmt: skip
_SPAN_OF_TIME = re.compile(r"\s*\d+ *(ms|[smhd]|(sec|min|hr|hour|minute|second|day)s?)\s*")
_CHOICE = re.compile(r"'([^']*)'|(\d+)")  # one choice in the text of pydantic's `expected`
_UNION_TAGS = re.compile(
    r"^(bool|int|float|str|union\[.*|constrained-.*|literal\[.*|dict\[.*|list\[.*|function-.*|[A-Z]\w*)$"
)


def _key_path(loc: tuple[str | int, ...]) -> Path:
    """The path for a location of pydantic, without the names of union members and models."""
    path: list[str | int] = []
    model: Any = LogSpec
    for part in loc:
        inside = model_of(model)
        is_key = part in keys(inside) if inside is not None else typing.get_origin(model) in (dict, list)
        tag = isinstance(part, str) and _UNION_TAGS.match(part) and not is_key
        if not tag and not (inside is Length and part == "most"):  # `most` is no key: a plain number sets it
            path.append(part)
            model = below(model, part)
    return tuple(path)


def _nearest_key(path: Path) -> str | None:
    key, allowed = str(path[-1]), keys_at(path[:-1])
    if not allowed:
        return None
    homes = sections_with(key) if len(path) > 1 else []
    if len(homes) == 1 and nearest(key, allowed) is None:
        return f"it is a key of the entries of {homes[0]}"
    if key in ("optional", "nullable") and "required" in allowed:
        return "drop it: that is the default, and `required: true` says the opposite"
    return did_you_mean(key, allowed, what="keys")


def _distinct(problems: list[Problem]) -> list[Problem]:
    """One problem per path: pydantic reports each member of a union, and the values inside of a map beside the map."""
    kept: dict[Path, Problem] = {}
    for problem in problems:
        first = kept.setdefault(problem.path, problem)
        if first.code == problem.code == "DL202" and problem.message not in first.message:
            other = problem.message.removeprefix(f"`{problem.path[-1]}` must be ")
            kept[problem.path] = Problem.of(
                "DL202.either", problem.path, message=first.message, other=other, fix=first.fix
            )
    inner = [path[:depth] for path in kept for depth in range(len(path))]
    return [problem for path, problem in kept.items() if problem.code != "DL202" or path not in inner]
