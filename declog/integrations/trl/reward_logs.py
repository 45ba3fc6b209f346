"""Values that reward functions pass to TRL's ``log_extra`` and ``log_metric``, with the name of the function.

TRL accepts any value here. declog leaves out a value that it cannot record, and reports it with the function's name.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from declog.errors import InputError
from declog.integrations.hook import Guard, Part

UNKNOWN = "a reward function or a callback"  # such as a call from another thread


class RewardLogs:
    """The columns of one generation in pieces, as they came, and the total and the number of calls of each metric."""

    def __init__(self, trainer: Any, guard: Guard) -> None:
        self.metrics: set[str] = set()  # all names that were given to log_metric
        self.totals: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.nans: dict[str, int] = {}
        self._trainer = trainer
        self._guard = guard
        self._generating = False
        self._pieces: dict[str, dict[str, list[Any]]] = {}  # by column and function

    @contextmanager
    def generation(self) -> Iterator[None]:
        """A block for a generation, which clears all values at its end. As in TRL, numbers from before belong to it."""
        self._generating = True
        try:
            yield
        finally:
            self._generating = False
            for kept in (self.totals, self.calls, self.nans, self._pieces):
                kept.clear()

    # -- hooks

    def log_metric(self, name: str, value: Any) -> Part:
        yield None
        self.metrics.add(name)
        with self._guard(lambda: f"`{name}` of {self.caller()} is no number that could be recorded"):
            number = float(value)
            self.totals[name] += 0.0 if math.isnan(number) else number
            self.calls[name] += 1
            self.nans[name] = self.nans.get(name, 0) + math.isnan(number)  # one, on any rank, and TRL has no value

    def log_extra(self, column: str, values: Any) -> Part:
        kept = self._trainer._pending_extra_logs
        before = len(kept.get(column, ()))
        yield None
        caller = self.caller()
        if not self._generating:
            with self._guard(f"the column `{column}` of {caller}", "the column is left out"):
                raise InputError.of("DL509.late")
            return
        taken = kept[column][before:]  # what came may have been a generator
        self._pieces.setdefault(column, {}).setdefault(caller, []).extend(taken)

    # -- a generation's columns

    def of(self, column: str) -> str:
        """The column and its function, for messages."""
        return f"the column `{column}` of {' and '.join(self._pieces[column])}"

    def columns(self, count: int) -> Iterator[tuple[str, list[Any]]]:
        """Each column with one value per completion; other columns, which TRL accepts, are reported."""
        for column, pieces in self._pieces.items():
            joined = [value for values in pieces.values() for value in values]
            fitting = [values for values in pieces.values() if len(values) == count]
            if len(joined) == count:
                yield column, joined
                continue
            with self._guard(self.of(column), "the first that fits is kept" if fitting else "the column is left out"):
                came = ", ".join(f"{len(values)} of {name}" for name, values in pieces.items())
                raise InputError.of("DL509.given", came=came, count=count)
            if fitting:
                yield column, fitting[0]

    def caller(self) -> str:
        """The reward function that calls, by the frames above this one; of one decorator's, all that it may be."""
        functions: dict[CodeType, list[str]] = {}
        for function, name in zip(self._trainer.reward_funcs, self._trainer.reward_func_names, strict=True):
            for code in _codes(function):
                functions.setdefault(code, []).append(f"`{name}`")
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code in functions:
                return f"the reward function {' or '.join(functions[frame.f_code])}"
            frame = frame.f_back
        return UNKNOWN


def _codes(function: Callable[..., Any]) -> Iterator[CodeType]:
    """What of a reward function may stand in a frame: the function itself, what it wraps, its class's ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    function = function.__func__ if inspect.ismethod(function) else function
    if inspect.isfunction(function):
        yield function.__code__
        if "__wrapped__" in vars(function):
            yield from _codes(vars(function)["__wrapped__"])
