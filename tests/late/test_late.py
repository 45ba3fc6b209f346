"""What is asked late is what would have been logged: of random runs on several ranks, and of every shipped preset."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import declog
from declog.errors import ConfigError, UsageError
from declog.language.tree import over, tree_of
from declog.late import Late, ask, write
from declog.records import Records, RunInfo
from declog.replay import config_tests as config_tests_module
from declog.replay import playback
from declog.replay.playback import Rehearsal
from declog.runs.report.blobs import Blobs
from declog.runs.report.facts import run_facts
from declog.runtime.ranks.comm import Comm
from declog.runtime.ranks.fake_comm import run_ranks
from declog.runtime.recording.recorder import Recorder
from declog.runtime.run.manifest import yaml_text
from declog.runtime.worker import row_keeper
from declog.runtime.worker.background import Background
from declog.runtime.worker.row_keeper import RowKeeper
from declog.testing import MemorySink, config_tests
from tests import forks

SIGNALS = {
    "reward": "completion", "length": "completion int", "solved": "completion bool", "source": "completion text",
    "rewards": {"axis": "completion", "family": True}, "prompt_id": "completion int", "kl": "completion",
    "lr": "step", "difficulty": "group", "logprobs": "token", "mask": "token bool",
}  # fmt: skip
# So that the run records all signals, and folds the tokens in one way.
BASE = {
    "b_source": {"expr": "reward", "by": "source"}, "b_length": "max(length)", "b_solved": "mean(1 if solved else 0)",
    "b_rewards": {"expr": "rewards"}, "b_kl": {"expr": "kl"}, "b_lr": "last(lr)", "b_difficulty": "mean(difficulty)",
    "b_logprobs": "mean(logprobs)",
}  # fmt: skip
LINES: dict[str, Any] = {
    "mean": "mean(reward)", "p95": "p95(reward)", "by_source": {"expr": "reward", "by": "source"},
    "spread_by_source": {"expr": "reward", "by": "source", "reduce": "std"},
    "where": {"expr": "reward", "where": "length > 5"}, "of_math": {"expr": "reward", "where": "source == 'math'"},
    "group_std": "mean(std(reward, over=completion))", "most": "max(length)", "share": "mean(1 if solved else 0)",
    "family": {"expr": "rewards", "reduce": "std"}, "from_time_to_time": "mean(kl)", "rate": "last(lr)",
    "slow": {"expr": "reward", "reduce": "max", "every": 20}, "bars": "histogram(reward, bins=4)",
    "parts": "histogram(reward, bins=4, low=0, high=1)",
    "best": "top_mean(reward, share=0.3)",
    "per_token": "mean(logprobs)", "hard": {"expr": "reward", "where": "difficulty > 0.5"},
    "weighted": {"expr": "reward", "weight": "length"}, "twice": {"formula": "2 * mean"}, "n": "count(reward)",
    "trained": {"expr": "reward", "where": "mode == 'train'"},
    "before": "last(lr - prev(lr, 0))", "rows": "sum(reward)", "unsolved": "mean(1 if not solved else 0)",
    "smooth": {"expr": "reward", "combine": "ema(0.9)"}, "rolling": {"expr": "reward", "combine": "rolling(7)"},
    "rolling_by": {"expr": "reward", "by": "source", "over": "batch", "combine": "rolling(20)"},
    "rolling_of": {"formula": "2 * mean", "combine": "rolling(3)"},
    "worst": {"formula": "min(by_source, over=label)"}, "worst_rolling": {"formula": "min(rolling_by, over=label)"},
}  # fmt: skip


DECLARING = ("axis", "type", "family", "phase", "from", "required", "from_log_extra")
TESTS, SOME = 3, 4  # profile tests of a preset, and metrics that each is asked for


def config(metrics: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """A config whose runs record all signals."""
    return {
        "run": {"name": "asked"}, "signals": {"any": SIGNALS}, "axes": {"token": "mask", "group": "prompt_id"},
        "metrics": dict(metrics),
        "modes": {"train": {}, "eval": {"prefix": "eval/", "every": "end"}}, "every": 5, **others,
    }  # fmt: skip


def batch(draw: random.Random, step: int) -> dict[str, Any]:
    """Made-up rows of a step: groups of two, NaN here and there, a label that comes late, a signal that is optional."""
    rows = 2 * draw.randint(1, 4)
    reward = torch.tensor([draw.gauss(0, 1) for _ in range(rows)])
    reward[0] = float("nan") if draw.random() < 0.2 else reward[0]
    sources = ["math", "code"] if step < 8 else ["math", "code", "chat", None]
    signals = {
        "reward": reward, "length": [draw.randint(0, 9) for _ in range(rows)],
        "solved": [draw.random() < 0.5 for _ in range(rows)], "source": [draw.choice(sources) for _ in range(rows)],
        "rewards": {name: torch.tensor([draw.random() for _ in range(rows)]) for name in ("format", "answer")},
        "prompt_id": [step * 100 + row // 2 for row in range(rows)], "lr": 0.1 / (step + 1),
        "difficulty": torch.tensor([draw.random() for _ in range(rows // 2)]),
        "logprobs": torch.randn(rows, 3, generator=torch.Generator().manual_seed(step)),
        "mask": torch.ones(rows, 3, dtype=torch.bool),
    }  # fmt: skip
    return signals | ({"kl": torch.tensor([draw.random() for _ in range(rows)])} if step >= 8 else {})


def train(log: Recorder, rank: int, steps: range) -> None:
    """Steps with one or two batches, and evaluations between them."""
    for step in steps:
        draw = random.Random(1000 * rank + step)
        with log.step(step):
            for _ in range(draw.randint(1, 2)):
                log.observe(**batch(draw, step))
        if step % 7 == 3:
            with log.mode("eval"):
                log.observe(**batch(draw, step))


def records_of(sink: MemorySink) -> list[tuple[int, Records]]:
    """What a sink got, in order."""
    return list(sink.events)


def values(events: list[tuple[int, Records]], prefix: str) -> dict[tuple[Any, ...], Any]:
    """What was logged under a prefix of ids, by step, mode and name without it; as text, so that NaN is equal."""
    found: dict[tuple[Any, ...], Any] = {}
    for step, records in events:
        for scalar in records.scalars:
            if scalar.metric.startswith(prefix):
                name = scalar.name.replace(prefix, "", 1)
                found[step, records.mode, name] = (repr(float(scalar.value)), scalar.partial)
        for histogram in records.histograms:
            if histogram.metric.startswith(prefix):
                name = histogram.name.replace(prefix, "", 1)
                found[step, records.mode, name] = (list(histogram.counts), list(histogram.edges))
    return found


def lines(prefix: str) -> dict[str, Any]:
    """The lines under ids with a prefix."""
    text = yaml.safe_dump(LINES).replace("2 * mean", f"2 * {prefix}mean").replace("min(", f"min({prefix}")
    return {f"{prefix}{name}": line for name, line in yaml.safe_load(text).items()}


def as_text(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Each as one writes it in a line."""
    return {
        name: yaml.safe_dump(line, default_flow_style=True, width=2**20).removesuffix("...\n").strip()
        for name, line in metrics.items()
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_late_is_early(ranks: int, tmp_path: Path) -> None:
    """Every kind of metric, asked when the run is over, has the values that it has when it is declared before."""
    sink = MemorySink()

    def main(comm: Comm) -> None:
        declared = config({**BASE, **lines("e_")})
        sinks = [sink] if comm.rank == 0 else []
        with declog.start(declared, sinks=sinks, output_dir=tmp_path / "run", comm=comm) as log:
            train(log, comm.rank, range(43))

    run_ranks(ranks, main)
    late = ask(tmp_path / "run", as_text(lines("l_")))
    early = values(records_of(sink), "e_")
    assert values(late.events, "l_") == early and not late.failures
    assert {name.partition("/")[0].removeprefix("eval") for _, _, name in early} >= {*LINES} - {"family", "by_source"}


def test_every_preset(tmp_path: Path) -> None:
    """Each metric of each shipped preset, over some of its profile tests: modes, tasks, joins and ranks.

    A test executes the preset's own plan; the metric is asked under another id, with what its line says. All metrics of
    all profile tests: ``python -m tests.soak --only late``.
    """
    found = compared(tmp_path, tests=TESTS, metrics=SOME)
    print(found)
    assert not found.different and not found.refused
    assert found.values > 100 and len(found.equal) > 30, found


@dataclass
class Compared:
    """Metrics of presets that were asked late of profile tests: preset and metric."""

    values: int = 0
    equal: set[tuple[str, str]] = field(default_factory=set)
    different: list[str] = field(default_factory=list)
    refused: dict[tuple[str, str], str] = field(default_factory=dict)  # with the reason
    unlogged: set[tuple[str, str]] = field(default_factory=set)  # no test that was taken has a value of it

    def __str__(self) -> str:
        lines = [f"late == early: {self.values} values of {len(self.equal)} metrics; different: {len(self.different)}"]
        lines += [f"  rows do not allow {preset}: {name}: {why}" for (preset, name), why in self.refused.items()]
        lines += [f"  no test logs {preset}: {name}" for preset, name in sorted(self.unlogged)]
        return "\n".join(lines)


def compared(folder: Path, *, tests: int | None = None, metrics: int | None = None) -> Compared:
    """What presets' tests log, beside what is asked of their rows: of so many tests and metrics of each, or of all."""
    found = Compared()
    for preset in declog.presets():
        composed = declog.compose(preset)
        names = list(composed.spec.tests)
        draw = random.Random(preset)
        for place, name in enumerate(draw.sample(names, min(tests or len(names), len(names)))):
            (test,) = (each for each in config_tests(composed, select=name) if each.name == name)
            run = folder / preset / str(place)
            run.mkdir(parents=True)
            events = rehearsed(test, run)
            shown = {scalar.metric.split(".")[0] for _, records in events for scalar in records.scalars}
            pinned = {name: {"value": value} for name, value in test.spec.constants.items()}
            data = over(tree_of(composed.data), tree_of(test.spec.with_)).plain
            data["constants"] = {**data.get("constants", {}), **pinned}
            (run / "config.yaml").write_text(yaml_text({**data, "tests": {}}), encoding="utf-8")
            lines = {id: line for id, line in composed.data["metrics"].items() if line is not None}
            found.unlogged |= {(preset, id) for id in lines}
            logged = sorted(shown & lines.keys())
            some = logged if metrics is None else random.Random(place).sample(logged, min(metrics, len(logged)))
            late, refused = answered(run, {f"l_{id}": renamed(id, lines[id]) for id in some})
            found.refused |= {(preset, id.removeprefix("l_")): why for id, why in refused.items()}
            names = [] if late is None else [*late.names]
            early = scalars_of(events, {name.removeprefix("l_") for name in names})
            answers = set() if late is None else scalars_of(late.events, set(names))
            if not (answers == early if test.profile == "full" else answers >= early):
                found.different.append(f"{preset}: {test.name}")
            found.values += len(early)
            found.equal |= {(preset, name.removeprefix("l_")) for name in names}
    found.unlogged -= found.equal | found.refused.keys()
    return found


def scalars_of(events: list[tuple[int, Records]], ids: set[str]) -> set[tuple[int, str, str, str]]:
    """The values of some metrics: step, mode, the metric as it is declared, and the value as text."""
    return {
        (step, records.mode, scalar.metric.removeprefix("l_"), repr(float(scalar.value)))
        for step, records in events
        for scalar in records.scalars
        if scalar.metric.split(".")[0] in ids
    }


def test_groups_of_ids_that_are_no_values(tmp_path: Path) -> None:
    """Ids that are messages are in no file, and rows have the groups: what is per group can be asked, and counts."""
    chats = [[{"role": "user", "content": text}] for text in ("a", "a", "b", "b")]
    data = {
        "run": {"name": "grouped"}, "signals": {"any": {"reward": "completion", "prompt": "completion object"}},
        "axes": {"group": {"of": ["prompt"]}}, "sinks": ["jsonl"],
    }  # fmt: skip
    metrics = {"group_std": "mean(std(reward, over=completion))", "reward": "mean"}
    with declog.start({**data, "metrics": metrics}, output_dir=tmp_path / "run") as log:
        for step in range(3):
            with log.step(step):
                log.observe(reward=[0.0, 1.0 * step, 2.0, 2.0], prompt=chats)
    late = ask(
        tmp_path / "run",
        {"late_std": "mean(std(reward, over=completion))", "best": "mean(max(reward, over=completion))"},
    )
    scalars = {(step, item.name): item.value for step, records in late.events for item in records.scalars}
    assert [scalars[step, "late_std"] for step in range(3)] == pytest.approx([0, 0.5**0.5 / 2, 2**0.5 / 2])
    assert [scalars[step, "best"] for step in range(3)] == [1.0, 1.5, 2.0]
    files = b"".join(path.read_bytes() for path in (tmp_path / "run/rows").iterdir())
    assert b"content" not in files


def renamed(id: str, line: Mapping[str, Any]) -> dict[str, Any]:
    """A metric's line for another id, with a name of its own, and without what declares its signal."""
    kept = {key: value for key, value in line.items() if key not in ("name", "alias", *DECLARING)}
    return kept if "expr" in kept or "formula" in kept else {**kept, "expr": id}


def rehearsed(test: Any, folder: Path) -> list[tuple[int, Records]]:
    """What a profile test logs, with its rows kept in a folder."""
    done: list[Rehearsal] = []

    def rehearse(*arguments: Any, **options: Any) -> Rehearsal:
        done.append(playback.rehearse(*arguments, **options))
        return done[-1]

    def rows(background: Background) -> RowKeeper | None:
        plan = background._plan
        run = RunInfo(name="t", run_id="1", output_dir=folder, fingerprint=plan.fingerprint)
        return RowKeeper(plan, lambda: run, plan.keep_bytes) if background.comm.collects and not done else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config_tests_module, "rehearse", rehearse)
        patch.setattr(Background, "_rows", rows)
        test.run()
    return done[0].events["<code>"]


def answered(folder: Path, asked: Mapping[str, Any]) -> tuple[Late | None, dict[str, str]]:
    """The answer to what rows allow, and what they refuse."""
    asked, refused = dict(asked), dict[str, str]()
    while asked:
        try:
            return ask(folder, as_text(asked)), refused
        except ConfigError as error:
            for problem in error.problems:
                assert problem.code == "DL612", problem.text()
                refused[str(problem.path[-1])] = problem.message
                asked.pop(str(problem.path[-1]), None)
    return None, refused


def test_a_run_that_is_killed_and_goes_on(tmp_path: Path) -> None:
    """What a process left that was killed is there, and what the resumed run made again is there once."""
    metrics = {**BASE, **lines("e_")}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config(metrics, sinks=["jsonl"])), encoding="utf-8")
    codes = []
    for phase in ("first", "second"):
        codes.append(forks.run(["-c", KILLED, tmp_path, phase]).returncode)
    assert codes == [9, 0]
    late = ask(tmp_path / "run", as_text(lines("l_")))
    straight = MemorySink()
    with declog.start(config(metrics), sinks=[straight], output_dir=tmp_path / "straight") as log:
        train(log, 0, range(36))
    assert values(late.events, "l_") == values(straight.events, "e_")


KILLED = """
import os, sys
import torch
import yaml
import declog
from pathlib import Path
from tests.late.test_late import train

folder, phase = Path(sys.argv[1]), sys.argv[2]
config = yaml.safe_load((folder / "config.yaml").read_text())
if phase == "first":
    log = declog.start(config, output_dir=folder / "run")
    train(log, 0, range(23))
    torch.save(log.state_dict(), folder / "state.pt")
    train(log, 0, range(23, 33))
    log.flush()
    os._exit(9)
with declog.start(config, output_dir=folder / "run", resume=torch.load(folder / "state.pt")) as log:
    train(log, 0, range(23, 36))
"""


def test_lines_that_were_asked_together_stay_together(tmp_path: Path) -> None:
    """They share their files: one alone would take the values of the rest away. All again, in any order, may come."""
    run = tmp_path / "run"
    with declog.start(config(BASE, every=1), output_dir=run) as log:
        train(log, 0, range(3))
    write(run, ask(run, {"low": "min(length)", "high": "max(length)"}))
    for lines_again in (
        {"low": "mean(length)"},
        {"high": "mean(length)"},
        {"new": "mean(length)", "high": "max(length)"},
    ):
        with pytest.raises(ConfigError, match="was asked together with") as caught:
            ask(run, lines_again)
        assert [problem.code for problem in caught.value.problems] == ["DL612"]
    write(run, ask(run, {"more": "mean(length)", "high": "max(length)", "low": "mean(length)"}))
    read = declog.read(run)
    assert read["low"].values.tolist() == read["more"].values.tolist() and len(read["high"].values) == 3


def test_what_rows_do_not_have(tmp_path: Path) -> None:
    """Each is refused with the reason, at its place in the line, and nothing is written."""
    with declog.start(
        config({"reward": "mean", "logprobs": "mean"}, sinks=["jsonl"]), output_dir=tmp_path / "run"
    ) as log:
        train(log, 0, range(3))
    run = tmp_path / "run"
    for line, said in (
        ("mean(rewrd)", "fix: 'asked: mean(reward)'"), ("std(logprobs)", "the run kept nothing of it per completion"),
        ("p50(logprobs)", "the run kept nothing of it per completion"),
        ("last(lr)", "the run kept no rows of `lr`: it is per step, and nothing that the run logged reads it"),
        ("{expr: reward, by: source}", "no rows of `source`: it is a text that nothing uses as a label\n"),
        ("{expr: reward, where: 'reward > 100'}", "none of them counts for `asked` under `where: reward > 100`"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as refused:
            ask(run, {"asked": line})
        assert said in str(refused.value) and "asked" in str(refused.value), line
    with pytest.raises(ConfigError, match="logs `reward` already"):
        ask(run, {"reward": "max(reward)"})
    assert not (run / "late").exists()
    with pytest.raises(UsageError, match="kept no rows"):
        ask(tmp_path, {"asked": "mean(reward)"})


def test_texts_stay_where_they_are(tmp_path: Path) -> None:
    """Rows have labels, redacted, and no text that a table alone shows, however short."""
    signals = {"reward": "completion", "mail": "completion text", "prompt": "completion text"}
    columns = {"prompt": "text", "mail": {"type": "text", "redact": {"email": r"\S+@\S+"}}}
    asked = {
        "run": {"name": "t"}, "signals": {"any": signals}, "metrics": {"by_mail": {"expr": "reward", "by": "mail"}},
        "schemas": {"s": columns}, "tables": {"samples": {"schema": "s"}}, "sinks": ["jsonl"],
    }  # fmt: skip
    with declog.start(asked, output_dir=tmp_path / "run") as log, log.step(0):
        log.observe(reward=[1.0, 2.0], mail=["me@here.org", "x"], prompt=["secret", "2"])
    files = b"".join(path.read_bytes() for path in (tmp_path / "run/rows").iterdir())
    assert b"secret" not in files and b"me@here" not in files
    late = ask(tmp_path / "run", {"most": "{expr: reward, by: mail, reduce: max}"})
    assert [item.name for item in late.events[0][1].scalars] == ["most/[email]", "most/x"]


def test_the_oldest_rows_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows keep within their bytes, that is said once, and what is asked begins behind them."""
    monkeypatch.setattr(row_keeper, "CHUNK_EVENTS", 4)
    with declog.start(
        config(BASE, every=1, sinks=["jsonl"], run={"keep_bytes": 30_000}), output_dir=tmp_path / "run"
    ) as log:
        train(log, 0, range(40))
    late = ask(tmp_path / "run", {"spread": "std(reward)"})
    assert late.first > 0 and late.first % 4 == 0
    assert sum(path.stat().st_size for path in (tmp_path / "run/rows").glob("*.parquet")) < 40_000
    assert late.events[-1][0] == 39 and late.events[0][0] > 0
    assert [record.message.count("[DL611]") for record in caplog.records if "DL611" in record.message] == [1]


def test_no_rows_are_kept(tmp_path: Path) -> None:
    """Where the config says so."""
    with declog.start(config(BASE, run={"keep_bytes": 0}), sinks=[MemorySink()], output_dir=tmp_path / "run") as log:
        train(log, 0, range(3))
    assert not (tmp_path / "run" / "rows").exists()


def test_a_disk_that_refuses_costs_the_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on, says so once, and what was kept before can be asked."""

    def refuse(keeper: RowKeeper, *arguments: Any) -> None:
        if keeper.count == 5:
            raise OSError(28, "No space left on device")
        original(keeper, *arguments)

    original = RowKeeper.add
    monkeypatch.setattr(RowKeeper, "add", refuse)
    sink = MemorySink()
    log = declog.start(config(BASE, every=1), sinks=[sink], output_dir=tmp_path / "run")
    train(log, 0, range(9))
    log.close()
    assert len(sink.scalars) == 9 and [what for what in log.failures if "DL611" in what]
    assert {step for step, _ in ask(tmp_path / "run", {"spread": "std(reward)"}).events} <= set(range(6))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """`declog.read` has the new series beside the run's own; the same line asked again stands for the one before."""
    with declog.start(config(BASE, sinks=["parquet"]), output_dir=tmp_path / "run") as log:
        train(log, 0, range(12))
        log.flush()
        assert not log.missing  # which waits for the worker
        during = ask(tmp_path / "run", {"spread": "std(reward)"})  # the run goes on
    late = ask(tmp_path / "run", {"spread": "std(reward)"})
    assert values(during.events, "spread").items() <= values(late.events, "spread").items()
    assert during.events and len(late.events) == 5
    for answer in (during, late):
        folder = write(tmp_path / "run", answer)
    run = declog.read(tmp_path / "run")
    assert list(run["spread"].steps) == [4, 9, 11] and "b_lr" in run.names()
    assert yaml.safe_load((folder / "late.yaml").read_text())["metrics"] == {"spread": "std(reward)"}
    (output,) = [output for output in run.plan["outputs"] if output["name"] == "spread"]
    assert output["formula"] == "std(reward)" and output["place"].startswith("asked late, 20")
    (series,) = [
        series for series in run_facts(run, Blobs(), label="", samples=False)["series"] if series["name"] == "spread"
    ]
    assert (series["words"], series["count"]) == (output["words"], 3)


def test_a_branch_reads_the_rows_of_its_parent(tmp_path: Path) -> None:
    """Those before the branch, and of a branch of the branch those of both; what a parent did afterwards is its own."""
    metrics = {**BASE, **lines("e_")}

    def ran(folder: str, steps: range, state: dict[str, Any] | None = None, save: int | None = None) -> dict[str, Any]:
        saved: dict[str, Any] = {}
        shown = config(metrics, sinks=["jsonl"])
        with declog.start(shown, output_dir=tmp_path / folder, resume=state) as log:
            for step in steps:
                train(log, 0, range(step, step + 1))
                if step == save:
                    saved = log.state_dict()
        return saved

    state = ran("parent", range(23), save=12)
    second = ran("branch", range(13, 21), state, save=17)
    ran("leaf", range(18, 26), second)
    straight = MemorySink()
    with declog.start(config(metrics), sinks=[straight], output_dir=tmp_path / "straight") as log:
        train(log, 0, range(26))
    late = ask(tmp_path / "leaf", as_text(lines("l_")))
    assert values(late.events, "l_") == values(straight.events, "e_")
    (tmp_path / "parent").rename(tmp_path / "away")
    alone = ask(tmp_path / "leaf", as_text(lines("l_")))
    assert alone.first > 0 and alone.events[0][0] > 12  # it begins at the branch, and says so


def test_log_events_keep_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies while it takes the oldest rows away, before `rows.json` knows of it, shifts no number."""
    monkeypatch.setattr(row_keeper, "CHUNK_EVENTS", 4)
    run = tmp_path / "run"
    with declog.start(config(BASE, every=1, sinks=["jsonl"]), output_dir=run) as log:
        train(log, 0, range(14))
        state = log.state_dict()
        train(log, 0, range(14, 20))
    for path in (run / "rows").glob("000000.*"):
        path.unlink()  # and `rows.json` is as it was
    with declog.start(config(BASE, every=1, sinks=["jsonl"]), output_dir=run, resume=state) as log:
        train(log, 0, range(14, 22))
    late = ask(run, {"rows": "count(length)"})
    assert late.first == 4
    steps = [step for step, records in late.events if records.mode == "train"]
    assert steps == list(range(steps[0], 22)) and steps[0] <= 4
