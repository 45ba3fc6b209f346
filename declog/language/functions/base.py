"""The entry of a function of the language, and the registry of functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from declog.language.absence import Kind
from declog.language.dtypes import NUMERIC, Axis, DType
from declog.language.functions.rules import Rule, Stage, typed
from declog.language.nodes import Node
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


OVER = Param("over", "axis", default=None)  # the axis that a function removes
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
    ``least``: of fewer values of a group it is absent; a text names the parameter that says how many.
    """

    name: str
    params: tuple[Param, ...]
    rule: Rule
    run: Callable[..., Any]
    stage: Stage
    help: str = ""
    tensors: bool = False  # run takes torch tensors: a user's function
    least: int | str = 1

    def fewest(self, node: Node) -> int:
        """How many values of a group a call of it takes at least."""
        return self.least if isinstance(self.least, int) else dict(node.params).get(self.least) or 1

    def of_constants(self, *values: Any) -> Any:
        """The value of an elementwise function of constants."""
        return np.asarray(self.run(np, *values)).item()

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


def of_tensors(run: Callable[..., Any], name: str, returns: Literal["float", "int", "bool"] = "float") -> Function:
    """An elementwise function of torch tensors, as users write them, under a name."""
    params = tuple(
        Param(item.name) for item in inspect.signature(run).parameters.values() if item.default is item.empty
    )
    rule = typed(DType(returns), *NUMERIC, DType.BOOL)
    help = (run.__doc__ or "").strip().split("\n")[0]
    return Function(name, params, rule, run, "elementwise", help, tensors=True)


class Functions(Registry[Function]):
    """The functions that a config can name."""

    noun = "function"
    group = "declog.functions"

    def adopt(self, name: str, run: Callable[..., Any]) -> Function:
        """Register a plain function of tensors under a name, as an installed package's entry point provides it."""
        return self.add(of_tensors(run, name))

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


BUILTIN = Functions()


DEFAULT = Functions(BUILTIN)
