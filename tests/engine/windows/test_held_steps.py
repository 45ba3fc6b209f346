"""A value per step that comes once is read by the rows of every call of the step, wherever it comes.

Class: a number of a step (a version, weights, a coefficient) beside rows that come in several calls, threads or ranks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.late import ask
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks

CONFIG: dict[str, Any] = {
    "run": {"name": "held"},
    "axes": {"completion": {"ids": "row"}, "group": {"size": 2}, "token": {"mask": "mask"}},
    "signals": {
        "any": {
            "row": "completion int", "now": "step", "label": "step text", "weights": {"axis": "step", "family": True},
            "scores": {"axis": "completion", "family": True}, "version": "completion", "mask": "token bool",
            "logprobs": "token",
        }
    },
    "metrics": {
        "lag": "mean(now - version)",
        "fresh": {"expr": "version", "where": "now >= 0", "reduce": "count"},
        "weighted": "mean(sum(weights * scores, over=member))",
        "of_group": "mean(max(version, over=completion) - now)",
        "of_batches": "mean(mean(mean(version, over=completion), over=group) * now)",
        "by_label": {"expr": "version", "by": "label", "reduce": "count"},
        "of_steps": {"expr": "now", "reduce": "count"},
        "penalty": {"expr": "now * logprobs", "reduce": "sum"},
    },
    "tables": {"rows": {"columns": ["row", "now"], "filter": {"where": "now > version"}}},
}  # fmt: skip
VERSION = [4.0, 5.0, 1.0, 2.0]
TOKENS = {"logprobs": torch.ones(2, 3), "mask": torch.ones(2, 3, dtype=torch.bool)}
STEP = {"now": 5.0, "label": "a", "weights": {"x": 1.0, "y": 0.5}}


def half(log: Recorder, of: int, **others: Any) -> None:
    rows = [2 * of, 2 * of + 1]
    scores = {"x": [float(row) for row in rows], "y": [1.0, 1.0]}
    log.observe(row=rows, version=VERSION[rows[0] : rows[1] + 1], scores=scores, **others)


LAYOUTS: Mapping[str, Sequence[Mapping[str, Any]]] = {  # the values per step of each call, and the half of its rows
    "before the rows": [STEP, {"of": 0}, {"of": 1}],
    "behind the rows": [{"of": 0}, {"of": 1}, STEP],
    "with the first": [{"of": 0, **STEP}, {"of": 1}],
    "with the second": [{"of": 0}, {"of": 1, **STEP}],
    "with both": [{"of": 0, **STEP}, {"of": 1, **STEP}],
    "in threads": [{"of": 0}, {"of": 1}, STEP],
}


def calls(log: Recorder, layout: str) -> None:
    for call in LAYOUTS[layout]:
        if "of" not in call:
            log.observe(**call)
        elif layout == "in threads":
            thread = threading.Thread(target=declog.bind(half), args=(log,), kwargs=call)
            thread.start()
            thread.join()
        else:
            half(log, **call)


def run(body: Callable[[Recorder], object], folder: Path, **changes: Any) -> MemorySink:
    sink = MemorySink()
    with declog.start({**CONFIG, **changes}, sinks=[sink], output_dir=folder) as log, log.step(0):
        body(log)
    return sink


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_every_call_read_it(layout: str, tmp_path: Path) -> None:
    """A difference, a condition, a family of weights, groups, labels and a table have all rows, as in one call."""
    sink = run(lambda log: calls(log, layout), tmp_path)
    logged = sink.scalars[0]
    assert logged["lag"] == np.mean([5 - version for version in VERSION])
    assert (logged["fresh"], logged["by_label/a"]) == (4, 4)
    assert logged["weighted"] == np.mean([0.5, 1.5, 2.5, 3.5])
    assert logged["of_batches"] == np.mean([5 * 4.5, 5 * 1.5])
    assert logged["of_group"] == np.mean([0.0, -3.0])
    ((_, table),) = sink.tables("rows")
    assert [*zip(table.data["row"], table.data["now"], strict=True)] == [(0, 5.0), (2, 5.0), (3, 5.0)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_its_own_reductions_have_only_what_came(layout: str, tmp_path: Path) -> None:
    """The value of a step that came once counts once, however many calls have rows."""
    assert run(lambda log: calls(log, layout), tmp_path).scalars[0]["of_steps"] == (2 if layout == "with both" else 1)


def test_it_holds_until_the_next_one_comes(tmp_path: Path) -> None:
    """In the order of the batches; the rows before the first value of a step read that one, and no other step's."""
    sink = MemorySink()
    with declog.start({**CONFIG, "every": 2}, sinks=[sink], output_dir=tmp_path) as log:
        with log.step(0):
            half(log, 0, now=100.0)
        with log.step(1):
            half(log, 0)
            half(log, 1, now=1.0)
            half(log, 0)
            half(log, 1, now=2.0)
    assert sink.scalars[1]["lag"] == np.mean([96, 95, 1 - 4, 1 - 5, 1 - 1, 1 - 2, 1 - 4, 1 - 5, 2 - 1, 2 - 2])


def test_tokens_read_what_came_before_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Tokens are folded when their call ends: a value that comes later is reported, and no token is lost silently."""

    def tokens(log: Recorder, *, first: bool) -> None:
        if first:
            log.observe(now=5.0)
        for of in range(2):
            log.observe(row=[2 * of, 2 * of + 1], **TOKENS)
        if not first:
            log.observe(now=5.0)

    assert run(lambda log: tokens(log, first=True), tmp_path / "first").scalars[0]["penalty"] == 5 * 12
    assert "DL605" not in caplog.text
    with caplog.at_level(logging.WARNING):
        late = run(lambda log: tokens(log, first=False), tmp_path / "late").scalars[0]
    assert late["penalty"] == 5 * 6
    assert "[DL605] `now` came after tokens of phase `default` in the same step" in caplog.text


SCOPES: Mapping[str, Callable[[Recorder, dict[str, Any], dict[str, Any]], object]] = {
    "explicit batches": lambda log, one, two: in_batches(log, [{"now": 5.0}, one, two]),
    "a thread": lambda log, one, two: in_batches(log, [{**one, "now": 5.0}], thread=two),
    "packets": lambda log, one, two: in_batches(log, [{"now": 5.0}], packets=[one, two]),
}


def in_batches(
    log: Recorder, calls: Sequence[dict[str, Any]], thread: dict[str, Any] | None = None, packets: Sequence[Any] = ()
) -> None:
    for number, call in enumerate(calls):
        if number:
            with log.batch():
                log.observe(**call)
        else:
            log.observe(**call)
    for packet in packets:
        log.observe(declog.rows(**packet))
    if thread is not None:
        other = threading.Thread(target=declog.bind(log.observe), kwargs=thread)
        other.start()
        other.join()


@pytest.mark.parametrize("scope", SCOPES)
def test_tokens_of_other_scopes_read_it(scope: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It came in a batch that is still open, of the step's own code; many steps, so that calls are learned."""
    sink = MemorySink()
    with declog.start({**CONFIG, "tables": {}}, sinks=[sink], output_dir=tmp_path) as log:
        for step in range(12):
            with log.step(step):
                SCOPES[scope](log, {"row": [0, 1], **TOKENS}, {"row": [2, 3], **TOKENS})
    assert [scalars["penalty"] for scalars in sink.scalars.values()] == [5 * 12] * 12
    assert "DL605" not in caplog.text


def of_rank(comm: Comm, folder: Path) -> dict[str, Any]:
    sink = MemorySink()
    with declog.start(CONFIG, comm=comm, sinks=[sink], output_dir=folder) as log, log.step(0):
        log.observe(now=5.0 + comm.rank)
        half(log, 0)
        half(log, 1)
    return dict(sink.scalars.get(0, {}))


def test_each_rank_reads_its_own(tmp_path: Path) -> None:
    """Rows of two ranks, each with a value of its own."""
    logged, _ = run_ranks(2, lambda comm: of_rank(comm, tmp_path))
    assert logged["lag"] == np.mean([of - version for of in (5, 6) for version in VERSION])
    assert (logged["fresh"], logged["of_steps"]) == (8, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_later_question_has_all_rows(layout: str, tmp_path: Path) -> None:
    """Rows that a run kept read values per step as the run did."""
    run(lambda log: calls(log, layout), tmp_path)
    ((_, records),) = ask(tmp_path, {"late": "{expr: now - version, reduce: [mean, count]}"}).events
    lags = [5 - version for version in VERSION]
    assert [scalar.value for scalar in records.scalars] == [np.mean(lags), len(lags)]


def test_what_waits_for_the_next_step_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A value without a step number yet is of the step that takes it: tokens that were folded before lack it."""

    def calls_ahead(log: Recorder) -> None:
        log.observe(now=5.0, step="next")
        for of in (0, 2):
            log.observe(row=[of, of + 1], **TOKENS)

    sink = run(calls_ahead, tmp_path, tables={})
    assert "[DL605] `now` came after tokens" in caplog.text
    assert sink.scalars[0]["penalty"] < 5 * 12
