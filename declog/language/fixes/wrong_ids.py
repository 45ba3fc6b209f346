"""Fixes for keys of sections that are no ids, mostly names as trackers show them: `acme/judge`, `KLTooHigh`."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from declog.errors import in_flow
from declog.language.fixes.alert_keys import edit_over_preset
from declog.language.fixes.modes import alert_of_mode, in_mode
from declog.language.fixes.other_tools import named
from declog.language.fixes.tracker_names import Shown, metric_of, of_one_reduction, with_families
from declog.language.fixes.unparsable import spelt
from declog.language.keys import entry_names
from declog.language.notation import SIGNS, bounds, condition, is_reduction, reduced
from declog.language.parser import body_of, called, names_in
from declog.language.spec import IDENTIFIER
from declog.language.tree import map_at


def answer(section: str, key: str, entry: Any, data: Mapping[str, Any]) -> str:
    """The fix for an entry of a section whose key is no id."""
    plain = plain_id(key)
    if (deleted := re.fullmatch(r"~([a-z_]\w*)", key)) is not None:
        return f"{deleted[1]}: null"
    if entry is None and (assigned := re.fullmatch(r"([a-z_]\w*) *= *(\S.*)", key)) is not None:
        return f"{assigned[1]}: {in_flow(assigned[2])}"
    if section == "alerts" and (of := re.fullmatch(r"(\w+) *([<>]=? *\S.*)", key)) is not None:
        return f'{of[1]}: "{of[2]}"'
    if section in ("alerts", "about") and key in entry_names(data, "metrics"):  # the metric's id changes
        return f"{plain}: {in_flow(entry)}"
    if section == "alerts" and (of_metric := _of_metric(key, entry, data)) is not None:
        return of_metric
    if section == "metrics" and (changed := of_one_reduction(key, data["metrics"])) is not None:
        return in_flow(changed)[1:-1]
    if (shown := _changed(section, key, entry, data)) is not None:
        return f"{shown}: {in_flow(entry)}"
    if section in ("metrics", "tables"):
        return in_flow(under_an_id(key, _with_ids(entry, data[section]), entry_names(data, "metrics", "signals")))[1:-1]
    return f"call it `{plain}`"


def of_layers(section: str, key: str, entries: Iterable[Any], data: Mapping[str, Any]) -> Iterator[str]:
    """The fix for each layer that writes an entry whose key is no id, the lowest first.

    The lowest layer's entry gets the id and a `name`; the keys of each other one stay as they are, below that id.
    """
    id = ""
    for entry in entries:
        yield (
            f"{id}: {in_flow(entry)}"
            if id
            else answer(section, key, entry, {**data, section: {**data[section], key: entry}})
        )
        id = plain_id(key)


def plain_id(name: str) -> str:
    """A name as an id: `KLTooHigh` becomes `kl_too_high`, and `parts/share` becomes `parts_share`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    plain = re.sub(r"[^a-z0-9_]+", "_", words.lower()).strip("_") or "id"
    return f"_{plain}" if plain[0].isdigit() else plain


def under_an_id(name: str, entry: Any, ids: Container[str]) -> dict[str, Any]:
    """The entry of a metric or a table with an id of its own and a `name`, by that id.

    The `name` has a field for each reduction and each label. Arithmetic over reductions becomes a formula, with a
    hidden metric for each reduction; ``ids`` are the names that these may not have. An entry that is off stays off.
    """
    id = plain_id(name)
    written = (reduced(entry) or {"expr": entry}) if isinstance(entry, str) else entry
    if not isinstance(written, Mapping):
        return {id: entry}
    shown = named(name, written)
    if not isinstance(expr := written.get("expr"), str) or not written.keys() <= _OF_PARTS | {"expr", "tags", "log"}:
        return {id: {**written, **shown}}
    rows = {key: written[key] for key in written.keys() & _OF_PARTS}
    parts = _Parts(id, ids)
    body = body_of(expr)
    rest = None if body is None or isinstance(body, ast.Call) else parts.visit(body)
    if rest is None or not parts.ids or not names_in(rest) <= {*parts.ids.values()} or parts.refused:
        return {id: {**written, **shown}}
    hidden = {part: {"expr": text, **rows, "log": False} for text, part in parts.ids.items()}
    beside = {key: written[key] for key in ("tags", "log") if key in written}
    return {**hidden, id: {"formula": ast.unparse(rest), **beside, **shown}}


_OF_PARTS = frozenset({"where", "by", "weight", "nan", "every"})  # keys of the metrics that a formula reads


class _Parts(ast.NodeTransformer):
    """Replaces calls of reductions by names of metrics. ``refused``: a call is left that reduces in another way."""

    def __init__(self, id: str, ids: Container[str]) -> None:
        self.ids: dict[str, str] = {}  # the names of the new metrics, by their expressions
        self.refused = False
        self._id, self._taken = id, ids

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Replace a reduction without options by its name; look at the arguments of any other call."""
        text = ast.unparse(node)
        if node.keywords or reduced(text) is None:
            self.refused |= bool(node.keywords) or is_reduction(called(node), max(len(node.args), 1))
            self.generic_visit(node)
            return node
        names = (f"{self._id}_{count}" for count in range(1, 99))
        free = (name for name in names if name not in self._taken and name not in self.ids.values())
        return ast.Name(self.ids.setdefault(text, next(free)))


def _changed(section: str, name: str, entry: Any, data: Mapping[str, Any]) -> str | None:
    """The metric that an entry with a tracker's name changes or describes; None if the entry defines a metric."""
    metrics = map_at(data, "metrics")
    defines = isinstance(entry, str) or (isinstance(entry, Mapping) and entry.keys() & {"expr", "formula", "observe"})
    if section not in ("metrics", "about") or (section == "metrics" and defines):
        return None
    said = in_mode(name, entry_names(data, "modes")) if section == "about" else None
    shown_as = [name] if said is None else [name, said[1]]
    shown = (metric_of({id: item for id, item in metrics.items() if id != name}, one) for one in shown_as)
    return next((one.id for one in shown if one is not None), None)


def _of_metric(name: str, alert: Any, data: Mapping[str, Any]) -> str | None:
    """The fix for an alert with the name that trackers show of a metric or a label: `reward/mean`, `train/reward`."""
    metrics, parts = map_at(data, "metrics"), re.split(r"[/.]", name, maxsplit=1)
    if len(parts) < 2:
        return None
    plain, entries = re.sub(r"[^a-z0-9_]+", "_", name.lower()), with_families(metrics, data)
    shown, said = metric_of(entries, name), in_mode(name, entry_names(data, "modes"))
    text = str(alert.get("when")) if isinstance(alert, Mapping) else ""
    if shown is not None and text.startswith(f"{name} "):
        bound = condition(spelt(text.removeprefix(name)), shown.expression)
        alert = {**bound, **{key: item for key, item in alert.items() if key != "when"}}
    if shown is None and said is not None and (meant := metric_of(entries, said[1])) is not None:
        return alert_of_mode(plain, alert, meant.expression, said[0], metrics) if isinstance(alert, Mapping) else None
    if shown is not None and shown.reduction is None and shown.is_value:
        return _of_name(shown.id, alert, data)
    if shown is not None and isinstance(alert, Mapping) and (when := _condition(shown, alert)) is not None:
        return f"{plain}: {in_flow(when)}"
    metric = parts[0] if parts[0] in metrics else parts[1]
    return _of_name(metric, alert, data) if metric in metrics else None


def _of_name(metric: str, alert: Any, data: Mapping[str, Any]) -> str:
    """The fix that names an alert by its metric, and keeps nothing of a preset's alert on this metric."""
    return f"by its metric: {edit_over_preset(metric, alert, map_at(data, 'alerts').get(metric, ()))}"


def _condition(metric: Shown, alert: Mapping[str, Any]) -> dict[str, Any] | None:
    """The entry of an alert on one value of a metric, with the bounds as a condition; None without bounds."""
    when, rest = bounds(metric.expression, alert), {key: item for key, item in alert.items() if key not in SIGNS}
    return {"when": when, **rest} if when else None


def _with_ids(entry: Any, section: Mapping[Any, Any]) -> Any:
    """Rename the metrics in the formula of an entry to the ids that they get."""
    if not isinstance(entry, Mapping) or not isinstance(formula := entry.get("formula"), str):
        return entry
    for name in sorted((str(key) for key in section if not IDENTIFIER.match(str(key))), key=len, reverse=True):
        formula = formula.replace(name, plain_id(name))
    return {**entry, "formula": formula}
