"""Random profiles on random data: what declog logs is what plain loops over plain lists give.

The loops are written after docs/language.md and know nothing of declog. A case that differs is made
smaller by `python -m tests.oracle.shrink SEED`; `make soak` runs some thousands more.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.oracle.cases import Batch, Block, Case
from tests.oracle.compare import compared, differences, report
from tests.oracle.expected import expected
from tests.oracle.generator import generated
from tests.oracle.run import logged

CASES, PARTS = 24, 3


@pytest.mark.parametrize("part", range(PARTS))
def test_a_random_profile_logs_what_plain_loops_give(part: int, tmp_path: Path) -> None:
    """Every scalar, histogram, table and alert of every log event, and nothing else."""
    wrong = []
    for seed in range(part, CASES, PARTS):
        case = generated(seed)
        found = differences(case, tmp_path / str(seed))
        if found:
            wrong.append(report(case, found))
    assert wrong == [], "\n\n".join(wrong)


@pytest.mark.parametrize("seed", [1, 5, 11])
def test_a_difference_is_found(seed: int, tmp_path: Path) -> None:
    """The comparison itself: of a value that is a millionth off, or missing, or too many."""
    case = generated(seed)
    right, sink = expected(case), logged(case, tmp_path)
    assert not list(compared(right, sink, case))
    event, name, value = next(
        (event, name, value)
        for event in right
        for name, (value, off) in event.scalars.items()
        if isinstance(value, float | int) and value and math.isfinite(value) and not off
    )
    others = [item for item in right if item is not event]
    without = {key: entry for key, entry in event.scalars.items() if key != name}
    for scalars in (
        event.scalars | {name: (value * (1 + 1e-6), 0.0)},
        event.scalars | {"nobody": (1.0, 0.0)},
        without,
    ):
        assert len(list(compared([replace(event, scalars=scalars), *others], sink, case))) == 1


def test_the_loops_are_right_about_a_hand_worked_case() -> None:
    """Two ranks, groups split over them, a missing value, tokens; by hand."""
    batches: list[list[Batch]] = [
        [
            {
                "x": [1.0, None, 3.0],
                "gid": ["a", "a", "b"],
                "u": [[1.0, 5.0], [2.0, 9.0], [4.0, 9.0]],
                "mask": [[1, 1], [1, 0], [1, 0]],
            }
        ],
        [{"x": [5.0], "gid": ["b"], "u": [[6.0, 8.0]], "mask": [[1, 1]]}],
    ]
    metrics = {
        "group": ("aggregate", "mean", "completion", ("signal", "x")),
        "tokens": ("signal", "u"),
        "above": (">", ("signal", "x"), ("constant", 2)),
    }
    signals = {
        "x": {"axis": "completion", "event": "main"}, "gid": {"axis": "completion", "type": "text"},
        "u": {"axis": "token", "event": "main"}, "mask": {"axis": "token", "type": "bool", "event": "main"},
    }  # fmt: skip
    case = Case(
        0,
        {
            "axes": {"group": {"of": "gid", "split": "ranks"}, "token": {"mask": "mask"}},
            "metrics": {"group": {}, "tokens": {"over": "rank"}, "above": {}},
        },
        2,
        [Block(3, "train", {"main": batches})],
        {},
        trees={
            "signals": signals, "events": ["main"], "alerts": {},
            "metrics": {name: {"expr": [tree], "reduce": {"": "mean"}} for name, tree in metrics.items()},
        },
    )  # fmt: skip
    (event,) = expected(case)
    shown = {name: value for name, (value, _) in event.scalars.items()}
    assert (event.number, event.mode) == (3, "train")
    assert shown == {"group": (1.0 + 4.0) / 2, "tokens": ((1 + 5 + 2 + 4) / 4 + 7) / 2, "above": 2 / 3}
