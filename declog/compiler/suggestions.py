"""Fixes of wrong expressions: pasted into the config, they give the intended number."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Container

from declog.errors import in_flow
from declog.errors.elsewhere import SYNONYMS
from declog.language import idioms
from declog.language.reductions import Reductions, quantile_level
from declog.language.spec import MetricSpec
from declog.language.syntax import tree_of

_PLAIN = frozenset({"expr", "name", "tags"})  # keys that a formula has, too


def as_formula(
    id: str, spec: MetricSpec, body: ast.expr, reductions: Reductions, constants: Container[str], taken: Container[str]
) -> str | None:
    """``mean(a) / mean(b)`` computes with reduced values: a metric for each, and a formula. None for anything else."""
    parts: dict[str, str] = {}
    rest = _Parts(id, reductions, taken, parts).visit(tree_of(ast.unparse(body)).body)
    names = {node.id for node in ast.walk(rest) if isinstance(node, ast.Name)}
    called = {node.func.id for node in ast.walk(rest) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    if not parts or any(name not in parts and name not in constants for name in names - called):
        return None
    if any(isinstance(node, ast.keyword) for node in ast.walk(rest)) or not spec.model_fields_set <= _PLAIN:
        return "a metric for each reduction, with the same keys as this one, and a `formula:` of those metrics"
    entries = [f"{name}: {{expr: {in_flow(text)}, log: false}}" for name, text in parts.items()]
    further = [] if spec.name is None else [f"name: {in_flow(spec.name)}"]
    further += [f"tags: {in_flow(spec.tags)}"] if spec.tags else []
    inside = ", ".join([f"formula: {in_flow(ast.unparse(rest))}", *further])
    return f"metrics: {{{', '.join(entries)}, {id}: {{{inside}}}}}"


def of_metrics(body: ast.expr, metrics: Container[str], constants: Container[str]) -> str | None:
    """``100 * mean(kl)`` of a metric `kl`, as a formula: a metric is reduced already. None where it reads signals."""

    class Reduced(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.expr:
            self.generic_visit(node)
            first = node.args[0] if len(node.args) == 1 else None
            return first if isinstance(first, ast.Name) and first.id in metrics else node

    rest = Reduced().visit(tree_of(ast.unparse(body)).body)
    called = {node.func.id for node in ast.walk(rest) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    names = {node.id for node in ast.walk(rest) if isinstance(node, ast.Name)} - called
    plain = all(name in metrics or name in constants for name in names)
    return in_flow({"formula": ast.unparse(rest)}) if plain else None


class _Parts(ast.NodeTransformer):
    """Takes the reductions out of an expression, each as a metric of its own."""

    def __init__(self, id: str, reductions: Reductions, taken: Container[str], parts: dict[str, str]) -> None:
        self._id, self._reductions, self._taken, self._parts = id, reductions, taken, parts

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """A call of a reduction without an axis becomes the name of its metric."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        over = any(keyword.arg in ("over", "within") for keyword in node.keywords)
        if over or self._reductions.get(name) is None:
            self.generic_visit(node)
            return node
        text = ast.unparse(node)
        for part, other in self._parts.items():
            if other == text:
                return ast.Name(part)
        count = len(self._parts) + 1
        while f"{self._id}_{count}" in self._taken:
            count += 1
        self._parts[f"{self._id}_{count}"] = text
        return ast.Name(f"{self._id}_{count}")


def reduction(call: ast.Call, reductions: Collection[str], functions: Collection[str]) -> str | None:
    """The reduction that another library's word stands for, as it would be called: ``median(x)`` is ``p50(x)``.

    Words inside a name count, too: ``MeanMetric(x)`` is ``mean(x)``. ``reductions`` and ``functions`` are all names.
    """
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    argument = ast.unparse(call.args[0]) if call.args else None
    if argument is None:
        return None
    level = call.args[1] if len(call.args) == 2 else next((item.value for item in call.keywords), None)
    if name in idioms.QUANTILES:
        if name.startswith("histogram_") and level is not None:  # Prometheus writes the level first
            argument, level = ast.unparse(level), call.args[0]
        word = idioms.quantile(name, level)
        return f"{word}({argument})" if word is not None and quantile_level(word) is not None else None
    synonym = SYNONYMS.get(name.removeprefix("nan"))
    if synonym is not None and quantile_level(synonym) is not None and len(call.args) == 1 and not call.keywords:
        return f"{synonym}({argument})"
    if name in functions or name in reductions or synonym in reductions:
        return None
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]
    close = next((word for word in (SYNONYMS.get(word, word) for word in words) if word in reductions), None)
    return None if close is None else f"{close}({argument})"
