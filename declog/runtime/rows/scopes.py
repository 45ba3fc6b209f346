"""Scopes: the block, step or mode that rows belong to; each context has one chain of scopes.

A scope holds for the code in its block, and for tasks that are started in it, because they inherit the context. Bare
threads do not. One ContextVar holds the innermost scope, and each scope holds its parent. No ContextVar token is reset:
a scope that ends, in any context, is marked as ended, and a context that still holds it is corrected at the next
reading. asyncio and trio are used only if the program has imported them.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar

from declog.errors import UsageError
from declog.errors.habits import answered
from declog.imports import after

if TYPE_CHECKING:  # code that only looks for the current scope must not import torch
    from declog.runtime.recording.timing import Timed
    from declog.runtime.rows.steps import OpenBatches, Step, Stream

P = ParamSpec("P")
R = TypeVar("R")
Kind = Literal["run", "step", "at", "mode", "batch"]
Origin = object  # a task, or a thread if no task runs; the object, not its id, because Python reuses ids

PACKAGE = str(Path(__file__).parents[2])
_scope: ContextVar[Scope | None] = ContextVar("declog_scope", default=None)
_ids = itertools.count(1)
_imported: Mapping[str, Any] = sys.modules


def _no_loop() -> None:
    return None


# asyncio's function; a program that has not imported asyncio has no tasks
_running_loop: Callable[[], object] = _no_loop


def _find_loop(asyncio: ModuleType) -> None:
    global _running_loop
    _running_loop = asyncio._get_running_loop


after("asyncio", _find_loop)


class _Here(threading.local):
    """This thread's object, looked up once."""

    def __init__(self) -> None:
        self.thread: Origin = threading.current_thread()


_here = _Here()


def origin() -> Origin:
    """The current task, of asyncio or trio, else the current thread.

    Libraries import trio in programs that never run it, and asking trio takes ten times as long as everything else
    here. So trio is asked only in a thread with hooks for asynchronous generators, which every event loop sets.
    """
    if _running_loop() is not None:
        task: Origin | None = _imported["asyncio"].current_task()
        if task is not None:
            return task
    if "trio" in _imported and sys.get_asyncgen_hooks().firstiter is not None:
        trio = _imported["trio"].lowlevel
        if trio.in_trio_task():
            task = trio.current_task()
            return task
    return _here.thread


def ended(task: Origin) -> bool:
    """Whether a task or a thread has ended; always false for trio's tasks, which do not tell."""
    if isinstance(task, threading.Thread):
        return not task.is_alive()
    return bool(getattr(task, "done", bool)())


class Recording(Protocol):
    """A recorder, as the modules below it use it: scopes, the functions that find the current recorder, wrappers."""

    @property
    def closed(self) -> bool:
        """Whether the run is over."""

    @property
    def idle_in(self) -> frozenset[tuple[int, Path]]:
        """The folders of a run whose loop has ended, each with its rank; empty while the loop may go on."""

    @property
    def integrated(self) -> bool:
        """Whether the current call is one of the integration of a trainer that trains now."""

    def close(self) -> None:
        """Log the last window, and close the sinks."""

    @property
    def innermost(self) -> int:
        """The id of the open block that was made last; 0 if no block is open."""

    def observe(self, *arguments: Any, step: Any = None, **signals: Any) -> None:
        """Record signals, and the rows of packets."""

    def log_metric(self, name: str, value: Any) -> None:
        """Record a number under any name."""

    def log_extra(self, column: str, values: Any) -> None:
        """Record a column of the step's completions."""

    def keep(self, **columns: Any) -> None:
        """Keep columns of the step's completions for later questions."""

    def scalars(self, values: Mapping[str, Any], step: int | None = None) -> dict[str, Any]:
        """Record numbers that the loop logs by name; return the values that are no numbers."""

    def timer(self, name: str) -> AbstractContextManager[None]:
        """Time a block of the step."""

    def merge(self, exports: Iterable[bytes], wait_s: float | None = None) -> None:
        """Log the exports of actors."""

    def flush(self, wait_s: float | None = None) -> Mapping[str, float] | None:
        """Log everything since the last log event now."""

    def step(self, step: int) -> Scope:
        """Return a block for one optimizer step."""

    def taking(self, column: object) -> AbstractContextManager[None]:
        """Return a block that records a column of the training code."""

    def in_child(self) -> None:
        """Note that this process is a fork of the run's process."""

    trained_beside: Any  # the last recorder of a trainer that trained while this one was open
    _session: Any  # the session, in which its scopes begin and end

    def _here(self) -> Scope | None: ...
    def _next_step(self) -> Scope: ...
    def _observe(
        self, arguments: Sequence[Any], signals: Mapping[str, Any], step: Any = None, *, strict: bool = True
    ) -> None: ...
    def _observe_in(
        self, scope: Scope, arguments: Sequence[Any], signals: Mapping[str, Any], *, strict: bool = True
    ) -> None: ...
    def _metrics_in(self, scope: Scope | None, values: Mapping[str, Any]) -> None: ...
    def _extra_in(self, scope: Scope | None, column: str, values: Any) -> None: ...
    def _timer_in(self, scope: Scope | None, name: str) -> AbstractContextManager[None]: ...


class Scope:
    """A block of a run, a step, a mode or one batch; also the handle that reaches the block from anywhere.

    Enter it with ``with log.step(3) as step:``, then call ``step.observe(...)``, also from a bare thread.
    ``async with`` works in the same way.
    """

    closed = False
    takes: Recording | None = None  # its recorder, while the scope is open
    parent: Scope | None = None
    owner: Origin | None = None  # the task or thread that opened it; None: not opened yet
    origin = 0  # for captures: the number of the task or thread that opened it
    block: Scope | None = None  # for a batch: the scope around it
    phase: str | None = None  # for a batch: its only phase; None: all phases
    rows: int | None = None  # for a batch: the announced number of completions
    stream: Stream | None = None  # the stream whose windows have its rows
    step: Step | None = None  # the step that its rows belong to
    began = 0.0  # seconds since the recorder's start
    inside = 0.0  # the seconds of steps and modes inside it, which count in their own windows
    timed: dict[str, Timed] | None = None  # the durations of blocks in it, by name

    def __init__(self, recorder: Recording, kind: Kind, number: int | None = None, mode: str = "train") -> None:
        self.recorder = recorder
        self.kind = kind
        self.number = number  # its step's number; None: the number of the step around it, or of the last step
        self.mode = mode
        self.id = next(_ids)
        self.batches: dict[Origin, OpenBatches] = {}  # the open batches of each task and thread

    @classmethod
    def of_batch(cls, recorder: Recording, phase: str | None, rows: int | None) -> Scope:
        """A scope for one batch, of one phase or of all."""
        scope = cls(recorder, "batch")
        scope.phase, scope.rows = phase, rows
        return scope

    def __enter__(self) -> Scope:
        if self.owner is not None:
            raise UsageError.of("DL510.entered", scope=self)
        parent, me = _scope.get(), origin()
        while parent is not None and parent.closed and parent.owner is me:
            parent = parent.parent  # it ended in another context
        self.parent = parent
        self.recorder._session.open(self, me)
        _scope.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.recorder._session.end(self, failed=kind is not None)
        finally:
            if _scope.get() is self:  # otherwise nothing must be reset: an ended scope is passed over
                _scope.set(self.parent)

    async def __aenter__(self) -> Scope:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __str__(self) -> str:
        if self.kind == "mode":
            return f"the block of mode `{self.mode}` at step {self.number}"
        if self.kind == "run":
            return "the run"
        where = f"step {self.number}" + ("" if self.mode == "train" else f" of mode `{self.mode}`")
        return {"step": where, "at": f"`at({self.number})`", "batch": f"a batch of {where}"}[self.kind]

    @property
    def outermost(self) -> Scope:
        """The scope itself, or for a batch the block around it."""
        return self if self.block is None else self.block.outermost

    def seconds(self, now: float) -> float:
        """The seconds that a step or block took that ends ``now``, without the steps and blocks inside it.

        Adds its whole duration to the ``inside`` of the step or mode around it.
        """
        seconds, around = now - self.began, self.parent
        while around is not None and around.kind not in ("step", "mode"):
            around = around.parent
        if around is not None:
            around.inside += seconds
        return max(seconds - self.inside, 0.0)

    # -- what is recorded in it, from anywhere

    def observe(self, *arguments: Any, **signals: Any) -> None:
        """``Recorder.observe`` into this scope, from any task or thread; each task and thread has its own batches."""
        self.recorder._observe_in(self, arguments, signals)

    @answered
    def log_metric(self, name: str, value: Any) -> None:
        """``Recorder.log_metric`` into this scope."""
        self.recorder._metrics_in(self, {name: value})

    @answered
    def log_extra(self, column: str, values: Any) -> None:
        """``Recorder.log_extra`` into this scope."""
        self.recorder._extra_in(self, column, values)

    @answered
    def timer(self, name: str) -> AbstractContextManager[None]:
        """``Recorder.timer`` into this scope."""
        return self.recorder._timer_in(self, name)


innermost = _scope.get  # the scope of this context; it may have ended, and belongs to any recorder


def here(recorder: object | None = None) -> Scope | None:
    """The innermost open scope of this context, of one recorder or of any.

    In the task or thread that opened it, a scope that has ended is passed over. In a context that inherited the scope,
    it is returned although it has ended: rows of a task that outlives its scope belong nowhere, and must not go to the
    scope around it.
    """
    return nearest(_scope.get(), recorder)


def in_step() -> bool:
    """Whether this context is in an open step."""
    scope = here()
    return scope is not None and scope.kind != "run"


def nearest(scope: Scope | None, recorder: object | None) -> Scope | None:
    """Return the first scope that `here` may return: ``scope`` itself, or one around it; else None."""
    me = None
    while scope is not None:
        if scope.recorder is recorder or (recorder is None and not scope.recorder.closed):
            if not scope.closed:
                if recorder is None or scope.kind != "run":
                    return scope
            elif scope.kind != "run":
                me = me or origin()
                if scope.owner is not me:
                    return scope
        scope = scope.parent
    return None


def usable(scope: Scope | None) -> Scope | None:
    """The scope if it is open, else None."""
    return None if scope is None or scope.takes is None else scope


def within(
    function: Callable[..., Any], block: Callable[[], AbstractContextManager[Callable[[Any], Any]]], *,
    awaited: bool | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Wrap a function so that each call runs in a block, which gives a function that is applied to the call's result.

    ``awaited``: calls are awaited; by default only calls of ``async def`` functions are.
    """
    if inspect.iscoroutinefunction(function) if awaited is None else awaited:

        @functools.wraps(function)
        async def asynchronous(*args: Any, **kwargs: Any) -> Any:
            with block() as returned:
                return returned(await function(*args, **kwargs))

        return asynchronous

    @functools.wraps(function)
    def synchronous(*args: Any, **kwargs: Any) -> Any:
        with block() as returned:
            return returned(function(*args, **kwargs))

    return synchronous


def bind(function: Callable[P, R]) -> Callable[P, R]:
    """Bind a function to the current scope, for executors and bare threads, which inherit none.

    The function's records belong to the step in which it was bound. ``bind`` takes plain and ``async def`` functions,
    and raises ``UsageError`` for generator functions.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError.of("DL510.bind")
    bound = _scope.get()

    @contextmanager
    def in_scope() -> Iterator[Callable[[Any], Any]]:
        before = _scope.get()
        _scope.set(bound)
        try:
            yield lambda result: result
        finally:
            _scope.set(before)

    return within(function, in_scope)


def call_site() -> str:
    """The file, line and function of the call into declog: the innermost frame that is not declog's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"
