"""Reports that follow: of a run that goes on, and of a folder of runs that end, are killed, resumed, branched."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, TimeoutError

import declog
from declog.cli import main
from declog.runs.report import many
from declog.runs.report import page as reports
from declog.runs.report.many import RunsReport, run_row, settings, steps_per_second
from declog.runs.run import Run, read, runs_in
from tests import forks
from tests.browser import Open
from tests.forks import PATIENCE_S
from tests.runs.report.test_page import chart, settled
from tests.runs.report.test_runs import TINY, held, log_one

BEHIND = """if (!history.state?.declog)
  Object.defineProperty(document, "visibilityState", { value: "hidden", configurable: true });
"""  # a tab in the background, until it is brought to the front: such a page does not open itself again
FRONT = "delete document.visibilityState"
SAYS = """([selector, text]) => {
  const { ready } = document.documentElement.dataset;
  return ready && document.querySelector(selector)?.textContent.includes(text);
}"""
SORTED = """(filter) => document.documentElement.dataset.ready && document.querySelector("#filter").value === filter
  && document.querySelectorAll("#runs th[aria-sort=descending]").length === 1"""
STANDS = """() => {
  const one = (selector) => document.querySelector(selector);
  const values = ["#filter", "#where", "#byorder", "#smoothing"].map((control) => one(control)?.value);
  return {
    zoom: !one("#unzoom").hidden, pin: one("#pin b")?.textContent, row: one("#list li.on")?.dataset.row, values,
    found: one("#found").textContent, finder: one("#finders [aria-pressed=true]")?.value,
    side: document.querySelectorAll(".side").length, sort: one("#finder th[aria-sort=descending]")?.textContent,
    packs: [...document.querySelectorAll("#loggedtable details[open] summary b")].map((pack) => pack.textContent),
    at: Math.round(one("#browse").getBoundingClientRect().top),
  };
}"""  # what a reader set, as the page shows it
STANDS_AS = f"""(expected) => document.documentElement.dataset.ready
  && JSON.stringify(({STANDS})()) === JSON.stringify(expected)"""
KILLED = """
import os, pickle, signal, sys
import declog

log = declog.start("grpo", ["sinks=[jsonl]", "axes.group.size=2"], output_dir=sys.argv[1])
for step in range(6):
    with log.step(step):
        log.observe(rewards={"a": [0.0, 1.0 + step]}, completion=["one", "two"])
    if step == 3:
        with open(sys.argv[2], "wb") as file:
            pickle.dump(log.state_dict(), file)
log.written()
os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def watching(*words: str | Path) -> Iterator[forks.Fork]:
    """``declog report ... --watch``, from when it has written the report; it is interrupted at the end."""
    with forks.start(["-m", "declog", "report", *words, "--watch", "0.3"]) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("report ")
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)


def says(page: Page, selector: str, text: str) -> None:
    """Wait until an element has a text in it, however often the page opens itself again."""
    page.wait_for_function(SAYS, arg=[selector, text])


def stands_as(page: Page, expected: dict[str, object]) -> None:
    """Wait until a page stands as expected; where it never does, say how it stands."""
    try:
        page.wait_for_function(STANDS_AS, arg=expected)
    except TimeoutError:
        assert page.evaluate(STANDS) == expected
        raise


def test_a_page_follows_a_run_and_stands_as_it_stood(tmp_path: Path, opened: Open) -> None:
    """Class: what a reader set is lost. Zoom, pin, filters, questions, table, selection, folds and place are kept."""
    log = declog.start("grpo", TINY, output_dir=tmp_path / "run")
    for step in range(6):
        log_one(log, step)
    assert log.written()
    with watching(tmp_path / "run") as process:
        found = opened(tmp_path / "run" / "report.html", script=BEHIND)
        page = found.page
        assert " ago" in page.inner_text("#age")
        over = page.locator(chart(page, "reward")).locator(".u-over")
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        assert box is not None
        over.click(position={"x": box["width"] * 0.4, "y": 50})
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 40, steps=4)
        page.mouse.up()
        page.locator("#smoothing").fill("0.5")
        page.locator("#loggedtable summary").first.click()
        page.select_option("#byorder", "latest")
        page.click("#finders button[value=table]")
        page.locator("#finder th", has_text="step").locator("button").click()
        page.fill("#where", "step <= 4")
        settled(page, "10 of 12")
        page.locator("#list li[data-row]").nth(2).click()
        page.keyboard.press("g")
        page.wait_for_selector(".side")
        page.fill("#filter", "reward")
        page.locator("#browse").evaluate("one => scrollBy(0, one.getBoundingClientRect().top - 150)")
        before = page.evaluate(STANDS)
        assert (before["zoom"], before["pin"], before["side"], before["at"]) == (True, "Step 2", 1, 150)
        assert (before["values"], before["finder"], before["sort"]) == (
            ["reward", "step <= 4", "latest", "0.5"], "table", "step \u2193",
        )  # fmt: skip
        for step in range(6, 9):
            log_one(log, step)
        assert log.written()
        page.evaluate(FRONT)
        says(page, "#sub", "steps 0\u20138")
        stands_as(page, before | {"found": "10 of 18"})
        log.close()
        assert process.wait(PATIENCE_S) == 0
        page.wait_for_function("() => document.querySelector('#sub') && !document.querySelector('.badge.live')")
        stands_as(page, before | {"found": "10 of 18"})
    page.evaluate("document.here = true")
    page.wait_for_timeout(4000)  # longer than a page rests that follows
    assert page.evaluate("document.here") is True
    assert set(found.requests) == {(tmp_path / "run" / "report.html").as_uri()}
    assert found.said == []


def test_a_page_that_takes_long_to_open(tmp_path: Path, opened: Open) -> None:
    """Class: a page that asks to be opened again while it is being opened, and never is. What is set then is kept."""
    with declog.start("grpo", TINY, output_dir=tmp_path / "run") as log:
        log_one(log, 0)
        assert log.written()
        reports.write(tmp_path / "report.html", read(tmp_path / "run"), every=0.1)
    found = opened(tmp_path / "report.html", script=BEHIND)
    page = found.page
    waiting: list[Route] = []
    page.route("**/*", lambda route: waiting.append(route), times=1)
    late = "() => Object.assign(document.querySelector('#filter'), { value: 'kl' }).dispatchEvent(new Event('input'))"
    # a page that has begun to open, held up by the route, answers nothing: it begins when this call has returned
    page.evaluate(f"setTimeout({late}, 1300); setTimeout(() => {{ {FRONT} }}, 300)")
    page.wait_for_timeout(2500)  # ten times as long as between two looks at the clock
    assert len(found.requests) == 2
    waiting[0].continue_()
    page.wait_for_function("() => history.state === null && document.querySelector('#filter')?.value === 'kl'")


def test_a_page_in_use_stays(tmp_path: Path, opened: Open) -> None:
    """While a button of the pointer is down, and while a text is selected; then it is opened again."""
    with declog.start("grpo", TINY, output_dir=tmp_path / "run") as log:
        log_one(log, 0)
        assert log.written()
        reports.write(tmp_path / "report.html", read(tmp_path / "run"), every=0.1)
    page = opened(tmp_path / "report.html", script=BEHIND).page
    page.evaluate("document.first = true")
    page.mouse.move(300, 300)
    page.mouse.down()
    page.evaluate(FRONT)
    page.wait_for_timeout(4500)
    assert page.evaluate("document.first")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('h1'))")
    page.mouse.up()
    page.wait_for_timeout(4500)
    assert page.evaluate("document.first")
    page.evaluate("getSelection().removeAllRanges()")
    page.wait_for_function("() => !document.first && document.documentElement.dataset.ready")


def test_an_interrupt_leaves_a_page_that_stays(tmp_path: Path, opened: Open) -> None:
    """Ctrl-C ends the watch and not the run; the file that is left opens itself no more."""
    log = declog.start("grpo", TINY, output_dir=tmp_path / "run")
    log_one(log, 0)
    assert log.written()
    with watching(tmp_path / "run") as process:
        pass
    assert process.poll() == 0
    page = opened(tmp_path / "run" / "report.html").page
    assert page.inner_text(".badge.live").startswith("still running, as of ")
    assert page.locator("#age").count() == 0
    log.close()


def test_killed_resumed_and_branched(tmp_path: Path, opened: Open) -> None:
    """The table of a folder of runs says how each goes; links lead to pages of theirs, and from a branch to its run."""
    folder = tmp_path / "runs"
    done = forks.run(["-c", KILLED, folder / "a", tmp_path / "state"])
    assert done.returncode == -signal.SIGKILL
    state = pickle.loads((tmp_path / "state").read_bytes())
    branch = declog.start("grpo", TINY, resume=state, output_dir=folder / "b", run_config={"lr": 0.5, "dir": "b"})
    with branch:
        log_one(branch, 4)
    with watching(folder / "a") as process:
        assert process.wait(PATIENCE_S) == 0  # nothing goes on there
    assert main(["report", str(folder)]) == 0
    page = opened(folder / "report.html").page
    cells = {line.split("\t")[0].split("\n")[0]: line for line in page.locator("#runs tbody tr").all_inner_texts()}
    assert list(cells) == ["b", "a"]
    assert "killed" in cells["a"]
    assert "branch of a behind step 3" in cells["b"]
    heads = page.locator("#runs th").all_inner_texts()
    assert "lr" in heads
    assert "dir" not in heads  # what only names the run
    page.locator("#runs tr[data-folder=b] a", has_text="a").click()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.inner_text(".badge.error").startswith("ended without a word")
    assert "steps 0\u20135" in page.inner_text("#sub")

    log = declog.start("grpo", TINY, resume=state)
    log_one(log, 4)
    assert log.written()
    with watching(folder) as process:
        page = opened(folder / "report.html", script=BEHIND).page
        page.fill("#filter", "RUNNING")
        page.locator("#runs th", has_text="Reward").first.locator("button").click()
        page.evaluate(FRONT)
        says(page, "#runs tbody tr", "resumed at step 4")
        says(page, "#runs tbody tr td:nth-child(4)", "4")
        log_one(log, 5)
        log_one(log, 6)
        assert log.written()
        says(page, "#runs tbody tr td:nth-child(4)", "6")
        page.wait_for_function(SORTED, arg="RUNNING")
        log.close()
        assert process.wait(PATIENCE_S) == 0
        says(page, "#sub", "0 of 2 runs")


def test_what_comes_while_a_run_is_read_is_in_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class: a row that is kept although its run has grown since, for ever where nothing more comes."""
    log = declog.start("grpo", TINY, output_dir=tmp_path / "run")
    log_one(log, 0)
    assert log.written()

    def write(path: Path, run: Run, **options: Any) -> None:
        reports.write(path, run, **options)
        if not steps:  # another event comes behind the one that the page has
            log_one(log, 1)
            assert log.written()

    monkeypatch.setattr(many, "write", write)
    report = RunsReport(tmp_path, tmp_path / "report.html")
    steps: list[int] = []
    for _ in range(2):
        assert report.write([tmp_path / "run"], 1.0)
        steps.append(held(tmp_path / "report.html")[1]["rows"][0]["step"])
    log.close()
    assert steps == [0, 1]


def test_a_run_without_a_state_goes_on(tmp_path: Path) -> None:
    """Class: a folder of runs is watched by another rule than one run. A run that may still grow is looked at again."""
    folders = [tmp_path / "runs" / name for name in ("a", "b")]
    for folder in folders:
        with declog.start("grpo", TINY, output_dir=folder) as log:
            log_one(log, 0)
    report = RunsReport(tmp_path / "runs", tmp_path / "report.html")
    assert report.write(folders, 1.0) is False
    facts = json.loads((folders[0] / "run.json").read_text())
    del facts["state"]
    (folders[0] / "run.json").write_text(json.dumps(facts))
    assert report.write(folders, 1.0) is reports.goes_on(read(folders[0])) is True
    assert [held(path / "report.html")[1]["every"] for path in (tmp_path, *(tmp_path / name for name in "ab"))] == [
        1.0, 1.0, None,
    ]  # fmt: skip


def test_pages_that_are_current_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page is written when its run has grown, or is asked for without samples: never one with texts is left then."""
    for name in ("a", "b"):
        with declog.start("grpo", TINY, output_dir=tmp_path / name) as log:
            log_one(log, 0)
    pages = [tmp_path / name / "report.html" for name in ("a", "b")]

    def written(*words: str) -> list[bool]:
        before = [page.stat().st_mtime_ns if page.exists() else 0 for page in pages]
        assert main(["report", str(tmp_path), *words]) == 0
        return [page.stat().st_mtime_ns != when for page, when in zip(pages, before, strict=True)]

    assert written() == [True, True]
    assert written() == [False, False]
    assert written("--no-samples") == [True, True]
    assert written("--no-samples") == [False, False]
    os.utime(tmp_path / "a" / "jsonl" / "scalars.jsonl", (1, 1))
    assert written("--no-samples") == [True, False]
    assert written("--output", str(tmp_path / "b")) == [False, True]  # the table is there now
    assert (tmp_path / "b" / "b" / "report.html").exists()
    capsys.readouterr()


def test_a_damaged_run_is_a_row(tmp_path: Path, opened: Open) -> None:
    """One folder that cannot be read is said to be that, and takes no other with it."""
    for name in ("a", "b", "<i>c</i>", "d"):
        with declog.start("grpo", TINY, output_dir=tmp_path / name) as log:
            log_one(log, 0)
    for name in ("b", "d"):
        (tmp_path / name / "run.json").write_text("{}")
    shutil.rmtree(tmp_path / "d" / "jsonl")
    assert main(["report", str(tmp_path)]) == 0
    found = opened(tmp_path / "report.html")
    rows = {row.get_attribute("data-folder"): row.inner_text() for row in found.page.locator("#runs tbody tr").all()}
    assert "not written by declog" in rows["b"]
    assert "DL609" in rows["d"]
    assert [rows[name].split("\t")[1] for name in ("a", "<i>c</i>")] == ["finished"] * 2
    found.page.locator("#runs a", has_text="<i>").click()
    found.page.wait_for_selector("html[data-ready]", state="attached")
    assert found.said == []


def test_what_is_said_of_a_run(tmp_path: Path) -> None:
    """Last values, points of small curves, steps per second: against numbers computed here."""
    with declog.start("grpo", TINY, output_dir=tmp_path / "a" / "run") as log:
        for step in range(200):
            log_one(log, step)
    run = read(tmp_path / "a" / "run")
    row = run_row(run)
    (reward,) = [core for core in row["core"] if core["name"] == "reward"]
    assert (row["step"], reward["last"]) == (199, 100.0)
    assert len(reward["x"]) == len(reward["y"]) == 80
    assert sum(reward["y"]) / 80 == pytest.approx(sum((1 + step) / 2 for step in range(200)) / 200, rel=0.02)
    times = {one["step"]: one["time"] for one in run.scalars}
    assert steps_per_second(run.scalars.arrow()) == pytest.approx(19 / (times[199] - times[180]))
    assert settings({"run": run}) == []
    assert runs_in(tmp_path / "a" / "run") == runs_in(tmp_path / "a" / "run" / "jsonl") == []
    assert runs_in(tmp_path / "a") == [tmp_path / "a" / "run"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--watch", "a"], "--watch: `a` is no number of seconds"),
        (["--watch", "0"], "--watch: 0 seconds"),
        (["--compare", "a"], "--compare is for one run"),
        (["--run-id", "a"], "--run-id is for one run"),
    ],
)
def test_what_is_refused(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written, and the message says what to write instead."""
    for name in ("a", "b"):
        with declog.start("grpo", TINY, output_dir=tmp_path / name) as log:
            log_one(log, 0)
    assert main(["report", str(tmp_path), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
