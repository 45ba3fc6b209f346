"""Reward functions that return columns beside their rewards, and need no recorder.

This module imports little, so that a module of reward functions stays cheap to import.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, ParamSpec

from declog.errors import InputError
from declog.runtime.rows import context
from declog.runtime.rows.scopes import within

P = ParamSpec("P")


def reward(function: Callable[P, Any]) -> Callable[P, Any]:
    """Let a reward function return ``(rewards, {"column": values})``: the trainer gets ``rewards`` alone.

    The columns, one value per reward, are recorded as by ``declog.log_extra``: a column that the config declares is
    observed as a signal, other columns go to the tables that keep undeclared columns. Without an active recorder the
    columns are left out. A result of any other form is returned unchanged. ``reward`` wraps plain and ``async``
    functions, methods, and objects with ``__call__``; it keeps the name, under which trainers log rewards.

    Raises ``InputError`` DL509, with the function and the column, for a column that has another length than the rewards
    or that ``log_extra`` refuses; the call's later columns are then not recorded. Inside a trainer that declog is
    attached to, such a column is reported and left out, and the other columns are recorded.
    """
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"@declog.reward takes a function or an object with `__call__`, not {function!r}")
    plain: Any = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    called = plain if inspect.isroutine(plain) else type(plain).__call__
    name = (plain if called is plain else type(plain)).__name__
    columns_taken = nullcontext(functools.partial(_taken, name))
    wrapped = within(function, lambda: columns_taken, awaited=inspect.iscoroutinefunction(called))
    wrapped.__name__ = name
    return wrapped


def _taken(name: str, result: Any) -> Any:
    """Record the columns of a reward function's result, and return the rewards."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        return result
    rewards, columns = result
    recorder = context.current()
    if recorder is None or recorder.closed:
        return rewards
    with context.giving(f"the reward function `{name}`"):
        fitting = {}
        for column, values in columns.items():
            with recorder.taking(column):
                _check(name, column, values, len(rewards))
                fitting[column] = values
        for column, values in fitting.items():
            try:
                recorder.log_extra(column, values)
            except InputError as error:
                message = f"the reward function `{name}`: {error.message}"
                raise InputError(error.code, message, error.fix) from error
    return rewards


def _check(name: str, column: Any, values: Any, expected: int) -> None:
    if not isinstance(column, str):
        raise InputError.of("DL509.reward_name", name=name, column=column)
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        came = type(values).__name__
    elif len(values) != expected:
        came = f"{len(values)} values"
    else:
        return
    raise InputError.of("DL509.reward_count", name=name, came=came, column=column, expected=expected)
