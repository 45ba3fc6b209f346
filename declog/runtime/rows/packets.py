"""Packets: rows without a step, which travel with the data and belong to the step that consumes them.

    packet = declog.rows(reward=rewards, version=version)   # in a worker: another task, thread or process
    log.observe(packet)                                      # in the step that trains on them

A packet can be pickled; it counts once in a step, whatever copies of it there are. Imports torch when one is made.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from declog.errors import InputError, UsageError
from declog.runtime.rows import context
from declog.runtime.rows.scopes import call_site

REMEMBERED = 100_000  # ids of packets that were consumed


class Fate(NamedTuple):
    """A packet that waits to be consumed: its id, the call that made it, and how many rows it has."""

    id: str
    call_site: str
    rows: int


class Fates:
    """What becomes of the packets of a process, by id: whoever consumes one decides it for all of its copies.

    A packet that goes to another process is that one's to answer for. Ranks and actors say in their messages which they
    consumed, and at their end which they had and did not; what is left when the last recorder that collects ends is
    lost.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: dict[str, Fate] = {}
        self._consumed: dict[str, None] = {}  # the latest
        self._news: list[str] = []  # those that other processes have not been told
        self._senders: set[int] = set()  # recorders that tell others
        self._collectors: set[int] = set()  # recorders that are told

    def open(self, recorder: int, *, collects: bool) -> None:
        """A recorder begins."""
        with self._lock:
            (self._collectors if collects else self._senders).add(recorder)

    def close(self, recorder: int, *, certain: bool) -> list[Fate]:
        """A recorder ends; the packets that were lost, where no other one may hear of them.

        They are told once. Where not all others said how they ended it is not ``certain`` that any was.
        """
        with self._lock:
            lost = self.lost(recorder)
            self._senders.discard(recorder)
            self._collectors.discard(recorder)
            return lost if certain else []

    def lost(self, recorder: int) -> list[Fate]:
        """The packets that nobody can consume any more when this recorder has ended, told once."""
        with self._lock:
            return [] if self._collectors - {recorder} else self._take()

    def came(self, fate: Fate) -> None:
        """A packet was made in this process, or has come to it."""
        with self._lock:
            if fate.id not in self._consumed:
                self._waiting[fate.id] = fate

    def sent(self, id: str) -> None:
        """It goes to another process."""
        with self._lock:
            self._waiting.pop(id, None)

    def consumed(self, ids: Iterable[str], *, here: bool = True) -> None:
        """Packets were consumed, or dropped on purpose, ``here`` or elsewhere."""
        with self._lock:
            for id in ids:
                self._waiting.pop(id, None)
                if here and self._senders and id not in self._consumed:
                    self._news.append(id)
                self._consumed[id] = None
            while len(self._consumed) > REMEMBERED:
                del self._consumed[next(iter(self._consumed))]

    def told(self, *, last: bool) -> tuple[list[str], list[Fate]]:
        """For a message to who collects: ids that were consumed since the one before; at the ``last`` what waits."""
        with self._lock:
            news, self._news = self._news, []
            return news, self._take() if last else []

    def heard(self, consumed: Iterable[str], waiting: Iterable[Fate]) -> None:
        """Another process has told this one."""
        self.consumed(consumed, here=False)
        for fate in waiting:
            self.came(fate)

    def _take(self) -> list[Fate]:
        waiting, self._waiting = self._waiting, {}
        return [*waiting.values()]

    def in_child(self) -> None:
        """A fork answers for nothing of its parent's, whose threads may have held the lock."""
        self.__init__()  # type: ignore[misc]  # it is as new


fates = Fates()
os.register_at_fork(after_in_child=fates.in_child)


class Packet:
    """Rows without a step, copied when the packet is made. ``call_site`` is the line that made it."""

    def __init__(self, signals: Mapping[str, Any]) -> None:
        self.signals = {name: copied(value) for name, value in signals.items()}
        self._fate = Fate(uuid.uuid4().hex, call_site(), rows_of(signals))
        self._note()

    @property
    def id(self) -> str:
        """The same for all copies."""
        return self._fate.id

    @property
    def call_site(self) -> str:
        """The call that made it."""
        return self._fate.call_site

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self._fate.rows

    def discard(self) -> None:
        """Its rows are dropped on purpose: that nobody observes them is no failure."""
        fates.consumed([self.id])

    consumed = discard

    def _note(self) -> None:
        if context.running() is not None:  # else nobody would tell that it is lost
            fates.came(self._fate)

    def __getstate__(self) -> dict[str, Any]:
        import torch

        def host(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.cpu()
            if isinstance(value, dict):
                return {key: host(item) for key, item in value.items()}
            return value

        fates.sent(self.id)
        return {"signals": host(self.signals), **self._fate._asdict()}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.signals = dict(state["signals"])
        self._fate = Fate(state["id"], state["call_site"], state["rows"])
        self._note()

    def __repr__(self) -> str:
        return f"<declog.rows of {', '.join(self.signals)}: {self.rows} rows>"


Argument = Packet | Mapping[str, Any]  # without a keyword


def named(arguments: Sequence[Argument], signals: Mapping[str, Any]) -> tuple[Sequence[Packet], Mapping[str, Any]]:
    """What was given without a keyword: packets, and signals of mappings beside those with one."""
    if not arguments:
        return (), signals
    packets, together = [], dict(signals)
    for argument in arguments:
        if isinstance(argument, Packet):
            packets.append(argument)
            continue
        if not isinstance(argument, Mapping) or not all(isinstance(name, str) for name in argument):
            raise UsageError.of("DL510.unnamed", type=type(argument).__name__)
        if twice := together.keys() & argument.keys():
            raise UsageError.of("DL510.twice", name=min(twice))
        together |= argument
    return packets, together


def rows(*mappings: Mapping[str, Any], **signals: Any) -> Packet:
    """Rows without a step, as a packet: they belong to the step that observes it, ``log.observe(packet)``.

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

    if not isinstance(value, torch.Tensor):
        return value
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        raise InputError.of("DL503.wrapped")
    return value.detach().clone()


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
