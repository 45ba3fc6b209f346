"""The names of a metric in trackers: its template and its aliases, checked."""

from __future__ import annotations

import difflib
import re
import string
from collections.abc import Set
from typing import Any

from declog.compiler.draft import Draft, op_of
from declog.errors import Path, did_you_mean, in_flow, nearest
from declog.errors.elsewhere import same_signal
from declog.language.fixes import idioms
from declog.language.fixes.tracker_names import in_formula, suffix_of
from declog.language.nodes import LOGGED
from declog.language.spec import AboutSpec, MetricSpec
from declog.plans.ops import AboutOp, NameOp

RANK = "rank"  # the label that `axes.rank: each` gives
LOGGED_ABOUT = AboutSpec(help="what `log_metric` gives")
FIELDS = frozenset({"id", "reduce", "member", "label"})


def of_output(
    draft: Draft, id: str, spec: MetricSpec, suffix: str | None, *, family: bool, labels: tuple[str, ...]
) -> dict[str, Any]:
    """The fields of an ``OutputOp`` that a metric and a formula have from the same keys."""
    about = draft.spec.about.get(id, LOGGED_ABOUT if id == LOGGED else AboutSpec())
    unreadable = isinstance(spec.empty, str)
    if unreadable:
        draft.report("DL202.empty", ("metrics", id, "empty"), empty=spec.empty)
    return {
        "id": id, "key": id if suffix is None else f"{id}.{suffix}", "family": family, "labels": labels,
        "names": _names(draft, id, spec, suffix, family=family, labels=labels),
        "empty": None if spec.empty is None or unreadable else float(spec.empty),
        "tags": tuple(spec.tags), "shown": spec.log, "smoothing": spec.smoothing, "about": op_of(AboutOp, about),
    }  # fmt: skip


def about(draft: Draft) -> None:
    """Refuse an entry of `about` whose metric does not exist; one of a deleted metric is ignored."""
    for name in draft.spec.about:
        if name not in (*draft.spec.metrics, LOGGED) and not draft.deleted(f"metrics.{name}"):
            draft.report("DL403.about", ("about", name), name=name, known=draft.spec.metrics)


def _names(
    draft: Draft, id: str, spec: MetricSpec, suffix: str | None, *, family: bool, labels: tuple[str, ...]
) -> tuple[NameOp, ...]:
    """The output names of a reduction: its name template, and its aliases."""
    of_ranks = draft.per_rank and labels == (RANK,)
    labelled, several = bool(labels) and not of_ranks, suffix is not None
    fields = {"{id}": True, "{reduce}": several, "{member}": family, "{label}": labelled}
    if family and id == LOGGED:  # `log_metric` names its own values
        fields = {"{member}": True, "{reduce}": several, "{label}": labelled}
    default = "/".join(field for field, there in fields.items() if there)
    if spec.observe is not None and spec.observe.from_ is not None:
        default = default.replace("{id}", spec.observe.from_)

    def filled(template: str, path: Path) -> str:
        if of_ranks and "{label}" not in template:
            template += "/rank{label}"
        if spec.formula is not None:
            template = re.sub(r"\{reduce\}[_/.-]?", "", template).rstrip("_/.-") or "{id}"  # a preset had reductions
        by = "by" if spec.formula is None else "formula"
        check_template(draft, template, path, family=family, labels=labels, by=by)
        return template.replace("{id}", id).replace("{reduce}", suffix or suffix_of(str(spec.reduce or "mean")))

    names = [NameOp(template=filled(spec.name or default, ("metrics", id, "name")))]
    for index, template in enumerate(spec.alias):
        names.append(NameOp(template=filled(template, ("metrics", id, "alias", index)), alias=True))
    return tuple(names)


def check_template(
    draft: Draft,
    template: str,
    path: Path,
    *,
    family: bool,
    labels: tuple[str, ...] = (),
    by: str = "by",
    fields: Set[str] = FIELDS,
) -> None:
    """Report the mistakes in a template, which may have these ``fields`` and the names of its ``labels``.

    ``by`` is the key that the labels come from.
    """
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
    wrong = {name: there for name, there in needed.items() if name in (*fields, *parts) and there != (name in used)}
    right = template
    for name, there in wrong.items():
        right = f"{right}/{{{name}}}" if there else right.replace(f"{{{name}}}", "").replace("//", "/").strip("/")
    right = right or "{id}"
    key, right = ("alias", in_flow([right])) if "alias" in path else (path[-1], in_flow(right))
    for name, there in wrong.items():
        field = f"{{{name}}}"
        if there:
            what = "a family has one value per member" if name == "member" else f"`{by}` gives one value per label"
            source: tuple[Path, ...] = () if name == "member" else ((*path[:2], by),)
            draft.report(
                "DL404.lacks", path, related=source, what=what, template=template, field=field, key=key, right=right
            )
        else:
            why = "it is of no family" if name == "member" else "it has no `by`"
            draft.report("DL404.has", path, template=template, field=field, why=why, key=key, right=right)
    if not template:
        draft.report("DL404.empty", path)


def in_expression(draft: Draft, shown: str) -> str | None:
    """The expression for the value that trackers show as ``shown`` or under a similar name; None for another name.

    ``completions/mean_length`` is `length.mean`, and ``rewards/format/mean`` is `member(rewards.mean, 'format')`. If
    `kl` is a signal, ``kl/max`` is `kl_max`, a metric that the config does not define yet.
    """
    keys = draft.output_keys
    if shown in keys:
        return shown
    if any(op.id == shown for op in draft.outputs):  # of several reductions
        return in_formula(shown, {"reduce": draft.spec.metrics[shown].reduce})
    metric = draft.metric_shown(shown)
    if metric is not None and metric.key in keys:
        return metric.expression
    templates = {item.template: op.key for op in draft.outputs for item in op.names if op.key in keys}
    if (key := {template.replace("/", "_"): key for template, key in templates.items()}.get(shown)) is not None:
        return key  # `completions_mean_length`
    same = None if shown in draft.signals else same_signal(shown, {op.id for op in draft.outputs})
    if same is not None:
        return in_expression(draft, same)
    if (statistic := idioms.of_ending(shown)) is not None:
        if "/" in shown and statistic[0] in draft.signals:
            return "_".join(statistic)
        close = nearest(statistic[0], [*draft.signals, *(op.id for op in draft.outputs)])
        return None if close in (None, statistic[0]) else in_expression(draft, f"{close}/{statistic[1]}")
    first, slash, _ = shown.partition("/")
    if not slash or first in draft.spec.metrics:  # a quotient
        return None
    plain = [name for name in templates if "/" in name and "{" not in name]
    near = difflib.get_close_matches(shown, plain, n=1, cutoff=0.8)
    ending = shown.rpartition("/")[2]
    if not near or difflib.SequenceMatcher(None, ending, near[0].rpartition("/")[2]).ratio() < 0.5:
        return None  # `completions/hours`, a quotient
    return templates[near[0]]
