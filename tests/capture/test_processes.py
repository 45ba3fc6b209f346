"""Captures of real processes: each writes its own file, and together they give what rank 0 logged."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

from declog.replay import capture_reader
from tests.capture.keeping import timeless
from tests.test_ranks_processes import environment, free_port


def test_two_processes(tmp_path: Path) -> None:
    """Under torchrun with gloo: rank 1 learns from rank 0 where the capture goes."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}",
        str(Path(__file__).parent / "job.py"), str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(command, env=environment(), cwd=tmp_path, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    live = pickle.loads((tmp_path / "kept.pickle").read_bytes())
    loaded = capture_reader.load(tmp_path)
    assert (loaded.world_size, sorted(loaded.files), loaded.steps) == (2, [0, 1], 3)
    assert len(live) >= 3 and timeless(capture_reader.replay(tmp_path)["<code>"]) == timeless(live)
