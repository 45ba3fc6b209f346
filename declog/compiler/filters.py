"""Filters: their keys and conditions, typed, each after the one it filters."""

from __future__ import annotations

from collections.abc import Mapping

from declog.compiler.draft import Draft, fits, op_of
from declog.compiler.scopes import typed
from declog.errors import Path
from declog.language.dtypes import NUMERIC, Axis, DType
from declog.language.nodes import Node
from declog.language.spec_of_tables import FilterSpec
from declog.plans.ops import FilterOp

# The keys that choose rows, by the kind of filter that they make; without any of them it takes all rows.
KINDS: Mapping[str, tuple[str, ...]] = {
    "top_bottom": ("top", "bottom"), "first": ("first",), "random": ("random",), "fraction": ("fraction",),
    "unique": ("unique",),
}  # fmt: skip


def filters(draft: Draft) -> None:
    """Every filter, after the one it filters; those that stand in a table, after the others."""
    for name in draft.spec.filters:
        _visit(draft, name, ())
    for table, spec in draft.spec.tables.items():
        if isinstance(spec.filter, FilterSpec):
            _filter(draft, filter_of(draft, table), spec.filter, ())


def filter_of(draft: Draft, table: str) -> str:
    """The id of a table's filter; one that stands in the table has the table's id, where that is free."""
    spec = draft.spec.tables[table].filter
    if isinstance(spec, FilterSpec):
        return table if table not in draft.spec.filters else f"{table}_filter"
    return spec or ""


def path_of(draft: Draft, id: str, *key: str) -> Path:
    """The path of a filter's key; the filter of a table without a name is below its table."""
    if id in draft.spec.filters:
        return ("filters", id, *key)
    return ("tables", id if id in draft.spec.tables else id.removesuffix("_filter"), "filter", *key)


def _visit(draft: Draft, name: str, above: tuple[str, ...]) -> FilterOp | None:
    """A filter, after its source; ``above`` are the filters that wait for it."""
    if name in draft.filters or f"filters.{name}" in draft.inactive:
        return draft.filters.get(name)
    if name in above:
        draft.report("DL309.filters", ("filters", name, "from"), circle=" -> ".join([*above, name]))
        return None
    return _filter(draft, name, draft.spec.filters[name], above)


def _filter(draft: Draft, name: str, spec: FilterSpec, above: tuple[str, ...]) -> FilterOp | None:
    source = None
    if spec.from_ is not None and spec.from_ not in draft.spec.filters:
        draft.report(
            "DL403.name", path_of(draft, name, "from"), noun="filter", name=spec.from_, known=draft.spec.filters
        )
    elif spec.from_ is not None:
        source = _visit(draft, spec.from_, (*above, name))
        if f"filters.{spec.from_}" in draft.inactive:
            draft.inactive[f"filters.{name}"] = f"the filter `{spec.from_}`, which it filters, is off"
            return None
    before = len(draft.problems)
    kind = _kind(draft, name, spec)
    if spec.within == "group" and draft.grouping is None:
        draft.report("DL306.group_key", path_of(draft, name, "within"), key="within")
    if spec.take == "group" and draft.grouping is None:
        draft.report("DL306.group_key", path_of(draft, name, "take"), key="take")
    elif spec.take == "group" and spec.within == "group":
        draft.report("DL202.take_within", path_of(draft, name, "within"))
    if kind == "unique":
        key = _row_value(draft, name, spec, "unique", tuple(DType))
    else:
        key = _row_value(draft, name, spec, "key", NUMERIC)
    where = _row_value(draft, name, spec, "where", (DType.BOOL,))
    if len(draft.problems) > before or f"filters.{name}" in draft.inactive:
        return None
    phases = {node.type.phase for node in (key, where) if node is not None and node.type.phase}
    phase = draft.latest(phases, ("filters", name)) if phases else ""
    draft.filters[name] = op_of(
        FilterOp, spec, id=name, phase=phase, source=source, kind=kind, key=key, where=where,
        n=spec.first or spec.random or 0, fraction=spec.fraction or 0.0,
    )  # fmt: skip
    return draft.filters[name]


def _kind(draft: Draft, name: str, spec: FilterSpec) -> str:
    """How a filter chooses rows, by the keys that it has."""
    fields = FilterSpec.model_fields
    said = {kind: [key for key in keys if vars(spec)[key] != fields[key].default] for kind, keys in KINDS.items()}
    ways = {kind: names for kind, names in said.items() if names}
    kind, names = next(iter(ways.items()), ("all", []))
    if len(ways) > 1:
        other = list(ways.values())[1][0]
        draft.report("DL202.filter_ways", path_of(draft, name, other), one=names[0], other=other)
    elif spec.key is None and kind == "top_bottom":
        draft.report("DL203.filter_key", path_of(draft, name), key=names[0])
    elif spec.key is not None and kind == "all":
        draft.report("DL203.top_bottom", path_of(draft, name))
    elif spec.key is not None and kind != "top_bottom":
        draft.report("DL202.filter_key", path_of(draft, name, "key"), other=names[0])
    elif kind == "all" and spec.where is None and spec.from_ is None:
        draft.report("DL203.filter", path_of(draft, name))
    return kind


def _row_value(draft: Draft, name: str, spec: FilterSpec, field: str, dtypes: tuple[DType, ...]) -> Node | None:
    text, path = vars(spec)[field], path_of(draft, name, field)
    node = None if text is None else typed(draft, text, *path, off=f"filters.{name}")
    axis, what = (Axis.GROUP, "the filter takes what is") if spec.take == "group" else (Axis.COMPLETION, "rows are")
    return node if node is not None and fits(draft, node, path, dtypes, axis, what) else None
