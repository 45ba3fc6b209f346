"""Failures outside of the training thread: each is counted, and the first of each kind is logged at once."""

from __future__ import annotations

import logging
import re
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from declog.errors import Coded, CommError, InputError, RuntimeFailure, error_text

log = logging.getLogger("declog")


# names in backquotes (group 1), which stay; else the parts that vary: values in quotes, and numbers
_VALUES = re.compile(r"(`[^`]*`)|(?<!\w)(?:'[^'\n]*'|\"[^\"\n]*\")(?!\w)|\b\d+(?:[., ]+\d+)*(?:e[+-]?\d+)?\b")


@dataclass
class Failures:
    """Counts failures of one kind under the message of the first of them; ``first`` is the first failure of any kind.

    A failure that lost rows counts as many as the rows. Errors with a code in ``unlogged`` are counted and not logged.
    """

    unlogged: Collection[str] = ()
    counts: dict[str, int] = field(default_factory=dict)
    first: BaseException | None = None
    _names: dict[str, str] = field(default_factory=dict)  # by kind: the message of the first failure
    _times: Counter[str] = field(default_factory=Counter)  # the number of failures by that message
    _causes_of: dict[str, str] = field(default_factory=dict)  # by that message: the cause of the first failure, if any
    _causes: set[str] = field(default_factory=set)  # the kinds of causes that were logged
    _guarded: dict[tuple[str, str], RuntimeFailure] = field(default_factory=dict)

    def report(self, error: BaseException, what: str = "a log event lacks values") -> None:
        """Count an error; at the first of its kind log ``what`` and the error, with the traceback.

        Never raises, whatever a user's code raised.
        """
        name = error_text(error)
        if self._is_new(error, name, 1) and getattr(error, "code", None) not in self.unlogged:
            cause = error.__cause__ if isinstance(error, RuntimeFailure) else error
            detail = "" if cause is None else "\n" + "".join(traceback.format_exception(cause))
            log.error("%s: %s%s", what, name, detail)

    def attempt(self, call: Callable[[], object], kinds: type[BaseException] = BaseException) -> None:
        """Call a function; report an error of these kinds instead of raising it."""
        try:
            call()
        except kinds as error:
            self.report(error)

    def count(self, error: Coded, rows: int, where: str) -> None:
        """Count the rows that a failure lost; at the first of its kind log it with its fix and the call's location."""
        name = f"[{error.code}] {error.message}"
        if self._is_new(error, name, rows):
            log.error("%s\n  at %s\n  fix: %s", name, where, error.fix)

    def _is_new(self, error: BaseException, name: str, count: int) -> bool:
        """Count a failure; return whether its cause is logged for the first time."""
        name = self._names.setdefault(_kind(error, error.message if isinstance(error, Coded) else name), name)
        self.counts[name] = self.counts.get(name, 0) + count
        self._times[name] += 1
        self.first = self.first or raisable(error, name)
        failure = error if isinstance(error, RuntimeFailure) else None
        self._causes_of.setdefault(name, failure.cause if failure else "")
        cause = _kind(error, failure.cause or failure.message) if failure else name
        is_new = cause not in self._causes
        self._causes.add(cause)
        return is_new

    def summary(self) -> str:
        """The number of kinds of failures, and each kind with how often it came, as text; empty if there were none.

        A cause is written once.
        """
        shown: list[str] = []
        for name, times in self._times.items():
            rows = f", {self.counts[name]} rows" if self.counts[name] != times else ""
            cause = self._causes_of[name]
            text = name.replace(cause, "the same") if cause and any(cause in one for one in shown) else name
            shown.append(f"{text.splitlines()[0]} (x{times}{rows})")
        return f"{len(shown)} failure(s): {'; '.join(shown)}" if shown else ""

    def guarded(self, what: str, error: BaseException, left_out: str) -> None:
        """Count a failure of an integration; failures with one ``what`` and one type of error share a message."""
        key = what, type(error).__name__
        if key not in self._guarded:
            message = error.message if isinstance(error, Coded) else error_text(error)
            fix = f"{error.fix}\n" if isinstance(error, Coded) and error.fix else ""
            left_out = f"{fix}{left_out or 'the values of this log event lack it'}"
            self._guarded[key] = RuntimeFailure.of("DL608.left_out", what=what, message=message, left_out=left_out)
            self._guarded[key].__cause__ = error
            self._guarded[key].cause = message if isinstance(error, Coded) else ""
        self.report(self._guarded[key], "something could not be recorded")


def _kind(error: BaseException, message: str) -> str:
    """The message without its values, which failures of one kind share; numbers of ranks stay, as names of ranks."""
    return message if isinstance(error, CommError) else _VALUES.sub(lambda match: match[1] or "#", message)


class Refused:
    """Collects the errors of parts that are recorded one by one; each error costs only its own part.

    ``check`` raises the first error after everything is recorded; the others are reported. ``failing``: an error of the
    caller is under way and will be raised. Then no error is raised here, and an ``InputError`` is not even reported,
    because the caller's error may have caused it.
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
    """Return the error that ``run.strict`` raises: a SystemExit in a user's reduction must not end the program."""
    if isinstance(error, Exception):
        return error
    failure = RuntimeFailure("DL605", message)
    failure.__cause__ = error
    return failure


def forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of a reported error and its causes: their frames keep the trainer's tensors alive."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
