"""Problems of configuration files that Hydra cannot load: YAML that does not parse, defaults that do not exist.

This code finds the file and the line that Hydra's message does not have. It runs only after an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path as FilePath

import yaml
from hydra.errors import MissingConfigException
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from declog.config.files import defaults_of, of_file
from declog.config.fold import Composition, ListOverMap, choice_of
from declog.config.hydra import Loader, file_of, groups_of
from declog.config.origin import Origin
from declog.config.packages import known_presets, notes
from declog.config.problems.diagnostics import in_file, where_of
from declog.config.problems.twice import of_twice
from declog.config.quoting import depths, value_end
from declog.config.search_path import GROUP, ROOT, preset_folders
from declog.config.source_map import LINE_BREAK, FileLocation, shown_path
from declog.errors import Excerpt, Path, Problem, Where, did_you_mean, in_flow, nearest, nested
from declog.language.fixes.alert_keys import of_list
from declog.language.fixes.lists_as_maps import as_map, as_profile, as_sinks
from declog.language.fixes.unparsable import spelt
from declog.language.keys import keys, models
from declog.language.notation import is_reduction, of_axes
from declog.language.tree import MISSING, tree_of


def first_line(error: Exception) -> str:
    """The message of a library's error without its advice: its first line, or the first line of its cause."""
    lines = f"{error}\n{error.__cause__ or ''}".splitlines()
    cause = next((line.strip() for line in lines if line.strip()), type(error).__name__)
    return cause.rstrip(".")


def file_problem(loader: Loader, origin: Origin, error: Exception, composition: Composition | None = None) -> Problem:
    """The problem in the configuration files, with its place. ``composition`` is None if they could not be composed."""
    if isinstance(error, yaml.MarkedYAMLError):
        return not_yaml(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file is not None:
        return _missing_default(loader, origin, error, error.missing_cfg_file)
    if isinstance(error, ListOverMap):
        return _list_and_map(error)
    if isinstance(error, RecursionError):
        return _circle(loader, origin)
    if (malformed := re.match(r"Invalid defaults list in '([^']+)', (.*)", str(error))) is not None:
        return _malformed_defaults(loader, malformed[1], malformed[2])
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return _bad_value(loader, origin, cause, composition)
    if (chosen := re.search(rf"Could not override '{GROUP}/([^'@]+)", str(error))) is None:
        return Problem.of("DL101.hydra", cause=first_line(error))
    if chosen[1] == "sinks":
        fix = "drop `override sinks` from the defaults list: `sinks: [...]` below"
        return Problem.of("DL101.sinks_listed", fix=fix)
    return Problem.of("DL101.override", name=chosen[1])


def _list_and_map(error: ListOverMap) -> Problem:
    """The problem of a key that is a list in one file and a map in another, which cannot be merged."""
    *above, key = error.path
    is_list = isinstance(error.high.value, list)
    what, other = ("list", "map") if is_list else ("map", "list")
    section = error.high.plain
    fix = as_sinks(section) if key == "sinks" and len(above) == 1 else f"{key}: [...]"
    if is_list and above[-1] == "profiles":
        fix = f"{key}: {in_flow(as_profile(str(key), section))}"
    elif is_list:
        before = error.low.entries
        listed = [item for item in section if not (isinstance(item, str) and item in before)]
        words = as_map("signals" if error.path[1:-1] == ("signals",) else str(key), listed or section, error.low.plain)
        words = f"{{any: {words}}}" if key == "signals" else words
        fix = f"write a map, an id for each entry: {key}: {words}"
        fix += "; of a text `completion text`" if key == "signals" else ""
        fix += "; the others are there" * (listed != section) if listed else ""
        if error.path[1:-1] == ("metrics",) and all(is_reduction(str(item), 1) for item in section):
            fix = f"{key}: {{reduce: {in_flow(section)}}}"
        elif error.path[1:-1] == ("alerts",):
            fix = of_list(str(key), section, error.low.plain) or fix
        elif key == "metrics" and all(isinstance(item, str) and item.isidentifier() for item in section):
            fix += f"; to choose among those that there are: profiles: {{full: {{only: {in_flow(section)}}}}}"
    problem = Problem.of("DL101.merged", error.path[1:], key=key, what=what, other=other, fix=fix)
    location, low = error.high.location, error.low.location
    if not isinstance(location, FileLocation):
        return problem
    where = location.shown(location.key or location.value)
    return replace(problem, where=replace(where, earlier=() if low is None else (low.where,)))


def _circle(loader: Loader, origin: Origin) -> Problem:
    """The problem of presets that extend each other, which Hydra would follow forever."""
    names = [f"{group}/{option}" for group in groups_of(loader) for option in loader.get_group_options(group)]
    for start in (f"{GROUP}/{origin.config_name}", *names):
        trail: list[str] = []
        name = start
        while name not in trail and (extended := list(_extended(loader, name))):
            trail.append(name)
            name, location = next((preset for preset in extended if preset[0] in trail), extended[0])
        if name in trail:
            ring = [preset.removeprefix(f"{GROUP}/") for preset in (*trail[trail.index(name) :], name)]
            fix = "give your own preset another name than the one it extends, or extend another"
            file = FilePath(shown_path(location.file))
            if len(ring) == 2 and any((folder / GROUP / file.name).exists() for _, folder in preset_folders()):
                fix = f"mv {file} {file.with_name(f'my_{file.name}')}, and choose `my_{ring[0]}`"
            problem = Problem.of("DL101.ring", name=ring[-1], ring=" -> ".join(ring), fix=fix)
            return replace(problem, where=in_file(problem, location))
    return Problem.of("DL101.circle")


def _extended(loader: Loader, name: str) -> Iterator[tuple[str, FileLocation]]:
    """The presets in a preset's defaults list, and where they are named."""
    file = file_of(loader.repository, name)
    for choice in () if file is None else defaults_of(*file):
        other = "/".join(filter(None, (name.rpartition("/")[0], choice.group, choice.option)))
        if loader.repository.config_exists(other):
            yield other, choice.location


def _malformed_defaults(loader: Loader, name: str, cause: str) -> Problem:
    problem = Problem.of("DL101.defaults", cause=cause)
    file = file_of(loader.repository, name)
    node = None if file is None else of_file(*file).at(("defaults",))
    if node is None:
        return problem
    if isinstance(node.value, dict):
        groups = ", ".join(f"{{{group}: {in_flow(option.plain)}}}" for group, option in node.entries.items())
        problem = Problem.of("DL101.no_list", option=groups)
    raw = node.location.written_value if node.location.style is not None else ""
    words = ", ".join(word for word in raw.split() if word != "_self_")
    problem = Problem.of("DL101.no_list", option=words) if words else problem
    return replace(problem, where=in_file(problem, node.location))


def lost(loader: Loader, origin: Origin) -> Problem:
    """The problem of a configuration with nothing below the config's node, mostly due to a preset's package header."""
    if origin.application:
        return Problem.of("DL101.empty_application", name=origin.config_name, group=GROUP)
    header = _package_header(loader, origin, f"{GROUP}/{origin.config_name}")
    return header or Problem.of("DL101.empty_preset", name=origin.config_name, group=GROUP)


def _package_header(loader: Loader, origin: Origin, name: str) -> Problem | None:
    """The problem of a config with a package header, which takes it out of its node; None without a header."""
    file, text = file_of(loader.repository, name) or ("", "")
    if (header := re.match(r"\s*(# *@package .*)", text)) is None:
        return None
    row = text.count("\n", 0, header.start(1)) + 1
    excerpt = Excerpt(str(row), header[1], 0, len(header[1].rstrip()))
    where = Where(shown_path(file), row, header.start(1) - text.rfind("\n", 0, header.start(1)), excerpt=excerpt)
    return Problem.of("DL101.package_header", where=where, name=origin.config_name, group=GROUP)


def not_yaml(error: yaml.MarkedYAMLError, text: str | None = None) -> Problem:
    """The problem of a file, or of a ``text`` of no file, that is not YAML: in plain words, at the place to edit."""
    cause, context = error.problem or first_line(error), error.context_mark
    mark = error.problem_mark or context
    if mark is None:
        return Problem.of("DL101.yaml", cause=cause)
    flow = context if "while parsing a flow" in (error.context or "") else None
    row, column, file = mark.line, mark.column, FilePath(mark.name)
    if text is None:
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
    lines = LINE_BREAK.split(text)
    line = lines[row] if row < len(lines) else ""
    width = 1
    if (duplicate := re.match("found duplicate key (.*)", cause)) is not None:
        name = duplicate[1]
        problem, width = Problem.of("DL101.yaml_twice", name=name, fix=of_twice(name, text, row)), len(name)
    elif "\\t" in cause or "\t" in cause:
        problem = Problem.of("DL101.yaml_tab")
    elif (alias := re.match("found undefined alias '?(.*?)'?$", cause)) is not None:
        problem, width = Problem.of("DL101.yaml_alias", name=alias[1]), len(alias[1]) + 1
    elif "unknown escape character" in cause and (escaped := re.search(r'"([^"]*)"', line)) is not None:
        problem = Problem.of("DL101.yaml_escape", value=escaped[1])
    elif (tag := re.search(r"(?<=[ :,\[{])!(?!=)", line)) is not None:
        text = _value_at(line, tag.start())
        problem, column, width = Problem.of("DL101.yaml_tag", fix=in_flow(spelt(text))), tag.start(), len(text)
    elif slashes := [at for at, row_text in enumerate(lines[: row + 1]) if row_text.lstrip()[:2] == "//"]:
        row, line, width = slashes[0], lines[slashes[0]], 2
        problem, column = Problem.of("DL101.yaml_comment", fix=f"#{line.lstrip()[2:]}"), len(line) - len(line.lstrip())
    elif (bare := _without_colon(lines, row, cause)) is not None:
        row, line = bare, lines[bare]
        key, value = re.split("[ =:]", f"{line.strip()} ", maxsplit=1)
        problem = Problem.of("DL101.yaml_no_colon", fix=f"{key}: {value.strip(' =') or '...'}")
        column, width = len(line) - len(line.lstrip()), len(line.strip())
    elif "mapping values are not allowed" in cause and (plain := _unquoted(lines, context or mark, mark)):
        _, column, value = plain
        problem, width = Problem.of("DL101.yaml_colon", fix=f'"{value}"'), len(value)
    elif "mapping values are not allowed" in cause and _goes_on(lines, row):
        problem = Problem.of("DL101.yaml_indentation")
    elif "mapping values are not allowed" in cause:
        problem = Problem.of("DL101.yaml_colon", fix=_quoted(line))
    elif flow is not None and MISSING in line:
        problem, column, width = Problem.of("DL101.yaml_missing", edit=_missing(text)), line.index(MISSING), 3
    elif (shape := _list_and_more(line)) is not None:
        column, width, fix = shape
        problem = Problem.of("DL101.yaml_axes", fix=fix)
    elif flow is not None and (plain := _unquoted(lines, flow, mark)):
        row, column, value = plain
        line, width = lines[row], len(value)
        quoted = f'"{value}"' if '"' not in value else f"'{value}'"
        key = value.partition(": ")[0]
        braces = f", or braces: {{{value}, ...}}" if any(key in keys(model) for model in models()) else ""
        problem = Problem.of("DL101.yaml_unquoted", fix=quoted + braces)
    elif flow is not None and (value := re.search(_BEHIND_QUOTES, line)) is not None:
        column, width, text = value.start(), len(value[0].rstrip()), value[0].rstrip()
        problem = Problem.of("DL101.yaml_behind", fix=f"'{text}'" if "'" not in text else json.dumps(text))
    elif flow is not None:
        row, column, line = flow.line, flow.column, lines[flow.line]
        bracket = line[column:][:1] or "{"
        problem = Problem.of("DL101.yaml_bracket", bracket=bracket, closing="}" if bracket == "{" else "]")
    elif context is not None and "while scanning a quoted scalar" in (error.context or ""):
        row, column, line = context.line, context.column, lines[context.line]
        problem = Problem.of("DL101.yaml_quote")
    elif row and line.startswith("- ") and (listed := re.fullmatch(r"(\w+: *\[.*)\] *", lines[row - 1])) is not None:
        problem = Problem.of("DL101.yaml_two_lists", fix=f"{listed[1]}, {line[2:].strip()}]")
    elif "expected <block end>" in cause:
        problem = Problem.of("DL101.yaml_indentation")
    elif _SIGN.search(cause) is not None and (sign := _SIGNED.search(line)) is not None:
        column, text = sign.start(), _value_at(line, sign.start())
        problem, width = Problem.of("DL101.yaml_first", char=sign[0], fix=json.dumps(text.strip("`"))), len(text)
    else:
        problem = Problem.of("DL101.yaml", cause=cause)
    excerpt = Excerpt(str(row + 1), line, column, column + width)
    where = Where(shown_path(mark.name), row + 1, column + 1, excerpt=excerpt)
    return replace(problem, where=where)


def _missing(text: str) -> str:
    """The YAML that gives the first value that a text leaves open, ``axes: {group: {size: ???}}``."""
    with suppress(yaml.YAMLError):  # it may have further mistakes
        nodes = tree_of(yaml.safe_load(text.replace(MISSING, "'...'"))).walk()
        return next(in_flow(nested(path, node.value))[1:-1] for path, node in nodes if node.value == "...")
    return "..."


def _list_and_more(line: str) -> tuple[int, int, str] | None:
    """The start, the length and the fix of a signal's axes, `[completion, turn] float`; None for another line."""
    for entry in re.finditer(r"([\w-]+): +(\[[^\[\]]*\] *[a-z][\w ]*)", line):
        if (fix := of_axes(entry[1], entry[2], ("signals", "", entry[1]))) is not None:
            return entry.start(2), len(entry[2].rstrip()), fix
    return None


# causes of a value that begins with a sign of YAML
_SIGN = re.compile("comment or a line break|start any token|chomping or ind|alphabetic or num|constructor for the tag")

_SIGNED = re.compile(r"(?:(?<=[:\-,\[{] )|(?<=[\[{]))[>|&*@`%!]")


def _value_at(line: str, start: int) -> str:
    """The text of a value from its start to the end of its line, or to its own comma or bracket."""
    is_inside = line[:start].count("{") + line[:start].count("[") > line[:start].count("}") + line[:start].count("]")
    end = value_end(line, start) if is_inside else None
    return re.split(r"\s+#", line[start:end])[0].rstrip()


# a value that begins with a text in quotes: `where: "gsm8k" == source`
_BEHIND_QUOTES = r"""(?<=: )("[^"]*"|'[^']*') *[^\s,}\]#][^,}\]]*"""


def _without_colon(lines: list[str], row: int, cause: str) -> int | None:
    """The row of the line above, mostly of the same level, whose key has no colon; None if that is not the cause."""
    if "could not find expected ':'" not in cause and "mapping values are not allowed" not in cause:
        return None
    above = next((at for at in range(min(row, len(lines)) - 1, -1, -1) if lines[at].strip()), None)
    if (
        above is None
        or not re.fullmatch(r"\s*[\w.]+(([ =]|:(?=\S)).*)?", lines[above])
        or re.search(r":(\s|$)", lines[above])
    ):
        return None
    levels = [len(lines[at]) - len(lines[at].lstrip()) for at in (above, row) if at < len(lines)]
    return above if levels[0] == levels[-1] or "could not" in cause else None


def _goes_on(lines: list[str], row: int) -> bool:
    """Whether YAML reads a line as part of the value above: an entry that is indented deeper than the entry above."""
    pair = [re.match(r"( *)[\w-]+: +\w", lines[at]) for at in (row - 1, row) if 0 <= at < len(lines)]
    above, below = (*pair, None, None)[:2]
    return above is not None and below is not None and len(above[1]) < len(below[1])


def _unquoted(lines: list[str], context: yaml.Mark, mark: yaml.Mark) -> tuple[int, int, str] | None:
    """The row, the column and the text of a value in {...} that YAML took apart; None if that is not the cause."""
    for row in range(context.line, min(mark.line + 1, len(lines))):
        for start, value in _values_in_braces(lines[row]):
            if value[:1] in ("{", "["):
                end = next((at for at, depth in enumerate(depths(value)) if depth == 0), len(value) - 1)
                torn = value[end] == {"{": "}", "[": "]"}[value[0]] and value[end + 1 :].strip() != ""
            else:
                marked = value.startswith(('"', "'", "&", "*", "!"))
                torn = re.search(r"[{}\[\]]|: | #|\?\s*\Z|, *['\"]", value) is not None and not marked
            if torn:
                return row, start, value.rstrip()
    return None


def _values_in_braces(line: str) -> Iterator[tuple[int, str]]:
    """The values behind `key: ` in the innermost {...} of a line, each up to its own comma or bracket."""
    for match in re.finditer(r"(?<=[{,])\s*[\w-]+: +", line):
        if (end := value_end(line, match.end())) is not None:
            yield match.end(), line[match.end() : end]


def _quoted(line: str) -> str:
    """The entry of a line with its value in quotes, or in braces if the value is keys of the entry."""
    entry = re.match(r"(\s*[^\s:]+: +)(.*)", line)
    if entry and any(entry[2].partition(": ")[0] in keys(model) for model in models()):
        return f"{entry[1].strip()} {{{entry[2].rstrip()}}}"
    if entry and (torn := re.fullmatch(r"(\w+\(.*\)) *: +(.*?)\s*", entry[2])) is not None:
        return f"an operator in its place, such as `{entry[1].strip()} {torn[1]} / {torn[2]}`"
    return f"{entry[1].strip()} '{entry[2].rstrip()}'" if entry and "'" not in entry[2] else "quote the text"


_INTERNAL = frozenset({ROOT, "_dummy_empty_config_"})  # declog's own, and Hydra's


def _missing_default(loader: Loader, origin: Origin, error: Exception, missing: str) -> Problem:
    """The problem of an option in a defaults list that does not exist."""
    group, _, option = missing.rpartition("/")
    presets = loader.get_group_options(GROUP)
    header = _package_header(loader, origin, origin.root) if option in presets and not group else None
    if header is not None:
        return header
    options = [name for name in loader.get_group_options(group) if name not in _INTERNAL]
    parent = re.match(r"In '([^']+)'", str(error))
    chosen = None if parent is None else choice_of(loader.repository, parent[1], missing)
    file = None if chosen is None else FilePath(chosen.file)
    options = [name for name in options if group != GROUP or file is None or name != file.stem]
    fix = None if parent is None else _from_above(loader, parent[1], missing)
    fix = fix or _option_meant(group, option, presets, f"{origin.config_name}.yaml")
    if fix is None and group == GROUP:
        fix = known_presets(option, options, file and file.parent)
    elif fix is None:
        fix = did_you_mean(option, options, what="options")
    if group == GROUP:
        problem = Problem.of("DL104.option", source=option, name=option, group=group, notes=notes(), fix=fix)
    elif group:
        problem = Problem.of("DL101.default", source=option, name=option, group=group, fix=fix)
    else:
        problem = Problem.of("DL101.no_such_config", source=option, name=option, fix=fix)
    return problem if chosen is None else replace(problem, where=in_file(problem, chosen))


def _from_above(loader: Loader, parent: str, missing: str) -> str | None:
    """The entry for a preset or a pack that the file ``parent`` in a folder of presets seeks there, or by a path."""
    folder = parent.rpartition("/")[0]
    words = missing.removeprefix(f"{folder}/").removesuffix(".yaml").split("/")
    words = [word for word in words if word not in (".", "..", GROUP)]
    name = "/".join([GROUP, *words])
    return f"/{name}" if folder.startswith(f"{GROUP}/") and loader.repository.config_exists(name) else None


def _option_meant(group: str, option: str, presets: Collection[str], file: str) -> str | None:
    """The fix for an option that is wrong but not misspelt; None for an option that may be misspelt.

    ``file`` is the name of the file that is composed.
    """
    if group == f"{GROUP}/{GROUP}" and option in presets:
        return f"`{option}` alone: a preset's defaults are found from its own folder, {GROUP}/"
    if group == GROUP and option in ("slim", "full"):
        return f"what a preset shows is no preset: `profile: {option}`, a key of its own"
    if group == f"{GROUP}/sinks":
        return f"sinks are no files: drop this entry, and write `sinks: [{option}]` below"
    bare = option.removesuffix(".yaml").rpartition("/")[2]
    stem = bare if bare in presets else nearest(bare, presets)
    if stem is not None and (option != bare or group.startswith(f"{GROUP}/conf")):
        return f"a preset is named without its folder and suffix: `{stem}`"
    if not group and option in presets:
        no_node = f"a config has no node `{GROUP}:`, its keys stand at the top of {file}"
        return f"for an application, `{GROUP}: {option}`; {no_node}"
    return "did you mean `_self_`?" if option == "self" else None


def _bad_value(
    loader: Loader, origin: Origin, error: OmegaConfBaseException, composition: Composition | None
) -> Problem:
    path = tuple(re.findall(r"[^.\[\]]+", str(error.full_key)))
    below = path[1:] if path[0] == GROUP else path
    if isinstance(error, GrammarParseError):
        problem = _bad_interpolation(str(error.value), below)
    else:
        problem = Problem.of("DL101.hydra", below, cause=first_line(error))
    node = None if composition is None else composition.tree.at(path)
    if node is None and (root := file_of(loader.repository, origin.root)) is not None:
        node = of_file(*root).at(path)  # such as the node `hydra`, which is in no composition
    return problem if node is None else replace(problem, where=where_of(problem, node.location, problem.key))


def _bad_interpolation(text: str, path: Path) -> Problem:
    at = text.rfind("${")
    if "}" not in text[at:]:
        return Problem.of("DL103.open", path, source=text, span=(at, len(text)))
    return Problem.of("DL103.unreadable", path, source=text)
