"""The example, run as a stranger runs it: on one rank and on two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import forks
from tests.faults import jobs


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_example(ranks: int, tmp_path: Path) -> None:
    """It logs to its files, a metric that an override adds among the rest, and says where they are."""
    overrides = ["trainer.max_steps=4", "trainer.logging_steps=2", "trainer.eval_steps=4", "trainer.save_strategy=no"]
    overrides += ["+declog.metrics.longest={expr: length, reduce: max}", "declog.sinks=[jsonl,parquet]"]
    command: list[str | Path] = [forks.ROOT / "examples" / "trl_grpo.py", *overrides]
    done = jobs.run(tmp_path, ranks, command, env={"HOME": str(tmp_path)}, imports=forks.TRL)
    assert done.codes == (0,) * ranks, done.outputs[0][-6000:]
    folder = tmp_path / "outputs" / "trl_grpo" / "declog"
    lines = [json.loads(line) for line in (folder / "jsonl" / "scalars.jsonl").read_text().splitlines()]
    assert [(line["step"], line["mode"]) for line in lines] == [(2, "train"), (4, "train"), (4, "eval"), (4, "train")]
    assert lines[0]["scalars"]["longest"] >= lines[0]["scalars"]["completions/max_length"]
    assert {"reward", "kl", "reward_p90", "ended", "loss", "rewards/digits/mean"} <= set(lines[0]["scalars"])
    assert "reward by step" in done.outputs[0] and "outputs/trl_grpo/declog" in done.outputs[0]
    assert list((folder / "parquet" / "tables" / "completions").iterdir())
