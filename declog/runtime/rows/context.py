"""The open recorders, and the functions that find the current one from anywhere.

The context's scope has the current recorder. Without a scope, as in a bare thread, it is the recorder whose block was
opened last in the process. So a reward function three calls below the loop needs no reference to the recorder.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from declog.errors.habits import answered
from declog.runtime.rows.scopes import Recording, here

log = logging.getLogger("declog")
_running: list[Recording] = []  # all recorders that are started and not closed; the latest is last
_giver: ContextVar[str | None] = ContextVar("giver", default=None)  # who passed the values that are being recorded
_told = False  # whether this process has logged the warning that no run is open
_lock = threading.RLock()  # reentrant: a signal handler may close a recorder on the thread that it interrupts


def know(recorder: Recording) -> None:
    """Register a recorder, so that forks of this process and values outside of any scope find it."""
    with _lock:
        _running.append(recorder)


def trains(recorder: object) -> None:
    """Tell the other open recorders that a trainer trains with this one."""
    with _lock:
        for one in _running:
            if one is not recorder:
                one.trained_beside = recorder


def _in_child() -> None:
    """Renew the lock in a fork, where nobody releases the locks of other threads, and tell the recorders."""
    global _lock
    _lock = threading.RLock()
    for recorder in list(_running):
        recorder.in_child()


os.register_at_fork(after_in_child=_in_child)


def forget(recorder: Recording) -> None:
    """Unregister a closed recorder: it is no longer found, not even inside one of its blocks that is still open."""
    with _lock:
        _running[:] = [one for one in _running if one is not recorder]


def close_ended(rank: int, folders: Iterable[Path], *, but: Recording | None = None) -> None:
    """Close the runs that hold these folders on this rank if their loops have ended: another run wants a folder."""
    for folder in folders:
        with _lock:
            ended = [one for one in _running if one is not but and (rank, folder) in one.idle_in]
        for recorder in ended:
            log.warning("the run in %s had ended, and is closed now: another one asks for its folder", folder)
            recorder.close()


@contextmanager
def giving(who: str) -> Iterator[None]:
    """Name the code that passes the values recorded in the block; for messages."""
    token = _giver.set(who)
    try:
        yield
    finally:
        _giver.reset(token)


def giver() -> str | None:
    """The code that passed the values that are being recorded, as ``giving`` named it; None: not named."""
    return _giver.get()


def current() -> Recording | None:
    """The recorder of the current step or `with` block, else the one that the process opened last.

    A run with ``steps="commit"`` is open from its start to its end.
    """
    scope = here()
    if scope is not None:
        return scope.recorder
    with _lock:
        recorder = max(_running, key=lambda one: one.innermost, default=None)
    return recorder if recorder is not None and recorder.innermost else None


def running() -> Recording | None:
    """The current recorder, else the open recorder that was started last."""
    recorder = current()
    if recorder is None:
        with _lock:
            return _running[-1] if _running else None
    return recorder


def observe(*arguments: Any, step: Any = None, **signals: Any) -> None:
    """``Recorder.observe`` of the current recorder, from anywhere; a warning, once, if no run is open."""
    recorder = running() or _nobody("observe")
    if recorder is not None:
        recorder.observe(*arguments, step=step, **signals)


def merge(exports: Iterable[bytes], wait_s: float | None = None) -> None:
    """``Recorder.merge`` of the current recorder, a driver's; nothing if no run is open."""
    recorder = current() or _nobody("merge")
    if recorder is not None:
        recorder.merge(exports, wait_s)


@answered
def timer(name: str) -> AbstractContextManager[None]:
    """``Recorder.timer`` of the current recorder, from anywhere; nothing if no run is open."""
    recorder = current() or _nobody("timer")
    return nullcontext() if recorder is None else recorder.timer(name)


@answered
def log_metric(name: str, value: Any) -> None:
    """``Recorder.log_metric`` of the current recorder, from anywhere; nothing if no run is open."""
    recorder = current() or _nobody("log_metric")
    if recorder is not None:
        recorder.log_metric(name, value)


@answered
def scalars(values: Mapping[str, Any], step: int | None = None) -> dict[str, Any]:
    """``Recorder.scalars`` of the current recorder, from anywhere; nothing if no run is open."""
    recorder = running() or _nobody("scalars")
    return dict(values) if recorder is None else recorder.scalars(values, step)


@answered
def log_extra(column: str, values: Any) -> None:
    """``Recorder.log_extra`` of the current recorder, from anywhere; nothing if no run is open."""
    recorder = current() or _nobody("log_extra")
    if recorder is not None:
        recorder.log_extra(column, values)


@answered
def keep(**columns: Any) -> None:
    """``Recorder.keep`` of the current recorder, from anywhere; nothing if no run is open."""
    recorder = current() or _nobody("keep")
    if recorder is not None:
        recorder.keep(**columns)


def _nobody(function: str) -> Recording | None:
    """Warn once per process that a call had no open run."""
    global _told
    if not _told:
        _told = True
        log.warning(
            "declog.%s: no run is open here, so nothing is recorded\n"
            "  fix: call it inside `with declog.start(\"grpo\") as log, log.step(k):`, or after declog.attach(trainer)",
            function,
        )  # fmt: skip
    return None
