"""The entry of a function of the language, and the registry of functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Any, Literal, Protocol

import numpy as np

from declog.errors import RuntimeFailure, UsageError, error_text
from declog.language.absence import Kind
from declog.language.annotations import dtype_of, of_one_row, signature, takes_none
from declog.language.dtypes import NUMERIC, Axis, DType, Type
from declog.language.functions.rules import Call, Rule, Stage, broadcast, need
from declog.language.nodes import CONST, Node
from declog.language.plain_values import returned
from declog.language.reductions import Reduction
from declog.language.segmented import Segments
from declog.registry import REQUIRED, Registry


@dataclass(frozen=True)
class Param:
    """A parameter: a ``value`` is an expression, a ``constant`` and an ``axis`` are known at compile time."""

    name: str
    role: Literal["value", "constant", "axis"] = "value"
    default: Any = REQUIRED
    types: tuple[type, ...] = (int, float)
    variadic: bool = False
    takes_none: bool = False  # of a function of rows: a missing value comes as None
    by_name: bool = False  # of a function of rows: it is called with it by name


OVER = Param("over", "axis", default=None)  # the axis that a function removes
ROW = "convert the value, or say its type in the line of `def`: `-> float`, int, bool or str"
PATTERN = Param("pattern", "constant", types=(str,))
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class View(Protocol):
    """A window, as functions of the stage ``rows`` see it: how its axes nest, and the members and gaps of arguments."""

    def segments(self, fine: Axis, coarse: Axis) -> Segments:
        """How the entries of an axis fall into those of a coarser one."""

    def members(self, node: Node) -> tuple[str, ...]:
        """The members of a family's value."""

    def absent(self, node: Node) -> Kind:
        """Where a value is absent, on its own axis: ``[rows]`` or ``[members, rows]``."""


@dataclass(frozen=True)
class Function:
    """A function of the language.

    ``stage`` says how ``run`` is called: ``elementwise`` ``run(xp, *arrays)``; ``aggregate``
    ``run(array, segments)``; ``rows`` ``run(view, node, *arrays)`` on the host, with the window's structure.
    ``takes``: an elementwise one of a user's gets torch ``tensors``, or the plain ``values`` of one row.
    ``least``: of fewer values of a group it is absent; a text names the parameter that says how many.
    ``reduces``: the reduction that it is made of; a call without ``over=`` does not mean it.
    """

    name: str
    params: tuple[Param, ...]
    rule: Rule
    run: Callable[..., Any]
    stage: Stage
    help: str = ""
    takes: Literal["arrays", "tensors", "values"] = "arrays"
    least: int | str = 1
    reduces: Reduction | None = None

    @property
    def compiled(self) -> Function:
        """The function as a plan has it, which goes to other processes: without the rule that typed its calls."""
        return replace(self, rule=_typed)

    def fewest(self, node: Node) -> int:
        """How many values of a group a call of it takes at least."""
        return self.least if isinstance(self.least, int) else dict(node.params).get(self.least) or 1

    def aggregate(self, node: Node) -> Callable[[Any, Segments], Any]:
        """``run`` of an aggregate with the constants of a call of it."""
        names = [item.name for item in self.params if item.role == "constant"]
        constants = {name: value for name, value in node.params if name in names}
        return partial(self.run, **constants) if constants else self.run

    def of_constants(self, *values: Any) -> Any:
        """The value of an elementwise function of constants."""
        return np.asarray(self.run(np, *values)).item()

    def of_row(self, dtype: DType, values: Sequence[Any]) -> Any:
        """The value of a function of plain values for one row, as ``dtype``; None: it is missing.

        It is not called where a value is missing that it does not take. Raises ``RuntimeFailure`` if it raises, or
        returns another type.
        """
        if any(item is None and not param.takes_none for param, item in zip(self.params, values, strict=True)):
            return None
        try:
            named = {param.name: item for param, item in zip(self.params, values, strict=True) if param.by_name}
            value = self.run(*values[: len(values) - len(named)], **named)
        except BaseException as error:
            inside = error.__traceback__ and error.__traceback__.tb_next  # None: it could not even be called
            file = inside and PurePath(inside.tb_frame.f_code.co_filename).name
            at = f" ({file}:{inside.tb_lineno})" if inside else ""
            raise RuntimeFailure.of("DL605.row", function=self.name, error=error_text(error), at=at) from error
        try:
            return returned(dtype, value)
        except TypeError:
            came = type(value).__name__
            line = of_one_row(self.run) if came == "list" else None
            fix = f"`{line}`: it is called once per row" if line else ROW
            raise RuntimeFailure.of("DL314.row", function=self.name, came=came, dtype=dtype, fix=fix) from None

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


def _typed(call: Call) -> Type:
    raise AssertionError(f"the calls of `{call.name}` in a plan are typed")


def of_user(run: Callable[..., Any], name: str, returns: str | None = None) -> Function:
    """A user's elementwise function under a name.

    It is of the plain values of one row where a parameter that is needed is annotated `str`, else of torch tensors,
    without parameters that have a default. ``returns`` is the type of its value; without, it is what a function of rows
    is annotated with, or a float. Raises ``UsageError``.
    """
    if returns not in (None, *_RETURNS):
        raise UsageError.of("DL314.returns", returns=returns, types=", ".join(_RETURNS))
    written = signature(Functions.noun, name, run)
    items = [item for item in written.parameters.values() if item.kind is not item.VAR_KEYWORD]
    required = [item for item in items if item.default is item.empty]
    of_rows = any(_is_text(item) for item in required or items)
    items = sorted(filter(_is_written, items), key=_by_name) if of_rows else required
    texts = [index for index, item in enumerate(items) if of_rows and _is_text(item)]
    params = tuple(map(_param, items))
    annotated = dtype_of(written.return_annotation)
    dtype = DType(returns) if returns else annotated if texts and annotated in _RETURNS else DType.FLOAT

    def rule(call: Call) -> Type:
        for index, node in enumerate(call.args):
            if node.type.text and index not in texts:
                pairs = zip(items, call.args, strict=False)
                fix = _annotated(written, name, [item.name for item, arg in pairs if arg.type.text])
                fix = f"{fix}: {line}" if (line := of_one_row(run)) else fix
                call.fail("DL305.annotation", arg=index, name=name, parameter=items[index].name, node=node, fix=fix)
        needed = [index for index in texts if not (params[index].takes_none and _no_value(call.args[index]))]
        need(call, DType.TEXT, args=needed)
        need(call, *NUMERIC, DType.BOOL, args=[index for index in range(len(call.args)) if index not in texts])
        return broadcast(call).with_dtype(dtype)

    help = (run.__doc__ or "").strip().split("\n")[0]
    return Function(name, params, rule, run, "elementwise", help, takes="values" if of_rows else "tensors")


def _no_value(node: Node) -> bool:
    """Whether it is the constant `missing`."""
    return node.op == CONST and node.leaf != node.leaf


def _is_text(item: inspect.Parameter) -> bool:
    return dtype_of(item.annotation) is DType.TEXT or isinstance(item.default, str)


def _is_written(item: inspect.Parameter) -> bool:
    """Whether a config can write a value of a parameter in place of its default; others keep it."""
    default = item.default
    return default is item.empty or default is None or (isinstance(default, int | float | str) and default == default)


def _by_name(item: inspect.Parameter) -> bool:
    return item.kind is item.KEYWORD_ONLY or (item.default is not item.empty and item.kind is not item.POSITIONAL_ONLY)


def _param(item: inspect.Parameter) -> Param:
    """The parameter of a function of rows; a default that is None says that None may come, too."""
    default = REQUIRED if item.default is item.empty else item.default
    return Param(
        item.name, "value", default, takes_none=takes_none(item.annotation) or default is None, by_name=_by_name(item)
    )


def _annotated(written: inspect.Signature, name: str, texts: Sequence[str], returns: type | None = None) -> str:
    """A function's first line, with parameters that are texts: `def repetition(completion: str) -> float`."""
    parameters = [item.replace(annotation=str) if item.name in texts else item for item in written.parameters.values()]
    if returns is None:
        returns = written.return_annotation if dtype_of(written.return_annotation) in _RETURNS else float
    return f"def {name}{written.replace(parameters=parameters, return_annotation=returns)}"


_RETURNS = (DType.FLOAT, DType.INT, DType.BOOL, DType.TEXT)  # the types of values


class Functions(Registry[Function]):
    """The functions that a config can name."""

    noun = "function"
    group = "declog.functions"

    def adopt(self, name: str, run: Callable[..., Any]) -> Function:
        """Register a plain function under a name, as an installed package's entry point provides it."""
        return self.add(of_user(run, name))

    def stage(self, name: str) -> Stage | None:
        """Where the function of a name runs; None for a name that is none's."""
        function = self.get(name)
        return None if function is None else function.stage

    def as_text(self, name: str) -> str | None:
        """The first line of a user's function of texts that gives a text; None for another function."""
        function = self.get(name)
        if function is None or function.takes != "values":
            return None
        return _annotated(signature(self.noun, name, function.run), name, [], str)

    def elementwise(self, name: str, *params: str | Param, rule: Rule, help: str = "") -> Decorator:
        """Register ``run(xp, *arrays)`` under a name."""
        return self.rows(name, *params, rule=rule, help=help, stage="elementwise")

    def rows(
        self, name: str, *params: str | Param, rule: Rule, help: str = "", least: int | str = 1, stage: Stage = "rows"
    ) -> Decorator:
        """Register ``run(view, node, *arrays)`` under a name, or a function of another stage."""
        items = tuple(Param(item) if isinstance(item, str) else item for item in params)

        def register(run: Callable[..., Any]) -> Callable[..., Any]:
            return self.add(Function(name, items, rule, run, stage, help, least=least)).run

        return register


FunctionOf = Callable[[str], Function | None]  # the function of an operation's name

BUILTIN = Functions()


DEFAULT = Functions(BUILTIN)
