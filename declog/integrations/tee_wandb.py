"""Tees of wandb: of a run, and of the module. ``tee.py`` has those of other loggers."""

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
from declog.integrations.stand_in import LeftToLogger, Stands, alone
from declog.records import Records, Scalar
from declog.sinks import Sink
from declog.sinks.wandb import WandbSink, open_run


class _RunSink(WandbSink):
    """Writes the rows of a run of wandb's: what declog computes, and every number of the loop, whatever is shown."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rows: dict[int, dict[str, Any]] = {}  # the loop's numbers that are not written yet
        self._written = -1
        self._of_loop: set[str] = set()  # the names of the loop's own tables and the like
        self._lock = threading.Lock()

    def take(self, step: int, numbers: Mapping[str, Any], rest: Iterable[str]) -> None:
        """Keep numbers of the loop until their row is written; a row that was written takes none, as wandb has it.

        A table whose name is in ``rest`` is in the row as the loop logs it.
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
        """Write the rows up to a step that have no log event of their own."""
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
    """The numbers of a call by name, without its ``rest`` and rows of signals; copies of those that may change."""
    no_numbers = flat(rest, ".")
    numbers = {name: value for name, value in flat(values, ".").items() if name not in no_numbers and value is not None}
    return {
        name: value.detach().clone() if isinstance(value, torch.Tensor)
        else value if isinstance(value, int) else np.asarray(value).item()
        for name, value in numbers.items() if math.prod(np.shape(value)) == 1
    }  # fmt: skip


class _Summary(Stands):
    """The summary of a run; ``tell`` is called with the names of what is said in it."""

    def __init__(self, summary: Any, tell: Callable[[Iterable[str]], None]) -> None:
        self._tell = tell
        self._wraps = summary  # from here on other attributes are its own

    def __getitem__(self, name: str) -> Any:
        return self._wraps[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._tell([name])
        self._wraps[name] = value

    def __setattr__(self, name: str, value: Any) -> None:
        if self._wraps is not None:
            self._tell([name])
        super().__setattr__(name, value)

    def update(self, values: Mapping[str, Any]) -> None:
        self._tell(values)
        self._wraps.update(values)


class RunTee(Stands):
    """A run of wandb's. ``log`` goes through the config; all else is the run's own.

    wandb's meaning of steps is kept: a call without a step, or with ``commit=True``, completes the row, calls of one
    row are one step, and the names of nested mappings are joined by dots. Every number of the loop is in its row,
    whatever the profile shows, unless the config names a sink of wandb's, whose profile says it. Images, tables, texts
    and what else is no number go to the run as they are, in their row; where there are such, the rows before are waited
    for. Whoever finishes the run, a sweep's agent or another ``wandb.init``, finishes the recorder before.
    """

    recorder: declog.Recorder | None

    def __init__(self, run: Any, config: Any, *, sinks: Sequence[Sink] = (), **options: Any) -> None:
        plan = declog.plan(config)
        named = any(sink.kind == "wandb" for sink in plan.sinks)
        self._rows = None if named else _RunSink.on(run, alone=True)
        rows: Sequence[Sink] = () if self._rows is None else (self._rows,)
        block: AbstractContextManager[None] = open_run(run) if named else nullcontext()
        self.recorder = None
        if not run.disabled:  # it logs nothing, as on the ranks that have no run
            with block:
                self.recorder = declog.start(
                    config,
                    sinks=[*rows, *sinks],
                    **{"steps": "commit", "run_config": dict(run.config), **alone(options), **options},
                )
        self._row = 0 if self.recorder is None else int(run.step)
        self._untaken = LeftToLogger("wandb", config)
        self._shared = False  # whether wandb itself logs into the rows
        self._finish = run.finish
        run.finish = self.finish
        self._wraps = run  # from here on other attributes are its own

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.finish(exit_code=0 if kind is None else 1)

    @property
    def step(self) -> int:
        """The row that is open, which wandb itself gets later."""
        return int(self._wraps.step) if self._log is None else self._row

    @property
    def summary(self) -> Any:
        """wandb's, of all rows that are complete; what the loop says in it is wandb's alone, which is told."""
        if (recorder := self._log) is not None:
            recorder.written()
        return _Summary(self._wraps.summary, partial(self._tell, "summary"))

    def _tell(self, what: str, names: Iterable[str]) -> None:
        """Tell of what goes to the run alone, beside its rows."""
        if (recorder := self._log) is not None:
            with recorder.guard("what the loop says of its run could not be told of"):
                self._untaken.tell({f"{what}: {name}": None for name in names}, recorder)

    def watch(self, *args: Any, **kwargs: Any) -> Any:
        """What ``wandb.watch`` does. Its hooks log into the row that is open, so rows are waited for from now on."""
        self._shared = True
        return self._wraps.watch(*args, **kwargs)

    def alert(self, title: str, *args: Any, **kwargs: Any) -> None:
        """What ``wandb.alert`` does; alerts of declog's are conditions of the config."""
        self._tell("alert", [title])
        self._wraps.alert(title, *args, **kwargs)

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        """What ``wandb.log`` does."""
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
            self._untaken.tell(flat(rest, "."), recorder)
        self._row = max(self._row, number)
        self._beside(rest, number)
        if commit or (step is None and commit is None):
            recorder.scalars({}, number, commit=True)
            self._beside({}, number, commit=True)
            self._row += 1

    def _beside(self, values: Mapping[str, Any], row: int, *, commit: bool = False) -> None:
        """What is not declog's in a row, or will come."""
        if self._log is not None and (values or self._shared):
            self._log.written()  # else their rows would come after this one, which wandb does not take
            if self._rows is not None:
                self._rows.write_rows(row - 1)
            self._wraps.log(values, step=row, commit=commit)

    @property
    def _log(self) -> declog.Recorder | None:
        return None if self.recorder is None or self.recorder.closed else self.recorder

    def finish(self, exit_code: int | None = None, **kwargs: Any) -> None:
        """Log what is left, close declog's sinks, and finish the run."""
        if self.recorder is not None:
            self.recorder.close(failed=bool(exit_code))
        self._finish(exit_code=exit_code, **kwargs)


class WandbTee:
    """The module ``wandb``, whose runs are tees; all else is the module's own."""

    def __init__(self, module: Any, config: Any, **options: Any) -> None:
        self._module, self._config, self._options = module, config, options
        self._tees: list[RunTee] = []

    def __getattr__(self, name: str) -> Any:
        of_run = name in ("alert", "log", "summary", "watch")  # the module's are those of the run itself
        run = self.run if of_run else None
        return getattr(self._module if run is None else run, name)

    def init(self, *args: Any, **kwargs: Any) -> RunTee:
        """What ``wandb.init`` does."""
        return self._of(self._module.init(*args, **kwargs))

    @property
    def run(self) -> RunTee | None:
        """The run that is open."""
        run = self._module.run
        return None if run is None else self._of(run)

    def _of(self, run: Any) -> RunTee:
        self._tees = [tee for tee in self._tees if tee._wraps is run or (tee.recorder and not tee.recorder.closed)]
        for tee in self._tees:
            if tee._wraps is run:
                return tee
        self._tees.append(RunTee(run, self._config, **self._options))
        return self._tees[-1]
