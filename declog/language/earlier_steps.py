"""What an expression over metrics asks of earlier steps: the value before, the usual value, how far it spreads.

No function reads them, and smooth metrics do: an expression comes in, and goes out with the metrics that it needs. Of
``rolling(2)``, the mean of a value and the one before, the one before follows exactly. Imports the notation of metrics.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

from declog.errors.elsewhere import SYNONYMS
from declog.language.smoothing import Smoothing
from declog.language.syntax import tree_of

BEFORE = frozenset({"prev", "previous", "last_value", "lag", "shift", "before"})
CHANGES = frozenset({"delta", "diff", "change"})
LONG = 50  # steps that say what is usual
_EXTREMES = {"max": 0.99, "min": 0.01}  # of so many steps

Named = Callable[[str], str | None]  # what a formula writes for a value; None where it is none, or is not meant


def reads_earlier(node: ast.expr) -> bool:
    """Whether it is a call for the value of the step before, or ``x[-1]``."""
    if isinstance(node, ast.Subscript):
        return _steps(node.slice, sign=-1) is not None
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    return name in BEFORE | CHANGES


def over_metrics(body: ast.expr, named: Named, of_steps: Named) -> tuple[dict[str, Any], str] | None:
    """The metrics that an expression needs, by id, and the expression that names them; None where it reads no others.

    ``named`` are the values whose steps before can be read, and ``of_steps`` those of one number per step, whose
    reductions are those of the last steps.
    """
    steps = _Steps(named, of_steps)
    here = ast.unparse(steps.visit(tree_of(ast.unparse(body)).body))
    return (steps.metrics, here) if steps.metrics else None


def _steps(node: ast.expr, sign: int = 1) -> int | None:
    """The number of steps that a constant says."""
    try:
        value = sign * ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if type(value) is int and value > 0 else None


class _Steps(ast.NodeTransformer):
    """Puts smooth metrics in the place of what reads earlier steps. ``metrics`` are these, by id."""

    def __init__(self, named: Named, of_steps: Named) -> None:
        self.metrics: dict[str, Any] = {}
        self._named, self._of_steps = named, of_steps

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """``x - prev(x)`` is twice the distance from the mean of the two."""
        before = self._before(node.right) if isinstance(node.op, ast.Sub) else None
        if before is not None and before[1] == 1 and self._named(ast.unparse(node.left)) == before[0]:
            return self._change(*before)
        return self._visited(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """The value of ``x[-1]``."""
        before = self._before(node)
        return self._visited(node) if before is None else _tree(self._value_before(*before))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """What a formula writes for a metric."""
        written = self._named(node.id)
        return node if written is None else _tree(written)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """The value of ``prev(x)``, of ``delta(x)``, and of a reduction of one number per step."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if (before := self._before(node)) is not None:
            return self._change(*before) if name in CHANGES else _tree(self._value_before(*before))
        value = self._of_steps(ast.unparse(node.args[0])) if len(node.args) == 1 and not node.keywords else None
        written = None if value is None else self._usual(value, SYNONYMS.get(name, name))
        if written is not None:
            return _tree(written)
        node.args = [self.visit(item) for item in node.args]
        return node

    def _visited(self, node: ast.expr) -> ast.expr:
        visited = self.generic_visit(node)
        assert isinstance(visited, ast.expr)
        return visited

    def _before(self, node: ast.expr) -> tuple[str, int] | None:
        """The value that is read, and how many steps before."""
        if not reads_earlier(node):
            return None
        if isinstance(node, ast.Subscript):
            value, count = node.value, _steps(node.slice, sign=-1)
        else:
            assert isinstance(node, ast.Call)
            value = node.args[0] if node.args else node
            further = [*node.args[1:2], *(item.value for item in node.keywords)]
            counted = further and isinstance(node.func, ast.Name) and node.func.id != "prev"  # `prev(x, first)`
            count = _steps(further[0]) if counted else 1
        named = self._named(ast.unparse(value))
        return None if named is None or count is None else (named, count)

    def _value_before(self, value: str, count: int) -> str:
        longer = self._mean(value, count + 1)
        return f"{count + 1} * {longer} - {value if count == 1 else f'{count} * {self._mean(value, count)}'}"

    def _change(self, value: str, count: int) -> ast.expr:
        if count > 1:
            return _tree(f"{value} - ({self._value_before(value, count)})")
        return _tree(f"2 * ({value} - {self._mean(value, 2)})")

    def _mean(self, value: str, count: int, power: str = "") -> str:
        """The id of the mean of the last values, or of their squares."""
        stem = "_".join(node.id for node in ast.walk(tree_of(value)) if isinstance(node, ast.Name)) or "value"
        stem = value.replace(".", "_") if value.replace(".", "_").isidentifier() else stem
        id = f"{stem}_{'squares_' if power else ''}last_{count}"
        self.metrics[id] = {"formula": f"{value}{power}", "combine": str(Smoothing.of_last(count))}
        return id

    def _usual(self, value: str, reduction: str) -> str | None:
        """What stands for a reduction of the last values: their mean, and of others how far they spread."""
        from declog.language.reductions import quantile_level  # numpy, which composing alone needs not

        level = _EXTREMES.get(reduction, quantile_level(reduction))
        if reduction not in ("mean", "std", "pstd", "var", "pvar") and level is None:
            return None
        mean = self._mean(value, LONG)
        if reduction == "mean" or (level is not None and 0.4 <= level <= 0.6):
            return mean
        variance = f"maximum({self._mean(value, LONG, ' ** 2')} - {mean} ** 2, 0)"
        if level is None:
            return variance if "var" in reduction else f"sqrt({variance})"
        return f"{mean} + {NormalDist().inv_cdf(min(max(level, 0.001), 0.999)):.3g} * sqrt({variance})"


def _tree(text: str) -> ast.expr:
    return tree_of(text).body
