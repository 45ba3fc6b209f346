"""A stop that an alert asks for: all processes end training after the same step.

Rank 0's worker announces the stop. The worker of each process answers with the last step at which its training thread
asked ``should_stop`` and went on: the promise. From then on the thread goes past no later step before the verdict. The
verdict is the step after the latest promise. Training threads exchange nothing.
"""

from __future__ import annotations

import logging
import threading
import time

from declog.errors import RuntimeFailure
from declog.runtime.ranks.comm import Comm
from declog.runtime.run.failures import Failures
from declog.sinks.waiting import Latch

log = logging.getLogger("declog")

POLL_S = 0.1  # how often a worker looks for notes
ASKED, STEP = "stop", "stop/step"  # the notes of rank 0; other processes write answers
BEFORE_ALL = -1  # a step before the first


class Stop:
    """Decides in one process whether training ends. The worker calls ``poll``, the training thread ``after``.

    A process waits at most ``wait_s`` seconds for the others.
    """

    def __init__(self, comm: Comm, failures: Failures, wait_s: float) -> None:
        self._comm = comm
        self._failures = failures
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._passed = BEFORE_ALL  # the last step after which training went on
        self._promised: int | None = None  # training goes past no later step before the verdict
        self._step: int | None = None  # the verdict: training ends after this step
        self._decided = Latch()
        self._asked: tuple[str, int] | None = None  # rank 0: the alert that asked, and the step that it fired at
        self._answers: dict[str, int] = {}  # rank 0: the steps that processes promised
        self._give_up = 0.0  # rank 0: the time at which it stops waiting for answers
        self._next_look = 0.0
        self._broken = False

    def after(self, step: int) -> bool:
        """Whether training ends after this step. If the verdict is late, reports this, and training goes on."""
        with self._lock:
            if self._step is None and (self._promised is None or step <= self._promised):
                self._passed = max(self._passed, step)
                return False
        if not self._decided.wait(self._wait_s):
            self._failures.report(RuntimeFailure.of("DL613.verdict", seconds=f"{self._wait_s:g}", step=step))
            with self._lock:
                self._promised = None
        return self._step is not None and step >= self._step

    def ask(self, alert: str, step: int) -> None:
        """Ask for a stop because an alert fired at a step. Called by rank 0's worker."""
        if self._asked is None:
            self._asked, self._next_look = (alert, step), 0.0

    def poll(self) -> None:
        """Advance the exchange towards a verdict, if possible. Called by the worker; never waits for a process."""
        if self._broken or self._step is not None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + POLL_S
        try:
            if not self._comm.collects:
                self._follow()
            elif self._asked is not None:
                self._lead(*self._asked)
        except Exception as error:  # noqa: BLE001  (the exchange of rows goes on)
            self._broken = True
            self._failures.report(error, "ranks cannot agree on a stop")

    def _lead(self, alert: str, fired: int) -> None:
        leader, now = self._comm.process, time.monotonic()
        if leader not in self._answers:
            self._answers[leader], self._give_up = self._promise(), now + self._wait_s
            self._comm.write_note(ASKED, alert)
        waiting = [process for process in self._comm.processes() if process not in self._answers]
        for process in waiting:
            if (text := self._comm.read_note(_answer(process))) is not None:
                self._answers[process] = int(text)
        missing = [process for process in waiting if process not in self._answers]
        if missing and now < self._give_up:
            return
        if missing:
            self._failures.report(RuntimeFailure.of("DL613.answers", ranks=missing, seconds=f"{self._wait_s:g}"))
        step = max(self._answers.values()) + 1
        self._comm.write_note(STEP, str(step))
        self._decide(step)
        message = "the alert `%s` of step %d asks training to end: `log.should_stop` is true from step %d on"
        log.warning(message, alert, fired, max(step, fired))

    def _follow(self) -> None:
        process = self._comm.process
        if process not in self._answers:
            if self._comm.read_note(ASKED) is None:
                return
            self._answers[process] = self._promise()
            self._comm.write_note(_answer(process), str(self._answers[process]))
        if (text := self._comm.read_note(STEP)) is not None:
            self._decide(int(text))

    def _promise(self) -> int:
        with self._lock:
            self._promised = self._passed
            return self._passed

    def _decide(self, step: int) -> None:
        with self._lock:
            self._step = step
        self._decided.set()


def _answer(process: str) -> str:
    return f"stop/{process}"
