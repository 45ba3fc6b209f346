"""A tee for any logger: the loop's numbers go through a config to declog's sinks, and unchanged to the logger.

    wandb = declog.tee(wandb)                       # or: from declog.integrations import wandb
    writer = declog.tee(SummaryWriter("runs/mine"))
    logger = declog.tee(logger)                     # any object with log(values, step), log_scalar(name, value, step)

The logger gets every call unchanged. It also gets the metrics in the config's default profile that the loop does not
log itself. Sinks of the config have their own profiles.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import logging
import sys
import types
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import declog
from declog.errors import UsageError
from declog.errors.habits import shown_at_the_call
from declog.integrations import logger_calls, tee_wandb
from declog.integrations.logged import flat
from declog.integrations.stand_in import LeftToLogger, LoggerProxy, single_rank
from declog.records import Records, RunInfo
from declog.sinks import SCALAR, Sink

__all__ = ["Tee", "tee"]

PRESET = "tee"
METHODS = (*logger_calls.PAIRS, *logger_calls.MAPPINGS)  # a logger has at least one of these
ENDS = ("close", "end", "end_run", "end_training", "finalize", "finish", "shutdown")  # methods that end the logger
PATIENCE = 10  # the number of calls without a number after which declog warns

log = logging.getLogger("declog")


@shown_at_the_call
def tee(logger: Any = None, config: Any = PRESET, overrides: Sequence[str] = (), **options: Any) -> Any:
    """A stand-in for the logger that passes its numbers through declog; use it in the logger's place.

    ``logger`` is the module ``wandb`` or a run of it, a ``SummaryWriter``, or any object with a method that takes
    a name and a value, or a mapping, with a step: ``log``, ``log_metrics``, ``log_dict``, ``log_scalar``, ``record``
    with ``dump``. None makes a logger of that shape with declog's sinks only. ``config`` is a preset's name with
    ``overrides``, or any config for ``declog.start``. The logger also gets the metrics in the config's default profile
    that the loop does not log itself. ``options`` are those of ``declog.start``. The process is the only rank by
    default: if all ranks log, pass ``rank`` and ``world_size``, and the logger on rank 0.

    A number with an earlier step than the last is recorded at the last step. If the steps of a name itself go back,
    declog warns once for the name.

    Raises ``ConfigError`` for a wrong config, and ``UsageError`` for a logger of another shape.
    """
    config = declog.compose(config, overrides)
    declog.plan(config)
    logger = original(logger)
    if isinstance(logger, types.ModuleType) and logger.__name__ == "wandb":
        return tee_wandb.WandbTee(logger, config, **options)
    if "wandb" in sys.modules and isinstance(logger, sys.modules["wandb"].Run):
        return tee_wandb.RunTee(logger, config, **options)
    reject_other_shapes(logger)
    return Tee(logger, config, **options)


def original(logger: Any) -> Any:
    """The logger; for declog's stand-in of the module `wandb`, the module `wandb` itself."""
    stands_in = isinstance(logger, types.ModuleType) and logger.__name__ == "declog.integrations.wandb"
    return importlib.import_module("wandb") if stands_in else logger


def reject_other_shapes(logger: Any) -> None:
    """Raise ``UsageError`` DL510 for an object that has no method of a logger."""
    if logger is not None and not any(hasattr(logger, name) for name in METHODS):
        raise UsageError.of("DL510.tee", type=type(logger).__name__)


class _Waiting:
    """A sink that keeps the scalars for the logger until the loop logs next."""

    kind = "tee"
    accepts: ClassVar[frozenset[str]] = frozenset({SCALAR})

    def __init__(self) -> None:
        self.events: deque[tuple[int, dict[str, Any]]] = deque()

    def open(self, run: RunInfo) -> None: ...

    def write(self, step: int, records: Records) -> None:
        self.events.append((step, {scalar.name: scalar.value for scalar in records.scalars}))

    def close(self) -> None: ...


class _NoLogger:
    """Stands for a missing logger."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a tee without a logger has no `{name}`")

    def log(self, values: Any, step: Any = None) -> None: ...

    def log_metrics(self, metrics: Any, step: Any = None) -> None: ...


class Tee(LoggerProxy):
    """A recorder beside a logger whose methods take numbers by name and a step; ``logger_calls`` reads the calls.

    Every call goes to the logger unchanged, and returns the logger's result. A step may have several calls. A call with
    ``commit`` or ``step_finished`` completes the step, and so does a mapping without a step, or a dump. Each name may
    count steps of its own, as a writer's tags do; the steps in declog only rise. The recorder's values for the logger
    wait until the loop logs next.
    """

    def __init__(self, logger: Any, config: Any, *, sinks: Sequence[Sink] = (), **options: Any) -> None:
        self._waiting = _Waiting()
        self._step: int | None = None  # the last step that was logged
        self._steps: dict[str, int] = {}  # the last step of each name, as the loop counts
        self._back: set[str] = set()  # names whose steps have fallen
        self._unnumbered: set[str] = set()  # names logged without a step since the last step began
        self._calls: Counter[str] = Counter()  # the number of calls of each method of the logger
        self._names: set[str] = set()  # names of the numbers that the loop has logged
        self._untaken = LeftToLogger("" if logger is None else type(logger).__name__, config)
        self._again: Callable[[Mapping[str, Any], int], Any] | None = None  # repeats the loop's last call of the logger
        self._dumps = any(hasattr(logger, name) for name in logger_calls.DUMPS)
        self._until_dump: dict[str, tuple[Any, int]] = {}  # numbers that wait for a dump, and their counts
        atexit.register(self._drain)  # runs after the recorder's own
        waiting: Sequence[Sink] = () if logger is None else (self._waiting,)
        self.recorder: declog.Recorder = declog.start(
            config, sinks=[*waiting, *sinks], **{"steps": "commit", **single_rank(options), **options}
        )
        self._wraps = _NoLogger() if logger is None else logger  # from here on other attributes are the logger's

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        attribute = super().__getattr__(name)
        if name in ENDS and callable(attribute):
            return functools.partial(self._end, name)
        if not inspect.isroutine(attribute):
            return attribute

        @functools.wraps(attribute)
        def method(*args: Any, **kwargs: Any) -> Any:
            self._record(name, attribute, args, kwargs)
            return attribute(*args, **kwargs)

        return method

    def close(self) -> None:
        """Log the last window, close declog's sinks, then the logger if it has ``close``."""
        self._end("close")

    def finish(self, *args: Any, **kwargs: Any) -> Any:
        """Do as ``close``, with the logger's ``finish``; so does each other method that ends the logger."""
        return self._end("finish", *args, **kwargs)

    def _end(self, how: str, *args: Any, **kwargs: Any) -> Any:
        if self._until_dump:
            self._dump(None)
        if not self._names and self._calls.total() < PATIENCE and not self.recorder.closed:
            self._say_nothing_came()
        self.recorder.close()
        self._drain()
        atexit.unregister(self._drain)
        return getattr(self._wraps, how)(*args, **kwargs) if hasattr(self._wraps, how) else None

    # -- numbers that the loop logs

    def _record(self, name: str, method: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Record the numbers of a call."""
        if name == "flush" and not self.recorder.closed:
            self.recorder.written()
        if name in logger_calls.DUMPS:
            self._dump(logger_calls.dump_step(method, args, kwargs))
        call = logger_calls.read(name, method, args, kwargs)
        if call is not None and call.step is None and not call.commit and self._dumps:
            self._wait(name, call.values)
        elif call is not None:
            self._take(call)
        self._calls[name] += 1
        if not self._names and self._calls.total() == PATIENCE:
            self._say_nothing_came()
        self._drain()

    def _wait(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep numbers until the dump: the last value of each, or the mean if the method's name ends in ``_mean``."""
        for key, value in values.items():
            before, n = self._until_dump.get(key, (value, 0))
            mean = before + (value - before) / (n + 1) if n and name.endswith("_mean") else value
            self._until_dump[key] = mean, n + 1

    def _dump(self, step: int | None) -> None:
        kept, self._until_dump = self._until_dump, {}
        values = {key: value for key, (value, _) in kept.items()}
        self._take(logger_calls.Call(values, step, True, None))

    def _take(self, call: logger_calls.Call) -> None:
        """Record a call in its step."""
        names = set(flat(call.values))
        self._step = self._number(call, names)
        self._again = call.again or self._again
        if not self.recorder.closed:
            rest: Mapping[str, Any] = call.values
            with self.recorder.guard("what the loop logs could not be recorded"):
                rest = self._numbers(call.values, self._step, commit=call.commit)
            no_numbers = flat(rest)
            self._names |= names - no_numbers.keys()
            if no_numbers:
                self._untaken.warn(no_numbers, self.recorder)

    def _numbers(self, values: Mapping[str, Any], step: int, *, commit: bool) -> Mapping[str, Any]:
        """Record the numbers among the values, and return the other values."""
        return self._untaken.record(values, flat(values), self.recorder, step, commit=commit)

    def _number(self, call: logger_calls.Call, names: set[str]) -> int:
        """The step in which a call is recorded.

        A call without a step begins the next step if it completes a step or repeats a name, else it joins the last one.
        """
        last = -1 if self._step is None else self._step
        if call.step is None:
            again = call.commit or not (self._steps or self._unnumbered.isdisjoint(names))
            self._unnumbered = names if again else self._unnumbered | names
            return max(last + again, 0)
        step = max(call.step, last)
        for name in names:
            before, self._steps[name] = self._steps.get(name, call.step), call.step
            if call.step < before and name not in self._back:
                self._back.add(name)
                log.warning(
                    "`%s` goes back from step %d to %d: it is recorded at step %d", name, before, call.step, step
                )
        return step

    def _say_nothing_came(self) -> None:
        called = ", ".join(f"`{name}`" for name in self._calls)
        log.warning(
            "the tee%s has recorded nothing: %s; it takes numbers by name from %s, and what methods of this kind "
            "are called with", "" if isinstance(self._wraps, _NoLogger) else f" of {type(self._wraps).__name__}",
            f"the loop has called {called}, without such numbers" if called else "nobody has called it",
            logger_calls.EXAMPLES,
        )  # fmt: skip

    # -- declog's metrics for the logger

    def _drain(self) -> None:
        """Write the waiting values on the thread that logs, because loggers need not be thread-safe."""
        while self._waiting.events:
            step, values = self._waiting.events.popleft()
            new = {name: value for name, value in values.items() if name not in self._names}
            if new and self._again is not None:
                self._again(new, step)
