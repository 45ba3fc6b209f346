"""A run that diverges says so: NaN and infinity in what training stands on vanish from no sink."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import declog
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests import forks
from tests.running import profile, run
from tests.sinks.wandb_reader import read_runs

ROOT = Path(__file__).parents[2]
AT, STEPS = 3, 5
NAN, INF = math.nan, math.inf
CORE = ("loss", "grad_norm", "kl", "entropy", "clip_ratio/region_mean")

RUN = """
import json, sys
import torch, declog

AT, STEPS = 3, 5
preset, folder = sys.argv[1:]
sinks = {
    "console": {"kind": "console", "profile": "full"}, "few": {"kind": "console", "max_scalars": 6},
    "parquet": {"kind": "parquet", "profile": "slim"},
    "jsonl": {"kind": "jsonl", "profile": "slim"}, "tensorboard": {"kind": "tensorboard", "profile": "slim"},
    "wandb": {"kind": "wandb", "profile": "slim"}, "trackio": {"kind": "trackio", "profile": "slim", "dir": "trackio"},
}
torch.manual_seed(0)
written = "++declog.sink_options=" + json.dumps(sinks).replace('"', "")
chosen = f"declog.sinks=[{','.join(sinks)}]"
config = declog.compose(preset, ["declog.axes.group.size=4", chosen, written])
with declog.start(config, output_dir=folder) as log:
    for step in range(STEPS):
        k = float("nan") if step >= AT else 1.0
        with log.step(step):
            log.observe(prompt=["p"] * 8, completion=["c"] * 8, rewards={"a": torch.rand(8)},
                        length=torch.ones(8, dtype=torch.int64), truncated=torch.zeros(8, dtype=torch.bool))
            logprobs = -torch.rand(8, 6)
            log.observe(completion_mask=torch.ones(8, 6, dtype=torch.bool), logprobs=logprobs * k,
                        old_logprobs=logprobs, ref_logprobs=-torch.rand(8, 6), entropy=torch.rand(8, 6) * k,
                        learning_rate=1e-6, advantages=torch.randn(8), loss=torch.tensor(k), grad_norm=k)
from trackio.sqlite_storage import SQLiteStorage
import trackio
(run,) = trackio.Api().runs(preset)
logs = SQLiteStorage.get_logs(preset, run.name, run_id=run.id)
found = {"logs": logs, "alerts": run.alerts(), "failures": log.failures}
print("READ " + json.dumps(found, default=str))
"""


def number(value: Any) -> float:
    """A number as a sink has it: `NaN` may be text."""
    return float(value)


@pytest.mark.parametrize("preset", ["grpo", "rloo"])
def test_every_sink_shows_a_run_that_diverges_at_the_step_where_it_does(preset: str, tmp_path: Path) -> None:
    """Loss, gradients, KL and entropy are NaN from step 3 on: so says each of the six sinks, read back, and alerts."""
    quiet = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_DIR": str(tmp_path)}
    env = forks.environment({**quiet, "HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf")})
    done = forks.run(["-c", RUN, preset, tmp_path / "run"], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    printed, _, read = done.stdout.rpartition("READ ")
    trackio = json.loads(read)
    assert trackio["failures"] == {}

    def check(rows: dict[int, dict[str, float]]) -> None:
        assert sorted(rows) == list(range(STEPS))
        for step, row in rows.items():
            assert [math.isnan(row[name]) for name in CORE] == [step >= AT] * len(CORE), (step, row)
            counts = {name: value for name, value in row.items() if name.startswith("nonfinite/")}
            assert {"nonfinite/loss", "nonfinite/kl"} <= set(counts) if step >= AT else counts == {}
            assert all(value > 0 for value in counts.values())

    parquet = pd.read_parquet(tmp_path / "run" / "parquet" / "scalars")
    check({int(step): dict(zip(rows["name"], rows["value"], strict=True)) for step, rows in parquet.groupby("step")})
    lines = [json.loads(line) for line in (tmp_path / "run" / "jsonl" / "scalars.jsonl").read_text().splitlines()]
    check({line["step"]: {name: number(value) for name, value in line["scalars"].items()} for line in lines})
    (wandb,) = read_runs(tmp_path)
    check({
        row["_step"]: {name: number(value) for name, value in row.items() if name in CORE or "nonfinite" in name}
        for row in wandb.rows
    })  # fmt: skip
    check({
        row["step"]: {name: number(value) for name, value in row.items() if name in CORE or "nonfinite" in name}
        for row in trackio["logs"]
    })  # fmt: skip
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    drawn: dict[int, dict[str, float]] = {}
    for tag in board.Tags()["scalars"]:
        for phase in board.Scalars(tag):
            drawn.setdefault(phase.step, {})[tag] = phase.value
    check(drawn)
    for blocks in printed.split("\nstep ")[1:]:
        step = int(blocks.split(" ")[0])
        assert ("nonfinite" in blocks) == (step >= AT), blocks  # also where few values are shown
        assert ("! error broken_loss: The loss is nan" in blocks) == (step == AT)

    assert ("nan" in printed.split("\nstep 3 ", 1)[0], "nan" in printed.split("\nstep 3 ", 1)[1]) == (False, True)
    fired = {"broken_loss", "broken_gradients", "broken_kl", "broken_entropy", "broken_ratio"}
    alerts = pd.read_parquet(tmp_path / "run" / "parquet" / "alerts")
    assert (set(alerts["name"]), set(alerts["step"])) == (fired, {AT})
    assert {title for title, _, _ in wandb.alerts} == fired
    assert {(alert["title"], alert["step"]) for alert in trackio["alerts"]} == {(name, AT) for name in fired}


def values(metrics: dict[str, Any], observe: Callable[[Any], None], folder: Path, **more: Any) -> dict[str, float]:
    """The scalars of one step."""
    sink = MemorySink()
    profile = {
        "run": {"name": "own"}, "axes": {"group": {"size": 2}, "token": {"mask": "all"}},
        "signals": {
            "any": {
                "x": {"axis": "completion"}, "k": {"axis": "token"},
                "loss": {"axis": "step"},
                "f": {"axis": "completion", "family": True},
            },
        },
        "metrics": metrics, **more,
    }  # fmt: skip
    with declog.start(profile, sinks=[sink], output_dir=folder) as log, log.step(0):
        observe(log)
    assert log.failures == {}
    return sink.scalars.get(0, {})


def same(expected: dict[str, float], found: dict[str, float]) -> None:
    """Equal, NaN to NaN."""
    assert set(expected) == set(found)
    assert expected == pytest.approx(found, nan_ok=True)


REDUCED = ["mean", "sum", "min", "max", "pstd", "last", "p50"]


@pytest.mark.parametrize("reduce", REDUCED)
def test_nothing_but_missing_values_is_nan_and_nothing_at_all_is_absent(reduce: str, tmp_path: Path) -> None:
    """Per completion and per step: what came and is NaN is shown and counted; some missing values are left out."""
    metrics = {"x": {"expr": "x", "reduce": reduce}, "loss": {"expr": "loss", "reduce": reduce}}
    same({"x": NAN, "nonfinite/x": 4, "loss": NAN, "nonfinite/loss": 1},
         values(metrics, lambda log: log.observe(x=[NAN] * 4, loss=NAN), tmp_path / "all"))  # fmt: skip
    same({"x": NAN, "nonfinite/x": 4}, values(metrics, lambda log: log.observe(x=[None] * 4), tmp_path / "none"))
    some = values(metrics, lambda log: log.observe(x=[2.0, None, 2.0, NAN]), tmp_path / "some")
    assert set(some) == {"x"} and math.isfinite(some["x"])


@pytest.mark.parametrize("reduce", ["mean", "sum", "min", "max"])
def test_tokens_that_are_nan_are_no_padding(reduce: str, tmp_path: Path) -> None:
    """All tokens NaN: NaN; tokens masked out: absent; `empty` is for those alone."""
    for empty in (None, 0):
        metric = {"expr": "k", "reduce": reduce} | ({} if empty is None else {"empty": empty})
        made = {"metrics": {"k": metric}, "mask": {}}["metrics"]
        all_nan = values(made, lambda log: log.observe(k=torch.full((2, 3), NAN)), tmp_path / f"nan{empty}")
        same({"k": NAN, "nonfinite/k": 6}, all_nan)
        masked = {"k": {**metric, "where": "k > 5"}}
        nothing = values(masked, lambda log: log.observe(k=torch.ones(2, 3)), tmp_path / f"masked{empty}")
        same({} if empty is None else {"k": 0.0}, nothing)


@pytest.mark.parametrize(
    ("given", "reduce", "expected"),
    [
        ([1.0, INF], "mean", INF), ([1.0, -INF], "mean", -INF), ([INF, -INF], "mean", NAN), ([INF, 1.0], "max", INF),
        ([INF, 1.0], "std", NAN), ([INF, -INF], "sum", NAN), ([INF, INF], "mean", INF), ([INF, 1.0], "last", 1.0),
    ],
)  # fmt: skip
def test_an_infinity_is_shown(given: list[float], reduce: str, expected: float, tmp_path: Path) -> None:
    """As what it makes of the value, and counted where it does; never as absent."""
    found = values({"x": {"expr": "x", "reduce": reduce}}, lambda log: log.observe(x=given), tmp_path)
    same({"x": expected} if math.isfinite(expected) else {"x": expected, "nonfinite/x": 1}, found)


def test_an_infinite_reward_breaks_no_histogram(tmp_path: Path) -> None:
    """The histogram is of the finite ones."""
    sink = MemorySink()
    profile = {
        "run": {"name": "own"}, "axes": {"token": {"mask": "all"}},
        "signals": {"any": {"x": {"axis": "completion"}, "k": {"axis": "token"}}},
        "metrics": {"x": {"expr": "x", "reduce": [{"h": "histogram(bins=2)"}, "mean"]},
                    "k": {"expr": "k", "reduce": [{"h": "histogram(bins=2)"}, "mean"]}},
    }  # fmt: skip
    with declog.start(profile, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(x=[0.0, 1.0, INF, NAN], k=torch.tensor([[0.0, 1.0, INF]] * 4))
    assert log.failures == {}
    (counts,) = [sum(item.counts) for _, records in sink.events for item in records.histograms if item.name == "x/h"]
    assert counts == 2
    assert (sink.scalars[0]["x/mean"], sink.scalars[0]["k/mean"]) == (INF, INF)
    assert sink.scalars[0]["nonfinite/x"] == 1


def test_a_reward_function_that_returns_none_is_no_divergence(tmp_path: Path) -> None:
    """For some rows, or for all where another function has values."""
    metrics = {"f": {"expr": "f", "reduce": "mean", "name": "{member}"}, "r": "mean(sum(f, over=member))"}
    found = values(metrics, lambda log: log.observe(f={"a": [1.0, None], "b": [None, None]}), tmp_path)
    same({"a": 1.0, "r": 1.0}, found)


@pytest.mark.parametrize("axis", ["x", "k"])
def test_a_comparison_of_nan_is_neither_true_nor_false(axis: str, tmp_path: Path) -> None:
    """Its mean is of those that could be made; the same for completions and for tokens, and for their `not`."""
    metrics = {
        "more": f"mean({axis} > 1)", "less": f"mean({axis} <= 1)", "both": f"mean({axis} > 1 and {axis} < 9)",
        "either": f"mean({axis} > 1 or {axis} < 0)", "not_more": f"mean(not {axis} > 1)", "n": f"count({axis} > 1)",
        "known": f"mean(present({axis}) and {axis} > 1)", "picked": {"expr": f"{axis}", "where": f"{axis} > 1"},
        "number": f"mean(1 if {axis} > 1 else 0)",
    }  # fmt: skip
    given = [2.0, NAN, 0.5, NAN]

    def observe(log: Any, numbers: list[float]) -> None:
        log.observe(**{axis: numbers if axis == "x" else torch.tensor(numbers).reshape(2, 2)})

    same(
        {"more": 0.5, "less": 0.5, "both": 0.5, "either": 0.5, "not_more": 0.5, "n": 2, "known": 0.25, "picked": 2.0,
         "number": 0.25},
        values(metrics, lambda log: observe(log, given), tmp_path / "some"),
    )  # fmt: skip
    gone = values(metrics, lambda log: observe(log, [NAN] * 4), tmp_path / "all")
    undecided = {"more", "less", "both", "either", "not_more"}
    assert {name for name, value in gone.items() if math.isnan(value)} == undecided
    assert (gone["known"], gone["number"], gone["n"], "picked" in gone) == (0.0, 0.0, 0, False)


def test_a_mean_of_comparisons_inside_an_expression_is_of_those_that_could_be_made(tmp_path: Path) -> None:
    """Over the tokens of a completion, and over the completions of a group."""
    metrics = {"low": "min(mean(k > 1, over=token))", "best": "max(mean(x > 1, over=completion))"}
    tokens = torch.tensor([[2.0, NAN], [NAN, NAN]])
    same({"low": 1.0, "best": 1.0}, values(metrics, lambda log: log.observe(k=tokens, x=[NAN, 2.0]), tmp_path))


def test_one_nan_of_what_training_stands_on_is_enough(tmp_path: Path) -> None:
    """One micro-batch of four, one token: the presets' loss, gradients, KL, entropy and ratio are NaN."""
    sink = MemorySink()
    with declog.start("grpo", ["declog.sinks=[]"], sinks=[sink], output_dir=tmp_path) as log:
        for step in range(2):
            with log.step(step):
                for batch in range(4):
                    k = torch.ones(8, 6)
                    if step and batch == 2:
                        k[3, 4] = NAN
                    log.observe(
                        completion_mask=torch.ones(8, 6, dtype=torch.bool), logprobs=-k, old_logprobs=-k.nan_to_num(1),
                        ref_logprobs=-k.nan_to_num(1), entropy=k, advantages=torch.ones(8), loss=float(k.sum()),
                    )  # fmt: skip
                log.observe(grad_norm=NAN if step else 1.0)
    names = ("loss", "grad_norm", "kl", "entropy", "ratio/mean")
    assert [[math.isnan(sink.scalars[step][name]) for name in names] for step in range(2)] == [[False] * 5, [True] * 5]
    counts = {name: value for name, value in sink.scalars[1].items() if name.startswith("nonfinite/")}
    expected = {"loss": 1, "grad_norm": 1, "kl": 1, "entropy": 1, "ratio": 1}
    assert counts == {f"nonfinite/{name}": value for name, value in expected.items()}
    assert not any(name.startswith("nonfinite/") for name in sink.scalars[0])


def test_a_reader_of_answers_is_given_no_counts(tmp_path: Path) -> None:
    """`flush(wait_s=)` returns metrics: what a trainer merges into its own logs has no names of declog's."""
    profile = {
        "run": {"name": "own"},
        "every": "trainer",
        "signals": {"any": {"x": {"axis": "completion"}}},
        "metrics": {"x": "mean(x)"},
    }
    with declog.start(profile, sinks=[MemorySink()], output_dir=tmp_path) as log:
        with log.step(0):
            log.observe(x=[NAN])
        answer = log.flush(wait_s=30)
    assert answer is not None
    assert set(answer) == {"x"} and math.isnan(answer["x"])


BY_NAME: dict[str, dict[str, Any]] = {
    "a family per step": {"axis": "step", "family": True},
    "whatever has a name, per step": {"axis": "step", "family": True, "any": True},
    "whatever has a name, per completion": {"axis": "completion", "family": True, "any": True},
}


@pytest.mark.parametrize("reduce", ["mean", "last", "max", "p50"])
@pytest.mark.parametrize("signal", BY_NAME.values(), ids=BY_NAME.keys())
def test_a_number_by_name_that_is_nan_is_shown_beside_healthy_ones(
    signal: dict[str, Any], reduce: str, tmp_path: Path
) -> None:
    """A loss that is NaN does not vanish because a learning rate is none; one that does not come is not missing."""
    config = profile({"by_name": signal}, {"by_name": {"reduce": reduce}, "twice": f"{reduce}(2 * by_name)"})

    def observe(log: Recorder, **values: float) -> None:
        given: dict[str, Any] = values if signal["axis"] == "step" else {key: [one] * 2 for key, one in values.items()}
        log.observe(given if signal.get("any") else {"by_name": given})

    def steps(log: Recorder) -> None:
        for loss in (2.0, NAN):
            with log.step(int(loss != loss)):
                observe(log, loss=loss, lr=0.5)
                observe(log, lr=0.5)  # a micro-batch that has less to say

    found = run(config, steps, tmp_path)
    assert [str(values["by_name/loss"]) for values in found.scalars.values()] == ["2.0", "nan"]
    assert [str(values["twice/loss"]) for values in found.scalars.values()] == ["4.0", "nan"]
    assert [values["by_name/lr"] for values in found.scalars.values()] == [0.5, 0.5]
    assert ["nonfinite/by_name" in values for values in found.scalars.values()] == [False, True]


def test_the_first_script_shows_a_loss_that_is_nan(tmp_path: Path) -> None:
    """Of `declog.start()`, which knows no name: numbers and values per completion, each for itself."""
    sink = MemorySink()
    with declog.start("minimal", ["declog.sinks=[]"], sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(loss=torch.tensor(NAN), grad_norm=1.0, reward=torch.ones(4), advantage=[NAN] * 4)
    shown = {name: str(value) for name, value in sink.scalars[0].items()}
    assert (shown["loss"], shown["grad_norm"], shown["reward/mean"], shown["advantage/mean"]) == (
        "nan", "1.0", "1.0", "nan",
    )  # fmt: skip
