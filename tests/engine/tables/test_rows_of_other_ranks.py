"""What depends on rows of other ranks is the same through rank 0, in a rank's own file, and in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks

ROWS = {"axis": "completion"}
SIGNALS: dict[str, Any] = {
    "pid": {**ROWS, "type": "int"}, "r": ROWS, "t": {**ROWS, "type": "text"}, "o": ROWS,
    "f": {**ROWS, "family": True}, "h": {"axis": "step", "family": True}, "s": {"axis": "step"},
    "g": {"axis": "group"},
}  # fmt: skip
FAR = [
    "index(group)", "size(group)", "rank(r, within=step)", "r - mean(max(r, over=completion), over=group)",
    "max(o, over=completion) - mean(min(r, over=completion), over=group)", "index(group) + size(completion)",
    "prev(s, 0)", "len(t if index(group) > 0 else 'zzz')",
    "r if contains(t if rank(r, within=step) > 2 else 'd', 'd') else 0",
]  # fmt: skip
NEAR = [
    "index(completion)", "size(completion)", "rank(r, within=group)", "max(r, over=completion)", "step", "s", "g",
    "o if r > 2 else r", "members(f)", "members(h)", "mean(f, over=member)", "member(f, 'b')",
    "member(h, 'q')", "len(t)",
]  # fmt: skip


def observed(rank: int, step: int, batch: int) -> dict[str, Any]:
    """A batch of a rank; members, and what is optional, come on one of them only."""
    base = 100.0 * step + 50.0 * batch + 10.0 * rank
    values: dict[str, Any] = {
        "pid": [10 * rank + group + batch for group in (0, 0, 1, 1)], "r": [base + at for at in (1.0, 3.0, 2.0, 4.0)],
        "t": ["a", "bb", "ccc", "d"], "s": 1.0 * rank + step, "f": {"a": [1.0, 2.0, 3.0, 4.0]}, "h": {"p": 1.0},
    }  # fmt: skip
    if rank:
        values["f"]["b"], values["o"] = [5.0, 6.0, 7.0, 8.0], [1.0, None, 3.0, 4.0]
    else:
        values["h"]["q"], values["g"] = 3.0, [1.0, 2.0]
    return values


@pytest.mark.parametrize("expr", [*FAR, *NEAR])
def test_a_column_says_the_same_by_rank_and_through_rank_0(expr: str, tmp_path: Path) -> None:
    """One value whatever the sink: of groups, batches, earlier steps, texts, and unlike members of families."""
    kind = "int" if expr.partition("(")[0] in ("index", "size", "rank", "members", "len") or expr == "step" else "float"
    schema = {"r": {"type": "float"}, "v": {"type": kind, "expr": expr}}
    profile = {
        "axes": {"group": {"of": "pid"}}, "signals": {"any": SIGNALS}, "schemas": {"s": schema},
        "tables": {"t": {"schema": "s"}},
        "sinks": ["jsonl"],
    }  # fmt: skip
    sink = MemorySink()

    def body(comm: Comm) -> None:
        with declog.start(profile, sinks=[] if comm.rank else [sink], comm=comm, output_dir=tmp_path) as log:
            for step in range(2):
                with log.step(step):
                    for batch in range(2):
                        log.observe(**observed(comm.rank, step, batch))

    run_ranks(2, body)
    files = list(tmp_path.glob("jsonl/**/t.jsonl"))
    written = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    through = [row for _, table in sink.tables("t") for row in zip(table.data["r"], table.data["v"], strict=True)]
    assert sorted((row["r"], row["v"]) for row in written) == sorted(through)
    assert (len(files), len(through)) == (1 if expr in FAR else 2, 32)


@pytest.mark.parametrize("expr", [expr for expr in FAR if "prev" not in expr])
def test_a_metric_is_that_of_one_process(expr: str, tmp_path: Path) -> None:
    """Also where a text is chosen by the place of its row among those of all ranks."""

    def logged(ranks: int) -> dict[str, Any]:
        sink = MemorySink()
        profile = {
            "axes": {"group": {"of": "pid"}},
            "signals": {"any": SIGNALS},
            "metrics": {"m": {"expr": expr, "reduce": "sum"}},
        }

        def body(comm: Comm) -> None:
            folder = tmp_path / str(ranks)
            parts = [observed(rank, 0, 0) for rank in ([comm.rank] if ranks == 2 else [0, 1])]
            rows = {
                name: [row for part in parts for row in part.get(name, [None] * 4)] for name in ("pid", "r", "t", "o")
            }
            sinks = [] if comm.rank else [sink]
            with declog.start(profile, sinks=sinks, comm=comm, output_dir=folder) as log, log.step(0):
                log.observe(**rows)

        run_ranks(ranks, body)
        return sink.scalars[0]

    assert logged(2) == logged(1)
