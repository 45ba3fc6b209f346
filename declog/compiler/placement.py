"""Decides where each part of an expression is computed: on the device, on the rank that has its text, or on rank 0.

Per-token parts become folds on the device. Parts that read text become local columns, computed on the rank that has the
text. Everything else is evaluated over the rows of all ranks. The signals that remain are recorded.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from declog.compiler.draft import Draft, SwitchedOff
from declog.compiler.scopes import signal_node, token_mask
from declog.errors import Problem
from declog.language.absence import asks
from declog.language.dtypes import Axis, DType
from declog.language.moments import FORMULAS
from declog.language.nodes import CARRIED, FOLD, JOIN, LEAVES, PLAIN, SIGNAL, TEXTVALUE, Node, reads_other_ranks, walk
from declog.plans.ops import FoldOp, JoinOp, LocalOp, PreviousOp

_STATS = ("n", "total", "m2", "min", "max", "first", "last", "hist", "trace")
Place = tuple[str, str]  # a phase, and a signal that is needed in it
_GROUPED = frozenset({"index", "size"})


def _reads_groups(node: Node) -> bool:
    """Whether the node's value depends on which rows form a group."""
    if node.op == "rank":
        return node.param("within") is Axis.GROUP
    return node.type.axis is Axis.GROUP or node.op in _GROUPED


# a fold's identity: phase, expression, mask, `of`, and what is traced
_Fold = tuple[str, Node | None, frozenset[Node], Node | None, tuple[int, int] | None]


@dataclass
class Placement:
    """The state of the placement.

    ``recorded`` signals are kept as rows, ``folded`` signals are read by a fold, and ``sent`` signals are texts that
    are sent in full; each with its phase.
    """

    draft: Draft
    folds: dict[_Fold, FoldOp] = field(default_factory=dict)
    locals: dict[tuple[Node, str], LocalOp] = field(default_factory=dict)
    memo: dict[tuple[Node, str], Node] = field(default_factory=dict)
    recorded: set[Place] = field(default_factory=set)
    folded: set[Place] = field(default_factory=set)
    sent: set[Place] = field(default_factory=set)
    if_there: set[Place] = field(default_factory=set)  # recorded if they are observed, but not required
    grouped: set[str] = field(default_factory=set)  # phases in which groups are needed

    # -- folds

    def fold(
        self,
        phase: str,
        expr: Node | None,
        mask: frozenset[Node],
        stats: tuple[str, ...],
        of: Node | None = None,
        trace: tuple[int, int] | None = None,
    ) -> str:
        """Add statistics to the fold of a per-token expression, and return the fold's name."""
        masks = tuple(sorted(mask, key=lambda node: node.index))
        new = FoldOp(name=f"fold{len(self.folds)}", phase=phase, expr=expr, mask=masks, stats=(), of=of, trace=trace)
        key = (phase, expr, mask, of, trace)
        op = self.folds.get(key, new)
        self.folds[key] = replace(op, stats=tuple(stat for stat in _STATS if stat in (*op.stats, *stats)))
        self.folded.update(self.need(name, phase) for name in sorted(op.reads))
        return op.name

    def need(self, name: str, phase: str) -> Place:
        """A phase, and a signal that it reads. If the phase may not observe the signal, that is reported."""
        signal = self.draft.signals[name]
        if not signal.comes_in(phase):
            homes, words = ", ".join(signal.homes), signal.declaration
            self.draft.report("DL313.signal", signal.path, name=name, phase=phase, homes=homes, words=words)
        return phase, name

    # -- worker nodes

    def lower_all(self, phase: str, axis: Axis, **nodes: Node | None) -> dict[str, Any]:
        """Lower fields of an op with rows of ``axis``, by name; every rank sends the texts of labels."""
        lowered: dict[str, Any] = dict.fromkeys(nodes)
        for name, node in nodes.items():
            if node is not None:
                joined = self.draft.joined(node, phase)
                if axis is Axis.GROUP and joined.op == JOIN and joined.type.axis is Axis.COMPLETION:
                    # looked up for each completion; a group has its first completion's
                    joined = self.draft.graph.make(
                        "first", (joined,), type=joined.type.with_axis(Axis.GROUP), over=Axis.COMPLETION
                    )
                lowered[name] = self.label(joined, phase) if name == "by" else self.lower(joined, phase)
        return lowered

    def lower(self, node: Node, phase: str) -> Node:
        """The node as the worker evaluates it; a value of an earlier phase is looked up for the rows of this one."""
        node = self.draft.joined(node, phase)
        lowered = self.memo.get((node, phase))
        if lowered is None:
            lowered = self.memo[node, phase] = self._lower(node, phase)
            _call(lowered, node)
        if _reads_groups(lowered):
            self.grouped.add(phase)
        return lowered

    def _lower(self, node: Node, phase: str) -> Node:
        if node.op == SIGNAL:
            self.recorded.add(self.need(str(node.param("name")), phase))
            return node
        if node.op in LEAVES:
            return node
        if node.op == JOIN:
            return self._join(node, phase)
        if node.op == "prev":
            return self._previous(node, phase)
        if self._sums_mask(node):
            return self._column(FOLD, node, self.fold(phase, None, frozenset(node.args), ("n",)), stat="count")
        if node.over is Axis.TOKEN:
            (arg,) = node.args
            name = self.fold(phase, arg, arg.mask, FORMULAS[node.op].stats)
            return self._column(FOLD, node, name, stat=node.op)
        if node.op == "size" and node.param("axis") is Axis.TOKEN:
            return self._column(FOLD, node, self.fold(phase, None, node.mask, ("n",)), stat="count")
        texts = [arg for arg in node.args if arg.type.text]
        function = self.draft.functions.get(node.op)
        of_row = function is not None and function.takes == "values"  # a user's; its texts are short, as labels
        of_text = (of_row or not node.type.text) and any(arg.op not in PLAIN for arg in texts)
        if of_text and not reads_other_ranks(node, split=False):
            return self._local(node, phase)
        args = [self.lower(arg, phase) for arg in node.args]
        lowered = self.draft.graph.make(node.op, args, type=node.type, **dict(node.params))
        if of_text:
            self._send_texts(lowered, phase)
        return lowered

    def _local(self, node: Node, phase: str) -> Node:
        """A column that the rank with the text computes, so that the text is not sent."""
        op = self.locals.get((node, phase))
        if op is None:
            before = set(self.sent)
            args = [self.lower(arg, phase) for arg in node.args]
            self.sent = before
            inner = self.draft.graph.make(node.op, args, type=node.type, **dict(node.params))
            op = self.locals[node, phase] = LocalOp(name=f"local{len(self.locals)}", phase=phase, expr=inner)
            if any(_reads_groups(item) for item in walk(inner)):
                self.grouped.add(phase)
                if self.draft.split_groups:
                    self.draft.report("DL310.split_text", "axes.group.split", node=node)
        return self._column(TEXTVALUE, node, op.name)

    def _of_later(self, node: Node, arg: Node, phase: str, source: str) -> Node:
        """A column of an earlier phase that reads rows of a later one of the same samples, on the same rank."""
        expr, ids = self.lower(arg, source), self.draft.spec.axes.completion.ids
        op = LocalOp(name=f"local{len(self.locals)}", phase=phase, expr=expr, source=source)
        self.locals[node, phase] = op
        if ids is not None:
            self.if_there.update((one, ids) for one in (source, phase))
        return self._column(TEXTVALUE, node, op.name)

    def _join(self, node: Node, phase: str) -> Node:
        """A column of a later phase that is looked up in an earlier one, over the rows of all ranks."""
        (arg,) = node.args
        source = arg.type.phase
        assert source is not None
        order = self.draft.phase_order
        if order.get(source, 0) > order.get(phase, 0):
            return self._of_later(node, arg, phase, source)
        expr = self.label(arg, source)
        name = f"join{len(self.draft.joins)}"
        axis = Axis.STEP if node.type.axis is Axis.STEP else Axis.COMPLETION
        self.draft.joins.append(JoinOp(name=name, source=source, target=phase, expr=expr, axis=axis))
        ids = self.draft.spec.axes.completion.ids if axis is Axis.COMPLETION else None
        id_node = None if ids is None else axis_signal(self.draft, ids, "axes.completion.ids")
        if id_node is not None:
            for one in (source, phase):
                self.recorded.add(self.need(str(ids), one))
                if id_node.type.dtype is DType.TEXT:
                    self.sent.add((one, str(ids)))
        return self._column(CARRIED, node, name)

    @cached_property
    def masks(self) -> frozenset[str]:
        """The signals that say which tokens exist."""
        nodes = {mask for node in self.draft.nodes.values() if isinstance(node, Node) for mask in node.mask}
        with suppress(SwitchedOff):
            nodes |= token_mask(self.draft)
        return frozenset(str(node.param("name")) for node in walk(*nodes) if node.op == SIGNAL)

    def _sums_mask(self, node: Node) -> bool:
        """Whether a node counts the tokens of a mask; such a count is 0 in a batch whose tensors have no tokens."""
        if node.op != "sum" or node.over is not Axis.TOKEN:
            return False
        (arg,) = node.args
        return arg.op == SIGNAL and arg.type.dtype is DType.BOOL and not arg.mask and arg.param("name") in self.masks

    def _column(self, op: str, node: Node, name: str, **params: Any) -> Node:
        """The column of a value that is computed elsewhere."""
        params |= {"asks": True} if asks(node) else {}
        return self.draft.graph.make(op, type=node.type, name=name, **params)

    def _previous(self, node: Node, phase: str) -> Node:
        expr, first = (self.lower(arg, phase) for arg in node.args)
        name = f"prev{len(self.draft.previous)}"
        self.draft.previous.append(PreviousOp(name=name, phase=phase, expr=expr, first=first))
        return self._column(CARRIED, node, name)

    def picked(self, node: Node, phase: str) -> Node:
        """Lower a node that is needed for chosen rows only: its text stays on its rank until the rows are chosen."""
        node = self.draft.joined(node, phase)
        texts = any(item.op == SIGNAL and item.type.text for item in walk(node))
        if not node.type.text or node.op == SIGNAL or not texts:
            return self.lower(node, phase)
        far = reads_other_ranks(node, self.draft.split_groups)
        lowered = self.label(node, phase) if far else self._local(node, phase)
        _call(lowered, node)
        return lowered

    def label(self, node: Node, phase: str) -> Node:
        """Lower a node whose text every rank must send."""
        lowered = self.lower(node, phase)
        self._send_texts(lowered, phase)
        return lowered

    def _send_texts(self, lowered: Node, phase: str) -> None:
        """Let every rank send the texts that a node reads on rank 0."""
        for item in walk(lowered):
            if item.op in (SIGNAL, TEXTVALUE) and item.type.text:
                self.sent.add((phase, str(item.param("name"))))


def _call(lowered: Node, node: Node) -> None:
    """Let messages and `explain` show the config's own words for a lowered node."""
    if lowered is not node and not lowered.names:
        lowered.names.append(str(node))


def axis_signal(draft: Draft, name: str, path: str) -> Node | None:
    """The signal that defines an axis which is read; None if it is switched off, which is reported."""
    reason = draft.inactive.get(f"signals.{name}")
    if reason is None:
        return leaf(draft, name)
    draft.report_first(Problem.of("DL310.axis_off", name=name, reason=reason), tuple(path.split(".")))
    return None


def leaf(draft: Draft, name: str) -> Node:
    """The node of an observed signal that is on."""
    node = signal_node(draft, name)
    assert isinstance(node, Node)
    return node
