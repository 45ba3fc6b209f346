"""Several ranks in one process, each on a thread; for tests and replays.

The threads exchange messages through the star of ``store_comm.py``, over a store in memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self, TypeVar

from declog.runtime.ranks.keystore import Store
from declog.runtime.ranks.store_comm import StoreComm

Result = TypeVar("Result")


class FakeComm(StoreComm):
    """One rank of a job whose ranks are threads of one process; see ``run_ranks``."""

    @classmethod
    def job(cls, world_size: int) -> list[Self]:
        """Return one comm per rank.

        Start each rank's recorder from its own thread, because ``start`` waits for all ranks.
        """
        store = Store()
        return [cls(store, rank, world_size) for rank in range(world_size)]


def run_ranks(world_size: int, body: Callable[[FakeComm], Result], *, timeout_s: float = 60.0) -> list[Result]:
    """Run ``body`` once per rank, each on a thread with its comm, and return the results by rank.

    ``body`` does what a rank's process would do: ``declog.start(..., comm=comm)``, steps, ``close``. It calls the
    methods of its own recorder, because ``declog.observe`` finds recorders process-wide.

    When all threads have ended or ``timeout_s`` is over, raises the error of the lowest failing rank. Without one,
    raises ``TimeoutError`` if a rank still runs.
    """
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def main(comm: FakeComm) -> None:
        try:
            results[comm.rank] = body(comm)
        except BaseException as error:  # noqa: BLE001  (raised below, in the caller's thread)
            errors[comm.rank] = error
        finally:
            comm.close()

    comms = FakeComm.job(world_size)
    threads = [threading.Thread(target=main, args=(comm,), name=f"rank-{comm.rank}", daemon=True) for comm in comms]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if errors:  # raised first: other ranks may hang because of it
        raise errors[min(errors)]
    hung = [comm.rank for comm, thread in zip(comms, threads, strict=True) if thread.is_alive()]
    if hung:
        raise TimeoutError(f"ranks {hung} did not end within {timeout_s:g} s")
    return [results[rank] for rank in range(world_size)]
