"""Packets: rows without a step, which travel with the data and belong to the step that consumes them.

    packet = declog.rows(reward=rewards, version=version)   # in a worker: another task, thread or process
    log.observe(packet)                                      # in the step that trains on them

A packet can be pickled. It counts once in a step, however many copies of it exist.
"""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from declog.errors import InputError, UsageError
from declog.runtime.rows import context
from declog.runtime.rows.scopes import call_site

REMEMBERED = 100_000  # the most ids of consumed packets that are remembered


class Fate(NamedTuple):
    """A packet that nobody has consumed yet: its id, the call that made it, and its number of rows."""

    id: str
    call_site: str
    rows: int


class Fates:
    """Tracks by id which packets of a process were consumed; consuming a packet consumes all its copies.

    A process that receives a packet is responsible for it from then on. Ranks and actors list in their messages the
    packets that they consumed, and at their end the packets that they did not consume. Packets that still wait when
    the last collecting recorder ends are lost.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: dict[str, Fate] = {}
        self._consumed: dict[str, None] = {}  # the ids of the latest consumed packets
        self._news: list[str] = []  # consumed ids that are not in a message yet
        self._senders: set[int] = set()  # recorders that send messages to another process
        self._collectors: set[int] = set()  # recorders that collect the messages of other processes

    def open(self, recorder: int, *, collects: bool) -> None:
        """Note that a recorder begins."""
        with self._lock:
            (self._collectors if collects else self._senders).add(recorder)

    def close(self, recorder: int, *, certain: bool) -> list[Fate]:
        """Note that a recorder ends; return the lost packets, unless another recorder still collects.

        Each lost packet is returned once. Returns none if it is not ``certain`` that a packet was lost, because not all
        ranks have sent their last message.
        """
        with self._lock:
            lost = self.lost(recorder)
            self._senders.discard(recorder)
            self._collectors.discard(recorder)
            return lost if certain else []

    def lost(self, recorder: int) -> list[Fate]:
        """Return, once, the packets that nobody can consume after a recorder ends; none if another one collects."""
        with self._lock:
            return [] if self._collectors - {recorder} else self._take()

    def came(self, fate: Fate) -> None:
        """Note a packet that this process made or received."""
        with self._lock:
            if fate.id not in self._consumed:
                self._waiting[fate.id] = fate

    def sent(self, id: str) -> None:
        """Note a packet that goes to another process."""
        with self._lock:
            self._waiting.pop(id, None)

    def consumed(self, ids: Iterable[str], *, here: bool = True) -> None:
        """Note packets that were consumed or discarded, ``here`` or in another process."""
        with self._lock:
            for id in ids:
                self._waiting.pop(id, None)
                if here and self._senders and id not in self._consumed:
                    self._news.append(id)
                self._consumed[id] = None
            while len(self._consumed) > REMEMBERED:
                del self._consumed[next(iter(self._consumed))]

    def told(self, *, last: bool) -> tuple[list[str], list[Fate]]:
        """Return, for a message, the ids consumed since the last message; in the ``last`` one also what still waits."""
        with self._lock:
            news, self._news = self._news, []
            return news, self._take() if last else []

    def heard(self, consumed: Iterable[str], waiting: Iterable[Fate]) -> None:
        """Note the packets that another process lists in a message: consumed ids, and packets that still wait."""
        self.consumed(consumed, here=False)
        for fate in waiting:
            self.came(fate)

    def _take(self) -> list[Fate]:
        waiting, self._waiting = self._waiting, {}
        return [*waiting.values()]

    def in_child(self) -> None:
        """Start empty in a fork, which is not responsible for its parent's packets; their lock may be held."""
        self.__init__()  # type: ignore[misc]  # start as a new object


fates = Fates()
os.register_at_fork(after_in_child=fates.in_child)


class Packet:
    """Rows without a step, copied when the packet is made. ``call_site`` is the line that made it."""

    def __init__(self, signals: Mapping[str, Any]) -> None:
        self.signals = {name: copied(value) for name, value in signals.items()}
        self.id = uuid.uuid4().hex  # equal for all copies
        self.call_site = call_site()
        self.rows = rows_of(signals)  # the number of rows, as far as the values show it
        self._note()

    def discard(self) -> None:
        """Discard the packet's rows on purpose: then it is no failure that nobody observes them."""
        fates.consumed([self.id])

    consumed = discard

    def _note(self) -> None:
        if context.running() is not None:  # without a recorder nothing reports a loss
            fates.came(Fate(self.id, self.call_site, self.rows))

    def __getstate__(self) -> dict[str, Any]:
        torch = sys.modules.get("torch")  # a process that has not imported torch has no tensors

        def host(value: Any) -> Any:
            if torch is not None and isinstance(value, torch.Tensor):
                return value.cpu()
            if isinstance(value, dict):
                return {key: host(item) for key, item in value.items()}
            return value

        fates.sent(self.id)
        return {**self.__dict__, "signals": host(self.signals)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._note()

    def __repr__(self) -> str:
        return f"<declog.rows of {', '.join(self.signals)}: {self.rows} rows>"


Argument = Packet | Mapping[str, Any]  # positional arguments


def named(arguments: Sequence[Argument], signals: Mapping[str, Any]) -> tuple[Sequence[Packet], Mapping[str, Any]]:
    """Split positional arguments into packets, and mappings, which are joined with the keyword signals.

    Raises ``UsageError`` for any other argument, and for a signal that is given twice.
    """
    if not arguments:
        return (), signals
    packets, together = [], dict(signals)
    for argument in arguments:
        if isinstance(argument, Packet):
            packets.append(argument)
            continue
        if not isinstance(argument, Mapping) or not all(isinstance(name, str) for name in argument):
            name = argument if isinstance(argument, str) and argument.isidentifier() else "name"
            raise UsageError.of("DL510.unnamed", type=type(argument).__name__, name=name)
        if twice := together.keys() & argument.keys():
            raise UsageError.of("DL510.twice", name=min(twice))
        together |= argument
    return packets, together


def rows(*mappings: Mapping[str, Any], **signals: Any) -> Packet:
    """Rows without a step, as a packet: they belong to the step that observes it.

    Observe the packet with ``log.observe(packet)``. Pass signals by keyword, or in mappings of names to values, in the
    shapes that ``Recorder.observe`` takes. They are copied now, and checked when they are observed. A packet can be
    pickled, for queues between processes; it counts once per step.
    """
    return Packet(named(mappings, signals)[1])


def copied(value: Any) -> Any:
    """Return a copy that the caller cannot change later; objects of other types are returned as they are.

    Raises ``InputError`` for a tensor inside a transform of torch.func.
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str | int | float | bool | type(None)):
        return value
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        raise InputError.of("DL503.wrapped")
    return value.detach().clone()


def rows_of(value: Any) -> int:
    """The number of rows that a value, or the longest value of a mapping, seems to have; at least 1."""
    if isinstance(value, Mapping):
        return max([1, *map(rows_of, value.values())])
    if isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        return 1
    try:
        return max(len(value), 1)
    except TypeError:  # a tensor or array without dimensions
        return 1
