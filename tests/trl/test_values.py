"""Value for value: each key that TRL's trainers log is in declog's record of the same step, within 1e-6."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.trl import cases
from tests.trl.cases import CASES, Outcome
from tests.trl.jobs import torchrun


def compare(outcome: Outcome, over: tuple[str, ...]) -> None:
    """No key of TRL's is missing, no log event is, and each value is equal."""
    wanted = cases.expected(outcome.history)
    assert [event[:2] for event in wanted] == [event[:2] for event in outcome.events]
    for (step, mode, expected), (_, _, found) in zip(wanted, outcome.events, strict=True):
        assert expected == pytest.approx({name: found.get(name) for name in expected}, abs=1e-6, rel=1e-6), (step, mode)
    modes = [mode for _, mode, _ in wanted]
    assert {"train", "eval"} == set(modes)
    assert min(len(expected) for _, mode, expected in wanted[:-1] if mode == "train") >= 15
    for name in over:
        assert max(values.get(name, 0) for _, mode, values in wanted if mode == "train") > 0, name


@pytest.mark.parametrize("name", CASES)
def test_one_rank(name: str, model: Path, tmp_path: Path) -> None:
    """Train and eval, in one process."""
    compare(cases.run(CASES[name], model, tmp_path), CASES[name].over)


@pytest.fixture(scope="module")
def job(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, one after the other, in one job of two processes."""
    folder = tmp_path_factory.mktemp("ranks")
    torchrun("values", model, folder)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_two_ranks(name: str, job: Path) -> None:
    """The same on two ranks, whose groups lie on both of them."""
    compare(pickle.loads((job / f"{name}.pickle").read_bytes()), CASES[name].over)
