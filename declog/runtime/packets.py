"""Packets: rows without a step, which travel with the data and belong to the step that consumes them.

    packet = declog.rows(reward=rewards, version=version)   # in a worker: another task, thread or process
    log.observe(packet)                                      # in the step that trains on them

A packet can be pickled; it counts once in a step, whatever copies of it there are. Imports torch when one is made.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from declog.errors import UsageError
from declog.runtime.scopes import place


class Fate:
    """What became of a packet; it outlives it."""

    __slots__ = ("id", "place", "rows", "settled")

    def __init__(self, id: str, place: str, rows: int) -> None:
        self.id = id
        self.place = place
        self.rows = rows
        self.settled = False  # it was consumed, went to another process, or was discarded


class Packet:
    """Signals of some rows, copied when it is made. ``place`` is where that was, ``rows`` how many there are."""

    def __init__(self, signals: Mapping[str, Any]) -> None:
        self.signals = {name: copied(value) for name, value in signals.items()}
        self._fate = Fate(uuid.uuid4().hex, place(), rows_of(signals))
        self._watch()

    @property
    def id(self) -> str:
        """The same for all copies."""
        return self._fate.id

    @property
    def place(self) -> str:
        """The call that made it."""
        return self._fate.place

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self._fate.rows

    def discard(self) -> None:
        """Its rows are dropped on purpose: that nobody observes them is no failure."""
        self._fate.settled = True

    consumed = discard

    def _watch(self) -> None:
        """Have the run that is open count it where nobody consumes it."""
        from declog.runtime import context

        recorder = context.running()
        if recorder is not None:
            recorder._packets.watch(self)

    def __getstate__(self) -> dict[str, Any]:
        import torch

        def host(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.cpu()
            if isinstance(value, dict):
                return {key: host(item) for key, item in value.items()}
            return value

        self._fate.settled = True  # whoever gets it answers for it
        fate = self._fate
        return {"signals": host(self.signals), "id": fate.id, "place": fate.place, "rows": fate.rows}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.signals = dict(state["signals"])
        self._fate = Fate(state["id"], state["place"], state["rows"])
        self._watch()

    def __repr__(self) -> str:
        return f"<declog.rows of {', '.join(self.signals)}: {self.rows} rows>"


class Packets:
    """The packets of a run that nobody has consumed yet."""

    def __init__(self) -> None:
        self._live: weakref.WeakSet[Packet] = weakref.WeakSet()
        self.lost: list[Fate] = []  # collected as garbage; reported by the run's own thread

    def watch(self, packet: Packet) -> None:
        """Note a packet that was made, or came from another process."""
        self._live.add(packet)
        weakref.finalize(packet, self._gone, packet._fate).atexit = False

    def _gone(self, fate: Fate) -> None:
        if not fate.settled:
            self.lost.append(fate)

    def unused(self, *, ended: bool = False) -> list[Fate]:
        """Those that can be consumed no more, each once; when the run has ``ended``, those that are left, too."""
        lost, self.lost = self.lost, []
        if ended:
            lost += [packet._fate for packet in self._live if not packet._fate.settled]
        for fate in lost:
            fate.settled = True
        return lost


Given = Packet | Mapping[str, Any]  # without a keyword


def named(given: Sequence[Given], signals: Mapping[str, Any]) -> tuple[Sequence[Packet], Mapping[str, Any]]:
    """What was given without a keyword: packets, and signals of mappings beside those with one."""
    if not given:
        return (), signals
    packets, together = [], dict(signals)
    for each in given:
        if isinstance(each, Packet):
            packets.append(each)
            continue
        if not isinstance(each, Mapping) or not all(isinstance(name, str) for name in each):
            raise UsageError.of("DL510.unnamed", type=type(each).__name__)
        if twice := together.keys() & each.keys():
            raise UsageError.of("DL510.twice", name=min(twice))
        together |= each
    return packets, together


def rows(*mappings: Mapping[str, Any], **signals: Any) -> Packet:
    """Rows without a step, as a packet: they belong to the step in which it is observed, ``log.observe(packet)``.

    Signals, by keyword or in mappings of names to values, are of the shapes that ``Recorder.observe`` takes. They are
    copied now and checked when they are observed. A packet can be pickled, for queues between processes; each counts
    once per step.
    """
    return Packet(named(mappings, signals)[1])


def copied(value: Any) -> Any:
    """A copy that nothing the caller does later can change."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str | int | float | bool | type(None)):
        return value
    import torch

    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def rows_of(signals: Mapping[str, Any]) -> int:
    """How many rows signals seem to have; at least one."""
    return max([1, *(_length(value) for value in signals.values())])


def _length(value: Any) -> int:
    if isinstance(value, Mapping):
        return max([1, *(_length(item) for item in value.values())])
    if isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        return 1
    try:
        return len(value)
    except TypeError:  # a tensor or an array of no dimension
        return 1
