"""A table of chosen rows that shows a completion again, with equal values, is told once.

The class: a table with a column of a later phase, several epochs, micro-batches. No case of it: other values in each
epoch, rows without ids, a table of all rows, one epoch, the same completion in another step, ids that ranks share.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks

CONFIG: dict[str, Any] = {
    "run": {"name": "again"}, "axes": {"completion": {"ids": "row"}},
    "signals": {
        "any": {"row": "completion int"}, "rollout": {"reward": "completion"},
        "update": {"advantages": "completion", "loss": "completion"},
    },
    "tables": {"worst": {"columns": ["reward", "advantages"], "filter": {"key": "reward", "bottom": 4}}},
}  # fmt: skip
ONCE = {
    "filters": {"once": {"unique": "row", "within": "step"}},
    "tables": {"worst": {**CONFIG["tables"]["worst"], "filter": {"key": "reward", "bottom": 4, "from": "once"}}},
}
LOSS = {"tables": {"worst": {"columns": ["reward", "loss"], "filter": {"key": "loss", "bottom": 4}}}}
ALL = {"tables": {"worst": {"columns": ["reward", "advantages"]}}}


@pytest.mark.parametrize(
    ("keys", "epochs", "ids", "ranks", "told"),
    [
        ({}, 2, True, 1, True), ({}, 2, True, 2, True), ({}, 1, True, 2, False), ({}, 2, False, 1, False),
        (LOSS, 2, True, 1, False), (ALL, 2, True, 1, False), (ONCE, 2, True, 1, False),
    ],
)  # fmt: skip
def test_a_completion_that_is_shown_again(
    keys: dict[str, Any], epochs: int, ids: bool, ranks: int, told: bool, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The message's own edit, ``ONCE``, takes each completion once."""
    caplog.set_level(logging.WARNING, "declog")
    sink = MemorySink()

    def run(comm: Comm) -> None:
        with declog.start(CONFIG | keys, sinks=[sink], output_dir=tmp_path, comm=comm) as log:
            for step in range(3):
                with log.step(step):
                    rows: dict[str, Any] = {"row": [0, 1, 2, 3]} if ids else {}
                    log.observe(reward=[0.0, 0.1, 0.2, 0.3], **rows)
                    for epoch in range(epochs):
                        for half in (slice(0, 2), slice(2, 4)) if ids else (slice(0, 4),):
                            part = {name: values[half] for name, values in rows.items()}
                            losses = [epoch + 0.1 * row for row in range(4)]
                            log.observe(advantages=[0.5] * len(losses[half]), loss=losses[half], **part)

    run_ranks(ranks, run)
    lines = [text for record in caplog.records if "shows a completion" in (text := record.getMessage())]
    assert len(lines) == told
    if not told and keys == ONCE:
        assert [len(table.data["reward"]) for _, table in sink.tables("worst")] == [4, 4, 4]
