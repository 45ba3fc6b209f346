"""Stand-ins that pass as a logger, a run or a writer, and the note of the values that only the original received."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import declog
from declog.errors.habits import meant, no_attribute
from declog.integrations.logged_tables import (
    LoggedTables,
    TeeCall,
    declared_columns,
    is_array,
    is_histogram,
    is_table,
    kind_of,
)

log = logging.getLogger("declog")


class LoggerProxy:
    """A stand-in for a logger: its other attributes are the logger's, and `isinstance` sees the logger's class."""

    _wraps: Any = None

    @property  # type: ignore[misc]  # as mocks and proxies do
    def __class__(self) -> type[Any]:
        return type(self if self._wraps is None else self._wraps)

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._wraps, name)
        except AttributeError as error:
            if not (fix := meant(name, (), "logger", "stand_in")):
                raise
            raise no_attribute(f"{error}{fix}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if self._wraps is None or name in vars(self):
            object.__setattr__(self, name, value)
        else:
            setattr(self._wraps, name, value)

    def __enter__(self) -> Any:
        return self

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def single_rank(options: Mapping[str, Any]) -> dict[str, int]:
    """Options that make this process the only rank; empty if ``options`` name a rank."""
    return {} if {"rank", "world_size", "comm", "role"} & options.keys() else {"rank": 0, "world_size": 1}


class LeftToLogger:
    """Reports the values that went to the logger alone, because declog keeps numbers only.

    A warning names each of them once, and the run's folder keeps the names. Names that differ only in digits, such as
    those with a step, count as one. ``logger`` is the logger's name; "" means that there is none, so nobody keeps the
    values. ``config`` is the tee's. For tables, histograms and arrays the warning shows the ``declog.tee`` call that
    would record their rows, and the rows of those named before.
    """

    def __init__(self, logger: str, config: Any) -> None:
        self._logger, self._config = logger, config
        self._call: TeeCall | None = None
        self._kinds = dict[str, str]()
        self._edits = dict[str, str]()
        self._tables = LoggedTables()

    def record(
        self, values: Mapping[str, Any], flat: Mapping[str, Any], recorder: declog.Recorder, step: int, **options: Any
    ) -> dict[str, Any]:
        """Record numbers, and the rows of tables that the config declares; return the other values.

        Histograms are always returned, even under a signal's name, because they no longer hold their values.
        """
        histograms = {name: value for name, value in values.items() if is_histogram(value)}
        rows = self._tables.columns(flat, recorder.plan.signal_names)
        numbers = {name: value for name, value in values.items() if name not in histograms}
        return {**recorder.scalars({**numbers, **rows}, step, note=False, **options), **histograms}

    def warn(self, values: Mapping[str, Any], recorder: declog.Recorder) -> None:
        """Warn about new names among the values, and note all names so far with the run."""
        signals = recorder.plan.signal_names
        logged = {name: value for name, value in values.items() if value is not None}  # None is no value
        names = [name for name, value in logged.items() if not declared_columns(name, value, signals)]
        kinds = {kind_of(name): name for name in names}
        untold = sorted(kinds[kind] for kind in kinds.keys() - self._kinds.keys())
        self._kinds.update(kinds)
        if untold:
            shown = ", ".join(f"`{name}`" for name in untold)
            before = bool(self._edits)
            fix = self._edit({name: values[name] for name in untold}, signals)
            went = f"{shown} went to {self._logger} alone" if self._logger else f"left out: {shown}"
            went += "; this fix replaces the one before, and is for all" if before and fix else ""
            log.warning(
                "declog keeps numbers, in %s; %s%s", recorder.output_dir, went, f"\n  fix: {fix}" if fix else ""
            )
            edits = {name: self._edits.get(name, "") for name in sorted(self._kinds.values())}
            recorder.note(left_to_logger={self._logger: edits})

    def _edit(self, values: Mapping[str, Any], signals: frozenset[str]) -> str:
        """The call that records all tables, histograms and arrays so far; empty if these values have none."""
        if not any(is_table(value) or is_histogram(value) or is_array(value) for value in values.values()):
            return ""
        call = self._call = self._call or TeeCall(self._config)
        it = self._logger and ("wandb" if self._logger == "wandb" else "logger")
        added = [name for name, value in values.items() if call.declare(name, value, signals)]
        self._edits |= {name: call.text(it, name) for name in added}
        return call.text(it) if added else ""
