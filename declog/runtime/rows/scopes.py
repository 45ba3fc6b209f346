"""Where rows belong: scopes, one chain of them in each context.

A scope holds for the code in its block and for the tasks that are started in it, which inherit the context; bare
threads do not. One ContextVar holds the innermost scope, and each scope its parent. No tokens: a scope that ends is
marked, whoever ends it and wherever, and a context that still holds it is put right when it is next asked.
Imports errors and ``after`` only; asyncio and trio only where somebody else did.
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

if TYPE_CHECKING:  # who only looks for the scope of here needs no torch
    from declog.runtime.recording.timing import Timed
    from declog.runtime.rows.batches import OpenBatches
    from declog.runtime.rows.steps import Step, Stream

P = ParamSpec("P")
R = TypeVar("R")
Kind = Literal["run", "step", "at", "mode", "batch"]
Origin = object  # the task that records, or the thread where there is none; not an id, since those are used again

PACKAGE = str(Path(__file__).parents[2])
_scope: ContextVar[Scope | None] = ContextVar("declog_scope", default=None)
_ids = itertools.count(1)
_imported: Mapping[str, Any] = sys.modules


def _no_loop() -> None:
    return None


_running_loop: Callable[[], object] = _no_loop  # asyncio's; who has not imported it has no tasks


def _find_loop(asyncio: ModuleType) -> None:
    global _running_loop
    _running_loop = asyncio._get_running_loop


after("asyncio", _find_loop)


class _Here(threading.local):
    """This thread, found once."""

    def __init__(self) -> None:
        self.thread: Origin = threading.current_thread()


_here = _Here()


def origin() -> Origin:
    """Who runs: the task, of asyncio or trio, else the thread.

    Libraries import trio beside training code that never runs it. Its own answer takes ten times as long as the rest
    here, so it is asked only in a thread with hooks for asynchronous generators: every loop that runs sets them.
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


class Recording(Protocol):
    """A recorder, as what is below it knows it: scopes, the functions that find it from anywhere, and wrappers."""

    @property
    def closed(self) -> bool:
        """Whether the run is over."""

    @property
    def innermost(self) -> int:
        """The number of the block that was made last of those that are open; 0 where none is."""

    def observe(self, *arguments: Any, step: Any = None, **signals: Any) -> None:
        """Record signals, and the rows of packets."""

    def log_metric(self, name: str, value: Any) -> None:
        """Record a number under a name of its own."""

    def log_extra(self, column: str, values: Any) -> None:
        """Record a column of the step's completions."""

    def scalars(self, values: Mapping[str, Any], step: int | None = None) -> dict[str, Any]:
        """Record numbers that the loop logs by name."""

    def timer(self, name: str) -> AbstractContextManager[None]:
        """Time a block of the step."""

    def merge(self, exports: Iterable[bytes], wait_s: float | None = None) -> None:
        """Log what actors exported."""

    def flush(self, wait_s: float | None = None) -> Mapping[str, float] | None:
        """Log what came since the last log event, now."""

    def step(self, step: int) -> Scope:
        """One optimizer step."""

    def taking(self, column: object) -> AbstractContextManager[None]:
        """A block that takes a column of training code's."""

    def in_child(self) -> None:
        """This process is a fork of the run's."""

    _session: Any  # where its scopes begin and end

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
    """A block of a step, of a mode, of one batch; also the handle by which it is reached from anywhere.

    ``with log.step(3) as step:`` and then ``step.observe(...)``: also from a bare thread. ``async with`` is the same.
    """

    closed = False
    takes: Recording | None = None  # its recorder, while it records what comes in it
    parent: Scope | None = None
    owner: Origin | None = None  # who opened it; None: nobody did yet
    origin = 0  # its number
    block: Scope | None = None  # of a batch: the scope around it
    phase: str | None = None  # of a batch: the only phase that is made explicit
    rows: int | None = None  # of a batch: how many completions it has
    stream: Stream | None = None  # whose windows its rows are in
    step: Step | None = None  # what its rows are of
    began = 0.0  # seconds since the recorder's start
    inside = 0.0  # seconds of the steps and modes in it, which count for their own windows
    timed: dict[str, Timed] | None = None  # the durations of blocks in it, by name

    def __init__(self, recorder: Recording, kind: Kind, number: int | None = None, mode: str = "train") -> None:
        self.recorder = recorder
        self.kind = kind
        self.number = number  # of the step; None: that of where the block begins
        self.mode = mode
        self.id = next(_ids)
        self.batches: dict[Origin, OpenBatches] = {}  # the open ones of each task and thread

    @classmethod
    def of_batch(cls, recorder: Recording, phase: str | None, rows: int | None) -> Scope:
        """One batch, of one phase or of all."""
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
            if _scope.get() is self:  # else there is nothing to undo here: a scope that ended is passed over
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
        """The scope itself; of a batch the block that it is of."""
        return self if self.block is None else self.block.outermost

    def seconds(self, now: float) -> float:
        """How long a step or a block of a mode took that ends now, less the steps and blocks inside it."""
        seconds, around = now - self.began, self.parent
        while around is not None and around.kind not in ("step", "mode"):
            around = around.parent
        if around is not None:
            around.inside += seconds
        return max(seconds - self.inside, 0.0)

    # -- what is recorded in it, from anywhere

    def observe(self, *arguments: Any, **signals: Any) -> None:
        """``Recorder.observe`` into this scope, from any task or thread; each has batches of its own."""
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


innermost = _scope.get  # of this context: it may have ended, and be of any recorder


def here(recorder: object | None = None) -> Scope | None:
    """The innermost scope of this context, of one recorder or of any that is not closed.

    One that has ended is passed over by whoever opened it. Inherited, it is what is returned: the rows of a task that
    outlives its scope belong nowhere, and not to the scope around it.
    """
    return nearest(_scope.get(), recorder)


def nearest(scope: Scope | None, recorder: object | None) -> Scope | None:
    """The scope, or the first around it that ``here`` may return."""
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
    """A scope that is open; None where there is none."""
    return None if scope is None or scope.takes is None else scope


def within(
    function: Callable[..., Any], block: Callable[[], AbstractContextManager[Callable[[Any], Any]]], *,
    awaited: bool | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """The function, called in a block, which says what its result becomes.

    ``awaited``: calls are awaited; by default those of ``async def`` are.
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
    """The function with the scope of here: for executors and bare threads, which inherit none.

    What it records belongs to the step in which it was bound. For plain functions and ``async def``.
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
    """Where the call comes from: the innermost file and line that is not declog's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"
