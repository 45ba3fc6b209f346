"""When something is logged: windows and log events, and what one log event shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.cases import Case


@dataclass(frozen=True)
class Moment:
    """A log event: the steps of each window that ends with it, by the window's length; ``ended``: all that ended."""

    number: int
    mode: str
    windows: Mapping[int, list[int]]
    ended: Mapping[int, list[list[int]]]


@dataclass
class Logged:
    """What one log event shows."""

    number: int
    mode: str
    scalars: dict[str, tuple[Any, float]] = field(default_factory=dict)  # value, and how far it may be off
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)  # the names that tell of values that are not finite
    alerts: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    off: dict[str, float] = field(default_factory=dict)  # how far a table's numbers may be off


def moments(case: Case) -> Iterator[Moment]:
    """The log events of a job, in order."""
    ended: dict[int, list[list[int]]] = {}
    for step, mode, windows in ends(case):
        for length, blocks in windows.items():
            ended[length] = [*ended.get(length, []), blocks]
        yield Moment(step, mode, windows, {length: ended[length] for length in windows})


def ends(case: Case) -> Iterator[tuple[int, str, dict[int, list[int]]]]:
    """When windows end: step, mode, and the steps of those that do, by their length."""
    base = case.profile.get("every", 1)
    lengths = {base} | {
        entry["every"]
        for section in ("metrics", "tables")
        for entry in case.profile.get(section, {}).values()
        if "every" in entry
    }
    train = [place for place, block in enumerate(case.blocks) if block.mode == "train"]
    for place, block in enumerate(case.blocks):
        if block.mode != "train":
            yield block.number, block.mode, {length: [place] for length in sorted(lengths)}
            continue
        count = train.index(place) + 1
        due = {length: train[count - length : count] for length in sorted(lengths) if count % length == 0}
        first = case.profile.get("modes", {}).get("train", {}).get("first", 0)
        if count == first:
            due[base] = train[:first]
        elif count == base:
            due[base] = train[first:base]
        if due:
            yield block.number, "train", due
    first = case.profile.get("modes", {}).get("train", {}).get("first", 0)
    open_at_the_end = {
        length: train[max(len(train) - len(train) % length, first if length == base and len(train) >= first else 0) :]
        for length in sorted(lengths)
        if len(train) % length and not (length == base and len(train) == first)
    }
    if open_at_the_end:
        yield case.blocks[train[-1]].number, "train", open_at_the_end
