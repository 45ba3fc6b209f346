"""Ranks send their windows to rank 0 through a store: no collectives, nothing that can interleave with training.

``StoreComm`` is a star over a store that rank 0 opens for declog alone. Rank 0 passes the store's address and secret
to the other ranks through the store that the training job already has. Every wait is bounded.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from declog.errors import CommError, UsageError
from declog.runtime.ranks.comm import Comm, Event
from declog.runtime.ranks.keystore import Client, Server

log = logging.getLogger("declog")

CHUNK = 4 * 2**20  # a TCPStore value of 9 MiB kills its client; 8 MiB is the largest that works
MOST_CHUNKS = 2**14  # 64 GiB: a message that claims to be larger is malformed
IDLE_S = 0.05  # the period at which a waiting process calls `idle`, which looks for notes
NOTICE_S = 3.0  # a process that waits longer at the start logs whom it waits for: ranks do not know each other's plans
TOGETHER_S = 0.001  # messages that arrive at about the same time are collected together
KEPT_ANSWERS = 16  # the number of log events whose published answers stay in the store


class StoreComm(Comm):
    """A star over a store. Messages are sent in chunks, and deleted when read.

    After a rank missed a deadline, rank 0 looks for the rank's messages without waiting for them, until one arrives. So
    a dead rank costs one wait. Rank 0 deletes messages that arrive late, and counts them in ``late``. It does not wait
    at all for a rank that announced its end. A rank that misses log events of a mode that it never entered, because for
    instance rank 0 evaluates alone, is still waited for in its other modes.

    Rank 0 publishes which log events it took. A rank whose connection breaks then knows which of its events are lost.

    ``store`` has the methods of a ``keystore.Store``. ``copy`` numbers the processes of one rank: process 0 sends for
    the rank, the others are replicas and send nothing.
    """

    def __init__(self, store: Any, rank: int, world_size: int, *, copy: int = 0) -> None:
        super().__init__()
        self.rank = rank
        self.world_size = world_size
        self.replica = copy > 0
        self.collects = rank == 0 and not self.replica
        self.process = _process(rank, copy)
        self.late = 0
        self._store = store  # None when this rank has left
        self._connection = store  # `interrupt` and `close` use this reference
        self._missed: dict[tuple[int, str], deque[Event]] = {}  # the events that a rank missed, by rank and mode
        self._suspects: set[tuple[int, str]] = set()  # ranks that missed an event of a mode
        self._silent: set[int] = set()  # ranks that have sent nothing since they missed an event
        self._unacknowledged: deque[Event] = deque()
        self._taken: dict[str, int] = {}  # by mode: the latest event that rank 0 took
        self._answers: deque[Event] = deque()
        self._latest = math.inf  # when the current wait ends
        self._stopped = False
        self._broken: CommError | None = None
        if self.collects:
            store.set(TAKEN, b"{}")

    @classmethod
    def connect(cls, rank: int, world_size: int, job_store: Any, deadline_s: float, namespace: str) -> StoreComm:
        """Connect a process: on rank 0 open the store and publish its address, on other ranks connect to it.

        Of processes that share a rank, the first one sends for the rank. Raises ``CommError`` if rank 0 publishes no
        address within ``deadline_s``, or cannot be reached there.
        """
        copy = int(job_store.add(f"declog/{namespace}/rank/{rank}", 1)) - 1
        key = f"declog/{namespace}/place"
        if rank == 0 and not copy:
            secret = secrets.token_bytes(32)
            server = Server(secret, _LOOPBACK if _one_host() else _ANYWHERE)
            job_store.set(key, json.dumps({"hosts": _addresses(), "port": server.port, "secret": secret.hex()}))
            return cls(server, rank, world_size)

        def wait(seconds: float) -> bool:
            try:
                job_store.wait([key], timedelta(seconds=seconds))
            except (RuntimeError, ValueError):  # how torch reports a timeout
                return False
            return True

        if not _noticed(wait, deadline_s, lambda: f"rank {rank} waits for rank 0"):
            raise CommError.of("DL603.start", rank=rank, deadline_s=f"{deadline_s:g}")
        address = json.loads(job_store.get(key))
        try:
            client = Client(bytes.fromhex(address["secret"]), address["hosts"], address["port"], min(deadline_s, 10.0))
        except OSError as error:
            if copy:
                # a replica sends nothing, and the run may be over already
                return cls(None, rank, world_size, copy=copy)
            where = " or ".join(address["hosts"])
            raise CommError.of("DL603.port", rank=rank, port=address["port"], where=where) from error
        if copy:
            client.set(_note(_process(rank, copy)), b"here")
        return cls(client, rank, world_size, copy=copy)

    def agree(self, topic: str, text: str, deadline_s: float) -> list[str]:
        keys = [f"agree/{topic}/{rank}" for rank in range(self.world_size)]

        def absent() -> list[int]:
            return [rank for rank, key in enumerate(keys) if self._store.get(key) is None]

        try:
            with self._connected():
                if not self.replica:
                    self._store.set(keys[self.rank], text.encode())
                wait = partial(self._store.wait, keys)
                if not _noticed(wait, deadline_s, lambda: f"rank {self.rank} waits for ranks {absent()}"):
                    raise CommError.of("DL603.ranks", missing=absent(), deadline_s=f"{deadline_s:g}")
                return [self._store.get(key).decode() for key in keys]
        except CommError:
            if not self.replica:  # rank 0 does not wait for replicas, which may start when the run is over
                raise
            return [text] * self.world_size

    # -- ranks above 0

    def send(self, event: Event, data: bytes) -> None:
        if self.replica:
            return
        self._unacknowledged.append(event)
        with self._connected():
            chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)] or [b""]
            for index, chunk in enumerate(chunks[1:], 1):
                self._store.set(_key(event, self.rank, index), chunk)
            # the first chunk is sent last: it has the number of chunks, and tells that all have been sent
            self._store.set(_key(event, self.rank, 0), len(chunks).to_bytes(4, "little") + chunks[0])
            taken = json.loads(self._store.get(TAKEN))
            waiting = [one for one in self._unacknowledged if one.number > taken.get(one.mode, -1)]
            self._unacknowledged = deque(waiting)

    def answer(self, event: Event, deadline_s: float) -> bytes | None:
        end = time.monotonic() + deadline_s
        with self._connected():
            while True:
                departed = self._departed(0)  # checked first, because rank 0 publishes before it leaves
                data: bytes | None = self._store.get(_answer(event))
                if data is not None or departed or self._over(end):
                    return data
                self._pause([_answer(event), _departure(0)], end)

    def _departed(self, rank: int) -> bool:
        """Whether a rank has announced its end."""
        return self._store.get(_departure(rank)) is not None

    def _over(self, end: float) -> bool:
        return self._stopped or time.monotonic() >= min(end, self._latest)

    def _pause(self, keys: Sequence[str], end: float) -> None:
        """Wait until the store has one of ``keys``, but only for a moment."""
        self.idle()
        self._store.wait(keys, max(0.0, min(IDLE_S, min(end, self._latest) - time.monotonic())), every=False)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """Guard a block that uses the store. Once the connection has broken, every block raises that ``CommError``."""
        if self._store is None and self._broken is None:
            self._broken = CommError.of("DL603.left", rank=self.rank)
        if self._broken is not None:
            raise self._broken
        try:
            yield
        except OSError as error:
            self._broken = CommError.of("DL603.lost", rank=self.rank, cause=str(error).splitlines()[0])
            raise self._broken from None

    # -- rank 0

    def receive(self, event: Event, deadline_s: float) -> list[bytes | None]:
        self._latest = math.inf
        self._drop_late()
        waiting = set(range(1, self.world_size))
        messages: list[bytes | None] = [None] * (self.world_size - 1)
        end = time.monotonic() + deadline_s
        while True:
            for rank in sorted(waiting):
                departed = self._departed(rank)  # checked first, because a rank sends before it leaves
                messages[rank - 1] = self._message(event, rank)
                if messages[rank - 1] is not None:
                    self._heard(rank, event.mode)
                if departed or messages[rank - 1] is not None:
                    waiting.discard(rank)
            expected = [rank for rank in waiting - self._silent if (rank, event.mode) not in self._suspects]
            if not expected or self._over(end):
                self._silent |= waiting - set(self.absent(event.mode))
                for rank in waiting:
                    self._suspects.add((rank, event.mode))
                    self._missed.setdefault((rank, event.mode), deque()).append(event)
                self._taken[event.mode] = max(event.number, self._taken.get(event.mode, -1))
                self._store.set(TAKEN, json.dumps(self._taken).encode())
                return messages
            self._pause([key for rank in waiting for key in (_key(event, rank, 0), _departure(rank))], end)
            time.sleep(TOGETHER_S)

    def drop(self, event: Event, rank: int) -> None:
        self._message(event, rank)

    def publish(self, event: Event, data: bytes) -> None:
        self._store.set(_answer(event), data)
        self._answers.append(event)
        while len(self._answers) > KEPT_ANSWERS:
            self._store.pop(_answer(self._answers.popleft()))

    def _heard(self, rank: int, mode: str) -> None:
        self.entered(rank, mode)
        self._silent.discard(rank)
        self._suspects.discard((rank, mode))

    def _drop_late(self) -> None:
        """Delete late messages. A rank that sent one is alive, so rank 0 waits for the rank again."""
        for (rank, mode), missed in self._missed.items():
            while missed and self._message(missed[0], rank) is not None:
                missed.popleft()
                self.late += 1
                self._heard(rank, mode)

    def _message(self, event: Event, rank: int) -> bytes | None:
        """Take a rank's message out of the store; None if it is not there, empty bytes if it is damaged."""
        first: bytes | None = self._store.pop(_key(event, rank, 0))  # the chunk that is sent last
        if first is None:
            return None
        count = int.from_bytes(first[:4], "little")
        if count > MOST_CHUNKS:
            return b""
        chunks = [first[4:], *(self._store.pop(_key(event, rank, index)) for index in range(1, count))]
        return b"" if None in chunks else b"".join(chunks)

    # -- notes

    def write_note(self, key: str, text: str) -> None:
        with self._connected():
            self._store.set(_note(key), text.encode())

    def read_note(self, key: str) -> str | None:
        with self._connected():
            text = self._store.get(_note(key))
            return None if text is None else text.decode()

    def processes(self) -> list[str]:
        names = []
        for rank in range(self.world_size):
            if not self._departed(rank):
                names.append(_process(rank, 0))
            copies = (_process(rank, copy) for copy in itertools.count(1))
            names += itertools.takewhile(lambda process: self.read_note(process) is not None, copies)
        return names

    # -- the end

    def shorten_waits(self, seconds: float) -> None:
        self._latest = min(self._latest, time.monotonic() + seconds)

    def interrupt(self) -> None:
        """Shut this rank's connection: a call to a process that is suspended, not dead, would wait for ever."""
        self._stopped = True
        if self._connection is not None:
            self._connection.interrupt()

    def close(self) -> None:
        """Announce this rank's end and close; rank 0 closes when the other ranks have left, at the latest after 5 s."""
        if self._store is None:
            return
        if self.late:
            log.warning("%d windows of other ranks came too late and were dropped", self.late)
        if self._broken is not None:
            lost = len(self._unacknowledged)
            log.warning("rank 0 has gone: %d log events of rank %d were not taken by it", lost, self.rank)
        elif not self._stopped and not self.replica:
            try:
                self._store.set(_departure(self.rank), b"1")
                if self.rank == 0 and self._connection.serves:
                    keys = [_departure(rank) for rank in range(1, self.world_size) if rank not in self._silent]
                    self._store.wait(keys, 5.0)
            except OSError:
                pass  # the other side has gone
        self._stopped = True
        self._store = None
        self._connection.close()


def _noticed(wait: Callable[[float], bool], deadline_s: float, who: Callable[[], str]) -> bool:
    """Call ``wait(seconds)`` for up to ``deadline_s`` in all; return its result.

    After ``NOTICE_S`` logs a warning that says, by ``who``, which rank waits for whom.
    """
    if deadline_s > NOTICE_S:
        if wait(NOTICE_S):
            return True
        log.warning(
            "%s to start declog, %g s at most: declog.start, or declog.attach, is called on every rank",
            who(), deadline_s,
        )  # fmt: skip
        deadline_s -= NOTICE_S
    return wait(deadline_s)


def _departure(rank: int) -> str:
    return f"left/{rank}"


def _key(event: Event, rank: int, chunk: int) -> str:
    return f"w/{event}/{rank}/{chunk}"


def _process(rank: int, copy: int) -> str:
    return f"{rank}.{copy}" if copy else f"{rank}"


def _note(key: str) -> str:
    return f"note/{key}"


def _answer(event: Event) -> str:
    return f"answer/{event}"


TAKEN = "taken"  # the key under which rank 0 publishes the last event that it took, by mode
_LOOPBACK = ("127.0.0.1", "::1")
_ANYWHERE = ("::", "0.0.0.0")
_ROUTED = ("192.0.2.1", "2001:db8::1")  # reserved addresses: the route to them is the route out of this host


def _one_host() -> bool:
    """Whether all ranks are on this host; the store then listens on the loopback address only."""
    master = os.environ.get("MASTER_ADDR")
    local, world = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    return master in ("localhost", *_LOOPBACK) or (local is not None and local == world)


def _addresses() -> list[str]:
    """The numeric addresses at which other ranks may reach this host; other ranks need not resolve a name."""
    addresses = list(_LOOPBACK)
    if not _one_host():
        for host in (os.environ.get("MASTER_ADDR"), *_ROUTED):
            addresses += [] if host is None else _own_addresses(host)
    return list(dict.fromkeys(addresses))


def _own_addresses(towards: str) -> list[str]:
    """This host's addresses on the routes to the host ``towards``."""
    addresses = []
    with contextlib.suppress(OSError):  # a name that cannot be resolved here
        for family, _, _, _, target in socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)  # connecting a datagram socket sends nothing
                address = str(probe.getsockname()[0])
                # a link-local address means a different host on each link
                addresses += [] if address.startswith("fe80") else [address]
    return addresses


def connect(
    rank: int | None = None,
    world_size: int | None = None,
    process_group: Any = None,
    *,
    namespace: str = "0",
    deadline_s: float = 60.0,
) -> Comm:
    """Connect this process: alone, through an initialised process group, or through torchrun's environment.

    Pass the data-parallel ``rank`` and ``world_size`` if they differ from the job's. Of several processes that pass the
    same rank, only the first one sends rows.
    """
    import torch.distributed as dist

    grouped = dist.is_available() and dist.is_initialized()
    processes = dist.get_world_size(process_group) if grouped else int(os.environ.get("WORLD_SIZE", "1"))
    world_size = processes if world_size is None else world_size
    if rank is None:
        rank = dist.get_rank(process_group) if grouped else int(os.environ.get("RANK", "0"))
    if not 0 <= rank < world_size:
        raise UsageError.of("DL510.rank", rank=rank, world_size=world_size)
    if world_size == processes == 1:
        return Comm()
    # torchrun's store outlives a restart of the workers: the attempt's number keeps entries of earlier attempts apart
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = _job_store(grouped)
    return StoreComm.connect(rank, world_size, store, deadline_s, f"{namespace}.{attempt}")


def _job_store(grouped: bool) -> Any:
    from torch import distributed

    if grouped:
        from torch.distributed.distributed_c10d import _get_default_store

        return _get_default_store()  # torch has no public name for it
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if host is None or port is None or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise UsageError.of("DL510.no_process_group")
    return distributed.TCPStore(  # type: ignore[attr-defined]  # torch does not declare it
        host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30), use_libuv=True
    )
