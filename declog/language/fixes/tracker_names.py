"""Search for the metric behind a name that trackers show, such as `completions/mean_length`.

The functions take a config's metrics as plain data.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from declog.language.fixes import idioms
from declog.language.keys import entries
from declog.language.nodes import LOGGED
from declog.language.notation import SEVERAL
from declog.language.tree import listed

_FAMILY = "family"
_FIELD = re.compile(r"\{(?!id\})\w+\}")


class Shown(NamedTuple):
    """A metric by its id, with one of its several reductions, and one member of a family or one label, if given."""

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
        """Whether it is the whole value of the metric or its reduction, and not one member or label."""
        return self.member is None and self.label is None


def metric_of(metrics: Mapping[str, Any], name: str) -> Shown | None:
    """The metric that trackers show as ``name``, or nearly so: ``reward/mean`` is `reward`, if that is a mean.

    ``metrics`` holds entries by id. Their keys `name`, `alias`, `reduce` and `by` are read, and `family`: whether the
    metric has members (see ``with_families``). Returns None if no metric fits.
    """
    entire, name = name, name.removeprefix("train/")
    matches = [one for text in dict.fromkeys((entire, name)) for one in _named(metrics, text)]
    if matches:
        return next((one for one in matches if one == Shown(one.id)), matches[0])  # a whole metric before a member
    if (ending := idioms.of_ending(name)) is None:
        return _label_of(metrics, name)
    stem, reduction = ending
    for id, entry in metrics.items():
        reductions = _reductions(entry)
        named = id == stem or any(re.fullmatch(pattern, stem) for pattern in _patterns(id, entry))
        if named and reduction in reductions:
            return Shown(id, reduction if len(reductions) > 1 else None)
    return _label_of(metrics, name)


def ids_of(selectors: Iterable[Any], metrics: Mapping[str, Any]) -> Iterator[Any]:
    """The selectors, with ids in place of a glob that only names in trackers match: ``completions/*``."""
    names = {id: str(entry.get("name") or id) for id, entry in metrics.items() if isinstance(entry, Mapping)}
    for selector in selectors:
        glob = "" if fnmatch.filter(metrics, str(selector)) else str(selector)
        yield from [id for id, name in names.items() if fnmatch.fnmatchcase(name, glob)] or [selector]


def _named(metrics: Mapping[str, Any], shown: str) -> Iterator[Shown]:
    """The metrics, or their reductions, members and labels, that trackers show under a name."""
    for id, entry in metrics.items():
        for match in filter(None, (re.fullmatch(pattern, shown) for pattern in _patterns(id, entry))):
            groups = match.groupdict()
            parts = [groups.pop(part) for part in sorted(groups) if part.startswith("part")]
            yield Shown(id, **({"label": "/".join(parts)} if parts else {}) | groups)


def _label_of(metrics: Mapping[str, Any], name: str) -> Shown | None:
    """The label that trackers show by default as ``by_level/1``: the id, one of several reductions, the label."""
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
    """The entries of metrics, with `family: true` in each whose signal the config ``data`` declares as a family."""
    signals = [(path[-1], signal) for path, signal in entries(data, "signals") if isinstance(signal, Mapping)]
    families = {name for name, signal in signals if signal.get(_FAMILY)}
    return {
        id: {**entry, _FAMILY: True} if isinstance(entry, Mapping) and entry.get("expr", id) in families else entry
        for id, entry in metrics.items()
    }


def id_of(name: str, metrics: Mapping[str, Any]) -> str | None:
    """The id of the one metric that trackers show as ``name``, if ``name`` is not its id; else None."""
    shown = metric_of({id: entry for id, entry in metrics.items() if id != name}, name)
    return shown.id if shown is not None and shown.reduction is None and shown.is_value else None


def reductions_of(entry: Any) -> dict[str, str]:
    """The reductions of an entry by their endings in names, ``{"mean": "mean"}``; empty for a single reduction."""
    reduce = entry.get("reduce") if isinstance(entry, Mapping) else None
    items = reduce if isinstance(reduce, list) else [reduce] if isinstance(reduce, str) and reduce in SEVERAL else []
    named = [item if isinstance(item, Mapping) else {suffix_of(text): text for text in SEVERAL.get(item, (item,))}
             for item in items if isinstance(item, Mapping | str)]  # fmt: skip
    return {str(ending): str(text) for part in named for ending, text in part.items()}


def of_one_reduction(name: str, metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """The entries to write for an entry of ``metrics`` whose ``name`` is one of a metric's several reductions.

    An entry that is off removes the reduction from the metric's list. An entry with a `name` only becomes a formula
    with that name. Returns None for anything else.
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
    """The one of a metric's several reductions that a name means, also `length.mean`; None for any other name."""
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
    """The text of a metric in a formula. Of several reductions, ``reduction`` counts, else the mean, else the first."""
    reductions = reductions_of(entry)
    meant = [ending for word in (reduction, "mean") for ending, text in reductions.items() if text == word]
    return ".".join([id, *meant, *reductions][:2])


def _reductions(entry: Any) -> list[str]:
    """The endings of an entry's reductions, also of a single reduction; by default the mean."""
    reduce = entry.get("reduce") if isinstance(entry, Mapping) else None
    return [*reductions_of(entry)] or [suffix_of(str(reduce or "mean"))]


def suffix_of(reduction: str) -> str:
    """The name of a reduction inside of names: ``p99_9`` for `p99.9`, ``top_mean`` for `top_mean(share=0.2)`."""
    return reduction.split("(")[0].replace(".", "_")


def _by(entry: Any) -> list[str]:
    """The expressions of an entry's labels; empty without `by`."""
    by = entry.get("by") if isinstance(entry, Mapping) else None
    return [str(part) for part in listed(by) if part is not None]


def _label(entry: Any) -> str:
    """A regular expression for a label of an entry. Labels of several expressions have one part for each."""
    parts = "/".join(["[^/]+"] * len(_by(entry)))
    return ".+" if len(_by(entry)) < 2 else f"(?:[^/]+/)?{parts}" if entry.get(_FAMILY) else parts


def _patterns(id: str, entry: Any) -> Iterator[str]:
    """Regular expressions for the names of a metric, with groups for the reduction, the member and the label."""
    keys = entry if isinstance(entry, Mapping) else {}
    several = len(_reductions(entry)) > 1
    name, alias = keys.get("name"), keys.get("alias")
    for template in (name or (f"{id}/{{reduce}}" if several else id), *(alias if isinstance(alias, list) else ())):
        if id == LOGGED or not isinstance(template, str) or not re.search(r"\w", _FIELD.sub("", template)):
            continue  # a name of fields alone matches any text
        pattern = re.escape(template.replace("{id}", id))
        reductions = "|".join(map(re.escape, _reductions(entry)))
        pattern = pattern.replace(r"\{reduce\}", f"(?P<reduction>{reductions})" if several else reductions, 1)
        for part, by in enumerate(_by(entry)):
            pattern = pattern.replace(rf"\{{{by}\}}", f"(?P<part{part}>[^/]+)", 1)
        label = f"(?P<label>{_label(entry)})"
        yield pattern.replace(r"\{member\}", "(?P<member>[^/]+)", 1).replace(r"\{label\}", label, 1)
