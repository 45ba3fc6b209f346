"""Operators and elementwise functions, written once against an array namespace ``xp``: numpy or torch."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from declog.language import segmented
from declog.language.dtypes import DType
from declog.language.functions.base import BUILTIN
from declog.language.functions.rules import Rule, choice, equality, logic, number, predicate, product, same, typed


def _fitting(xp: Any, run: Callable[..., Any], *args: Any) -> Any:
    """Compute integers as an integer if it fits 64 bits, else as a float. Per-token values are floats already."""
    if xp is not np or [arg for arg in args if np.asarray(arg).dtype.kind != "i"]:
        return run(*args)
    floats = run(*(np.asarray(arg, np.float64) for arg in args))
    return run(*args) if np.all(np.abs(floats) < 2.0**63) else floats


def _bounded(xp: Any, extreme: Any, bound: str, a: Any, b: Any) -> Any:
    """The extreme of two values. torch accepts a constant only as a bound in ``clamp``."""
    if xp is not np and isinstance(a, float | int) and isinstance(b, float | int):
        return max(a, b) if bound == "min" else min(a, b)
    if xp is not np and isinstance(a, float | int):
        a, b = b, a
    return xp.clamp(a, **{bound: b}) if xp is not np and isinstance(b, float | int) else extreme(a, b)


def _clip(xp: Any, x: Any, low: Any, high: Any) -> Any:
    return _bounded(xp, xp.minimum, "max", _bounded(xp, xp.maximum, "min", x, low), high)


def _exact(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda xp, *args: _fitting(xp, run, *args)


def _rounded_down(run: Callable[..., Any]) -> Callable[..., Any]:
    """A division with a whole quotient. Division by zero gives missing, for integers too."""

    def divided(xp: Any, a: Any, b: Any) -> Any:
        zero = b == 0
        if xp is np:
            b = np.where(zero, np.nan, b) if np.any(zero) else b
        else:  # do not read values of the device: that would wait for it
            b = xp.where(zero, np.nan, b) if hasattr(b, "dtype") else b or np.nan
        return _fitting(xp, run, a, b)

    return divided


def _comparison(run: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A comparison in which the float32 of a constant equals the constant, as for a float32 tensor of torch."""

    def compared(xp: Any, a: Any, b: Any) -> Any:
        if xp is np:  # a value without rows is a constant
            a, b = (
                (a if np.ndim(b) else segmented.of_constant(a, b)),
                (b if np.ndim(a) else segmented.of_constant(b, a)),
            )
        return run(a, b)

    return compared


_ONE_LINERS: tuple[tuple[str, str, Rule, Callable[..., Any], str], ...] = (
    ("add", "a b", same, _exact(operator.add), "operator +"),
    ("sub", "a b", same, _exact(operator.sub), "operator -"),
    ("mul", "a b", product, _exact(operator.mul), "operator *; a bool is 0 or 1"),
    ("div", "a b", number, lambda xp, a, b: xp.true_divide(a, b), "operator /"),
    (
        "floordiv",
        "a b",
        same,
        _rounded_down(operator.floordiv),
        "operator //: the quotient, rounded down; by 0 missing",
    ),
    ("mod", "a b", same, _rounded_down(operator.mod), "operator %: the remainder, with the sign of b; by 0 missing"),
    ("neg", "x", same, _exact(operator.neg), "unary -"),
    ("lt", "a b", predicate, _comparison(operator.lt), "<"),
    ("le", "a b", predicate, _comparison(operator.le), "<="),
    ("gt", "a b", predicate, _comparison(operator.gt), ">"),
    ("ge", "a b", predicate, _comparison(operator.ge), ">="),
    ("eq", "a b", equality, lambda xp, a, b: _equal(xp, a, b), "=="),
    ("and", "a b", logic, lambda xp, a, b: _truth(xp, a) & _truth(xp, b), "both"),
    ("or", "a b", logic, lambda xp, a, b: _truth(xp, a) | _truth(xp, b), "either"),
    ("abs", "x", same, _exact(operator.abs), "the absolute value"),
    ("exp", "x", number, lambda xp, x: xp.exp(x), "e to the power of x"),
    ("log", "x", number, lambda xp, x: xp.log(x), "the natural logarithm; of a negative number missing"),
    ("sqrt", "x", number, lambda xp, x: xp.sqrt(x), "the square root; of a negative number missing"),
    ("floor", "x", number, lambda xp, x: xp.floor(x), "the greatest whole number that is not above x"),
    ("square", "x", same, lambda xp, x: _fitting(xp, operator.mul, x, x), "x * x"),
    ("minimum", "a b", same, lambda xp, a, b: _bounded(xp, xp.minimum, "max", a, b), "the smaller of two values"),
    ("maximum", "a b", same, lambda xp, a, b: _bounded(xp, xp.maximum, "min", a, b), "the greater of two values"),
    ("clip", "x low high", same, _clip, "x between two bounds"),
    ("isnan", "x", predicate, lambda xp, x: x != x, "whether the value is NaN"),
    ("isfinite", "x", predicate, lambda xp, x: xp.isfinite(x), "whether the value is neither NaN nor infinite"),
)
for _name, _params, _rule, _run, _help in _ONE_LINERS:
    BUILTIN.elementwise(_name, *_params.split(), rule=_rule, help=_help)(_run)


@BUILTIN.elementwise("pow", "a", "b", rule=number, help="operator **")
def _pow(xp: Any, a: Any, b: Any) -> Any:
    if xp is np:
        return np.power(np.asarray(a, np.float64), b)
    return xp.pow(a if isinstance(a, float | int) or a.is_floating_point() else a.double(), b)


@BUILTIN.elementwise("ne", "a", "b", rule=equality, help="!=; false where either side is missing")
def _ne(xp: Any, a: Any, b: Any) -> Any:
    if _is_text(a) or _is_text(b):
        return ~_text_equal(a, b) & segmented.present(np.asarray(a, object)) & segmented.present(np.asarray(b, object))
    return _differs(xp, a, b) & (a == a) & (b == b)


_differs = _comparison(operator.ne)
_same = _comparison(operator.eq)


def _equal(xp: Any, a: Any, b: Any) -> Any:
    return _text_equal(a, b) if _is_text(a) or _is_text(b) else _same(xp, a, b)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, np.ndarray) and value.dtype.kind == "O")


def _text_equal(a: Any, b: Any) -> Any:
    a, b = np.asarray(a, object), np.asarray(b, object)
    return np.asarray(np.equal(a, b), bool) & segmented.present(a) & segmented.present(b)


def _truth(xp: Any, x: Any) -> Any:
    if xp is np:
        return segmented.truth(np.asarray(x))
    if isinstance(x, bool):  # a constant
        return x
    return x if x.dtype is xp.bool else (x != 0) & (x == x)  # NaN marks absent entries, and is false


@BUILTIN.elementwise("not", "x", rule=logic, help="negation; of a missing bool it is false")
def _not(xp: Any, x: Any) -> Any:
    if xp is np:
        values = np.asarray(x)
        return ~segmented.truth(values) & segmented.present(values)
    return xp.logical_not(x)


@BUILTIN.elementwise("if", "condition", "yes", "no", rule=choice, help="yes if condition else no")
def _if(xp: Any, condition: Any, yes: Any, no: Any) -> Any:
    if xp is np:
        return np.where(segmented.truth(np.asarray(condition)), yes, no)
    if not hasattr(yes, "dtype") and not hasattr(no, "dtype"):  # two constants keep all digits in float64
        yes = xp.full((), yes, dtype=xp.float64, device=condition.device)
    return xp.where(_truth(xp, condition), yes, no)


@BUILTIN.elementwise("present", "x", rule=typed(DType.BOOL), help="whether the value is there: not NaN, not None")
def _present(xp: Any, x: Any) -> Any:
    if xp is np:
        return segmented.present(np.asarray(x, object) if x is None else np.asarray(x))
    return x == x


@BUILTIN.elementwise("isclose", "a", "b", rule=predicate, help="|a - b| <= 1e-8 + 1e-5 |b|, as numpy and torch")
def _isclose(xp: Any, a: Any, b: Any) -> Any:
    return (a == b) | (abs(a - b) <= 1e-8 + 1e-5 * abs(b))
