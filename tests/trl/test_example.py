"""The example, run as a stranger runs it: on one rank and on two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trl.jobs import ROOT

LAUNCH = {1: [], 2: ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]}


@pytest.mark.parametrize("ranks", LAUNCH)
def test_the_example(ranks: int, tmp_path: Path) -> None:
    """It logs to its files, a metric that an override adds among the rest, and says where they are."""
    overrides = ["trainer.max_steps=4", "trainer.logging_steps=2", "trainer.eval_steps=4", "trainer.save_strategy=no"]
    overrides += ["+declog.metrics.longest={expr: length, reduce: max}", "declog/sinks=[jsonl,parquet]"]
    done = subprocess.run(
        [sys.executable, *LAUNCH[ranks], str(ROOT / "examples" / "trl_grpo.py"), *overrides],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    folder = tmp_path / "outputs" / "trl_grpo" / "declog"
    lines = [json.loads(line) for line in (folder / "jsonl" / "scalars.jsonl").read_text().splitlines()]
    assert [(line["step"], line["mode"]) for line in lines] == [(2, "train"), (4, "train"), (4, "eval"), (4, "train")]
    assert lines[0]["scalars"]["longest"] >= lines[0]["scalars"]["completions/max_length"]
    assert {"reward", "kl", "reward_p90", "ended", "loss", "rewards/digits/mean"} <= set(lines[0]["scalars"])
    assert "reward by step" in done.stdout and "outputs/trl_grpo/declog" in done.stdout
    assert list((folder / "parquet" / "tables" / "completions").iterdir())
