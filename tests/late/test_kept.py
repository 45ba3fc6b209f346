"""`log.keep`: columns that nobody declared are there for later questions, and change nothing about the run."""

from __future__ import annotations

import contextvars
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.errors import ConfigError
from declog.late import ask
from declog.records import Records
from declog.runtime.ranks.comm import Comm
from declog.runtime.ranks.fake_comm import run_ranks
from declog.runtime.recording.recorder import Recorder
from declog.runtime.rows.kept import HOW_TO_KEEP
from declog.testing import MemorySink

SOURCES = ["math", "code", None]
METRICS = {
    "reward": {"expr": "reward", "reduce": ["mean", "std"]},
    "spread": "mean(std(reward, over=completion))",
    "first": "last(lr)",
}
ASKED = {
    "by_source": {"expr": "reward", "by": "source"}, "hard": {"expr": "reward", "where": "level > 1"},
    "level": "max(level)", "score": "p90(score)", "kind": {"expr": "score", "where": "source == 'math'"},
}  # fmt: skip
DECLARED = {"source": "completion text", "level": "completion int", "score": "completion"}


def config(metrics: dict[str, Any], **signals: Any) -> dict[str, Any]:
    """A config of one phase, whose log events are of three steps."""
    return {
        "run": {"name": "kept"},
        "signals": {"any": {"reward": "completion", "prompt_id": "completion int", "lr": "step", **signals}},
        "axes": {"group": "prompt_id"}, "metrics": metrics, "every": 3,
        "modes": {"train": {}, "eval": {"prefix": "eval/", "every": "end"}},
    }  # fmt: skip


def train(log: Recorder, rank: int, *, keeps: str) -> None:
    """Steps of several batches; what is kept comes before a batch, in the middle of it, behind it, or not at all."""
    for step in range(14):
        draw = random.Random(100 * rank + step)
        with log.mode("eval") if step % 5 == 4 else log.step(step):
            for _ in range(draw.randint(1, 3)):
                rows = 2 * draw.randint(1, 3)
                others = {
                    "source": [draw.choice(SOURCES) for _ in range(rows)],
                    "level": torch.tensor([draw.randint(0, 3) for _ in range(rows)]),
                    "score": [draw.random() for _ in range(rows)],
                }
                if keeps == "before":
                    log.keep(**others)
                log.observe(reward=torch.tensor([draw.random() for _ in range(rows)]), lr=0.1 / (step + 1))
                if keeps == "between":
                    log.keep(**others)
                more = others if keeps == "declared" else {}
                log.observe(prompt_id=[row // 2 for row in range(rows)], **more)
                if keeps == "behind":
                    log.keep(**others)


def numbers(events: list[tuple[int, Records]], names: Any = None) -> dict[tuple[Any, ...], str]:
    """What was logged, as text: by step, mode and name."""
    return {
        (step, records.mode, scalar.name): repr(float(scalar.value))
        for step, records in events
        for scalar in records.scalars
        if names is None or scalar.metric.split(".")[0] in names
    }


def run(folder: Path, data: dict[str, Any], ranks: int, keeps: str) -> list[tuple[int, Records]]:
    """The log events of a run of some ranks."""
    sink = MemorySink()

    def main(comm: Comm) -> dict[str, int]:
        sinks = [sink] if comm.rank == 0 else []
        with declog.start(data, sinks=sinks, output_dir=folder, comm=comm) as log:
            train(log, comm.rank, keeps=keeps)
        return dict(log.failures)

    assert run_ranks(ranks, main) == [{}] * ranks
    return list(sink.events)


@pytest.mark.parametrize(("ranks", "keeps"), [(1, "before"), (1, "behind"), (2, "between")])
def test_what_is_kept_is_asked_as_if_it_had_been_declared(ranks: int, keeps: str, tmp_path: Path) -> None:
    """Wherever in its batch it was given; and the run's own values, bit by bit, do not know of it."""
    alone = run(tmp_path / "alone", config(METRICS), ranks, "never")
    kept = run(tmp_path / "kept", config(METRICS), ranks, keeps)
    assert numbers(kept) == numbers(alone) and len(numbers(alone)) > 20
    early = run(tmp_path / "declared", config({**METRICS, **ASKED}, **DECLARED), ranks, "declared")
    late = ask(tmp_path / "kept", {name: json.dumps(line) for name, line in ASKED.items()})
    assert numbers(late.events) == numbers(early, ASKED) and not late.failures
    columns = json.loads((tmp_path / "kept/rows/rows.json").read_text())["runs"][-1]["columns"]["default"]
    assert columns["kept"] == {"source": "text", "level": "int", "score": "float"}
    assert columns["signals"]["source"] == "kept"


def test_a_text_that_only_tables_have_is_kept_where_the_loop_says_so(tmp_path: Path) -> None:
    """A signal that the config declares and that is not kept by itself: the error of a question says to keep it."""

    def logged(name: str, keep: bool) -> Path:
        overrides = ["axes.group.size=2", "run.strict=true", "tables.samples.every=1"]
        with declog.start("grpo", overrides, sinks=[MemorySink()], output_dir=tmp_path / name) as log:
            for step in range(2):
                with log.step(step):
                    texts = ["a" * (row + step) for row in range(4)]
                    log.observe(reward=[0.0, 1.0, 0.0, 1.0], completion=texts)
                    if keep:
                        declog.keep(completion=texts)
        return tmp_path / name

    with pytest.raises(ConfigError, match=r"fix: `log\.keep\(completion=\.\.\.\)` beside `log\.observe` keeps it"):
        ask(logged("without", keep=False), {"long": "mean(len(completion))"})
    lines = {"long": "mean(len(completion))", "good": "{expr: len(completion), where: reward > 0}"}
    late = ask(logged("with", keep=True), lines)
    assert numbers(late.events) == {
        (0, "train", "long"): "1.5", (0, "train", "good"): "2.0",
        (1, "train", "long"): "2.5", (1, "train", "good"): "3.0",
    }  # fmt: skip


def test_what_does_not_fit_is_left_out_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It never opens, closes or refuses a batch: too few values, no batch, no column, texts among numbers."""
    sink = MemorySink()
    with declog.start(config({"reward": "count"}), sinks=[sink], output_dir=tmp_path / "run") as log:
        for step in range(4):
            with log.step(step):
                log.observe(reward=[0.5, 1.0], prompt_id=[0, 0])
                log.keep(few=[1.0], shape=torch.zeros(2, 2), lists=[[1], [2]], one=3.0, mixed=["a", 1])
                log.keep(level=[1, 2] if step < 2 else [0.5, 1.5], label=["a", "b"] if step < 3 else [1, 2])
            with log.step(step * 10 + 100) if step == 3 else log.mode("eval"):
                log.keep(alone=[1.0])
        log.keep(nowhere=[1.0])
    assert [scalar.value for _, records in sink.events for scalar in records.scalars if scalar.name == "reward"] == [
        6,
        2,
    ]
    told = [
        record.message.partition(" is left out: ")[::2] for record in caplog.records if "left out" in record.message
    ]
    assert sorted(told) == [
        ("`alone`", f"it was to be kept, and no completions came with it{HOW_TO_KEEP}"),
        ("`few`", "it has 1 values to keep, and its batch 2 completions"),
        (
            "`label`",
            "it was kept as texts before, and numbers came: keep them under another name, log.keep(label_2=...)",
        ),
        ("`lists`", "the column `lists` is kept as numbers or as texts, and list values came"),
        ("`mixed`", "the column `mixed` is kept as numbers or as texts, and mixed values came"),
        ("`nowhere`", f"no step is open{HOW_TO_KEEP}"),
        ("`one`", "the column `one` needs one value per completion, and float came"),
        ("`shape`", "the column `shape` is kept as numbers or as texts, and a tensor of the shape [2, 2] came"),
    ]
    late = ask(
        tmp_path / "run", {"level_sum": "sum(level)", "of_a": "{expr: reward, where: \"label == 'a'\", reduce: count}"}
    )
    assert [scalar.value for _, records in late.events for scalar in records.scalars] == [8.0, 3, 2.0]


def test_nothing_is_kept_without_rows_or_completions(tmp_path: Path) -> None:
    """Where the config keeps no rows, or no phase has completions, `keep` does nothing."""
    data = config({"first": "last(lr)"}) | {"signals": {"any": {"lr": "step"}}, "axes": {}}
    for place, more in enumerate(({}, {"run": {"keep_bytes": 0}})):
        with declog.start({**data, **more}, sinks=[MemorySink()], output_dir=tmp_path / str(place)) as log, log.step(0):
            log.keep(source=["a"])
            log.observe(lr=0.1)
        assert not log.failures


def test_what_is_kept_does_not_go_around_redaction(tmp_path: Path) -> None:
    """A column of the name of a signal that a table redacts is not kept beside it, on any rank."""
    data = config(METRICS, note="completion text") | {
        "schemas": {"s": {"note": {"type": "text", "redact": {"email": r"\S+@\S+"}}}},
        "tables": {"samples": {"schema": "s"}},
    }

    def main(comm: Comm) -> None:
        with declog.start(data, sinks=[], output_dir=tmp_path / "run", comm=comm) as log:
            for step in range(3):
                with log.step(step):
                    log.observe(reward=[1.0, 2.0], prompt_id=[0, 0], lr=0.1, note=["me@here.org", "x"])
                    log.keep(note=["me@here.org", "x"], words=["a", "b"])

    run_ranks(2, main)
    files = b"".join(path.read_bytes() for path in (tmp_path / "run/rows").iterdir())
    assert b"words" in files and b"me@here" not in files


def test_a_checkpoint_has_what_waits_in_open_windows(tmp_path: Path) -> None:
    """Columns of steps whose log event comes after the checkpoint are of that log event in the resumed run."""
    data = config(METRICS) | {"sinks": ["jsonl"]}
    with declog.start(data, output_dir=tmp_path / "run") as log:
        with log.step(0):
            log.observe(reward=[1.0, 2.0], prompt_id=[0, 0], lr=0.1)
            log.keep(source=["a", "b"])
        state = log.state_dict()
    with declog.start(data, output_dir=tmp_path / "run", resume=state) as log:
        for step in (1, 2):
            with log.step(step):
                log.observe(reward=[3.0, 4.0], prompt_id=[0, 0], lr=0.1)
                log.keep(source=["a", "b"])
    late = ask(tmp_path / "run", {"by_source": "{expr: reward, by: source, reduce: sum}"})
    assert numbers(late.events) == {(2, "train", "by_source/a"): "7.0", (2, "train", "by_source/b"): "10.0"}


TEXTS, NUMBERS, NEITHER = ["x", None], [1, 2], [None, None]
TOLD = "it was kept as {before} before, and {now} came: keep them under another name, log.keep(s_2=...)"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why columns are left out."""
    return [item.message.partition(" is left out: ")[2] for item in caplog.records if "left out: " in item.message]


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("together", ["one batch", "one step", "several steps"])
@pytest.mark.parametrize(("first", "second"), [(TEXTS, NUMBERS), (NUMBERS, TEXTS)], ids=["texts", "numbers"])
def test_texts_and_numbers_under_one_name(
    first: list[Any], second: list[Any], together: str, every: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What came first stays, wherever the other type comes, which is told with what to do; None is of either type."""
    parts: dict[str, list[list[tuple[list[Any], ...]]]] = {
        "one batch": [[(NEITHER, first, second)], [(first,)]],
        "one step": [[(NEITHER,), (first,), (second,)], [(first,)]],
        "several steps": [[(NEITHER,)], [(first,)], [(second,)], [(NEITHER,)], [(first,)]],
    }
    with declog.start(config({"n": "count(reward)"}) | {"every": every}, sinks=[], output_dir=tmp_path) as log:
        for number, batches in enumerate(parts[together]):
            with log.step(number):
                for columns in batches:
                    for column in columns:
                        log.keep(s=column)
                    log.observe(reward=[1.0, 1.0], prompt_id=[0, 0])
    words = ["texts", "numbers"] if first is TEXTS else ["numbers", "texts"]
    assert told(caplog) == [TOLD.format(before=words[0], now=words[1])]
    late = ask(tmp_path, {"kept": "{expr: reward, by: s, reduce: count}"})
    counts: dict[str, float] = {}
    for _, records in late.events:
        for item in records.scalars:
            counts[item.name] = counts.get(item.name, 0) + item.value
    assert counts == {f"kept/{value}": 2 for value in first if value is not None}


@pytest.mark.parametrize("how", ["ranks", "resumed"])
def test_texts_and_numbers_of_several_processes(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name has one type in the whole run, of all ranks, and where it is resumed."""
    data = config({"n": "count(reward)"}) | {"every": 1}
    states: list[Any] = [None, None]

    def process(comm: Comm, column: list[Any], start: int) -> Any:
        state = states[comm.rank]
        with declog.start(data, sinks=[], output_dir=tmp_path, comm=comm, resume=state) as log:
            for step in range(start, start + 2):
                with log.step(step):
                    log.observe(reward=[1.0, 1.0], prompt_id=[comm.rank, comm.rank])
                    log.keep(s=column)
            return log.state_dict()

    if how == "ranks":
        run_ranks(2, lambda comm: process(comm, TEXTS if comm.rank else NUMBERS, 0))
    else:
        states = run_ranks(1, lambda comm: process(comm, TEXTS, 0))
        run_ranks(1, lambda comm: process(comm, NUMBERS, 2))
    (why,) = told(caplog)
    assert why.startswith("it is kept as ") and why.endswith("came: keep one type under a name")
    late = ask(tmp_path, {"kept": "{expr: reward, by: s, reduce: count}"})
    assert {item.name for _, records in late.events for item in records.scalars} == (
        {"kept/1", "kept/2"} if how == "ranks" else {"kept/x"}
    )


def test_where_no_step_is_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Before the first step, between two and behind the last, and in a task of a step that has ended."""
    with declog.start(config({"n": "count(reward)"}), sinks=[], output_dir=tmp_path / "run") as log:
        log.keep(before=[1])
        with log.step(0):
            log.observe(reward=[1.0], prompt_id=[0])
            task = contextvars.copy_context()
        log.keep(between=[1])
        task.run(partial(log.keep, ended=[1]))
        with log.step(1):
            log.observe(reward=[1.0], prompt_id=[0])
        declog.keep(behind=[1])
        failures = dict(log.failures)
    assert told(caplog) == [f"no step is open{HOW_TO_KEEP}"] * 4
    assert failures == {}
    columns = json.loads((tmp_path / "run/rows/rows.json").read_text())["runs"][-1]["columns"]["default"]
    assert columns["kept"] == {}


def test_a_loop_that_commits_its_steps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is kept belongs to the step that is committed next; behind the last one it is told."""
    with declog.start(config({"n": "count(reward)"}), sinks=[], output_dir=tmp_path, steps="commit") as log:
        for step in range(2):
            log.keep(early=["a", "b"])
            log.observe(reward=[1.0, 2.0], prompt_id=[0, 0])
            log.keep(late=["c", "d"])
            log.commit(step)
        log.keep(behind=[1])
    late = ask(tmp_path, {"early": "{expr: reward, by: early}", "late": "{expr: reward, by: late}"})
    values = {item.name: item.value for _, records in late.events for item in records.scalars}
    assert values == {"early/a": 1.0, "early/b": 2.0, "late/c": 1.0, "late/d": 2.0}
    assert told(caplog) == [f"it was to be kept, and no completions came with it{HOW_TO_KEEP}"]
