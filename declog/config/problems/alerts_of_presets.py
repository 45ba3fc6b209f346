"""Fixes for an alert over a preset's alert of the same name: they keep the keys of its own layer, and null the rest."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import yaml

from declog.config.composed import Composed
from declog.errors import Path, Problem, in_flow
from declog.errors.elsewhere import SYNONYMS
from declog.language.fixes.alert_keys import edit_over_preset
from declog.language.fixes.mistakes import answered
from declog.language.keys import keys
from declog.language.notation import SIGNS, bounds
from declog.language.parser import body_of, names_in
from declog.language.spec import AlertSpec
from declog.language.tree import at


def without_presets(problem: Problem, composed: Composed) -> Problem:
    """The problem of an alert's unknown key, with a fix of the layer that has this key; other problems unchanged.

    The fix does not repeat a bound or a condition of a lower layer. If the two cannot stand together, it sets the lower
    one to null. A number in place of a preset's alert becomes a bound on the same side.
    """
    if problem.code == "DL203" and problem.path[:1] == ("alerts",) and len(problem.path) == 2:
        return _instead(problem, composed)
    if problem.message_key == "DL305.alert":
        signs = [sign for word, sign in SIGNS.items() if _layers(composed, (*problem.path, word))]
        edits = [edit.partition(", where")[0] for edit in str(problem.fix).split("  or  ")]
        of_preset = [edit for edit in edits if len(signs) == 1 and f"{signs[0]} " in edit]
        return replace(problem, fix=of_preset[0]) if of_preset else problem
    if problem.code != "DL201" or problem.path[:1] != ("alerts",) or len(problem.path) != 3:
        return problem
    (_, name, key), alert = map(str, problem.path), problem.path[:2]
    entry, here = at(composed.data, alert), _layers(composed, problem.path)[-1:]
    below = {word for word in (*SIGNS, "when") if {*_layers(composed, (*alert, word))} - {*here}}
    if not here or not below or not isinstance(entry, dict):
        return problem
    alone = {word: value for word, value in entry.items() if _layers(composed, (*alert, word))[-1:] == here}
    data = {**composed.data, "alerts": {**composed.data["alerts"], name: alone}}
    bare = Problem.of("DL201.key", problem.path, key=key, fix=None)
    near = SYNONYMS.get(key, "")
    fix = (answered(bare, data) or bare).fix or (f"{near}: {in_flow(entry[key])}" if near in SIGNS else problem.fix)
    try:
        edit = yaml.safe_load(f"{{{fix}}}")
    except yaml.YAMLError:
        return problem
    if not isinstance(edit, dict) or len(edit) != 1 or not edit.keys() <= {name, *keys(AlertSpec)}:
        return problem
    said: Any = edit[name] if isinstance(edit.get(name), dict) else {**alone, **edit}
    said = {word: value for word, value in said.items() if word != key and (word in alone or entry.get(word) != value)}
    if said.keys().isdisjoint((*SIGNS, "when")):
        return problem
    signs = [word for word in (*SIGNS, "when") if word in below - said.keys()]
    nulls = [word for word in signs if not _beside(said, word, entry.get(word))]
    if not nulls and edit.keys() != {name} and not (isinstance(entry[key], str) and {*edit} & {*SIGNS}):
        return problem
    if not said.keys() <= {*keys(AlertSpec)}:  # it has other mistakes
        return problem
    nulls += [word for word in entry if _layers(composed, (*alert, word))[-1:] != here and word not in (*SIGNS, "when")]
    return replace(problem, fix=edit_over_preset(name, said, nulls))


def _instead(problem: Problem, composed: Composed) -> Problem:
    """The problem of a condition beside a preset's condition, with a fix that replaces the preset's alert.

    The fix also replaces the preset's text, level and count, which are about the preset's condition.
    """
    alert = problem.path
    entry = {key: value for key, value in at(composed.data, alert).items() if value is not None}
    tops = {key: layers[-1] for key in entry if (layers := composed.layers.get((*alert, key)))}
    last = max((key for key in (*SIGNS, "when") if key in tops), key=lambda key: tops[key].rank, default="")
    said = {key: value for key, value in entry.items() if last and key in tops and tops[key].file == tops[last].file}
    if not last or {*SIGNS, "when"}.isdisjoint(entry.keys() - said.keys()):
        return problem
    if alert[1] not in composed.data.get("metrics", {}) and (metric := _compared(entry.get("when"))) is not None:
        rest = {key: value for key, value in said.items() if key not in (*SIGNS, "when")}
        fix = in_flow({alert[1]: {"when": bounds(metric, said), **rest}})[1:-1]
        return replace(problem, path=(*alert, last), fix=f"{fix}, of the metric of the preset's condition")
    instead = in_flow({**said, **dict.fromkeys(key for key in entry if key not in said)})
    fix = f"{alert[1]}: {instead}, in place of the preset's; another id has both"
    return replace(problem, path=(*alert, last), fix=fix)


def _compared(when: Any) -> str | None:
    """The metric that a condition compares with a number; None for another condition."""
    match body_of(str(when)):
        case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()], comparators=[right]):
            metrics = [side for side in (left, right) if names_in(side)]
            return ast.unparse(metrics[0]) if len(metrics) == 1 else None
    return None


def _layers(composed: Composed, path: Path) -> list[str]:
    """The layers that set a key, the latest last: files, and `overrides`; empty if they are unknown."""
    return [layer.file or "overrides" for layer in composed.layers.get(path, ())]


def _beside(said: dict[str, Any], word: str, value: Any) -> bool:
    """Whether a preset's bound may stand beside the other bound: `above` is not less than `below`."""
    above, below = ({**said, word: value}.get(sign) for sign in SIGNS)
    return (
        "when" not in (*said, word)
        and isinstance(above, int | float)
        and isinstance(below, int | float)
        and (above >= below)
    )
