"""What a researcher sees at one look: how long the demo's page is, and a reward that is hacked by length."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import declog
from declog.records import Records, Scalar
from declog.runs.report import page as reports
from declog.runs.run import read
from declog.sinks.parquet import ParquetSink
from tests.browser import Open
from tests.docs.test_demo import SHORT, demo
from tests.runs.report.test_onsets import healthy
from tests.sinks.samples import run_info

FEW = [*SHORT, "steps=24"]
MORE = ["learning_rate=8e-3", "seed=1"]
MOST_PIXELS = 9_000  # of the demo's page, from its head to its foot
DARK = """(canvas) => {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const shades = [];
  for (let y = 12; y < height - 30; y++) {
    for (let x = 62; x < width - 14; x++) {
      const shade = data[4 * (y * width + x) + 3];
      if (shade > 0) shades.push([x, y, shade]);
    }
  }
  return shades;
}"""


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The demo, and the demo with another learning rate."""
    folders = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("other")
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(demo, folder, *FEW, *more) for folder, more in zip(folders, ([], MORE), strict=True)]
        one, other = (run.result().run for run in runs)
    return one, other


def test_the_demos_page_is_no_scroll(demos: tuple[Path, Path], opened: Open) -> None:
    """It has all its sections, and is no wider than the window."""
    page = opened(demos[0] / "report.html", viewport={"width": 1360, "height": 850}).page
    height, width = page.evaluate("[document.documentElement.scrollHeight, document.documentElement.scrollWidth]")
    assert height <= MOST_PIXELS
    assert width == 1360
    assert page.locator("section:visible").count() >= 5


def test_the_demo_twice_with_another_setting(demos: tuple[Path, Path], tmp_path: Path, opened: Open) -> None:
    """Class: "equal" of what differs. The settings that differ stand there with both values, and no other."""
    reports.write(tmp_path / "both.html", read(demos[0]), [read(demos[1])])
    found = opened(tmp_path / "both.html")
    page = found.page
    rows = [tuple(line.split("\t")) for line in page.locator("#differences tbody tr").all_inner_texts()]
    assert rows == [("seed", "0", "1"), ("learning_rate", "0.004", "0.008")]
    assert "equal" not in page.inner_text("#differences")
    assert page.locator("#results tbody tr", has_text="Learning rate").count() == 1
    assert found.said == []


def test_a_run_that_is_well_has_no_onset(tmp_path: Path, opened: Open) -> None:
    """Its page says of no curve that it broke; `test_onsets.py` has 20 such runs."""
    sink = ParquetSink()
    sink.open(run_info(tmp_path))
    curves = [(name, values) for name, values, _ in healthy(0)]
    steps = range(len(curves[0][1]))
    scalars = [tuple(Scalar(name, float(values[step]), name) for name, values in curves) for step in steps]
    sink.write_many([(step, Records(time=float(step), scalars=scalars[step])) for step in steps])
    sink.close()
    reports.write(tmp_path / "report.html", read(tmp_path))
    page = opened(tmp_path / "report.html").page
    assert page.locator(".plot").count() == len(curves)
    assert page.locator("#onsets li").all_inner_texts() == []


@pytest.mark.parametrize("hacked", [True, False])
def test_a_reward_that_is_hacked_by_length(hacked: bool, tmp_path: Path, opened: Open) -> None:
    """One press: reward by length, late points dark. Hacked, they lie on a line that ends dark; else they do not."""
    rng = np.random.default_rng(0)
    every = ["filters.everything={first: 1000000}", "tables.samples.filter=everything", "tables.samples.every=1"]
    with declog.start("grpo", ["sinks=[jsonl]", *every], output_dir=tmp_path) as log:
        for step in range(40):
            length = rng.integers(10, 30, 8) + (10 * step if hacked else 0)
            reward = length / 400 + rng.normal(0, 0.02, 8) if hacked else rng.random(8)
            with log.step(step):
                texts = [" ".join(["word"] * count) for count in length]
                log.observe(reward=reward, length=length, prompt=["q"] * 8, completion=texts)
    reports.write(tmp_path / "report.html", read(tmp_path))
    found = opened(tmp_path / "report.html")
    page = found.page
    page.click("#finders button[value=scatter]")
    chosen = [page.input_value(f"#finder select[aria-label='{axis} axis']") for axis in ("y", "x")]
    assert chosen == ["reward", "length"]
    page.wait_for_function("() => document.querySelector('#finder canvas').width > 400")
    x, y, shade = np.asarray(page.locator("#finder canvas").evaluate(DARK), dtype=float).T
    alike = np.corrcoef(x, -y)[0, 1], np.corrcoef(x, shade)[0, 1]
    assert bool(min(alike) > 0.5) is hacked, alike
    assert found.said == []
