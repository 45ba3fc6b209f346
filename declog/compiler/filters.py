"""Compile filters: type their keys and conditions, each filter after the filter in its `from`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import get_args

from declog.compiler.draft import Draft, SwitchedOff, fits, op_of
from declog.compiler.scopes import signal_node, typed
from declog.errors import Path, Problem, in_flow, nearest
from declog.language.dtypes import NUMERIC, Axis, DType
from declog.language.fixes import unparsable
from declog.language.fixes.wrong_forms import in_one_way
from declog.language.nodes import Node
from declog.language.notation import as_label
from declog.language.phases import labels
from declog.language.spec_of_tables import FilterSpec, Within
from declog.plans.ops import FilterOp

# The keys that choose rows, by the kind of filter; a filter without any of them takes all rows.
KINDS: Mapping[str, tuple[str, ...]] = {
    "top_bottom": ("top", "bottom"), "first": ("first",), "random": ("random",), "fraction": ("fraction",),
    "unique": ("unique",),
}  # fmt: skip
_LABELS = (DType.TEXT, DType.INT, DType.BOOL)
_LONGER = ("epoch", "run", "all", "every")  # words for more steps than a window has


def filters(draft: Draft) -> None:
    """Compile every filter, after the filter in its `from`."""
    for name in specs_of(draft):
        _visit(draft, name, ())


def specs_of(draft: Draft) -> dict[str, tuple[FilterSpec, Path]]:
    """The filters by id, each with its path; filters that are written in a table come last."""
    named: dict[str, tuple[FilterSpec, Path]]
    named = {name: (spec, ("filters", name)) for name, spec in draft.spec.filters.items()}
    for table, spec in draft.spec.tables.items():
        if isinstance(spec.filter, FilterSpec):
            named[filter_of(draft, table)] = spec.filter, ("tables", table, "filter")
    return named


def filter_of(draft: Draft, table: str) -> str:
    """The id of a table's filter; empty without a filter.

    A filter that is written in the table has the table's id, or, if another filter has this id, `<table>_filter`.
    """
    spec = draft.spec.tables[table].filter
    if isinstance(spec, FilterSpec):
        return table if table not in draft.spec.filters else f"{table}_filter"
    return spec or ""


def _visit(draft: Draft, name: str, above: tuple[str, ...]) -> FilterOp | None:
    """Compile a filter after its source; ``above`` are the filters that wait for it. None if it is wrong or off."""
    if name in draft.filters or f"filters.{name}" in draft.inactive:
        return draft.filters.get(name)
    spec, path = specs_of(draft)[name]
    if name in above:
        draft.report("DL309.filters", (*path, "from"), circle=" -> ".join([*above, name]))
        return None
    source = None
    if spec.from_ is not None and spec.from_ not in draft.spec.filters:
        draft.report("DL403.name", (*path, "from"), noun="filter", name=spec.from_, known=draft.spec.filters)
    elif spec.from_ is not None:
        source = _visit(draft, spec.from_, (*above, name))
        if f"filters.{spec.from_}" in draft.inactive:
            draft.inactive[f"filters.{name}"] = f"the filter `{spec.from_}`, which it filters, is off"
            return None
    before = len(draft.problems)
    kind = _kind(draft, spec, path)
    ordered = ("unique", tuple(DType)) if kind == "unique" else ("key", NUMERIC)
    key_node, where = (
        _row_value(draft, name, spec, vars(spec)[key], (*path, key), dtypes)
        for key, dtypes in (ordered, ("where", (DType.BOOL,)))
    )
    words, label = _within(draft, name, spec, path)
    if len(draft.problems) > before or f"filters.{name}" in draft.inactive:
        return None
    phases = {node.type.phase for node in (key_node, where, label) if node is not None and node.type.phase}
    draft.filters[name] = op_of(
        FilterOp, spec, id=name, phase=draft.latest(phases, path) if phases else "", source=source, kind=kind,
        key=key_node, where=where, within=words, label=label, n=spec.first or spec.random or 0,
        fraction=spec.fraction or 0.0,
    )  # fmt: skip
    return draft.filters[name]


def _kind(draft: Draft, spec: FilterSpec, path: Path) -> str:
    """The kind of a filter, by the keys that it has; keys that do not go together are reported."""
    fields = FilterSpec.model_fields
    said = {kind: [key for key in keys if vars(spec)[key] != fields[key].default] for kind, keys in KINDS.items()}
    ways = {kind: names for kind, names in said.items() if names}
    kind, names = next(iter(ways.items()), ("all", []))
    if len(ways) > 1:
        other = list(ways.values())[1][0]
        rows = spec.model_dump(exclude_unset=True, by_alias=True)
        edits = [f"{path[-1]}: {in_flow(in_one_way(key, rows, reset=True))}" for key in (other, names[0])]
        draft.report("DL202.filter_ways", (*path, other), one=names[0], other=other, fix="  or  ".join(edits))
    elif spec.key is None and kind == "top_bottom":
        draft.report("DL203.filter_key", path, key=names[0], order=_order_of(draft, path))
    elif spec.key is not None and kind == "all":
        draft.report("DL203.top_bottom", path)
    elif spec.key is not None and kind != "top_bottom":
        draft.report("DL202.filter_key", (*path, "key"), other=names[0])
    elif kind == "all" and spec.where is None and spec.from_ is None:
        draft.report("DL203.filter", path)
    return kind


def _order_of(draft: Draft, path: Path) -> str:
    """The name by which a filter without a `key` probably orders rows: a number of each row that its table shows."""
    table = draft.spec.tables.get(str(path[1])) if path[0] == "tables" else None
    numbers = []
    for name in table.columns if table is not None else []:
        with suppress(SwitchedOff):
            node = signal_node(draft, name) if name in draft.signals else None
            if isinstance(node, Node) and node.type.dtype in NUMERIC and node.type.axis is Axis.COMPLETION:
                numbers.append(name)
    return "reward" if "reward" in numbers else next(iter(numbers), "reward")


def _within(draft: Draft, name: str, spec: FilterSpec, path: Path) -> tuple[tuple[str, ...], Node | None]:
    """The scopes in a filter's `within`, except `window`, and the label of rows: one, or a combination of several."""
    at = (*path, "within")
    texts = (
        {at: spec.within} if isinstance(spec.within, str) else {(*at, i): text for i, text in enumerate(spec.within)}
    )
    words = [text for text in texts.values() if text in get_args(Within)]
    if draft.grouping is None:
        for key in [key for key, said in (("within", words), ("take", [spec.take])) if "group" in said]:
            draft.report("DL306.group_key", (*path, key), key=key)
    elif spec.take == "group" and "group" in words:
        draft.report("DL202.take_within", at)
    values = {at: text for at, text in texts.items() if text not in words}
    before = len(draft.problems)
    parts = [_row_value(draft, name, spec, text, at, _LABELS) for at, text in values.items()]
    draft.problems[before:] = map(_of_scope, draft.problems[before:])
    nodes, label = [node for node in parts if node is not None], None
    with draft.at(*at):
        label = labels(draft.graph, nodes, draft.order) if len(nodes) > 1 else next(iter(nodes), None)
    return tuple(word for word in words if word != "window"), label


def _of_scope(problem: Problem) -> Problem:
    """The problem of a label with the fix that is meant: a scope, a list of labels, or a signal to declare."""
    text = problem.source or ""
    if text in _LONGER:
        return replace(problem, fix="within: window, and `every` of the table: steps of an epoch")
    if problem.marked == text and (near := nearest(text, get_args(Within))) is not None:
        return replace(problem, fix=f"did you mean `{near}`?")
    if re.fullmatch(r"\w+(, *\w+)+", text):
        return replace(problem, fix=f"within: [{text}]")
    return replace(problem, fix=as_label(problem.fix))


def _row_value(
    draft: Draft, name: str, spec: FilterSpec, text: str | None, at: Path, dtypes: tuple[DType, ...]
) -> Node | None:
    """The typed expression of a key, with a value for each row, or for each group if the filter takes groups."""
    before = len(draft.problems)
    node = None if text is None else typed(draft, text, *at, off=f"filters.{name}")
    if (wrong := draft.problems[before:]) and (fix := unparsable.of_filter(str(text))) is not None:
        draft.problems[before:] = [replace(problem, fix=f"a filter is a map: {fix}") for problem in wrong]
    axis, what = (Axis.GROUP, "the filter takes what is") if spec.take == "group" else (Axis.COMPLETION, "rows are")
    return node if node is not None and fits(draft, node, at, dtypes, axis, what) else None
