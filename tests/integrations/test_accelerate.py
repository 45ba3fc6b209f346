"""``DeclogTracker`` in a loop of accelerate's, with gradient accumulation, on one process and on two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults import jobs


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loop(ranks: int, tmp_path: Path) -> None:
    """Windows of two steps: the worst of all processes' errors, means of other numbers, and the config of the run."""
    ended = jobs.run(tmp_path, ranks, ["-m", "tests.integrations.accelerating", tmp_path])
    assert ended.codes == (0,) * ranks, "\n".join(text[-3000:] for text in ended.outputs)
    kept = json.loads((tmp_path / "kept.json").read_text())
    steps = kept["steps"]
    assert [len(errors) for errors in steps] == [8] * 4
    assert sorted(kept["scalars"]) == ["1", "3"]
    for last, values in kept["scalars"].items():
        window = steps[int(last) - 1 : int(last) + 1]
        assert values == {
            "worst": pytest.approx(max(map(max, window))),
            "loss": pytest.approx(sum(map(sum, window)) / 16),
            "time/forward": int(last) - 0.5,
        }
    assert kept["config"]["run_config"]["accelerate"] == {"lr": 0.1, "nested": {"name": "x"}}
