"""Reductions of users that take texts; masks as factors, and the literal for what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import declog
from declog.errors import ConfigError
from declog.language.reductions import BUILTIN, Reductions, reducer
from declog.testing import FakeComm, MemorySink, run_ranks
from tests.running import logged, profile

ROWS = {"axis": "completion"}
REDUCTIONS = Reductions(BUILTIN)


@reducer(registry=REDUCTIONS)
def vocabulary(texts: list[str]) -> float:
    """How many different words there are."""
    return float(len({word for text in texts for word in text.split()}))


@reducer(registry=REDUCTIONS)
def spoken(texts: list[str], weight: NDArray[np.float64]) -> float:
    """The weights of the words."""
    return float(sum(len(text.split()) * each for text, each in zip(texts, weight, strict=True)))


SIGNALS = {"t": {**ROWS, "type": "text"}, "x": ROWS, "env": {**ROWS, "type": "text"}}


def test_texts_of_all_ranks_are_reduced_together(tmp_path: Path) -> None:
    """Missing ones left out; by label, by step, and beside numbers."""
    metrics = {
        "v": "vocabulary(t)", "by": {"expr": "t", "reduce": "vocabulary", "by": "env", "over": "rank"},
        "w": {"expr": ["t", "x"], "reduce": "spoken", "where": "x > 1"},
    }  # fmt: skip
    sink = MemorySink()

    def body(comm: FakeComm) -> None:
        sinks = [] if comm.rank else [sink]
        with declog.start(
            profile(SIGNALS, metrics), sinks=sinks, output_dir=tmp_path, comm=comm, reductions=REDUCTIONS
        ) as log, log.step(0):  # fmt: skip
            texts = [["a b", None, "b c"], ["c d e", "a", "a a"]][comm.rank]
            log.observe(t=texts, x=[1.0, 2.0, 3.0], env=["u", "u", "v"])

    run_ranks(2, body)
    assert sink.scalars[0] == {"v": 5.0, "by/u": 3.0, "by/v": 1.5, "w": 2 * 3.0 + 1 * 2.0 + 2 * 3.0}


def test_a_text_and_a_number_do_not_change_places() -> None:
    """Each has the kind that the reduction declares."""
    with pytest.raises(ConfigError) as caught:
        declog.plan(profile(SIGNALS, {"w": {"expr": ["x", "t"], "reduce": "spoken"}}), reductions=REDUCTIONS)
    assert [each.message for each in caught.value.problems] == [
        "`spoken` takes texts here, and `x` is float per completion",
        "`spoken` needs numbers, and `t` is text per completion",
    ]


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("mean(x * b)", 5 / 3), ("sum(n * b)", 4), ("mean(x if b else missing)", 2.5),
        ("count(x if b else missing)", 2),
        ("mean(b * 2)", 4 / 3), ("sum(u * m)", 8.0), ("mean(u if u > 1 else missing)", 7 / 3),
        ("max(x * (n > 1))", 4.0),
        ("sum(isnan(missing) * x)", 8.0),
    ],
)  # fmt: skip
def test_a_mask_is_a_factor_and_a_value_may_be_missing(expr: str, expected: float, tmp_path: Path) -> None:
    """Per completion and per token."""
    signals: dict[str, Any] = {
        "x": ROWS, "n": {**ROWS, "type": "int"}, "b": {**ROWS, "type": "bool"},
        "u": {"axis": "token"}, "m": {"axis": "token", "type": "bool"},
    }  # fmt: skip
    rows = {"x": [1.0, 3.0, 4.0], "n": [1, 2, 3], "b": [True, False, True],
            "u": [[1.0, 2.0], [3.0, 2.0], [0.5, 1.0]], "m": [[1, 1], [1, 1], [0, 0]]}  # fmt: skip
    config = profile(signals, {"v": expr}, axes={"token": {"mask": "all"}})
    assert logged(config, [rows], tmp_path) == pytest.approx({"v": expected})
