"""The demo, run as a stranger runs it: what its sinks hold, and what it prints at the end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from omegaconf import OmegaConf

from tests import forks
from tests.forks import python

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ("prompts=8", "minibatch=32")  # of each step, a quarter of the demo's rollout
SHORT = [
    "steps=60",
    *SMALL,
    "learning_rate=4e-3",
    "declog.sink_options.console.every=15",
    "declog.tables.best.every=30",
    "declog.tables.worst.every=30",
]
SCALARS = Mapping[tuple[int, str], float]

TRACKIO = """
import json, sys
import trackio
from trackio.sqlite_storage import SQLiteStorage

(run,) = trackio.Api().runs(sys.argv[1])
print(json.dumps(SQLiteStorage.get_logs(sys.argv[1], run.name, run_id=run.id)))
"""


@dataclass(frozen=True)
class Demo:
    """A finished demo: where it ran, its folder and what it printed."""

    cwd: Path
    run: Path
    output: str

    def line(self, label: str) -> str:
        """What the end report says behind a label."""
        (found,) = [line for line in self.output.splitlines() if line.startswith(f"{label} ")]
        return found.removeprefix(label).strip()


def demo(cwd: Path, *overrides: str, examples: Path = EXAMPLES) -> Demo:
    """Run the demo in an empty folder."""
    env = forks.environment({"TRACKIO_DIR": "", "HOME": str(cwd / "home")})
    done = forks.run([examples / "grpo_arithmetic.py", *overrides], cwd=cwd, env=env)
    assert done.returncode == 0, done.stderr
    hydra = [Path(folder) for folder, folders, _ in os.walk(cwd) if ".hydra" in folders]  # other runs may write there
    run = sorted(hydra)[0]
    return Demo(cwd, run, done.stdout)


def jsonl(run: Path) -> SCALARS:
    phases = [json.loads(line) for line in (run / "jsonl" / "scalars.jsonl").read_text().splitlines()]
    return {(phase["step"], name): value for phase in phases for name, value in phase["scalars"].items()}


def parquet(run: Path) -> SCALARS:
    rows = pd.read_parquet(run / "parquet" / "scalars")
    return dict(zip(zip(rows.step, rows.name, strict=True), rows.value, strict=True))


def trackio(run: Path, project: str) -> SCALARS:
    logs = json.loads(python(TRACKIO, project, env={"TRACKIO_DIR": str(run / "trackio")}))
    return {
        (log["step"], name): value
        for log in logs
        for name, value in log.items()
        if name not in ("step", "timestamp") and not isinstance(value, dict)
    }


@pytest.fixture(scope="module")
def grpo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo in 60 steps instead of 400: as many blocks of the console and tables as in the whole one."""
    return demo(tmp_path_factory.mktemp("grpo"), *SHORT)


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """A run with a metric that its YAML adds, one that an override adds, and every row in the table."""
    folder = tmp_path_factory.mktemp("edited")
    shutil.copytree(EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    profile = folder / "examples" / "conf" / "grpo_arithmetic.yaml"
    before = profile.read_text()
    profile.write_text(before.replace("\ndeclog:\n", "\ndeclog:\n  metrics: {reward_p90: p90(reward)}\n"))
    assert profile.read_text() != before
    overrides = [
        '+declog.metrics.reward_p10="p10(reward)"',
        "+declog.filters.everything={first: 1000000}",
        "+declog.tables.samples={rows: completion, schema: samples, filter: everything, every: 1}",
        "declog.sink_options.console={profile: full, every: 1}",
        "+declog.sink_options.console.max_scalars=100",
    ]
    return demo(folder, "steps=3", *overrides, examples=folder / "examples")


def test_every_sink_holds_the_same_numbers(grpo: Demo) -> None:
    """JSONL, parquet and trackio agree on every step and name, to the last bit."""
    expected = jsonl(grpo.run)
    assert {step for step, _ in expected} == set(range(60))
    assert {"reward", "kl", "rewards/correct/mean", "ratio/max"} <= {name for _, name in expected}
    assert parquet(grpo.run) == expected
    assert trackio(grpo.run, "arithmetic_grpo") == expected


def test_polars_and_pandas_read_one_table(grpo: Demo) -> None:
    """The dataset is the same in both, samples included."""
    for dataset in ("scalars", "tables/best", "tables/worst"):
        folder = grpo.run / "parquet" / dataset
        assert pl.read_parquet(folder).to_dicts() == pd.read_parquet(folder).astype(object).where(
            lambda frame: frame.notna(), None
        ).to_dict("records")


def test_the_policy_learns(grpo: Demo) -> None:
    """The reward rises; the whole demo more than triples it."""
    rewards = [value for (_, name), value in sorted(jsonl(grpo.run).items()) if name == "reward"]
    assert len(rewards) == 60
    assert sum(rewards[-10:]) > 1.5 * sum(rewards[:10])


def test_the_best_and_the_worst_completion_each_thirtieth_step(grpo: Demo) -> None:
    """One row each; a row's reward is the weighted sum of what its reward functions said."""
    best, worst = (pd.read_parquet(grpo.run / "parquet" / "tables" / name) for name in ("best", "worst"))
    assert [best.step.tolist(), worst.step.tolist()] == [[29, 59]] * 2
    assert (best.reward > worst.reward).tolist() == [True, True]
    samples = pd.concat([best, worst])
    parts = samples[[f"reward/{name}" for name in ("correct", "close", "format", "length")]]
    assert (parts @ [1.0, 1.0, 0.5, 0.5]).tolist() == pytest.approx(samples.reward.tolist(), rel=1e-6)


def test_the_console_shows_the_slim_profile_each_fifteenth_step(grpo: Demo) -> None:
    """Where windows of fifteen end, each once; the best sample comes before the worst."""
    heads = ("step ", "  best", "  worst")
    samples = ["  best: 1 of 1 rows", "  worst: 1 of 1 rows"]
    assert [line for line in grpo.output.splitlines() if line.startswith(heads)] == [
        "step 14 · train",
        *["step 29 · train", *samples],
        "step 44 · train",
        *["step 59 · train", *samples],
    ]
    assert "rewards/correct/mean" not in grpo.output


def test_the_demo_prints_at_most_61_lines_and_ends_on_where_to_look(grpo: Demo) -> None:
    """The short run prints as many as the whole one, whose turns are as many; `make` adds one when it installs."""
    profile = OmegaConf.load(EXAMPLES / "conf" / "grpo_arithmetic.yaml")
    short = OmegaConf.from_dotlist(SHORT)
    turns = [
        [config.steps / every for every in (config.declog.sink_options.console.every, config.declog.tables.best.every)]
        for config in (profile, short)
    ]
    assert turns == [[4, 2], [4, 2]]
    lines = grpo.output.splitlines()
    assert len(lines) == 61
    assert [line.split()[0] for line in lines[-5:]] == ["report", "jsonl", "parquet", "pandas", "dashboard"]


def test_the_report_says_where_the_run_is(grpo: Demo) -> None:
    """Its paths are there, and what it says to type can be typed."""
    assert f"run        {grpo.run.relative_to(grpo.cwd)}" in grpo.output.splitlines()
    page = grpo.cwd / grpo.line("report").partition(" (")[0]
    assert (page, page.is_file()) == (grpo.run / "report.html", True)
    assert (grpo.cwd / grpo.line("jsonl")).is_file()
    assert (grpo.cwd / grpo.line("parquet")).is_dir()
    directory, command, *arguments = grpo.line("dashboard").split()
    assert (grpo.cwd / directory.removeprefix("TRACKIO_DIR=") / "arithmetic_grpo.db").is_file()
    assert Path(command).name == "trackio"
    assert arguments == ["show", "--project", "arithmetic_grpo"]


def test_the_pandas_line_works_as_printed(grpo: Demo) -> None:
    """Pasted into Python where the demo ran, it is a table of steps by names with the logged numbers."""
    with contextlib.chdir(grpo.cwd):
        statement, expression = grpo.line("pandas").split("; ")
        names: dict[str, Any] = {}
        exec(statement, names)
        table = eval(expression, names)
    assert table.stack().to_dict() == jsonl(grpo.run)


def test_the_plot_shows_the_reward(grpo: Demo) -> None:
    """One column per step, the highest at the top line."""
    lines = grpo.output.splitlines()
    start = lines.index("reward by step")
    plot = lines[start + 1 : start + 8]
    assert [line[7] for line in plot] == ["┤"] * 6 + ["└"]
    assert {len(line) for line in plot} == {8 + 60}
    rewards = [value for (_, name), value in sorted(jsonl(grpo.run).items()) if name == "reward"]
    assert float(plot[0][:6]) == round(max(rewards), 2)
    assert plot[0][8 + rewards.index(max(rewards))] == "█"


def test_a_metric_added_in_yaml_or_as_an_override_reaches_every_sink(edited: Demo) -> None:
    """No code changes; the numbers are those that pandas finds in the logged rows."""
    rows = pd.read_parquet(edited.run / "parquet" / "tables" / "samples")
    assert rows.groupby("step").size().to_dict() == {0: 256, 1: 256, 2: 256}
    by_step = rows.groupby("step").reward
    expected = {(step, "reward_p90"): value for step, value in by_step.quantile(0.9).items()}
    expected |= {(step, "reward_p10"): value for step, value in by_step.quantile(0.1).items()}
    everything = jsonl(edited.run)
    assert {key: everything[key] for key in expected} == pytest.approx(expected, rel=1e-12)
    assert parquet(edited.run) == everything
    assert trackio(edited.run, "arithmetic_grpo") == everything
    assert [edited.output.count(name) for name in ("reward_p90", "reward_p10")] == [3, 3]


def test_rloo_runs_with_its_own_preset(tmp_path: Path) -> None:
    """`algorithm=rloo` brings the preset of that name; the three sinks agree, and the console shows the last step."""
    rloo = demo(tmp_path, "algorithm=rloo", "steps=2", *SMALL)
    assert [line for line in rloo.output.splitlines() if line.startswith("step ")] == ["step 1 · train"]
    expected = jsonl(rloo.run)
    assert {name for _, name in expected} >= {"reward", "kl/sequence"}
    assert parquet(rloo.run) == expected
    assert trackio(rloo.run, "arithmetic_rloo") == expected


def test_two_runs_at_once_in_one_folder(tmp_path: Path) -> None:
    """Started together where Hydra gives both the same folder: two whole runs, each with a record of its own."""
    with ThreadPoolExecutor(2) as pool:
        options = ("steps=3", *SMALL, "hydra.run.dir=job")
        for started in [pool.submit(demo, tmp_path, *options, f"seed={seed}") for seed in (1, 2)]:
            started.result()
    runs = [tmp_path / "job", tmp_path / "job" / "2"]
    written = [json.loads((run / "run.json").read_text()) for run in runs]
    assert [each["state"] for each in written] == ["finished"] * 2
    assert len({each["run_id"] for each in written}) == 2
    for run, each in zip(runs, written, strict=True):
        expected = jsonl(run)
        assert {step for step, _ in expected} == {0, 1, 2}
        assert parquet(run) == expected
        assert set(pd.read_parquet(run / "parquet" / "scalars").run_id) == {each["run_id"]}


def test_a_multirun_has_a_folder_per_job_and_one_dashboard(tmp_path: Path) -> None:
    """Two jobs of one process log the same numbers to their own files and to a database of both."""
    trackio_dir = "declog.sink_options.trackio.dir=${hydra:runtime.cwd}/trackio"
    first = demo(tmp_path, "-m", "algorithm=grpo,rloo", "steps=2", *SMALL, trackio_dir)
    runs = sorted(first.run.parent.glob("[0-9]"))
    assert [run.name for run in runs] == ["0", "1"]
    for run, project in zip(runs, ("arithmetic_grpo", "arithmetic_rloo"), strict=True):
        expected = jsonl(run)
        assert {step for step, _ in expected} == {0, 1}
        assert parquet(run) == expected
        assert trackio(tmp_path, project) == expected
