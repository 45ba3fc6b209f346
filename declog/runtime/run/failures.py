"""Failures outside of the training thread: counted, and the first of each kind reported at once.

Imports errors only.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass, field

from declog.errors import Coded, InputError, RuntimeFailure, error_text

log = logging.getLogger("declog")


@dataclass
class Failures:
    """Counts failures by message; ``first`` is the first of all."""

    counts: dict[str, int] = field(default_factory=dict)
    first: BaseException | None = None
    _guarded: dict[tuple[str, str], RuntimeFailure] = field(default_factory=dict)

    def report(self, error: BaseException, what: str = "a log event could not be finished") -> None:
        """Count an error; the first time, log ``what`` failed, with the traceback.

        Never raises, whatever a user's code raised.
        """
        name = error_text(error)
        before = self.counts.get(name, 0)
        self.counts[name] = before + 1
        self.first = self.first or raisable(error, name)
        if not before:
            cause = error.__cause__ if isinstance(error, RuntimeFailure) else error
            detail = "" if cause is None else "\n" + "".join(traceback.format_exception(cause))
            log.error("%s: %s%s", what, name, detail)

    def count(self, error: Coded, times: int, where: str) -> None:
        """Count an event that happened so many times; the first time, log it with its fix and the place of the call."""
        name = f"[{error.code}] {error.message}"
        before = self.counts.get(name, 0)
        self.counts[name] = before + times
        self.first = self.first or error
        if not before:
            log.error("%s\n  at %s\n  fix: %s", name, where, error.fix)

    def guarded(self, what: str, error: BaseException, left_out: str) -> None:
        """Count a failure of an integration: one message per kind of error, whatever numbers are in its text."""
        key = what, type(error).__name__
        if key not in self._guarded:
            message = error.message if isinstance(error, Coded) else error_text(error)
            self._guarded[key] = RuntimeFailure.of(
                "DL608.left_out",
                what=what,
                message=message,
                left_out=left_out or "the values of this log event lack it",
            )
            self._guarded[key].__cause__ = error
        self.report(self._guarded[key], "something could not be recorded")


class Refused:
    """Collects the errors of parts that are recorded one by one; each error costs only its own part.

    The first is raised after everything is recorded, the others are reported. ``failing``: an error of the caller is
    under way. That one is raised, and values that are missing because of it are not reported.
    """

    __slots__ = ("_failures", "failing", "first")

    def __init__(self, failures: Failures, *, failing: bool = False) -> None:
        self.failing = failing
        self.first: Exception | None = None
        self._failures = failures

    def add(self, error: Exception) -> None:
        """Add the error of a part."""
        if self.failing:
            if not isinstance(error, InputError):
                self._failures.report(error)
        elif self.first is None:
            self.first = error
        else:
            self._failures.report(error)

    def check(self) -> None:
        """Raise the first error, after everything is recorded."""
        if self.first is not None:
            raise self.first


def raisable(error: BaseException, message: str) -> Exception:
    """The error as ``strict`` raises it: a SystemExit in a user's reduction must not end the program."""
    if isinstance(error, Exception):
        return error
    failure = RuntimeFailure("DL605", message)
    failure.__cause__ = error
    return failure
