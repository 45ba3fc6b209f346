"""The class of a function of the language, and the registry of functions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Any, Literal, Protocol

import numpy as np

from declog.errors import RuntimeFailure, UsageError, error_text
from declog.language.absence import Kind
from declog.language.annotations import dtype_of, of_one_row, returns_bool, signature, takes_none
from declog.language.dtypes import NUMERIC, Axis, DType, Type
from declog.language.functions.rules import Call, Rule, Stage, broadcast, need
from declog.language.nodes import CONST, Node
from declog.language.plain_values import returned
from declog.language.reductions import Reduction
from declog.language.segmented import Segments
from declog.registry import REQUIRED, Registry


@dataclass(frozen=True)
class Param:
    """A parameter. A ``value`` takes an expression; a ``constant`` and an ``axis`` are known at compile time."""

    name: str
    role: Literal["value", "constant", "axis"] = "value"
    default: Any = REQUIRED
    types: tuple[type, ...] = (int, float)
    variadic: bool = False
    takes_none: bool = False  # of a function of rows: a missing value is passed as None
    by_name: bool = False  # of a function of rows: the argument is passed by name


_LISTS = re.compile(r"\b(list|tuple|Sequence|Iterable)\b", re.IGNORECASE)  # in an annotation
OVER = Param("over", "axis", default=None)  # the axis that a function removes
ROW = "convert the value, or say its type in the line of `def`: `-> float`, int, bool or str"
PATTERN = Param("pattern", "constant", types=(str,))
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class View(Protocol):
    """A window as functions of the stage ``rows`` see it: the nesting of axes, and members and absence of arguments."""

    def segments(self, fine: Axis, coarse: Axis) -> Segments:
        """The partition of an axis' entries by the entries of a coarser axis."""

    def members(self, node: Node) -> tuple[str, ...]:
        """The members of a family's value."""

    def absent(self, node: Node) -> Kind:
        """The entries in which a value is absent, on its own axis: ``[rows]`` or ``[members, rows]``."""


@dataclass(frozen=True)
class Function:
    """A function of the language.

    ``stage`` decides the call of ``run``: ``elementwise`` ``run(xp, *arrays)``; ``aggregate``
    ``run(array, segments)``; ``rows`` ``run(view, node, *arrays)`` on the host, with the window's structure.
    ``takes``: a user's elementwise function gets torch ``tensors``, or the plain ``values`` of one row.
    ``least``: with fewer values in a group the result is absent; a text names the parameter with the number.
    ``reduces``: the reduction behind an aggregate; a call without ``over=`` does not mean the aggregate.
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
        """The function for a plan, without its typing rule: plans go to other processes."""
        return replace(self, rule=_typed)

    def fewest(self, node: Node) -> int:
        """The fewest values of a group with which a call has a result."""
        return self.least if isinstance(self.least, int) else dict(node.params).get(self.least) or 1

    def aggregate(self, node: Node) -> Callable[[Any, Segments], Any]:
        """``run`` of an aggregate, with the constants of a call bound."""
        names = [item.name for item in self.params if item.role == "constant"]
        constants = {name: value for name, value in node.params if name in names}
        return partial(self.run, **constants) if constants else self.run

    def of_constants(self, *values: Any) -> Any:
        """The value of an elementwise function for constants."""
        return np.asarray(self.run(np, *values)).item()

    def of_row(self, dtype: DType, values: Sequence[Any]) -> Any:
        """The value of a function of plain values for one row, as ``dtype``; None means missing.

        The function is not called if a value is missing and its parameter does not take None. Raises
        ``RuntimeFailure`` if the function raises, or returns another type.
        """
        if any(item is None and not param.takes_none for param, item in zip(self.params, values, strict=True)):
            return None
        try:
            named = {param.name: item for param, item in zip(self.params, values, strict=True) if param.by_name}
            value = self.run(*values[: len(values) - len(named)], **named)
        except BaseException as error:
            inside = error.__traceback__ and error.__traceback__.tb_next  # None if the call itself failed
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
        """The call as a user writes it: ``clip(x, low, high)``."""
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
    """The entry for a user's elementwise function under a name.

    The function takes the plain values of one row if a parameter without a default is annotated `str`; if all have
    defaults, one of them counts. Otherwise the function takes torch tensors, and parameters with a default are left
    out. ``returns`` is the type of the result; by default it is the annotated type of a function of rows, or float.
    Raises ``UsageError``.
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
                said = dtype_of(written.return_annotation) in _RETURNS
                kind = bool if not said and returns_bool(run) else None
                fix = _annotated(written, name, [item.name for item, arg in pairs if arg.type.text], kind)
                fix = f"{fix}: {line}" if (line := of_one_row(run)) else fix
                if _LISTS.search(inspect.formatannotation(items[index].annotation)):
                    call.fail("DL305.lists", arg=index, name=name, parameter=items[index].name, fix=fix)
                call.fail("DL305.annotation", arg=index, name=name, parameter=items[index].name, node=node, fix=fix)
        needed = [index for index in texts if not (params[index].takes_none and _no_value(call.args[index]))]
        need(call, DType.TEXT, args=needed)
        need(call, *NUMERIC, DType.BOOL, args=[index for index in range(len(call.args)) if index not in texts])
        return broadcast(call).with_dtype(dtype)

    help = (run.__doc__ or "").strip().split("\n")[0]
    return Function(name, params, rule, run, "elementwise", help, takes="values" if of_rows else "tensors")


def _no_value(node: Node) -> bool:
    """Whether a node is the constant `missing`."""
    return node.op == CONST and node.leaf != node.leaf


def _is_text(item: inspect.Parameter) -> bool:
    return dtype_of(item.annotation) is DType.TEXT or isinstance(item.default, str)


def _is_written(item: inspect.Parameter) -> bool:
    """Whether a config can write a value for a parameter. Other parameters keep their default."""
    default = item.default
    return default is item.empty or default is None or (isinstance(default, int | float | str) and default == default)


def _by_name(item: inspect.Parameter) -> bool:
    return item.kind is item.KEYWORD_ONLY or (item.default is not item.empty and item.kind is not item.POSITIONAL_ONLY)


def _param(item: inspect.Parameter) -> Param:
    """The ``Param`` for a parameter of a function of rows. A default of None means that None may be passed."""
    default = REQUIRED if item.default is item.empty else item.default
    return Param(
        item.name, "value", default, takes_none=takes_none(item.annotation) or default is None, by_name=_by_name(item)
    )


def _annotated(written: inspect.Signature, name: str, texts: Sequence[str], returns: type | None = None) -> str:
    """A function's first line with ``texts`` annotated as `str`: `def repetition(completion: str) -> float`."""
    parameters = [item.replace(annotation=str) if item.name in texts else item for item in written.parameters.values()]
    if returns is None:
        returns = written.return_annotation if dtype_of(written.return_annotation) in _RETURNS else float
    return f"def {name}{written.replace(parameters=parameters, return_annotation=returns)}"


_RETURNS = (DType.FLOAT, DType.INT, DType.BOOL, DType.TEXT)  # the types that a user's function may return


class Functions(Registry[Function]):
    """The functions that a config can name."""

    noun = "function"
    group = "declog.functions"

    def adopt(self, name: str, run: Callable[..., Any]) -> Function:
        """Register a plain function under a name, as an installed package's entry point provides it."""
        return self.add(of_user(run, name))

    def _line(self, entry: Function, registered: Function | None) -> str:
        """The `def` with annotated texts, if a function without them has the name of declog's function of a text."""
        of_text = registered is not None and [item.name for item in registered.params[:1]] == ["text"]
        if not of_text or not entry.params or entry.takes != "tensors":
            return ""
        written = signature(self.noun, entry.name, entry.run)
        line = _annotated(written, entry.name, [item.name for item in entry.params])
        body = of_one_row(entry.run)
        return f", above `{f'{line}: {body}' if body else line}`, which is called once per text"

    def stage(self, name: str) -> Stage | None:
        """The stage of the function with a name; None for an unknown name."""
        function = self.get(name)
        return None if function is None else function.stage

    def as_text(self, name: str) -> str | None:
        """The first line of a user's function of rows, annotated to return a text; None for another function."""
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


FunctionOf = Callable[[str], Function | None]  # from the name of an operation to its function

BUILTIN = Functions()


DEFAULT = Functions(BUILTIN)
