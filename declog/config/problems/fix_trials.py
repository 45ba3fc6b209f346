"""Try fixes before they are printed: if the edit of a fix has a mistake of its own, the fix shows a better edit."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import yaml

from declog.config.problems.override_fixes import edit_of
from declog.config.quoting import is_expression
from declog.errors import DeclogError, Entry, Path, Problem, in_flow, keys, nested
from declog.language.fixes.idioms import instead_of_name
from declog.language.keys import entry_path, keys_at
from declog.language.notation import both
from declog.language.shorthand import long
from declog.language.tree import at, has, over, tree_of

Check = Callable[[Mapping[str, Any]], Sequence[Problem]]
ROUNDS = 8  # edits after the first one
MOST = 8  # problems whose fixes are tried


@dataclass(frozen=True)
class _Edit:
    """An edit: a key, its new value, and the part of a fix that shows it."""

    path: Path
    value: Any
    said: str

    def of(self, value: Any) -> str:
        """The edit with another value, in YAML, in the form in which the fix shows it."""
        if self.said[0] == "`":
            return f"`{value}`" if isinstance(value, str) else in_flow({self.path[-1]: value})[1:-1]
        if self.path[-1] == "expr" and isinstance(value, str) and not re.match("(did you mean `)?expr", self.said):
            return f"write `{value}`"  # a metric in its short form has no such key, and its reduction beside the text
        if self.said.startswith(f"{self.path[0]}: "):
            return in_flow(nested(self.path, value))[1:-1]
        return f"{self.path[-1]}: {in_flow(value)}"


def with_tried_fixes(problems: Sequence[Problem], data: Mapping[str, Any], check: Check) -> list[Problem]:
    """The problems, each with an edit that makes its entry right, and the problems of the entry that it hides.

    ``check`` returns the problems of data.
    """
    data = without(data, ())  # keys are texts, as problems name them
    wrong = {entry_path(problem.path) for problem in problems}
    said = {(problem.path, problem.message) for problem in problems}

    def new(first: Problem, rest: Mapping[str, Any]) -> list[Problem]:
        """The problems of data, without those reported already, and without those about names that are left out.

        The ``first`` problem is a new one where the text has its mistake once more behind the part that was edited.
        """
        absent = [str(path[-1]) for path in wrong if not has(rest, path)]
        problems = [
            problem
            for problem in check(rest)
            if (problem.path, problem.message) not in said or _is_further(problem, first)
        ]
        return [problem for problem in problems if not about(problem, absent)]

    shown: list[Problem] = []
    for problem in problems[:MOST]:
        entry = entry_path(problem.path)
        rest: Mapping[str, Any] = without(data, {path for path in wrong - {entry} if len(path) > 1})
        for other in problems:
            edit = _edit(other, rest) if other is not problem and entry_path(other.path) == entry else None
            if edit is not None and entry_path(edit.path) == entry and has(rest, other.path):
                rest = _edited(rest, other, edit)
        tried, *hidden = _tried(problem, rest, partial(new, problem))
        written = [_where_written(one, problem.path, data) for one in hidden]
        shown += [tried, *(one for one in written if has(data, one.path))]
    return list(_said_once(_in_sections([*dict.fromkeys([*shown, *problems[MOST:]])])))


def _is_further(problem: Problem, first: Problem) -> bool:
    """Whether a problem of an edited text is the ``first`` one, at a further place: the text had its mistake twice."""
    text, marked = first.source or "", first.marked
    same = (problem.path, problem.message) == (first.path, first.message)
    return same and bool(marked) and (problem.source or text).count(marked) < text.count(marked)


def _where_written(problem: Problem, path: Path, data: Mapping[str, Any]) -> Problem:
    """A problem of an edit, at the key ``path`` whose value the edit moved, if this key has the wrong text."""
    for moved in (path, (*path, problem.path[-1])):
        if problem.source is not None and at(data, moved) == problem.source:
            return replace(problem, path=moved)
    return problem


def with_right_declarations(fix: str | None, data: Mapping[str, Any], check: Callable[[Any], object]) -> str | None:
    """The fix for a value. It keeps another declaration of the signal only if ``check`` does not raise for the data."""

    def fits(part: str) -> bool:
        if (declared := re.match(r"declare `(signals: .*?)`", part)) is not None:
            try:
                check(over(tree_of(data), tree_of(yaml.safe_load(declared[1]))).plain)
            except DeclogError:
                return False
        return True

    parts = (fix or "").split(", or ")
    right = ", or ".join(filter(fits, parts)) or "give values of that type, and None where one is absent"
    return right if fix else None


def _said_once(problems: Iterable[Problem]) -> Iterator[Problem]:
    """The problems; if several problems of an entry have the same edit, the later ones refer to it."""
    edits: dict[tuple[Path, str], Problem] = {}
    for problem in problems:
        fix = problem.fix or ""
        said = re.match(r'(\w+: (?:[{\[][^\n]*?[}\]]+|"[^"\n]+"))(?:(?:, wh|: [a-z]| for the ).*)?\Z', fix)
        edit = said[1] if said else ""
        first = edits.setdefault((problem.path[:-1], edit), problem)
        again = problem.code == "DL201" and said and first is not problem
        shown = f"the edit for `{first.path[-1]}`" if again and "  or  " in fix else f"`{edit}`"
        yield replace(problem, fix=f"drop it: {shown} is for both") if again else problem


def _in_sections(problems: Sequence[Problem]) -> Iterator[Problem]:
    """The problems; if several top keys belong to one section, the first fix has all of them, for a key stands once."""
    of_top = (one for one in problems if one.code == "DL201" and len(one.path) == 1)
    fixes = {one: match for one in of_top if (match := _OF_A_SECTION.fullmatch(one.fix or "")) is not None}
    for problem in problems:
        alike = [one for one in fixes if problem in fixes and fixes[one]["section"] == fixes[problem]["section"]]
        if len(alike) > 1 and problem is alike[0]:
            edits = (tree_of(yaml.safe_load(fixes[one]["edit"])) for one in alike)
            further = next((fixes[one]["further"] for one in alike if fixes[one]["further"]), "")
            yield replace(problem, fix=f"{in_flow(reduce(over, edits).plain)[1:-1]}{further}")
        elif len(alike) > 1:
            yield replace(problem, fix=f"drop it: the edit for `{alike[0].path[0]}` is for it, too")
        else:
            yield problem


_OF_A_SECTION = re.compile(
    r"(?P<edit>(?P<section>\w+): \{[^\n]*\})(?P<further>, which takes effect [^\n]*)?(?:, which [^\n]*)?"
    r"(?:\none of the keys: .*)?",
    re.DOTALL,
)


def _tried(problem: Problem, data: Mapping[str, Any], check: Check) -> list[Problem]:
    """The problem, with a further edit if its edit is wrong, and the other problems that its entry then has."""
    problem = _in_all_places(problem)
    edit = _edit(problem, data)
    if edit is None:
        return [problem]
    edited, written = _edited(data, problem, edit), edit.value
    of_section = _adds_entries(problem, edit)
    if _beside(problem, edit) and isinstance(edit.value, Mapping) and has(data, edit.path):
        written = at(edited, edit.path)  # with the keys that its entry has there already
    hidden: list[Problem] = []
    entry = entry_path(edit.path if len(problem.path) == 2 else problem.path)
    as_call = (
        problem.code == "DL201" and re.search(rf"\b{re.escape(str(problem.path[-1]))}\(", str(edit.value)) is not None
    )
    for _ in range(ROUNDS):
        entries = [(*edit.path, id) for id in written] if of_section else [entry]
        further = [one for one in check(edited) if entry_path(one.path) in entries]
        inside = next((_in_all_places(one) for one in further if one.path[: len(edit.path)] == edit.path), None)
        if entry_path(edit.path) == entry:
            hidden = [one for one in further if one is not inside]
        if inside is None:
            break
        behind = _edit(inside, edited)
        of_entry = str(inside.fix).startswith(("{", f"{entry[-1]}: {{"))
        entire = of_entry and behind is not None and behind.path == edit.path[:2] != edit.path
        if entire or (not of_section and str(inside.fix).startswith(f"{edit.path[0]}: {{")):  # it needs other entries
            return _tried(replace(problem, fix=inside.fix), data, check)
        if behind is None or behind.path[: len(edit.path)] != edit.path:
            problem = replace(problem, fix="drop it") if as_call else problem
            elsewhere = problem.code == "DL201" and edit.path != problem.path and not as_call
            hidden = [inside, *hidden] if elsewhere else hidden  # of a text that YAML had cut
            break
        edited = _edited(edited, inside, behind)
        if of_section:
            ids = behind.value if behind.path == edit.path else behind.path[1:2]
            written = {**written, **{id: at(edited, (*edit.path, id)) for id in ids}}
        else:
            written = behind.value if behind.path == edit.path else at(edited, edit.path)
    else:  # no edit of an edit makes it right
        return [problem]
    if isinstance(edit.value, str) and isinstance(written, Mapping) and [*written] == ["expr"]:
        written = written["expr"]
    if written != edit.value:
        problem = replace(problem, fix=str(problem.fix).replace(edit.said, edit.of(written)))
    return [problem, *hidden]


def _in_all_places(problem: Problem) -> Problem:
    """The problem of a wrong name, with a fix for each place of this name in its text; other problems unchanged."""
    text, near, (start, end) = problem.source or "", problem.near, problem.span or (0, 0)
    mended = instead_of_name(text, problem.marked, near) if near and problem.marked.isidentifier() else text
    one_place = mended in (text, f"{text[:start]}{near}{text[end:]}")
    return problem if one_place else replace(problem, fix=f"write `{mended}`")


def _edit(problem: Problem, data: Mapping[str, Any]) -> _Edit | None:
    """The edit that a problem's fix shows; None if it shows none."""
    path, fix = problem.path, problem.fix
    if fix is None or not path or not all(isinstance(key, str) for key in path):  # of an item of a list
        return None
    near = re.fullmatch(r"did you mean `(\w+)`\?", fix)
    if near is not None and problem.code == "DL201" and len(path) > 2 and has(data, path):
        return _Edit((*path[:-1], near[1]), at(data, path), fix)
    plain = re.fullmatch(r"(\w+): ([^\"'{}\[\]`;:,#]* [^\"'{}\[\]`;:,#]*)", fix)
    if plain is not None and plain[1] in keys_at(path[:-1]) and has(data, path):
        return _Edit((*path[:-1], plain[1]), plain[2], fix)
    text, (start, end) = problem.source or "", problem.span or (0, 0)
    entire = re.fullmatch(r"(?:.*, which is another value: )?write (`([^`{]+)`)(?:, if .+)?", fix)
    if entire is not None and has(data, path) and problem.source in (None, at(data, path)):
        return _Edit(path, entire[2], entire[1])
    if at(data, path) == text:
        if (written := _instead_of_a_part(problem, near, fix)) is not None:
            return _Edit(path, f"{text[:start]}{written}{text[end:]}", fix)
        if text and problem.span == (0, len(text)) and _stands_alone(fix):
            return _Edit(path, fix, fix)
    if isinstance(fix, Entry) and fix == fix.flow and at(data, path[:2]) == {"expr": text}:
        return _Edit(path[:2], dict(fix.keys), fix)
    cut = _OF_A_CUT.fullmatch(fix) if problem.code == "DL201" and len(path) == 2 else None
    if cut is not None and has(data, (path[0], cut[1])):
        return _Edit((path[0], cut[1]), json.loads(cut[2]), fix)
    edit = edit_of(fix, path, ())
    said = "" if edit is None else fix[slice(*edit[2])].strip("`")
    exact = re.match(r"\w+: ", said) and not re.search(r"\b[A-Z]+\b", said)  # no placeholders
    return _Edit(keys(edit[0]), edit[1], said) if edit is not None and exact else None


def _instead_of_a_part(problem: Problem, near: re.Match[str] | None, fix: str) -> str | None:
    """The text that a fix writes in place of the marked part of a text; None if it writes something else."""
    matches = (
        near if problem.span is not None and problem.marked[-1:] != ")" else None,
        re.search(r"`([^`]+)`, of those one per group\Z", fix),  # of a group's completions, first each alone
        re.fullmatch(r"compare it, such as `([^`]+)`", fix),
        _OF_A_CALL.fullmatch(fix) if problem.marked.endswith(")") else None,
    )
    return next((match[match.lastindex or 1] for match in matches if match is not None), None)


def _stands_alone(fix: str) -> bool:
    """Whether a fix is one expression, and not a name alone."""
    return re.fullmatch(r"\w+", fix) is None and is_expression(fix) and "..." not in fix and "  or  " not in fix


_OF_A_CALL = re.compile(r"(?:did you mean )?`([^`{]+\))`\??|(\w+\([^`\n]*\))")
_OF_A_CUT = re.compile(r'(\w+): (".*")')  # an entry's text that YAML ended at a comma


def _edited(data: Mapping[str, Any], problem: Problem, edit: _Edit) -> Mapping[str, Any]:
    """The data after an edit, which replaces an unknown key or its entry, and completes an existing map."""
    copied: dict[str, Any] = copy.deepcopy(dict(data))
    if edit.path != problem.path and problem.code == "DL201" and has(copied, problem.path):
        entry = at(copied, problem.path[:-1])
        del entry[problem.path[-1]]
        for piece in [key for key, value in entry.items() if value is None and key in str(edit.value)]:
            del entry[piece]  # a part of a text that YAML ended at commas
    *above, name = edit.path
    holder: Any = copied
    for key in above:
        holder[key] = holder.get(key) if isinstance(holder.get(key), dict) else {}
        holder = holder[key]
    adds = _adds_entries(problem, edit)
    entire = edit.path == problem.path[: len(edit.path)] and edit.said.startswith(f"{name}: ") and not adds
    before = None if entire or edit.path == problem.path else holder.get(name)
    is_cut = problem.message_key == "DL201.cut"
    if is_cut and isinstance(before, Mapping) and before.get("where") == problem.facts["value"]:
        before = None  # a part of the text in the edit
    holder[name] = edit.value
    if isinstance(before, Mapping) and isinstance(edit.value, Mapping):
        holder[name] = {**before, **edit.value}
        conditions = [str(part["where"]) for part in (before, edit.value) if "where" in part]
        if conditions:  # of both, unless one contains the other
            longer = max(conditions, key=len)
            holder[name]["where"] = longer if all(one in longer for one in conditions) else both(*conditions)
    return dict(long(tree_of(copied))[0].plain)


def _adds_entries(problem: Problem, edit: _Edit) -> bool:
    """Whether an edit adds entries to a section, or changes several."""
    return len(edit.path) < 2 < len(problem.path) and isinstance(edit.value, Mapping)


def _beside(problem: Problem, edit: _Edit) -> bool:
    """Whether an edit changes another key of the entry."""
    return len(edit.path) > 2 and edit.path[:-1] == problem.path[:-1] and edit.path != problem.path


def about(problem: Problem, names: Collection[str]) -> bool:
    """Whether a problem is about one of these names, which are only missing because their entries are wrong."""
    return any(re.search(rf"`{re.escape(name)}\b", problem.message) for name in names)


def without(data: Mapping[str, Any], paths: Collection[Path], above: Path = ()) -> dict[str, Any]:
    """The data without the values at some paths; all keys become texts."""
    rest: dict[str, Any] = {}
    for key, value in data.items():
        path = (*above, str(key))
        if path not in paths:
            rest[str(key)] = without(value, paths, path) if isinstance(value, Mapping) else value
    return rest
