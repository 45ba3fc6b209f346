"""Live runs of what takes more than arguments: as without declog, bit by bit, and all of it is in declog's sinks.

`python -m tests.soak --only trl` has all of them, those of `cases` too, and two ranks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.trl import live


@pytest.mark.parametrize("name", live.FEW)
def test_a_live_run(name: str, model: Path, tmp_path: Path) -> None:
    """Weights and history are those of the run without declog, and each value of TRL's is in a log event."""
    values, problems = live.problems(name, model, tmp_path)
    assert problems == []
    assert values >= 90
