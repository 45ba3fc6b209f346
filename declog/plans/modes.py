"""The modes in which metrics can have values, by their conditions on `mode`; and modes that a config lacks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter

from declog.errors import nearest
from declog.language.absence import PRESENT
from declog.language.nodes import BUILTIN, CONST, METRIC, MODE, Node, label_of
from declog.plans.ops import FormulaOp, MetricOp, ModeOp

Modes = frozenset[str]


class ModesOfMetrics:
    """The modes of metrics among all ``modes`` of a config."""

    def __init__(self, outputs: Iterable[MetricOp | FormulaOp], modes: Collection[str]) -> None:
        self._ops = {op.key: op for op in outputs}
        self._all = frozenset(modes)

    def of(self, key: str, label: str | None = None) -> Modes:
        """The modes in which a metric, or one label of it, can have a value."""
        op = self._ops[key]
        if isinstance(op, FormulaOp):
            return self.of_expr(op.expr)
        if op.empty is not None:  # it gives a value in every mode
            return self._all
        labelled = self._all if label is None or op.by is None or not _is_mode(op.by) else frozenset({label})
        return labelled if op.where is None else labelled & self._where(op.where)

    def of_expr(self, node: Node, *, holds: bool = False) -> Modes:
        """The modes in which an expression over metrics can have a value, or (``holds``) a condition can hold."""
        if node.op == METRIC:
            key = str(node.leaf)
            return self._all if ":" in key else self.of(key, label_of(node))
        if node.op == PRESENT:
            return self._all
        parts = [self.of_expr(arg, holds=holds and node.op in ("or", "and")) for arg in node.args]
        if node.op == "if":
            return parts[0] & (parts[1] | parts[2])
        if node.op == "or" or (node.op == "and" and not holds):  # one side can decide alone
            return parts[0] | parts[1]
        return self._all.intersection(*parts)

    def alike(self, one: str, other: str) -> bool:
        """Whether two metrics are one reduction of one expression and differ in the modes whose rows they take."""
        ops = [op for op in map(self._ops.get, (one, other)) if isinstance(op, MetricOp) and _of_modes(op.where)]
        return len(ops) == 2 and len({*map(_BUT_ROWS, ops)}) == 1 and self.of(one) != self.of(other)

    def _where(self, node: Node) -> Modes:
        """The modes whose rows can fulfil a `where`."""
        if node.op in ("and", "or"):
            one, other = map(self._where, node.args)
            return one & other if node.op == "and" else one | other
        if node.op in ("eq", "ne") and any(map(_is_mode, node.args)):
            names = {str(arg.leaf) for arg in node.args if arg.op == CONST}
            if len(names) == 1:
                return self._all & names if node.op == "eq" else self._all - names
        return self._all


# what a metric computes, but for the rows that its `where` chooses
_BUT_ROWS = attrgetter("args", "reduction.name", "weight", "by", "pool", "combine", "smoothing", "over_run")


def _of_modes(where: Node | None) -> bool:
    """Whether a `where` chooses rows by their mode alone, or takes all rows."""
    return where is None or (where.op in ("eq", "ne") and any(map(_is_mode, where.args)))


def _is_mode(node: Node) -> bool:
    return node.op == BUILTIN and node.leaf == MODE


def one_more(name: str, modes: Mapping[str, ModeOp]) -> str:
    """The declaration of a further mode. Its prefix is built like that of the mode whose name it begins with.

    A mode ``eval_math`` gets the prefix ``eval_math_`` if that of ``eval`` is ``eval_``, else ``eval_math/``.
    """
    name = re.sub(r"\W+", "_", name)
    like = {op.prefix.removeprefix(mode) for mode, op in modes.items() if name.startswith(mode)}
    return f"{name}: {{prefix: {name}{'_' if like == {'_'} else '/'}}}"


def instead_of_mode(name: str, modes: Mapping[str, ModeOp]) -> str:
    """The fix for a mode that a config does not have: the mode that is meant, or a declaration."""
    evaluations, declared = [mode for mode in modes if mode != "train"], one_more(name, modes)
    declare = f"declare it: `modes: {{{declared}}}`"
    if any(re.match(rf"{re.escape(mode)}[^a-z]", name) for mode in evaluations):  # `eval_math` is another set
        mode, _, keys = declared.partition(": ")
        use = f', and `log.mode("{mode}")`' if mode != name else ""
        return f"{declare}, as override `modes.{mode}={keys}`{use}"
    if close := nearest(name, modes):
        return f"did you mean `{close}`?"
    return ", or ".join([*(f'`log.mode("{mode}")`' for mode in evaluations), declare])
