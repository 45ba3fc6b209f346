"""The example on a real Ray cluster, with an actor that is killed: it logs what one process does of the same work."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

import declog
from tests.forks import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS, KILLED, ACTORS = 6, 3, 3
SMALL = [f"actors={ACTORS}", f"steps={STEPS}", f"kill_at={KILLED}", "prompts=4"]
OVERRIDES = [*SMALL, "declog.tables.samples={every: 1, keep: window}"]
SELF = "declog/"  # what declog says about itself: times differ
Values = dict[tuple[int, str], float]


def living(step: int) -> range:
    """The actors that take part in a step: the last one is killed."""
    return range(ACTORS if step < KILLED else ACTORS - 1)


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The example, run as a stranger runs it: the folder of its run, and its output."""
    folder = tmp_path_factory.mktemp("ray")
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as short:  # names of sockets have at most 107 bytes
        done = subprocess.run(
            [sys.executable, EXAMPLES / "ray_actors.py", *OVERRIDES],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "HOME": str(folder), "RAY_TMPDIR": short,
                 "RAY_memory_monitor_refresh_ms": "0", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        (run,) = [config.parent for config in folder.rglob(".hydra")]
        yield run, done.stdout


@pytest.fixture(scope="module")
def on_one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same work, one actor after the other, observed as the micro-batches of one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        from arithmetic.tabular import improve, initial_weights, mean

    with initialize_config_dir(str(EXAMPLES / "conf"), version_base="1.3"):
        cfg = compose("ray_actors", OVERRIDES)
    assert isinstance(cfg, DictConfig)
    folder = tmp_path_factory.mktemp("one")
    weights = initial_weights(cfg)
    with declog.start(cfg, output_dir=folder) as log:
        for step in range(STEPS):
            with log.step(step):
                weights = mean([improve(cfg, weights, step, rank) for rank in living(step)])
    return folder


def scalars(run: Path) -> pd.DataFrame:
    return pd.read_parquet(run / "parquet" / "scalars")


def values(rows: pd.DataFrame) -> Values:
    return {(row.step, row.name): row.value for row in rows.itertuples(index=False) if not row.name.startswith(SELF)}


def test_actors_log_what_one_process_logs(on_ray: tuple[Path, str], on_one_process: Path) -> None:
    """Every scalar of every step, before an actor is killed and after."""
    expected = values(scalars(on_one_process))
    assert {step for step, _ in expected} == set(range(STEPS))
    assert {"reward", "kl", "loss", "rewards/correct/std", "ratio/max"} <= {name for _, name in expected}
    assert values(scalars(on_ray[0])) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_killed_actor_is_missed(on_ray: tuple[Path, str]) -> None:
    """The values without it are marked, and how many actors they are of is logged; both are reported."""
    rows = scalars(on_ray[0])
    own = rows[~rows.name.str.startswith(SELF)]
    assert set(own[own.partial].step) == set(range(KILLED, STEPS))
    assert set(own[~own.partial].step) == set(range(KILLED))
    ranks = rows[rows.name == "declog/ranks"]
    assert dict(zip(ranks.step, ranks.value, strict=True)) == dict.fromkeys(range(KILLED, STEPS), ACTORS - 1)
    assert f"actor {ACTORS - 1} is gone" in on_ray[1]
    assert f"actors [{ACTORS - 1}] exported no window" in on_ray[1]


def test_actors_send_the_rows_of_tables(on_ray: tuple[Path, str], on_one_process: Path) -> None:
    """The best and the worst completions of each step, over all actors."""
    ray, one = (pd.read_parquet(run / "parquet" / "tables" / "samples") for run in (on_ray[0], on_one_process))
    assert len(one) == 4 * STEPS
    assert ray.pop("run_id").nunique() == one.pop("run_id").nunique() == 1
    pd.testing.assert_frame_equal(ray, one)
