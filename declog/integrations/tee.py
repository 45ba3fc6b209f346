"""A tee for any logger: what a loop logs to it by name goes through a profile, to declog's sinks and to the logger.

    wandb = declog.tee(wandb)                       # or: from declog.integrations import wandb
    writer = declog.tee(SummaryWriter("runs/mine"))
    logger = declog.tee(logger)                     # any object with log(values, step), or log_metrics

The logger gets what the config's default profile shows of it; sinks that the config names have profiles of their own.
What is no number passes to the logger as it was given. Uses declog's public API as a stranger would.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol, runtime_checkable

import declog
from declog.errors import UsageError
from declog.records import Records, RunInfo
from declog.sinks import SCALAR, Sink

__all__ = ["LoggerTee", "RunTee", "WandbTee", "WriterTee", "tee"]

PRESET = "tee"
COMMITS = ("commit", "step_finished")  # how loggers are told that a step is complete
ENDS = ("close", "end", "end_run", "end_training", "finalize", "finish", "shutdown")  # and that all is over
STEPS = ("step", "global_step", "iteration")  # and which it is; else the first whole number is it

log = logging.getLogger("declog")


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


class _Stands:
    """Stands for a logger: what it does not do itself is the logger's, whose class it has for who asks."""

    _wraps: Any = None

    @property  # type: ignore[misc]  # as mocks and proxies do it
    def __class__(self) -> type[Any]:
        return type(self if self._wraps is None else self._wraps)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wraps, name)

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


class _Tee(_Stands):
    """A recorder beside a logger. What the recorder's worker has for the logger waits until the loop logs next."""

    def __init__(self, logger: Any, config: Any, sinks: Sequence[Sink], options: Mapping[str, Any]) -> None:
        self._mine = _Waiting()
        self._step: int | None = None  # the last one that was logged
        atexit.register(self._drain)  # runs after the recorder's own
        mine: Sequence[Sink] = () if logger is None else (self._mine,)
        self.recorder: declog.Recorder = declog.start(
            config, sinks=[*mine, *sinks], **{"steps": "commit", **_alone(options), **options}
        )
        self._wraps = logger  # from here on other attributes are its own

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._wraps, name)
        return functools.partial(self._end, name) if name in ENDS and callable(own) else own

    def close(self) -> None:
        """Log what is left, close declog's sinks, then the logger where it has a ``close``."""
        self._end("close")

    def finish(self, *args: Any, **kwargs: Any) -> Any:
        """The same, and the logger's ``finish``; so it is with whatever other method ends the logger."""
        return self._end("finish", *args, **kwargs)

    def _end(self, how: str, *args: Any, **kwargs: Any) -> Any:
        self.recorder.close()
        self._drain()
        atexit.unregister(self._drain)
        return getattr(self._wraps, how)(*args, **kwargs) if hasattr(self._wraps, how) else None

    def _take(self, values: Mapping[str, Any], step: Any, *, commit: bool = False) -> dict[str, Any]:
        """Give the numbers to the recorder; returns what is none."""
        rest = dict(values)
        if not self.recorder.closed:
            with self.recorder.guard("what the loop logs could not be recorded"):
                rest = self.recorder.scalars(values, step, commit=commit)
        return rest

    def _drain(self) -> None:
        """Write what has waited, on the thread that logs: loggers need not be safe for others."""
        while self._mine.waiting:
            self._write(*self._mine.waiting.popleft())

    def _write(self, step: int, values: dict[str, Any]) -> None:
        raise NotImplementedError


def _alone(options: Mapping[str, Any]) -> dict[str, int]:
    """The process is a run of its own, unless it is said which of several it is."""
    return {} if {"rank", "world_size", "comm", "role"} & options.keys() else {"rank": 0, "world_size": 1}


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

    It is called as the logger is: the values are the mapping among the arguments, the step is the one of that name, or
    the number after the mapping. A ``prefix`` stands before the names; a call that says ``commit`` or
    ``step_finished`` completes its step, and so does one without a step. The logger gets a step's numbers when the
    loop logs next, in one call of the same method.
    """

    def __init__(self, logger: Any, config: Any, *, sinks: Sequence[Sink] = (), **options: Any) -> None:
        self._way: Callable[[dict[str, Any], int], Any] | None = None  # as the loop has logged
        super().__init__(logger, config, sinks, options)

    def log(self, *args: Any, **kwargs: Any) -> Any:
        """Record the numbers of a step."""
        return self._logged(_log if self._wraps is None else self._wraps.log, args, kwargs)

    def log_metrics(self, *args: Any, **kwargs: Any) -> Any:
        """Record the numbers of a step."""
        return self._logged(_log if self._wraps is None else self._wraps.log_metrics, args, kwargs)

    def _logged(self, own: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        call = _signature(own, args, kwargs).bind(*args, **kwargs)
        given, known = call.arguments, call.signature.parameters
        key = next((name for name, one in given.items() if isinstance(one, Mapping)), None)
        if key is None:
            log.warning("the logger is called without a mapping of names to numbers: that is not recorded")
            return own(*args, **kwargs)
        numbers = (name for name, one in given.items() if type(one) is int)
        at = next((name for name in (*STEPS, *numbers) if name in known), None)
        step = given.get(at) if at is not None else None
        commit = step is None or any(given.get(name) for name in COMMITS)
        number = (0 if self._step is None else self._step + 1) if step is None else int(step)
        prefix = given.get("prefix") or None
        rest = self._take({prefix: given[key]} if prefix else given[key], number, commit=commit)
        self._step = max(number, number if self._step is None else self._step)

        def way(values: dict[str, Any], step: int) -> Any:
            of = {key: values} if at is None else {key: values, at: step}
            new = inspect.BoundArguments(call.signature, OrderedDict(of))
            return own(*new.args, **new.kwargs)

        self._way = way
        self._drain()
        given[key] = rest.get(prefix, {}) if prefix else rest
        return own(*call.args, **call.kwargs) if given[key] else None

    def _write(self, step: int, values: dict[str, Any]) -> None:
        if self._way is not None:
            self._way(values, step)


def _log(values: Any, step: Any = None) -> None:
    """Where there is no logger."""


def _signature(own: Callable[..., Any], args: Any, kwargs: Any) -> inspect.Signature:
    """How a method is called; where a decorator hides its parameters, as this call does it."""
    found = inspect.signature(own)
    one = inspect.Parameter
    if any(each.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for each in found.parameters.values()):
        return found
    places = [one(f"_{place}", one.POSITIONAL_ONLY) for place in range(len(args))]
    return inspect.Signature([*places, *(one(name, one.KEYWORD_ONLY) for name in kwargs)])


class WriterTee(_Tee):
    """A ``SummaryWriter``. Scalars go through the profile; texts, images, histograms, hyperparameters are the writer's.

    Each tag of a writer has an axis of its own. declog's steps rise: a scalar of an earlier step is recorded with the
    step that is open, and goes to the writer with its own. Of several values of a tag in one step declog has the last,
    the writer each. Where there are no steps, a tag that comes again begins one.
    """

    def __init__(self, writer: Any, config: Any, *, sinks: Sequence[Sink] = (), **options: Any) -> None:
        self._last: dict[str, int] = {}  # step of each tag, as the loop counts
        self._back: set[str] = set()  # tags whose steps have fallen
        self._open: dict[str, Any] = {}  # values of the step that is open, which the writer gets when it ends
        self._unnumbered: set[str] = set()  # tags that came without a step since the last one began
        self._direct: set[tuple[int, str]] = set()  # what the writer has already
        self._charts: dict[str, tuple[str, str]] = {}  # what `add_scalars` puts in one
        super().__init__(writer, config, sinks, options)

    def add_scalar(
        self, tag: str, scalar_value: Any, global_step: int | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """Record a number."""
        self._drain()
        if self._add(tag, scalar_value, global_step):
            self._wraps.add_scalar(tag, scalar_value, global_step, *args, **kwargs)

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: int | None = None, *args: Any
    ) -> None:
        """Record numbers, each under ``main_tag/tag``; the writer draws them in one chart."""
        self._drain()
        self._charts |= {f"{main_tag}/{tag}": (main_tag, tag) for tag in tag_scalar_dict}
        own = {
            tag: value for tag, value in tag_scalar_dict.items() if self._add(f"{main_tag}/{tag}", value, global_step)
        }
        if own:
            self._wraps.add_scalars(main_tag, own, global_step, *args)

    def flush(self) -> None:
        """Write what is logged so far."""
        if not self.recorder.closed:
            self.recorder.written()
        self._drain()
        self._wraps.flush()

    def _add(self, tag: str, value: Any, step: Any) -> bool:
        """Record a number, in the step that is open or the next; whether the writer is to have it at once."""
        at = self._at(tag, None if step is None else int(step))
        own = step is None or int(step) < at or (at, tag) in self._direct
        if tag in self._open:
            self._plain(tag, self._open.pop(tag), at)
            own = True
        if self._take({tag: value}, at):
            return True
        if own:
            self._direct.add((at, tag))
        else:
            self._open[tag] = value
        return own

    def _at(self, tag: str, step: int | None) -> int:
        """The step that a number is recorded in."""
        before = -1 if self._step is None else self._step
        if step is None:
            again = tag in self._unnumbered and not self._last
            now = max(before + again, 0)
            self._unnumbered = {tag} if again else self._unnumbered | {tag}
        else:
            now, last = max(step, before), self._last.get(tag, step)
            self._last[tag] = step
            if step < last and tag not in self._back:
                self._back.add(tag)
                log.warning("`%s` goes back from step %d to %d: it is recorded at step %d", tag, last, step, now)
        if now != before:
            self._step, self._open = now, {}
        return now

    def _write(self, step: int, values: dict[str, Any]) -> None:
        there = {each for each in self._direct if each[0] <= step}
        self._direct -= there
        for name in values.keys() - {tag for _, tag in there}:
            self._plain(name, values[name], step)

    def _plain(self, name: str, value: Any, step: int) -> None:
        if name in self._charts:
            main_tag, tag = self._charts[name]
            self._wraps.add_scalars(main_tag, {tag: value}, step)
        else:
            self._wraps.add_scalar(name, value, step)


class RunTee(_Stands):
    """A run of wandb's. ``log`` goes through the profile; all else is the run's own.

    wandb's meaning of steps is kept: a call without a step, or with ``commit=True``, completes the row, calls of one
    row are one step, and the names of nested mappings are joined by dots. Images, tables, texts and what else is no
    number go to the run as they are, in their row; where there are such, the rows before are waited for. Whoever
    finishes the run, a sweep's agent or another ``wandb.init``, finishes the recorder before.
    """

    recorder: declog.Recorder | None

    def __init__(self, run: Any, config: Any, *, sinks: Sequence[Sink] = (), **options: Any) -> None:
        from declog.sinks.wandb import WandbSink, open_run

        plan = declog.plan(config)
        named = any(sink.kind == "wandb" for sink in plan.sinks)
        mine: Sequence[Sink] = () if named else (WandbSink.on(run, own=True),)
        block: AbstractContextManager[None] = open_run(run) if named else nullcontext()
        self.recorder = None
        if not run.disabled:  # it logs nothing, as on the ranks that have no run
            with block:
                self.recorder = declog.start(
                    config, sinks=[*mine, *sinks], **{"steps": "commit", **_alone(options), **options}
                )
        self._row = 0 if self.recorder is None else int(run.step)
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
        """wandb's, of all rows that are complete."""
        if self._log is not None:
            self._log.written()
        return self._wraps.summary

    def watch(self, *args: Any, **kwargs: Any) -> Any:
        """What ``wandb.watch`` does. Its hooks log into the row that is open, so rows are waited for from now on."""
        self._shared = True
        return self._wraps.watch(*args, **kwargs)

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        """What ``wandb.log`` does."""
        recorder = self._log
        if recorder is None or not isinstance(data, Mapping):
            self._wraps.log(data, step=step, commit=commit)
            return
        number = self._row if step is None else int(step)
        rest: dict[str, Any] = dict(data)
        with recorder.guard("what the loop logs could not be recorded"):
            rest = recorder.scalars(data, number, between=".")
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
        run = self.run if name in ("log", "summary", "watch") else None  # the module's are those of the run itself
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
