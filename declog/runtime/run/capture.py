"""Captures: every call of a recorder with its arguments, in a file that ``declog.replay`` plays.

Each rank has one file of containers: first a description of the run, then one container per call. A part (a step, a
block of another mode, or a flush) is complete when its last call is written. Parts that a crash, a full disk or a full
queue cut off are not read. The training thread copies the arguments and goes on; one other thread writes.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from declog.errors import InputError, SinkError, error_text
from declog.language.patterns import redacted
from declog.plans.ops import CaptureOp, Plan
from declog.runtime.ranks.wire import Packer
from declog.runtime.recording.timing import Clock
from declog.runtime.values.extras import plain_column
from declog.runtime.values.snapshots import Full, Redact, Snapshot, encode
from declog.runtime.values.streams import beside_graphs
from declog.sinks.waiting import Latch

log = logging.getLogger("declog")

FORMAT = 2
SUFFIX = ".declog"
CLOSE_S = 60.0  # the seconds that the end of a run waits for the capture to be written
_DEPTH = {"begin": 1, "enter": 1, "end": -1, "leave": -1}  # calls that open and close parts
# the calls that begin and end a scope, by the kind of the scope
BEGINS = {"step": "begin", "at": "at", "mode": "enter", "batch": "batch"}
ENDS = {"step": "end", "at": "unat", "mode": "leave", "batch": "unbatch"}
OBSERVING = frozenset({"observe", "packet"})
_ALWAYS = frozenset({"rewind", "close"})  # calls of the run itself, kept even if their log event is not
_LAST = frozenset({"end", "leave", "flush", "rewind", "close"})  # calls that may end a part


@dataclass
class Call:
    """One call of a recorder: its name, its arguments, and the seconds since the start.

    ``part`` numbers the parts; with the ``last`` call a part is complete. ``failed``: the call raised an error.
    """

    name: str
    what: Sequence[Any] = ()
    at: float = 0.0
    part: int = 0
    failed: bool = False
    last: bool = False
    scope: int = 0  # the number of its scope; 0: none
    origin: int = 0  # the number of its task or thread
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(0), repr=False, compare=False)


def file_of(folder: Path, rank: int) -> Path:
    """The capture file of a rank."""
    return folder / f"rank-{rank:05d}{SUFFIX}"


def free_folder(folder: Path, rank: int) -> Path:
    """Return the folder, or the next free one beside it, so that a resumed run keeps its earlier capture."""
    beside = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(one for one in itertools.chain([folder], beside) if not file_of(one, rank).exists())


class CaptureLog(Clock):
    """Writes the calls of one rank's recorder. It is also the recorder's clock, which stands still during a call."""

    def __init__(self, plan: Plan, op: CaptureOp, folder: Path, rank: int, world_size: int) -> None:
        super().__init__()
        self._plan = plan
        self._op = op
        self._now = 0.0
        self._calls = 0  # the nested calls under way: for instance a block's end observes its timers
        self._depth = 0
        self._part = 0
        self._kept = False  # whether any call of this part is kept
        self._broken = False  # whether a call of this part could not be copied: then the whole part is not read
        self._scopes: dict[int, bool] = {}  # by the id of an open scope: whether its calls are kept
        self._reported = False
        self._step: tuple[int, int] | None = None  # the open optimizer step's number, and the id of its scope
        # whether rows were recorded for a step that was not open: then a kept part may need rows of a part left out
        self._ahead = False
        self._ended = False
        self._events: Counter[str] = Counter()  # the number of log events by mode
        # modes that log once per block
        self._blocks = {name for name, op in plan.modes.items() if name != "train" and not op.every}
        self.writer = _Writer(file_of(folder, rank), op.limit, plan, _run(plan, op, rank, world_size))

    def elapsed(self) -> float:
        return self._now

    @contextmanager
    def call(self, name: str, what: tuple[Any, ...], scope: int = 0, origin: int = 0) -> Iterator[None]:
        """Record a call that changes the logged values, which runs inside the block.

        Copies the call's arguments before it runs. Writes the call afterwards, with the numbers of its ``scope`` and
        its task (``origin``), and whether it raised an error.
        """
        if not self._calls:
            self._now = super().elapsed()
        self._follow(name, what, scope)
        keep = name in _ALWAYS or (self._keeps(name, what, scope) and not self._broken and not self._ended)
        copy = self._copy(name, what) if keep and not self.writer.stopped else None
        self._kept |= copy is not None
        if copy is not None:
            copy.scope, copy.origin = scope, origin
        failed = True
        self._calls += 1
        try:
            yield
            failed = False
        finally:
            self._calls -= 1
            self._done(name, copy, failed)

    def _keeps(self, name: str, what: Sequence[Any], scope: int) -> bool:
        """Whether a call belongs to a kept log event: its scope decides, and for a new scope the scope around it.

        Also notes the scopes that begin and end.
        """
        if not scope:
            return self._captures("train")
        if name in BEGINS.values():
            around = 0 if name == "at" else what[-1]
            captured = self._captures(what[0]) if name == "enter" else self._scopes.get(around, self._captures("train"))
            self._scopes[scope] = captured
            if name == "enter" and what[0] in self._blocks:
                self._events[what[0]] += 1
        elif name in ENDS.values():
            return self._scopes.pop(scope, False)
        return self._scopes.get(scope, self._captures("train"))

    def _captures(self, mode: str) -> bool:
        return self._ahead or (self._op.mode in (None, mode) and self._events[mode] % self._op.every == 0)

    def _follow(self, name: str, what: Sequence[Any], scope: int) -> None:
        """Note the open step, and rows recorded ahead of their step: from then on no part can be left out."""
        if self._op.mode not in (None, "train"):
            return
        if name in ("begin", "end"):
            if name == "begin" and not what[1]:
                self._step = what[0], scope
            elif name == "end" and self._step is not None and self._step[1] == scope:
                self._step = None
        elif name == "at" and not self._ahead and (self._step is None or self._step[0] != what[0]):
            self._ended = not self._captures("train")
            self._ahead = True
            if self._op.every == 1 and self._op.mode is None:
                return
            log.warning(
                "the capture %s: rows come ahead of their steps, with log.at(%s), and would be left out with others; "
                "capture such a run with `every: 1` and no `mode`",
                "ends here" if self._ended else "keeps all log events", what[0],
            )  # fmt: skip

    def logged(self, mode: str) -> None:
        """Count a log event of a mode that was handed to the worker inside a call."""
        if mode not in self._blocks:
            self._events[mode] += 1

    def _copy(self, name: str, what: Sequence[Any]) -> Call | None:
        snapshot = Snapshot(self._op.queue - self.writer.waiting)
        try:
            copies = tuple(self._copies(name, what, snapshot))
        except Full:
            self._leave_out("its queue is full: training is faster than the disk")
            return None
        except (KeyboardInterrupt, SystemExit):  # on the training thread the error may come from a signal handler
            raise
        except BaseException as error:  # noqa: BLE001  (training goes on, whatever the arguments are)
            self._leave_out(error_text(error))
            return None
        return Call(name, copies, self._now, self._part, snapshot=snapshot)

    def _copies(self, name: str, what: Sequence[Any], snapshot: Snapshot) -> Iterator[Any]:
        if name in OBSERVING:
            yield {key: snapshot.copy(value) for key, value in self._plan.taken(what[0]).items()}
        elif name == "extra" and what[0] not in self._plan.signal_names:
            yield what[0]
            with suppress(InputError):  # the call itself raises this error if a table keeps the column
                yield snapshot.copy(plain_column(what[0], what[1]))
        else:
            yield from (snapshot.copy(item) for item in what)

    def _leave_out(self, why: str) -> None:
        self._broken = True
        if not self._reported:
            self._reported = True
            log.warning("the capture leaves steps out: %s", why)

    def _done(self, name: str, call: Call | None, failed: bool) -> None:
        step = _DEPTH.get(name, 0)
        self._depth += step if step < 0 or not failed else 0
        last = self._depth <= 0 and name in _LAST
        if call is None and last and self._kept and not self._broken:
            call = Call("mark", at=self._now, part=self._part)  # marks the part complete: its last call is left out
        if call is not None:
            call.failed, call.last = failed, last
            self.writer.put(call)
        if last:
            self._depth, self._kept, self._broken = 0, False, False
            self._part += 1


class _Writer:
    """The thread that writes the capture, and its file, which begins with the description of the ``run``."""

    def __init__(self, path: Path, limit: int, plan: Plan, run: Mapping[str, Any]) -> None:
        self.waiting = 0  # bytes that are copied but not written
        self.stopped = False
        self._path = path
        self._limit = limit
        self._redact = {name: _redactor(patterns) for name, patterns in plan.redactions.items()}
        self._declared = plan.signal_names
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._parts = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("wb")
        except OSError as error:
            raise SinkError.of("DL601.capture", error=error) from error
        self._over = Latch()
        self._complete = self._file.write(Packer().seal(run))  # the offset at which the last complete part ends
        self._file.flush()
        threading.Thread(target=self._main, name="declog-capture", daemon=True).start()

    def put(self, call: Call) -> None:
        """Hand over a call; returns at once."""
        with self._lock:
            self.waiting += call.snapshot.bytes
        self._queue.put(call)

    def in_child(self) -> None:
        """Drop the buffered data in a fork: the parent writes it, so it would be written twice."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._file.fileno())
        os.close(nowhere)

    def close(self) -> None:
        """Write the waiting calls, up to a deadline."""
        self._queue.put(None)
        # not Thread.join(): after an interrupt it reports a running thread as ended
        if not self._over.wait(CLOSE_S):
            log.warning("the capture %s is not whole: it could not be written within %g s", self._path, CLOSE_S)

    def _main(self) -> None:
        while (call := self._queue.get()) is not None:
            try:
                beside_graphs()
                call.snapshot.wait()
                if not self.stopped:
                    self._write(call)
            except BaseException as error:  # noqa: BLE001  (training goes on: a full disk, or an object of the user)
                self._stop(error_text(error))
            finally:
                with self._lock:
                    self.waiting -= call.snapshot.bytes
        with suppress(OSError):
            self._file.close()
        self._over.set()

    def _write(self, call: Call) -> None:
        packer = Packer()
        data = packer.seal(
            {
                "call": call.name, "what": self._encoded(call, packer), "at": call.at, "part": call.part,
                "failed": call.failed, "last": call.last, "scope": call.scope, "origin": call.origin,
            }
        )  # fmt: skip
        if self._file.tell() + len(data) > self._limit:
            self._stop(f"it has reached its limit of {self._limit:,} bytes after {self._parts} steps")
            return
        self._file.write(data)
        if call.last:
            self._file.flush()
            self._complete = self._file.tell()
            self._parts += 1

    def _encoded(self, call: Call, packer: Packer) -> list[Any]:
        if call.name in OBSERVING:
            undeclared = self._redact.get("*")  # undeclared texts are redacted as columns of log_extra are
            redacts = {
                key: self._redact.get(key, None if key in self._declared else undeclared) for key in call.what[0]
            }
            return [{"map": [[key, encode(value, packer, redacts[key])] for key, value in call.what[0].items()]}]
        redact = self._redact.get(call.what[0], self._redact.get("*")) if call.name == "extra" else None
        return [encode(item, packer, redact if index else None) for index, item in enumerate(call.what)]

    def _stop(self, why: str) -> None:
        self.stopped = True
        log.warning("the capture %s ends here: %s", self._path, why)
        with suppress(OSError):
            self._file.flush()
            self._file.truncate(self._complete)


def _run(plan: Plan, op: CaptureOp, rank: int, world_size: int) -> dict[str, Any]:
    """Return the description of a run for its capture: enough to execute its config again."""
    run = {
        "capture": FORMAT, "name": plan.name, "rank": rank, "world_size": world_size, "time": time.time(),
        "fingerprint": plan.fingerprint, "every": op.every, "mode": op.mode, "profile": plan.config,
        "constants": plan.offered, "requested": sorted(plan.requested),
    }  # fmt: skip
    data: dict[str, Any] = json.loads(json.dumps(run, default=str))
    return data


def _redactor(patterns: Sequence[tuple[str, str]]) -> Redact:
    return lambda text: redacted(text, tuple(patterns))
