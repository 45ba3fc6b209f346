"""Signals that training code observes itself: a wrong one costs its own values, and none of the trainer's."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.trl.cases import Case
from tests.integrations.trl.jobs import two_ranks
from tests.integrations.trl.training_code import (
    LOSSES,
    ONE,
    REWARDS,
    TWO,
    class_with,
    logged,
    of_tokens,
    sizes,
)  # fmt: skip

RLOO = Case("rloo", TWO.args)
KINDS = {"one micro-batch": ONE, "two micro-batches": TWO, "RLOO": RLOO}


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each kind of trainer logs without signals of the training code."""
    return {name: logged(case, model, tmp_path_factory.mktemp("alone"))[0] for name, case in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", REWARDS)
def test_a_wrong_signal_of_a_reward_function(name: str, kind: str, alone: Any, model: Path, tmp_path: Path) -> None:
    """All that the trainer logs is logged as without it, and one message says how the signal is declared or given."""
    declaration, give, answer = REWARDS[name]
    events, causes, _ = logged(KINDS[kind], model, tmp_path, declaration, give)
    assert without_ranks(events) == alone[kind]
    assert [answer in text for text in causes] == [True] * bool(answer)


@pytest.mark.parametrize("name", ["of any phase", "tokens of another shape"])
def test_the_answer_as_it_stands(name: str, model: Path, tmp_path: Path) -> None:
    """A signal declared or given as its message says has the values that the function gave."""
    per_token = name != "of any phase"
    declaration, give = ("rollout.fmt=token", of_tokens) if per_token else ("rollout.fmt=completion", sizes)
    events, causes, means = logged(TWO, model, tmp_path, declaration, give)
    assert causes == []
    values = [values["fmt"] for _, mode, values in events if "fmt" in values and mode == "train"]
    assert values == pytest.approx([1.0] * 2 if per_token else means)


@pytest.mark.parametrize("place", LOSSES)
def test_wrong_rows_beside_a_micro_batch(place: str, model: Path, tmp_path: Path) -> None:
    """A loss of a subclass that observes other rows than its micro-batch's costs no value of the micro-batch."""
    without, _, _ = logged(TWO, model, tmp_path / "without", cls=class_with("after", 4))
    cls = class_with(place, LOSSES[place])
    events, causes, _ = logged(TWO, model, tmp_path, "update.fmt=completion", cls=cls)
    assert without_ranks(events) == without
    assert causes and all("different counts" in text for text in causes)


def test_right_rows_beside_a_micro_batch(model: Path, tmp_path: Path) -> None:
    """A loss of a subclass may observe rows of its micro-batch before TRL's and after, also under `any`."""
    for place in ("before", "after"):
        events, causes, _ = logged(TWO, model, tmp_path / place, "any.fmt=completion", cls=class_with(place, 4))
        assert causes == []
        assert [values["fmt"] for _, _, values in events if "entropy" in values] == [1.0] * 2


def test_wrong_signals_on_two_ranks(model: Path, tmp_path: Path) -> None:
    """The ranks log together as they do without it, also where one of them alone gives a wrong signal."""
    two_ranks("own_signals", model, tmp_path)
    found = pickle.loads((tmp_path / "0.pickle").read_bytes())
    alone = found.pop("alone")
    assert len(alone) > 4 and "clip_ratio/low_mean" in alone[0][2]
    assert {name: without_ranks(events) for name, events in found.items()} == dict.fromkeys(found, alone)


def without_ranks(events: Any) -> Any:
    """Log events without what says that values of the training code are absent."""
    return [
        (step, mode, {name: value for name, value in values.items() if name != "fmt"}) for step, mode, values in events
    ]


@pytest.mark.parametrize("phase", ["rollout", "any"])
def test_a_column_of_log_extra_as_a_signal(phase: str, model: Path, tmp_path: Path) -> None:
    """A declared signal that nothing else gives has the values of the column of its name, from the first generation on.

    Declared for another phase it is reported once, and costs nothing of the trainer's.
    """

    def give(completions: Any, columns: Any) -> None:
        columns["log_extra"]("fmt", sizes(completions, columns))

    events, causes, means = logged(TWO, model, tmp_path, f"{phase}.fmt=completion", give)
    values = [values["fmt"] for _, mode, values in events if "fmt" in values and mode == "train"]
    assert all("entropy" in values for _, mode, values in events[:1])
    if phase == "rollout":
        assert values == pytest.approx(means) and causes == []
    else:
        assert values == [] and ["signals: {rollout: {fmt: completion}}" in text for text in causes] == [True]
