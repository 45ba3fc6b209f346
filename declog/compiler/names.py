"""The names of a metric in trackers: its template and its aliases, checked."""

from __future__ import annotations

import string
from collections.abc import Set

from declog.compiler.draft import Draft
from declog.errors import Path, did_you_mean, in_flow, nearest
from declog.language.nodes import LOGGED
from declog.language.spec import MetricSpec
from declog.plans.ops import NameOp

RANK = "rank"  # the label that `axes.rank: each` gives
FIELDS = frozenset({"id", "reduce", "member", "label"})


def names_of(
    draft: Draft, id: str, spec: MetricSpec, suffix: str | None, *, family: bool, labels: tuple[str, ...]
) -> tuple[NameOp, ...]:
    """The output names of a reduction: its name template, and its aliases."""
    of_ranks = draft.per_rank and labels == (RANK,)
    fields = {
        "{id}": True,
        "{reduce}": suffix is not None,
        "{member}": family,
        "{label}": bool(labels) and not of_ranks,
    }
    if family and id == LOGGED:  # `log_metric` names its own values
        fields = {"{member}": True, "{reduce}": suffix is not None, "{label}": fields["{label}"]}
    default = "/".join(field for field, there in fields.items() if there)
    if spec.observe is not None and spec.observe.from_ is not None:
        default = default.replace("{id}", spec.observe.from_)

    def filled(template: str, path: Path) -> str:
        if of_ranks and "{label}" not in template:
            template += "/rank{label}"
        check_template(draft, template, path, family=family, labels=labels)
        return template.replace("{id}", id).replace("{reduce}", suffix or "")

    names = [NameOp(template=filled(spec.name or default, ("metrics", id, "name")))]
    for index, template in enumerate(spec.alias):
        names.append(NameOp(template=filled(template, ("metrics", id, "alias", index)), alias=True))
    return tuple(names)


def check_template(
    draft: Draft, template: str, path: Path, *, family: bool, labels: tuple[str, ...] = (), fields: Set[str] = FIELDS
) -> None:
    """Report what is wrong with a template of these ``fields``."""
    try:
        used = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        draft.report("DL404.unreadable", path, template=template, error=error)
        return
    parts = tuple(name for name in labels if name and name not in fields)
    for name in sorted(used - {*fields, *parts}):
        close = nearest(name, {*fields, *parts})
        at = template.find(f"{{{name}")
        span = (at, template.find("}", at) + 1)
        fix = f"did you mean `{{{close}}}`?" if close else did_you_mean(name, [*fields, *parts], what="fields")
        draft.report("DL404.field", path, source=template, span=span, field=f"{{{name}}}", fix=fix)
        used |= {close} if close else set()  # reported once
    needed = {"member": family, "label": bool(labels)}
    if used & set(parts) and "label" not in used:  # the parts of a label, one by one
        needed = {"member": family, **{name or "label": True for name in labels}, "label": not all(labels)}
    needed = {name: there for name, there in needed.items() if name in (*fields, *parts)}
    right = template
    for name, there in needed.items():
        if name in used and not there:
            right = right.replace(f"{{{name}}}", "").replace("//", "/").strip("/")
        if there and name not in used:
            right = f"{right}/{{{name}}}"
    right = right or "{id}"
    key, right = ("alias", in_flow([right])) if "alias" in path else (path[-1], in_flow(right))
    for name, there in needed.items():
        if there and name not in used:
            what = "a family has one value per member" if name == "member" else "`by` gives one value per label"
            by: tuple[Path, ...] = () if name == "member" else ((*path[:2], "by"),)
            draft.report(
                "DL404.lacks", path, related=by, what=what, template=template, field=f"{{{name}}}", key=key, right=right
            )
        if name in used and not there:
            why = "it is of no family" if name == "member" else "it has no `by`"
            draft.report("DL404.has", path, template=template, field=f"{{{name}}}", why=why, key=key, right=right)
    if not template:
        draft.report("DL404.empty", path)
