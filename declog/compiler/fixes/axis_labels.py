"""Refuse an axis as a label, `by: group`. The fix writes the expression that has one value per group."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from declog.compiler.draft import Draft
from declog.compiler.scopes import tried
from declog.errors import in_flow
from declog.language.dtypes import AXES, Axis
from declog.language.notation import reduced
from declog.language.spec import MetricSpec

Entry = dict[str, Any]  # the keys of a metric
_INSIDE = {Axis.GROUP: Axis.COMPLETION, Axis.COMPLETION: Axis.TOKEN}  # the axis to reduce over, for one value per key
_CALL = re.compile(r"\b(\w+)\(([^()]+)\)")


def refuse_axis(draft: Draft, id: str, spec: MetricSpec, compiles: Callable[[MetricSpec], bool]) -> bool:
    """Whether the metric's `by` names an axis, which is reported.

    The fix is the first candidate that ``compiles`` accepts; in a config without groups, the first candidate.
    """
    texts = [spec.by] if isinstance(spec.by, str) else spec.by or []
    axes = {text: AXES[text.strip()] for text in texts if text.strip() in AXES}
    if not _tells_groups_apart(draft):
        axes = {text: axis for text, axis in axes.items() if axis is not Axis.GROUP}
    if not axes:
        return False
    finest = max(axes.values())
    entries = _entries(draft, finest, id, spec, axes)
    right = (entry for entry in entries if draft.grouping is None or compiles(MetricSpec.model_validate(entry)))
    entry = next(right, None)
    inside = _INSIDE.get(finest, finest).label
    example = f"its expr says so, such as mean(x, over={inside})"
    fix = example if entry is None else f"metrics: {in_flow({id: entry})}"
    draft.report("DL310.axis_label", ("metrics", id, "by"), axis=finest.label, fix=fix)
    return True


def _tells_groups_apart(draft: Draft) -> bool:
    """Whether `group` means the axis: groups have a size or the ids of a signal `group`, or no signal has this name."""
    grouping = draft.grouping
    of_axis = grouping is not None and (grouping.size is not None or Axis.GROUP.label in grouping.of)
    return of_axis or Axis.GROUP.label not in draft.signals


def _entries(draft: Draft, axis: Axis, id: str, spec: MetricSpec, axes: Mapping[str, Axis]) -> Iterator[Entry]:
    """Candidates for a metric with one value per ``axis`` and without the ``axes`` in its `by`, the simplest first."""
    labels = [text for text in ([spec.by] if isinstance(spec.by, str) else spec.by or []) if text not in axes]
    entry = spec.model_dump(exclude_defaults=True, exclude={"by"} if labels else {"by", "max_labels"}, by_alias=True)
    dropped = [*axes, *([] if labels else ["label"])]
    if labels:
        entry["by"] = labels if len(labels) > 1 else labels[0]
    entry = _renamed(entry, dict.fromkeys(dropped, ""))
    if Axis.STEP in axes.values():
        over = entry.get("over", "step")
        entry["over"] = "run_step" if over == "run" else "step" if over == "window" else over
    if axis in (Axis.STEP, Axis.TOKEN):
        yield entry
        return
    yield from _per(draft, axis, id, entry)
    if labels:  # a label per completion is no label of a group: take the first
        by = [f"first({label}, over={_INSIDE[axis].label})" for label in labels]
        names = dict(zip(labels, ["/{label}", *[""] * len(labels)], strict=False))
        yield from _per(draft, axis, id, {**_renamed(entry, names), "by": by if len(by) > 1 else by[0]})


def _renamed(entry: Entry, fields: Mapping[str, str]) -> Entry:
    """The entry with new text in its names for some fields, each replaced together with the separator before it."""

    def renamed(template: str) -> str:
        for name, text in fields.items():
            template = re.sub(rf"[/_. -]?\{{{re.escape(name)}\}}", text, template)
        return template or "{id}"

    name, alias = entry.get("name"), entry.get("alias")
    names = {"name": name and renamed(name), "alias": alias and [*map(renamed, alias)]}
    return entry | {key: value for key, value in names.items() if value}


def _per(draft: Draft, axis: Axis, id: str, entry: Entry) -> Iterator[Entry]:
    """Candidates for a metric with one value per ``axis``: its expression reduces the rows of each group or completion.

    A key that moved into the expression becomes `mean` or null, and is not left out: the fix may be merged into an
    entry that has this key.
    """
    rest = {key: value for key, value in entry.items() if key not in ("expr", "reduce")}
    text, reduce = str(entry.get("expr", id)), entry.get("reduce", "mean")
    said = reduced(text) if "reduce" not in entry else None
    if said is not None and isinstance(said["expr"], str):
        text, reduce = said["expr"], said["reduce"]
    node = tried(draft, text)
    if node is not None and (node.type.axis is None or node.type.axis <= axis):
        yield entry
        return
    function = draft.functions.get(reduce) if isinstance(reduce, str) else None
    one = reduce if function is not None and function.stage == "aggregate" else "mean"
    kept = {} if one == reduce else {"reduce": reduce}
    if one == reduce != "mean" and "reduce" in entry:
        kept = {"reduce": "mean"}
    of_tokens = axis is Axis.GROUP and (node is None or node.type.axis is Axis.TOKEN)
    ways = [[_INSIDE[axis]]] if node is None or not of_tokens else []
    ways += [[Axis.TOKEN, Axis.COMPLETION]] if of_tokens else []
    where, weight = rest.get("where"), rest.get("weight") if one == "mean" else None
    for folded in ([], ["where"]) if where is not None else ([],):
        condition = where if folded else None
        further = {key: value for key, value in rest.items() if key not in folded} | dict.fromkeys(folded)
        for way in ways:
            if node is None:  # reductions inside of an expression
                calls = _CALL.sub(lambda call: _over(call[1], _where(call[2], condition), way), text)  # noqa: B023
                yield {"expr": calls, **kept, **further}
                continue
            for value in (text, f"(1 if {_operand(text)} else 0)") if condition else (text,):
                yield {"expr": _over(one, _where(value, condition), way), **kept, **further}
                if weight is None:
                    continue
                weighed = _where(f"{_operand(value)} * {_operand(weight)}", condition)
                weights = _where(f"{_operand(weight)} if present({value}) else missing", condition)
                mean = " / ".join(_over("sum", part, way) for part in (weighed, weights))
                yield {"expr": mean, **kept, **further, "weight": None}


def _over(reduction: str, inside: str, axes: list[Axis]) -> str:
    """A reduction over the last axis, of means over each axis before it; a sum is of sums."""
    *finer, last = axes
    for axis in finer:
        inside = f"{'sum' if reduction == 'sum' else 'mean'}({inside}, over={axis.label})"
    return f"{reduction}({inside}, over={last.label})"


def _where(value: str, condition: str | None) -> str:
    """The value where a condition holds, else `missing`; without a condition, the value."""
    if condition is None:
        return value
    inside = _operand(value) if " if " in value else value
    return f"{inside} if {_operand(condition) if ' if ' in condition else condition} else missing"


def _operand(text: str) -> str:
    """The text as an operand: in parentheses, if it needs them."""
    return text if re.fullmatch(r"[\w.]+|\w*\([^()]*\)", text) else f"({text})"
