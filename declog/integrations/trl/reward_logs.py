"""Collects the values that reward functions pass to TRL's ``log_extra`` and ``log_metric``, with the function's name.

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

UNKNOWN = "a reward function or a callback"  # the caller is not found, such as in another thread


class RewardLogs:
    """The columns of one generation, in pieces by function, and the total and number of calls of each metric."""

    def __init__(self, trainer: Any, guard: Guard) -> None:
        self.metrics: set[str] = set()  # all names that were passed to log_metric
        self.totals: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.nans: dict[str, int] = {}
        self._trainer = trainer
        self._guard = guard
        self._generating = False
        self._pieces: dict[str, dict[str, list[Any]]] = {}  # by column and function

    @contextmanager
    def generation(self) -> Iterator[None]:
        """A block for one generation; its end clears all values. As in TRL, numbers logged before it belong to it."""
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
            self.nans[name] = self.nans.get(name, 0) + math.isnan(number)  # a NaN on any rank, and TRL logs no value

    def log_extra(self, column: str, values: Any) -> Part:
        kept = self._trainer._pending_extra_logs
        before = len(kept.get(column, ()))
        yield None
        caller = self.caller()
        if not self._generating:
            with self._guard(f"the column `{column}` of {caller}", "the column is left out"):
                raise InputError.of("DL509.late")
            return
        taken = kept[column][before:]  # `values` may be a generator, which TRL has used up
        self._pieces.setdefault(column, {}).setdefault(caller, []).extend(taken)

    # -- the columns of a generation

    def of(self, column: str) -> str:
        """The column and the functions that logged it, in words for messages."""
        return f"the column `{column}` of {' and '.join(self._pieces[column])}"

    def columns(self, count: int) -> Iterator[tuple[str, list[Any]]]:
        """Yield each column with one value per completion.

        TRL accepts other lengths, too. Of such a column the first piece with ``count`` values is kept, and the column
        is reported.
        """
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
        """The reward function that called this code, in words: the function is found by the frames of the callers.

        If several functions share the code of one decorator, the text names all of them.
        """
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
    """The code objects that show a reward function in a frame: its own, its wrapped function's, its ``__call__``'s."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    function = function.__func__ if inspect.ismethod(function) else function
    if inspect.isfunction(function):
        yield function.__code__
        if "__wrapped__" in vars(function):
            yield from _codes(vars(function)["__wrapped__"])
