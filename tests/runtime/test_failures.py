"""What fails after step 0 stays alone: reported and counted, the run goes on, and `strict` raises it at the end."""

from __future__ import annotations

import itertools
import logging
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.engine.joins import Carryover
from declog.engine.window_state import WindowState
from declog.errors import CommError, ConfigError, RuntimeFailure, SinkError
from declog.language import functions, reductions
from declog.records import Records
from declog.runtime.recording.recorder import Recorder
from declog.runtime.run.failures import Failures
from declog.testing import MemorySink
from tests.running import profile, run

REDUCTIONS = reductions.Reductions(reductions.BUILTIN)
FUNCTIONS = functions.Functions(functions.BUILTIN)
SIGNALS = {"x": {"axis": "completion"}, "kl": {"axis": "token", "mask": "all"}}
HALF_BROKEN: dict[str, Any] = {
    "alerts": {"high": {"when": "x > 1"}},
    "schemas": {"s": {"x": {"type": "float"}}},
    "tables": {"t": {"schema": "s"}},
    "axes": {"token": {"mask": "all"}},
}


@reductions.reducer(registry=REDUCTIONS)
def broken(values: Any) -> float:
    """A user's reduction with a bug."""
    raise ZeroDivisionError("mine")


@functions.function(registry=FUNCTIONS)
def crash(x: torch.Tensor) -> torch.Tensor:
    """A user's function that works on what it is tried with, and not on what comes."""
    if x.numel() == 6:
        raise IndexError("mine")
    return x


class Failing(MemorySink):
    """A backend that refuses the second log event."""

    def write(self, step: int, records: Records) -> None:
        if step == 1:
            raise ConnectionRefusedError("the backend is away")
        super().write(step, records)


def body(log: Recorder) -> None:
    """Three steps of three rows and six tokens."""
    for step in range(3):
        with log.step(step):
            log.observe(x=[1.0, 2.0, 3.0], kl=torch.ones(3, 2))


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.ERROR) -> list[str]:
    """The first and the last line of each message."""
    found = [record.getMessage().splitlines() for record in caplog.records if record.levelno >= level]
    return [line for lines in found for line in ([lines[0]] if len(lines) == 1 else [lines[0], lines[-1]])]


@pytest.mark.parametrize(
    ("bad", "reported"),
    [
        ("broken(x)", "[DL605] the metric `bad` could not be evaluated: ZeroDivisionError: mine"),
        ("mean(crash(kl))", "[DL605] `crash(kl)` of phase `default` could not be computed per token: IndexError: mine"),
    ],
    ids=["reduction", "per-token function"],
)
def test_a_users_function_that_fails_costs_its_own_values(
    bad: str, reported: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is shown once, with its traceback; all others, tables and alerts are there."""
    config = profile(SIGNALS, {"x": "mean(x)", "bad": bad}, run={"strict": False}, **HALF_BROKEN)
    with caplog.at_level(logging.WARNING, logger="declog"):
        sink = run(config, body, tmp_path, reductions=REDUCTIONS, functions=FUNCTIONS)
    assert sink.scalars == {step: {"x": 2.0} for step in range(3)}
    assert (len(sink.tables("t")), [step for step, _ in sink.alerts]) == (3, [0])
    assert messages(caplog) == [
        f"a log event lacks values: {reported}",
        reported.rsplit(": ", 2)[1] + ": mine",
    ]
    assert caplog.records[-1].getMessage() == f"declog finished with 1 failure(s): {reported} (x3)"


@pytest.mark.parametrize(("size", "rows"), [(4, 6), (8, 12), (4, 5), (4, 2)])
def test_one_cause_is_logged_once(size: int, rows: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In whatever steps and metrics; those are counted. Its fix guesses no size from one batch."""
    axes = {"group": {"size": size}}
    metrics = {"a": "mean(std(x, over=completion))", "b": "mean(max(x, over=completion))"}
    config = profile({"x": {"axis": "completion"}}, metrics, axes=axes, run={"strict": False})
    with (
        caplog.at_level(logging.WARNING, logger="declog"),
        declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log,
    ):
        for step in range(12):
            with log.step(step):
                log.observe(x=[float(step)] * rows)
    assert len(caplog.records) == 2
    assert re.search(r"axes\.group\.size=\d", caplog.records[0].getMessage()) is None
    assert list(log.failures.values()) == [12, 12]
    sums = caplog.records[1].getMessage()
    assert sums.startswith("declog finished with 2 failure(s): [DL507] the metric `a`: ")
    assert (sums.count("(x12)"), sums.count("fix")) == (2, 0)


def test_a_call_is_one_failure_however_many_rows_it_loses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`failures` counts rows, and the summary at the end says how many calls and rows each kind has."""
    config = profile(SIGNALS, {"x": "mean(x)"}, run={"strict": False})
    with declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log:
        for _ in range(3):
            log.observe(x=[1.0] * 8)
    lost = "[DL513] observed outside any step"
    assert log.failures == {lost: 24}
    assert f"declog finished with 1 failure(s): {lost} (x3, 24 rows)" in caplog.messages


def test_numbers_of_ranks_and_names_tell_failures_apart() -> None:
    """All other numbers of a message may vary from step to step."""
    failures = Failures()
    for step in range(3):
        failures.report(ValueError(f"no value at step {step} of [1, {step}], only {step / 7}"))
        failures.report(RuntimeFailure("DL605", f"the metric `reward_{step}` failed", f"number {step}"))
        failures.report(CommError("DL603", f"rank {step} is away"))
    assert list(failures.counts.values()) == [3, 1, 1, 1, 1, 1, 1]


def test_strict_raises_the_first_failure_at_the_end(tmp_path: Path) -> None:
    """Everything else was logged before."""
    sink = MemorySink()
    config = profile(SIGNALS, {"x": "mean(x)", "bad": "broken(x)"})
    with (
        pytest.raises(declog.DeclogError) as error,
        declog.start(config, sinks=[sink], output_dir=tmp_path, reductions=REDUCTIONS) as log,
    ):
        body(log)
    assert str(error.value) == "[DL605] the metric `bad` could not be evaluated: ZeroDivisionError: mine"
    assert sink.scalars == {step: {"x": 2.0} for step in range(3)}


def test_strict_never_hides_the_runs_own_error(tmp_path: Path) -> None:
    """The exception of the training code wins."""
    config = profile(SIGNALS, {"bad": "broken(x)"})
    with (
        pytest.raises(KeyError, match="own"),
        declog.start(config, sinks=[MemorySink()], output_dir=tmp_path, reductions=REDUCTIONS) as log,
    ):
        body(log)
        raise KeyError("own")


def test_a_sink_that_fails_stays_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Other sinks get everything; the one that failed gets what comes after, and the failure is reported at the end."""
    bad, good = Failing(), MemorySink()
    config = profile(SIGNALS, {"x": "mean(x)"}, run={"strict": False})
    with caplog.at_level(logging.WARNING, logger="declog"), declog.start(
        config, sinks=[bad, good], output_dir=tmp_path
    ) as log:  # fmt: skip
        body(log)
    assert (sorted(bad.scalars), sorted(good.scalars)) == ([0, 2], [0, 1, 2])
    assert [record.getMessage() for record in caplog.records] == [
        "sink `<code>0` could not write step 1; further failures are counted",
        "sink `<code>0` closed; log events: 1 failed (first: ConnectionRefusedError: the backend is away)",
    ]


def test_strict_raises_what_a_sink_raised(tmp_path: Path) -> None:
    """For tests: a backend's failure is not overlooked."""
    with pytest.raises(SinkError, match="the backend is away") as raised:
        run_with(Failing(), tmp_path)
    assert raised.value.code == "DL602" and isinstance(raised.value.__cause__, ConnectionRefusedError)


def run_with(sink: MemorySink, folder: Path) -> None:
    """A strict run with one sink."""
    with declog.start(profile(SIGNALS, {"x": "mean(x)"}), sinks=[sink], output_dir=folder) as log:
        body(log)


def test_a_failure_after_the_last_log_event_is_one_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `on_error: raise`, also where training is over before the sink has failed: counted, once."""
    (tmp_path / "pyproject.toml").write_text('[tool.declog]\nimports = ["tests.faults.sinks"]\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    sinks = {"bad": {"kind": "tests.faults.sinks:Raising", "on_error": "raise"}}
    config = {**profile(SIGNALS, {"m": "mean(x)"}), "sinks": ["bad"], "sink_options": sinks, "run": {"strict": False}}
    log = declog.start(config, output_dir=tmp_path / "run")
    with log.step(0):
        log.observe(x=[1.0, 2.0])
    log.close()
    failed = "[DL602] sink `bad` failed: ConnectionRefusedError: the backend is away"
    assert log.failures == {failed: 1, "[DL602] sink `bad`: log events could not be written": 1}


def test_missing_values_are_reported_once_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """NaN among values is worth a word; an optional signal that comes in some batches only is not."""
    signals = {
        "x": {"axis": "completion"},
        "never": {"axis": "completion"},
        "lr": {"axis": "step"},
    }
    config = profile(signals, {"x": "mean(x)", "never": "mean(never)", "lr": {"reduce": "last"}})

    def observe(log: Recorder) -> None:
        for step in range(2):
            with log.step(step):
                log.observe(x=[1.0, None, float("nan")])
                log.observe(x=[3.0], lr=0.5)

    with caplog.at_level(logging.WARNING, logger="declog"):
        sink = run(config, observe, tmp_path)
    assert sink.scalars == {0: {"x": 2.0, "lr": 0.5}, 1: {"x": 2.0, "lr": 0.5}}
    assert [record.getMessage() for record in caplog.records if "inactive" not in record.getMessage()] == [
        "missing values are left out of `x` (2 at first); "
        "`nan: propagate` shows them, and `x if isfinite(x) else 0` counts them as 0"
    ]


def test_metrics_that_leave_out_values_are_one_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Class: several metrics of one signal, or of signals that come together, begin to lack values in one log event."""
    signals = {"x": {"axis": "completion"}, "y": {"axis": "completion"}}
    metrics = {"a": "mean(x)", "b": "max(x)", "c": "p95(x)", "d": "mean(y)"}

    def observe(log: Recorder) -> None:
        for step in range(2):
            with log.step(step):
                log.observe(x=[1.0, None, float("nan")], y=[1.0, float("nan") if step else 2.0, 3.0])

    with caplog.at_level(logging.WARNING, logger="declog"):
        run(profile(signals, metrics), observe, tmp_path)
    assert [record.getMessage().partition("; ")[0] for record in caplog.records] == [
        "missing values are left out of `a` (2 at first), `b` (2 at first) and `c` (2 at first)",
        "missing values are left out of `d` (1 at first)",
    ]


@pytest.mark.parametrize("over", ["window", "run"])
@pytest.mark.parametrize(("most", "told"), [(None, 1), (3, 0)])
def test_labels_that_are_pooled_are_told_once(
    over: str, most: int | None, told: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Class: a metric with more labels than it shows, of which its config says nothing."""
    signals = {"x": {"axis": "completion"}, "task": {"axis": "completion", "type": "text"}}
    metric = {"expr": "x", "reduce": ["mean", "max"], "by": "task", "over": over}
    config = profile(signals, {"by": metric if most is None else {**metric, "max_labels": most}})

    def observe(log: Recorder) -> None:
        for step in range(2):
            with log.step(step):
                log.observe(x=list(range(70)), task=[f"t{row}" for row in range(70)])

    with caplog.at_level(logging.WARNING, logger="declog"):
        run(config, observe, tmp_path)
    message = "the metric `by` has more than 64 labels: the others are `_other`; `max_labels: 1000` shows up to 1000"
    assert [record.getMessage() for record in caplog.records] == [message] * told


@pytest.mark.parametrize("nan", ["skip", "raise"])
def test_messages_name_the_metric_that_has_a_preferred_value(
    nan: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Class: the hidden metric of `prefer` has an id of its own, which no message shows; the note comes once."""
    signals = {"x": {"axis": "completion"}, "given": {"axis": "completion"}}
    config = profile(signals, {"x": {"expr": "x", "reduce": ["mean", "max"], "prefer": "given", "nan": nan}})

    def observe(log: Recorder) -> None:
        for step in range(2):
            with log.step(step):
                log.observe(x=[1.0, None], given=[1.0, None])

    raised = pytest.raises(RuntimeFailure, match=r"the metric `x\.max`") if nan == "raise" else nullcontext()
    with caplog.at_level(logging.WARNING, logger="declog"), raised:
        run(config, observe, tmp_path)
    messages = [text for text in caplog.messages if "missing values" in text]
    assert messages and not any("__" in text for text in messages)
    assert sum("left out of" in text for text in messages) == (nan == "skip")


def test_a_problem_of_a_preferred_value_is_at_its_key() -> None:
    """Class: a value that fits the metric's expression and not the hidden metric of `prefer`; texts have no mean."""
    signals = {"x": {"axis": "completion"}, "given": {"axis": "completion", "type": "text"}}
    with pytest.raises(ConfigError) as raised:
        declog.plan(profile(signals, {"x": {"expr": "x", "reduce": "mean", "prefer": "given"}}))
    assert [problem.path for problem in raised.value.problems] == [("metrics", "x", "prefer")]


@pytest.mark.parametrize(("owner", "name"), [(WindowState, "add"), (WindowState, "end"), (Carryover, "apply")])
def test_a_log_event_that_fails_leaves_no_rows_to_the_next(
    owner: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails while a window ends, before or behind its rows: the next one has rows of its own only."""
    works, calls = getattr(owner, name), itertools.count()

    def fails(self: Any, *args: Any, **options: Any) -> Any:
        struck = next(calls) == 1
        if struck and name == "add":
            works(self, *args, **options)
        if struck:
            raise MemoryError("mine")
        return works(self, *args, **options)

    monkeypatch.setattr(owner, name, fails)
    sink = MemorySink()
    config = profile({"x": {"axis": "completion"}}, {"n": "count(x)"}, run={"strict": False})
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log:
        for step in range(3):
            with log.step(step):
                log.observe(x=[float(step)])
        log.written()
        assert sum(log.failures.values()) == 1
    assert sink.scalars == {0: {"n": 1}, 2: {"n": 1}}


def test_the_fix_of_an_integrations_failure_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    """The fix of the error itself comes first, then what is left out; other errors have the latter only."""
    failures = Failures()
    failures.guarded("`train`", SinkError("DL609", "the folder is in use", "close that run first"), "")
    failures.guarded("`log`", KeyError("x"), "the numbers are left out")
    assert "fix: close that run first\n       the values of this log event lack it; training goes on" in caplog.text
    assert "fix: the numbers are left out; training goes on" in caplog.text


def test_a_cause_is_logged_and_written_once(caplog: pytest.LogCaptureFixture) -> None:
    """Class: the cause fails a whole log event, and then metrics of it one by one; the next event is another number."""
    failures = Failures()
    for step in (0, 1):
        cause = f"rows of step {step} cannot be grouped"
        failures.report(RuntimeFailure("DL507", cause, "set the size"))
        for metric in ("a", "b"):
            failure = RuntimeFailure("DL507", f"the metric `{metric}`: {cause}", "set the size")
            failure.cause = cause
            failures.report(failure)
    assert len(caplog.records) == 1
    assert failures.summary() == (
        "3 failure(s): [DL507] rows of step 0 cannot be grouped (x2); [DL507] the metric `a`: the same (x2); "
        "[DL507] the metric `b`: the same (x2)"
    )
