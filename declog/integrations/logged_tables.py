"""Rows of the tables, histograms and arrays that a loop logs, and the overrides that declare them in a config.

A signal with ``from: table/column`` observes one column. The rows belong to the step of the logging call, whatever else
the loop observes. The overrides give the signals of a table a phase of its own, and names that begin with the table's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch

import declog
from declog.errors import in_flow
from declog.integrations.logged import number_of

PLAIN = re.compile(r"[A-Za-z_][\w /-]*")  # a text that an override holds without quotes


def kind_of(name: str) -> str:
    """The name with every number replaced by 0: names that differ only in a step become equal."""
    return re.sub(r"\d+", "0", name)


class LoggedTables:
    """Reads the declared columns of a loop's tables; from a table that has grown since, only the new rows."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Any, int]] = {}  # by name: the last table, and its number of rows then

    def columns(self, values: Mapping[str, Any], signals: frozenset[str]) -> dict[str, list[Any]]:
        """The values of each declared column, by the name under which its signal is observed."""
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
    """The positions of a table's columns that signals read, by ``table/column``; empty if the value is no table."""
    if not is_table(value):
        return {}
    sources = {f"{table}/{title}": at for at, title in enumerate(value.columns) for table in {name, kind_of(name)}}
    return {source: at for source, at in sources.items() if source in signals}


class TeeCall:
    """Builds the ``declog.tee`` call for a warning: the loop's config, with overrides that declare logged tables."""

    def __init__(self, config: Any) -> None:
        origin = config.origin
        self.added: dict[str, list[str]] = {}  # the overrides of each value
        self._values: dict[str, str] = {}  # histograms in whose place the loop has to log the values
        self._extensible = origin is not None and not origin.running  # else the overrides go to the application
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
        """Add overrides that declare a table's rows, or the values of a histogram or an array; return whether any fit.

        The overrides use names that are still free. They are tried: the config must compile, and no other signal may
        move into their phase. ``signals`` are the names under which signals are observed already.
        """
        values = {name: f"{name!r}: values"} if is_histogram(value) else {}
        if values and name in signals:
            self._values |= values
            return True
        id = _id(kind_of(name)) or "logged"
        for free in (id, f"logged_{id}"):
            overrides = _of_table(free, name, value) if is_table(value) else _of_numbers(free, name, value)
            if not overrides or any(free in keys for keys in self._keys.values()):
                continue
            try:
                plan = declog.plan(
                    declog.compose(self._config, [*self._overrides, *chain(*self.added.values()), *overrides])
                )
            except declog.ConfigError:
                continue
            elsewhere = {signal.name for id, phase in plan.phases.items() if id != free for signal in phase.signals}
            if all(op.name.startswith(free) or op.name in elsewhere for op in plan.phases[free].signals):
                self.added[name] = overrides
                self._values |= values
                self._keys["signals"].add(free)
                return True
        return False

    def text(self, it: str, name: str | None = None) -> str:
        """The call that replaces the one that made the tee ``it``; only the overrides if ``it`` is empty.

        It declares the value ``name``, by default all values so far.
        """
        names = [*self.added, *self._values] if name is None else [name]
        added = [*chain(*(self.added.get(name, ()) for name in dict.fromkeys(names)))]
        logged = ", ".join(self._values[name] for name in dict.fromkeys(names) if name in self._values)
        overrides = [*self._overrides, *added]
        call = f"{it} = declog.tee({it}, {self._preset!r}, {overrides})"
        if not (it and self._preset):
            call = f"where {it} is teed, behind your overrides: {overrides}" if it else f"overrides={overrides}"
        values = f"log the values in place of their histogram: {{{logged}}}" if logged else ""
        return ", and ".join(filter(None, [call if added else "", values]))


def is_table(value: Any) -> bool:
    """Whether a value is a logger's table, with lists of column titles and of rows."""
    return isinstance(getattr(value, "columns", None), list) and isinstance(getattr(value, "data", None), list)


def is_histogram(value: Any) -> bool:
    """Whether a value is a logger's histogram, which holds counts and no longer the values."""
    return hasattr(value, "histogram") and hasattr(value, "bins")


def is_array(value: Any) -> bool:
    """Whether a value is a tensor, an array or a list of several numbers, one after the other."""
    if isinstance(value, list | tuple):
        return len(value) > 1 and all(number_of(item) is not None for item in value)
    return isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 1 and len(value) > 1


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


def _of_numbers(id: str, name: str, value: Any) -> list[str]:
    """The overrides for the values of a histogram, and for the mean of an array; empty for any other value."""
    if not is_histogram(value) and not is_array(value):
        return []
    signal = f"signals.{id}.{id}={{axis: completion, type: float, from: {_quoted(name)}}}"
    reduce = "histogram" if is_histogram(value) else "mean"
    return [signal, f"metrics.{id}={{expr: {id}, reduce: {reduce}, name: {_quoted(name)}}}"]


def _id(name: str) -> str:
    return re.sub(r"\W+", "_", name.lower()).strip("_")


def _quoted(text: str) -> str:
    return text if PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _type(values: Iterable[Any]) -> str:
    """The type of a signal with these values; empty for images, mixed types and the like."""
    types = {
        "text" if isinstance(value, str) else "bool" if isinstance(value, bool | np.bool_) else type(number_of(value))
        for value in values if value is not None
    }  # fmt: skip
    if types and types <= {int, float}:
        return "int" if types == {int} else "float"
    return str(types.pop()) if types in ({"text"}, {"bool"}) else ""
