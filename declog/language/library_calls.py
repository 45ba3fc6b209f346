"""Calls of other libraries in the words of the language, from the table `calls.txt`: fixes for refused expressions.

Syntax trees come in, texts of fixes go out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import cache

from declog.errors import elsewhere


@cache
def _templates() -> Mapping[tuple[str, int], tuple[list[str], str]]:
    """The parameters and the template of each call of `calls.txt`, by its name and how many arguments it has."""
    return {
        (name, call.count(",") + 1): (re.findall(r"\w+", call.partition("(")[2]), template.replace("<name>", name))
        for call, template in elsewhere.calls().items()
        for name in call.partition("(")[0].split("|")
    }


def of_library(name: str, arguments: Sequence[ast.expr]) -> str | None:
    """A call of another library, such as ``where(c, a, b)``, in our words; None if `calls.txt` does not have it."""
    if (call := _templates().get((name, len(arguments)))) is None:
        return None
    parameters, template = call
    if template.startswith("write"):
        return template
    tree = _Substitution(dict(zip(parameters, arguments, strict=True))).visit(ast.parse(template, mode="eval"))
    return ast.unparse(_Substitution({"nan": ast.Name("missing")}).visit(tree))


def with_metric(fix: str, call: ast.Call, text: str) -> str:
    """The fix of a call in a formula or a condition, where only metrics have names: a metric of its own beside it."""
    if (spec := re.fullmatch(r"\{expr: (.+), over: step, (combine: ema\(.+\))\}", fix)) is None:
        return fix
    names = [node.id for node in ast.walk(call.args[0]) if isinstance(node, ast.Name)]
    name = f"{'_'.join(names) or 'value'}_smooth"
    here = text.replace(ast.get_source_segment(text.strip(), call) or ast.unparse(call), name).strip()
    return f"write a metric and name it here: `metrics: {{{name}: {{formula: {spec[1]}, {spec[2]}}}}}`, and `{here}`"


class _Substitution(ast.NodeTransformer):
    """Names become values."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The value of a name, or the name."""
        return self._values.get(node.id, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """The value of ``np.nan`` is that of ``nan``."""
        return self._values.get(node.attr, node)
