"""A user's code may raise anything: what it is part of is lost and reported, and nothing else is."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import declog
from declog.errors import RuntimeFailure, SinkError
from declog.language import functions, reductions, row_functions
from declog.records import Records, RunInfo
from declog.testing import MemorySink
from tests import forks
from tests.forks import PATIENCE_S

STEPS = 6
AT = 2


class Panic(BaseException):
    """As Rust's panics reach Python: `pyo3_runtime.PanicException` is no `Exception`."""


class Speechless(BaseException):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        raise Panic("no words")


KINDS: dict[str, type[BaseException]] = {
    "SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt, "GeneratorExit": GeneratorExit, "Panic": Panic,
    "Speechless": Speechless, "MemoryError": MemoryError, "StopIteration": StopIteration,
    "RecursionError": RecursionError,
}  # fmt: skip
WORKER_ONLY = ("SystemExit", "KeyboardInterrupt")  # on the training thread they may be a signal's


def profile(metrics: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A profile with a metric that has nothing to do with the user's code."""
    signals = {"x": {"axis": "completion"}, "t": {"axis": "completion", "type": "text"}, "k": {"axis": "token"}}
    return {
        "run": {"name": "user"}, "signals": {"any": signals}, "axes": {"token": {"mask": "all"}},
        "metrics": {"good": "mean(x)", "kl": "mean(k)", **metrics}, **more,
    }  # fmt: skip


def train(made: dict[str, Any], folder: Path, **options: Any) -> tuple[MemorySink, declog.Recorder]:
    """A run of a few steps; the user's code meets `AT` in the third."""
    sink = MemorySink()
    with declog.start(made, sinks=[sink, *options.pop("sinks", ())], output_dir=folder, wait_s=5.0, **options) as log:
        for step in range(STEPS):
            with log.step(step):
                log.observe(x=[float(step), 1.0], t=[str(step), "b"], k=torch.full((2, 3), float(step)))
    return sink, log


def good(sink: MemorySink) -> None:
    """What has nothing to do with the fault is logged in each step."""
    assert {step: values["good"] for step, values in sink.scalars.items()} == {s: (s + 1) / 2 for s in range(STEPS)}


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_reducer_may_raise_anything(kind: str, blocking: bool, tmp_path: Path) -> None:
    """Its metric misses that step; it is reported with its name; `strict` raises an ordinary error."""
    own = reductions.Reductions(reductions.BUILTIN)

    @reductions.reducer(registry=own)
    def odd(values: Any) -> float:
        if values[0] == AT:
            raise KINDS[kind]("mine")
        return float(values.mean())

    made = profile({"odd": "odd(x)"}, run={"blocking": blocking})
    sink, log = train(made, tmp_path, reductions=own)
    good(sink)
    assert [step for step, values in sink.scalars.items() if "odd" in values] == [0, 1, 3, 4, 5]
    ((message, count),) = log.failures.items()
    assert ("the metric `odd`" in message, kind in message, count) == (True, True, 1)
    with pytest.raises(RuntimeFailure, match=kind):
        train({**made, "run": {"strict": True}}, tmp_path / "strict", reductions=own)


@pytest.mark.parametrize("where", ["metric", "where", "filter", "text", "label"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_function_may_raise_anything(kind: str, where: str, tmp_path: Path) -> None:
    """Wherever the worker evaluates it."""
    registry = functions.Functions(functions.BUILTIN)

    @functions.function(registry=registry)
    def odd(x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "meta" and float(x.flatten()[0]) == AT:
            raise KINDS[kind]("mine")
        return x * 1

    @functions.function(registry=registry)
    def spoken(t: str) -> str:
        if t == str(AT):
            raise KINDS[kind]("mine")
        return t

    parts: dict[str, dict[str, Any]] = {
        "text": profile({"odd": "mean(len(spoken(t)))"}),
        "label": profile({"odd": {"expr": "x", "by": "spoken(t)"}}),
        "metric": profile({"odd": "mean(odd(x))"}),
        "where": profile({"odd": {"expr": "x", "reduce": "mean", "where": "odd(x) >= 0"}}),
        "filter": profile({}, schemas={"s": {"x": {"type": "float"}}}, tables={"odd": {"schema": "s", "filter": "f"}},
                          filters={"f": {"key": "odd(x)", "top": 1, "bottom": 0}}),
    }  # fmt: skip
    made = parts[where]
    sink, log = train(made, tmp_path, functions=registry)
    good(sink)
    assert len(log.failures) == 1 and kind in next(iter(log.failures))


@pytest.mark.parametrize("kind", [name for name in KINDS if name not in WORKER_ONLY])
def test_a_function_of_tokens_may_raise_anything(kind: str, tmp_path: Path) -> None:
    """On the training thread: the step goes on."""
    registry = functions.Functions(functions.BUILTIN)

    @functions.function(registry=registry)
    def odd(x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "meta" and float(x.flatten()[0]) == AT:
            raise KINDS[kind]("mine")
        return x * 1

    sink, log = train(profile({"odd": "mean(odd(k))"}), tmp_path, functions=registry)
    good(sink)
    assert [step for step, values in sink.scalars.items() if "odd" in values] == [0, 1, 3, 4, 5]
    assert len(log.failures) == 1 and kind in next(iter(log.failures))


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_of_a_column_may_raise_anything(kind: str, tmp_path: Path) -> None:
    """The cell is null, or where the column is required the table misses that step; metrics do not."""
    registry = row_functions.RowFunctions()

    @row_functions.column(registry=registry)
    def odd(t: str) -> str:
        if t == str(AT):
            raise KINDS[kind]("mine")
        return t

    for required, rows in ((False, 12), (True, 10)):
        schema = {"t": {"type": "text"}, "odd": {"type": "text", "call": "odd", "required": required}}
        made = profile({}, schemas={"s": schema}, tables={"t": {"schema": "s", "filter": None}})
        sink, log = train(made, tmp_path / str(required), columns=registry)
        good(sink)
        found = [value for _, table in sink.tables("t") for value in table.data["odd"]]
        assert (len(found), found.count(None)) == (rows, int(not required))
        assert [kind in message or "raised" in message for message in log.failures] == [True] * required


class Odd:
    """A sink that raises in one of its methods."""

    accepts: ClassVar[frozenset[str]] = frozenset({"scalar"})

    def __init__(self, kind: str, where: str) -> None:
        self._kind, self._where = kind, where
        self.steps: list[int] = []

    def _raise(self, where: str) -> None:
        if where == self._where:
            raise KINDS[self._kind]("mine")

    def open(self, run: RunInfo) -> None:
        self._raise("open")

    def write(self, step: int, records: Records) -> None:
        if step == AT:
            self._raise("write")
        self.steps.append(step)

    def close(self) -> None:
        self._raise("close")


@pytest.mark.parametrize("kind", KINDS)
def test_a_sink_may_raise_anything(kind: str, tmp_path: Path) -> None:
    """The other sinks have everything, and it takes part again; in `open` it ends the start."""
    for where in ("write", "close"):
        odd = Odd(kind, where)
        sink, _ = train(profile({}), tmp_path / where, sinks=[odd])
        good(sink)
        assert odd.steps == [step for step in range(STEPS) if where == "close" or step != AT]
    with pytest.raises(SinkError, match=kind):
        train(profile({}), tmp_path / "open", sinks=[Odd(kind, "open")])
    with pytest.raises(Exception) as caught:
        train(profile({}, run={"strict": True}), tmp_path / "strict", sinks=[Odd(kind, "write")])
    assert kind in f"{type(caught.value).__name__}: {caught.value}"


class Hanging(Odd):
    """A tracker that does not answer."""

    def __init__(self, until: threading.Event) -> None:
        super().__init__("Panic", "")
        self._until = until
        self.closed = threading.Event()

    def open(self, run: RunInfo) -> None:
        self._until.wait()

    def close(self) -> None:
        self.closed.set()


@pytest.mark.parametrize("blocking", [False, True])
def test_a_tracker_that_hangs_in_open_ends_the_start(blocking: bool, tmp_path: Path) -> None:
    """Within `start_s`, with an error; sinks that are open are closed, and so is the late one when it comes."""
    until = threading.Event()
    first, hanging, last = Hanging(threading.Event()), Hanging(until), Hanging(until)
    first._until.set()
    began = time.monotonic()
    with pytest.raises(SinkError, match=r"sink `<code>1` could not be opened: it did not open within 0\.\d+ s"):
        declog.start(
            profile({}, run={"blocking": blocking}), sinks=[first, hanging, last], output_dir=tmp_path, start_s=0.5
        )
    assert time.monotonic() - began < 30  # it would wait for ever
    assert first.closed.wait(PATIENCE_S)
    assert not hanging.closed.is_set()
    until.set()
    assert hanging.closed.wait(PATIENCE_S)


def test_a_program_ends_while_a_tracker_still_hangs(tmp_path: Path) -> None:
    """The interpreter does not wait for the thread, and does not crash over it: the exit code is the program's."""
    (tmp_path / "train.py").write_text(
        "import sys, time, declog\n"
        "class Hang:\n"
        "    accepts = frozenset({'scalar'})\n"
        "    def open(self, run): sys.stdin.readline()\n"
        "    def write(self, step, records): pass\n"
        "    def close(self): pass\n"
        "profile = {'signals': {'any': {'x': {'axis': 'completion'}}}, 'metrics': {'x': 'mean(x)'}}\n"
        "try: declog.start(profile, sinks=[Hang()], start_s=0.5)\n"
        "except declog.SinkError as error: print(error)\n"
        "sys.exit(7)\n"
    )
    with forks.start(["train.py"], cwd=tmp_path, talks=True, whole=True) as job:
        assert job.stdout is not None
        reported = job.stdout.read()
        code = job.wait()
    assert (code, "could not be opened: it did not open within" in reported) == (7, True)


def test_numbers_of_numpy_warn_nobody(tmp_path: Path) -> None:
    """A user's reducer that divides by zero gives what numpy gives, and no warning on the worker."""
    own = reductions.Reductions(reductions.BUILTIN)

    @reductions.reducer(registry=own)
    def odd(values: Any) -> float:
        return float(np.float64(1.0) / np.float64(0.0))

    sink, log = train(profile({"odd": "odd(x)"}), tmp_path, reductions=own)
    assert (sink.scalars[0]["odd"], log.failures) == (float("inf"), {})
