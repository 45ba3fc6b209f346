"""Problems of overrides that cannot be read, or cannot be applied to the tree composed so far, with what to type."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from declog.config.overrides import (
    ADDS,
    may_be_added,
    parsed,
    pasted,
    setting,
    taken,
    with_colons,
    with_equals,
    written,
)
from declog.config.problems.override_fixes import choice_of, edit_of, keys_at
from declog.config.search_path import GROUP
from declog.config.uses import old_names
from declog.errors import Excerpt, Problem, Where, did_you_mean, elsewhere, in_flow, nearest, nested
from declog.language.fixes import lists_as_maps, mistakes, wrong_forms
from declog.language.fixes.alert_keys import of_list
from declog.language.fixes.lists_as_maps import sinks_and_options
from declog.language.fixes.tracker_names import id_of, metric_of, of_one_reduction, with_families
from declog.language.fixes.wrong_ids import under_an_id
from declog.language.keys import SECTIONS
from declog.language.notation import SIGNS
from declog.language.shorthand import signal_names
from declog.language.tree import Node

CURLY = ("\u2018", "\u2019", "\u201c", "\u201d")
CURLY_TO_PLAIN = str.maketrans({mark: "'" if mark < "\u201c" else '"' for mark in CURLY})


class Refused(HydraException):
    """Overrides that cannot be applied."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems


def problem_of(
    line: str, key: str, span: tuple[int, int] | None = None, /, *, behind: bool = False, **facts: Any
) -> Problem:
    """A problem with an override; ``behind`` puts the caret under the value, behind the ``=``."""
    if span is None:
        span = (line.find("=") + 1 if behind else 0, len(line))
    where = Where(override=line, excerpt=Excerpt("", line, *span))
    return Problem.of(key, source=line, span=span, where=where, **facts)


# -- overrides that cannot be read


def unreadable(line: str, tree: Node | None = None) -> Problem | None:
    """The problem of an override that Hydra cannot parse, mostly an expression without quotes; None if Hydra can.

    ``tree`` is the configuration that the override changes. Without it, the fix sets the key whether it exists or not.
    """
    if parsed(line) is not None:
        return None
    key, equals, value = line.partition("=")
    if curly := [mark for mark in CURLY if mark in line]:
        plain = line.translate(CURLY_TO_PLAIN).replace("'", "").replace('="', "=").rstrip('"')
        return problem_of(line, "DL101.curly", marks="".join(curly), fix=pasted(plain))
    path = key.strip("+~").split(".")
    if path[0] in ADDS and "/" not in key and (tree is None or tree.at(path) is None):
        key = key.replace(path[0], f"{GROUP}.{path[0]}", 1)  # the config is a node of the application's
    if key.endswith("+"):
        key = key.strip("+")
        node = None if tree is None else tree.at(key.split("."))
        items = ["..."] if node is None or not isinstance(node.value, list) else node.plain
        added = value[1:-1] if value[:1] == "[" else value
        return problem_of(line, "DL101.append", key=key, fix=f"{key}=[{_appended(items, added.split(','))}]")
    if (dotted := re.sub(r"\[(\w+)\]", r".\1", key)) != key:
        return problem_of(line, "DL101.index", fix=f"{dotted}={value}")
    if "*" in key:
        return problem_of(line, "DL101.star")
    if "/" in key and "." in key:
        return _slashed(line, key, value, tree)
    if not equals or not key or ":" in key:
        if re.fullmatch(r"\+*[a-z_][\w./@]*", line):
            return problem_of(line, "DL101.no_value", line=line)
        said = with_equals(line)
        fix = pasted(said) if said else "an override is key=value, +key=value or ~key"
        return problem_of(line, "DL101.no_override", fix=fix)
    if key.removeprefix(f"{GROUP}.").startswith("--"):
        return problem_of(line, "DL101.dashes", fix=line.replace("--", "", 1))
    is_open = value.count("[") == value.count("]") + 1 and parsed(f"key={value}]") is not None
    fixed = f"{key}={value}]" if is_open else f"{key}={taken(value)}"
    if not key.startswith("~"):
        key = key.lstrip("+")
        sign = "++" if tree is None else "" if tree.at(key.split(".")) is not None else "+"
        fixed = f"{sign}{fixed.lstrip('+')}"
    if is_open:
        return problem_of(line, "DL101.unclosed", behind=True, fix=pasted(fixed))
    if parsed(fixed) is None:
        return problem_of(line, "DL101.unreadable", behind=True, cause=_detail(line))
    if (problem := without_colons(line, fixed.partition("=")[0], value)) is not None:
        return problem
    part = r"[\d.e+-]+" if {*path} & {"metrics", "alerts", "filters"} else r"[\w.+-]+"  # `reward | topic` is no sweep
    if re.fullmatch(rf"{part}(?:\s*[;|]\s*{part})+", value):
        values = ",".join(re.split("[;| ]+", value))
        fix = f"{fixed.partition('=')[0]}={values} on a command line with -m, for a run of each"
        return problem_of(line, "DL101.sweep_commas", behind=True, value=value, fix=fix)
    if value[:1] in ("[", "{"):
        return problem_of(line, "DL101.quotes_inside", behind=True, fix=pasted(fixed))
    return problem_of(line, "DL101.quotes", behind=True, value=value, fix=pasted(fixed))


def without_colons(line: str, key: str, value: str) -> Problem | None:
    """The problem of ``=`` behind a key inside of a map; ``key`` is the override's key with its sign."""
    if parsed(f"key={value}") is not None or (of_colons := with_colons(value)) == value:
        return None
    start = line.find("=") + 1
    at = next((at for at, (one, other) in enumerate(zip(value, of_colons, strict=False)) if one != other), 0)
    equals = start + value.find("=", at - 1)
    fix = pasted(f"{key}={taken(of_colons)}")
    return problem_of(line, "DL101.equals_inside", (equals, equals + 1), fix=fix)


def _slashed(line: str, key: str, value: str, tree: Node | None) -> Problem:
    """The problem of an id with a `/` in it: a metric as trackers show it, or a text for the entry's key `name`."""
    deletes, sign, parts = key[0] == "~", key[: len(key) - len(key.lstrip("+"))], key.lstrip("+~").split(".")
    index = next((at for at, part in enumerate(parts) if at and "/" in part), 0)
    name, within = parts[index], index < len(parts) - 1
    plain = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")
    section, _, entry = name.partition("/")
    if section in SECTIONS and parts[:index] == [GROUP]:  # `metrics/m`
        fix = f"{sign}{'.'.join([GROUP, section, entry.replace('/', '_'), *parts[index + 1 :]])}={value}"
        return problem_of(line, "DL101.slash_for_dot", fix=pasted(fix))
    start = len(sign) + len(".".join(parts[:index])) + bool(index)
    span = start, start + len(name)
    data = None if tree is None else tree.at(parts[: index - 1])
    metrics = None if data is None or data.at(["metrics"]) is None else data.plain["metrics"]
    shown = metric_of(with_families(metrics, data.plain), name) if data is not None and metrics else None
    if metrics and parts[index - 1] == "metrics" and len(parts) - index < 3:
        of_key = {parts[-1]: {"false": False}.get(value, value)} if within else {}
        said = None if deletes or value == "null" else of_key
        changed = of_one_reduction(name, {**metrics, name: said})
        if changed is not None:
            fix = " ".join(setting(f"++{'.'.join(parts[:index])}.{id}", entry) for id, entry in changed.items())
            return problem_of(line, "DL101.slash", span, name=name, fix=fix)
    of_alert = parts[index - 1] == "alerts"
    condition = value if of_alert and re.match("[<>=!]", value) else None  # `> 0.5 for 3`
    changes = parts[index - 1] in ("metrics", "about", "alerts") and (within or deletes or value == "null")
    if shown is not None and (changes or condition) and (shown.is_value or of_alert):
        if of_alert and shown.expression != shown.id:
            bound = condition or f"{SIGNS.get(parts[-1], '>')} {value}"
            fix = f'+{".".join([*parts[:index], plain])}.when="{shown.expression} {bound}"'
            fix = fix.replace(".when=", "=") if condition else fix
        else:
            fix = f"{'.'.join([*parts[:index], shown.id, *parts[index + 1 :]])}={value or 'null'}"
            fix = fix if tree is not None and tree.at(fix.partition("=")[0].split(".")[:-1]) else f"+{fix}"
        return problem_of(line, "DL101.slash", span, name=name, fix=pasted(fix))
    removed = "~" if deletes and not value else ""
    fix = f"{removed}{'.'.join([*parts[:index], plain, *parts[index + 1 :]])}{'' if removed else f'={value}'}"
    read = None if within or of_alert or deletes else parsed(f"key={value}") or parsed(f"key={taken(value)}")
    if read is not None and read.value() is not None:
        ids = under_an_id(name, read.value(), metrics or {})
        fix = " ".join(setting(f"{sign}{'.'.join([*parts[:index], id])}", entry) for id, entry in ids.items())
        return problem_of(line, "DL101.slash", span, name=name, fix=fix)
    return problem_of(line, "DL101.slash", span, name=name, fix=pasted(f"{sign}{fix}"))


def _detail(line: str) -> str:
    """The message of Hydra's parser, without the override, the caret and the link around it."""
    noise = ("LexerNoViableAltException", "Error parsing override", "^", "See https")
    try:
        OverridesParser.create().parse_overrides([line])
    except HydraException as error:
        lines = [line.strip() for line in str(error).splitlines() if not line.strip().startswith(noise)]
        return lines[0] if lines else "its grammar has no such form"
    return "its grammar has no such form"


# -- overrides that can be read, and cannot be applied


def refusal(tree: Node, override: Override, *, lenient: bool = False) -> Problem | None:
    """The problem of an override of a key that cannot be applied; None if it can be.

    As in Hydra, a plain override changes a key that exists, and ``+`` adds a key. With ``lenient``, a plain override
    also adds a key, if ``may_be_added`` allows it.
    """
    keys = override.key_or_group.split(".")
    depth, node = tree.deepest(keys)
    plain = not (override.is_delete() or override.is_add() or override.is_force_add())
    adds = not (plain or override.is_delete()) or (lenient and plain and may_be_added(tree, override))
    if depth == len(keys):
        return _of_key(override, node, adds=adds)
    if plain and node.replaces and depth == len(keys) - 1 and keys[-1] in keys_at(keys[:-1]):
        return None  # a text has all keys of its entry
    return None if adds and not isinstance(node.value, list) else _of_missing_key(tree, override, depth, node)


def _of_key(override: Override, node: Node, *, adds: bool) -> Problem | None:
    """The problem of an override of a key that exists; None if it has none."""
    line, key, value = str(override.input_line), override.key_or_group, override.value()
    if override.is_delete():
        if node.value is None:
            return problem_of(line, "DL101.null_already", key=key)
        return None if value in (None, node.plain) else problem_of(line, "DL101.other_value", key=key)
    if isinstance(node.value, dict) and isinstance(value, list):
        return problem_of(line, "DL101.map_as_list", behind=True, key=key, fix=_as_map(key, value, node))
    if isinstance(node.value, list) and isinstance(value, dict):
        if key == f"{GROUP}.sinks":
            return _sinks_as_map(line, key, value)
        return problem_of(line, "DL101.list_as_map", behind=True, key=key)
    if override.is_add() and isinstance(node.value, list) and isinstance(value, str):
        return problem_of(line, "DL101.append", key=key, fix=f"{key}=[{_appended(node.plain, [value])}]")
    if isinstance(node.value, dict) and isinstance(value, dict) and not adds and not _has_keys(node, value):
        new = [name for name in value if name not in node.entries]
        lines = [pasted(f"+{key}.{name}={written(value[name])}") for name in new]
        names = "`, `".join(map(str, new))
        return problem_of(line, "DL101.keys_to_add", behind=True, key=key, names=names, fix=" ".join(lines))
    if override.is_add() and node.value is not None and not isinstance(value, dict | list):
        return problem_of(line, "DL101.there_already", key=key, fix=pasted(line.removeprefix("+")))
    return None


def _as_map(key: str, value: list[Any], below: Node) -> str:
    """The override that sets a map in place of a list, with an id or a key for each item."""
    group, *keys = key.split(".")
    fix = f"{keys[0]}: {lists_as_maps.as_map(keys[0], value)}"
    if len(keys) > 1:
        fix = (of_list(keys[1], value, below.plain) if keys[0] == "alerts" and len(keys) == 2 else None) or ""
        fix = fix or wrong_forms.in_one_form(tuple(keys), nested(keys, value)) or ""
    edit = edit_of(fix, tuple(keys), (GROUP,)) if group == GROUP else None
    return f"'{key}={{entry: ...}}'" if edit is None else setting(f"++{edit[0]}", edit[1])


def _has_keys(node: Node, value: dict[Any, Any]) -> bool:
    return all(
        key in node.entries and (not isinstance(item, dict) or _has_keys(node.entries[key], item))
        for key, item in value.items()
    )


def _of_missing_key(tree: Node, override: Override, depth: int, node: Node) -> Problem:
    """The problem of an override of a key that does not exist; ``node`` holds the first ``depth`` keys."""
    line, keys = str(override.input_line), override.key_or_group.split(".")
    here = ".".join(keys[:depth])
    wrong, names = keys[depth], [str(key) for key in node.entries]
    at = line.find(override.key_or_group) + len(here) + bool(here)
    span = (at, at + len(wrong))
    if here == f"{GROUP}.sinks" and isinstance(node.value, list):
        return _sink_problem(line, override, span, node.plain)
    if isinstance(node.value, list) and len(keys) == depth + 1:
        fix = pasted(f"{here}=[{_items(node.plain, wrong, override)}]")
        return problem_of(line, "DL101.item", span, key=here, fix=fix)
    if not isinstance(node.value, dict | list):
        rest = "expr: ..., " if keys[1:2] == ["metrics"] and not isinstance(node.value, bool) else ""  # a short form
        entry = f"{rest}{keys[-1]}: {line.partition('=')[2]}"
        named = tree.at((GROUP, "filters", str(node.value))) if keys[depth - 1] == "filter" else None
        if named is not None and isinstance(named.plain, dict):  # the filter of that name
            rows = wrong_forms.in_one_way(keys[-1], {**named.plain, keys[-1]: override.value()})
            entry = in_flow(rows)[1:-1]
        value = "null" if node.value is None else node.value
        return problem_of(line, "DL101.no_map", span, key=here, value=value, entry=f"'{here}={{{entry}}}'")
    where = f"in {here}" if here else "at the top"

    def instead(name: str, sign: str) -> str:
        return pasted(f"{sign}{line[: span[0]]}{name}{line[span[1] :]}")

    if (new := old_names({"": node.plain if node.entries else {}}, "").get(wrong)) is not None:
        return problem_of(line, "DL101.renamed", span, name=wrong, new=new, fix=instead(new, ""))
    if (meant := _meant(tree, override, depth, node, instead)) is not None:
        return problem_of(line, "DL101.no_key", span, name=wrong, place=where, fix=meant)
    metrics = tree.at((GROUP, "metrics")) if keys[:depth] == [GROUP, "alerts"] else None
    allowed = keys_at(keys[:depth])
    if allowed and wrong not in allowed:  # no sign adds it
        of_run = _moved(tree, wrong, override) if keys[:depth] == [GROUP, "run"] else None
        fix = of_run or _said_elsewhere(tree, wrong, override) or did_you_mean("", sorted(allowed), what="keys")
        return problem_of(line, "DL101.no_key", span, name=wrong, place=where, fix=fix)
    of_a_metric = metrics is not None and wrong in metrics.entries  # an alert is named by its metric
    close = None if of_a_metric else nearest(wrong, names)
    fix = "  or  ".join([*([instead(close, "")] if close else []), pasted(f"+{line}")])
    if close is None and len(keys) == depth + 2 and (beside := _as_entry(tree, keys, override.value())) is not None:
        fix = pasted(f"+{'.'.join(keys[:-1])}={in_flow(beside)}")
    return problem_of(line, "DL101.key_to_add", span, name=wrong, place=where, added="one" if close else "it", fix=fix)


def _as_entry(tree: Node, keys: Sequence[str], value: object) -> dict[str, Any] | None:
    """A new entry with the key that an override sets, and the keys that it needs, too; None if it needs no others."""
    section, (name, key) = keys[1], keys[-2:]
    signals = [*signal_names(tree.at((GROUP,)) or tree)]
    columns = [column for column in ("prompt", "completion", "reward") if column in signals]
    match section:
        case "metrics" if key not in ("expr", "formula", "observe") and name not in signals and "reward" in signals:
            return {"expr": "reward", key: value}
        case "tables" if key not in ("columns", "schema") and columns:
            return {"columns": columns, key: value}
        case "signals" if key != "axis" and len(keys) == 5:
            return {"axis": "completion", key: value}
        case "filters" if key in ("top", "bottom") and "reward" in signals:
            return {"key": "reward", key: value}
    return None


def _meant(tree: Node, override: Override, depth: int, node: Node, instead: Callable[[str, str], str]) -> str | None:
    """The fix for an override of a key that does not exist; None if the key may be a new one.

    ``instead`` writes the override with another key in its place, behind a sign.
    """
    keys, names = override.key_or_group.split("."), [str(key) for key in node.entries]
    above, wrong = keys[:depth], keys[depth]
    if (above == [GROUP] or wrong == "defaults") and (choice := choice_of(wrong, override.value())) is not None:
        return choice
    if (inner := _inside(node, keys[depth:])) is not None:  # a section is left out: `group.size`
        return instead(f"{inner}.{wrong}", "")
    if above == [GROUP] and (section := _section_of(wrong, node)) is not None:
        return instead(f"{section}.{wrong}", "")
    if depth == 0 and tree.at((GROUP, wrong)) is not None:
        there = override.is_delete() or tree.at((GROUP, *keys)) is not None
        return instead(f"{GROUP}.{wrong}", "" if there else "+")
    if above == [GROUP, "metrics"] and (id := id_of(wrong, node.plain)) is not None:  # the name that it logs
        return instead(id, "")
    if override.is_delete():
        listed = tree.at((GROUP, "sinks"))
        if listed is not None and isinstance(listed.value, list) and keys[-1] in listed.plain:
            return pasted(f"{GROUP}.sinks=[{_items(listed.plain, keys[-1], override)}]")
        close = nearest(wrong, names)
        return instead(close, "") if close else did_you_mean(wrong, names, what="known keys")
    allowed = keys_at(above)  # a plus adds one of them, and no other
    if wrong in allowed:
        return None
    if above == [GROUP] and elsewhere.keys().get(wrong) and (fix := _moved(tree, wrong, override)) is not None:
        return fix
    if (near := nearest(wrong, allowed)) is not None:
        return instead(near, "" if near in names else "+")
    return _moved(tree, wrong, override) if above == [GROUP] else None


def _moved(tree: Node, name: str, override: Override) -> str | None:
    """The override of the right key for one that no config has at its top: `num_generations` is `axes.group.size`."""
    fix = None if name == GROUP else _said_elsewhere(tree, name, override)
    edit = None if fix is None else edit_of(fix, (name,), (GROUP,))
    if edit is None:
        return None
    path, value, _ = edit
    return setting(path if tree.at(path.split(".")) is not None else f"+{path}", value)


def _said_elsewhere(tree: Node, name: str, override: Override) -> str | None:
    """The fix for a key of another tool at the top of a config; None for any other key."""
    sinks = tree.at((GROUP, "sinks"))
    _, _, below = f".{override.key_or_group}".partition(f".{name}.")
    value = nested(below.split("."), override.value()) if below else override.value()
    data = {name: value, "sinks": None if sinks is None else sinks.plain}
    problem = mistakes.answered(Problem.of("DL201.key", (name,), key=name, fix=None), data)
    return None if problem is None else problem.fix


def _appended(items: list[Any], added: list[str]) -> str:
    """The items of a list, and the added items that it does not have."""
    return ",".join([*map(str, items), *(text for text in added if text.strip() not in items)])


def _items(items: list[Any], name: str, override: Override) -> str:
    """The items of a list, without the item that an override deletes, or with the item that it adds under a name."""
    texts = [str(item).replace("'", "") for item in items]
    if override.is_delete():
        return ",".join(text for text in texts if text != name)
    value = str(override.value())
    return ",".join([*texts, name if value == name else f"{{{name}: {value}}}"])


def _sinks_as_map(line: str, key: str, value: dict[Any, Any]) -> Problem:
    chosen, options = sinks_and_options(value)
    said = [setting(f"++{GROUP}.sink_options.{name}", values) for name, values in options.items()]
    fix = " ".join([f"{key}=[{','.join(chosen)}]", *said])
    return problem_of(line, "DL101.sinks_listed", behind=True, fix=fix)


def _sink_problem(line: str, override: Override, span: tuple[int, int], names: list[str]) -> Problem:
    """The problem of a key below the list of sinks: options of a sink stand in `sink_options`."""
    _, _, name, *rest = override.key_or_group.split(".")
    value = None if override.is_delete() else override.value()
    if value in (None, False) and not rest:
        chosen, options = [sink for sink in names if sink != name], ""
    elif name.isdigit() and isinstance(value, str):  # a place in the list
        chosen, options = [*dict.fromkeys((*names[: int(name)], value, *names[int(name) + 1 :]))], ""
    else:
        chosen = names if name in names else [*names, name]
        entry = ".".join(["sink_options", name, *(rest if rest or isinstance(value, dict) else ["profile"])])
        options = " " + pasted(f"++{GROUP}.{entry}={line.partition('=')[2]}")
    fix = f"{GROUP}.sinks=[{','.join(chosen)}]" * (chosen != names) + options
    return problem_of(line, "DL101.sinks_listed", span, fix=fix.strip())


def _section_of(name: str, node: Node) -> str | None:
    """The section of a config that has an entry of this name, metrics before what they read."""
    return next((key for key in ("metrics", *SECTIONS) if node.at((key, name)) is not None), None)


def _inside(node: Node, keys: list[str]) -> str | None:
    """The only entry of a map that has all the keys, of which there are two or more; else None."""
    names = [str(name) for name, entry in node.entries.items() if entry.at(keys) is not None]
    return names[0] if len(names) == 1 and len(keys) > 1 else None
