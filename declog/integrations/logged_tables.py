"""Tables and histograms that a loop logs: the rows that a config declares, and the overrides that declare them.

A column is the signal that is observed ``from: table/column``. Its rows belong to the step of the call, whatever else
the loop observes, and the signals that declare it have the table's name in theirs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import declog
from declog.errors import in_flow
from declog.integrations.logged import number_of

PLAIN = re.compile(r"[A-Za-z_][\w /-]*")  # a text that an override holds without quotes


def kind_of(name: str) -> str:
    """A name with other digits, as those that hold a step, is the same."""
    return re.sub(r"\d+", "0", name)


class LoggedTables:
    """The rows of a loop's tables whose columns are declared; of a table that grows, the rows that are new."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Any, int]] = {}  # the last table of a name, and how many rows it had

    def columns(self, values: Mapping[str, Any], signals: frozenset[str]) -> dict[str, list[Any]]:
        """Rows by the names that their signals are observed under."""
        columns: dict[str, list[Any]] = {}
        for name, value in values.items():
            if declared := declared_columns(name, value, signals):
                table, begin = self._last.get(name, (None, 0))
                begin = begin if table is value else 0
                self._last[name] = value, len(value.data)
                rows = value.data[begin:]
                columns |= {source: [row[at] for row in rows] for source, at in declared.items() if rows}
        return columns


def declared_columns(name: str, value: Any, signals: frozenset[str]) -> dict[str, int]:
    """Where the columns of a table are that signals are observed from; none of any other value."""
    if not is_table(value):
        return {}
    sources = {f"{table}/{title}": at for at, title in enumerate(value.columns) for table in {name, kind_of(name)}}
    return {source: at for source, at in sources.items() if source in signals}


class TeeCall:
    """The call of a tee with its config, and with overrides by which declog has the rows of tables and histograms."""

    def __init__(self, config: Any) -> None:
        origin = config.origin
        self.added: list[str] = []
        self._values: list[str] = []  # of histograms, whose values the loop logs in their place
        self._extensible = origin is not None and not origin.running  # else overrides are of its application
        self._config = config if self._extensible else declog.compose("tee")
        self._preset = ""
        self._overrides: list[str] = []
        if self._extensible and origin.data is None and origin.config_name in declog.presets():
            self._preset, self._config = origin.config_name, origin.config_name
            self._overrides = [re.sub(r"^([+~]*)declog\.", r"\1", text) for text in origin.overrides]
        self._keys = {key: set(config.data.get(key) or ()) for key in ("signals", "schemas", "tables")}
        if not self._keys["signals"] & {"rollout", "update"}:
            self._overrides = [re.sub(r"^([+~]*signals\.)any\.", r"\1rollout.", text) for text in self._overrides]
            signals = declog.compose(self._config, self._overrides).data.get("signals") or {}
            for name, spec in (signals.get("any") or {}).items():  # else they would be rows of the latest phase
                self._overrides += [f"signals.any.{name}=null", f"signals.rollout.{name}={in_flow(spec)}"]

    def declare(self, name: str, value: Any, signals: frozenset[str]) -> bool:
        """Add overrides for a table's rows, or a histogram's values, in names that nothing else has; false if none fit.

        They are tried: nothing else has moved to their phase. ``signals`` are observed under these names already.
        """
        values = [f"{name!r}: values"] if is_histogram(value) else []
        if values and name in signals:
            self._values += values
            return True
        id = _id(kind_of(name)) or "logged"
        for free in (id, f"logged_{id}"):
            overrides = _of_table(free, name, value) if is_table(value) else _of_histogram(free, name, value)
            if not overrides or any(free in keys for keys in self._keys.values()):
                continue
            try:
                plan = declog.plan(declog.compose(self._config, [*self._overrides, *self.added, *overrides]))
            except declog.ConfigError:
                continue
            elsewhere = {signal.name for id, phase in plan.phases.items() if id != free for signal in phase.signals}
            if all(op.name.startswith(free) or op.name in elsewhere for op in plan.phases[free].signals):
                self.added += overrides
                self._values += values
                self._keys["signals"].add(free)
                return True
        return False

    def text(self, it: str) -> str:
        """The call, which replaces the one that made the tee ``it``; without a logger its overrides."""
        overrides = [*self._overrides, *self.added]
        call = f"{it} = declog.tee({it}, {self._preset!r}, {overrides})"
        if not (it and self._preset):
            call = f"where {it} is teed, behind your overrides: {overrides}" if it else f"overrides={overrides}"
        values = f"log the values in place of their histogram: {{{', '.join(self._values)}}}" if self._values else ""
        return ", and ".join(filter(None, [call if self.added else "", values]))


def is_table(value: Any) -> bool:
    """Whether a value is a logger's table: titles of columns, and rows."""
    return isinstance(getattr(value, "columns", None), list) and isinstance(getattr(value, "data", None), list)


def is_histogram(value: Any) -> bool:
    """Whether a value is a logger's histogram, whose values are gone."""
    return hasattr(value, "histogram") and hasattr(value, "bins")


def _of_table(id: str, name: str, table: Any) -> list[str]:
    types = {str(title): _type(row[at] for row in table.data) for at, title in enumerate(table.columns)}
    types = {title: type_ for title, type_ in types.items() if type_}
    overrides, columns = [], []
    for title, type_ in types.items():
        key = _id(title)
        source = _quoted(f"{kind_of(name)}/{title}")
        overrides.append(f"signals.{id}.{id}_{key}={{axis: completion, type: {type_}, from: {source}}}")
        called = "" if key == title else f"name: {_quoted(title)}, "
        columns.append(f"{key}: {{{called}type: {type_}, expr: {id}_{key}}}")
    named = "" if kind_of(name) == id else f", name: {_quoted(kind_of(name))}"
    overrides += [f"schemas.{id}={{{', '.join(columns)}}}", f"tables.{id}={{schema: {id}{named}}}"]
    return overrides if types else []


def _of_histogram(id: str, name: str, value: Any) -> list[str]:
    if not is_histogram(value):
        return []
    signal = f"signals.{id}.{id}={{axis: completion, type: float, from: {_quoted(name)}}}"
    return [signal, f"metrics.{id}={{expr: {id}, reduce: histogram, name: {_quoted(name)}}}"]


def _id(name: str) -> str:
    return re.sub(r"\W+", "_", name.lower()).strip("_")


def _quoted(text: str) -> str:
    return text if PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _type(values: Iterable[Any]) -> str:
    """The type of a signal with these values; empty of images and the like."""
    types = {
        "text" if isinstance(value, str) else "bool" if isinstance(value, bool | np.bool_) else type(number_of(value))
        for value in values if value is not None
    }  # fmt: skip
    if types and types <= {int, float}:
        return "int" if types == {int} else "float"
    return str(types.pop()) if types in ({"text"}, {"bool"}) else ""
