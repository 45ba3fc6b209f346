"""Passive reward functions: columns beside the rewards, with and without a recorder, and in a real TRL training."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trl.trainer.utils import get_callable_name, is_async_callable

import declog
from declog.errors import InputError
from declog.runtime.recording.recorder import Recorder
from tests.forks import TRL, python
from tests.running import profile, rows, run
from tests.sinks.samples import EXACT

KEEP = {"length": {"type": "int"}, "confidence": {"type": "float"}, "extra": {"undeclared": "keep"}}
CONFIDENCE = {"confidence": {"axis": "completion", "from_log_extra": True}}
TABLE = profile(
    CONFIDENCE | {"length": {"axis": "completion", "type": "int"}}, {"confidence": "mean(confidence)"},
    schemas={"s": KEEP}, tables={"t": {"schema": "s"}},
)  # fmt: skip


def length(completions: Sequence[str], **given: Any) -> Any:
    """The reward is the length."""
    return [len(text) for text in completions], {"half": [len(text) / 2 for text in completions]}


async def later(completions: Sequence[str], **given: Any) -> Any:
    """The same, awaited."""
    await asyncio.sleep(0)
    return length(completions)


class Judge:
    """The same as an object and as methods."""

    def __call__(self, completions: Sequence[str], **given: Any) -> Any:
        return length(completions)

    @declog.reward
    def method(self, completions: Sequence[str]) -> Any:
        """Decorated in the class."""
        return length(completions)

    @declog.reward
    async def slow(self, completions: Sequence[str]) -> Any:
        """Decorated in the class, awaited."""
        return length(completions)


class SlowJudge:
    """An object whose call is awaited."""

    async def __call__(self, completions: Sequence[str], **given: Any) -> Any:
        return length(completions)


FORMS: Mapping[str, tuple[Callable[..., Any], str, bool]] = {
    "function": (declog.reward(length), "length", False),
    "async": (declog.reward(later), "later", True),
    "object": (declog.reward(Judge()), "Judge", False),
    "async object": (declog.reward(SlowJudge()), "SlowJudge", True),
    "method": (Judge().method, "method", False),
    "async method": (Judge().slow, "slow", True),
    "bound method": (declog.reward(Judge().__call__), "__call__", False),
    "partial": (declog.reward(functools.partial(length, more=1)), "length", False),
    "async partial": (declog.reward(functools.partial(later, more=1)), "later", True),
    "partial of a decorated one": (functools.partial(declog.reward(length), more=1), "length", False),
}


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a trainer gets."""
    result = function(*arguments)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


@pytest.mark.parametrize(("function", "name", "awaited"), FORMS.values(), ids=FORMS.keys())
def test_a_trainer_gets_the_rewards_and_the_name(function: Callable[..., Any], name: str, awaited: bool) -> None:
    """Without a recorder: plain rewards, and TRL calls it and awaits it as it would without the decorator."""
    assert called(function, ["a", "bcd"]) == [1, 3]
    assert (get_callable_name(function), is_async_callable(function)) == (name, awaited)


@pytest.mark.parametrize(("function", "name", "awaited"), FORMS.values(), ids=FORMS.keys())
def test_the_columns_are_in_the_table(function: Callable[..., Any], name: str, awaited: bool, tmp_path: Path) -> None:
    """With a recorder, whichever form: the column is beside its row."""

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(length=[1, 3])
            assert called(function, ["a", "bcd"]) == [1, 3]

    ((_, table),) = run(TABLE, body, tmp_path).tables("t")
    assert [row["half"] for row in rows(table)] == [0.5, 1.5]


def test_a_declared_column_is_a_signal(tmp_path: Path) -> None:
    """It is reduced as one; a value that is missing is null in the table and not in the mean."""

    @declog.reward
    def graded(texts: Sequence[str]) -> Any:
        return torch.ones(len(texts)), {"confidence": [0.25, None, 0.75], "note": ["größer", None, "漢字"], "id": ids}

    ids = np.array([EXACT, 2, 3])

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(length=[1, 1, 1])
            assert graded(["a", "b", "c"]).tolist() == [1.0, 1.0, 1.0]

    sink = run(TABLE, body, tmp_path)
    ((_, table),) = sink.tables("t")
    assert sink.scalars == {0: {"confidence": 0.5}}
    assert rows(table) == [
        {"length": 1, "confidence": 0.25, "id": EXACT, "note": "größer"},
        {"length": 1, "confidence": None, "id": 2, "note": None},
        {"length": 1, "confidence": 0.75, "id": 3, "note": "漢字"},
    ]


@pytest.mark.parametrize(
    "result", [[1.0, 2.0], (1.0, 2.0), ([1.0], [2.0]), (1.0, 2.0, {}), None], ids=lambda result: repr(result)
)
def test_other_results_are_passed_on(result: Any, tmp_path: Path) -> None:
    """Only a pair whose second is a mapping means columns."""
    function = declog.reward(lambda: result)

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(length=[1])
            assert function() is result

    assert function() is result
    run(TABLE, body, tmp_path)


WRONG: Mapping[str, tuple[Mapping[Any, Any], str]] = {
    "too few": ({"x": [1]}, "the reward function `odd` returns 1 values as the column `x`, and 2 rewards"),
    "too many": (
        {"fine": [1, 2], "x": np.arange(3)},
        "the reward function `odd` returns 3 values as the column `x`, and 2 rewards",
    ),
    "one value": ({"x": 0.5}, "the reward function `odd` returns float as the column `x`, and 2 rewards"),
    "a text": ({"x": "ab"}, "the reward function `odd` returns str as the column `x`, and 2 rewards"),
    "no name": ({7: [1, 2]}, "the reward function `odd` returns a column 7, whose name is no text"),
    "a signal of another type": ({"confidence": ["high", "low"]}, "the reward function `odd`: "),
}


@pytest.mark.parametrize(("columns", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_column_is_an_error_where_it_is_given(columns: Mapping[Any, Any], message: str, tmp_path: Path) -> None:
    """It names the function and the column; the run goes on, with nothing shifted."""

    @declog.reward
    def odd() -> Any:
        return [1.0, 2.0], columns

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(length=[1, 2])
            with pytest.raises(InputError) as caught:
                odd()
            assert caught.value.message.startswith(message)
            log.log_extra("after", ["a", "b"])

    assert odd() == [1.0, 2.0]  # without a recorder nobody looks at columns
    ((_, table),) = run(TABLE, body, tmp_path).tables("t")
    assert [row["after"] for row in rows(table)] == ["a", "b"]
    assert not {"x", "fine", "7"} & {column.name for column in table.columns}


def test_a_class_is_no_reward_function() -> None:
    """Its call makes an object; the decorator belongs on `__call__`."""
    for wrong in (Judge, "text"):
        with pytest.raises(TypeError, match="takes a function or an object with `__call__`"):
            declog.reward(wrong)  # type: ignore[arg-type]


def test_rewards_of_a_real_training_with_trl(tmp_path: Path) -> None:
    """GRPO with a plain, an awaited and an object's reward function: TRL's names, and the table's columns in rows."""
    program = (
        "import sys; from pathlib import Path; from tests.runtime.trl_rewards import main; main(Path(sys.argv[1]))"
    )
    found = json.loads(python(program, str(tmp_path), imports=TRL).splitlines()[-1])
    assert found["names"] == ["rewards/Style/mean", "rewards/judged/mean", "rewards/lengths/mean"]
    assert found["columns"] == ["confidence", "style", "verdict", "word_count"]
    data = found["data"]
    texts = [verdict.removeprefix("größer: ") for verdict in data["verdict"]]
    assert len(texts) == 4
    assert data["word_count"] == [len(text.split()) for text in texts]
    assert data["confidence"] == [count / 4 for count in data["word_count"]]
    assert data["style"] == [{"a": text.count("a")} for text in texts]
    assert found["reward"] == sum(data["word_count"]) / 4
    assert found["scalars"] == {"confidence": max(data["confidence"])}
