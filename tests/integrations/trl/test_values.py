"""Value for value: each key that TRL's trainers log is in declog's record of the same step, within 1e-6."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.integrations.trl import cases
from tests.integrations.trl.cases import CASES, CLIPPING, Case, Outcome
from tests.integrations.trl.jobs import two_ranks


def compare(outcome: Outcome, over: tuple[str, ...] = ()) -> None:
    """No key of TRL's is missing, no log event is, and each value is equal."""
    right = cases.expected(outcome.history)
    assert [event[:2] for event in right] == [event[:2] for event in outcome.events]
    for (step, mode, expected), (_, _, found) in zip(right, outcome.events, strict=True):
        assert expected == pytest.approx({name: found.get(name) for name in expected}, abs=1e-6, rel=1e-6), (step, mode)
    modes = [mode for _, mode, _ in right]
    assert {"train", "eval"} == set(modes)
    assert min(len(expected) for _, mode, expected in right[:-1] if mode == "train") >= 15
    for name in over:
        assert max(values.get(name, 0) for _, mode, values in right if mode == "train") > 0, name


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if 1 in case.ranks])
def test_one_rank(name: str, model: Path, tmp_path: Path) -> None:
    """Train and eval, in one process."""
    compare(cases.run(CASES[name], model, tmp_path), CASES[name].over)


def test_an_adapter_is_trained(model: Path, tmp_path: Path) -> None:
    """PEFT: the reference is the model without its adapter."""
    from peft import LoraConfig

    adapter = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    case = Case(args={**CLIPPING, "beta": 0.05}, over=("kl",))
    compare(cases.run(case, model, tmp_path, peft_config=adapter), case.over)


def test_conversations(model: Path, tmp_path: Path) -> None:
    """Prompts and completions are lists of messages; a table has them as they are."""
    from tests.integrations.trl import tiny

    data = {"train_dataset": tiny.conversations(), "eval_dataset": tiny.conversations(4)}
    outcome = cases.run(Case(), model, tmp_path, data=data)
    compare(outcome)
    assert outcome.sink is not None
    _, table = outcome.sink.tables("completions")[0]
    assert table.data["prompt"][0][0]["role"] == "user"
    assert table.data["completion"][0][0]["role"] == "assistant"


@pytest.fixture(scope="module")
def job(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cases of two ranks, one after the other, in one job of two processes."""
    folder = tmp_path_factory.mktemp("ranks")
    two_ranks("values", model, folder)
    return folder


@pytest.mark.parametrize("name", cases.ON_TWO_RANKS)
def test_two_ranks(name: str, job: Path) -> None:
    """The same on two ranks, whose groups lie on both of them."""
    compare(pickle.loads((job / f"{name}.pickle").read_bytes()), CASES[name].over)
