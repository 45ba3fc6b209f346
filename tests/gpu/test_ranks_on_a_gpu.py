"""Two processes of one GPU, under torchrun with gloo and with NCCL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.faults.jobs import free_port
from tests.runtime.ranks import work
from tests.runtime.test_ranks import equal


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_two_processes_log_what_one_logs(backend: str, tmp_path: Path) -> None:
    """What one process logs of the same rows on the host, to 1e-12; nothing on rank 1.

    NCCL takes no two ranks on one device: a single collective of declog would fail the job.
    """
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}",
        str(Path(__file__).parent / "rank_job.py"), str(tmp_path), backend,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env=forks.environment({"GLOO_SOCKET_IFNAME": "lo"}), capture_output=True, text=True,
        timeout=forks.PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = (json.loads((tmp_path / f"result_{rank}.json").read_text()) for rank in range(2))
    equal(first["own groups"], json.loads(json.dumps(work.alone(2, tmp_path / "alone"))))
    equal(first["spread groups"], json.loads(json.dumps(work.split_alone(2, tmp_path / "split"))))
    nothing: Any = {"scalars": {}, "partial": [], "tables": []}
    assert second == {"own groups": nothing, "spread groups": nothing}
