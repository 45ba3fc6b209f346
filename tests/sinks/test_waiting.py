"""What waits where a signal may interrupt: latches and conditions that are asked for; and that nothing else does."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import declog
from declog.sinks.waiting import Latch, until


def test_a_latch_comes_once() -> None:
    """Whoever waits goes on, also those that come later; who waits in vain is told so."""
    latch = Latch()
    assert not latch.wait(0.01) and not latch.is_set()
    heard: list[bool] = []
    threads = [threading.Thread(target=lambda: heard.append(latch.wait(30))) for _ in range(3)]
    for thread in threads:
        thread.start()
    latch.set()
    for thread in threads:
        thread.join(30)
    assert heard == [True] * 3
    assert latch.wait() and latch.is_set() and latch.wait(0)


def test_a_condition_is_asked_until_it_holds() -> None:
    """At most for so long, and once more at the end."""
    asked: list[int] = []
    assert until(lambda: len(asked) > 4 or asked.append(1) is not None, 30)  # type: ignore[func-returns-value]
    began = time.monotonic()
    assert not until(lambda: False, 0.05)
    assert time.monotonic() - began >= 0.05
    assert until(lambda: True, 0)


def test_no_lock_is_code_of_python() -> None:
    """`with` enters a lock of C: of an event, or of a condition itself, an interrupt may keep the lock for ever.

    The class is every wait of the training thread: it hung where a signal came between the lock and the block.
    """
    wrong = []
    for path in Path(declog.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        conditions = re.findall(r"self\.(\w+) = threading\.Condition\(self\._lock\)", text)
        if path.name == "waiting.py":  # it says why
            continue
        wrong += [f"{path.name}: {name}" for name in re.findall(r"threading\.Event\b|\bFuture\(", text)]
        wrong += [f"{path.name}: Condition"] * (len(re.findall(r"threading\.Condition\b", text)) - len(conditions))
        wrong += [f"{path.name}: {name}" for name in conditions if f"with self.{name}:" in text]
    assert wrong == []
