"""The last passes: split every expression between the device, the rank and the worker of rank 0.

Per-token parts become folds on the device; parts that read text become local columns, computed where the
text is; the rest is evaluated over the rows of all ranks. What is left over is the list of signals to record.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from declog.compiler.draft import Draft, SwitchedOff
from declog.compiler.scopes import signal_node, token_mask
from declog.language.absence import asks
from declog.language.dtypes import AXES, Axis, DType
from declog.language.moments import FORMULAS
from declog.language.nodes import CARRIED, FOLD, JOIN, LEAVES, LOGGED, SIGNAL, TEXTVALUE, Node, reads_other_ranks, walk
from declog.plans.ops import (
    TRACE,
    ColumnOp,
    FilterOp,
    FoldOp,
    JoinOp,
    LocalOp,
    MetricOp,
    PhaseOp,
    PreviousOp,
    SignalOp,
    TableOp,
    TokensOp,
)

_STATS = ("n", "total", "m2", "min", "max", "first", "last", "hist", "trace")
Place = tuple[str, str]  # a phase, and a signal that is needed in it
_GROUPED = frozenset({"index", "size", "pass_at"})


def _reads_groups(node: Node) -> bool:
    """Whether the node's value depends on which rows are a group."""
    if node.op == "rank":
        return node.param("within") is Axis.GROUP
    return node.type.axis is Axis.GROUP or node.op in _GROUPED


# phase, indices of `expr` and `of`, those of the mask, and what is traced
_FoldKey = tuple[str, int | None, int | None, frozenset[int], tuple[int, int] | None]


@dataclass
class _Lowering:
    draft: Draft
    folds: dict[_FoldKey, tuple[Node | None, Node | None, frozenset[Node], set[str]]] = field(default_factory=dict)
    fold_names: dict[_FoldKey, str] = field(default_factory=dict)
    locals: dict[tuple[int, str], str] = field(default_factory=dict)
    local_ops: list[LocalOp] = field(default_factory=list)
    memo: dict[tuple[int, str], Node] = field(default_factory=dict)
    recorded: set[Place] = field(default_factory=set)
    folded: set[Place] = field(default_factory=set)
    travels: set[Place] = field(default_factory=set)
    wished: set[Place] = field(default_factory=set)  # recorded where they come, and not missed where they do not
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
        """The name of the fold of a per-token expression, with these statistics among its columns."""
        places = [None if node is None else node.index for node in (expr, of)]
        key = (phase, places[0], places[1], frozenset(node.index for node in mask), trace)
        if key not in self.folds:
            self.fold_names[key] = f"fold{len(self.folds)}"
            self.folds[key] = (expr, of, mask, set())
        self.folds[key][3].update(stats)
        nodes = set(walk(*mask, *(node for node in (expr, of) if node is not None)))
        for item in sorted({*nodes, *walk(*(m for node in nodes for m in node.mask))}, key=lambda node: node.index):
            if item.op == SIGNAL:
                self.folded.add(self.place(item, phase))
        return self.fold_names[key]

    def fold_ops(self) -> list[FoldOp]:
        return [
            FoldOp(
                name=self.fold_names[key], phase=key[0], expr=expr, of=of, trace=key[4],
                mask=tuple(sorted(mask, key=lambda node: node.index)),
                stats=tuple(stat for stat in _STATS if stat in stats),
            )
            for key, (expr, of, mask, stats) in self.folds.items()
        ]  # fmt: skip

    def place(self, node: Node, phase: str) -> Place:
        """Where a signal is read; it must be observed there."""
        name = str(node.param("name"))
        spec = self.draft.signals[name]
        homes = spec.phases
        if homes and phase not in homes:
            self.draft.report(
                "DL313.signal", (*self.draft.signal_paths[name], "phase"), name=name, phase=phase,
                homes=", ".join(homes), home=homes[0],
            )  # fmt: skip
        return phase, name

    # -- worker nodes

    def lower_all(self, phase: str, **nodes: Node | None) -> dict[str, Any]:
        """Some fields of an op as the worker evaluates them; a label's text every rank must send."""
        lowered: dict[str, Any] = dict.fromkeys(nodes)
        for name, node in nodes.items():
            if node is not None:
                lowered[name] = self.label(node, phase) if name == "by" else self.lower(node, phase)
        return lowered

    def lower(self, node: Node, phase: str) -> Node:
        """The node as the worker evaluates it."""
        phase = node.type.phase or phase
        known = self.memo.get((node.index, phase))
        if known is None:
            known = self.memo[node.index, phase] = self._lower(node, phase)
            if known is not node and not known.names:
                known.names.append(str(node))  # messages and `explain` speak of what the profile says
        if _reads_groups(known):
            self.grouped.add(phase)
        return known

    def _lower(self, node: Node, phase: str) -> Node:
        if node.op == SIGNAL:
            self.recorded.add(self.place(node, phase))
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
        if any(arg.type.text for arg in node.args) and not node.type.text:
            return self._local(node, phase)
        args = [self.lower(arg, phase) for arg in node.args]
        return self.draft.pool.make(node.op, args, type=node.type, **dict(node.params))

    def _local(self, node: Node, phase: str) -> Node:
        """A column of this rank: its text does not travel."""
        name = self.locals.get((node.index, phase))
        if name is None:
            before = set(self.travels)
            args = [self.lower(arg, phase) for arg in node.args]
            self.travels = before
            inner = self.draft.pool.make(node.op, args, type=node.type, **dict(node.params))
            name = self.locals[node.index, phase] = f"local{len(self.locals)}"
            self.local_ops.append(LocalOp(name=name, phase=phase, expr=inner))
            if any(_reads_groups(item) for item in walk(inner)):
                self.grouped.add(phase)
                if self.draft.grouping is not None and self.draft.grouping.split == "ranks":
                    self.draft.report("DL310.split_text", "axes.group.split", node=node)
        return self._column(TEXTVALUE, node, name)

    def _join(self, node: Node, phase: str) -> Node:
        """A column of a later phase, looked up in an earlier one when all ranks' rows are known."""
        (arg,) = node.args
        source = arg.type.phase
        assert source is not None
        expr = self.label(arg, source)
        name = f"join{len(self.draft.joins)}"
        axis = Axis.STEP if node.type.axis is Axis.STEP else Axis.COMPLETION
        self.draft.joins.append(JoinOp(name=name, source=source, target=phase, expr=expr, axis=axis))
        ids = self.draft.spec.axes.completion.ids if axis is Axis.COMPLETION else None
        leaf = None if ids is None else _of_axis(self.draft, ids, "axes.completion.ids")
        if leaf is not None:
            for one in (source, phase):
                self.recorded.add(self.place(leaf, one))
                if leaf.type.dtype is DType.TEXT:
                    self.travels.add((one, str(ids)))
        return self._column(CARRIED, node, name)

    @cached_property
    def masks(self) -> frozenset[str]:
        """The signals that say which tokens exist."""
        found = {mask for node in self.draft.nodes.values() if isinstance(node, Node) for mask in node.mask}
        with suppress(SwitchedOff):
            found |= token_mask(self.draft)
        leaves = (leaf for leaf in walk(*found) if leaf.op == SIGNAL)
        return frozenset(str(leaf.param("name")) for leaf in leaves)

    def _sums_mask(self, node: Node) -> bool:
        """Whether it is how many tokens there are of a mask, which is 0 where there is no room for any."""
        if node.op != "sum" or node.over is not Axis.TOKEN:
            return False
        (arg,) = node.args
        return arg.op == SIGNAL and arg.type.dtype is DType.BOOL and not arg.mask and arg.param("name") in self.masks

    def _column(self, op: str, node: Node, name: str, **params: Any) -> Node:
        """The column that stands for a value which is computed elsewhere."""
        params |= {"asks": True} if asks(node) else {}
        return self.draft.pool.make(op, type=node.type, name=name, **params)

    def _previous(self, node: Node, phase: str) -> Node:
        expr, first = (self.lower(arg, phase) for arg in node.args)
        name = f"prev{len(self.draft.previous)}"
        self.draft.previous.append(PreviousOp(name=name, phase=phase, expr=expr, first=first))
        return self._column(CARRIED, node, name)

    def picked(self, node: Node, phase: str) -> Node:
        """A node that is needed of some rows only: its text stays where it is until they are picked."""
        phase = node.type.phase or phase
        texts = any(item.op == SIGNAL and item.type.text for item in walk(node))
        if not node.type.text or node.op == SIGNAL or not texts:
            return self.lower(node, phase)
        split = self.draft.grouping is not None and self.draft.grouping.split == "ranks"
        far = any(item.op in (JOIN, "prev") for item in walk(node)) or reads_other_ranks(node, split)
        return self.label(node, phase) if far else self._local(node, phase)

    def label(self, node: Node, phase: str) -> Node:
        """A node whose text leaves every rank must send."""
        phase = node.type.phase or phase
        lowered = self.lower(node, phase)
        for item in walk(lowered):
            if item.op == SIGNAL and item.type.text:
                self.travels.add((phase, str(item.param("name"))))
        return lowered


def lower(draft: Draft) -> None:
    """Split expressions, and list what each phase records."""
    work = _Lowering(draft)
    draft.metrics = [_metric(work, op) for op in draft.metrics]
    draft.tables = [_table(work, table) for table in draft.tables]
    if draft.problems:
        return
    _groups(work)
    _logged(draft)
    _events(work)


def _metric(work: _Lowering, op: MetricOp) -> MetricOp:
    phase = op.phase
    clauses = work.lower_all(phase, by=op.by, weight=op.weight)
    if op.axis is not Axis.TOKEN:
        texts = op.reduction.texts  # which must be where they are reduced
        args = tuple(
            work.label(node, phase) if place in texts else work.lower(node, phase) for place, node in enumerate(op.args)
        )
        return replace(op, args=args, **clauses, **work.lower_all(phase, where=op.where))
    (expr,) = op.args
    mask, where = expr.mask, op.where
    if where is not None and where.type.axis is Axis.TOKEN:
        mask, where = mask | where.mask | {where}, None
    if not op.reduction.foldable:  # a sketch of the whole batch: what counts is decided on the device
        if where is not None:
            mask, where = mask | {where}, None
        name = work.fold(phase, expr, mask, ("n", "min", "max", "hist"))
    else:
        name = work.fold(phase, expr, mask, tuple(op.reduction.stats))
    tokens = work.fold(phase, None, mask, ("n",), of=expr if asks(expr) else None)  # else absent as a whole, or not
    return replace(op, args=(), fold=name, tokens=tokens, **clauses, **work.lower_all(phase, where=where))


def _table(work: _Lowering, table: TableOp) -> TableOp:
    if table.axis is Axis.GROUP:
        work.grouped.add(table.phase)
    columns = tuple(
        _tokens(work, column, table.phase)
        if column.tokens is not None
        else replace(
            column,
            expr=None if column.expr is None else work.picked(column.expr, table.phase),
            args=tuple((name, work.picked(node, table.phase)) for name, node in column.args),
        )
        for column in table.columns
    )
    chosen = None if table.filter is None else _filter(work, table.filter, table)
    read = [node for column in columns for node in column.nodes]
    read += [one.key for one in chosen.chain if one.key is not None] if chosen is not None else []
    kept = [node for node in read if node.op in (SIGNAL, TEXTVALUE) and node.type.text]
    texts = dict.fromkeys(str(node.param("name")) for node in kept)
    return replace(table, columns=columns, filter=chosen, texts=tuple(texts))


def _tokens(work: _Lowering, column: ColumnOp, phase: str) -> ColumnOp:
    """A column of tokens: of values per token the first and the last are recorded, as a column of rows of them."""
    tokens, own = column.tokens, column.expr
    assert tokens is not None and own is not None
    tokens = replace(tokens, margin=TokensOp.MARGIN if column.redact else 0)

    def lowered(node: Node) -> Node:
        if node.type.axis is not Axis.TOKEN:
            return work.picked(node, phase)
        mask = own.mask if own.type.axis is Axis.TOKEN else node.mask
        name = work.fold(phase, node, mask, ("trace",), trace=tokens.recorded)
        type = replace(node.type, dtype=DType.OBJECT, axis=Axis.COMPLETION)
        return work.draft.pool.make(TEXTVALUE, type=type, name=name + TRACE)

    values = tuple((name, lowered(node)) for name, node in tokens.values)
    return replace(column, expr=lowered(own), tokens=replace(tokens, values=values))


def _filter(work: _Lowering, op: FilterOp, table: TableOp) -> FilterOp:
    phase = table.phase
    if op.within == "group" or op.take == "group":
        work.grouped.add(phase)
    axis = Axis.GROUP if op.take == "group" else table.axis
    keyed = None
    if op.key is not None and op.key.type.text:
        type = op.key.type.with_dtype(DType.BOOL)
        keyed = work.lower(work.draft.pool.make("present", (op.key,), type=type), phase)
    return replace(
        op, phase=phase, axis=axis, keyed=keyed, ids=_ids(work, op, table, axis),
        key=None if op.key is None else work.picked(op.key, phase),
        source=None if op.source is None else _filter(work, op.source, table),
        **work.lower_all(phase, where=op.where),
    )  # fmt: skip


def _ids(work: _Lowering, op: FilterOp, table: TableOp, axis: Axis) -> Node | None:
    """What names the rows of a table, where a filter goes by that: the completion's id, or a group's first."""
    name = work.draft.spec.axes.completion.ids
    if name is None or op.kind not in ("top_bottom", "random", "fraction") or axis is Axis.STEP:
        return None
    homes = work.draft.signals[name].phases
    if f"signals.{name}" in work.draft.inactive or (homes and table.phase not in homes):
        return None
    node = signal_node(work.draft, name)
    assert isinstance(node, Node)
    work.wished.add((table.phase, name))
    if node.type.dtype is DType.TEXT:
        work.travels.add((table.phase, name))
    if axis is Axis.GROUP:
        return work.draft.pool.make("first", (node,), type=node.type.with_axis(Axis.GROUP), over=Axis.COMPLETION)
    return node


def _of_axis(draft: Draft, name: str, path: str) -> Node | None:
    """The signal that says how an axis lies, which something reads: where it is off, that is an error."""
    reason = draft.inactive.get(f"signals.{name}")
    if reason is None:
        node = signal_node(draft, name)
        assert isinstance(node, Node)
        return node
    if all(problem.path != tuple(path.split(".")) for problem in draft.problems):
        draft.report("DL310.axis_off", path, name=name, reason=reason)
    return None


def _groups(work: _Lowering) -> None:
    grouping = work.draft.grouping
    if grouping is None and work.grouped:  # a signal per group: functions of groups were refused before
        work.draft.report("DL306.per_group", "axes.group")
    if grouping is None or grouping.of is None or not work.grouped:
        return
    name = grouping.of
    node = _of_axis(work.draft, name, "axes.group.of")
    for phase in sorted(work.grouped) if node is not None else ():
        assert node is not None
        work.recorded.add(work.place(node, phase))
        if node.type.dtype is DType.TEXT:
            work.travels.add((phase, name))


def _logged(draft: Draft) -> None:
    spec = draft.signals.get(LOGGED)
    if spec is None or not any(op.id == LOGGED for op in draft.metrics):
        return
    phase = spec.phase if isinstance(spec.phase, str) else draft.default_phase
    if spec.axis == "step" and spec.family:
        draft.logged = SignalOp(
            name=LOGGED, source=LOGGED, dtype=spec.type, axis=Axis.STEP, family=True, phase=phase, optional=True,
            recorded=True,
        )  # fmt: skip


def _events(work: _Lowering) -> None:
    draft = work.draft
    folds = work.fold_ops()
    by_phase: dict[str, list[SignalOp]] = {}
    places = {name: order for order, name in enumerate(draft.signals)}
    needed = work.recorded | work.folded
    for phase, name in sorted(needed | work.wished, key=lambda place: places[place[1]]):
        spec, node = draft.signals[name], signal_node(draft, name)
        assert isinstance(node, Node) and spec.axis is not None
        if spec.axis == "group" and draft.grouping is not None and draft.grouping.split == "ranks":
            draft.report("DL310.split_group", (*draft.signal_paths[name], "axis"), name=name)
        op = SignalOp(
            name=name, source=spec.from_ or name, dtype=spec.type, axis=AXES[spec.axis],
            family=bool(spec.family), members=spec.members, phase=phase, homes=spec.phases,
            optional=spec.optional or (phase, name) not in needed,
            recorded=(phase, name) in work.recorded | work.wished, folded=(phase, name) in work.folded,
            packed=spec.axis == "token" and draft.spec.axes.token.lengths is not None,
            unmasked=spec.axis == "token" and not node.mask and name not in work.masks,
            any=spec.any,
        )  # fmt: skip
        by_phase.setdefault(phase, []).append(op)
    extra = [table.phase for table in draft.tables if any(column.keeps for column in table.columns)]
    draft.extra = extra[0] if extra else next((table.phase for table in draft.tables), None)
    lengths = _lengths(draft, {fold.phase for fold in folds}, by_phase)
    metric_phases = {op.phase for op in draft.metrics}
    names = [*by_phase, *sorted((metric_phases | {table.phase for table in draft.tables}) - set(by_phase))]
    for phase in sorted(names, key=_phase_order):
        signals = tuple(by_phase.get(phase, ()))
        draft.phases[phase] = PhaseOp(
            name=phase, signals=signals, folds=tuple(fold for fold in folds if fold.phase == phase),
            locals=tuple(op for op in work.local_ops if op.phase == phase), lengths=lengths.get(phase),
            travels=frozenset(signal.name for signal in signals if (phase, signal.name) in work.travels),
        )  # fmt: skip


def _lengths(draft: Draft, phases: set[str], by_phase: dict[str, list[SignalOp]]) -> dict[str, str]:
    """Where tokens are packed: every phase with folds needs the signal that says how."""
    name = draft.spec.axes.token.lengths
    if name is None or name not in draft.signals or not phases:
        return {}
    node = _of_axis(draft, name, "axes.token.lengths")
    if node is None:
        return {}
    for phase in sorted(phases):
        if node.type.phase not in (None, phase):
            draft.report("DL313.lengths", "axes.token.lengths", phase=phase, name=name, other=node.type.phase)
            continue
        found = next((place for place, op in enumerate(by_phase[phase]) if op.name == name), None)
        if found is None:
            source, axis = draft.signals[name].from_ or name, Axis.COMPLETION
            op = SignalOp(name=name, source=source, dtype=DType.INT, axis=axis, phase=phase, folded=True)
            by_phase[phase].append(op)
        else:
            by_phase[phase][found] = replace(by_phase[phase][found], folded=True)
    return dict.fromkeys(phases, name)


def _phase_order(phase: str) -> tuple[int, str]:
    return ({"rollout": 0, LOGGED: 2}.get(phase, 1), phase)
