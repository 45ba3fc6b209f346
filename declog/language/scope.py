"""The meaning of names in an expression. The key of the config that holds the expression decides which names exist."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from declog.errors import Problem
from declog.language.dtypes import Axis, DType, Type
from declog.language.nodes import MODE, Node
from declog.language.parser import WORDS

if TYPE_CHECKING:  # imports numpy, which composing alone does not need
    from declog.language.reductions import Reduction

BUILTINS: Mapping[str, Type] = {
    "step": Type(DType.INT, Axis.STEP),
    "rank": Type(DType.INT, Axis.STEP),
    "elapsed": Type(DType.FLOAT, Axis.STEP),
    MODE: Type(DType.TEXT, Axis.STEP),
}
# Names that no signal may have. A signal may be named `mode`: it then hides the built-in name.
RESERVED = frozenset({"inf", "true", "false", "and", "or", "not", "if", "else", "in", "is", *WORDS, *BUILTINS}) - {MODE}


class Scope:
    """The meaning of names at one key of the config. This base class knows no names."""

    noun = "signal"  # or "metric": for messages
    of_alert: str | None = None  # the alert whose condition the expression is

    @property
    def groups(self) -> bool:
        """Whether the config defines groups."""
        return False

    @property
    def modes(self) -> Mapping[str, str]:
        """The names of the config's modes, and their prefixes."""
        return {}

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The entries of the config's metrics, by id."""
        return {}

    @property
    def token_mask(self) -> frozenset[Node]:
        """The mask of the token axis; empty if the config declares none."""
        return frozenset()

    def resolve(self, name: str) -> Node | Problem | None:
        """The node of a name. A Problem is the reason why the name cannot be used; None means an unknown name."""

    def attribute(self, name: str, attribute: str) -> Node | Problem | None:
        """The node of ``name.attribute``, if the key of the config allows it."""

    def phase_order(self, phase: str) -> int:
        """The position of a phase in a step. Rows of a later phase can look up values of an earlier phase."""
        return 0

    def measured(self, function: str, call: ast.Call) -> Node | None:
        """The node of a call about a metric: ``members``, ``nan_count``, or a ``label`` of tokens."""

    def reduction(self, name: str) -> Reduction | None:
        """The reduction with a name."""

    def of_tracker(self, name: str) -> str | None:
        """The text, in an expression, of the value that trackers show under a name. None if the name means none."""

    def of_steps(self, name: str) -> str | None:
        """The same as ``of_tracker``, but only for a metric with one number per step and no rows."""

    def definition(self, name: str) -> Mapping[str, Any] | None:
        """The metric, by its name, that an undefined name means. None for a defined name, and for an unknown one."""

    def declaration(self, signal: str) -> str:
        """The declaration of a signal in short form."""
        return "..."

    def names(self) -> Iterable[str]:
        """The names that can be used, for suggestions."""
        return ()
