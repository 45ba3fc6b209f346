"""The time of a step: timers, the rest of the clock, the slowest rank, stalls, by step and by the clock."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path

import pytest

import declog
from declog.records import Records, Scalar
from declog.runs.report import page as reports
from declog.runs.report.curves import Meanings
from declog.runs.report.step_time import COLUMNS, step_time
from declog.runs.run import Run, read
from declog.sinks.jsonl import JsonlSink
from tests.browser import Open
from tests.sinks.samples import run_info

STALLED, STALL_S = 30, 58.0
NONE = "\N{EN DASH}"


def written(folder: Path, steps: int = 60, every: int = 1, timed: bool = True) -> Run:
    """A run of 2 s a step, of which generate takes 1 s on the mean rank and 1.5 s on the slowest, update 0.5 s."""
    sink = JsonlSink()
    sink.open(run_info(folder))
    for step in range(every - 1, steps, every):
        now = 1000.0 + 2 * step + (STALL_S if step >= STALLED else 0)
        timers = {"time/generate/mean": 1.0, "time/generate/max": 1.5, "time/update/mean": 0.5, "time/update/max": 0.5}
        values = {"reward": 0.5, **(timers if timed else {})}
        sink.write(step, Records("train", now, tuple(Scalar(name, value, name) for name, value in values.items())))
        sink.write(step, Records("eval", now + 0.1, (Scalar("eval/reward", 0.5, "reward"),)))
    sink.close()
    return read(folder)


@pytest.mark.parametrize("every", [1, 5])
def test_the_parts_and_the_rest_are_the_clock(every: int, tmp_path: Path) -> None:
    """Worked out by hand, also where a log event is of several steps; evaluation's events are no steps."""
    found = step_time(written(tmp_path, every=every).scalars.arrow(), Meanings({}))
    assert found is not None
    events = 60 // every
    rest = [0.5] * (events - 1)
    stalled = STALLED // every - (every > 1)
    parts = {one["name"]: one for one in found["parts"]}
    assert list(parts) == ["generate", "update"]
    assert parts["generate"]["seconds"] == [1.0] * events
    assert (parts["generate"]["mean"], parts["generate"]["slowest"], parts["generate"]["times"]) == (1.0, 1.5, 1.5)
    assert (parts["update"]["mean"], parts["update"]["times"]) == (0.5, 1.0)
    stall = [index for index, one in enumerate(found["rest"]) if one and one > 1]
    assert len(stall) == 1
    rest[stall[0] - 1] = 0.5 + STALL_S / every
    assert found["rest"] == [None, *map(pytest.approx, rest)]
    total = 1.5 * events + sum(rest)
    assert parts["generate"]["share"] == pytest.approx(events / total)
    assert found["restShare"] == pytest.approx(sum(rest) / total)
    assert (found["median"], found["steps"][-1], found["clock"][-1]) == (2.0, 59, 2 * (60 - every) + STALL_S)
    [only] = found["stalls"]
    assert (only["step"], only["seconds"]) == (found["steps"][stall[0]], 2 * every + STALL_S)
    assert stalled in (stall[0], stall[0] - 1, stall[0] + 1)


def test_a_long_run_has_means_of_neighbours(tmp_path: Path) -> None:
    """As many columns as the picture has, and every stall."""
    found = step_time(written(tmp_path, steps=1000).scalars.arrow(), Meanings({}))
    assert found is not None
    assert len(found["steps"]) == len(found["parts"][0]["seconds"]) == len(found["rest"]) == COLUMNS
    assert found["steps"][-1] == 999
    assert [one["step"] for one in found["stalls"]] == [STALLED]


def test_a_timer_of_the_whole_step_is_no_part_of_it(tmp_path: Path) -> None:
    """verl's `timing_s/step`: the others are its parts, and the rest is what they lack of it, not of the clock."""
    sink = JsonlSink()
    sink.open(run_info(tmp_path))
    for step in range(4):
        values = {"timing_s/step": 8.0, "timing_s/gen": 5.0, "timing_s/update": 2.0}
        sink.write(
            step,
            Records("train", 100.0 + 30 * step, tuple(Scalar(name, one, "timing") for name, one in values.items())),
        )
    sink.close()
    output = {"name": "timing_s/{member}", "key": "timing", "metric": "timing", "unit": "s", "reduction": "sum"}
    found = step_time(read(tmp_path).scalars.arrow(), Meanings({"outputs": [output]}))
    assert found is not None
    assert {one["name"]: one["share"] for one in found["parts"]} == {"gen": 0.625, "update": 0.25}
    assert (found["rest"], found["restShare"]) == ([1.0] * 4, 0.125)


def test_no_time_is_no_section(tmp_path: Path) -> None:
    """Of a run with one log event, or none."""
    run = written(tmp_path, steps=1)
    assert step_time(run.scalars.arrow(), Meanings({})) is None
    assert step_time(run.scalars.arrow().slice(0, 0), Meanings({})) is None


def test_timers_of_a_profile_are_known_by_what_it_says(tmp_path: Path) -> None:
    """A real run of `grpo`, with another name for them."""
    with declog.start(
        "grpo", ['metrics.time.name="seconds/{member}/{reduce}"', "declog.sinks=[jsonl]"], output_dir=tmp_path
    ) as log:
        for step in range(3):
            with log.step(step):
                with declog.timer("generate"):
                    time.sleep(0.002)
                declog.observe(reward=[0.0, 1.0])
    run = read(tmp_path)
    assert "seconds/generate/mean" in run.names()
    found = step_time(run.scalars.arrow(), Meanings(run.plan))
    assert found is not None
    [part] = found["parts"]
    assert part["name"] == "generate"
    assert part["mean"] == pytest.approx(float(run["seconds/generate/mean"].values.mean()))
    assert part["times"] == pytest.approx(1)


def test_the_page_shows_the_stack_by_step_and_by_the_clock(tmp_path: Path, opened: Open) -> None:
    """Shares, the slowest rank and the stall; on the clock the stall is as wide as it took."""
    written(tmp_path)
    reports.write(tmp_path / "report.html", read(tmp_path))
    found = opened(tmp_path / "report.html")
    page = found.page
    rows = [line.split("\t") for line in page.locator("#steptimetable tbody tr").all_inner_texts()]
    assert [[cell.strip("\N{MULTIPLICATION SIGN} ") for cell in row] for row in rows] == [
        ["generate", "33.8 %", "1 s", "1.5 s", "1.5"], ["update", "16.9 %", "0.5 s", "0.5 s", "1"],
        ["the rest", "49.3 %", "1.483 s", NONE, NONE],
    ]  # fmt: skip
    stall = page.locator("#steptimestalls li")
    assert stall.all_inner_texts() == ["step 30 60 s after step 29, 30 times the usual"]
    width = (
        "() => { const d = document.querySelector('#steptimepicture path[data-part=rest]').getAttribute('d');"
        " return Math.max(...[...d.matchAll(/M([\\d.]+) [^H]*H([\\d.]+)/g)].map((one) => one[2] - one[1])); }"
    )
    by_step = page.evaluate(width)
    page.click("#steptimecontrols button")
    assert page.is_checked("#clock")
    by_clock = page.evaluate(width)
    assert by_step == pytest.approx(1000 / 59, rel=0.01)
    assert by_clock == pytest.approx(1000 * 60 / (2 * 59 + STALL_S), rel=0.01)
    assert re.sub(r"\s+", " ", page.locator("#steptimepicture .ends").inner_text()) == "0 s 2.9 min"
    assert found.said == []


def test_all_curves_stand_by_the_clock(tmp_path: Path, opened: Open) -> None:
    """A stall is as wide as it took, zoom and pins stay at their steps; and back again."""
    written(tmp_path)
    reports.write(tmp_path / "report.html", read(tmp_path))
    found = opened(tmp_path / "report.html")
    page = found.page
    chart = page.locator('.plot[data-name*="reward"]').first
    chart.scroll_into_view_if_needed()
    canvas = chart.locator(".u-over")
    total = 2 * 59 + STALL_S

    def step_under(share: float) -> str:
        box = canvas.bounding_box()
        assert box is not None
        canvas.hover(position={"x": share * box["width"], "y": 40})
        canvas.hover(position={"x": share * box["width"], "y": 20})
        return chart.locator(".now").inner_text().partition(":")[0]

    assert step_under(0.25) == "step 15"
    page.check("#clock")
    for share, steps in (
        (0.25, {22}),
        (29 * 2 / total + 0.02, {29}),
        (30 * 2 / total + STALL_S / total - 0.02, {30}),
        (0.75, {37, 38}),
    ):
        assert step_under(share) in {f"step {step}" for step in steps}, share
    box = canvas.bounding_box()
    assert box is not None
    canvas.click(position={"x": 0.25 * box["width"], "y": 20})
    assert page.locator("#pin b").inner_text() == "Step 22"
    page.uncheck("#clock")
    assert step_under(0.25) == "step 15"
    assert page.locator("#pin b").inner_text() == "Step 22"
    assert found.said == []


def test_where_steps_stand_on_the_clock(tmp_path: Path) -> None:
    """Of a long run the corners of its stalls are exact; seconds rise strictly, also where events share a time."""
    found = step_time(written(tmp_path, steps=1000).scalars.arrow(), Meanings({}))
    assert found is not None
    axis = dict(zip(found["axis"]["steps"], found["axis"]["seconds"], strict=True))
    assert (axis[0], axis[29], axis[30], axis[999]) == pytest.approx((0, 58, 60 + STALL_S, 2 * 999 + STALL_S), abs=0.01)
    seconds = found["axis"]["seconds"]
    assert all(one < other for one, other in pairwise(seconds))


def test_a_run_without_timers_has_no_such_section(tmp_path: Path, opened: Open) -> None:
    """Its navigation has none, either."""
    written(tmp_path, timed=False)
    reports.write(tmp_path / "report.html", read(tmp_path))
    page = opened(tmp_path / "report.html").page
    assert page.locator("#steptime").is_hidden()
    assert page.locator('nav a[href="#steptime"]').is_hidden()
    assert page.locator("#clock").is_visible()
