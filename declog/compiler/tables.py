"""Tables: their columns, their rows, and their sinks."""

from __future__ import annotations

from dataclasses import replace

from declog.compiler.draft import Draft, needs_axis, op_of
from declog.compiler.filters import filter_of
from declog.compiler.fixes import suggestions
from declog.compiler.schemas import coarser, columns, of_schema, of_table
from declog.errors import in_flow
from declog.language import notation
from declog.language.dtypes import AXES, Axis, DType, per
from declog.language.fixes import unparsable
from declog.language.nodes import reads_other_ranks
from declog.language.spec_of_tables import TableSpec
from declog.plans.ops import ColumnOp, FilterOp, TableOp
from declog.sinks import known_kinds


def tables(draft: Draft) -> None:
    """Compile every table: its filter, its columns, its sinks."""
    used = {table for profile in draft.profiles.values() for table in profile.tables}
    for name, spec in draft.active("tables").items():
        table = _table(draft, name, spec)
        if table is None:
            continue
        if name not in used:
            draft.inactive[f"tables.{name}"] = f"no active profile ({', '.join(sorted(draft.profiles))}) shows it"
        elif not table.sinks and not draft.requested:
            draft.inactive[f"tables.{name}"] = "no sink takes it"
            if draft.sinks:
                draft.warn(f"tables.{name}: no sink takes this table; {_untaken(draft, name, spec)}")
        else:
            draft.tables.append(table)
    for schema in draft.spec.schemas:
        if all(spec.schema_ != schema for spec in draft.spec.tables.values()):
            columns(draft, of_schema(draft, schema), Axis.COMPLETION)
    keeping = [table for table in draft.tables if any(column.keeps for column in table.columns)]
    for table in keeping:
        if table.phase != keeping[0].phase:
            draft.warn(
                f"tables.{table.id}: columns of log_extra belong to rows of phase `{keeping[0].phase}`, "
                f"and this table's are of phase `{table.phase}`: it gets none"
            )


def _untaken(draft: Draft, name: str, spec: TableSpec) -> str:
    """An edit that gives a table a sink."""
    named = [sink for sink, on in spec.to.items() if on]
    if named and not any(sink in draft.spec.sinks for sink in named):
        return "its `to:` names no sink that is there"
    showing = {sink.id for sink in draft.sinks if name in draft.profiles[sink.profile].tables}
    if showing and not any("table" in sink.accepts for sink in draft.sinks):
        return f"{', '.join(sorted(showing))} {'takes' if len(showing) == 1 else 'take'} no tables"
    return "add one that takes tables, or `enabled: false`"


def _table(draft: Draft, name: str, spec: TableSpec) -> TableOp | None:
    path = ("tables", name)
    before = len(draft.problems)
    axis = AXES[spec.rows]
    if spec.rows == "group" and draft.grouping is None:
        draft.report("DL306.group_key", (*path, "rows"), key="rows")
    if spec.schema_ is not None and spec.schema_ not in draft.spec.schemas:
        declare = suggestions.of_schema(draft, spec.schema_)
        draft.report("DL403.schema", (*path, "schema"), name=spec.schema_, fix=declare)
    chosen = None
    if spec.filter is not None:
        id = filter_of(draft, name)
        if isinstance(spec.filter, str) and id not in draft.spec.filters:
            word = id.rstrip("0123456789")  # `worst_8`
            if id in notation.ALL_ROWS:
                draft.report("DL403.all_rows", (*path, "filter"), name=id)
            elif (fix := unparsable.of_filter(f"{word.rstrip('_')} {id.removeprefix(word) or 4}")) is not None:
                draft.report("DL403.filter", (*path, "filter"), name=id, fix=fix)
            else:
                draft.report("DL403.name", (*path, "filter"), noun="filter", name=id, known=draft.spec.filters)
        chosen = draft.filters.get(id)
        if f"filters.{id}" in draft.inactive:
            draft.inactive[f"tables.{name}"] = f"its filter `{id}` is off"
            return None
    for one in chosen.chain if chosen is not None else ():
        _fits_rows(draft, name, one, axis)
    takers = _takers(draft, name, spec)
    every = draft.window(spec.every, *path, "every")
    ops = columns(draft, of_table(draft, name), axis)
    if len(draft.problems) > before:
        return None
    if spec.as_ == "trace" and all(
        (column.type is not DType.OBJECT and column.role is None) or column.undeclared for column in ops
    ):
        draft.report("DL203.trace", (*path, "as"), schema=spec.schema_ or name)
        return None
    phase = _phase(draft, name, axis, ops, chosen)
    table = op_of(
        TableOp, spec, id=name, name=spec.name or name, axis=axis, columns=ops, filter=chosen, every=every,
        phase=phase, sinks=takers, as_trace=spec.as_ == "trace",
    )  # fmt: skip
    per_rank = frozenset(sink.id for sink in draft.sinks if sink.ranks == "each") & set(takers)
    return replace(table, local=per_rank) if per_rank and _stands_alone(draft, table) else table


def _stands_alone(draft: Draft, table: TableOp) -> bool:
    """Whether a rank can write its own rows: all of them, at each log event, without a look at other ranks."""
    split = draft.split_groups
    nodes = [node for column in table.columns for node in column.nodes]
    far = any(node.type.phase not in (None, table.phase) or reads_other_ranks(node, split) for node in nodes)
    plain = table.filter is None and table.keep == "window" and table.every == draft.period
    return plain and not far and not (split and table.axis is Axis.GROUP)


def _fits_rows(draft: Draft, table: str, op: FilterOp, axis: Axis) -> None:
    """Report a filter that does not choose rows of the table's axis, or reads more than one value for each row."""
    path = ("tables", table, "filter")
    if op.take == "group" and axis is Axis.STEP:
        draft.report("DL310.filter_rows", path, filter=op.id, table=table, row=axis.row, does="takes groups",
                     fix="without `take`")  # fmt: skip
    for field, node in op.reads.items():
        if not needs_axis(node.type, axis) and op.take == "row":
            draft.report(
                "DL310.filter_axis", path, filter=op.id, field=field, axis=per(node.type.axis), table=table,
                row=axis.row, expr=in_flow(coarser(draft, node, axis)),
            )  # fmt: skip
    if "group" in op.within and axis is not Axis.COMPLETION:
        draft.report("DL310.filter_rows", path, filter=op.id, table=table, row=axis.row,
                     does="chooses within a group", fix="with `within: step`")  # fmt: skip


def _takers(draft: Draft, name: str, spec: TableSpec) -> tuple[str, ...]:
    able = {sink.id for sink in draft.sinks if "table" in sink.accepts and name in draft.profiles[sink.profile].tables}
    for sink, on in spec.to.items():
        if sink not in draft.spec.sinks:
            if not on or sink in draft.spec.sink_options:  # an option of a sink that is not opened
                continue
            at = ("tables", name, "to", sink)
            if sink in known_kinds():
                draft.report("DL403.sink_to_add", at, name=sink)
            else:
                draft.report("DL403.name", at, noun="sink", name=sink, known=draft.spec.sinks)
        elif on and any(op.id == sink and "table" not in op.accepts for op in draft.sinks):
            draft.report("DL405.tables", ("tables", name, "to", sink), sink=sink)
    by_default = not any(spec.to.values())
    return tuple(sorted(sink for sink in able if spec.to.get(sink, by_default)))


def _phase(draft: Draft, name: str, axis: Axis, columns: tuple[ColumnOp, ...], chosen: FilterOp | None) -> str:
    """The phase whose rows a table has: the latest that it reads; values of earlier ones are looked up."""
    readers: dict[str, dict[str, None]] = {}  # by phase, who reads a value of it
    chain = chosen.chain if chosen is not None else ()
    tokens = set()  # the phases of values per token, which cannot be looked up
    for column in columns:
        for node in column.nodes:
            readers.setdefault(node.type.phase or "", {})[f"`{column.id}`"] = None
            tokens |= {node.type.phase} - {None} if node.type.axis is Axis.TOKEN else set()
    for op in chain:
        readers.setdefault(op.phase, {})[f"the filter `{op.id}`"] = None
    readers.pop("", None)
    phase = draft.latest(readers, ("tables", name)) if readers else draft.default_phase
    fixed = axis is not Axis.COMPLETION or any(op.take == "group" for op in chain)
    if len(readers) > 1 and (fixed or tokens - {phase}):
        texts = {phase: ", ".join(names) for phase, names in sorted(readers.items())}
        phases = " and ".join(f"{text} of `{phase}`" for phase, text in texts.items())
        fewest = texts[min(texts, key=lambda phase: len(readers[phase]))]
        draft.report("DL313.table", ("tables", name), name=name, phases=phases, fewest=fewest)
    return phase
