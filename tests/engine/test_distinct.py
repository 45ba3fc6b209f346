"""``distinct(x, over=completion)``: how many different values a group has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from declog.runtime.recording.recorder import Recorder
from tests.running import profile, run

NAN = float("nan")
VALUES: dict[str, tuple[str, Any, list[int]]] = {
    "texts": ("text", ["a", "b", "a", "a", None, "c"], [2, 1, 1]),
    "ints": ("int", torch.tensor([2**53, 2**53 + 1, 7, 7, 0, -1]), [2, 1, 2]),
    "floats": ("float", torch.tensor([0.5, 0.25, NAN, 1.0, NAN, NAN]), [2, 1, 0]),
    "bools": ("bool", torch.tensor([True, False, True, True, False, False]), [2, 1, 1]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_the_different_values_of_each_group(kind: str, tmp_path: Path) -> None:
    """Class: types, and missing values, which are no value."""
    dtype, values, expected = VALUES[kind]
    signals = {"x": {"axis": "completion", "type": dtype}}
    metrics = {"d": {"expr": "distinct(x, over=completion)", "reduce": ["mean", "min", "max"]}}

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(x=values)

    scalars = run(profile(signals, metrics, axes={"group": {"size": 2}}), body, tmp_path).scalars[0]
    assert scalars["d/mean"] == pytest.approx(sum(expected) / 3)
    assert (scalars["d/min"], scalars["d/max"]) == (min(expected), max(expected))


def test_the_members_of_a_family_each(tmp_path: Path) -> None:
    """More rows than members, and fewer."""
    signals = {"f": {"axis": "completion", "family": True}}
    config = profile(signals, {"d": {"expr": "distinct(f, over=completion)"}}, axes={"group": {"size": 2}})
    rows = {"a": [1.0, 1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0, 7.0], "c": [8.0] * 4, "d": [9.0] * 4, "e": [0.0] * 4}

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(f=rows)

    scalars = run(config, body, tmp_path).scalars[0]
    assert {name: scalars[f"d/{name}"] for name in rows} == {"a": 1.5, "b": 2.0, "c": 1.0, "d": 1.0, "e": 1.0}


def test_a_batch_without_rows_has_no_groups(tmp_path: Path) -> None:
    """Class: a rank, or a batch of an evaluation, without rows, beside one that has some; in a filter, too."""
    signals = {"x": {"axis": "completion"}}
    table = {"schema": "s", "filter": {"where": "distinct(x, over=completion) > 1"}}
    config = profile(
        signals, {"d": {"expr": "distinct(x, over=completion)"}}, axes={"group": {"size": 2}},
        schemas={"s": {"x": {}}}, tables={"t": table},
    )  # fmt: skip

    def body(log: Recorder) -> None:
        for step, rows in enumerate(([], [1.0, 2.0, 3.0, 3.0], [])):
            with log.step(step):
                log.observe(x=rows)
                log.observe(x=[])

    sink = run(config, body, tmp_path)
    assert [(step, scalars["d"]) for step, scalars in sink.scalars.items() if "d" in scalars] == [(1, 1.5)]
    assert [(step, table.data["x"]) for step, table in sink.tables("t") if table.rows] == [(1, [1.0, 2.0])]
