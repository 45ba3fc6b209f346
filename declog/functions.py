"""The functions of the language: a registry, and the numeric functions that come with declog.

A function is one entry: its parameters, a typing rule, and one implementation. Elementwise ones are
written once against an array namespace ``xp`` (numpy in the worker, torch on the device for token
expressions). Text functions stand in ``text.py``. Nothing here knows of plans or recorders.

To add one: write the implementation and its ``@_builtin.elementwise`` or ``.rows`` line below, and a test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import numpy as np

from declog import kernels
from declog.axes import COLUMN, Axis, Kind, Type, finest, per
from declog.registry import Registry

if TYPE_CHECKING:
    from declog.tree import Node

REQUIRED: Any = object()


@dataclass(frozen=True)
class Param:
    """A parameter: a ``value`` is an expression, a ``constant`` and an ``axis`` are known at compile time."""

    name: str
    role: Literal["value", "constant", "axis"] = "value"
    default: Any = REQUIRED
    types: tuple[type, ...] = (int, float)
    variadic: bool = False


class Call(Protocol):
    """What a typing rule sees: the arguments' nodes and the compile-time parameters."""

    name: str
    args: list[Node]
    params: dict[str, Any]
    groups: bool  # does the profile say what a group is?
    token_mask: frozenset[Node]  # the token axis' mask; empty where none is declared

    def fail(self, message: str, fix: str | None = None, *, arg: int | None = None, code: str = "DL304") -> NoReturn:
        """Refuse the call; ``arg`` points at one argument."""


Rule = Callable[[Call], Type]
Stage = Literal["elementwise", "aggregate", "rows", "text"]


@dataclass(frozen=True)
class Function:
    """A function of the language.

    ``stage`` says how ``run`` is called: ``elementwise`` ``run(xp, *arrays)``; ``aggregate``
    ``run(array, segments)``; ``rows`` ``run(view, node, *arrays)`` with the window's structure;
    ``text`` ``run(texts, **params)`` on an object array, where the text is.
    """

    name: str
    params: tuple[Param, ...]
    rule: Rule
    run: Callable[..., Any]
    stage: Stage
    help: str = ""
    tensors: bool = False  # run takes torch tensors: a user's function

    @property
    def signature(self) -> str:
        """How it is written: ``clip(x, low, high)``."""
        parts = []
        for item in self.params:
            text = f"*{item.name}" if item.variadic else item.name
            if item.role == "axis" and item.name in ("over", "within"):
                text = f"{item.name}=axis"
            elif item.default is not REQUIRED:
                text += f"={item.default!r}"
            parts.append(text)
        return f"{self.name}({', '.join(parts)})"


class Functions(Registry[Function]):
    """The functions that a profile can name."""

    noun = "function"

    def elementwise(
        self, name: str, *params: str | Param, rule: Rule, help: str = ""
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register ``run(xp, *arrays)`` under a name."""
        return self._decorator(name, params, rule, "elementwise", help)

    def rows(
        self, name: str, *params: str | Param, rule: Rule, help: str = ""
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register ``run(view, node, *arrays)`` under a name."""
        return self._decorator(name, params, rule, "rows", help)

    def text(
        self, name: str, *params: str | Param, rule: Rule, help: str = ""
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register ``run(texts, **params)`` under a name."""
        return self._decorator(name, params, rule, "text", help)

    def _decorator(
        self, name: str, params: Sequence[str | Param], rule: Rule, stage: Stage, help: str
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def register(run: Callable[..., Any]) -> Callable[..., Any]:
            items = tuple(Param(item) if isinstance(item, str) else item for item in params)
            self.add(Function(name, items, rule, run, stage, help))
            return run

        return register


# ---- typing rules -----------------------------------------------------------------------------------


def broadcast(call: Call, args: Sequence[Node] | None = None) -> Type:
    """The shape of values combined by axis name; their kind is left to the rule."""
    nodes = call.args if args is None else args
    events = {node.type.event for node in nodes if node.type.event is not None}
    if len(events) > 1:
        shown = ", ".join(f"`{node}` ({node.type.event})" for node in nodes if node.type.event)
        call.fail(f"values of different events in one expression: {shown}", "observe them in one event", code="DL313")
    axis = finest(*(node.type.axis for node in nodes))
    family = any(node.type.family for node in nodes)
    if axis is Axis.TOKEN:
        for place, node in enumerate(nodes):
            if node.type.axis in (Axis.GROUP, Axis.BATCH):
                call.fail(
                    "a per-token expression cannot use a value per group or per batch",
                    "reduce the tokens first, with over=token",
                    arg=place,
                    code="DL310",
                )
    return Type(Kind.NUMBER, axis, family, events.pop() if events else None)


def need(call: Call, *kinds: Kind, args: Sequence[int] | None = None) -> None:
    """Refuse arguments of other kinds."""
    for place in range(len(call.args)) if args is None else args:
        node = call.args[place]
        if node.type.kind not in kinds:
            wanted = " or ".join(
                dict.fromkeys(kind.value for kind in kinds if kind is not Kind.INT or Kind.NUMBER not in kinds)
            )
            fix = None
            if node.type.kind is Kind.BOOL:
                fix = f"write `1 if {node} else 0`" if Kind.NUMBER in kinds else None
            elif kinds == (Kind.BOOL,):
                fix = f"compare it first, such as `{node} > 0`"
            call.fail(
                f"`{call.name}` needs {wanted}, and `{node}` is {node.type.kind.value}", fix, arg=place, code="DL305"
            )


NUMERIC = (Kind.NUMBER, Kind.INT)


def number(call: Call) -> Type:
    """Numbers in, a number out."""
    need(call, *NUMERIC)
    return broadcast(call)


def same(call: Call) -> Type:
    """Numbers in; an int out where all are ints."""
    need(call, *NUMERIC)
    kind = Kind.INT if all(node.type.kind is Kind.INT for node in call.args) else Kind.NUMBER
    return broadcast(call).with_kind(kind)


def predicate(call: Call) -> Type:
    """Numbers in, a bool out."""
    need(call, *NUMERIC)
    return broadcast(call).with_kind(Kind.BOOL)


def logic(call: Call) -> Type:
    """Bools in, a bool out."""
    need(call, Kind.BOOL)
    return broadcast(call).with_kind(Kind.BOOL)


def equality(call: Call) -> Type:
    """Numbers with numbers, texts with texts, bools with bools."""
    kinds = {_family_of_kinds(node.type.kind) for node in call.args}
    if len(kinds) > 1 or Kind.OBJECT in kinds:
        shown = " and ".join(f"`{node}` ({node.type.kind.value})" for node in call.args)
        call.fail(f"these cannot be compared: {shown}", code="DL305")
    return broadcast(call).with_kind(Kind.BOOL)


def _family_of_kinds(kind: Kind) -> Kind:
    return Kind.NUMBER if kind is Kind.INT else kind


def choice(call: Call) -> Type:
    """``if``: a bool, and two values of one kind."""
    need(call, Kind.BOOL, args=[0])
    kinds = {_family_of_kinds(node.type.kind) for node in call.args[1:]}
    if len(kinds) > 1:
        shown = " and ".join(node.type.kind.value for node in call.args[1:])
        call.fail(f"the two sides of `if` differ: {shown}", code="DL305")
    exact = {node.type.kind for node in call.args[1:]}
    return broadcast(call).with_kind(exact.pop() if len(exact) == 1 else Kind.NUMBER)


def remove_axis(call: Call, *, accept: Sequence[Kind]) -> Type:
    """The argument's shape without the axis ``over``, which must be its finest (or the column axis)."""
    need(call, *accept)
    (node,) = call.args
    over = call.params.get("over")
    if over is None:
        call.fail(
            f"`{call.name}` inside an expression needs `over=`",
            f"`{call.name}({node}, over={_finest_label(node)})`",
            code="DL306",
        )
    if over == COLUMN:
        if not node.type.family:
            call.fail(
                f"`{node}` is not a family: it has no column axis",
                "use over= with one of its axes",
                arg=0,
                code="DL306",
            )
        return replace(node.type, family=False)
    axis = node.type.axis
    if axis is None or axis < over or (axis is Axis.BATCH):
        call.fail(
            f"`{node}` is {per(axis)}: it has no {over.label} axis",
            "drop the function, or remove an axis it has",
            arg=0,
            code="DL306",
        )
    if axis > over:
        call.fail(
            f"`{node}` is {per(axis)}; its {axis.label} axis must go before {over.label}",
            f"`{call.name}(mean({node}, over={axis.label}), over={over.label})`", arg=0, code="DL306",
        )  # fmt: skip
    if over is Axis.STEP:
        call.fail(
            "nothing is left when the step axis goes: a window is reduced by `reduce`",
            "use the reduction of the metric",
            code="DL306",
        )
    if over is Axis.COMPLETION and not call.groups:
        call.fail(
            "this profile does not say what a group is", "set `axes.group: {size: N}` or `{of: SIGNAL}`", code="DL306"
        )
    below = {Axis.TOKEN: Axis.COMPLETION, Axis.COMPLETION: Axis.GROUP, Axis.GROUP: Axis.BATCH}[over]
    return node.type.with_axis(below)


def _finest_label(node: Node) -> str:
    return COLUMN if node.type.axis is None else node.type.axis.label


def _aggregate(kind: Kind | None, *accept: Kind) -> Rule:
    def rule(call: Call) -> Type:
        result = remove_axis(call, accept=accept)
        return result if kind is None else result.with_kind(kind)

    return rule


def _summed(call: Call) -> Type:
    result = remove_axis(call, accept=(*NUMERIC, Kind.BOOL))
    return result.with_kind(Kind.NUMBER if result.kind is Kind.NUMBER else Kind.INT)


BUILTIN = Functions()
OVER = Param("over", "axis", default=None)


def _register_aggregates() -> None:
    numbers = (*NUMERIC, Kind.BOOL)
    rules: dict[str, tuple[Rule, str]] = {
        "mean": (_aggregate(Kind.NUMBER, *numbers), "the mean; of bools the fraction that is true"),
        "sum": (_summed, "the sum; of bools how many are true"),
        "min": (_aggregate(None, *NUMERIC), "the smallest"),
        "max": (_aggregate(None, *NUMERIC), "the greatest"),
        "std": (_aggregate(Kind.NUMBER, *numbers), "the sample standard deviation (n-1); of one value missing"),
        "pstd": (_aggregate(Kind.NUMBER, *numbers), "the population standard deviation; of one value 0"),
        "var": (_aggregate(Kind.NUMBER, *numbers), "the sample variance (n-1)"),
        "count": (_aggregate(Kind.INT, *numbers, Kind.TEXT), "how many are not missing"),
        "any": (_aggregate(None, Kind.BOOL), "whether any is true"),
        "all": (_aggregate(None, Kind.BOOL), "whether all are true"),
        "first": (_aggregate(None, *numbers, Kind.TEXT, Kind.OBJECT), "the first that is not missing"),
        "last": (_aggregate(None, *numbers, Kind.TEXT, Kind.OBJECT), "the last that is not missing"),
    }
    for name, (rule, help) in rules.items():
        BUILTIN.add(Function(name, (Param("x"), OVER), rule, kernels.AGGREGATES[name], "aggregate", help))


_register_aggregates()


# ---- operators and elementwise functions ------------------------------------------------------------


@BUILTIN.elementwise("add", "a", "b", rule=same, help="operator +")
def _add(xp: Any, a: Any, b: Any) -> Any:
    return a + b


@BUILTIN.elementwise("sub", "a", "b", rule=same, help="operator -")
def _sub(xp: Any, a: Any, b: Any) -> Any:
    return a - b


@BUILTIN.elementwise("mul", "a", "b", rule=same, help="operator *")
def _mul(xp: Any, a: Any, b: Any) -> Any:
    return a * b


@BUILTIN.elementwise("div", "a", "b", rule=number, help="operator /")
def _div(xp: Any, a: Any, b: Any) -> Any:
    return xp.true_divide(a, b)


@BUILTIN.elementwise("pow", "a", "b", rule=number, help="operator **")
def _pow(xp: Any, a: Any, b: Any) -> Any:
    if xp is np:
        return np.power(np.asarray(a, np.float64), b)
    return xp.pow(a if isinstance(a, float | int) or a.is_floating_point() else a.double(), b)


@BUILTIN.elementwise("neg", "x", rule=same, help="unary -")
def _neg(xp: Any, x: Any) -> Any:
    return -x


@BUILTIN.elementwise("lt", "a", "b", rule=predicate, help="<")
def _lt(xp: Any, a: Any, b: Any) -> Any:
    return a < b


@BUILTIN.elementwise("le", "a", "b", rule=predicate, help="<=")
def _le(xp: Any, a: Any, b: Any) -> Any:
    return a <= b


@BUILTIN.elementwise("gt", "a", "b", rule=predicate, help=">")
def _gt(xp: Any, a: Any, b: Any) -> Any:
    return a > b


@BUILTIN.elementwise("ge", "a", "b", rule=predicate, help=">=")
def _ge(xp: Any, a: Any, b: Any) -> Any:
    return a >= b


@BUILTIN.elementwise("eq", "a", "b", rule=equality, help="==")
def _eq(xp: Any, a: Any, b: Any) -> Any:
    return _text_equal(a, b) if _is_text(a) or _is_text(b) else a == b


@BUILTIN.elementwise("ne", "a", "b", rule=equality, help="!=; false where either side is missing")
def _ne(xp: Any, a: Any, b: Any) -> Any:
    if _is_text(a) or _is_text(b):
        return ~_text_equal(a, b) & kernels.present(np.asarray(a, object)) & kernels.present(np.asarray(b, object))
    return (a != b) & (a == a) & (b == b)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, np.ndarray) and value.dtype.kind == "O")


def _text_equal(a: Any, b: Any) -> Any:
    left, right = np.asarray(a, object), np.asarray(b, object)
    return np.asarray(np.equal(left, right), bool) & kernels.present(left) & kernels.present(right)


def _truth(xp: Any, x: Any) -> Any:
    return kernels.truth(np.asarray(x)) if xp is np else x


@BUILTIN.elementwise("and", "a", "b", rule=logic, help="both")
def _and(xp: Any, a: Any, b: Any) -> Any:
    return _truth(xp, a) & _truth(xp, b)


@BUILTIN.elementwise("or", "a", "b", rule=logic, help="either")
def _or(xp: Any, a: Any, b: Any) -> Any:
    return _truth(xp, a) | _truth(xp, b)


@BUILTIN.elementwise("not", "x", rule=logic, help="negation; of a missing bool it is false")
def _not(xp: Any, x: Any) -> Any:
    if xp is np:
        values = np.asarray(x)
        return ~kernels.truth(values) & kernels.present(values)
    return xp.logical_not(x)


@BUILTIN.elementwise("if", "condition", "yes", "no", rule=choice, help="yes if condition else no")
def _if(xp: Any, condition: Any, yes: Any, no: Any) -> Any:
    if xp is np:
        return np.where(kernels.truth(np.asarray(condition)), yes, no)
    if not hasattr(condition, "dtype"):
        return yes if condition else no
    return xp.where(condition, yes, no)


@BUILTIN.elementwise("abs", "x", rule=same, help="the absolute value")
def _abs(xp: Any, x: Any) -> Any:
    return xp.abs(x)


@BUILTIN.elementwise("exp", "x", rule=number, help="e to the power of x")
def _exp(xp: Any, x: Any) -> Any:
    return xp.exp(x)


@BUILTIN.elementwise("log", "x", rule=number, help="the natural logarithm; of a negative number missing")
def _log(xp: Any, x: Any) -> Any:
    return xp.log(x)


@BUILTIN.elementwise("sqrt", "x", rule=number, help="the square root; of a negative number missing")
def _sqrt(xp: Any, x: Any) -> Any:
    return xp.sqrt(x)


@BUILTIN.elementwise("square", "x", rule=same, help="x * x")
def _square(xp: Any, x: Any) -> Any:
    return x * x


@BUILTIN.elementwise("minimum", "a", "b", rule=same, help="the smaller of two values")
def _minimum(xp: Any, a: Any, b: Any) -> Any:
    if xp is np:
        return np.minimum(a, b)
    if isinstance(a, float | int):
        return xp.clamp(b, max=a)
    return xp.clamp(a, max=b) if isinstance(b, float | int) else xp.minimum(a, b)


@BUILTIN.elementwise("maximum", "a", "b", rule=same, help="the greater of two values")
def _maximum(xp: Any, a: Any, b: Any) -> Any:
    if xp is np:
        return np.maximum(a, b)
    if isinstance(a, float | int):
        return xp.clamp(b, min=a)
    return xp.clamp(a, min=b) if isinstance(b, float | int) else xp.maximum(a, b)


@BUILTIN.elementwise("clip", "x", "low", "high", rule=same, help="x between two bounds")
def _clip(xp: Any, x: Any, low: Any, high: Any) -> Any:
    return _minimum(xp, _maximum(xp, x, low), high)


def _any_kind(call: Call) -> Type:
    return broadcast(call).with_kind(Kind.BOOL)


@BUILTIN.elementwise("present", "x", rule=_any_kind, help="whether the value is there: not NaN, not None")
def _present(xp: Any, x: Any) -> Any:
    if xp is np:
        return kernels.present(np.asarray(x, object) if x is None else np.asarray(x))
    return x == x


@BUILTIN.elementwise("isnan", "x", rule=predicate, help="whether the value is NaN")
def _isnan(xp: Any, x: Any) -> Any:
    return x != x


@BUILTIN.elementwise("isfinite", "x", rule=predicate, help="whether the value is neither NaN nor infinite")
def _isfinite(xp: Any, x: Any) -> Any:
    return xp.isfinite(x)


@BUILTIN.elementwise("isclose", "a", "b", rule=predicate, help="|a - b| <= 1e-8 + 1e-5 |b|, as numpy and torch")
def _isclose(xp: Any, a: Any, b: Any) -> Any:
    return (a == b) | (abs(a - b) <= 1e-8 + 1e-5 * abs(b))


# ---- functions of the window's structure ------------------------------------------------------------


def _ranked(call: Call) -> Type:
    need(call, *NUMERIC)
    within, node = call.params["within"], call.args[0]
    if node.type.axis is not Axis.COMPLETION or within not in (Axis.GROUP, Axis.STEP):
        call.fail(
            f"`rank` orders completions within a group or a step, and `{node}` is {per(node.type.axis)}",
            "rank(x, within=group)",
            code="DL306",
        )
    if within is Axis.GROUP and not call.groups:
        call.fail(
            "this profile does not say what a group is", "set `axes.group: {size: N}` or `{of: SIGNAL}`", code="DL306"
        )
    return node.type.with_kind(Kind.INT)


@BUILTIN.rows(
    "rank", "x", Param("within", "axis"), rule=_ranked, help="the 1-based place of a completion, ascending, ties by row"
)
def _rank(view: Any, node: Node, x: Any) -> Any:
    return kernels.rank(x, view.segments(Axis.COMPLETION, node.param("within")))


def _indexed(call: Call) -> Type:
    axis = call.params["axis"]
    if axis not in (Axis.COMPLETION, Axis.GROUP) or not call.groups:
        call.fail(
            "`index` counts completions of a group or groups of a batch",
            "index(completion) or index(group)",
            code="DL306",
        )
    return Type(Kind.INT, axis)


@BUILTIN.rows(
    "index",
    Param("axis", "axis"),
    rule=_indexed,
    help="the 0-based place of a completion in its group, of a group in its batch",
)
def _index(view: Any, node: Node) -> Any:
    axis = node.param("axis")
    return view.segments(axis, Axis.GROUP if axis is Axis.COMPLETION else Axis.BATCH).position


def _sized(call: Call) -> Type:
    axis = call.params["axis"]
    if axis is Axis.TOKEN:
        if not call.token_mask:
            call.fail("this profile does not say which tokens exist", "set `axes.token.mask`", code="DL306")
        return Type(Kind.INT, Axis.COMPLETION, event=next(iter(call.token_mask)).type.event)
    if axis not in (Axis.COMPLETION, Axis.GROUP) or not call.groups:
        call.fail(
            "`size` counts tokens of a completion, completions of a group or groups of a batch",
            "size(completion)",
            code="DL306",
        )
    return Type(Kind.INT, Axis.GROUP if axis is Axis.COMPLETION else Axis.BATCH)


@BUILTIN.rows(
    "size",
    Param("axis", "axis"),
    rule=_sized,
    help="how many tokens a completion, completions a group, groups a batch has",
)
def _size(view: Any, node: Node) -> Any:
    axis = node.param("axis")
    return view.segments(axis, Axis.GROUP if axis is Axis.COMPLETION else Axis.BATCH).counts


def _member(call: Call) -> Type:
    node = call.args[0]
    if not node.type.family:
        call.fail(f"`{node}` is not a family", arg=0, code="DL306")
    return replace(node.type, family=False)


@BUILTIN.rows(
    "column", "family", Param("member", "constant", types=(str,)), rule=_member, help="one member of a family"
)
def _column(view: Any, node: Node, family: Any) -> Any:
    members = view.members(node.args[0])
    member = node.param("member")
    if member not in members:
        return np.full(family.shape[1:], np.nan)
    return family[members.index(member)]


def _columns_rule(call: Call) -> Type:
    _member(call)
    return Type(Kind.INT)


@BUILTIN.rows("columns", "family", rule=_columns_rule, help="how many members a family has")
def _columns(view: Any, node: Node, family: Any) -> Any:
    return len(view.members(node.args[0]))


def _passed(call: Call) -> Type:
    need(call, Kind.BOOL)
    node = call.args[0]
    if node.type.axis is not Axis.COMPLETION or not call.groups:
        call.fail(
            f"`pass_at` needs one bool per completion of a group, and `{node}` is {per(node.type.axis)}",
            arg=0,
            code="DL306",
        )
    if call.params["k"] < 1:
        call.fail("`k` must be at least 1")
    return node.type.with_axis(Axis.GROUP).with_kind(Kind.NUMBER)


@BUILTIN.rows(
    "pass_at", "correct", Param("k", "constant", types=(int,)), rule=_passed,
    help="the unbiased pass@k of a group, 1 - C(n-c, k) / C(n, k) (Chen et al. 2021); missing where n < k",
)  # fmt: skip
def _pass_at(view: Any, node: Node, correct: Any) -> Any:
    segments, k = view.segments(Axis.COMPLETION, Axis.GROUP), node.param("k")
    n = kernels.count(correct, segments)
    c = segments.apply(np.add, kernels.truth(correct).astype(np.int64))

    def one(n: int, c: int) -> float:
        return math.nan if n < k else 1.0 - math.comb(n - c, k) / math.comb(n, k)

    return np.array([one(int(a), int(b)) for a, b in zip(n, c, strict=True)], np.float64)


# ---- the registry that profiles see -----------------------------------------------------------------

DEFAULT = Functions(BUILTIN)


def function(
    run: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    returns: Literal["number", "int", "bool"] = "number",
    registry: Functions = DEFAULT,
) -> Any:
    """Register an elementwise function of tensors, for YAML to use by name.

    The function is called with as many torch tensors as it has parameters, all broadcast to one shape,
    and returns a tensor of that shape: on the training device for per-token values, on the CPU in
    float64 for the rest.

    >>> @declog.function                    # doctest: +SKIP
    ... def softplus(x):
    ...     return torch.nn.functional.softplus(x)
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        import inspect

        params = tuple(
            Param(item.name) for item in inspect.signature(fn).parameters.values() if item.default is item.empty
        )
        kind = {"number": Kind.NUMBER, "int": Kind.INT, "bool": Kind.BOOL}[returns]

        def rule(call: Call) -> Type:
            need(call, *NUMERIC, Kind.BOOL)
            return broadcast(call).with_kind(kind)

        label = name or fn.__name__
        registry.add(
            Function(label, params, rule, fn, "elementwise", (fn.__doc__ or "").strip().split("\n")[0], tensors=True)
        )
        return fn

    return register if run is None else register(run)
