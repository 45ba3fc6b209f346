"""A tee for any logger: the numbers that a loop logs go through a config, to declog's sinks and to the logger.

    wandb = declog.tee(wandb)                       # or: from declog.integrations import wandb
    writer = declog.tee(SummaryWriter("runs/mine"))
    logger = declog.tee(logger)                     # any object with log(values, step), log_scalar(name, value, step)

The logger gets every call unchanged. It also gets the metrics in the config's default profile that the loop does not
log itself. Sinks of the config have their own profiles.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import sys
import types
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import declog
from declog.errors import UsageError
from declog.integrations import logger_calls, tee_wandb
from declog.integrations.stand_in import Stands, alone
from declog.records import Records, RunInfo
from declog.sinks import SCALAR, Sink

__all__ = ["LoggerTee", "WriterTee", "tee"]

PRESET = "tee"
METHODS = (*logger_calls.PAIRS, *logger_calls.MAPPINGS)  # a logger has one of them
ENDS = ("close", "end", "end_run", "end_training", "finalize", "finish", "shutdown")  # methods that end the logger
PATIENCE = 10  # a warning comes after so many calls without a number

log = logging.getLogger("declog")


def tee(logger: Any = None, config: Any = PRESET, overrides: Sequence[str] = (), **options: Any) -> Any:
    """A stand-in for the logger that passes its numbers through declog; use it in the logger's place.

    ``logger`` is the module ``wandb`` or a run of it, a ``SummaryWriter``, or any object with a method that carries
    a name and a value, or a mapping, with a step: ``log``, ``log_metrics``, ``log_dict``, ``log_scalar``, ``record``
    with ``dump``. None is a logger of that shape which has declog's sinks only. ``config`` is a preset's name with
    ``overrides``, or any config for ``declog.start``; the logger gets the metrics in its default profile that the loop
    does not log itself. ``options`` are those of ``declog.start``. The process is the only rank by default: if all
    ranks log, pass ``rank`` and ``world_size``, and the logger on rank 0.

    What is wrong with the config raises ``ConfigError`` here; a logger of another shape ``UsageError``.
    """
    config = declog.compose(config, overrides)
    declog.plan(config)
    if isinstance(logger, types.ModuleType) and logger.__name__ == "wandb":
        return tee_wandb.WandbTee(logger, config, **options)
    if "wandb" in sys.modules and isinstance(logger, sys.modules["wandb"].Run):
        return tee_wandb.RunTee(logger, config, **options)
    if is_writer(logger):
        return WriterTee(logger, config, **options)
    reject_other_shapes(logger)
    return LoggerTee(logger, config, **options)


def is_writer(logger: Any) -> bool:
    """Whether a logger is called as a ``SummaryWriter`` is."""
    return isinstance(logger, _Writes)


def reject_other_shapes(logger: Any) -> None:
    """``UsageError`` DL510 for an object that has no method of a logger."""
    if logger is not None and not any(hasattr(logger, name) for name in METHODS):
        raise UsageError.of("DL510.tee", type=type(logger).__name__)


@runtime_checkable
class _Writes(Protocol):
    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None: ...
    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None: ...


class Tee(Stands):
    """A recorder beside a logger. The recorder's values for the logger wait until the loop logs next."""

    def __init__(self, logger: Any, config: Any, sinks: Sequence[Sink], options: Mapping[str, Any]) -> None:
        self._mine = _Waiting()
        self._step: int | None = None  # the last one that was logged
        self._calls: Counter[str] = Counter()  # of the logger's methods
        self._names: set[str] = set()  # of the numbers that the loop has logged
        atexit.register(self._drain)  # runs after the recorder's own
        mine: Sequence[Sink] = () if isinstance(logger, _NoLogger) else (self._mine,)
        self.recorder: declog.Recorder = declog.start(
            config, sinks=[*mine, *sinks], **{"steps": "commit", **alone(options), **options}
        )
        self._wraps = logger  # from here on other attributes are its own

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._wraps, name)
        return functools.partial(self._end, name) if name in ENDS and callable(own) else own

    def close(self) -> None:
        """Log the last window, close declog's sinks, then the logger if it has ``close``."""
        self._end("close")

    def finish(self, *args: Any, **kwargs: Any) -> Any:
        """The same with the logger's ``finish``; other methods that end a logger do the same."""
        return self._end("finish", *args, **kwargs)

    def _end(self, how: str, *args: Any, **kwargs: Any) -> Any:
        if not self._names and self._calls.total() < PATIENCE and not self.recorder.closed:
            self._say_nothing_came()
        self.recorder.close()
        self._drain()
        atexit.unregister(self._drain)
        return getattr(self._wraps, how)(*args, **kwargs) if hasattr(self._wraps, how) else None

    def _take(self, values: Mapping[str, Any], step: Any, *, commit: bool = False) -> dict[str, Any]:
        """Pass the numbers to the recorder; returns the other values."""
        rest = dict(values)
        if not self.recorder.closed:
            with self.recorder.guard("what the loop logs could not be recorded"):
                rest = self.recorder.scalars(values, step, commit=commit)
        return rest

    def _drain(self) -> None:
        """Write the waiting values on the thread that logs, because loggers need not be thread-safe."""
        while self._mine.waiting:
            step, values = self._mine.waiting.popleft()
            if others := {name: value for name, value in values.items() if name not in self._names}:
                self._write(step, others)

    def _say_nothing_came(self) -> None:
        called = ", ".join(f"`{name}`" for name in self._calls)
        log.warning(
            "the tee of %s has recorded nothing: %s; it takes numbers by name from %s, and what methods of this kind "
            "are called with", type(self._wraps).__name__,
            f"the loop has called {called}, without such numbers" if called else "nobody has called it",
            logger_calls.KNOWN,
        )  # fmt: skip

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


class LoggerTee(Tee):
    """An object whose methods carry numbers by name and a step, as trainers have it; ``logger_calls`` reads them.

    Every call goes to the logger unchanged, and its result is returned. A step may have several calls. A call with
    ``commit`` or ``step_finished`` completes the step, and so does a mapping without a step, or a dump.
    """

    def __init__(self, logger: Any, config: Any, *, sinks: Sequence[Sink] = (), **options: Any) -> None:
        self._way: Callable[[Mapping[str, Any], int], Any] | None = None  # as the loop has logged
        self._unnumbered: set[str] = set()  # names that came without a step since the last one began
        self._waiting: dict[str, Any] = {}  # numbers that wait for a dump
        self._times: Counter[str] = Counter()  # how often each of them came
        super().__init__(_NoLogger() if logger is None else logger, config, sinks, options)

    def __getattr__(self, name: str) -> Any:
        own = super().__getattr__(name)
        if name in ENDS or not inspect.isroutine(own):
            return own

        @functools.wraps(own)
        def method(*args: Any, **kwargs: Any) -> Any:
            return self._called(name, own, args, kwargs)

        return method

    def _called(self, name: str, own: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Record the numbers of a call, and make the call."""
        if name in logger_calls.DUMPS:
            self._dump(logger_calls.dumped(own, args, kwargs))
        call = logger_calls.read(name, own, args, kwargs)
        if call is not None and call.step is None and not call.commit and self._dumps:
            self._wait(name, call.values)
        elif call is not None:
            self._record(call)
        self._calls[name] += 1
        if not self._names and self._calls.total() == PATIENCE:
            self._say_nothing_came()
        self._drain()
        return own(*args, **kwargs)

    @property
    def _dumps(self) -> bool:
        return any(hasattr(self._wraps, name) for name in logger_calls.DUMPS)

    def _wait(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep numbers until the dump: the last value of each, or the mean if the method says so."""
        for key, value in values.items():
            self._times[key] += 1
            n = self._times[key] if name.endswith("_mean") else 1
            self._waiting[key] = value if n == 1 else self._waiting[key] + (value - self._waiting[key]) / n

    def _dump(self, step: int | None) -> None:
        values, self._waiting = self._waiting, {}
        self._times.clear()
        self._record(logger_calls.Call(values, step, True, None))

    def _record(self, call: logger_calls.Call) -> None:
        number = self._number(call)
        before = self.recorder.closed
        rest = self._take(call.values, number, commit=call.commit)
        if not before:
            self._names |= _names(call.values) - _names(rest)
        self._step = max(number, number if self._step is None else self._step)
        self._way = call.again or self._way

    def _number(self, call: logger_calls.Call) -> int:
        """The step of a call; a call without one begins the next step if a name repeats or the step is complete."""
        last = -1 if self._step is None else self._step
        if call.step is not None:
            return call.step
        again = call.commit or not self._unnumbered.isdisjoint(call.values)
        self._unnumbered = set(call.values) if again else self._unnumbered | call.values.keys()
        return last + 1 if again or last < 0 else last

    def _end(self, how: str, *args: Any, **kwargs: Any) -> Any:
        if self._waiting:
            self._dump(None)
        return super()._end(how, *args, **kwargs)

    def _write(self, step: int, values: dict[str, Any]) -> None:
        if self._way is not None:
            self._way(values, step)


class _NoLogger:
    """Stands for a missing logger."""

    def log(self, values: Any, step: Any = None) -> None: ...

    def log_metrics(self, metrics: Any, step: Any = None) -> None: ...


def _names(values: Mapping[str, Any], before: str = "") -> set[str]:
    """The names in a mapping; names of nested mappings are joined."""
    found: set[str] = set()
    for name, value in values.items():
        found |= _names(value, f"{before}{name}/") if isinstance(value, Mapping) else {f"{before}{name}"}
    return found


class WriterTee(Tee):
    """A ``SummaryWriter``, which gets every call unchanged, and declog's further metrics.

    Each tag of a writer has an axis of its own. declog's steps rise: a scalar of an earlier step is recorded with the
    step that is open. Of several values of a tag in one step declog has the last. Where there are no steps, a tag that
    comes again begins one.
    """

    def __init__(self, writer: Any, config: Any, *, sinks: Sequence[Sink] = (), **options: Any) -> None:
        self._last: dict[str, int] = {}  # step of each tag, as the loop counts
        self._back: set[str] = set()  # tags whose steps have fallen
        self._unnumbered: set[str] = set()  # tags that came without a step since the last one began
        super().__init__(writer, config, sinks, options)

    def add_scalar(self, *args: Any, **kwargs: Any) -> Any:
        """Record a number."""
        tag, value, step = _scalar(*args, **kwargs)
        self._add("add_scalar", {tag: value}, step)
        return self._wraps.add_scalar(*args, **kwargs)

    def add_scalars(self, *args: Any, **kwargs: Any) -> Any:
        """Record numbers, each under ``main_tag/tag``; the writer draws them in one chart."""
        tag, values, step = _scalar(*args, **kwargs)
        self._add("add_scalars", {f"{tag}/{name}": value for name, value in values.items()}, step)
        return self._wraps.add_scalars(*args, **kwargs)

    def flush(self) -> None:
        """Write everything logged so far."""
        if not self.recorder.closed:
            self.recorder.written()
        self._drain()
        self._wraps.flush()

    def _add(self, how: str, values: Mapping[str, Any], step: Any) -> None:
        """Record numbers, each in the step that is open or the next."""
        self._drain()
        self._calls[how] += 1
        for tag, value in values.items():
            at = self._at(tag, None if step is None else int(step))
            if not self.recorder.closed and not self._take({tag: value}, at):
                self._names.add(tag)

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
            self._step = now
        return now

    def _write(self, step: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self._wraps.add_scalar(name, value, step)


def _scalar(*args: Any, **kwargs: Any) -> tuple[str, Any, Any]:
    """The tag, the value or values, and the step of a writer's call."""
    names = [("tag", "main_tag"), ("scalar_value", "tag_scalar_dict"), ("global_step",)]
    tag, value, step = (
        args[place] if place < len(args) else next((kwargs[name] for name in each if name in kwargs), None)
        for place, each in enumerate(names)
    )
    return str(tag), value, step
