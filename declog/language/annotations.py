"""Reading of the annotations of a user's function: the types of its parameters and of its result."""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from contextlib import suppress
from textwrap import dedent
from typing import Any

from declog.errors import UsageError
from declog.records import DType

_TYPES: dict[Any, DType] = {int: DType.INT, float: DType.FLOAT, bool: DType.BOOL, str: DType.TEXT}
_TYPES |= {type.__name__: dtype for type, dtype in _TYPES.items()}  # annotations stay texts if one cannot be evaluated

_NONE = (None, type(None), "None")


def signature(noun: str, name: str, run: Callable[..., Any]) -> inspect.Signature:
    """The signature of a user's function, with annotations that are texts evaluated.

    ``from __future__ import annotations`` makes all annotations texts. They stay texts if one of them cannot be
    evaluated, such as a name that is imported for type checkers only. Raises ``UsageError`` DL304 for a class, for a
    coroutine function, and for a callable without a signature.
    """
    if inspect.isclass(run):
        raise UsageError.of("DL304.no_function", noun=noun, name=name, what="a class came")
    if inspect.iscoroutinefunction(run):
        raise UsageError.of("DL304.asynchronous", noun=noun, name=name)
    try:
        as_written = inspect.signature(run)
    except (TypeError, ValueError) as error:
        raise UsageError.of("DL304.signature", noun=noun, name=name, error=error) from error
    try:
        return inspect.signature(run, eval_str=True)
    except Exception:  # noqa: BLE001  (an annotation may be any expression)
        return as_written


def dtype_of(hint: Any) -> DType | None:
    """The type of an annotation, also of `... | None`. None if the language has no such type."""
    parts = [item for item in _parts(hint) if item not in _NONE]
    hint = parts[0] if len(parts) == 1 else None
    if typing.get_origin(hint) in (list, dict, tuple) or hint in (list, dict, tuple):
        return DType.OBJECT
    return _TYPES.get(hint) if isinstance(hint, type | str) else None


def _last_statement(run: Callable[..., Any]) -> ast.stmt:
    (function,) = ast.parse(dedent(inspect.getsource(run))).body
    assert isinstance(function, ast.FunctionDef)
    return function.body[-1]


def of_one_row(run: Callable[..., Any]) -> str | None:
    """The body of a function for one row, such as ``return len(completion)``, if ``run`` lists it for all completions.

    Returns None if the last statement of ``run`` does not return such a list.
    """
    with suppress(Exception):  # the function has no source, or other code
        match _last_statement(run):
            case ast.Return(value=ast.ListComp(elt=value, generators=[ast.comprehension(target, rows, ifs=[])])):
                zipped = isinstance(rows, ast.Call) and ast.unparse(rows.func) == "zip"
                items, lists = (target.elts, rows.args) if zipped else ([target], [rows])  # type: ignore[attr-defined]
                names = {item.id: parameter.id for item, parameter in zip(items, lists, strict=True)}
                for node in ast.walk(value):
                    if isinstance(node, ast.Name):
                        node.id = names.get(node.id, node.id)
                if {*names.values()} <= {*inspect.signature(run).parameters}:
                    return f"return {ast.unparse(value)}"
    return None


def returns_bool(run: Callable[..., Any]) -> bool:
    """Whether the last statement of a function returns a condition, such as ``'a' in text``, or a list of those."""
    with suppress(Exception):  # the function has no source, or other code
        match _last_statement(run):
            case ast.Return(value=ast.ListComp(elt=value)) | ast.Return(value=value):
                return _is_condition(value)
    return False


_CONDITIONS = (  # functions and methods that return a bool
    "all", "any", "bool", "endswith", "isalnum", "isalpha", "isdecimal", "isdigit", "isfinite", "isinstance", "islower",
    "isnan", "isnumeric", "isspace", "issubset", "isupper", "startswith",
)  # fmt: skip


def _is_condition(node: ast.expr | None) -> bool:
    match node:
        case ast.BoolOp(values=values):
            return all(map(_is_condition, values))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _CONDITIONS
    return isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def takes_none(hint: Any) -> bool:
    """Whether an annotation allows None: `str | None`."""
    return any(item in _NONE for item in _parts(hint))


def _parts(hint: Any) -> Sequence[Any]:
    """The members of an annotation that is a union; any other annotation alone."""
    if isinstance(hint, str):
        return [item.strip() for item in hint.split("|")]
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)
