"""The verbs that look at configs and runs, and `declog.read`, work where torch cannot be imported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import declog

RUN = Path(__file__).parents[1] / "data" / "runs" / "1f9550e" / "run"
BLOCKED = """
import contextlib, io, json, sys, traceback
sys.modules["torch"] = None
from declog.cli import main
from declog.plans.words import explain
import declog
found = {}
for words in json.loads(sys.argv[1]):
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(words)
    except BaseException:
        code = traceback.format_exc()
    found[" ".join(words)] = [code, out.getvalue()]
with contextlib.redirect_stdout(io.StringIO()):
    found["read"] = [0, str(len(list(declog.read("run").scalars)))]
    found["plan"] = [0, explain(declog.plan("trl_grpo"))]
assert sys.modules["torch"] is None
print(json.dumps(found))
"""
VERBS = [
    ["check", "mine.yaml"], ["diff", "mine.yaml", "grpo"], ["ls"], ["ls", "presets"], ["ls", "metrics", "grpo"],
    ["ls", "functions"], ["ls", "sinks"], ["ls", "signals", "trl_grpo"], ["show", "mine.yaml"],
    ["show", "--plan", "grpo"], ["show", "--yaml", "trl_grpo"],
    ["show", "--format", "json", "ppo"], ["show", "mine.yaml", "--why", "metrics.mine"],
    ["check", "mine.yaml", "--lock"], ["check", "--locked", "mine.yaml"], ["diff", "mine.yaml", "rloo"],
    ["report", "run"], ["samples", "run"], ["explain", "DL510"],
    ["add", "kept", "by_source: {expr: reward, by: source}"],
]  # fmt: skip
EXECUTING = [["test", "grpo"], ["preview", "grpo"]]
KEEPING = {
    "run": {"name": "kept"}, "signals": {"any": {"reward": "completion", "source": "completion text"}},
    "metrics": {"reward": "mean", "attempts": {"expr": "reward", "by": "source", "reduce": "count"}},
    "sinks": ["jsonl"],
}  # fmt: skip


def test_what_needs_no_torch(tmp_path: Path) -> None:
    """In a fresh process whose torch is blocked, each ends as it does with torch."""
    (tmp_path / "mine.yaml").write_text("defaults: [grpo, _self_]\nmetrics: {mine: 'mean(reward)'}\n")
    shutil.copytree(RUN, tmp_path / "run")
    config = (RUN / "config.yaml").read_text().replace("metric: reward.max\n    above: 6", "when: reward.max > 6")
    (tmp_path / "run/config.yaml").write_text(config)  # in today's words
    with declog.start(KEEPING, output_dir=tmp_path / "kept") as log, log.step(0):
        log.observe(reward=[1.0, 2.0], source=["math", "code"])
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, json.dumps([*VERBS, *EXECUTING])],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout.splitlines()[-1])
    for words in EXECUTING:  # these run recorders: they say what to install
        code, output = results.pop(" ".join(words))
        assert code == 2 and "Traceback" not in output
        assert f"`declog {words[0]}` needs torch, which is not installed" in output and "[torch]" in output
    assert {words: result for words, result in results.items() if result[0] != 0} == {}
    assert all(output for words, (_, output) in results.items() if words != "report run")
    assert "torch" not in done.stderr and results["read"][1] == "27"
    assert declog.read(tmp_path / "kept")["by_source/code"].values.tolist() == [2.0]
