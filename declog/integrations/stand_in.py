"""Stand-ins for a logger, a run or a writer that pass as the original. What they leave to it is kept with the run."""

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
    is_histogram,
    is_table,
    kind_of,
)

log = logging.getLogger("declog")


class Stands:
    """A stand-in for a logger: other attributes come from the logger, and `isinstance` sees the logger's class."""

    _wraps: Any = None

    @property  # type: ignore[misc]  # as mocks and proxies do it
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


def alone(options: Mapping[str, Any]) -> dict[str, int]:
    """Options with this process as the only rank, unless they give a rank."""
    return {} if {"rank", "world_size", "comm", "role"} & options.keys() else {"rank": 0, "world_size": 1}


class LeftToLogger:
    """What went to a logger alone, since declog keeps numbers only: each name is told of once, and kept with the run.

    Names with other digits are one, as those that hold a step. ``logger`` is what it is called, "" where there is none
    and nobody keeps them, ``config`` the tee's. A table or a histogram is told of with the call of the tee by which
    declog has its rows, and those that were told of before.
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
        """Record numbers, and the rows of tables that the config declares; the others are returned.

        Histograms are among these, also under a signal's name: they have no values any more.
        """
        histograms = {name: value for name, value in values.items() if is_histogram(value)}
        rows = self._tables.columns(flat, recorder.plan.signal_names)
        numbers = {name: value for name, value in values.items() if name not in histograms}
        return {**recorder.scalars({**numbers, **rows}, step, **options), **histograms}

    def tell(self, values: Mapping[str, Any], recorder: declog.Recorder) -> None:
        """Say it of names that are new."""
        signals = recorder.plan.signal_names
        names = [name for name, value in values.items() if not declared_columns(name, value, signals)]
        kinds = {kind_of(name): name for name in names}
        untold = sorted(kinds[kind] for kind in kinds.keys() - self._kinds.keys())
        self._kinds.update(kinds)
        if untold:
            shown = ", ".join(f"`{name}`" for name in untold)
            fix = self._edit({name: values[name] for name in untold}, signals)
            went = f"{shown} went to {self._logger} alone" if self._logger else f"left out: {shown}"
            log.warning(
                "declog keeps numbers, in %s; %s%s", recorder.output_dir, went, f"\n  fix: {fix}" if fix else ""
            )
            edits = {name: self._edits.get(name, "") for name in sorted(self._kinds.values())}
            recorder.note(left_to_logger={self._logger: edits})

    def _edit(self, values: Mapping[str, Any], signals: frozenset[str]) -> str:
        """The call that keeps the rows of all tables and histograms up to now; empty if none of these is one."""
        if not any(is_table(value) or is_histogram(value) for value in values.values()):
            return ""
        call = self._call = self._call or TeeCall(self._config)
        added = [name for name, value in values.items() if call.declare(name, value, signals)]
        edit = call.text(self._logger and ("wandb" if self._logger == "wandb" else "logger")) if added else ""
        self._edits |= dict.fromkeys(added, edit)
        return edit
