"""Rewrite a user's function of numbers as a line of torch code: the fix for a function that fails on tensors.

The line is tried on numbers before it is returned; torch is imported only for that.
"""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from textwrap import dedent
from typing import Any

_NUMBERS = (-2.0, 0.0, 0.25, 1.0, 7.0)
_OPERATORS = {ast.And: ast.BitAnd, ast.Or: ast.BitOr}
_RENAMED = {"fabs": "abs", "absolute": "abs", "clip": "clamp", "rint": "round", "power": "pow"}
_CONVERTED = {"int": "trunc", "round": "round", "abs": "abs"}  # Python's functions of one number


def as_tensors(run: Callable[..., Any], *, of_bools: bool = False) -> str | None:
    """``return torch.where(length < 5, reward, 0.0)`` for a function with `if`; None if no line gives its results.

    ``of_bools``: the function is registered to return bools.
    """
    try:
        (written,) = ast.parse(dedent(inspect.getsource(run))).body
        names = {**getattr(run, "__globals__", {}), **inspect.getclosurevars(run).nonlocals}
        assert isinstance(written, ast.FunctionDef)
        line = ast.unparse(ast.fix_missing_locations(_value(written.body, _Tensors(names, {}))))
        line = _tried(run, line, names, of_bools)
    except Exception:  # noqa: BLE001  the function has no source, or does not only compute numbers
        return None
    return f"return {line}" if "torch" in names else f"import torch, and `return {line}`"


def _value(body: Sequence[ast.stmt], tensors: _Tensors) -> ast.expr:
    """The value that a function's body returns, as one expression; raises ``TypeError`` for other statements."""
    first, *rest = body
    match first:
        case ast.Return(value=ast.expr() as value):
            return tensors.of(value)
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value)
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
        ):
            return _value(rest, _Tensors(tensors.names, {**tensors.local, name: tensors.of(value)}))
        case ast.If(test=test):
            sides = [_value([*side, *rest], tensors) for side in (first.body, first.orelse)]
            return _call("where", tensors.condition(test), *sides)
        case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
            return _value(rest, tensors)
    raise TypeError(first)


def _call(name: str, *arguments: ast.expr, **keywords: ast.expr) -> ast.Call:
    words = [ast.keyword(key, value) for key, value in keywords.items()]
    return ast.Call(ast.Attribute(ast.Name("torch"), name), list(arguments), words)


def _joined(operator: type[ast.operator], conditions: Iterable[ast.expr]) -> ast.expr:
    return reduce(lambda one, other: ast.BinOp(one, operator(), other), conditions)


class _Tensors(ast.NodeTransformer):
    """Rewrites expressions of numbers to expressions of tensors. ``local`` has the values of a function's variables."""

    def __init__(self, names: Mapping[str, Any], local: Mapping[str, ast.expr]) -> None:
        self.names, self.local = names, local

    def of(self, node: ast.expr) -> ast.expr:
        written: ast.expr = self.visit(copy.deepcopy(node))
        return written

    def condition(self, node: ast.expr) -> ast.expr:
        """A test: a number is true where it is not 0."""
        plain = isinstance(node, ast.Compare | ast.BoolOp | ast.Call) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        )
        return self.of(node if plain else ast.Compare(node, [ast.NotEq()], [ast.Constant(0)]))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self.local.get(node.id, node))

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return _call("where", self.condition(node.test), self.of(node.body), self.of(node.orelse))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        return _joined(_OPERATORS[type(node.op)], map(self.condition, node.values))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.Not):
            return ast.UnaryOp(ast.Invert(), self.condition(node.operand))
        return ast.UnaryOp(node.op, self.of(node.operand))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        sides = list(map(self.of, [node.left, *node.comparators]))
        pairs = zip(node.ops, itertools.pairwise(sides), strict=True)
        return _joined(ast.BitAnd, (ast.Compare(first, [sign], [second]) for sign, (first, second) in pairs))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        first, *attributes = ast.unparse(node.func).split(".")
        called = reduce(getattr, attributes, self.names.get(first, getattr(builtins, first, None)))
        arguments = list(map(self.of, node.args))
        if called in (max, min) and len(arguments) > 1:
            *numbers, last = sorted(arguments, key=lambda item: not isinstance(item, ast.Constant))
            for item in reversed(numbers):
                side = {"min" if called is max else "max": item}
                plain = isinstance(item, ast.Constant)
                last = _call("clamp", last, **side) if plain else _call(f"{name}imum", item, last)
            return last
        if called is float:
            return arguments[0]
        if called in (int, round, abs):
            return _call(_CONVERTED[name], *arguments)
        if getattr(math, name, None) is called or getattr(called, "__module__", type(called).__module__) == "numpy":
            return _call(_RENAMED.get(name, name), *arguments)
        return ast.Call(
            self.of(node.func), arguments, [ast.keyword(key.arg, self.of(key.value)) for key in node.keywords]
        )


def _tried(run: Callable[..., Any], line: str, names: Mapping[str, Any], of_bools: bool) -> str:
    """The line, if it gives the function's results on numbers and accepts `meta` tensors; else raises ``ValueError``.

    Numbers on which the function raises do not count. A line of bools becomes one of numbers, without ``of_bools``.
    """
    import torch

    parameters = [item.name for item in inspect.signature(run).parameters.values() if item.default is item.empty]
    tensors = eval(compile(f"lambda {', '.join(parameters)}: {line}", "", "eval"), {**names, "torch": torch})
    rows = [*itertools.islice(itertools.product(_NUMBERS, repeat=len(parameters)), 200)]
    results = tensors(*(torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)))
    empty = tensors(*(torch.empty(3, device="meta", dtype=torch.float64) for _ in parameters))
    pairs = []
    for row, result in zip(rows, results.tolist(), strict=True):
        with suppress(ArithmeticError, ValueError):  # such as the logarithm of 0
            pairs.append((result, float(run(*row))))
    if not pairs or empty.shape != (3,) or not all(math.isclose(*pair, rel_tol=1e-6, abs_tol=1e-9) for pair in pairs):
        raise ValueError(line)
    return f"({line}).double()" if results.dtype is torch.bool and not of_bools else line
