"""Calls of `observe` like an earlier one: what is known of them changes neither what is logged nor what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from declog.errors import DeclogError
from declog.runtime.recording.recorder import Recorder
from tests.running import profile, run

SIGNALS = {
    "a": {"axis": "completion"}, "b": {"axis": "completion"}, "n": {"axis": "completion", "type": "int"},
    "loss": {"axis": "step"}, "lr": {"axis": "step"},
}  # fmt: skip
CONFIG = profile(SIGNALS, {
    "a": "mean(a)", "b": "sum(b)", "gap": "max(a - b)", "n": "sum(n)", "loss": "mean(loss)", "lr": "last(lr)",
})  # fmt: skip
FIRST: Mapping[str, Any] = {
    "a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 5.0]), "n": torch.tensor([1, 2]),
    "loss": torch.tensor(0.5), "lr": 0.1,
}  # fmt: skip
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "the same": {},
    "of a graph": {
        "a": torch.tensor([1.0, 2.0], requires_grad=True) * 2,
        "loss": torch.tensor(2.0, requires_grad=True),
    },
    "halves": {"a": torch.tensor([1.5, 2.5], dtype=torch.bfloat16), "b": torch.tensor([1.5, 9.0], dtype=torch.half)},
    "all halves": {name: FIRST[name].to(torch.bfloat16) for name in ("a", "b", "loss")},
    "doubles": {"a": torch.tensor([1.0 + 1e-12, 2.0], dtype=torch.float64)},
    "integers": {"b": torch.tensor([2**53, 1])},
    "small integers": {"n": torch.tensor([1, 7], dtype=torch.int8)},
    "lists": {"a": [1.0, None], "n": [4, 5]},
    "arrays": {"a": np.array([1.0, 4.0]), "loss": np.float32(0.25)},
    "numbers": {"loss": 0.25, "lr": torch.tensor(0.2)},
    "more rows": {"a": torch.ones(5), "b": torch.ones(5), "n": torch.arange(5)},
    "no rows": {"a": torch.ones(0), "b": torch.ones(0), "n": torch.arange(0)},
    "sparse": {"a": torch.tensor([0.0, 2.0]).to_sparse()},
    "all sparse": {"a": torch.tensor([0.0, 2.0]).to_sparse(), "b": torch.tensor([1.0, 0.0]).to_sparse()},
    "a column of a matrix": {"a": torch.arange(6.0).view(2, 3)[:, 1], "b": torch.tensor([2.0]).expand(2)},
    "a part of a conjugate": {"a": torch.tensor([1 + 2j, 3 + 4j]).conj().imag},
    "a parameter": {"a": torch.nn.Parameter(torch.tensor([1.0, 7.0]))},
    "missing": {"a": torch.tensor([torch.nan, 2.0]), "lr": None},
}
WRONG: Mapping[str, Mapping[str, Any]] = {
    "other rows": {"a": torch.ones(3)},
    "other rows in a stack": {"a": torch.ones(3), "b": torch.ones(3)},
    "another axis": {"a": torch.ones(2, 2), "b": torch.ones(2, 2)},
    "no axis": {"a": torch.tensor(1.0), "b": torch.tensor(1.0)},
    "an axis for a number": {"loss": torch.ones(2)},
    "floats": {"n": torch.ones(2)},
    "complex": {"a": torch.ones(2, dtype=torch.complex64), "b": torch.ones(2, dtype=torch.complex64)},
    "without values": {"a": torch.ones(2, device="meta"), "b": torch.ones(2, device="meta")},
    "nested": {"a": torch.nested.nested_tensor([torch.ones(1), torch.ones(1)], layout=torch.jagged)},
    "a text": {"lr": "0.1"},
}


def logged(config: Mapping[str, Any], calls: list[Mapping[str, Any]], folder: Path) -> list[dict[str, float]]:
    """What each call logs, one in each step."""

    def body(log: Recorder) -> None:
        for step, call in enumerate(calls):
            with log.step(step):
                log.observe(**call)

    sink = run(config, body, folder)
    return [sink.scalars[step] for step in range(len(calls))]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_call_like_an_earlier_one_logs_what_it_logs_alone(variant: str, tmp_path: Path) -> None:
    """Whatever was learned from the first, and of whatever kind the second one's values are."""
    call = {**FIRST, **VARIANTS[variant]}
    (alone,) = logged(CONFIG, [call], tmp_path / "alone")
    assert logged(CONFIG, [FIRST, call, FIRST, call], tmp_path / "after")[1::2] == [alone, alone]


@pytest.mark.parametrize("variant", VARIANTS)
def test_calls_of_one_value_each_log_what_one_call_logs(variant: str, tmp_path: Path) -> None:
    """A column alone is copied in a way of its own."""
    call = {**FIRST, **VARIANTS[variant]}
    (together,) = logged(CONFIG, [call], tmp_path / "together")

    def body(log: Recorder) -> None:
        for step, one in enumerate([FIRST, FIRST, call, call]):
            with log.step(step):
                for name, value in one.items():
                    log.observe(**{name: value})

    sink = run(CONFIG, body, tmp_path / "apart")
    assert [sink.scalars[step] for step in (2, 3)] == [together, together]


@pytest.mark.parametrize("variant", WRONG)
def test_a_wrong_call_is_refused_as_if_it_was_the_first(variant: str, tmp_path: Path) -> None:
    """With the same words; and it leaves nothing in the batch."""
    call = {**FIRST, **WRONG[variant]}

    def refused(before: list[Mapping[str, Any]], folder: Path) -> tuple[str, dict[str, float]]:
        problems: list[str] = []

        def body(log: Recorder) -> None:
            with log.step(0):
                for one in before:
                    log.observe(**one)
            with log.step(1):
                with pytest.raises(DeclogError) as caught:
                    log.observe(**call)
                problems.append(str(caught.value))
                log.observe(**FIRST)

        sink = run(CONFIG, body, folder)
        return problems[0], sink.scalars[1]

    assert refused([FIRST, FIRST], tmp_path / "after") == refused([], tmp_path / "alone")


def test_what_is_given_may_be_changed_after_each_call(tmp_path: Path) -> None:
    """Each call is copied, the first and those like it."""

    tensors = {name: value for name, value in FIRST.items() if isinstance(value, torch.Tensor)}

    def body(log: Recorder) -> None:
        for step in range(3):
            with log.step(step):
                values = {name: value.clone() for name, value in tensors.items()}
                log.observe(**{**FIRST, **values})
                for value in values.values():
                    value.zero_()

    sink = run(CONFIG, body, tmp_path)
    assert [sink.scalars[step] for step in range(3)] == logged(CONFIG, [FIRST] * 3, tmp_path / "kept")


def test_calls_of_parts_are_one_batch(tmp_path: Path) -> None:
    """One call of all, or one call each, whatever is known of them."""
    parts = [{name: value} for name, value in FIRST.items()]

    def body(log: Recorder) -> None:
        for step in range(3):
            with log.step(step):
                for part in parts:
                    log.observe(**part)

    sink = run(CONFIG, body, tmp_path)
    assert [sink.scalars[step] for step in range(3)] == logged(CONFIG, [FIRST] * 3, tmp_path / "whole")


def test_names_that_the_profile_does_not_know_are_refused_again(tmp_path: Path) -> None:
    """Also where a step function's result with such names was taken before, which may have more."""

    def body(log: Recorder) -> None:
        step = log.wrap(lambda: {**FIRST, "other": 1.0})
        step()
        step()
        with log.step(7), pytest.raises(DeclogError, match="other"):
            log.observe(**FIRST, other=1.0)

    run(CONFIG, body, tmp_path)
