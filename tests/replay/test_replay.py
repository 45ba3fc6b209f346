"""What a capture gives is what the run logged, record for record."""

from __future__ import annotations

import contextlib
import json
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.errors import InputError, MissingSignalError
from declog.language.functions import BUILTIN, Functions
from declog.language.reductions import BUILTIN as REDUCTIONS
from declog.language.reductions import Reductions
from declog.replay import capture_reader
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.replay.keeping import captured, timeless

WHOLE: dict[str, Any] = {
    "run": {"name": "whole"}, "every": 2,
    "modes": {"train": {}, "eval": {"prefix": "eval_", "every": "end"}},
    "axes": {"group": {"size": 2}, "completion": {"ids": "row"}, "token": {"mask": "mask"}},
    "signals": {
        "rollout": {
            "row": {"axis": "completion", "type": "int"}, "rewards": {"axis": "completion", "family": True},
            "prompt": {"axis": "completion", "type": "text"},
            "chat": {"axis": "completion", "type": "object"},
            "unused": {"axis": "completion"},
        },
        "update": {
            "row": {"axis": "completion", "type": "int"}, "mask": {"axis": "token", "type": "bool"},
            "logprobs": {"axis": "token"}, "advantages": {"axis": "completion"}, "loss": {"axis": "step"},
        },
    },
    "derived": {"reward": "sum(rewards, over=member)"},
    "metrics": {
        "reward": {"expr": "reward", "reduce": ["mean", "p95"]},
        "rewards": {"expr": "rewards", "name": "rewards/{member}"},
        "spread": "mean(std(reward, over=completion))",
        "logprobs": {"expr": "logprobs", "reduce": ["mean", "p95", {"hist": "histogram"}]},
        "joined": "mean(reward * advantages)",
        "change": "mean(loss - prev(loss, 0))",
        "seen": {"expr": "reward", "reduce": "sum", "over": "run"},
        "slow": {"expr": "loss", "every": 4},
        "by_prompt": {"expr": "reward", "by": "prompt"},
        "late": "mean(reward * elapsed)",
        "micro": {"expr": "logprobs", "over": "batch", "combine": "var"},
    },
    "filters": {"best": {"key": "reward", "top": 1, "bottom": 1, "within": "group"},
                "some": {"random": 2}},
    "schemas": {"s": {"step": {"type": "int", "expr": "step"}, "prompt": "text", "reward": "float",
                      "rank": {"type": "int", "expr": "rank"}, "chat": {"type": "object"},
                      "at": {"type": "float", "expr": "elapsed"}, "extra": {"undeclared": "keep"}}},
    "tables": {"best": {"schema": "s", "filter": "best"}, "some": {"schema": "s", "filter": "some", "every": 4}},
    "alerts": {"high": {"when": "loss > 2", "text": "{loss:.3f}"}},
}  # fmt: skip
WHOLE["metrics"]["loss"] = "mean(loss)"


def rollout(log: Recorder, generator: torch.Generator, rows: int = 4, **others: Any) -> None:
    """One generation and two micro-batches, of all the types that may be given."""
    ids = torch.randperm(rows, generator=generator)
    log.observe(
        row=ids,
        rewards={
            "right": torch.randn(rows, generator=generator, dtype=torch.float64),
            "short": [0.5, 1, 2, None][:rows],
        },
        prompt=[f"prompt {place % 2}" for place in range(rows)],
        **others,
    )
    for part in ids.flip(0).split(2):
        log.observe(
            row=part.numpy().astype(np.int32),
            mask=torch.rand(2, 3, generator=generator) > 0.3,
            logprobs=torch.randn(2, 3, generator=generator).bfloat16().requires_grad_(),
            advantages=np.linspace(-1, 1, 2, dtype=np.float32),
            loss=torch.randn((), generator=generator) + 2,
        )  # fmt: skip


def train(log: Recorder, rank: int, steps: int = 7) -> None:
    """Steps, an evaluation between them, values by name and columns of samples."""
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        with log.step(step):
            chat = [[{"role": "user", "content": f"{rank} {place}", "n": [1, 2.5, None]}] for place in range(4)]
            rollout(log, generator, chat=chat)
            log.log_extra("answer", np.arange(4) + rank)
            log.log_extra("note", ["a", None, "ü", "\ud800"])
            log.log_metric("speed", 10.0 * step + rank)
        if step == 3:
            with log.mode("eval"):
                for _ in range(3):
                    rollout(log, generator)
                log.log_metric("speed", 1)


def same(config: Any, folder: Path, live: list[Any], **options: Any) -> bool:
    """Whether the capture gives what was logged, and that is something."""
    found = capture_reader.replay(folder, config, **options)["<code>"]
    assert len(live) > 1 and any(records.scalars for _, records in live)
    assert timeless(found) == timeless(live)
    return True


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_capture_gives_what_the_run_logged(tmp_path: Path, world_size: int) -> None:
    """Joins, previous values, families, windows, tables, alerts, an evaluation, on any number of ranks."""
    live = captured(WHOLE, train, tmp_path, world_size=world_size)
    assert live.alerts and live.tables("best") and any(records.mode == "eval" for _, records in live.events)
    assert same(None, tmp_path, live.events)
    assert same(WHOLE, tmp_path, live.events)


def test_a_captured_run_logs_what_another_one_does(tmp_path: Path) -> None:
    """Being captured changes nothing, but times."""
    config = {**WHOLE, "metrics": {key: item for key, item in WHOLE["metrics"].items() if key != "late"}, "tables": {}}
    with_capture = captured(config, train, tmp_path / "one")
    without = captured(config, train, tmp_path / "other", capture=False)
    assert timeless(with_capture.events) == timeless(without.events)
    assert not list((tmp_path / "other").rglob("*.declog"))


def test_rows_that_gave_way_to_those_of_a_trainer(tmp_path: Path) -> None:
    """Rows of the training code that an integration's own call dropped are dropped where the capture is played."""
    config: dict[str, Any] = {
        "axes": {"token": {"mask": "mask"}},
        "signals": {"any": {"mask": "token bool", "logprobs": "token", "x": "completion", "tokens": "token"}},
        "metrics": {"logprobs": "mean(logprobs)", "x": "mean(x)", "tokens": "mean(tokens)"},
    }

    def body(log: Recorder, rank: int) -> None:
        log.attached(lambda: "training code", ["logprobs", "mask"])
        mask = torch.ones(2, 3, dtype=torch.bool)
        given: list[dict[str, Any]] = [{"x": [1.0]}, {"x": [1.0, 3.0]}, {"tokens": torch.ones(2, 4)}]
        for step, mine in enumerate(given):
            with log.step(step), log.batch("default", rows=2) if step == 2 else contextlib.nullcontext():
                log.observe(**mine)
                with log.guard("the trainer's signals"):
                    log.observe_reserved({"mask": mask, "logprobs": torch.full((2, 3), -1.0 - step)})

    live = captured(config, body, tmp_path).events
    values = [
        {item.name: item.value for item in records.scalars if item.metric in config["metrics"]} for _, records in live
    ]
    assert values[:3] == [{"logprobs": -1.0}, {"logprobs": -2.0, "x": 2.0}, {"logprobs": -3.0}]
    assert same(None, tmp_path, live)


def test_what_the_run_did_not_need_is_captured_too(tmp_path: Path) -> None:
    """A profile that asks for signals that nothing used logs what it would have logged from the start."""
    small = {**WHOLE, "metrics": {"loss": "mean(loss)"}, "tables": {}, "alerts": {}}
    captured(small, train, tmp_path / "small", world_size=2)
    whole = captured(WHOLE, train, tmp_path / "whole", world_size=2)
    found = capture_reader.replay(tmp_path / "small", WHOLE)["<code>"]
    without_time = [name for name in WHOLE["metrics"] if name != "late"]
    values = [
        {item.name: item.value for item in records.scalars if item.metric in without_time} for _, records in found
    ]
    assert values == [
        {item.name: item.value for item in records.scalars if item.metric in without_time}
        for _, records in whole.events
    ]


def test_each_sink_gets_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles, prefixes, turns and tables of configured sinks; none of them is opened."""
    sinks = {
        "slim": {"kind": "tests.replay.keeping:KeptSink", "profile": "slim", "prefix": "x/", "every": 2},
        "files": {"kind": "jsonl"},
    }
    profiles = {"slim": {"only": ["reward", "table:best"]}}
    config = {**WHOLE, "sinks": [*sinks], "sink_options": sinks, "profiles": profiles}
    (tmp_path / "pyproject.toml").write_text('[tool.declog]\nimports = ["tests.replay.keeping"]\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    captured(config, train, tmp_path)
    found = capture_reader.replay(tmp_path)
    assert list(found) == ["slim", "files", "<code>"]
    assert timeless(found["slim"]) == timeless(pickle.loads((tmp_path / "kept.pickle").read_bytes()))
    names = {f"x/{mode}reward/{reduced}" for mode in ("", "eval_") for reduced in ("mean", "p95")}
    assert {item.name for _, records in found["slim"] for item in records.scalars} == names
    assert "eval_reward/p95" in {item.name for _, records in found["files"] for item in records.scalars}
    assert not list(tmp_path.glob("capture/**/*.jsonl"))


def test_each_rank_writes_its_own_rows(tmp_path: Path) -> None:
    """A table without a filter, of a file sink: what each rank's files get."""
    sinks = {"files": {"kind": "jsonl"}, "console": {"kind": "console"}}
    config = {**WHOLE, "sinks": [*sinks], "sink_options": sinks, "tables": {"all": {"schema": "s"}}}
    captured(config, train, tmp_path, world_size=2)
    found = capture_reader.replay(tmp_path)
    assert list(found) == ["files", "console", "files of rank 1", "<code>"]
    for rank, sink in enumerate(("files", "files of rank 1")):
        tables = [table for _, records in found[sink] for table in records.tables if records.mode == "train"]
        file = tmp_path / "files" / ("rank1" if rank else "") / "tables" / "all.jsonl"
        mine = [row for line in file.read_text().splitlines() if (row := json.loads(line))["mode"] == "train"]
        assert sum(table.rows for table in tables) == len(mine) == 4 * 7 and {row["rank"] for row in mine} == {rank}
        assert [value for table in tables for value in table.data["reward"]] == [row["reward"] for row in mine]


def test_actors_capture_what_the_driver_logs(tmp_path: Path) -> None:
    """Each actor says where; a driver observes nothing, and has no file."""
    given: dict[str, Any] = {"world_size": 2, "capture": {"folder": str(tmp_path / "mine")}}
    sink = MemorySink()
    config = {**WHOLE, "tables": {}}
    with declog.start(config, role="driver", sinks=[sink], output_dir=tmp_path, **given) as driver:
        actors = [declog.start(config, role="actor", rank=rank, **given) for rank in range(2)]
        for rank, actor in enumerate(actors):
            with actor:
                train(actor, rank)
        driver.merge([actor.export() for actor in actors])
    assert sorted(file.name for file in (tmp_path / "mine").iterdir()) == ["rank-00000.declog", "rank-00001.declog"]
    assert same(None, tmp_path / "mine", sink.events)


def test_flushes_batches_threads_and_failed_steps(tmp_path: Path) -> None:
    """Whatever a trainer does around its steps, and whatever it gets wrong and goes on with, is replayed."""

    def body(log: Recorder, rank: int) -> None:
        for step in range(4):
            with contextlib.suppress(ZeroDivisionError, InputError), log.step(10 * step):
                log.log_metric("inside", step)
                with log.batch("default"):
                    log.observe(score=[1.0, 2.0 + step])
                with pytest.raises(InputError):
                    log.observe(score=[[1.0]])
                log.observe(score=torch.tensor([5.0, float("nan")]))
                if step == 2:
                    log.observe(score=[1 / 0])
                if step == 3:
                    log.observe(score="no number")
            thread = threading.Thread(target=log.log_metric, args=("outside", 7))
            thread.start()
            thread.join()
            if step % 2:
                log.flush()

    config = {"run": {"name": "t"}, "every": "trainer", "signals": {"any": {"score": {"axis": "completion"}}},
              "metrics": {"score": "mean(score)", "n": "count(score)"}}  # fmt: skip
    live = captured(config, body, tmp_path)
    assert live.events[0][1].scalars and same(None, tmp_path, live.events)


def test_a_run_that_fails_is_captured_to_its_end(tmp_path: Path) -> None:
    """The tail window of a run that raises is replayed as it was logged."""

    sink = MemorySink()

    def run() -> None:
        with declog.start(WHOLE, sinks=[sink], output_dir=tmp_path, capture=True) as log:
            train(log, 0, steps=3)
            with log.step(3):
                rollout(log, torch.Generator().manual_seed(9))
                raise KeyError("mine")

    with pytest.raises(KeyError):
        run()
    assert same(None, tmp_path, sink.events)


def test_what_the_run_cost_is_not_reported_again(tmp_path: Path) -> None:
    """Times and queues are the run's own."""
    config = {"signals": {"any": {"score": {"axis": "completion"}}}, "metrics": {"score": "mean(score)"},
              "profiles": {"full": {"self_metrics": True}}}  # fmt: skip
    live = captured(config, lambda log, rank: _scores(log), tmp_path)
    assert "declog/observe_us" in live.scalars[1]
    ((_, records), *_) = capture_reader.replay(tmp_path)["<code>"]
    assert {item.name for item in records.scalars} == {"score"}


def test_user_functions_run_again(tmp_path: Path) -> None:
    """Functions and reductions that are given to `start` are given to `replay`, over tokens and rows."""
    functions, reductions = Functions(BUILTIN), Reductions(REDUCTIONS)

    @declog.function(registry=functions)
    def bump(x: torch.Tensor) -> torch.Tensor:
        return x * x + 1

    @declog.reducer(registry=reductions)
    def spread(x: Any) -> float:
        return float(np.max(x) - np.min(x))

    metrics = {"rows": "spread(bump(advantages))", "tokens": "mean(bump(logprobs))"}
    own: dict[str, Any] = {"functions": functions, "reductions": reductions}
    config = {**WHOLE, "metrics": {**WHOLE["metrics"], **metrics}}
    live = captured(config, train, tmp_path, **own)
    assert {"rows", "tokens"} <= live.scalars[1].keys() and same(None, tmp_path, live.events, **own)


def _scores(log: Recorder) -> None:
    for step in range(3):
        with log.step(step):
            log.observe(score=[float(step)])


def test_a_required_signal_that_was_never_given(tmp_path: Path) -> None:
    """The error of the first step that would miss it, with the place where it is declared."""
    config = {
        "run": {"name": "t"},
        "signals": {"any": {"score": {"axis": "completion"}}},
        "metrics": {"score": "mean(score)"},
    }
    captured(config, lambda log, rank: _scores(log), tmp_path)
    signals = {"score": {"axis": "completion"}, "more": {"axis": "completion", "required": True}}
    other = {**config, "signals": {"any": signals}, "metrics": {"m": "mean(more + score)"}}
    with pytest.raises(MissingSignalError, match="`more` was not observed in the first batch"):
        capture_reader.replay(tmp_path, other)


def test_constants_of_the_adapter_go_with_the_capture(tmp_path: Path) -> None:
    """What a trainer gave is given again, also to another profile."""
    config = {"constants": {"beta": {"default": 0}}, "signals": {"any": {"score": {"axis": "completion"}}},
              "metrics": {"score": "mean(beta * score)"}}  # fmt: skip
    live = captured(config, lambda log, rank: _scores(log), tmp_path, constants={"beta": 3})
    assert live.scalars[2] == {"score": 6.0} and same(None, tmp_path, live.events)
    other = capture_reader.replay(tmp_path, {**config, "metrics": {"twice": "mean(2 * beta * score)"}})["<code>"]
    assert other[2][1].scalars[0].value == 12.0


def test_what_nobody_declared_is_captured_where_any_name_is_taken(tmp_path: Path) -> None:
    """Numbers, rows and texts of `minimal`; what its table redacts of columns that nobody declared is redacted."""
    profile = declog.config_of(declog.compose("minimal", ["sinks=[]", "tables.samples.every=1"]))
    profile["schemas"] = {"samples": {"extra": {"undeclared": "keep", "redact": {"n": "[0-9]+"}}}}

    def train_anything(log: Recorder, rank: int) -> None:
        for step in range(2):
            with log.step(step):
                log.observe(loss=float(step), reward=[1.0, 2.0], completion=["secret 31415926535897", "b"])

    live = captured(profile, train_anything, tmp_path)
    assert live.scalars[1] == {"loss": 1.0, "reward/mean": 1.5, "reward/std": pytest.approx(0.5**0.5)}
    assert same(None, tmp_path, live.events)
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("capture/*"))
    assert (b"secret" in written, b"31415926535897" in written) == (True, False)
