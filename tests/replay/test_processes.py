"""Captures of real processes: each writes its own file, and together they give what rank 0 logged."""

from __future__ import annotations

import pickle
from pathlib import Path

from declog.replay import capture_reader
from tests.faults import jobs
from tests.replay.keeping import timeless


def test_two_processes(tmp_path: Path) -> None:
    """With gloo: rank 1 learns from rank 0 where the capture goes."""
    ended = jobs.run(tmp_path, 2, ["-m", "tests.replay.job", tmp_path])
    assert ended.codes == (0, 0), ended.outputs
    live = pickle.loads((tmp_path / "kept.pickle").read_bytes())
    loaded = capture_reader.load(tmp_path)
    assert (loaded.world_size, sorted(loaded.files), loaded.steps) == (2, [0, 1], 3)
    assert len(live) >= 3 and timeless(capture_reader.replay(tmp_path)["<code>"]) == timeless(live)
