"""`by: group`: an axis is no label. One value per group is an expression, and the answer writes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from declog.compiler.draft import Draft, SwitchedOff
from declog.compiler.scopes import SignalScope
from declog.errors import Path, in_flow
from declog.language.dtypes import AXES, Axis
from declog.language.expression import compile_expression
from declog.language.functions import BUILTIN
from declog.language.nodes import Node
from declog.language.notation import reduced
from declog.language.spec import MetricSpec
from declog.language.syntax import ExpressionError

Entry = dict[str, Any]  # the keys of a metric
_INSIDE = {Axis.GROUP: Axis.COMPLETION, Axis.COMPLETION: Axis.TOKEN}  # over which there is one value per axis
_CALL = re.compile(r"\b(\w+)\(([^()]+)\)")


def refuse_axis(draft: Draft, id: str, spec: MetricSpec, compiles: Callable[[MetricSpec], bool]) -> bool:
    """Whether a label of a metric is an axis, which is reported; ``compiles`` tries a metric that may be the answer."""
    texts = [spec.by] if isinstance(spec.by, str) else spec.by or []
    for index, text in enumerate(texts):
        axis = AXES.get(text.strip())
        if axis is None or (axis is Axis.GROUP and not _tells_groups_apart(draft)):
            continue
        entries = _entries(draft, axis, id, spec, [*texts[:index], *texts[index + 1 :]])
        tried = (entry for entry in entries if draft.grouping is None or compiles(MetricSpec.model_validate(entry)))
        entry = next(tried, None)
        inside = _INSIDE.get(axis, axis).label
        fix = f"its expr says so, such as mean(x, over={inside})" if entry is None else f"{id}: {in_flow(entry)}"
        path: Path = ("metrics", id, "by") if isinstance(spec.by, str) else ("metrics", id, "by", index)
        draft.report("DL310.axis_label", path, axis=axis.label, fix=fix)
        return True
    return False


def _tells_groups_apart(draft: Draft) -> bool:
    """Whether `group` is the axis, also where a signal of that name has the groups' ids."""
    grouping = draft.grouping
    of_axis = grouping is not None and (grouping.size is not None or Axis.GROUP.label in grouping.of)
    return of_axis or Axis.GROUP.label not in draft.signals


def _entries(draft: Draft, axis: Axis, id: str, spec: MetricSpec, labels: list[str]) -> Iterator[Entry]:
    """The metric without the axis among its ``labels``: what may have one value per ``axis``, the simplest first."""
    entry = spec.model_dump(exclude_defaults=True, exclude={"by"} if labels else {"by", "max_labels"}, by_alias=True)
    dropped = [axis.label] if labels else [axis.label, "label"]
    if labels:
        entry["by"] = labels if len(labels) > 1 else labels[0]
    entry = _renamed(entry, dict.fromkeys(dropped, ""))
    if axis is Axis.STEP:
        yield {**entry, "over": entry.get("over", "step")}
    elif axis is Axis.TOKEN:
        yield entry
    else:
        yield from _per(draft, axis, id, entry)
        if labels:  # those of completions are no labels of a group
            by = [f"first({label}, over={_INSIDE[axis].label})" for label in labels]
            names = dict(zip(labels, ["/{label}", *[""] * len(labels)], strict=False))
            yield from _per(draft, axis, id, {**_renamed(entry, names), "by": by if len(by) > 1 else by[0]})


def _renamed(entry: Entry, fields: Mapping[str, str]) -> Entry:
    """An entry whose names have other text in place of some fields, and what is before those."""

    def renamed(template: str) -> str:
        for name, text in fields.items():
            template = re.sub(rf"[/_. -]?\{{{re.escape(name)}\}}", text, template)
        return template or "{id}"

    name, alias = entry.get("name"), entry.get("alias")
    names = {"name": name and renamed(name), "alias": alias and [*map(renamed, alias)]}
    return entry | {key: value for key, value in names.items() if value}


def _per(draft: Draft, axis: Axis, id: str, entry: Entry) -> Iterator[Entry]:
    """A metric of one value per group or completion: what it reduced over all rows it computes over those of one."""
    rest = {key: value for key, value in entry.items() if key not in ("expr", "reduce")}
    text, reduce = str(entry.get("expr", id)), entry.get("reduce", "mean")
    said = reduced(text) if "reduce" not in entry else None
    if said is not None and isinstance(said["expr"], str):
        text, reduce = said["expr"], said["reduce"]
    node = _typed(draft, text)
    if node is not None and (node.type.axis is None or node.type.axis <= axis):
        yield entry
        return
    function = BUILTIN.get(reduce) if isinstance(reduce, str) else None
    one = reduce if function is not None and function.stage == "aggregate" else "mean"
    kept = {} if one == reduce else {"reduce": reduce}
    inside = _INSIDE[axis].label
    if node is None:  # reductions inside of an expression
        yield {"expr": _CALL.sub(rf"\1(\2, over={inside})", text), **rest}
        return
    if node.type.axis is Axis.TOKEN and axis is Axis.GROUP:
        text = f"mean({text}, over=token)"
    yield {"expr": f"{one}({text}, over={inside})", **kept, **rest}
    if "where" in rest:
        where, further = rest["where"], {key: value for key, value in rest.items() if key != "where"}
        for value in (text, f"(1 if {text} else 0)"):
            yield {"expr": f"{one}({value} if {where} else missing, over={inside})", **kept, **further}


def _typed(draft: Draft, text: str) -> Node | None:
    try:
        return compile_expression(text, SignalScope(draft), draft.graph, draft.functions)
    except (ExpressionError, SwitchedOff):
        return None
