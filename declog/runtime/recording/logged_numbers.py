"""Named numbers that a loop logs, mostly for a tracker: ``Recorder.scalars``, which all tees use.

If no block owns the step of a call, the call makes the step, with everything observed for it. The step's window stays
open until a call for a later step, so several calls can belong to one step.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch

from declog.language.dtypes import Axis, DType
from declog.plans.ops import Plan
from declog.runtime.recording.session import Session
from declog.runtime.rows.scopes import Recording, Scope, here, origin
from declog.runtime.rows.unknown_signals import no_number
from declog.runtime.run.failures import Refused

log = logging.getLogger("declog")
REAL = "biuf"  # the kinds of numpy's dtypes that are real numbers


def is_number(value: Any) -> bool:
    """Whether a value is one real number: of Python or numpy, or a tensor or array with one element, on any device."""
    if isinstance(value, bool | int | float | Real):
        return True
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.dtype.is_complex
    if isinstance(value, np.generic | np.ndarray):
        return value.size == 1 and value.dtype.kind in REAL
    if hasattr(type(value), "__array__") and hasattr(type(value), "dtype"):  # numpy's array protocol, as jax has
        return is_number(np.asarray(value))
    return False


def split(
    plan: Plan, values: Mapping[str, Any], between: str = "/"
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Split a loop's values into signals by name, other numbers by name, and the rest, nested as it was passed.

    Names inside a nested mapping are joined by ``between``, unless the mapping is a declared signal (a family).
    """
    signals: dict[str, Any] = {}
    numbers: dict[str, Any] = {}

    def rest(values: Mapping[str, Any], before: str) -> dict[str, Any]:
        remaining: dict[str, Any] = {}
        for key, value in values.items():
            name = f"{before}{key}"
            number = is_number(value)
            if value is not None and name in plan.signal_names and _fits(plan, name, number):
                signals[name] = value
            elif number:
                numbers[name] = value if isinstance(value, int | float | torch.Tensor) else np.asarray(value).item()
            elif not isinstance(value, Mapping) or not value:
                remaining[key] = value
            elif inside := rest(value, name + between):
                remaining[key] = inside
        return remaining

    return signals, numbers, rest(values, "")


def _fits(plan: Plan, name: str, number: bool) -> bool:
    """Whether a value fits the signals of its name: numbers fit signals per step, other values fit other signals."""
    ops = plan.sources.get(name)
    if ops is None:  # nothing needs the signal
        return number
    plain = all(op.axis is Axis.STEP and not op.family for op in ops)
    return plain if number else not plain or any(op.dtype is DType.TEXT for op in ops)


class LoggedNumbers:
    """Keeps a recorder's last step open, because further calls may log numbers for it."""

    def __init__(self, log: Recording, session: Session) -> None:
        self._log = log
        self._session = session
        self._held: Scope | None = None  # keeps the window of the last step open
        self._noted: set[str] = set()
        self._lock = threading.RLock()

    def note(self, rest: Mapping[str, Any], between: str, before: str = "") -> None:
        """Warn once per name of values that are no numbers; names that differ only in digits are one name."""
        for key, value in rest.items():
            name = f"{before}{key}"
            if isinstance(value, Mapping):
                self.note(value, between, name + between)
            elif value is not None and (kind := re.sub(r"\d+", "0", name)) not in self._noted:
                self._noted.add(kind)
                log.warning("%s", no_number(self._session.plan, name, value))

    def take(self, values: Mapping[str, Any], step: int | None, between: str) -> dict[str, Any]:
        """Record the numbers of one call, and return the other values.

        A refused signal does not affect the other numbers; its error is raised after they are recorded.
        """
        recorder, refused = self._log, Refused(self._session.failures)
        signals, numbers, rest = split(self._session.plan, values, between)
        with self._lock:
            scope, once = (recorder._here(), False) if step is None else self._scope(step)
            try:
                if signals:
                    self._observe(scope, signals, refused)
                if numbers:
                    recorder._metrics_in(scope, numbers)
            finally:
                if once and scope is not None:
                    self._session.end(scope, failed=False)
        refused.check()
        return rest

    def _observe(self, scope: Scope | None, signals: Mapping[str, Any], refused: Refused) -> None:
        try:
            if scope is not None:
                self._log._observe_in(scope, (), signals)
            else:
                self._log._observe((), signals, "next")
        except Exception as error:  # noqa: BLE001  (raised when the numbers are recorded)
            refused.add(error)

    def end(self) -> None:
        """End the last step: no more numbers will be logged for it, so its window is complete."""
        session = self._session
        with self._lock:
            held, self._held = self._held, None
            if held is None or session.closed:
                return
            session.train.held = None
            session.end(held, failed=False)
            if not session.plan.modes["train"].every:  # with `every: trainer` each logged step is a log event
                self._log.flush()

    def _scope(self, step: int) -> tuple[Scope, bool]:
        """Return the scope for the numbers of a step, and whether the scope serves this call only."""
        session, around = self._session, here(self._log)
        opened, last = session.step, session.train.last
        for scope in (around, opened, self._held):
            if scope is not None and not scope.closed and (scope.number == step or scope.mode != "train"):
                return scope, False
        if around is None and opened is None and (last is None or step > last):
            self.end()
            with self._log.step(step):
                held = self._held = self._opened(step)
                session.train.held = step
            return held, False
        return self._opened(step), True

    def _opened(self, step: int) -> Scope:
        """Open a scope that contributes to a step, without entering it: no other calls go into it."""
        scope = Scope(self._log, "at", step)
        self._session.open(scope, origin())
        return scope
