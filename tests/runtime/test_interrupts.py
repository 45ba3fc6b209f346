"""Interrupts at any line and at any moment: finished steps are in the files, calls are whole, and nothing hangs.

`make soak` strikes at each third line, and at 500 random moments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import forks

# How often at least, and what the program is told.
WAYS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "Ctrl-C at lines of observe and of a block's end": (14, ("lines", "SIGINT", "199", "7")),
    "SIGTERM at lines of observe and of a block's end": (14, ("lines", "SIGTERM", "199", "11")),
    "an exception at lines of the worker": (12, ("worker", "997", "17")),
    "at random moments": (4, ("times", "0", "4")),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_leaves_whole_calls(way: str, tmp_path: Path) -> None:
    """Each in a process of its own: a call is there with all of its values or not at all, and a finished step is."""
    least, words = WAYS[way]
    done = forks.run(["-m", "tests.runtime.interrupting", tmp_path, *words], cwd=tmp_path, whole=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["struck"] >= least and found["wrong"] == []
