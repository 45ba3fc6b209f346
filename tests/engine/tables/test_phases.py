"""Tables whose columns and filters read several phases: rows of the latest, with the values of the earlier ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import declog
from declog.testing import MemorySink, run_ranks

PROFILE: dict[str, Any] = {
    "axes": {"completion": {"ids": "row"}, "token": {"mask": "mask"}},
    "signals": {
        "any": {"row": {"axis": "completion", "type": "int"}},
        "rollout": {
            "reward": {"axis": "completion"}, "parts": {"axis": "completion", "family": True},
            "said": {"axis": "completion", "type": "text"}, "tau": {"axis": "step"},
        },
        "update": {
            "mask": {"axis": "token", "type": "bool"}, "ids": {"axis": "token", "type": "int"},
            "gain": {"axis": "completion"},
        },
    },
    "filters": {"ends": {"key": "reward", "top": 2, "bottom": 1, "where": "gain < 100"}},
    "schemas": {
        "row": {
            "row": "int", "reward": "float", "parts": {"type": "float", "name": "part/{member}"}, "said": "text",
            "tau": "float", "gain": "float",
            "tokens": {"type": "tokens", "expr": "ids", "values": {"reward": "reward", "gain": "gain"}},
        },
    },
    "tables": {"rows": {"schema": "row", "filter": "ends"}}, "sinks": [],
}  # fmt: skip


def observe(rank: int) -> None:
    """Six completions, updated in two batches in another order: those of one batch are not those of the other."""
    rows = torch.arange(6)
    declog.observe(
        row=rows, reward=(rows + 10.0 * rank), parts={"a": rows * 2.0, "b": rows * 3.0},
        said=[f"{rank}: {row}" for row in range(6)], tau=0.5 + rank,
    )  # fmt: skip
    for order in ([5, 0, 3], [4, 2, 1]):
        picked = rows[order]
        declog.observe(
            row=picked, gain=picked * 7.0, ids=torch.stack([picked, picked], 1), mask=torch.ones(3, 2) > 0
        )  # fmt: skip


def rows_of(sink: MemorySink) -> list[dict[str, Any]]:
    """The rows of the table, by row."""
    ((_, table),) = sink.tables("rows")
    return [dict(zip(table.data, values, strict=True)) for values in zip(*table.data.values(), strict=True)]


def expected(rank: int, row: int) -> dict[str, Any]:
    """A row by hand."""
    reward, gain = row + 10.0 * rank, row * 7.0
    return {
        "row": row, "reward": reward, "part/a": row * 2.0, "part/b": row * 3.0, "said": f"{rank}: {row}",
        "tau": 0.5 + rank, "gain": gain,
        "tokens": {"tokens": [str(row)] * 2, "reward": [reward] * 2, "gain": [gain] * 2},
    }  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_of_the_latest_phase_have_what_earlier_ones_know(ranks: int) -> None:
    """By the rows' ids, of numbers, families, texts and values per step; chosen by an earlier phase's value."""
    sinks = [MemorySink() for _ in range(ranks)]

    def train(comm: Any) -> None:
        log = declog.start(PROFILE, comm=comm, sinks=[sinks[comm.rank]], tokenizer=lambda ids: list(map(str, ids)))
        with log, log.step(0):
            observe(comm.rank)

    run_ranks(ranks, train)
    best, worst = [(ranks - 1, 5), (ranks - 1, 4)], (0, 0)
    found = sorted(rows_of(sinks[0]), key=lambda row: -row["reward"])
    assert found == [expected(*one) for one in (*best, worst)]
