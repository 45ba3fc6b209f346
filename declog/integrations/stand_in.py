"""Stand-ins for a logger, a run or a writer that pass as the original. What they leave to it is kept with the run."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import declog
from declog.errors.habits import meant, no_attribute
from declog.integrations.logged import number_of

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
    and nobody keeps them. A table is told of with the edit by which declog has its rows.
    """

    def __init__(self, logger: str) -> None:
        self._logger = logger
        self._kinds = dict[str, str]()
        self._edits = dict[str, str]()

    def tell(self, values: Mapping[str, Any], recorder: declog.Recorder) -> None:
        """Say it of names that are new."""
        kinds = {re.sub(r"\d+", "0", name): name for name in values}
        untold = sorted(kinds[kind] for kind in kinds.keys() - self._kinds.keys())
        self._kinds.update(kinds)
        if untold:
            edits = {name: edit for name in untold if (edit := _edit(name, values[name], self._logger))}
            self._edits |= edits
            shown = ", ".join(f"`{name}`" for name in untold)
            fixes = "".join(f"\n  fix: {edit}" for edit in edits.values())
            went = f"{shown} went to {self._logger} alone" if self._logger else f"left out: {shown}"
            log.warning("declog keeps numbers, in %s; %s%s", recorder.output_dir, went, fixes)
            names = {name: self._edits.get(name, "") for name in sorted(self._kinds.values())}
            recorder.note(left_to_logger={self._logger: names})


def _edit(name: str, value: Any, logger: str) -> str:
    """The lines by which declog keeps the rows of a logger's table; empty for any other value. They are tried here."""
    names, rows = getattr(value, "columns", None), getattr(value, "data", None)
    if not isinstance(names, list) or not isinstance(rows, list):
        return ""
    types = {str(column): _type(row[at] for row in rows) for at, column in enumerate(names)}
    ids = {column: _id(column) for column, type_ in types.items() if type_ and column != "step"}  # declog has the step
    table, it = _id(name), "wandb" if logger == "wandb" else "logger"
    overrides = [f"signals.{table}.{id}=completion {types[column]}" for column, id in ids.items()]
    overrides.append(f"tables.{table}={{columns: [{', '.join(ids.values())}]}}")
    try:
        declog.plan(declog.compose("tee", overrides))
    except declog.ConfigError:
        return ""
    columns = {id: f"table.get_column({json.dumps(column, ensure_ascii=False)})" for column, id in ids.items()}
    if not logger:  # where no run is open before the first log
        logged = ", ".join(f'"{id}": {column}' for id, column in columns.items())
        return f"overrides={json.dumps(overrides)}, and log its columns as well: {{{logged}}}"
    observed = ", ".join(f"{id}={column}" for id, column in columns.items())
    return (
        f"{it} = declog.tee({it}, overrides={json.dumps(overrides)}), and before each log: declog.observe({observed})"
    )


def _id(name: str) -> str:
    return re.sub(r"\W+", "_", name.lower()).strip("_")


def _type(values: Iterable[Any]) -> str:
    """The type of a signal with these values; empty of images and the like."""
    types = {
        "text" if isinstance(value, str) else "bool" if isinstance(value, bool | np.bool_) else type(number_of(value))
        for value in values if value is not None
    }  # fmt: skip
    if types and types <= {int, float}:
        return "int" if types == {int} else "float"
    return str(types.pop()) if types in ({"text"}, {"bool"}) else ""
