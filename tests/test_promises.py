"""What a team may rely on between releases of one ``spec``: calls of the Python API, and what sinks are given.

``tests/data/frozen/api.txt`` has each public call with its parameters: ``name`` must be given, ``name=`` need not be,
behind ``*`` stands what is given by name. A later declog takes every call that fits these lines. A line is added with
what is new: ``python -m tests.test_promises --update``. The language is in ``replay/test_frozen.py``, the run's folder
and checkpoints in ``runtime/test_formats.py``.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Any

import pytest

import declog
from declog import records, sinks, testing
from declog.runs.run import Run

FILE = Path(__file__).parent / "data" / "frozen" / "api.txt"
NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
STARS = {1: Parameter.VAR_POSITIONAL, 2: Parameter.VAR_KEYWORD}
# made by declog only; what they have is in the lines of their methods
MADE_HERE = ("LogSpec", "Plan", "Recorder")
FOR_INTEGRATIONS = (
    "attached", "beside", "came", "guard", "idle", "in_child", "log_metrics", "note", "observe_generated",
    "observe_reserved", "pass_through", "stamp", "taking", "training",
)  # fmt: skip


def public_calls() -> Iterator[tuple[str, Any]]:
    """Each public call by its name."""
    for name in declog.__all__:
        value = getattr(declog, name)
        if not (inspect.isclass(value) and (issubclass(value, Exception) or name in MADE_HERE)):
            yield f"declog.{name}", value
    for kind in (declog.Recorder, Run, sinks.Sink, sinks.Rewindable, sinks.Coalescing, sinks.Live):
        yield from methods(kind)
    yield from ((f"declog.testing.{name}", getattr(testing, name)) for name in testing.__all__)
    for name, value in vars(records).items():
        if inspect.isclass(value) and value.__module__ == records.__name__ and dataclasses.is_dataclass(value):
            yield f"declog.records.{name}", value


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods of a class."""
    for name, value in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and name not in FOR_INTEGRATIONS:
            yield f"{kind.__name__}.{name}", value


def line(name: str, call: Callable[..., Any]) -> str:
    """A call as a line of the file."""
    words, by_name = [], False
    for one in inspect.signature(call).parameters.values():
        if one.kind is Parameter.KEYWORD_ONLY and not by_name:
            words.append("*")
        by_name |= one.kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_POSITIONAL)
        words.append(str(one).partition(":")[0].partition("=")[0] + ("=" if one.default is not Parameter.empty else ""))
    return f"{name}({', '.join(words)})"


def broken(promised: str, call: Callable[..., Any]) -> list[str]:
    """What calls that fit a line cannot do any more."""
    promised_words = promised[promised.index("(") + 1 : -1].split(", ") if not promised.endswith("()") else []
    today = inspect.signature(call).parameters
    kinds = {one.kind for one in today.values()}
    behind = next((at for at, word in enumerate(promised_words) if word.startswith("*")), len(promised_words))
    problems = []
    positional = [one.name for one in today.values() if one.kind in (NAMED[0], Parameter.POSITIONAL_ONLY)]
    for at, word in enumerate(promised_words):
        name, stars = word.strip("*="), word.count("*")
        if stars:
            if word != "*" and STARS[stars] not in kinds:
                problems.append(f"{name}: any number could be given")
        elif name not in today:
            problems.append(f"{name} is gone")
        elif at < behind and positional[at : at + 1] != [name]:
            problems.append(f"{name} is not in its position")
        elif word.endswith("=") and today[name].default is Parameter.empty:
            problems.append(f"{name} must be given")
    names = {word.strip("*=") for word in promised_words}
    for one in today.values():
        if one.name not in names and one.kind in NAMED and one.default is Parameter.empty:
            problems.append(f"{one.name} is new, and must be given")
    return problems


def promises() -> Mapping[str, str]:
    """The lines of the file, by what is called."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return {text.partition("(")[0]: text for text in lines}


def test_calls_that_work_today_work_later() -> None:
    """No parameter goes, moves, or has to be given that had not."""
    calls = dict(public_calls())
    assert sorted(promises().keys() - calls) == []
    problems = {name: broken(text, calls[name]) for name, text in promises().items()}
    assert {name: found for name, found in problems.items() if found} == {}


def test_all_that_is_public_is_promised() -> None:
    """What is new comes into the file on purpose."""
    assert [line(name, call) for name, call in public_calls() if promises().get(name) != line(name, call)] == []


def _call(first: int, second: int = 0, *more: int, third: int = 0) -> None:
    """What the changes below are changes of."""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda second=0, first=0, *, third=0: None, "first is not in its position"),
        (lambda first, *, third=0: None, "second is gone"),
        (lambda first, second=0, *, third: None, "third must be given"),
        (lambda first, second=0, *, third=0, fourth: None, "fourth is new, and must be given"),
        (lambda first, *, second=0, third=0: None, "second is not in its position"),
        (lambda first, second=0, *, third=0: None, "more: any number could be given"),
    ],
)
def test_a_change_that_breaks_calls(change: Callable[..., Any], problem: str) -> None:
    """Each is seen, whatever the parameter."""
    assert problem in broken(line("call", _call), change)


@pytest.mark.parametrize(
    "change",
    [
        lambda first, second=0, *several, third=0, fourth=0: None,
        lambda first=0, second=0, *more, third=0, fourth=0, **others: None,
    ],
)
def test_a_change_that_breaks_no_call(change: Callable[..., Any]) -> None:
    """More may be given, and less has to be."""
    assert broken(line("call", _call), change) == []


if __name__ == "__main__" and "--update" in sys.argv:
    FILE.write_text("".join(f"{line(name, call)}\n" for name, call in public_calls()), encoding="utf-8")
