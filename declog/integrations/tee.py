"""A tee for any logger: what a loop logs to it by name goes through a profile, to declog's sinks and to the logger.

    wandb = declog.tee(wandb)                       # or: from declog.integrations import wandb
    writer = declog.tee(SummaryWriter("runs/mine"))
    logger = declog.tee(logger)                     # any object with log(values, step), or log_metrics

The logger gets what the config's default profile shows of it; sinks that the config names have profiles of their own.
What is no number passes to the logger as it was given. Uses declog's public API as a stranger would.
"""

from __future__ import annotations

import atexit
import inspect
import sys
import types
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol, runtime_checkable

import declog
from declog.errors import UsageError
from declog.records import Records, RunInfo
from declog.sinks import SCALAR, Sink

__all__ = ["LoggerTee", "RunTee", "WandbTee", "WriterTee", "tee"]

PRESET = "tee"
COMMITS = ("commit", "step_finished")  # how loggers are told that a step is complete


def tee(logger: Any = None, config: Any = PRESET, overrides: Sequence[str] = (), **options: Any) -> Any:
    """The logger, whose numbers go through declog: use what is returned in its place.

    ``logger`` is the module ``wandb`` or a run of it, a ``SummaryWriter``, or any object with a method ``log`` or
    ``log_metrics`` of a mapping and a step; None is a logger of that shape which has declog's sinks only. ``config`` is
    a preset's name with ``overrides``, or anything that ``declog.start`` takes; its default profile says what the
    logger gets. ``options`` are those of ``declog.start``. The process is a run of its own: where all ranks log, give
    ``rank`` and ``world_size``, and the logger on rank 0.

    What is wrong with the profile raises ``ConfigError`` here; a logger of another shape ``UsageError``.
    """
    config = declog.compose(config, overrides)
    declog.plan(config)
    if isinstance(logger, types.ModuleType) and logger.__name__ == "wandb":
        return WandbTee(logger, config, **options)
    if "wandb" in sys.modules and isinstance(logger, sys.modules["wandb"].Run):
        return RunTee(logger, config, **options)
    if isinstance(logger, _Writes):
        return WriterTee(logger, config, **options)
    if logger is None or isinstance(logger, _Logs | _LogsMetrics):
        return LoggerTee(logger, config, **options)
    raise UsageError.of("DL510.tee", type=type(logger).__name__)


@runtime_checkable
class _Writes(Protocol):
    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None: ...
    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None: ...


@runtime_checkable
class _Logs(Protocol):
    def log(self, values: Any, step: Any = None) -> Any: ...


@runtime_checkable
class _LogsMetrics(Protocol):
    def log_metrics(self, metrics: Any, step: Any = None) -> Any: ...


class _Tee:
    """A recorder beside a logger. What the recorder's worker has for the logger waits until the loop logs next."""

    _wraps: Any = None

    def __init__(self, logger: Any, config: Any, sinks: Sequence[Sink], options: Mapping[str, Any]) -> None:
        self._wraps = logger
        self._mine = _Waiting()
        self._step: int | None = None  # the last one that was logged
        atexit.register(self._drain)  # runs after the recorder's own
        mine: Sequence[Sink] = () if logger is None else (self._mine,)
        alone = {} if {"rank", "world_size", "comm", "role"} & options.keys() else {"rank": 0, "world_size": 1}
        self.recorder: declog.Recorder = declog.start(
            config, sinks=[*mine, *sinks], **{"steps": "commit", **alone, **options}
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wraps, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Log what is left, close declog's sinks, then the logger where it has a ``close``."""
        self._end("close")

    def finish(self, *args: Any, **kwargs: Any) -> Any:
        """The same, and the logger's ``finish``."""
        return self._end("finish", *args, **kwargs)

    def _end(self, how: str, *args: Any, **kwargs: Any) -> Any:
        self.recorder.close()
        self._drain()
        atexit.unregister(self._drain)
        method = getattr(self._wraps, how) if hasattr(type(self._wraps), how) else None
        return None if method is None else method(*args, **kwargs)

    def _take(self, values: Mapping[str, Any], step: Any, *, commit: bool = False) -> dict[str, Any]:
        """Give the numbers to the recorder; returns what is none."""
        if self.recorder.closed:
            return dict(values)
        with self.recorder.guard("what the loop logs could not be recorded"):
            return self.recorder.scalars(values, step, commit=commit)
        return {}

    def _drain(self) -> None:
        """Write what has waited, on the thread that logs: loggers need not be safe for others."""
        while self._mine.waiting:
            self._write(*self._mine.waiting.popleft())

    def _write(self, step: int, values: dict[str, Any]) -> None:
        raise NotImplementedError


class _Waiting:
    """The sink of a logger: keeps its scalars until the loop logs next."""

    kind = "tee"
    accepts: ClassVar[frozenset[str]] = frozenset({SCALAR})

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, dict[str, Any]]] = deque()

    def open(self, run: RunInfo) -> None: ...

    def write(self, step: int, records: Records) -> None:
        self.waiting.append((step, {scalar.name: scalar.value for scalar in records.scalars}))

    def close(self) -> None: ...


class LoggerTee(_Tee):
    """An object with ``log(values, step)`` or ``log_metrics``, as trainers have it. Without one a logger of its own.

    A ``prefix`` stands before the names; a call that says ``commit`` or ``step_finished`` completes its step, and so
    does one without a step. The logger gets a step's numbers when the loop logs next, in one call of the same method.
    """

    _method = "log"

    def __init__(self, logger: Any, config: Any, *, sinks: Sequence[Sink] = (), **options: Any) -> None:
        super().__init__(logger, config, sinks, options)

    def log(self, values: Any, step: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """Record the numbers of a step."""
        return self._log("log", values, step, *args, **kwargs)

    def log_metrics(self, metrics: Any, step: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """Record the numbers of a step."""
        return self._log("log_metrics", metrics, step, *args, **kwargs)

    def _log(self, method: str, values: Mapping[str, Any], step: int | None, *args: Any, **kwargs: Any) -> Any:
        if self._wraps is not None and not hasattr(self._wraps, method):
            raise AttributeError(f"{type(self._wraps).__name__!r} object has no attribute {method!r}")
        self._method = method
        known: Mapping[str, Any] = kwargs
        if self._wraps is not None:
            known = inspect.signature(getattr(self._wraps, method)).bind(values, step, *args, **kwargs).arguments
        commit = step is None or any(known.get(name) for name in COMMITS)
        number = (0 if self._step is None else self._step + 1) if step is None else step
        prefix = known.get("prefix") or None
        rest = self._take({prefix: values} if prefix else values, number, commit=commit)
        self._step = max(number, number if self._step is None else self._step)
        self._drain()
        if prefix:
            rest = rest.get(prefix, {})
        return getattr(self._wraps, method)(rest, step, *args, **kwargs) if rest and self._wraps is not None else None

    def _write(self, step: int, values: dict[str, Any]) -> None:
        getattr(self._wraps, self._method)(values, step)


class WriterTee(_Tee):
    """A ``SummaryWriter``. Scalars go through the profile; texts, images and histograms are the writer's.

    Each tag of a writer has an axis of its own. declog's steps rise: a scalar of an earlier step is recorded with the
    step that is open, and goes to the writer with its own.
    """

    def __init__(self, writer: Any, config: Any, *, sinks: Sequence[Sink] = (), **options: Any) -> None:
        super().__init__(writer, config, sinks, options)

    def add_scalar(
        self, tag: str, scalar_value: Any, global_step: int | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """Record a number."""
        self._drain()
        earlier = global_step is None or (self._step is not None and global_step < self._step)
        if earlier or self._take({tag: scalar_value}, global_step):
            self._wraps.add_scalar(tag, scalar_value, global_step, *args, **kwargs)
        if earlier:
            self._take({tag: scalar_value}, self._step)
        else:
            self._step = global_step

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: int | None = None, *args: Any
    ) -> None:
        """Record numbers, each under ``main_tag/tag``."""
        for tag, value in tag_scalar_dict.items():
            self.add_scalar(f"{main_tag}/{tag}", value, global_step, *args)

    def flush(self) -> None:
        """Write what is logged so far."""
        self.recorder.written()
        self._drain()
        self._wraps.flush()

    def _write(self, step: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self._wraps.add_scalar(name, value, step)


class RunTee:
    """A run of wandb's. ``log`` goes through the profile; all else is the run's own.

    wandb's meaning of steps is kept: a call without a step, or with ``commit=True``, completes the row, calls of one
    row are one step, and the names of nested mappings are joined by dots. Images, tables, texts and what else is no
    number go to the run as they are, in their row; where there are such, the rows before are waited for.
    """

    _run: Any
    _row: int
    recorder: declog.Recorder | None

    def __init__(self, run: Any, config: Any, *, sinks: Sequence[Sink] = (), **options: Any) -> None:
        from declog.sinks.wandb import WandbSink, open_run

        plan = declog.plan(config)
        named = any(sink.kind == "wandb" for sink in plan.sinks)
        mine: Sequence[Sink] = () if named else (WandbSink.on(run, own=True),)
        block: AbstractContextManager[None] = open_run(run) if named else nullcontext()
        alone = {} if {"rank", "world_size", "comm", "role"} & options.keys() else {"rank": 0, "world_size": 1}
        recorder: declog.Recorder | None = None
        if not run.disabled:  # it logs nothing, as on the ranks that have no run
            with block:
                recorder = declog.start(config, sinks=[*mine, *sinks], **{"steps": "commit", **alone, **options})
        self.__dict__.update(_run=run, _row=int(run.step) if recorder is not None else 0, recorder=recorder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            self.__dict__[name] = value
        else:
            setattr(self._run, name, value)

    def __enter__(self) -> RunTee:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.finish(exit_code=0 if kind is None else 1)

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        """What ``wandb.log`` does."""
        recorder = self.recorder
        if recorder is None or recorder.closed or not isinstance(data, Mapping):
            self._run.log(data, step=step, commit=commit)
            return
        number = self._row if step is None else int(step)
        rest: dict[str, Any] = dict(data)
        with recorder.guard("what the loop logs could not be recorded"):
            rest = recorder.scalars(data, number, between=".")
        if rest:
            recorder.written()  # else their rows would come after this one, which wandb does not take
            self._run.log(rest, step=number, commit=False)
        self._row = max(self._row, number)
        if commit or (step is None and commit is None):
            recorder.scalars({}, number, commit=True)
            self._row += 1

    def finish(self, exit_code: int | None = None, **kwargs: Any) -> None:
        """Log what is left, close declog's sinks, and finish the run."""
        if self.recorder is not None:
            self.recorder.close(failed=bool(exit_code))
        self._run.finish(exit_code=exit_code, **kwargs)


class WandbTee:
    """The module ``wandb``, whose runs are tees; all else is the module's own."""

    def __init__(self, module: Any, config: Any, **options: Any) -> None:
        self._module, self._config, self._options = module, config, options
        self._tee: RunTee | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def init(self, *args: Any, **kwargs: Any) -> RunTee:
        """What ``wandb.init`` does."""
        return self._of(self._module.init(*args, **kwargs))

    @property
    def run(self) -> RunTee | None:
        """The run that is open."""
        run = self._module.run
        return None if run is None else self._of(run)

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        """What ``wandb.log`` does."""
        run = self.run
        (self._module if run is None else run).log(data, step=step, commit=commit)

    def finish(self, exit_code: int | None = None, **kwargs: Any) -> None:
        """What ``wandb.finish`` does."""
        run = self.run
        (self._module if run is None else run).finish(exit_code=exit_code, **kwargs)

    def _of(self, run: Any) -> RunTee:
        if self._tee is None or self._tee._run is not run:
            self._tee = RunTee(run, self._config, **self._options)
        return self._tee
