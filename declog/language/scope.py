"""The meaning of names in an expression: which there are is said by the key of the config that the expression is at."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from declog.errors import Problem
from declog.language.dtypes import Axis, DType, Type
from declog.language.nodes import MODE, Node
from declog.language.parser import WORDS

if TYPE_CHECKING:  # numpy, which composing alone needs not
    from declog.language.reductions import Reduction

BUILTINS: Mapping[str, Type] = {
    "step": Type(DType.INT, Axis.STEP),
    "rank": Type(DType.INT, Axis.STEP),
    "elapsed": Type(DType.FLOAT, Axis.STEP),
    MODE: Type(DType.TEXT, Axis.STEP),
}
# Names that no signal may have. One that is named `mode` is what is meant where it is declared.
RESERVED = frozenset({"inf", "true", "false", "and", "or", "not", "if", "else", "in", "is", *WORDS, *BUILTINS}) - {MODE}


class Scope:
    """The meaning of names at one key of the config. This base class knows no names."""

    noun = "signal"  # or "metric": for messages
    of_alert: str | None = None  # the alert whose condition it is

    @property
    def groups(self) -> bool:
        """Whether the config says what a group is."""
        return False

    @property
    def modes(self) -> Mapping[str, str]:
        """The names of the modes that the config has, and their prefixes."""
        return {}

    @property
    def metrics(self) -> Mapping[str, Any]:
        """What the config says of its metrics, by id."""
        return {}

    @property
    def token_mask(self) -> frozenset[Node]:
        """The token axis' mask; empty where none is declared."""
        return frozenset()

    def resolve(self, name: str) -> Node | Problem | None:
        """The node that a name stands for; a Problem says why it cannot be used; None: unknown."""

    def attribute(self, name: str, attribute: str) -> Node | Problem | None:
        """The node of ``name.attribute``, where the place allows it."""

    def phase_order(self, phase: str) -> int:
        """The place of a phase in a step: values of an earlier one can be looked up for the rows of a later one."""
        return 0

    def measured(self, function: str, call: ast.Call) -> Node | None:
        """The node of a call that asks something of a metric: ``members``, ``nan_count``, a ``label`` of tokens."""

    def reduction(self, name: str) -> Reduction | None:
        """The reduction of this name."""

    def of_tracker(self, name: str) -> str | None:
        """What an expression writes for the value that trackers show under a name; None where none is meant."""

    def of_steps(self, name: str) -> str | None:
        """The same for a metric that has one number per step, and no rows."""

    def definition(self, name: str) -> str | None:
        """The lines that define what a name speaks of; None where it is defined, or speaks of nothing."""

    def declaration(self, signal: str) -> str:
        """How a signal is declared, in short."""
        return "..."

    def names(self) -> Iterable[str]:
        """The names that can be used, for suggestions."""
        return ()
