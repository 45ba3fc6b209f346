"""Tees of a wandb run and of the module ``wandb``. ``tee.py`` has the tee of other loggers."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

import declog
from declog.integrations.logged import flat
from declog.integrations.stand_in import LeftToLogger, LoggerProxy, single_rank
from declog.records import Records, Scalar
from declog.sinks import Sink
from declog.sinks.wandb import WandbSink, open_run


class _RunSink(WandbSink):
    """Writes the rows of a wandb run: declog's metrics, and every number of the loop, whatever the profile shows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rows: dict[int, dict[str, Any]] = {}  # by row: the loop's numbers that are not written yet
        self._written = -1
        self._of_loop: set[str] = set()  # names of the loop's own tables and other values that are no numbers
        self._lock = threading.Lock()

    def take(self, step: int, numbers: Mapping[str, Any], rest: Iterable[str]) -> None:
        """Keep numbers of the loop until their row is written; drop those of a row that is written, as wandb does.

        The loop itself writes tables whose names are in ``rest`` to the row, so declog's of those names are left out.
        """
        with self._lock:
            self._of_loop.update(rest)
            if step > self._written:
                self._rows.setdefault(step, {}).update(numbers)

    def write(self, step: int, records: Records) -> None:
        self.write_rows(step - 1)
        numbers = self._taken(step)
        shown = {scalar.name for scalar in records.scalars}
        unshown = [_scalar(name, value) for name, value in numbers.items() if name not in shown]
        tables = tuple(table for table in records.tables if table.name not in self._of_loop)
        super().write(step, replace(records, scalars=(*unshown, *records.scalars), tables=tables))

    def write_rows(self, step: int) -> None:
        """Write the rows up to ``step`` that have no log event of their own."""
        for row in sorted(number for number in [*self._rows] if number <= step):
            numbers = self._taken(row)
            super().write(row, Records("train", time.time(), tuple(_scalar(*item) for item in numbers.items())))

    def close(self) -> None:
        self.write_rows(max(self._rows, default=-1))
        super().close()

    def _taken(self, step: int) -> dict[str, Any]:
        with self._lock:
            self._written = max(self._written, step)
            return self._rows.pop(step, {})


def _scalar(name: str, value: Any) -> Scalar:
    return Scalar(name, value if isinstance(value, int) else float(value), name)


def _numbers(values: Mapping[str, Any], rest: Mapping[str, Any]) -> dict[str, Any]:
    """The single numbers of a call by name, without its ``rest``; tensors and arrays are copied, as they may change."""
    no_numbers = flat(rest, ".")
    numbers = {name: value for name, value in flat(values, ".").items() if name not in no_numbers and value is not None}
    return {
        name: value.detach().clone() if isinstance(value, torch.Tensor)
        else value if isinstance(value, int) else np.asarray(value).item()
        for name, value in numbers.items() if math.prod(np.shape(value)) == 1
    }  # fmt: skip


class _Summary(LoggerProxy):
    """Stands in for the summary of a run; calls ``on_set`` with the names of the values that the loop sets in it."""

    def __init__(self, summary: Any, on_set: Callable[[Iterable[str]], None]) -> None:
        self._on_set = on_set
        self._wraps = summary  # from here on other attributes are the summary's

    def __getitem__(self, name: str) -> Any:
        return self._wraps[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._on_set([name])
        self._wraps[name] = value

    def __setattr__(self, name: str, value: Any) -> None:
        if self._wraps is not None:
            self._on_set([name])
        super().__setattr__(name, value)

    def update(self, values: Mapping[str, Any]) -> None:
        self._on_set(values)
        self._wraps.update(values)


class RunTee(LoggerProxy):
    """A wandb run whose ``log`` goes through the config; all other attributes are the run's own.

    Steps mean the same as in wandb: a call without a step, or with ``commit=True``, completes the row, calls of one
    row are one step, and dots join the names of nested mappings. Every number of the loop is in its row, whatever the
    profile shows; if the config names a wandb sink, that sink's profile selects the numbers. Images, tables, texts and
    other values that are no numbers go to the run unchanged, in their row, after ``log`` has waited for the earlier
    rows. Anyone who finishes the run, such as a sweep's agent or another ``wandb.init``, finishes the recorder first.
    """

    recorder: declog.Recorder | None

    def __init__(self, run: Any, config: Any, *, sinks: Sequence[Sink] = (), **options: Any) -> None:
        plan = declog.plan(config)
        named = any(sink.kind == "wandb" for sink in plan.sinks)
        self._rows = None if named else _RunSink.on(run, alone=True)
        rows: Sequence[Sink] = () if self._rows is None else (self._rows,)
        block: AbstractContextManager[None] = open_run(run) if named else nullcontext()
        self.recorder = None
        if not run.disabled:  # a disabled run logs nothing: loops use one on the ranks without a run
            with block:
                self.recorder = declog.start(
                    config,
                    sinks=[*rows, *sinks],
                    **{"steps": "commit", "run_config": dict(run.config), **single_rank(options), **options},
                )
        self._row = 0 if self.recorder is None else int(run.step)
        self._untaken = LeftToLogger("wandb", config)
        self._shared = False  # whether wandb itself logs into the rows, by `watch`
        self._finish = run.finish
        run.finish = self.finish
        self._wraps = run  # from here on other attributes are the run's

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.finish(exit_code=0 if kind is None else 1)

    @property
    def step(self) -> int:
        """The open row, which wandb itself receives later."""
        return int(self._wraps.step) if self._log is None else self._row

    @property
    def summary(self) -> Any:
        """wandb's summary of all complete rows. Values that the loop sets in it go to wandb alone, with a warning."""
        if (recorder := self._log) is not None:
            recorder.written()
        return _Summary(self._wraps.summary, partial(self._warn, "summary"))

    def _warn(self, what: str, names: Iterable[str]) -> None:
        """Warn about names that go to the run alone, outside its rows."""
        if (recorder := self._log) is not None:
            with recorder.guard("what the loop says of its run could not be told of"):
                self._untaken.warn({f"{what}: {name}": name for name in names}, recorder)

    def watch(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``wandb.watch``. Its hooks log into the open row, so from now on ``log`` waits for the earlier rows."""
        self._shared = True
        return self._wraps.watch(*args, **kwargs)

    def alert(self, title: str, *args: Any, **kwargs: Any) -> None:
        """Call ``wandb.alert``, and warn that declog does not keep the alert; declog's alerts are in the config."""
        self._warn("alert", [title])
        self._wraps.alert(title, *args, **kwargs)

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        """Record the numbers of a ``wandb.log`` call; its other values go to the run unchanged."""
        recorder = self._log
        if recorder is None or not isinstance(data, Mapping):
            self._wraps.log(data, step=step, commit=commit)
            return
        number = self._row if step is None else int(step)
        rest: dict[str, Any] = dict(data)
        with recorder.guard("what the loop logs could not be recorded"):
            rest = self._untaken.record(data, flat(data, "."), recorder, number, between=".")
            if self._rows is not None:
                self._rows.take(number, _numbers(data, rest), flat(rest, "."))
            self._untaken.warn(flat(rest, "."), recorder)
        self._row = max(self._row, number)
        self._beside(rest, number)
        if commit or (step is None and commit is None):
            recorder.scalars({}, number, commit=True)
            self._beside({}, number, commit=True)
            self._row += 1

    def _beside(self, values: Mapping[str, Any], row: int, *, commit: bool = False) -> None:
        """Log values that declog does not record to a row of the run, once all earlier rows are written."""
        if self._log is not None and (values or self._shared):
            self._log.written()  # wandb drops a row that arrives after a later one
            if self._rows is not None:
                self._rows.write_rows(row - 1)
            self._wraps.log(values, step=row, commit=commit)

    @property
    def _log(self) -> declog.Recorder | None:
        return None if self.recorder is None or self.recorder.closed else self.recorder

    def finish(self, exit_code: int | None = None, **kwargs: Any) -> None:
        """Log the last window, close declog's sinks, and finish the run."""
        if self.recorder is not None:
            self.recorder.close(failed=bool(exit_code))
        self._finish(exit_code=exit_code, **kwargs)


class WandbTee:
    """The module ``wandb`` with runs that are tees; all other attributes are the module's own."""

    def __init__(self, module: Any, config: Any, **options: Any) -> None:
        self._module, self._config, self._options = module, config, options
        self._tees: list[RunTee] = []

    def __getattr__(self, name: str) -> Any:
        of_run = name in ("alert", "log", "summary", "watch")  # the module's would bypass the tee
        run = self.run if of_run else None
        return getattr(self._module if run is None else run, name)

    def init(self, *args: Any, **kwargs: Any) -> RunTee:
        """Call ``wandb.init``, and tee the run."""
        return self._of(self._module.init(*args, **kwargs))

    @property
    def run(self) -> RunTee | None:
        """The tee of the open run; None if there is none."""
        run = self._module.run
        return None if run is None else self._of(run)

    def _of(self, run: Any) -> RunTee:
        self._tees = [tee for tee in self._tees if tee._wraps is run or (tee.recorder and not tee.recorder.closed)]
        for tee in self._tees:
            if tee._wraps is run:
                return tee
        self._tees.append(RunTee(run, self._config, **self._options))
        return self._tees[-1]
