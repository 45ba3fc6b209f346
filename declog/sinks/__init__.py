"""The outputs of a run: the sink protocol, and the kinds of sinks.

Each backend is one file with one class. The file has the name of the kind; there is no list of kinds. A sink imports
its tracker in its constructor only, never imports torch, and knows nothing of plans or profiles. declog opens a sink
once, writes to it in step order from one thread, and closes it once. Importing this package imports no backend: the
module of a kind is loaded when the kind is first used.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from declog.errors import Problem, SinkError, UsageError
from declog.records import Records, ResumePoint, RunInfo
from declog.registry import home, installed, provided

SCALAR, HISTOGRAM, TABLE, ALERT = "scalar", "histogram", "table", "alert"

ACCEPTS = 'accepts = frozenset({"scalar"})'  # or more of these

ENTRY_POINTS = "declog.sinks"


class BaseSink:
    """The facts of a sink's class besides ``accepts``, with defaults. Third parties may inherit from it, or not."""

    kind: ClassVar[str] = ""  # its name in YAML: for declog's own sinks the name of the file
    package: ClassVar[str] = ""  # the package that it needs, by pip's name
    extra: ClassVar[str] = ""  # the pip extra of declog that brings the package; "": declog needs it anyway
    in_folder: ClassVar[bool] = False  # it writes into a folder of the run
    per_rank: ClassVar[bool] = False  # it writes on every rank, each into a folder of its own
    shows_last: ClassVar[bool] = False  # with `every: N` it also gets the last values at the end of the run
    unfiltered_bytes: ClassVar[int | None] = 16 * 2**20  # most bytes of a table without a filter; None: all


@runtime_checkable
class Sink(Protocol):
    """A backend. Options are the constructor's keyword-only arguments, typed, each with a default."""

    accepts: ClassVar[frozenset[str]]

    def open(self, run: RunInfo) -> None:
        """Start; raise to refuse the run: a sink of the config that cannot open is fatal."""

    def write(self, step: int, records: Records) -> None:
        """Take the records of one log event. May block or raise: the caller isolates the sink.

        An ``OSError`` means that nothing was written: the caller may call once more with the same records.
        """

    def close(self) -> None:
        """Finish; called once, also after a failed write."""


@runtime_checkable
class Rewindable(Protocol):
    """A sink that can drop the steps after a step. A resumed run, or a run that goes back, then has each step once."""

    def rewind(self, point: ResumePoint) -> None:
        """Drop all records that ``point`` does not keep: at least the later steps.

        Called after ``open`` when a run is resumed, and between two calls of ``write`` when the run goes back. It must
        be idempotent, also after a crash in the middle of a call. Raise if the records cannot be dropped.
        """


@runtime_checkable
class Coalescing(Protocol):
    """A sink that writes several log events for the cost of one, such as one file and one `fsync`."""

    def write_many(self, events: Sequence[tuple[int, Records]]) -> Mapping[int, Exception]:
        """Write the waiting log events in order; returns the errors by the index of the event."""


@runtime_checkable
class Live(Protocol):
    """A sink that shows the progress of training between log events, if ``live`` is true once it is open."""

    live: bool

    def progress(self, step: int, steps: int | None) -> None:
        """Show that ``step`` of ``steps`` (if known) has ended. Called between writes, at most four times a second."""


def known_kinds() -> tuple[str, ...]:
    """The names that a sink's ``kind`` may have: the built-in ones and those of installed packages."""
    return tuple(sorted({*built_in(), *installed(ENTRY_POINTS)}))


@functools.cache
def built_in() -> tuple[str, ...]:
    """The kinds that declog ships, sorted: the files of this folder with a sink."""
    return tuple(sorted(name for name in _modules() if _built_in(name) is not None))


@functools.cache
def _modules() -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


@functools.cache
def _built_in(kind: str) -> type[Sink] | None:
    """The class in a file of this folder whose kind is the file's name, or None."""
    if kind not in _modules():
        return None
    values = vars(importlib.import_module(f"{__name__}.{kind}")).values()
    classes = [value for value in values if isinstance(value, type) and issubclass(value, BaseSink)]
    return typing.cast("type[Sink] | None", next((cls for cls in classes if cls.kind == kind), None))


def sink_class(kind: str) -> type[Sink]:
    """The class of a kind: a built-in name, a name in the entry-point group, or a path ``module:Class``.

    Raises ``SinkError`` DL601 for an unknown kind, and for a module that cannot be imported.
    """
    path = kind
    if ":" not in kind:
        shipped = _built_in(kind)
        try:
            entry = provided(ENTRY_POINTS, kind, "sink", shipped=shipped is not None)
        except UsageError as error:
            raise SinkError("DL601", error.message, error.fix) from None
        if shipped is not None:
            return shipped
        if entry is None:
            raise SinkError.of("DL601.kind", name=kind, known=known_kinds())
        path = entry.value
    module, _, name = path.partition(":")
    try:
        cls = getattr(importlib.import_module(module), name)
    except Exception as cause:  # any failure of an installed package at import is reported
        raise SinkError.of("DL601.load", kind=kind, module=module, name=name, cause=cause, by=_by(kind)) from cause
    if not inspect.isclass(cls):
        raise SinkError.of("DL601.no_class", kind=kind, module=module, name=name, by=_by(kind))
    if lacks := what_lacks(cls):
        raise SinkError.of("DL601.no_sink", kind=kind, module=module, name=name, lacks="`, `".join(lacks), by=_by(kind))
    return typing.cast("type[Sink]", cls)


def what_lacks(sink: object) -> list[str]:
    """The parts of a sink that an object, or a class, lacks: methods with the right parameters, a valid ``accepts``."""
    lacks = []
    for name, parameters in {"open": ("run",), "write": ("step", "records"), "close": ()}.items():
        static = inspect.getattr_static(sink, name, None)
        method = getattr(sink, name, None) if callable(static) else None
        unbound = (None,) if isinstance(sink, type) and inspect.isfunction(static) else ()
        with suppress(ValueError):  # Python does not know the parameters
            try:
                inspect.signature(method, follow_wrapped=False).bind(*unbound, *parameters)  # type: ignore[arg-type]
            except TypeError:
                lacks.append(f"{name}({', '.join(parameters)})")
    accepts = getattr(sink, "accepts", None)
    kinds = accepts if isinstance(accepts, Collection) and not isinstance(accepts, str) else [None]
    return lacks if all(kind in (SCALAR, HISTOGRAM, TABLE, ALERT) for kind in kinds) else [*lacks, ACCEPTS]


def _by(kind: str) -> str:
    """The package that provides a kind, in words."""
    return f" of {home}" if (home := home_of(kind)) else ""


def traits(kind: str) -> type[BaseSink]:
    """The class of a kind if it is a `BaseSink`, else `BaseSink` with its defaults."""
    cls: type = sink_class(kind)
    return cls if issubclass(cls, BaseSink) else BaseSink


def home_of(kind: str) -> str:
    """The package that provides a kind, and its version; empty for declog's own."""
    return " and ".join(map(home, installed(ENTRY_POINTS).get(kind, ())))


def option_names(kind: str) -> tuple[str, ...]:
    """The names of a kind's own options, in the order of its constructor."""
    return tuple(_options(sink_class(kind)))


def check_options(kind: str, options: Mapping[str, Any]) -> list[Problem]:
    """The problems of a sink's options, each at the option's name."""
    from pydantic import TypeAdapter, ValidationError

    cls = sink_class(kind)
    parameters = _options(cls)
    hints = typing.get_type_hints(cls.__init__)
    problems = [
        Problem.of("DL203.sink_option", kind=kind, name=name)
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and options.get(name) is None
    ]
    for name, value in options.items():
        if name not in parameters:
            problem = Problem.of("DL201.sink_option", (name,), kind=kind, name=name, known=parameters)
            of_folder = re.search("dir|path|folder|file", name) is not None and not Path(str(value)).is_absolute()
            if of_folder and problem.fix == "did you mean `dir`?":
                problem = replace(problem, fix=f"{problem.fix} a folder below the run's; an absolute path stays")
            problems.append(problem)
            continue
        if value is None:  # null resets the value of another layer
            continue
        try:
            TypeAdapter(hints.get(name, Any)).validate_python(value, strict=True)
        except ValidationError as cause:
            reasons = " or ".join(dict.fromkeys(_expected(error) for error in cause.errors()))
            default = parameters[name].default
            plain = isinstance(default, str | int | float) and not isinstance(default, bool)
            fix = f"{name}: {default}" if plain else None
            problem = Problem.of(
                "DL202.sink_option", (name,), name=name, kind=kind, reasons=reasons, value=value, fix=fix
            )
            problems.append(problem)
    return problems


def _expected(error: Any) -> str:
    """The expected type, in pydantic's words without their beginning."""
    return str(error["msg"]).removeprefix("Input should be ").replace("valid integer", "whole number")


def make_sink(kind: str, options: Mapping[str, Any]) -> Sink:
    """Construct a sink. ``SinkError`` DL601 names the wrong option or the missing package."""
    problems = check_options(kind, options)
    if problems:
        raise SinkError.of(
            "DL601.options", reasons="\n".join(f"{problem.message}: {problem.fix}" for problem in problems)
        )
    return sink_class(kind)(**options)


def _options(cls: type[Sink]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(cls).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}
