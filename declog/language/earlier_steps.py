"""What an expression over metrics asks of earlier steps: the value before, the usual value, how far it spreads.

No function reads them, and metrics with `combine` do: an expression comes in, and goes out with the metrics that it
needs. Imports the notation of metrics.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any

from declog.errors import elsewhere
from declog.errors.elsewhere import SYNONYMS
from declog.language.library_calls import MODULES
from declog.language.parser import names_in, tree_of
from declog.language.smoothing import Reduction, Smoothing

BEFORE = frozenset({"prev", "previous", "last_value", "lag", "shift", "before"})
CHANGES = frozenset({"delta", "diff", "change"})
RATIOS = frozenset(elsewhere.words("ratios"))  # changes as parts of the value before
SLOPES = frozenset({"slope", "trend", "gradient", "derivative", "rate_of_change", "momentum", "velocity"})
LONG = 50  # steps that say what is usual
_EXTREMES = {"max": 0.99, "min": 0.01}  # of so many steps
_REDUCTIONS: Mapping[str, Reduction] = {"mean": "", "std": "std", "var": "var"}

Named = Callable[[str], str | None]  # what a formula writes for a value; None where it is none, or is not meant


def reads_earlier(node: ast.expr) -> bool:
    """Whether it is a call for the value of the step before, or ``x[-1]``."""
    if isinstance(node, ast.Subscript):
        return _steps(node.slice, sign=-1) is not None
    return isinstance(node, ast.Call) and _plain(node)[0] in BEFORE | CHANGES | RATIOS


def _plain(call: ast.Call) -> tuple[str, list[ast.expr]]:
    """The name and the arguments of a call; those of ``x.diff()`` and ``np.diff(x)`` are those of ``diff(x)``."""
    if isinstance(call.func, ast.Attribute):
        of_module = isinstance(call.func.value, ast.Name) and call.func.value.id in MODULES
        return call.func.attr, [*([] if of_module else [call.func.value]), *call.args]
    return call.func.id if isinstance(call.func, ast.Name) else "", call.args


def over_metrics(body: ast.expr, named: Named, of_steps: Named) -> tuple[dict[str, Any], str] | None:
    """The metrics that an expression needs, by id, and the expression that names them; None where it reads no others.

    ``named`` are the values whose steps before can be read, and ``of_steps`` those of one number per step, whose
    reductions are those of the last steps.
    """
    steps = _Steps(named, of_steps)
    for node in ast.walk(body):  # the values whose steps before are asked for have one name everywhere
        if isinstance(node, ast.expr):
            steps.before(node)
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
        self._written: dict[str, str] = {}  # what a formula writes for a value whose steps before are asked for

    def visit(self, node: ast.AST) -> Any:
        """What stands for a value whose steps before are asked for, or for what reads them."""
        written = self._written.get(ast.unparse(node)) if isinstance(node, ast.Call | ast.BinOp) else None
        return super().visit(node) if written is None else _tree(written)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """The value of ``x[-1]``."""
        before = self.before(node)
        return self._visited(node) if before is None else ast.Name(self._lag(*before))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """What a formula writes for a metric."""
        written = self._named(node.id)
        return node if written is None else _tree(written)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """What a formula writes for one of a metric's several reductions."""
        written = self._named(ast.unparse(node))
        return node if written is None else _tree(written)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """The value of ``prev(x)``, of ``delta(x)``, and of a reduction of one number per step."""
        name, _ = _plain(node)
        if (before := self.before(node)) is not None:
            lag = self._lag(*before)
            ratio = f"({before[0]}) / {lag} - 1"
            return _tree(ratio if name in RATIOS else f"({before[0]}) - {lag}" if name in CHANGES else lag)
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

    def before(self, node: ast.expr) -> tuple[str, int] | None:
        """The value that is read, and how many steps before."""
        if not reads_earlier(node):
            return None
        if isinstance(node, ast.Subscript):
            value, count = node.value, _steps(node.slice, sign=-1)
        else:
            assert isinstance(node, ast.Call)
            name, arguments = _plain(node)
            value = arguments[0] if arguments else node
            further = [*arguments[1:2], *(item.value for item in node.keywords)]
            count = _steps(further[0]) if further else 1
            if count is None and name == "prev":  # `prev(x, first)`
                count = 1
        written = None if value is node else self._value(value)
        if written is None or count is None:
            return None
        self._written[ast.unparse(value)] = written
        return written, count

    def _value(self, node: ast.expr) -> str | None:
        """What a formula writes for a value; None where it reads what is no value of a step."""
        text = ast.unparse(node)
        earlier = any(isinstance(inner, ast.expr) and reads_earlier(inner) for inner in ast.walk(node))
        written = None if earlier else self._named(text)
        if written is not None or isinstance(node, ast.Name | ast.Attribute):
            return written
        visited = self.visit(tree_of(text).body)
        named = all(name in self.metrics or self._named(name) is not None for name in names_in(visited))
        return ast.unparse(visited) if named else None

    def _lag(self, value: str, count: int) -> str:
        """The id of the value so many steps before."""
        return self._metric(f"{_stem(value)}_before{f'_{count}' if count > 1 else ''}", value, f"lag({count})")

    def _last(self, value: str, reduction: Reduction = "") -> str:
        """The id of a reduction of the last values."""
        id = f"{_stem(value)}_{f'{reduction}_' * bool(reduction)}last_{LONG}"
        return self._metric(id, value, str(Smoothing("rolling", LONG, reduction)))

    def _metric(self, id: str, formula: str, combine: str) -> str:
        """The id of a hidden metric, with a number where another one has that id."""
        entry = {"formula": formula, "combine": combine, "log": False}
        ids = [id, *(f"{id}_{number}" for number in range(2, len(self.metrics) + 3))]
        free = next(one for one in ids if self.metrics.get(one, entry) == entry)
        self.metrics[free] = entry
        return free

    def _usual(self, value: str, reduction: str) -> str | None:
        """What stands for a reduction of the last values: their mean, and of others how far they spread."""
        from declog.language.reductions import quantile_level  # numpy, which composing alone needs not

        level = _EXTREMES.get(reduction, quantile_level(reduction))
        if reduction in _REDUCTIONS:
            return self._last(value, _REDUCTIONS[reduction])
        if level is None:
            return None
        if level == 0.5:
            return self._last(value, "median")
        far = NormalDist().inv_cdf(min(max(level, 0.001), 0.999))
        return f"{self._last(value)} + {far:.3g} * {self._last(value, 'std')}"


def _tree(text: str) -> ast.expr:
    return tree_of(text).body


def _stem(value: str) -> str:
    """The beginning of an id for a metric of a value."""
    plain = value.replace(".", "_")
    names = [node.id for node in ast.walk(tree_of(value)) if isinstance(node, ast.Name)]
    return plain if plain.isidentifier() else "_".join(names) or "value"
