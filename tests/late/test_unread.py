"""Signals that are declared and observed, and that no metric reads: rows have them, and the run does not know of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.errors import ConfigError
from declog.language.dtypes import DType
from declog.late import ask
from declog.records import Records
from declog.runtime.ranks.comm import Comm
from declog.runtime.ranks.fake_comm import run_ranks
from declog.runtime.recording.recorder import Recorder
from declog.runtime.worker.row_keeper import KEPT
from declog.testing import MemorySink

SIGNALS: dict[str, dict[str, Any]] = {
    "rollout": {
        "reward": "completion", "level": "completion int", "ok": "completion bool", "score": "completion",
        "marks": {"axis": "completion", "family": True}, "uid": "completion text", "prompt": "completion text",
        "note": "completion text", "logprobs": "token", "mask": "token bool", "lr": "step",
    },
    "update": {"loss": "completion", "weight": "completion"},
}  # fmt: skip
AXES = {"token": "mask", "group": {"of": ["prompt"]}, "completion": {"ids": "uid"}}
ASKED: dict[str, Any] = {
    "most": "max(level)", "share": "mean(1 if ok else 0)", "spread": "std(score)", "right": {"expr": "score * ok"},
    "family": {"expr": "marks", "reduce": "max"}, "by_level": {"expr": "reward", "by": "level"},
    "by_uid": {"expr": "score", "by": "uid"}, "group_std": "mean(std(score, over=completion))",
    "weighted": {"expr": "loss", "weight": "weight"}, "hard": {"expr": "reward", "where": "level > 1"},
}  # fmt: skip
PER_TOKEN = "it is per token, and only what metrics compute from it per completion is kept"
Train = Callable[[Recorder, int, range], None]


def config(metrics: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """Two phases, whose log events are of three steps."""
    return {
        "run": {"name": "unread"}, "signals": SIGNALS, "axes": AXES, "every": 3,
        "metrics": {"reward": {"reduce": ["mean", "std"]}, "loss": "mean", **metrics},
        "modes": {"train": {}, "eval": {"prefix": "eval/", "every": "end"}}, **others,
    }  # fmt: skip


def rows(draw: random.Random) -> Iterator[dict[str, Any]]:
    """The values of some batches of generations."""
    for _ in range(draw.randint(1, 3)):
        count = 2 * draw.randint(1, 3)
        yield {
            "reward": torch.tensor([draw.random() for _ in range(count)]),
            "score": torch.tensor([draw.random() for _ in range(count)], dtype=torch.bfloat16),
            "level": [draw.choice([0, 1, 2, 3, None]) for _ in range(count)],
            "ok": [draw.random() < 0.5 for _ in range(count)],
            "marks": {name: [draw.random() for _ in range(count)] for name in ("format", "answer")},
            "uid": [f"u{draw.randint(0, 3)}" for _ in range(count)], "prompt": [f"p{row // 2}" for row in range(count)],
            "note": ["secret"] * count, "lr": 0.1,
        }  # fmt: skip


def together(log: Recorder, rank: int, steps: range) -> None:
    """Each batch is one call."""
    for step in steps:
        draw = random.Random(100 * rank + step)
        with log.mode("eval") if step % 5 == 4 else log.step(step):
            for batch in rows(draw):
                log.observe(**batch)
                log.observe(loss=batch["reward"] * 2, weight=batch["reward"] + 1)


def one_by_one(log: Recorder, rank: int, steps: range) -> None:
    """Each value is a call of its own, in any order, the same in all batches."""
    names = random.Random(0).sample([*SIGNALS["rollout"].keys() - {"logprobs", "mask"}], 9)
    for step in steps:
        draw = random.Random(100 * rank + step)
        with log.mode("eval") if step % 5 == 4 else log.step(step):
            for batch in rows(draw):
                for name in names:
                    log.observe(**{name: batch[name]})
                log.observe(weight=batch["reward"] + 1)
                log.observe(loss=batch["reward"] * 2)


def packets(log: Recorder, rank: int, steps: range) -> None:
    """What generations have comes as packets."""
    for step in steps:
        draw = random.Random(100 * rank + step)
        with log.mode("eval") if step % 5 == 4 else log.step(step):
            for batch in rows(draw):
                log.observe(declog.rows(batch))
                with log.batch():
                    log.observe(loss=batch["reward"] * 2, weight=batch["reward"] + 1)


def numbers(events: list[tuple[int, Records]], prefix: str = "") -> dict[tuple[Any, ...], str]:
    """The logged values of metrics whose ids have a prefix, as text: by step, mode and name without it."""
    return {
        (step, records.mode, scalar.name.replace(prefix, "", 1)): repr(float(scalar.value))
        for step, records in events
        for scalar in records.scalars
        if scalar.metric.startswith(prefix)
    }


def run(folder: Path, data: dict[str, Any], train: Train, ranks: int, steps: range = range(14)) -> dict[Any, str]:
    """The values that a run of some ranks logs."""
    sink = MemorySink()

    def main(comm: Comm) -> dict[str, int]:
        sinks = [sink] if comm.rank == 0 else []
        with declog.start(data, sinks=sinks, output_dir=folder, comm=comm) as log:
            train(log, comm.rank, steps)
        return dict(log.failures)

    assert run_ranks(ranks, main) == [{}] * ranks
    return numbers([*sink.events])


def lines(prefix: str) -> dict[str, Any]:
    """The metrics that are asked for, under ids with a prefix."""
    return {f"{prefix}{name}": line for name, line in ASKED.items()}


def late_values(folder: Path) -> dict[tuple[Any, ...], str]:
    """Their values, asked of a run that is over."""
    late = ask(folder, {name: json.dumps(line) for name, line in lines("l_").items()})
    assert not late.failures
    return numbers(late.events, "l_")


def columns_of(folder: Path, phase: str) -> dict[str, str]:
    """What `rows.json` says of the signals of a phase."""
    facts = json.loads((folder / "rows/rows.json").read_text())
    signals: dict[str, str] = facts["runs"][-1]["columns"][phase]["signals"]
    return signals


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("train", [together, one_by_one, packets])
def test_they_are_asked_as_if_a_metric_had_read_them(train: Train, ranks: int, tmp_path: Path) -> None:
    """However a batch comes: numbers, bools, members, ids and groups, bit by bit; the run's values are as before."""
    none_kept = run(tmp_path / "none", config({}, run={"keep_bytes": 0}), train, ranks)
    kept = run(tmp_path / "kept", config({}), train, ranks)
    assert kept == none_kept and len(kept) > 15
    early = run(tmp_path / "early", config(lines("e_")), train, ranks)
    expected = {(*key[:-1], key[-1].replace("e_", "", 1)): value for key, value in early.items() - kept.items()}
    assert late_values(tmp_path / "kept") == expected and len(expected) > 50


def test_rows_say_why_not(tmp_path: Path) -> None:
    """Each declared signal is in `rows.json`: kept, never came, or the reason; texts that are no ids are in no file."""
    run(tmp_path / "run", config({}), lambda log, rank, steps: together(log, rank, range(3)), 1)
    assert columns_of(tmp_path / "run", "rollout") == {
        **dict.fromkeys(("reward", "level", "ok", "score", "marks", "uid"), KEPT),
        **{
            name: f"it is a text that nothing uses as a label: `log.keep({name}=...)` beside `log.observe` keeps it"
            for name in ("note", "prompt")
        },
        "lr": "it is per step, and nothing that the run logged reads it",
        **dict.fromkeys(("logprobs", "mask"), PER_TOKEN),
    }  # fmt: skip
    files = b"".join(path.read_bytes() for path in (tmp_path / "run/rows").iterdir())
    assert b"secret" not in files and b"u1" in files and b"p1" not in files
    without = {**config({}), "metrics": {"reward": "mean"}}
    with declog.start(without, sinks=[], output_dir=tmp_path / "other") as log, log.step(0):
        log.observe(reward=[1.0])
    assert columns_of(tmp_path / "other", "rollout")["score"] == "it never came"
    with pytest.raises(ConfigError, match="no rows of `weight`: no metric of the run reads anything of its phase"):
        ask(tmp_path / "other", {"heavy": "mean(weight)"})


def test_what_does_not_fit_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A value that is none, or of other completions, or without any: no batch is opened, closed or refused."""
    sink = MemorySink()
    with declog.start(config({}, every=1), sinks=[sink], output_dir=tmp_path / "run") as log:
        for step in range(6):
            with log.step(2 * step):
                log.observe(ok=[True, True])  # of the batch that comes
                log.observe(reward=[0.5, 1.0], level=torch.zeros(2, 2) if step == 1 else [step, 1])
                log.observe(score=[1.0] if step == 2 else [1.0, 2.0], marks=None if step == 3 else {"a": [1, 2]})
                log.observe(ok=[False, False])  # again: no batch comes for it
            with log.step(2 * step + 1):
                log.observe(level=[7, 7, 7])
    values = numbers([*sink.events])
    assert not log.failures and values[2, "train", "reward/mean"] == "0.75"
    told = [message for record in caplog.records if "left out" in (message := record.getMessage())]
    assert [message.partition(" is left out: ")[0] for message in told] == ["`level`", "`score`", "`marks`"]
    late = ask(tmp_path / "run", {"levels": "sum(level)", "scores": "sum(score)", "oks": "sum(1 if ok else 0)"})
    sums: dict[str, float] = {}
    for (_, _, name), value in numbers(late.events).items():
        sums[name] = sums.get(name, 0) + float(value)
    assert sums == {"levels": sum((0, 2, 3, 4, 5)) + 5, "scores": 15.0, "oks": 12.0}


def test_the_plan_decides_and_nothing_depends_on_it(tmp_path: Path) -> None:
    """Without rows nothing is recorded of them; ranks and resumed runs need not agree on that."""
    plans = []
    for place, more in enumerate(({}, {"run": {"name": "unread", "keep_bytes": 0}})):
        with declog.start(config({}, **more), sinks=[MemorySink()], output_dir=tmp_path / str(place)) as log:
            plans.append(log.plan)
    kept, without = plans
    assert {*kept.unread} == {"level", "ok", "score", "marks", "prompt", "weight"} and not without.unread
    assert (kept.fingerprint, kept.windows) == (without.fingerprint, without.windows)


def test_a_signal_that_only_tokens_read(tmp_path: Path) -> None:
    """A number per completion that a fold alone reads, and one that reward functions give with `log_extra`."""
    data = {
        "run": {"name": "folded"}, "axes": {"token": "mask"}, "metrics": {"objective": "mean(logprobs * advantage)"},
        "signals": {"any": {
            "advantage": "completion", "logprobs": "token", "mask": "token bool",
            "judge": {"axis": "completion", "from_log_extra": True},
        }},
    }  # fmt: skip
    with declog.start(data, sinks=[MemorySink()], output_dir=tmp_path / "run") as log:
        reward = declog.reward(lambda count: ([1.0] * count, {"judge": [0.25] * count}))
        for step in range(3):
            reward(2)  # before its step
            with log.step(2 * step):
                log.observe(logprobs=torch.ones(2, 3), mask=torch.ones(2, 3, dtype=torch.bool), advantage=[1.0, 3.0])
            with log.step(2 * step + 1):
                log.observe(logprobs=torch.ones(2, 3), mask=torch.ones(2, 3, dtype=torch.bool), advantage=[2.0, 3.0])
                reward(2)
    late = ask(tmp_path / "run", {"least": "min(advantage)", "judged": "sum(judge)"})
    values = numbers(late.events)
    assert [values[step, "train", "judged"] for step in range(6)] == ["0.5"] * 6
    assert [values[step, "train", "least"] for step in (0, 1)] == ["1.0", "2.0"]


def test_a_resumed_run_has_them_of_open_windows(tmp_path: Path) -> None:
    """What waits in a window at a checkpoint is of its log event, after a resume as without one."""
    data = config({}, sinks=["jsonl"])
    with declog.start(data, output_dir=tmp_path / "run") as log:
        together(log, 0, range(7))
        state = log.state_dict()
    with declog.start(data, output_dir=tmp_path / "run", resume=state) as log:
        together(log, 0, range(7, 14))
    run(tmp_path / "straight", config({}), together, 1)
    assert late_values(tmp_path / "run") == late_values(tmp_path / "straight")


PER_PHASE = {"axis": "completion", "type": "float"}


def test_every_number_of_every_preset(tmp_path: Path) -> None:
    """All numbers and bools per completion that presets declare: read by nothing, and asked late of two ranks."""
    count = 0
    for preset in declog.presets():
        data = declog.compose(preset).data
        declared = {
            phase: {name: {**spec, "enabled": True} for name, spec in signals.items() if _is_number(spec)}
            for phase, signals in (data.get("signals") or {}).items()
        }
        declared = {phase: signals for phase, signals in declared.items() if signals}
        if not declared:
            continue
        anchors = {phase: f"rows_of_{phase}" for phase in declared}
        bare = {
            "run": {"name": preset}, "every": 2, "constants": data.get("constants", {}),
            "signals": {phase: {**signals, anchors[phase]: PER_PHASE} for phase, signals in declared.items()},
        }  # fmt: skip
        base = dict.fromkeys(anchors.values(), "count")
        asked = {
            f"{phase}_{name}": {"expr": f"{_number(name, spec)} + 0 * {anchors[phase]}", "reduce": reduce}
            for phase, signals in declared.items()
            for place, (name, spec) in enumerate(signals.items())
            for reduce in [("mean", "max", "std")[place % 3]]
        }

        def train(log: Recorder, rank: int, steps: range, bare: Any = bare, anchors: Any = anchors) -> None:
            for step in steps:
                draw = random.Random(f"{rank} {step}")
                with log.step(step):
                    rows = draw.randint(1, 4)
                    for signals in bare["signals"].values():
                        values = {spec.get("from", name): _values(spec, rows, draw) for name, spec in signals.items()}
                        log.observe(**values)

        run(tmp_path / f"{preset}_kept", {**bare, "metrics": base}, train, 2, range(5))
        metrics = {**base, **{f"e_{id}": line for id, line in asked.items()}}
        early = run(tmp_path / f"{preset}_early", {**bare, "metrics": metrics}, train, 2, range(5))
        late = ask(tmp_path / f"{preset}_kept", {f"l_{id}": json.dumps(line) for id, line in asked.items()})
        expected = {
            (step, mode, name.removeprefix("e_")): value
            for (step, mode, name), value in early.items() if name.startswith("e_")
        }  # fmt: skip
        assert numbers(late.events, "l_") == expected, preset
        assert {name.partition("/")[0] for _, _, name in expected} == asked.keys()
        count += len(asked)
    assert count > 60


def _is_number(spec: Any) -> bool:
    """Whether a declared signal is a number or a bool per completion that is not switched off."""
    return isinstance(spec, Mapping) and spec.get("axis") == "completion" and spec.get("type", "float") in (
        DType.FLOAT, DType.INT, DType.BOOL
    ) and not spec.get("any")  # fmt: skip


def _number(name: str, spec: Mapping[str, Any]) -> str:
    """A signal as a number."""
    return f"(1 if {name} else 0)" if spec.get("type") == DType.BOOL else name


def _values(spec: Mapping[str, Any], rows: int, draw: random.Random) -> Any:
    """Values of a signal: sometimes a tensor, sometimes a list."""

    def column() -> Any:
        kind = spec.get("type", "float")
        if kind == DType.BOOL:
            return [draw.random() < 0.5 for _ in range(rows)]
        if kind == DType.INT:
            return [draw.randint(0, 99) for _ in range(rows)]
        numbers = [draw.gauss(0, 1) for _ in range(rows)]
        return torch.tensor(numbers) if draw.random() < 0.5 else numbers

    if not spec.get("family"):
        return column()
    return {member: column() for member in spec.get("members") or ("one", "two")}
