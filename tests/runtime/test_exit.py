"""How runs end without `close`: what was recorded is in the files, and the exit code is the program's own."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests import forks

PROGRAM = """
import os
import sys
import torch
import declog

signals = {"any": {"x": {"axis": "completion"}, "kl": {"axis": "token"}, "text": "completion text"}}
log = declog.start(
    {
        "every": 4, "signals": signals, "metrics": {"x": "sum(x)", "kl": "mean(kl)"},
        "axes": {"token": {"mask": "all"}}, "schemas": {"s": {"text": "text"}}, "tables": {"t": {"schema": "s"}},
        "sinks": ["lines", "files"], "sink_options": {"lines": {"kind": "jsonl"}, "files": {"kind": "parquet"}},
    },
    output_dir=sys.argv[1],
)
for step in range(6):
    with log.step(step):
        log.observe(x=torch.ones(3), kl=torch.ones(3, 400), text=["a", "b", "c"])
        if sys.argv[2] == "raise" and step == 5:
            raise ValueError("mine")
if sys.argv[2] == "fork" and os.fork() == 0:
    sys.exit(0)  # runs what the interpreter runs at its end, in a process without the run's threads
if sys.argv[2] == "fork":
    os.wait()
if sys.argv[2] == "exit":
    sys.exit(5)
print("done")
"""


@pytest.mark.parametrize(
    ("how", "code", "last_line"),
    [("end", 0, ""), ("exit", 5, ""), ("raise", 1, "ValueError: mine"), ("fork", 0, "")],
)
def test_the_tail_is_written_when_the_interpreter_exits(how: str, code: int, last_line: str, tmp_path: Path) -> None:
    """At the end of the program, at `sys.exit`, after an exception and beside a fork, nothing is lost or doubled."""
    (tmp_path / "train.py").write_text(PROGRAM)
    done = forks.run(["train.py", "run", how], cwd=tmp_path, whole=True)
    assert (done.returncode, (done.stderr.splitlines() or [""])[-1]) == (code, last_line), done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "lines" / "scalars.jsonl").read_text().splitlines()]
    expected = [(3, {"x": 12.0, "kl": 1.0}), (5, {"x": 6.0, "kl": 1.0})]
    assert [(line["step"], line["scalars"]) for line in lines] == expected
    scalars = pd.read_parquet(tmp_path / "run" / "files" / "scalars").sort_values(["step", "name"])
    assert scalars[["step", "name", "value"]].to_numpy().tolist() == [
        [3, "kl", 1.0], [3, "x", 12.0], [5, "kl", 1.0], [5, "x", 6.0],
    ]  # fmt: skip
    table = pd.read_parquet(tmp_path / "run" / "files" / "tables" / "t")
    assert table["text"].tolist() == ["a", "b", "c"] * 6
