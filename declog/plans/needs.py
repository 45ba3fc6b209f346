"""The inputs of metrics: other metrics, in an order in which inputs come first, and signals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from declog.language.absence import PRESENT, asks
from declog.language.dtypes import Axis
from declog.language.nodes import CARRIED, FOLD, METRIC, SIGNAL, TEXTVALUE, Node, aligned, label_of, reads_groups, walk
from declog.plans.fingerprint import expressions
from declog.plans.ops import AlertOp, FilterOp, FormulaOp, MetricOp, Plan, TableOp


class Need(NamedTuple):
    """A signal of a phase."""

    phase: str
    name: str


Source = tuple[str, str | None]  # the key of a metric, and the label of it that is read; None: all labels
Clause = tuple[Need, ...]  # signals of which at least one must be observed
Clauses = frozenset[Clause]
NOTHING: Clauses = frozenset()
ROW_ID = "row_id"  # the suggested name for ids of rows, if a config has none
IDS_OF_ROWS = f"axes: {{completion: {{ids: {ROW_ID}}}}}, signals: {{any: {{{ROW_ID}: completion int}}}}"
MOST = 64  # the most clauses of one expression; metrics with more are never called inactive


def marks(plan: Plan) -> frozenset[str]:
    """The signals that identify rows and groups or mask tokens, and are no values themselves."""
    masks = (mask for fold in plan.folds.values() for mask in fold.masks)
    return frozenset((*masks, *filter(None, [plan.ids]), *(() if plan.grouping is None else plan.grouping.of)))


@lru_cache(maxsize=4096)  # each log event asks this for all formulas, conditions and alerts
def sources(*nodes: Node) -> tuple[Source, ...]:
    """The metrics that expressions read, or of which they read a property, each with the one label that they read."""
    leaves = (node for node in walk(*nodes) if node.op == METRIC)
    return tuple(dict.fromkeys((str(node.leaf).rpartition(":")[2], label_of(node)) for node in leaves))


def read(*nodes: Node) -> tuple[str, ...]:
    """The keys of the metrics that expressions read."""
    return tuple(dict.fromkeys(key for key, _ in sources(*nodes)))


def read_by_label(node: Node) -> tuple[str, ...]:
    """The keys of the metrics from which an expression gets its labels.

    Metrics of which it reads one label only, or which it reduces over labels, are left out.
    """
    return tuple(key for key, label in sources(*(leaf for leaf in aligned(node) if leaf.op == METRIC)) if label is None)


def judged(plan: Plan, alert: AlertOp) -> set[int]:
    """The periods of the metrics in an alert's condition: the alert is judged at the ends of their windows.

    Those of a condition on steps or seconds alone are the plan's.
    """
    every = {op.key: op.every for op in plan.outputs}
    return {every[key] for key in read(alert.when)} or {plan.every}


def inputs(op: MetricOp | FormulaOp) -> set[str]:
    """The keys of the metrics that a metric reads: in its formula, in its condition, and by `prefer`."""
    nodes = (op.expr if isinstance(op, FormulaOp) else None, op.when)
    preferred = {op.prefer} if isinstance(op, MetricOp) and op.prefer is not None else set()
    return preferred.union(read(*(node for node in nodes if node is not None)))


def needs(outputs: Iterable[MetricOp | FormulaOp]) -> dict[str, set[str]]:
    """The ids of the other metrics that each metric needs, by id. A condition may also read its own metric."""
    ops = list(outputs)
    ids = {op.key: op.id for op in ops}
    needed: dict[str, set[str]] = {op.id: set() for op in ops}
    for op in ops:
        needed[op.id] |= {ids[key] for key in inputs(op) if key in ids} - {op.id}
    return needed


def ordered(needed: Mapping[str, set[str]]) -> tuple[list[str], list[str]]:
    """The ids in an order in which inputs come first, and the ids of a circle in its order; empty without a circle."""
    done: dict[str, None] = {}

    def circle(id: str, above: tuple[str, ...] = ()) -> list[str]:
        """The circle to which an id leads. Without a circle, add the id to the order, after its inputs."""
        if id in above:
            return [*above[above.index(id) :]]
        for other in sorted(needed[id]) if id not in done else ():
            if loop := circle(other, (*above, id)):
                return loop
        done[id] = None
        return []

    first = next(filter(None, map(circle, needed)), [])
    return list(done), first


def signals_of(plan: Plan) -> dict[str, Clauses]:
    """The signals without which each metric has no value, by id, also through folds, joins and other metrics."""
    clauses: dict[str, Clauses] = dict.fromkeys((op.id for op in plan.outputs), NOTHING)
    columns = _columns(plan)
    for op in plan.metrics:
        clauses[op.id] |= _of_metric(op, columns)
        if (groups := groups_of(plan, op.phase)) and _of_groups(op):
            clauses[op.id] |= {groups}
    ids = {op.key: op.id for op in plan.outputs}
    formulas = {op.id: op for op in plan.formulas}
    instead = {op.key: ids[op.prefer] for op in plan.metrics if op.prefer is not None}
    for id in ordered(needs(plan.outputs))[0]:
        if id in formulas:
            of_metrics = {
                key: _either(clauses[other], clauses[instead[key]]) if key in instead else clauses[other]
                for key, other in ids.items()
            }
            clauses[id] |= _clauses(formulas[id].expr, "", of_metrics)
    return clauses


def values_of(plan: Plan, phase: str) -> Iterator[Clauses]:
    """The needs of each metric of a phase, and of each column of its tables."""
    columns = _columns(plan)
    for op in plan.metrics:
        if op.phase == phase:
            yield _of_metric(op, columns)
    for table in plan.tables:
        yield from (_of(column, phase, columns) for column in table.columns if table.phase == phase)


def conditions_of(plan: Plan, phase: str) -> Iterator[tuple[Clauses, Clauses]]:
    """The needs of the expression of each metric of a phase, and those of its condition, label and weight beside it."""
    columns = _columns(plan)
    for op in plan.metrics:
        if op.phase == phase:
            yield _of_metric(replace(op, where=None, by=None, weight=None), columns), _of(op.clauses, phase, columns)


def columns_of_user(plan: Plan) -> dict[str, dict[str, Clauses]]:
    """The needs of each column that the user's own lines put into a table, by table."""
    columns, needs = _columns(plan), dict[str, dict[str, Clauses]]()
    for table in plan.tables:
        for column in table.columns:
            if (table.id, column.id) in plan.user_columns:
                needs.setdefault(table.id, {})[column.id] = _of(column, table.phase, columns)
    return needs


def tables_of(plan: Plan, phase: str) -> Iterator[Clauses]:
    """The needs of each table of a phase: of its columns and its filter."""
    columns = _columns(plan)
    yield from (_of(table, phase, columns) for table in plan.tables if table.phase == phase)


def groups_of(plan: Plan, phase: str) -> Clause:
    """The signals that identify groups, of which one is enough; empty if groups need no signal."""
    grouping = plan.grouping
    return () if grouping is None or grouping.size is not None else tuple(Need(phase, name) for name in grouping.of)


def of_groups(plan: Plan, phase: str) -> set[str]:
    """The ids of the metrics that have no value unless the rows of a phase have groups, also through formulas."""
    return with_readers(plan, (op.id for op in plan.metrics if op.phase == phase and _of_groups(op)))


def tables_of_groups(plan: Plan, phase: str) -> list[TableOp]:
    """The tables that have no rows unless the rows of a phase have groups."""

    def chosen(filter: FilterOp) -> bool:
        nodes = walk(*filter.reads.values())
        return filter.axis is Axis.GROUP or "group" in filter.within or any(map(reads_groups, nodes))

    return [
        op for op in plan.tables
        if op.phase == phase
        and (op.axis is Axis.GROUP or (op.filter is not None and any(map(chosen, op.filter.chain))))
    ]  # fmt: skip


def with_readers(plan: Plan, ids: Iterable[str]) -> set[str]:
    """The ids of some metrics, and of all metrics that need one of them."""
    readers, needed = set(ids), needs(plan.outputs)
    for id in ordered(needed)[0]:
        if not readers.isdisjoint(needed[id]):
            readers.add(id)
    return readers


def readers_of_joins(plan: Plan) -> dict[str, list[object]]:
    """The readers of each join's column, by name of the join: metrics, tables and other columns."""
    of_phases = [op for phase in plan.phases.values() for op in phase.locals]
    ops = [*plan.metrics, *plan.tables, *plan.previous, *plan.joins, *of_phases] if plan.joins else []
    readers = [(op, carried(op)) for op in ops]
    return {join.name: [op for op, names in readers if join.name in names] for join in plan.joins}


def needs_of_joins(plan: Plan) -> dict[str, list[Clauses]]:
    """The needs of each join's readers in the rows' phase, by name of the join. Only metrics have needs here."""
    columns, targets = _columns(plan), {join.name: join.target for join in plan.joins}

    def needs(op: object, phase: str) -> Clauses:
        clauses = _of_metric(op, columns) if isinstance(op, MetricOp) else NOTHING
        return frozenset(clause for clause in clauses if all(need.phase == phase for need in clause))

    return {name: [needs(op, targets[name]) for op in ops] for name, ops in readers_of_joins(plan).items()}


def stand_ins(plan: Plan) -> dict[str, list[MetricOp]]:
    """The preferred metrics of each join's readers, by name of the join, if all readers are metrics with `prefer`."""
    by_key = {op.key: op for op in plan.metrics}
    stand: dict[str, list[MetricOp]] = {}
    for name, readers in readers_of_joins(plan).items():
        preferred = [by_key.get(str(op.prefer)) if isinstance(op, MetricOp) else None for op in readers]
        if preferred and None not in preferred:
            stand[name] = [op for op in preferred if op is not None]
    return stand


def carried(op: object) -> set[str]:
    """The names of the columns that an op reads from other phases, and from the previous step."""
    return {str(node.param("name")) for node in walk(*expressions(op)) if node.op == CARRIED}


def _columns(plan: Plan) -> dict[str, Clauses]:
    """The needs of each computed column: folds, texts, values of other phases and of the previous step."""
    columns: dict[str, Clauses] = {}
    for phase in plan.phases.values():
        columns |= {fold.name: _of(fold, phase.name, columns) for fold in phase.folds}
        columns |= {op.name: _of(op.expr, phase.name, columns) for op in phase.locals}
    columns |= {op.name: _of(op.expr, op.source, columns) for op in plan.joins}
    return columns | {op.name: _of(op.expr, op.phase, columns) for op in plan.previous}


def _of_metric(op: MetricOp, columns: Mapping[str, Clauses]) -> Clauses:
    """The needs of a metric, without the signals of groups."""
    return _of(op, op.phase, columns).union(*(columns[name] for name in (op.fold, op.tokens) if name))


def _of(value: object, phase: str, columns: Mapping[str, Clauses]) -> Clauses:
    """The needs of all expressions of an op in a phase."""
    return NOTHING.union(*(_clauses(node, phase, columns) for node in expressions(value)))


def _clauses(node: Node, phase: str, columns: Mapping[str, Clauses]) -> Clauses:
    """The signals without which an expression has no value; for the two sides of an `if`, one is enough."""
    if node.op == SIGNAL:
        return frozenset({(Need(phase, str(node.param("name"))),)})
    if node.op in (FOLD, TEXTVALUE, CARRIED, METRIC):
        return columns.get(str(node.param("name")), NOTHING)
    if node.op == PRESENT or (node.op in ("and", "or") and asks(node)):
        return NOTHING
    parts = [_clauses(arg, phase, columns) for arg in node.args]
    if node.op == "if" and (asks(node.args[0]) or node.args[0].type.axis in (None, Axis.STEP, Axis.ALL)):
        return parts[0] | _either(parts[1], parts[2])
    return NOTHING.union(*parts)


def _either(one: Clauses, other: Clauses) -> Clauses:
    """The signals without which neither of two values comes."""
    both = {tuple(sorted({*clause, *second})) for clause in one for second in other}
    return frozenset(both) if len(both) <= MOST else NOTHING


def _of_groups(op: MetricOp) -> bool:
    """Whether a metric has no value unless groups are identified."""
    return op.axis is Axis.GROUP or any(map(reads_groups, walk(*expressions(op))))
