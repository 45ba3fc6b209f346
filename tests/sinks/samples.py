"""Records that the sink tests share, with everything in them that a backend might stumble over."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from declog.records import Alert, Column, DType, Histogram, Records, RunInfo, Scalar, Table
from tests.forks import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
EXACT = 2**53 + 1
HUGE = 2**2000
SURROGATE = "broken \ud800 tail"

COLUMNS = (
    Column("id", DType.INT),
    Column("reward", DType.FLOAT),
    Column("ok", DType.BOOL),
    Column("prompt", DType.TEXT),
    Column("extra", DType.OBJECT),
)


def run_info(folder: Path, *, sink: str = "", rank: int = 0) -> RunInfo:
    """A run in ``folder``."""
    return RunInfo(
        name="grpo",
        project="grpo",
        run_id="run-7",
        output_dir=folder,
        fingerprint="f00d",
        rank=rank,
        declog={"profile": "full", "metrics": {"reward": {"reduce": ["mean"]}}},
        config={"method": "grpo", "größe": 7},
        version="0.1.0",
        sink=sink,
    )


def table(name: str = "completions", *, id: str = "completions", first: int = 0, rows: int = 3) -> Table:
    """A table with nulls, NaN, an integer beyond 2**53 and text that is not ASCII."""
    return Table(
        name=name,
        table=id,
        columns=COLUMNS,
        data={
            "id": [first + EXACT + row for row in range(rows)],
            "reward": [(1.5, math.nan, None)[row % 3] for row in range(rows)],
            "ok": [(True, None, False)[row % 3] for row in range(rows)],
            "prompt": [("größer 漢字\nzwei", "", None)[row % 3] for row in range(rows)],
            "extra": [({"a": [1, math.inf]}, None, "x")[row % 3] for row in range(rows)],
        },
        rows=rows,
    )


def event(step: int, *, mode: str = "train") -> Records:
    """One log event with one of everything."""
    return Records(
        mode=mode,
        time=1000.0 + step,
        scalars=(
            Scalar("reward", 0.5 * step, "reward"),
            Scalar("loss/größe", math.nan, "loss"),
            Scalar("loss/inf", -math.inf, "loss_inf"),
            Scalar("tokens", EXACT + step, "tokens"),
            Scalar("huge", HUGE, "huge"),
            Scalar("done", True, "done", partial=True),
        ),
        histograms=(Histogram("lengths", [0, 2, 3], [0.0, 1.0, 2.0, 4.0], "lengths"),),
        tables=(table(first=10 * step),),
        alerts=(Alert("kl_runaway", "warn", f"KL {step} — zu groß"),),
    )


def python(code: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """What a fresh interpreter prints; a failure shows its stderr."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def parts(dataset: Path) -> list[str]:
    """The files of a dataset, below its folder."""
    return sorted(str(part.relative_to(dataset)) for part in dataset.rglob("*") if part.is_file())
