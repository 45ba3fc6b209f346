"""Fixes for conditions and alerts on metrics of one mode: metrics of that mode, and the condition or alert on them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from declog.errors import in_flow
from declog.language.fixes.tracker_names import reductions_of
from declog.language.nodes import MODE
from declog.language.notation import SIGNS, both, bounds
from declog.language.parser import body_of, conjuncts, tree_of

MODES = {
    "is_train": "mode == 'train'", "is_training": "mode == 'train'", "training": "mode == 'train'",
    "is_eval": "mode == 'eval'", "is_evaluation": "mode == 'eval'", "is_validation": "mode == 'eval'",
}  # fmt: skip


def of_split(name: str, text: str, modes: Iterable[str]) -> str | None:
    """The fix for ``split == 'val'`` in an expression, a comparison of the mode; None for another name or text."""
    words = {**words_of_evaluations(modes), "train": "train", "training": "train"}
    compared = re.compile(rf"""\b{name}\s*(==|!=)\s*(['"])({"|".join(map(re.escape, words))})\2""")
    here = compared.sub(lambda match: f"{MODE} {match[1]} {words[match[3]]!r}", text)
    if name not in _OF_SPLITS or here == text:
        return None
    return f"write `{here}`; a label that you observe is declared: signals: {{any: {{{name}: completion text}}}}"


_OF_SPLITS = (
    "split", "data_split", "dataset_split", "subset", "partition", "phase", "stage", "loop", "run_mode", "set",
)  # fmt: skip


def in_mode(name: str, modes: Iterable[str]) -> tuple[str, str] | None:
    """Split ``eval/reward``, ``eval_reward`` or ``reward_eval`` into the mode and the name of a metric.

    ``train`` is no such mode. If only one other mode exists, further words for an evaluation mean it, too. Returns
    None for any other name.
    """
    words = words_of_evaluations(modes)
    said = "|".join(map(re.escape, words)) or "(?!)"
    match = re.fullmatch(rf"({said}) *[/_] *(.+)|(.+?) *[/_] *({said})", name)
    return None if match is None else (words[match[1] or match[4]], match[2] or match[3])


def words_of_evaluations(modes: Iterable[str]) -> dict[str, str]:
    """The words that mean a mode other than ``train``, each with its mode; see ``in_mode``."""
    evaluations = [mode for mode in modes if mode != "train"]
    words = dict.fromkeys(_OF_EVALUATION, evaluations[0]) if len(evaluations) == 1 else {}
    return words | {mode: mode for mode in evaluations}


_OF_EVALUATION = ("eval", "evaluation", "val", "valid", "validation", "test")


def of_one_mode(condition: str, mode: object, metrics: Mapping[str, Any], shown: Callable[[str], str] = str) -> str:
    """The fix for a condition that is meant for one mode: metrics of that mode, and the condition on them.

    ``shown`` returns the text that stands for this condition in the fix, by default the condition. ``metrics`` are the
    metrics of the config by id. The fix is only an example if a metric cannot be restricted to the mode, or if the mode
    is no identifier.
    """
    named = _OfOneMode(str(mode), metrics)
    here = ast.unparse(named.visit(body_of(condition) or ast.Constant(None)))
    if not named.specs and here == condition and condition.partition(" ")[0] in metrics:  # each is of that mode
        return f"write `{shown(here)}`"
    if not named.specs or None in named.specs.values() or not isinstance(mode, str) or not mode.isidentifier():
        example = "metrics: {reward_eval: {expr: reward, where: \"mode == 'eval'\"}}"
        return f"a metric of that mode has a name of its own, such as {example}; a condition names it"
    return f"write a metric of that mode and name it here: `metrics: {in_flow(named.specs)}`, and `{shown(here)}`"


def alert_of_mode(name: str, alert: Mapping[str, Any], metric: str, mode: str, metrics: Mapping[str, Any]) -> str:
    """The fix for an alert about a metric in one mode: a metric of that mode, and the alert with a condition on it.

    ``metric`` is the metric of all modes, as a condition writes it. ``metrics`` are the config's metrics by id.
    """
    said = {key: value for key, value in alert.items() if value is not None}
    rest = {key: value for key, value in said.items() if key not in (*SIGNS, "when")}

    def shown(here: str) -> str:
        return in_flow({name: {"when": here, **rest}})[1:-1]

    return of_one_mode(str(said.get("when", bounds(metric, said))), mode, metrics, shown)


class _OfOneMode(ast.NodeTransformer):
    """Replaces metrics by metrics of one mode. ``specs`` holds their entries by id; None if a metric has none."""

    def __init__(self, mode: str, metrics: Mapping[str, Any]) -> None:
        self.specs: dict[str, dict[str, Any] | None] = {}
        self._mode, self._metrics = mode, metrics

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._named(node, node.id, None)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return self._named(node, ast.unparse(node.value), node.attr)

    def _named(self, node: ast.expr, name: str, ending: str | None) -> ast.expr:
        if name not in self._metrics or self._is_of_it(name):
            return node
        id = "_".join([name, *([ending] if ending else []), self._mode])
        self.specs.setdefault(id, None)
        spec = self._metrics[name]
        formula = spec.get("formula") if isinstance(spec, Mapping) and "combine" not in spec else None
        if formula is not None and len(self.specs) < _MOST:
            named = {**self.specs}
            self.specs[id] = {"formula": ast.unparse(self.visit(tree_of(str(formula)).body))}
            for part in self.specs.keys() - named.keys():
                if (hidden := self.specs[part]) is not None:
                    self.specs[part] = {**hidden, "log": False}
        else:
            self.specs[id] = _in_mode(name, ending, spec, self._mode)
        return ast.Name(id)

    def _is_of_it(self, name: str) -> bool:
        """Whether a metric is restricted to the mode already."""
        spec = self._metrics[name]
        where = spec.get("where") if isinstance(spec, Mapping) else None
        parts = where.replace('"', "'").split(" and ") if isinstance(where, str) else []
        return f"{MODE} == '{self._mode}'" in map(str.strip, parts)


_MOST = 9  # the most metrics that a fix defines


def _in_mode(name: str, ending: str | None, spec: Any, mode: str) -> dict[str, Any] | None:
    """The entry of a metric in one mode. Of several reductions it has the one named ``ending``, or the mean.

    Returns None for a formula, and if no single reduction is chosen.
    """
    said = {key: value for key, value in spec.items() if value} if isinstance(spec, Mapping) else {"expr": spec}
    expr, reductions = said.get("expr", name), reductions_of(said)
    means = "mean" if "mean" in reductions.values() else None
    reduce = (reductions.get(ending) if ending else means) if reductions else said.get("reduce", "mean")
    if "formula" in said or not isinstance(expr, str) or not isinstance(reduce, str) or (ending and not reductions):
        return None
    condition = f"mode == '{mode}'"
    kept = {key: said[key] for key in ("by", "weight", "over", "empty") if key in said}
    where = both(str(said["where"]), condition) if "where" in said else condition
    return {"expr": expr, **({} if reduce == "mean" else {"reduce": reduce}), **kept, "where": where}


def without_mode(body: ast.expr) -> tuple[str, str | None]:
    """Split a condition into its parts without the mode, and the mode.

    The mode is None unless one part names it, other parts remain, and they do not mention the mode.
    """
    parts = conjuncts(body)
    modes = [mode for part in parts if (mode := _mode_in(part)) is not None]
    rest = [part for part in parts if _mode_in(part) is None]
    alone = len(modes) == 1 and rest and not any("mode" in ast.unparse(part) for part in rest)
    return " and ".join(map(ast.unparse, rest)), modes[0] if alone else None


def _mode_in(part: ast.expr) -> str | None:
    """The mode that a condition asks for: `mode == 'eval'`, `is_eval`."""
    text = MODES.get(part.id, "") if isinstance(part, ast.Name) else ast.unparse(part)
    match = re.fullmatch(rf"{MODE} == '(\w+)'", text)
    return None if match is None else match[1]
