"""Interrupts at any line and at any moment: finished steps are in the files, calls are whole, and nothing hangs.

`make soak` strikes at each third line, and at 500 random moments.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import forks

AT_RANDOM = 12
WAYS = {
    "Ctrl-C at lines of observe and of a block's end": ("lines", "SIGINT", "89", "7"),
    "SIGTERM at lines of observe and of a block's end": ("lines", "SIGTERM", "89", "11"),
    "an exception at lines of the worker": ("worker", "499", "17"),
    "at random moments": ("times", "0", str(AT_RANDOM)),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_leaves_whole_calls(way: str, tmp_path: Path) -> None:
    """Each in a process of its own: a call is there with all of its values or not at all, and a finished step is."""
    done = forks.run(["-m", "tests.runtime.interrupting", tmp_path, *WAYS[way]], cwd=tmp_path, whole=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["struck"] >= AT_RANDOM and found["wrong"] == []
