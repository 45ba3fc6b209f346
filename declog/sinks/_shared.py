"""Helpers for several sinks: importing a backend, values for every format, the config that trackers show."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import math
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from declog.distribution import install
from declog.errors import SinkError
from declog.records import Number, RunInfo

T = TypeVar("T")
opened_runs: weakref.WeakSet[Any] = weakref.WeakSet()  # trackers' runs that sinks opened: other recorders do not join


def require(module: str, *, kind: str, extra: str | None = None) -> Any:
    """Import a backend's module. ``SinkError`` DL601 names the pip extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise _missing(module, kind, extra, str(cause)) from cause


def require_installed(module: str, *, kind: str, extra: str) -> None:
    """Check that a module is installed without importing it, for a backend that may only be imported later."""
    if importlib.util.find_spec(module) is None:
        raise _missing(module, kind, extra, "it is not installed")


def _missing(module: str, kind: str, extra: str | None, reason: str) -> SinkError:
    package = module.partition(".")[0]
    return SinkError.of(
        "DL601.package", kind=kind, package=package, reason=reason,
        fix=install(extra) if extra else f"pip install {package}",
    )  # fmt: skip


def tracker_config(run: RunInfo) -> dict[str, Any]:
    """The run config that trackers show: how the run is configured, and declog's own facts under one key."""
    declog = {
        "name": run.name,
        "run_id": run.run_id,
        "fingerprint": run.fingerprint,
        "version": run.version,
        "world_size": run.world_size,
        "config": dict(run.declog),
    }
    return {**run.config, "declog": declog}


def clean_text(text: str) -> str:
    r"""Text that UTF-8 can hold: a lone surrogate, as a broken tokenizer makes, becomes its escape ``\udXXX``."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


@contextlib.contextmanager
def bound(variable: ContextVar[T], value: T) -> Iterator[None]:
    """A block in which a context variable has a value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def digest(name: str) -> str:
    """A short digest of a name: it keeps names apart that are cut, or written in other characters."""
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:12]


def as_float(value: Number) -> float:
    """A number as a float; an integer beyond the range of floats becomes an infinity, as in numpy."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
