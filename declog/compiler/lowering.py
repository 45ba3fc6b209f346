"""The last pass: lower metrics and tables to the form in which a run evaluates them, and list what phases record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from declog.compiler.draft import Draft, op_of
from declog.compiler.placement import Placement, axis_signal, leaf
from declog.language.absence import asks, too_few
from declog.language.dtypes import AXES, Axis, DType
from declog.language.nodes import LOGGED, SIGNAL, TEXTVALUE, Node
from declog.plans.ops import TRACE, ColumnOp, FilterOp, MetricOp, PhaseOp, SignalOp, TableOp, TokensOp


def lower(draft: Draft) -> None:
    """Split expressions, and list what each phase records.

    Folds and other columns are numbered in the order of the metrics' keys and the tables' ids, so the order of entries
    in a config does not change the plan.
    """
    work = Placement(draft)
    metrics = {op.key: _metric(work, op) for op in sorted(draft.metrics, key=lambda op: op.key)}
    tables = {table.id: _table(work, table) for table in sorted(draft.tables, key=lambda table: table.id)}
    draft.metrics = [metrics[op.key] for op in draft.metrics]
    draft.tables = [tables[table.id] for table in draft.tables]
    if draft.problems:
        return
    earlier = _earlier_groups(work)
    _groups(work, earlier)
    _row_ids(work)
    _logged(draft)
    _phases(work, earlier)


def _metric(work: Placement, op: MetricOp) -> MetricOp:
    phase = op.phase
    clauses = work.lower_all(phase, op.axis, by=op.by, weight=op.weight)
    if op.axis is not Axis.TOKEN:
        texts = op.reduction.texts  # the reduction needs the texts themselves
        args = tuple(
            work.label(node, phase) if index in texts else work.lower(node, phase) for index, node in enumerate(op.args)
        )
        return replace(op, args=args, **clauses, **work.lower_all(phase, op.axis, where=op.where))
    (expr,) = op.args
    foldable = op.reduction.foldable
    mask, where = expr.mask, op.where
    of_batches = foldable or where is None or where.type.axis is Axis.STEP  # a sketch covers the whole batch
    if where is not None and (where.type.axis is Axis.TOKEN or not of_batches):
        mask, where = mask | where.mask | {where}, None
    name = work.fold(phase, expr, mask, tuple(op.reduction.stats) if foldable else ("n", "min", "max", "hist"))
    tokens = work.fold(phase, None, mask, ("n",), of=expr if asks(expr) or too_few(expr) else None)
    return replace(op, args=(), fold=name, tokens=tokens, **clauses, **work.lower_all(phase, op.axis, where=where))


def _table(work: Placement, table: TableOp) -> TableOp:
    if table.axis is Axis.GROUP:
        work.grouped.add(table.phase)
    by_id = {column.id: _column(work, column, table) for column in sorted(table.columns, key=lambda column: column.id)}
    columns = tuple(by_id[column.id] for column in table.columns)
    chosen = None if table.filter is None else _filter(work, table.filter, table)
    read = [node for column in columns for node in column.nodes]
    read += [node for one in chosen.chain for node in one.keys] if chosen is not None else []
    kept = [node for node in read if node.op in (SIGNAL, TEXTVALUE) and node.type.text]
    texts = sorted({str(node.param("name")) for node in kept})
    return replace(table, columns=columns, filter=chosen, texts=tuple(texts))


def _column(work: Placement, column: ColumnOp, table: TableOp) -> ColumnOp:
    if column.tokens is not None:
        return _tokens(work, column, table.phase)
    return replace(
        column, expr=None if column.expr is None else work.picked(column.expr, table.phase),
        args=tuple((name, work.picked(node, table.phase)) for name, node in column.args),
    )  # fmt: skip


def _tokens(work: Placement, column: ColumnOp, phase: str) -> ColumnOp:
    """Lower a column of tokens: a completion's first and last values per token are recorded as one object."""
    tokens, expr = column.tokens, column.expr
    assert tokens is not None and expr is not None
    tokens = replace(tokens, margin=TokensOp.MARGIN if column.redact else 0)

    def lowered(node: Node) -> Node:
        if node.type.axis is not Axis.TOKEN:
            return work.picked(node, phase)
        mask = expr.mask if expr.type.axis is Axis.TOKEN else node.mask
        name = work.fold(phase, node, mask, ("trace",), trace=tokens.recorded)
        type = replace(node.type, dtype=DType.OBJECT, axis=Axis.COMPLETION)
        return work.draft.graph.make(TEXTVALUE, type=type, name=name + TRACE)

    values = tuple((name, lowered(node)) for name, node in tokens.values)
    return replace(column, expr=lowered(expr), tokens=replace(tokens, values=values))


def _filter(work: Placement, op: FilterOp, table: TableOp) -> FilterOp:
    phase = table.phase
    if "group" in op.within or op.take == "group":
        work.grouped.add(phase)
    axis = Axis.GROUP if op.take == "group" else table.axis
    keyed = op.keys if any(node.type.text for node in op.keys) else ()
    return replace(
        op, phase=phase, axis=axis, keyed=tuple(_present(work, node, phase) for node in keyed),
        ids=_ids(work, op, table, axis),
        key=None if op.key is None else work.picked(op.key, phase),
        label=None if op.label is None else work.picked(op.label, phase),
        source=None if op.source is None else _filter(work, op.source, table),
        **work.lower_all(phase, axis, where=op.where),
    )  # fmt: skip


def _present(work: Placement, node: Node, phase: str) -> Node:
    """Whether a row has a value of an expression."""
    joined = work.draft.joined(node, phase)
    there = work.draft.graph.make("present", (joined,), type=joined.type.with_dtype(DType.BOOL))
    return work.lower(there, phase)


def _ids(work: Placement, op: FilterOp, table: TableOp, axis: Axis) -> Node | None:
    """The ids of a table's rows, if the filter chooses by id: each completion's, or each group's first completion's."""
    name = work.draft.spec.axes.completion.ids
    if name is None or op.kind not in ("top_bottom", "random", "fraction") or axis is Axis.STEP:
        return None
    if f"signals.{name}" in work.draft.inactive or not work.draft.signals[name].comes_in(table.phase):
        return None
    node = leaf(work.draft, name)
    work.if_there.add((table.phase, name))
    if node.type.dtype is DType.TEXT:
        work.sent.add((table.phase, name))
    if axis is Axis.GROUP:
        return work.draft.graph.make("first", (node,), type=node.type.with_axis(Axis.GROUP), over=Axis.COMPLETION)
    return node


def _earlier_groups(work: Placement) -> dict[str, str]:
    """The phase that gives the rows of a later phase their groups, by later phase; the rows of both are matched.

    It is the first phase of a step. If several phases are first, none of them is before the other: empty.
    """
    draft, ids = work.draft, work.draft.spec.axes.completion.ids
    orders = {phase: order for phase, order in draft.phase_order.items() if order >= 0}
    first = [phase for phase, order in orders.items() if order == min(orders.values())]
    if draft.grouping is None or len(first) != 1:
        return {}
    later = (work.grouped | _tables_of_rows(draft)) - {*first}
    if later and ids is not None and f"signals.{ids}" not in draft.inactive:
        work.if_there.update((phase, ids) for phase in {*first, *later} if draft.signals[ids].comes_in(phase))
    return dict.fromkeys(later, first[0])


def _tables_of_rows(draft: Draft) -> set[str]:
    """The phases of tables that have a row per completion; such a row names the completion's group."""
    return {table.phase for table in draft.tables if table.axis is Axis.COMPLETION}


def _groups(work: Placement, earlier: Mapping[str, str]) -> None:
    """Record the signals that identify groups.

    A phase that needs groups requires the signal, if there is only one. Each of several signals is optional. So is the
    signal beside `axes.group.size`, and in a later phase that takes its groups from an earlier one.
    """
    draft, grouping = work.draft, work.draft.grouping
    if grouping is None and work.grouped:  # by a signal per group; functions of groups were refused before
        draft.report("DL306.per_group", "axes.group")
    if grouping is None or not grouping.of:
        return
    active = [name for name in grouping.of if f"signals.{name}" not in draft.inactive]
    for phase in sorted(work.grouped | _tables_of_rows(draft) | {*earlier.values()}):
        if phase not in work.grouped or phase in earlier or grouping.size is not None or len(grouping.of) > 1:
            work.if_there.update((phase, name) for name in active if draft.signals[name].comes_in(phase))
        elif axis_signal(draft, grouping.of[0], "axes.group.of") is not None:
            work.recorded.add(work.need(grouping.of[0], phase))


def _row_ids(work: Placement) -> None:
    """Record the row ids in each phase that records other values of rows: they join calls about the same rows."""
    ids = work.draft.spec.axes.completion.ids
    if ids is None or f"signals.{ids}" in work.draft.inactive:
        return
    read = work.recorded | work.folded | work.if_there
    phases = {phase for phase, name in read if work.draft.observed[name].axis != "step"}
    spots = {(phase, ids) for phase in phases if work.draft.signals[ids].comes_in(phase)}
    work.if_there |= spots
    if work.draft.observed[ids].type is DType.TEXT:
        work.sent |= spots - read  # so that rows keep them


def _logged(draft: Draft) -> None:
    spec = draft.observed.get(LOGGED)
    if spec is None or not any(op.id == LOGGED for op in draft.metrics):
        return
    phase = next(iter(draft.signals[LOGGED].homes), draft.default_phase)
    if spec.axis == "step" and spec.family:
        draft.logged = SignalOp(
            name=LOGGED, source=LOGGED, dtype=spec.type, axis=Axis.STEP, family=True, phase=phase, recorded=True,
        )  # fmt: skip


def _phases(work: Placement, earlier: Mapping[str, str]) -> None:
    draft = work.draft
    folds = list(work.folds.values())
    read = work.recorded | work.folded | work.if_there
    lengths = _lengths(work, {fold.phase for fold in folds})
    by_phase: dict[str, list[SignalOp]] = {}
    needed = work.recorded | work.folded
    for phase, name in [*sorted(read), *sorted(work.folded - read)]:  # lengths that only folds need come last
        spec, node = draft.observed[name], leaf(draft, name)
        if spec.axis == "group" and draft.split_groups:
            draft.report("DL310.split_group", (*draft.signals[name].path, "axis"), name=name)
        op = _signal(
            draft, phase, name, required=spec.required and (phase, name) in needed,
            recorded=(phase, name) in work.recorded | work.if_there, folded=(phase, name) in work.folded,
            unmasked=spec.axis == "token" and not node.mask and name not in work.masks,
        )  # fmt: skip
        by_phase.setdefault(phase, []).append(op)
    extra = [table.phase for table in draft.tables if any(column.keeps for column in table.columns)]
    draft.extra = extra[0] if extra else next((table.phase for table in draft.tables), None)
    phases = {*by_phase, *(op.phase for op in draft.metrics), *(table.phase for table in draft.tables)}
    for phase in sorted(phases, key=_phase_order):
        signals = tuple(by_phase.get(phase, ()))
        columns = tuple(op for op in work.locals.values() if op.phase == phase)
        names = [*(signal.name for signal in signals), *(column.name for column in columns)]
        draft.phases[phase] = PhaseOp(
            name=phase, signals=signals, folds=tuple(fold for fold in folds if fold.phase == phase),
            locals=columns, lengths=lengths.get(phase),
            sent=frozenset(name for name in names if (phase, name) in work.sent),
            unread=tuple(_unread(draft, phase, signals)), groups_of=earlier.get(phase),
        )  # fmt: skip


def _signal(
    draft: Draft, phase: str, name: str, *,
    recorded: bool, required: bool = False, folded: bool = False, unmasked: bool = False,
) -> SignalOp:  # fmt: skip
    """The op of a declared signal, as a phase observes it."""
    spec = draft.observed[name]
    return op_of(
        SignalOp, spec, name=name, source=spec.from_ or name, dtype=spec.type, axis=AXES[spec.axis],
        family=bool(spec.family), members=spec.members, phase=phase, homes=draft.signals[name].homes,
        required=required, recorded=recorded, folded=folded, unmasked=unmasked,
        packed=spec.axis == "token" and draft.spec.axes.token.lengths is not None,
    )  # fmt: skip


def _unread(draft: Draft, phase: str, signals: tuple[SignalOp, ...]) -> Iterator[SignalOp]:
    """The signals that a phase may observe and the plan does not record; none if the run keeps no rows.

    Numbers, bools and ids per completion are recorded if the phase has completions; texts are not.
    """
    if not draft.spec.run.keep_bytes:
        return
    ids = {draft.spec.axes.completion.ids, *(draft.grouping.of if draft.grouping is not None else ())}
    has_rows = any(signal.axis in (Axis.COMPLETION, Axis.TOKEN) for signal in signals)
    recorded = {signal.name for signal in signals if signal.recorded}
    for name, spec in sorted(draft.observed.items()):
        homes, off = draft.signals[name].homes, f"signals.{name}" in draft.inactive
        if name == LOGGED or spec.any or off or name in recorded or not (phase in homes if homes else has_rows):
            continue
        plain = spec.type not in (DType.TEXT, DType.OBJECT) or name in ids
        yield _signal(draft, phase, name, recorded=has_rows and plain and AXES[spec.axis] is Axis.COMPLETION)


def _lengths(work: Placement, phases: set[str]) -> dict[str, str]:
    """The signal of the lengths of packed tokens, for each phase with folds."""
    draft, name = work.draft, work.draft.spec.axes.token.lengths
    node = axis_signal(draft, name, "axes.token.lengths") if name in draft.signals and phases else None
    if node is None:
        return {}
    for phase in sorted(phases):
        work.folded.add((phase, str(name)))
        if node.type.phase not in (None, phase):
            draft.report("DL313.lengths", "axes.token.lengths", phase=phase, name=name, other=node.type.phase)
    return dict.fromkeys(phases, str(name))


def _phase_order(phase: str) -> tuple[int, str]:
    return ({"rollout": 0, LOGGED: 2}.get(phase, 1), phase)
