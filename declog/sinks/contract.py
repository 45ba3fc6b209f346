"""The duties of a sink, as checks for any sink: ``declog.testing.check_sink``.

Each check opens its own sinks, on declog's threads, in a run of its own.
"""

from __future__ import annotations

import inspect
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from declog.records import Alert, Column, DType, Histogram, Places, Records, ResumePoint, RunInfo, Scalar, Table
from declog.sinks import ALERT, HISTOGRAM, SCALAR, TABLE, Coalescing, Rewindable, Sink
from declog.sinks.runner import CloseReport, SinkRunner

Read = Callable[[RunInfo], Iterable[tuple[int, str, float]]]
WAIT_S = 300.0  # for a sink without progress
HUGE = 2**2000
SURROGATE = "broken \ud800 tail"


class Contract:
    """The checks, on sinks from ``make``; ``read`` returns the scalars of a run in a sink, in their order."""

    def __init__(self, make: Callable[[], Sink], read: Read | None, folder: Path) -> None:
        self._make, self._read, self._folder = make, read, folder
        self._runs = 0
        self._before = _process()

    def checks(self) -> dict[str, Callable[[], None]]:
        """The checks that apply to this sink, by their names."""
        sink = self._make()
        checks = {
            "it says what it takes": self.declares,
            "it takes one of everything": self.everything,
            "it takes numbers, names and texts of every kind": self.hostile,
            "it takes tables without rows, and columns that come and go": self.tables,
            "it closes without a log event, and twice": self.closing,
            "a log event that it cannot write costs that one only": self.broken,
            "it leaves the records as they are": self.untouched,
            "it leaves the process as it is": self.process,
        }
        if self._read is not None:
            checks |= {
                "log events are there in their order, of every mode": self.order,
                "runs at once are kept apart": self.two_runs,
            }
            if isinstance(sink, Coalescing):
                checks["several log events at once are those one by one"] = self.several
            if isinstance(sink, Rewindable):
                checks["a resumed run has each step once"] = self.resumed
                checks["a run that goes back has each step once"] = self.taken_back
        return checks

    def declares(self) -> None:
        """``accepts`` holds kinds of records; options are keyword-only and typed, each with a default."""
        sink = self._make()
        unknown = sorted(sink.accepts - {SCALAR, HISTOGRAM, TABLE, ALERT})
        assert not unknown, f"`accepts` has {unknown}"
        options = inspect.signature(type(sink)).parameters.values()
        loose = [option.name for option in options if option.kind is not option.KEYWORD_ONLY]
        assert not loose, f"options are keyword-only, with a `*` before them: {loose}"
        empty = inspect.Parameter.empty
        bare = [option.name for option in options if option.annotation is empty or option.default is empty]
        assert not bare, f"options have a type and a default: {bare}"

    def everything(self) -> None:
        """Scalars, histograms, tables and alerts, of two modes."""
        self._logged(self._run(), [(step, event(step, mode)) for step in range(3) for mode in ("train", "eval")])

    def hostile(self) -> None:
        """NaN, infinities, integers of any size, texts that UTF-8 cannot hold, names that no file can have."""
        values = (math.nan, math.inf, -math.inf, HUGE, -(2**63), 2**53 + 1, True, 0, -0.0, 5e-324)
        names = ("größe/漢字", "a b", "../up", "/root", "x" * 300, SURROGATE, "pass@8", "a\nb", "%s{}", "'; --")
        scalars = [Scalar(name, value, name) for name, value in zip(names, values, strict=True)]
        alerts = [Alert(name, "error", f"{name} \x1b[31m\u202e") for name in names]
        tables = [_table(name, id=f"t{number}", text=name) for number, name in enumerate(names[:6])]
        histogram = Histogram(names[0], [1, 0], [-math.inf, 0.0, math.inf], names[0])
        records = Records(scalars=tuple(scalars), tables=tuple(tables), alerts=tuple(alerts), histograms=(histogram,))
        self._logged(self._run(), [(0, records), (10**9, records)])

    def tables(self) -> None:
        """Tables without rows, with a column more, a column less, rows of nulls, a conversation."""
        few = _table("t")
        more = Table("t", "t", (*few.columns, Column("late", DType.FLOAT)), {**few.data, "late": [1.0, None]}, 2)
        none = Table("t", "t", few.columns, {column.name: [] for column in few.columns}, 0)
        nulls = Table("t", "t", few.columns, {column.name: [None] for column in few.columns}, 1)
        said = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": None, "tool_calls": [{"a": 1}]}]
        chat = Table("chat", "chat", (Column("said", DType.OBJECT),), {"said": [said, None]}, 2, as_trace=True)
        steps = enumerate((few, more, none, nulls, few, chat, more))
        self._logged(self._run(), [(step, Records(tables=(table,))) for step, table in steps])

    def closing(self) -> None:
        """The sink can be closed without a log event, and closed twice."""
        sink = self._make()
        sink.open(self._run())
        sink.close()
        sink.close()

    def broken(self) -> None:
        """Values of the wrong type: the sink may raise, but writes the other log events."""
        run = self._run()
        wrong = Table("wrong", "wrong", (Column("x", DType.FLOAT),), {"x": ["text", object()]}, 2)
        runner = self._opened(run)
        for step, records in ((0, event(0)), (1, Records(tables=(wrong,))), (2, event(2))):
            runner.submit(step, records)
        report = runner.close(WAIT_S)
        assert report.finished and report.failed <= 1, _failures(report)
        self._same(run, [(step, event(step)) for step in (0, 2)])

    def untouched(self) -> None:
        """The sink does not change records, because other sinks get the same objects."""
        records = event(1)
        before = repr(records)
        self._logged(self._run(), [(1, records)])
        assert repr(records) == before, "the sink changed the records that it was given"

    def process(self) -> None:
        """The sink keeps the working directory, streams and signals of the process, and does not import torch."""
        torch = "torch" in sys.modules
        self._logged(self._run(), [(1, event(1))])
        changed = [name for name, value in _process().items() if value != self._before[name]]
        assert not changed, f"the sink changed {', '.join(changed)}"
        assert torch or "torch" not in sys.modules, "the sink imported torch"

    def order(self) -> None:
        """Records keep their order, also with gaps between steps and two modes at one step."""
        events = [(step, _scalars(step, mode)) for step in (0, 1, 5, 9) for mode in ("train", "eval")]
        run = self._run()
        self._logged(run, events)
        self._same(run, events)

    def two_runs(self) -> None:
        """Two runs that write in turn stay apart."""
        runs = [self._run(), self._run()]
        runners = [self._opened(run) for run in runs]
        events = [[(step, _scalars(step + 100 * number)) for step in range(4)] for number in range(2)]
        for pair in zip(*events, strict=True):
            for runner, (step, records) in zip(runners, pair, strict=True):
                runner.submit(step, records)
        for runner in runners:
            _complete(runner.close(WAIT_S))
        for run, logged in zip(runs, events, strict=True):
            self._same(run, logged)

    def several(self) -> None:
        """``write_many`` leaves the same records as ``write`` for each event."""
        events = [(step, event(step)) for step in range(7)]
        many, single = self._run(), self._run()
        sink = self._make()
        sink.open(many)
        assert isinstance(sink, Coalescing)
        failed = dict(sink.write_many(events))
        sink.close()
        assert not failed, f"`write_many` failed: {failed}"
        one = self._make()
        one.open(single)
        for step, records in events:
            one.write(step, records)
        one.close()
        self._same(many, events)
        self._same(single, events)

    def resumed(self) -> None:
        """``rewind`` drops the later steps; a second call changes nothing."""
        run = self._run()
        self._logged(run, [(step, event(step)) for step in range(5)])
        runner = self._opened(run)
        assert runner.rewind(ResumePoint(2), WAIT_S) and runner.rewind(ResumePoint(2), WAIT_S)
        for step in range(3, 6):
            runner.submit(step, event(step + 100))
        _complete(runner.close(WAIT_S))
        self._same(run, [(step, event(step if step < 3 else step + 100)) for step in range(6)])

    def taken_back(self) -> None:
        """``rewind`` between two log events drops the steps that were just written, too."""
        run = self._run()
        runner = self._opened(run)
        for number, steps in enumerate((range(5), range(3, 7), range(2, 6))):
            if number:
                runner.go_back(ResumePoint(steps[0] - 1))
            for step in steps:
                runner.submit(step, event(step + 100 * number))
        _complete(runner.close(WAIT_S))
        self._same(run, [(step, event(step if step < 2 else step + 200)) for step in range(6)])

    def _run(self) -> RunInfo:
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        folder.mkdir()
        return RunInfo(
            name="contract", project="contract", run_id=f"contract-{self._runs}-{folder.parent.name}",
            output_dir=folder, fingerprint="f00d", declog={"metrics": {"reward": {"reduce": "mean"}}},
            config={"method": "grpo", "größe": 7, "none": None}, plan="a plan", version="0",
        )  # fmt: skip

    def _opened(self, run: RunInfo) -> SinkRunner:
        runner = SinkRunner("sink", self._make())
        runner.open(run, WAIT_S)
        return runner

    def _logged(self, run: RunInfo, events: Sequence[tuple[int, Records]]) -> None:
        runner = self._opened(run)
        for step, records in events:
            runner.submit(step, records)
        _complete(runner.close(WAIT_S))

    def _same(self, run: RunInfo, events: Sequence[tuple[int, Records]]) -> None:
        """Check that the sink has the scalars of a run, in order for each name."""
        if self._read is None:
            return
        logged = [(step, scalar.name, scalar.value) for step, records in events for scalar in records.scalars]
        expected, values = _by_name(logged), _by_name(self._read(run))
        shown = {name: values.get(name) for name in expected}
        assert shown == expected, f"read back:\n  {shown}\nlogged:\n  {expected}"


def failures(checks: Mapping[str, Callable[[], None]]) -> list[str]:
    """Run checks; returns a text for each failure."""
    texts = []
    for what, check in checks.items():
        try:
            check()
        except Exception as error:  # noqa: BLE001  (any error of a sink is reported)
            where = traceback.extract_tb(error.__traceback__)[-1]
            texts.append(f"{what}: {type(error).__name__}: {error} ({where.filename}:{where.lineno})")
    return texts


def _by_name(scalars: Iterable[tuple[int, str, float]]) -> dict[str, list[tuple[int, str]]]:
    """The steps and values of each name, in their order."""
    values: dict[str, list[tuple[int, str]]] = {}
    for step, name, value in scalars:
        values.setdefault(name, []).append((step, f"{float(value):.6g}"))
    return values


def event(step: int, mode: str = "train") -> Records:
    """A log event with one of everything."""
    return Records(
        mode=mode,
        time=1.7e9 + step,
        scalars=_scalars(step, mode).scalars,
        histograms=(Histogram("lengths", [0, 2, 3], [0.0, 1.0, 2.0, 4.0], "lengths"),),
        tables=(_table("samples"),),
        alerts=(Alert("kl_runaway", "warn", f"KL {step} — zu groß"),),
    )


def _scalars(step: int, mode: str = "train") -> Records:
    before = "" if mode == "train" else f"{mode}/"
    values = {"reward": 0.5 * step, "tokens": step, "done": step > 1}
    scalars = tuple(Scalar(before + name, value, name, partial=step > 1) for name, value in values.items())
    return Records(mode=mode, time=1.7e9 + step, scalars=scalars)


def _table(name: str, *, id: str = "", text: str = "größer 漢字\nzwei") -> Table:
    columns = (
        Column("prompt", DType.TEXT, role="user"), Column("completion", DType.TEXT, role="assistant"),
        Column("reward", DType.FLOAT), Column("n", DType.INT), Column("ok", DType.BOOL), Column("extra", DType.OBJECT),
    )  # fmt: skip
    data: dict[str, list[object]] = {
        "prompt": [text, None], "completion": [text * 200, ""], "reward": [math.nan, None], "n": [2**53 + 1, None],
        "ok": [True, None], "extra": [{"a": [1, math.inf], "tokens": [text]}, None],
    }  # fmt: skip
    return Table(name, id or name, columns, data, 2, places=Places([0, 0], [0, 7], [0, 1], ["best", "worst"]))


def _process() -> dict[str, object]:
    return {
        "the working directory": os.getcwd(),
        "sys.stdout": sys.stdout,
        "sys.stderr": sys.stderr,
        "what SIGINT does": signal.getsignal(signal.SIGINT),
        "what SIGTERM does": signal.getsignal(signal.SIGTERM),
    }


def _complete(report: CloseReport) -> None:
    assert report == CloseReport(), _failures(report)


def _failures(report: CloseReport) -> str:
    error = report.first_error
    reason = "" if error is None else f": {type(error).__name__}: {error}"
    finished = "" if report.finished else ", and the sink did not finish"
    return f"{report.failed} log events failed, {report.pending} are pending{finished}{reason}"
