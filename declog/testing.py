"""Helpers for tests: a sink that keeps its records, the checks of a sink, several ranks, config tests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from declog.records import Alert, Records, ResumePoint, RunInfo, Table
from declog.runtime.ranks.fake_comm import FakeComm, run_ranks

if TYPE_CHECKING:
    from declog.replay.config_tests import ConfigTest
    from declog.sinks import Sink

__all__ = ["FakeComm", "MemorySink", "check_sink", "config_tests", "run_config_tests", "run_ranks"]


class MemorySink:
    """A sink that keeps its records. ``events`` has (step, records) in the order of writing."""

    accepts: ClassVar[frozenset[str]] = frozenset({"scalar", "histogram", "table", "alert"})

    def __init__(self) -> None:
        self.run: RunInfo | None = None
        self.events: list[tuple[int, Records]] = []
        self.closed = False

    def open(self, run: RunInfo) -> None:
        self.run = run

    def rewind(self, point: ResumePoint) -> None:
        self.events = [
            (step, records) for step, records in self.events if point.keeps(step, records.mode, records.keys)
        ]

    def write(self, step: int, records: Records) -> None:
        self.events.append((step, records))

    def close(self) -> None:
        self.closed = True

    @property
    def scalars(self) -> dict[int, dict[str, float]]:
        """The values of scalars by step and name; two log events of one step are merged."""
        by_step: dict[int, dict[str, float]] = {}
        for step, records in self.events:
            by_step.setdefault(step, {}).update({item.name: item.value for item in records.scalars})
        return by_step

    @property
    def alerts(self) -> list[tuple[int, Alert]]:
        """The alerts, with their steps."""
        return [(step, alert) for step, records in self.events for alert in records.alerts]

    def tables(self, name: str) -> list[tuple[int, Table]]:
        """The tables of one name, with their steps."""
        return [(step, table) for step, records in self.events for table in records.tables if table.name == name]


def check_sink(
    make: Callable[[], Sink],
    *,
    read: Callable[[RunInfo], Iterable[tuple[int, str, float]]] | None = None,
    folder: str | Path | None = None,
    leave_out: Collection[str] = (),
) -> list[str]:
    """Check that a sink does what declog asks of every sink; raises ``AssertionError`` with all failures.

    ``make`` makes a sink: its class, or a function without arguments. ``read`` returns the scalars of a run in the
    sink, as (step, name, value) in their order. Without ``read``, the written values, their order, simultaneous runs
    and resumed runs are not checked. ``folder`` is the folder for the runs' folders, by default a temporary one.
    ``leave_out`` has the names of checks that do not fit the sink, as in the message. Returns the names of the checks.
    """
    from declog.sinks.contract import Contract, failures

    with tempfile.TemporaryDirectory(dir=folder, prefix="sink-") as scratch:
        checks = Contract(make, read, Path(scratch)).checks()
        if unknown := sorted({*leave_out} - {*checks}):
            raise ValueError(f"no checks of this sink: {unknown}; there are {list(checks)}")
        checks = {what: check for what, check in checks.items() if what not in leave_out}
        wrong = "\n\n".join(failures(checks))
    if wrong:
        raise AssertionError(f"the sink does not do what declog asks of every sink\n\n{wrong}")
    return list(checks)


def config_tests(
    config: Any,
    overrides: Sequence[str] = (),
    *,
    select: str = "",
    **registries: Any,
) -> list[ConfigTest]:
    """The entries of a config's ``tests:``, each with a ``name`` and a method ``run``, for pytest's ``parametrize``.

    ``config`` is a config as for ``declog.start``: a preset's name (with ``overrides``), a composed config, a mapping.
    ``select`` chooses tests by a part of their names, or by a pattern. ``registries`` are ``functions``,
    ``reductions`` and ``columns``, as for ``start``. Raises ``ConfigError`` if the config is wrong.
    """
    from declog.replay import config_tests as found

    return found.config_tests(config, overrides, select=select, **registries)


def run_config_tests(
    config: Any,
    overrides: Sequence[str] = (),
    *,
    select: str = "",
    **registries: Any,
) -> list[str]:
    """Run a config's tests and return their names; raises ``AssertionError`` with all failures.

    A config without any test is an error, too. The arguments are those of ``config_tests``.
    """
    tests = config_tests(config, overrides, select=select, **registries)
    if not tests:
        raise AssertionError("the config has no test" + (f" like `{select}`" if select else ""))
    results = [test.run() for test in tests]
    wrong = "\n\n".join(str(result) for result in results if not result.passed)
    if wrong:  # raised, not asserted: also under `python -O`, and as it is under pytest
        raise AssertionError(f"the config does not log what its tests expect\n\n{wrong}")
    return [test.name for test in tests]
