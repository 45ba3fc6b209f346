"""`python -m tests.benchmarks.bench_trl_calls`: what declog does on TRL's training thread in a step, by place.

Counts calls of Python and of C, and operations of torch, in each of declog's hooks and callbacks, in runs of their own;
a third run takes their CPU time. Counts are the same each time, on any machine; time is not. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from declog.integrations.hook import Hooks
from tests.benchmarks.bench_trl import STEPS, WARM, train
from tests.benchmarks.measure import section

BEGIN = "Steps.on_step_begin"
KINDS = ("python", "c", "torch", "us of CPU time")


class Places:
    """Counts of one kind, by hook or callback, from the step after the first ``WARM`` on."""

    def __init__(self, kind: str) -> None:
        self.counts: Counter[str] = Counter()
        self._kind = kind
        self._begun = 0
        self._running: list[Any] = []  # what counts in the hooks that are under way

    @contextmanager
    def inside(self, place: str) -> Iterator[None]:
        """A block of declog's own code."""
        self._begun += place == BEGIN
        if self._begun <= WARM:
            yield
            return
        counting = {"torch": self._torch, "us of CPU time": self._time}.get(self._kind, self._calls)
        with counting(place):
            yield

    @contextmanager
    def _calls(self, place: str) -> Iterator[None]:
        event = "c_call" if self._kind == "c" else "call"

        def count(frame: Any, what: str, arg: Any) -> None:
            if what == event and frame.f_code.co_filename != __file__:
                self.counts[place] += 1

        sys.setprofile(count)
        try:
            yield
        finally:
            sys.setprofile(None)

    @contextmanager
    def _torch(self, place: str) -> Iterator[None]:
        counts = self.counts

        class Count(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                counts[place] += 1
                return func(*args, **(kwargs or {}))

        with Count():  # type: ignore[no-untyped-call]  # torch's own
            yield

    @contextmanager
    def _time(self, place: str) -> Iterator[None]:
        began = time.thread_time_ns()
        try:
            yield
        finally:
            self.counts[place] += (time.thread_time_ns() - began) // 1000

    def hooked(self, hooks: Hooks, original: Callable[..., Any], name: str, around: Any) -> Callable[..., Any]:
        """A hook that counts, but not while the trainer's own method runs."""
        place = f"{type(around.__self__).__name__}.{around.__name__}"
        here: list[Any] = []

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            here[-1].__exit__(None, None, None)
            try:
                return original(*args, **kwargs)
            finally:
                here[-1] = self.inside(place)
                here[-1].__enter__()

        hook = HOOKED(hooks, method, name, around)

        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            here.append(self.inside(place))
            here[-1].__enter__()
            try:
                return hook(*args, **kwargs)
            finally:
                here.pop().__exit__(None, None, None)

        return counted

    def callback(self, hooks: Hooks, callback: Any, *, first: bool = False) -> None:
        """A callback that counts."""
        for name in [name for name in vars(type(callback)) if name.startswith("on_")]:
            setattr(callback, name, self._counted(getattr(callback, name), f"{type(callback).__name__}.{name}"))
        CALLBACK(hooks, callback, first=first)

    def _counted(self, event: Callable[..., Any], place: str) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.inside(place):
                return event(*args, **kwargs)

        return counted


HOOKED, CALLBACK = Hooks._hooked, Hooks.callback


def main() -> None:
    """The table: per optimizer step of two micro-batches, with a log event each."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    from tests.integrations.trl import tiny

    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    model = tiny.build(folder / "model")
    by_kind = {}
    for kind in KINDS:
        places = Places(kind)
        hooked = mock.patch.object(Hooks, "_hooked", lambda *args, of=places: of.hooked(*args))
        callback = mock.patch.object(Hooks, "callback", lambda *args, of=places, **named: of.callback(*args, **named))
        with hooked, callback, redirect_stdout(StringIO()):  # the trainer prints its logs
            train(model, folder / kind, None)
        by_kind[kind] = places.counts
    counts = [by_kind[kind] for kind in KINDS]
    order = sorted(set().union(*counts), key=lambda place: -counts[0][place])
    rows = [(place, *(f"{count[place] / (STEPS - WARM):.0f}" for count in counts)) for place in order]
    rows.append(("together", *(f"{count.total() / (STEPS - WARM):.0f}" for count in counts)))
    section(
        "declog on TRL's training thread",
        ("place", "calls of Python", "calls of C", "operations of torch", KINDS[-1]), rows,
        "Per optimizer step with a log event, after the first few, which are read value by value.",
    )  # fmt: skip


if __name__ == "__main__":
    main()
