"""Ways to a sample: a question in the language of `where`, a table to be sorted, a scatter, the prompts of the run."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.runs.report import page as reports
from declog.runs.run import read
from declog.testing import MemorySink
from tests.browser import Open
from tests.runs.report import runs
from tests.runs.report.test_page import settled, texts, value_of

DATA = Path(__file__).parents[2] / "data"
SHARED = json.loads((DATA / "where.json").read_text(encoding="utf-8"))
SHOWN = """(rows) => {
  const all = [...document.querySelectorAll("#finder .open")];
  return all.map((one) => one.dataset.row).sort().join() === rows;
}"""
TYPES = {"reward": "float", "length": "int", "source": "text", "ok": "bool", "completion": "text"}
SIGNALS = {name: {"axis": "completion", "type": type_} for name, type_ in TYPES.items()}
COLUMNS = {name: {"type": type_} for name, type_ in TYPES.items()}


def observe(log: declog.Recorder) -> None:
    """The shared rows, as one step."""
    with log.step(0):
        log.observe({name: [row[name] for row in SHARED["rows"]] for name in TYPES})


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run of the shared rows."""
    folder = tmp_path_factory.mktemp("where")
    profile = {
        "signals": {"any": SIGNALS},
        "schemas": {"s": COLUMNS},
        "tables": {"t": {"schema": "s"}},
        "sinks": ["jsonl"],
    }
    with declog.start(profile, output_dir=folder) as log:
        observe(log)
    reports.write(folder / "report.html", read(folder))
    return folder / "report.html"


def test_the_page_answers_as_declog_does(shared: Path, opened: Open) -> None:
    """The shared cases: each question has the same rows on the page and in a table's filter."""
    cases = SHARED["cases"]
    profile: dict[str, Any] = {
        "signals": {"any": SIGNALS}, "schemas": {"s": {"length": "int"}},
        "filters": {f"f{place}": {"where": question} for place, (question, _) in enumerate(cases)},
        "tables": {f"t{place}": {"schema": "s", "filter": f"f{place}"} for place in range(len(cases))},
    }  # fmt: skip
    sink = MemorySink()
    with declog.start(profile, sinks=[sink]) as log:
        observe(log)
    lengths = [row["length"] for row in SHARED["rows"]]
    tables: dict[str, list[int]] = {f"t{place}": [] for place in range(len(cases))}
    tables |= {
        name: [lengths.index(one) for one in table.data["length"]] for name in tables for _, table in sink.tables(name)
    }
    assert {question: sorted(tables[f"t{place}"]) for place, (question, _) in enumerate(cases)} == dict(
        map(tuple, cases)
    )
    page = opened(shared).page
    page.click("#finders button[value=table]")
    for question, rows in cases:
        page.fill("#where", question)
        settled(page, f"{len(rows)} of {len(lengths)}")
        page.wait_for_function(SHOWN, arg=",".join(map(str, rows)))


@pytest.mark.parametrize(
    ("question", "fault"),
    [
        ("rewrd > 1", "no column `rewrd` (columns: "),
        ("reward >", "something is missing at the end"),
        ("reward & 1", "`&` is not understood at 8"),
        ("(reward > 0.5", "`)` is missing at the end"),
        ("reward > 1 source", "`source` is not understood at 12"),
    ],
)
def test_a_question_that_is_not_understood(question: str, fault: str, shared: Path, opened: Open) -> None:
    """What is wrong, and where; all rows stay."""
    page = opened(shared).page
    page.fill("#where", question)
    page.wait_for_selector("#fault:not([hidden])")
    assert fault in page.inner_text("#fault")
    settled(page, "4 of 4")
    page.fill("#where", "reward > 0")
    settled(page, "2 of 4")
    assert page.locator("#fault").is_hidden()


def test_the_page_counts_prompts_as_declog_does(tmp_path: Path, opened: Open) -> None:
    """The shared cases, never solved first, in a notebook and on the page: attempts without a score are no zeros."""
    cases = json.loads((DATA / "prompts.json").read_text(encoding="utf-8"))
    expected = cases["prompts"]
    types = {"prompt": "text", "reward": "float"}
    profile = {
        "signals": {"any": {name: {"axis": "completion", "type": type_} for name, type_ in types.items()}},
        "schemas": {"s": {name: {"type": type_} for name, type_ in types.items()}},
        "tables": {"t": {"schema": "s"}}, "sinks": ["jsonl"],
    }  # fmt: skip
    with declog.start(profile, output_dir=tmp_path) as log:
        for step in range(4):
            rows = [row for row in cases["rows"] if row["step"] == step]
            with log.step(step):
                log.observe({name: [row[name] for row in rows] for name in types})
    found = list(declog.read(tmp_path).prompts())
    assert [{key: row[key] for key in expected[0]} for row in found] == [
        {key: pytest.approx(value) for key, value in one.items()} for one in expected
    ]
    reports.write(tmp_path / "report.html", read(tmp_path))
    page = opened(tmp_path / "report.html").page
    page.click("#finders button[value=prompts]")
    assert texts(page, "#finder thead th") == [
        "prompt", "attempts", "mean", "best", "solved", "first solved", "trend",
    ]  # fmt: skip
    lines = [line.split("\t") for line in page.locator("#finder tbody tr").all_inner_texts()]
    shown = [
        {
            "prompt": prompt, "attempts": int(attempts), "mean": number_or_none(mean), "best": number_or_none(best),
            "solved": value_of(solved.removesuffix(" %")) / 100,
            "first_solved": None if first == "never" else int(first.removeprefix("step ")),
            "trend": number_or_none(trend),
        }
        for prompt, attempts, mean, best, solved, first, trend in lines
    ]  # fmt: skip
    assert shown == [{key: pytest.approx(value, abs=1e-4) for key, value in one.items()} for one in expected]


def number_or_none(text: str) -> float | None:
    """A number as the page writes it, or the dash that stands for none."""
    return None if text == "\u2013" else value_of(text)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 264 samples."""
    return runs.small(tmp_path_factory.mktemp("small") / "a")


def test_a_table_a_scatter_and_prompts(small: Path, opened: Open) -> None:
    """Sorted by any column, missing values last; a point opens its row; prompts by what numpy computes of them."""
    reports.write(small / "report.html", read(small))
    rows = runs.jsonl(small, "tables/samples")
    found = opened(small / "report.html")
    page = found.page
    page.click("#finders button[value=table]")
    lengths = [row["length"] for row in rows]
    for down in (True, False):
        page.locator("#finder th", has_text="length").locator("button").first.click()
        order = page.eval_on_selector_all("#finder tbody tr", "all => all.map((one) => Number(one.dataset.row))")
        known = sorted((length for length in lengths if length is not None), reverse=down)
        assert [lengths[row] for row in order] == (known + [None] * len(lengths))[: len(order)]
    page.locator("#finder tbody tr").nth(3).click()
    page.wait_for_function("(row) => document.querySelector('#list li.on')?.dataset.row === row", arg=str(order[3]))

    page.click("#finders button[value=prompts]")
    prompts = [row["prompt"] for row in rows]
    rewards = [row["reward"] for row in rows]
    expected = []
    for prompt in dict.fromkeys(prompts):
        mine = [reward for reward, one in zip(rewards, prompts, strict=True) if one == prompt]
        expected.append((len(mine), sum(mine) / len(mine), max(mine)))
    cells = [line.split("\t") for line in page.locator("#finder tbody tr").all_inner_texts()]
    shown = [(int(value_of(line[1])), value_of(line[2]), value_of(line[3])) for line in cells]
    assert shown == [
        pytest.approx(one, rel=1e-3) for one in sorted(expected, key=lambda one: (one[2] == max(rewards), one[1]))
    ]
    assert f"{len(expected)} prompts" in texts(page, "#finder p")[0]

    page.click("#finders button[value=scatter]")
    box = page.locator("#finder canvas").bounding_box()
    assert box is not None
    page.select_option("#finder select[aria-label='y axis']", "reward")
    page.select_option("#finder select[aria-label='x axis']", "length")
    least = min(length for length in lengths if length is not None)
    places = [(row, rewards[row]) for row in range(len(rows)) if lengths[row] == least]
    both = [reward for reward, length in zip(rewards, lengths, strict=True) if length is not None]
    low, high = min(both), max(both)
    y = box["height"] - 26 - (places[0][1] - low) / (high - low) * (box["height"] - 36)
    page.wait_for_timeout(100)
    page.locator("#finder canvas").click(position={"x": 58, "y": y})
    page.wait_for_function("(row) => document.querySelector('#list li.on')?.dataset.row === row", arg=str(places[0][0]))
    assert found.said == []


def test_what_is_listed_as_csv(small: Path, opened: Open) -> None:
    """The rows that answer a question, in the list's order, or the table's: whole texts, and numbers as they are."""
    reports.write(small / "report.html", read(small))
    rows = runs.jsonl(small, "tables/samples")
    found = opened(small / "report.html")
    page = found.page
    page.fill("#where", "step >= 20 and reward > 0.5")
    wanted = [row for row in rows if row["step"] >= 20 and row["reward"] > 0.5]
    settled(page, f"{len(wanted)} of {len(rows)}")
    page.select_option("#byorder", "step")
    page.wait_for_function("() => document.querySelector('#byorder').value === 'step'")

    def saved() -> list[dict[str, str]]:
        with page.expect_download() as download:
            page.click("#csv")
        assert download.value.suggested_filename == "report_run-samples.csv"
        text = download.value.path().read_bytes().decode("utf-8")
        return list(csv.DictReader(io.StringIO(text, newline="")))

    for key, expected in (("", wanted), ("length", sorted(wanted, key=lambda row: -(row["length"] or 0)))):
        if key:
            page.click("#finders button[value=table]")
            page.locator("#finder th", has_text=key).locator("button").first.click()
        cells = saved()
        assert [row["completion"] for row in cells] == [row["completion"] or "" for row in expected]
        assert [row["prompt"] for row in cells] == [row["prompt"] or "" for row in expected]
        assert [float(row["reward"]) for row in cells] == [row["reward"] for row in expected]
        assert [row["step"] for row in cells] == [str(row["step"]) for row in expected]
    assert found.said == []
