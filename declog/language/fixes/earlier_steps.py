"""Expressions over metrics that ask for earlier steps: the previous value, the usual value, its spread.

The language has no function for them; metrics with `combine` hold them. ``over_metrics`` rewrites an expression, and
adds the metrics that it needs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any

from declog.errors import Entry, elsewhere
from declog.errors.elsewhere import SYNONYMS
from declog.language.fixes.library_calls import MODULES, of_library
from declog.language.parser import names_in, tree_of
from declog.language.smoothing import Reduction, Smoothing

BEFORE = frozenset({"prev", "previous", "last_value", "lag", "shift", "before"})
CHANGES = frozenset({"delta", "diff", "change"})
RATIOS = frozenset(elsewhere.words("ratios"))  # changes as fractions of the previous value
SLOPES = frozenset({"slope", "trend", "gradient", "derivative", "rate_of_change", "momentum", "velocity"})
LONG = 50  # the number of steps that define the usual value
_EXTREMES = {"max": 0.99, "min": 0.01}  # the quantiles that replace the extremes of LONG steps
_REDUCTIONS: Mapping[str, Reduction] = {"mean": "", "std": "std", "var": "var"}

Named = Callable[[str], str | None]  # the text of a value in a formula; None for any other text


def reads_earlier(node: ast.expr) -> bool:
    """Whether an expression is a call for the value of an earlier step, or ``x[-1]``."""
    if isinstance(node, ast.Subscript):
        return _steps(node.slice, sign=-1) is not None
    return isinstance(node, ast.Call) and plain(node)[0] in BEFORE | CHANGES | RATIOS | SLOPES


def plain(call: ast.Call) -> tuple[str, list[ast.expr]]:
    """The name and the arguments of a call. ``x.diff()`` and ``np.diff(x)`` give the same as ``diff(x)``."""
    if isinstance(call.func, ast.Attribute):
        of_module = isinstance(call.func.value, ast.Name) and call.func.value.id in MODULES
        return call.func.attr, [*([] if of_module else [call.func.value]), *call.args]
    return call.func.id if isinstance(call.func, ast.Name) else "", call.args


def of_first_step(node: ast.expr) -> ast.Call | None:
    """The call ``first_value(x)`` for ``first(x)``, ``start(x)``, ``x.first()`` and ``x[0]``; None for others."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "0":
        name, values = "first_value", [node.value]
    elif isinstance(node, ast.Call) and not node.keywords:
        name, values = plain(node)
        name = "first_value" if name == "first" else name
    else:
        return None
    meant = of_library(name, values) if len(values) == 1 else None
    is_first = isinstance(meant, Entry) and meant.keys.get("combine") == "first"
    return ast.copy_location(ast.Call(ast.Name("first_value"), values, []), node) if is_first else None


def over_metrics(body: ast.expr, named: Named, of_steps: Named) -> tuple[dict[str, Any], str] | None:
    """Rewrite an expression over earlier steps: the metrics that it needs, by id, and the text that names them.

    ``named`` accepts the values whose earlier steps can be read. ``of_steps`` accepts values with one number per step:
    a reduction of such a value is the reduction of the last ``LONG`` steps. Returns None if no metric is needed.
    """
    steps = _Steps(named, of_steps)
    for node in ast.walk(body):  # first register every value whose earlier steps are read: it gets one name everywhere
        if isinstance(node, ast.expr):
            steps.before(node)
    here = ast.unparse(steps.visit(tree_of(ast.unparse(body)).body))
    return (steps.metrics, here) if steps.metrics else None


def _steps(node: ast.expr, sign: int = 1) -> int | None:
    """The number of steps that a constant gives, multiplied by ``sign``. None if it is no positive integer."""
    try:
        value = sign * ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if type(value) is int and value > 0 else None


class _Steps(ast.NodeTransformer):
    """Replaces the parts of an expression that read earlier steps by metrics; ``metrics`` collects these by id."""

    def __init__(self, named: Named, of_steps: Named) -> None:
        self.metrics: dict[str, Any] = {}
        self._named, self._of_steps = named, of_steps
        self._written: dict[str, str] = {}  # values whose earlier steps are read: source text to text in a formula

    def visit(self, node: ast.AST) -> Any:
        """Rewrite a node, and reuse the text of a value whose earlier steps are read elsewhere in the expression."""
        written = self._written.get(ast.unparse(node)) if isinstance(node, ast.Call | ast.BinOp) else None
        return super().visit(node) if written is None else _tree(written)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Rewrite ``x[-1]`` as a metric with the previous value of x."""
        before = self.before(node)
        return self._visited(node) if before is None else ast.Name(self._lag(*before))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Rewrite the name of a metric as a formula writes it."""
        written = self._named(node.id)
        return node if written is None else _tree(written)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Rewrite one of a metric's reductions, ``length.max``, as a formula writes it."""
        written = self._named(ast.unparse(node))
        return node if written is None else _tree(written)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Rewrite ``prev(x)``, ``delta(x)``, and a reduction of a value with one number per step."""
        name, _ = plain(node)
        if (before := self.before(node)) is not None:
            lag = self._lag(*before)
            change = f"({before[0]}) - {lag}"
            slope = f"({change}) / {before[1]}"
            ratio = f"({before[0]}) / {lag} - 1"
            return _tree(slope if name in SLOPES else ratio if name in RATIOS else change if name in CHANGES else lag)
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
        """The value that ``node`` reads from an earlier step, and the number of steps; None for any other node."""
        if not reads_earlier(node):
            return None
        if isinstance(node, ast.Subscript):
            value, count = node.value, _steps(node.slice, sign=-1)
        else:
            assert isinstance(node, ast.Call)
            name, arguments = plain(node)
            value = arguments[0] if arguments else node
            further = [*arguments[1:2], *(item.value for item in node.keywords)]
            count = _steps(further[0]) if further else 10 if name in SLOPES else 1
            if count is not None and name in SLOPES:  # from the first to the last of so many values
                count = max(count - 1, 1)
            if count is None and name == "prev":  # `prev(x, first)`
                count = 1
        written = None if value is node else self._value(value)
        if written is None or count is None:
            return None
        self._written[ast.unparse(value)] = written
        return written, count

    def _value(self, node: ast.expr) -> str | None:
        """The text of a value in a formula. None if the value reads a name that has no value per step."""
        text = ast.unparse(node)
        earlier = any(isinstance(inner, ast.expr) and reads_earlier(inner) for inner in ast.walk(node))
        written = None if earlier else self._named(text)
        if written is not None or isinstance(node, ast.Name | ast.Attribute):
            return written
        visited = self.visit(tree_of(text).body)
        named = all(name in self.metrics or self._named(name) is not None for name in names_in(visited))
        return ast.unparse(visited) if named else None

    def _lag(self, value: str, count: int) -> str:
        """The id of the metric with the value ``count`` steps earlier."""
        return self._metric(f"{_stem(value)}_before{f'_{count}' if count > 1 else ''}", value, f"lag({count})")

    def _last(self, value: str, reduction: Reduction = "") -> str:
        """The id of the metric with a reduction of the last ``LONG`` values."""
        id = f"{_stem(value)}_{f'{reduction}_' * bool(reduction)}last_{LONG}"
        return self._metric(id, value, str(Smoothing("rolling", LONG, reduction)))

    def _metric(self, id: str, formula: str, combine: str) -> str:
        """Add a hidden metric and return its id, with a number if another metric has that id."""
        entry = {"formula": formula, "combine": combine, "log": False}
        ids = [id, *(f"{id}_{number}" for number in range(2, len(self.metrics) + 3))]
        free = next(one for one in ids if self.metrics.get(one, entry) == entry)
        self.metrics[free] = entry
        return free

    def _usual(self, value: str, reduction: str) -> str | None:
        """The text for a reduction of the last ``LONG`` values.

        ``mean``, ``std``, ``var`` and the median become a metric each. Other quantiles and the extremes are estimated
        from the mean and the standard deviation. None for other reductions.
        """
        from declog.language.reductions import quantile_level  # imports numpy, which composing alone does not need

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
    """The beginning of the id of a metric that is derived from a value."""
    plain = value.replace(".", "_")
    names = [node.id for node in ast.walk(tree_of(value)) if isinstance(node, ast.Name)]
    return plain if plain.isidentifier() else "_".join(names) or "value"
