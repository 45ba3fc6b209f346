"""Metrics by the names that trackers show, such as `completions/mean_length`: which metric a name means.

Plain data of a config's metrics comes in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from declog.language import idioms
from declog.language.keys import entries
from declog.language.nodes import LOGGED
from declog.language.notation import SEVERAL
from declog.language.tree import listed

_FAMILY = "family"
_FIELD = re.compile(r"\{(?!id\})\w+\}")


class Shown(NamedTuple):
    """A metric by its id, which of its several reductions, and which member of a family or label."""

    id: str
    reduction: str | None = None
    member: str | None = None
    label: str | None = None

    @property
    def key(self) -> str:
        """The metric and its reduction: `length.mean`."""
        return self.id if self.reduction is None else f"{self.id}.{self.reduction}"

    @property
    def expression(self) -> str:
        """The value as formulas and conditions name it: `member(rewards.mean, 'format')`, `label(by_level, '1')`."""
        labelled = self.key if self.label is None else f"label({self.key}, {self.label!r})"
        return labelled if self.member is None else f"member({labelled}, {self.member!r})"

    @property
    def is_value(self) -> bool:
        """Whether it is all that the metric, or its reduction, has: no member and no label of it."""
        return self.member is None and self.label is None


def metric_of(metrics: Mapping[str, Any], name: str) -> Shown | None:
    """The metric that trackers show as ``name``, or nearly so: ``reward/mean`` is `reward`, if that is a mean.

    ``metrics`` are entries by id: the keys `name`, `alias`, `reduce` and `by` of each are read, and `family`, whether
    it has members (see ``with_families``).
    """
    entire, name = name, name.removeprefix("train/")
    matches = [one for text in dict.fromkeys((entire, name)) for one in _named(metrics, text)]
    if matches:
        return next((one for one in matches if one == Shown(one.id)), matches[0])  # before a member of that name
    if (ending := idioms.of_ending(name)) is None:
        return _label_of(metrics, name)
    stem, reduction = ending
    for id, entry in metrics.items():
        reductions = _reductions(entry)
        named = id == stem or any(re.fullmatch(pattern, stem) for pattern in _patterns(id, entry))
        if named and reduction in reductions:
            return Shown(id, reduction if len(reductions) > 1 else None)
    return _label_of(metrics, name)


def _named(metrics: Mapping[str, Any], shown: str) -> Iterator[Shown]:
    """The metrics, their reductions, members and labels whose name a text is."""
    for id, entry in metrics.items():
        for match in filter(None, (re.fullmatch(pattern, shown) for pattern in _patterns(id, entry))):
            groups = match.groupdict()
            parts = [groups.pop(part) for part in sorted(groups) if part.startswith("part")]
            yield Shown(id, **({"label": "/".join(parts)} if parts else {}) | groups)


def _label_of(metrics: Mapping[str, Any], name: str) -> Shown | None:
    """``by_level/1``, as trackers show a label by default: behind a slash, and the reduction if there are several."""
    for id, entry in metrics.items():
        reductions = _reductions(entry)
        between = f"/(?P<reduction>{'|'.join(map(re.escape, reductions))})" if len(reductions) > 1 else ""
        match = re.fullmatch(rf"{re.escape(id)}{between}[/.](?P<label>{_label(entry)})", name) if _by(entry) else None
        if match is not None and idioms.of_ending(f"{id}/{match['label']}") is None:
            member, between, label = match["label"].partition("/")
            of_member = entry.get(_FAMILY) and between and label.count("/") == max(len(_by(entry)) - 1, 0)
            return Shown(id, **match.groupdict() | ({"member": member, "label": label} if of_member else {}))
    return None


def with_families(metrics: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of metrics, and of each whose signal the config ``data`` declares as a family that it is one."""
    signals = [(path[-1], signal) for path, signal in entries(data, "signals") if isinstance(signal, Mapping)]
    families = {name for name, signal in signals if signal.get(_FAMILY)}
    return {
        id: {**entry, _FAMILY: True} if isinstance(entry, Mapping) and entry.get("expr", id) in families else entry
        for id, entry in metrics.items()
    }


def id_of(name: str, metrics: Mapping[str, Any]) -> str | None:
    """The id of the one metric that trackers show as ``name``, which is not its id; None where there is none."""
    shown = metric_of({id: entry for id, entry in metrics.items() if id != name}, name)
    return shown.id if shown is not None and shown.reduction is None and shown.is_value else None


def reductions_of(entry: Any) -> dict[str, str]:
    """The reductions of an entry by the endings of its keys, ``{"mean": "mean"}``; none where it has one value."""
    reduce = entry.get("reduce") if isinstance(entry, Mapping) else None
    items = reduce if isinstance(reduce, list) else [reduce] if isinstance(reduce, str) and reduce in SEVERAL else []
    named = [item if isinstance(item, Mapping) else {suffix_of(text): text for text in SEVERAL.get(item, (item,))}
             for item in items]  # fmt: skip
    return {str(ending): str(text) for part in named for ending, text in part.items()}


def of_one_reduction(name: str, metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """The entries that do what ``name``, one of a metric's several reductions as trackers show it, says in ``metrics``.

    One that is off leaves the others; a name of its own has a formula of it. None for anything else.
    """
    entries = {id: entry for id, entry in metrics.items() if not _of_several(id, metrics)}
    entry, shown = metrics.get(name), _of_several(name, metrics)
    if shown is None:
        return None
    reductions = reductions_of(entries[shown.id])
    if _is_off(entry):
        of_name = {other: one for other in metrics if (one := _of_several(other, metrics)) is not None}
        off = {one.reduction for other, one in of_name.items() if one.id == shown.id and _is_off(metrics[other])}
        rest = [text for ending, text in reductions.items() if ending not in off]
        return {shown.id: {"reduce": rest[0] if len(rest) == 1 else rest} if rest else None}
    if isinstance(entry, Mapping) and [*entry] == ["name"]:
        return {f"{shown.id}_{shown.reduction}": {"formula": shown.key, **entry}}
    return None


def _of_several(name: str, metrics: Mapping[str, Any]) -> Shown | None:
    """The one of a metric's several reductions that a name means, which is no id: `length.mean` is one, too."""
    id, _, ending = name.partition(".")
    if ending in reductions_of(metrics.get(id)):
        return Shown(id, ending)
    shown = metric_of({id: entry for id, entry in metrics.items() if id != name}, name)
    return shown if shown is not None and shown.reduction is not None and shown.is_value else None


def _is_off(entry: Any) -> bool:
    return entry is None or (
        isinstance(entry, Mapping) and (entry.get("enabled") is False or entry.get("log") is False)
    )


def in_formula(id: str, entry: Any, reduction: str = "mean") -> str:
    """What a formula writes for a metric by its id: of several this reduction, else the mean, else the first."""
    reductions = reductions_of(entry)
    meant = [ending for word in (reduction, "mean") for ending, text in reductions.items() if text == word]
    return ".".join([id, *meant, *reductions][:2])


def _reductions(entry: Any) -> list[str]:
    """The endings of an entry's reductions, also of a single one; the mean is the default."""
    reduce = entry.get("reduce") if isinstance(entry, Mapping) else None
    return [*reductions_of(entry)] or [suffix_of(str(reduce or "mean"))]


def suffix_of(reduction: str) -> str:
    """What a reduction is called in names: ``p99_9`` of `p99.9`, ``top_mean`` of `top_mean(share=0.2)`."""
    return reduction.split("(")[0].replace(".", "_")


def _by(entry: Any) -> list[str]:
    """The labels of an entry, as they are written: none, one or several expressions."""
    by = entry.get("by") if isinstance(entry, Mapping) else None
    return [str(part) for part in listed(by) if part is not None]


def _label(entry: Any) -> str:
    """What matches a label of an entry: that of several expressions has as many parts."""
    parts = "/".join(["[^/]+"] * len(_by(entry)))
    return ".+" if len(_by(entry)) < 2 else f"(?:[^/]+/)?{parts}" if entry.get(_FAMILY) else parts


def _patterns(id: str, entry: Any) -> Iterator[str]:
    """What matches the names of a metric, with groups for the reduction and the member."""
    keys = entry if isinstance(entry, Mapping) else {}
    several = len(_reductions(entry)) > 1
    name, alias = keys.get("name"), keys.get("alias")
    for template in (name or (f"{id}/{{reduce}}" if several else id), *(alias if isinstance(alias, list) else ())):
        if id == LOGGED or not isinstance(template, str) or not re.search(r"\w", _FIELD.sub("", template)):
            continue  # a name of fields alone may be any
        pattern = re.escape(template.replace("{id}", id))
        reductions = "|".join(map(re.escape, _reductions(entry)))
        pattern = pattern.replace(r"\{reduce\}", f"(?P<reduction>{reductions})" if several else reductions, 1)
        for part, by in enumerate(_by(entry)):
            pattern = pattern.replace(rf"\{{{by}\}}", f"(?P<part{part}>[^/]+)", 1)
        label = f"(?P<label>{_label(entry)})"
        yield pattern.replace(r"\{member\}", "(?P<member>[^/]+)", 1).replace(r"\{label\}", label, 1)
