"""What the page says is so: of a run that broke, of runs of other lengths, of configurations that nobody recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import declog
from declog.runs.report import page as reports
from declog.runs.run import read
from tests.browser import Open
from tests.running import profile
from tests.runs.report.runs import train
from tests.runs.report.test_page import chart, settled, texts

GOOD, BAD = "course good", "course bad"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs: one that is well, the same again, one that broke, one that has come to its half."""
    root = tmp_path_factory.mktemp("runs")
    return {
        "well": train(root / "well", 250), "broke": train(root / "broke", 250, breaks=True),
        "half": train(root / "half", 120),
    }  # fmt: skip


def written(*folders: Path) -> Path:
    """The report of the first of some runs, beside the others."""
    one, *others = folders
    reports.write(one / "report.html", read(one), [read(other) for other in others])
    return one / "report.html"


def test_a_run_that_broke_says_when_and_in_which_order(folders: dict[str, Path], opened: Open) -> None:
    """Class: a headline that hides the end. Cards say NaN and since when; the first onset leads to its step."""
    page = opened(written(folders["broke"])).page
    order = [text for text in texts(page, "#onsets li") if "alert" not in text]
    assert [text.split()[1] for text in order] == ["179", "180", "181", "230", "230"]
    assert ["gradients" in order[0], "Reward" in order[1], "KL" in order[2]] == [True] * 3
    assert all(text.endswith("NaN") for text in order[3:])
    for title in ("Loss", "KL"):
        card = page.locator(".card", has_text=title)
        assert card.locator(".value.broken").inner_text() == "NaN since step 230"
        assert card.locator(".course").get_attribute("class") == BAD
    for title in ("Loss", "KL"):
        cells = page.locator("#changetable tbody tr", has_text=title).locator("td").all_inner_texts()
        assert cells[3:6] == ["NaN since step 230", "\u2013", "\u2013"]
    reward = page.locator(".card", has_text="Reward").first
    assert reward.locator(".course").get_attribute("class") == BAD  # above its first value, and far below its best
    assert "at step 17" in reward.locator(".course").inner_text()
    page.locator("#onsets .link", has_text="step 180").click()
    assert page.inner_text("#pin b") == "Step 180"


def test_a_run_that_is_well_has_no_onset_and_a_good_course(folders: dict[str, Path], opened: Open) -> None:
    """No list of what broke; a reward that is at its best is good."""
    page = opened(written(folders["well"])).page
    assert texts(page, "#onsets li") == []
    assert page.locator(".card", has_text="Reward").first.locator(".course").get_attribute("class") == GOOD


def test_a_value_at_its_bound_is_in_range(tmp_path: Path, opened: Open) -> None:
    """However it was rounded: to float32 where it was observed, and to fewer bits for the page."""
    bounds = {
        f"{dtype.__name__}_{end}_{bound}".replace(".", "_"): (dtype, end, bound)
        for dtype in (np.float32, np.float64)
        for end in ("low", "high")
        for bound in (0.001, 0.1, 0.3, 0.7)
    }
    ranges = {name: [bound, None] if end == "low" else [None, bound] for name, (_, end, bound) in bounds.items()}
    config = profile(
        dict.fromkeys([*bounds, "beyond"], "completion"), {name: f"mean({name})" for name in [*bounds, "beyond"]},
        about={name: {"healthy": range} for name, range in {**ranges, "beyond": [None, 0.3]}.items()}, sinks=["jsonl"],
    )  # fmt: skip
    with declog.start(config, output_dir=tmp_path) as log:
        for step in range(40):
            inside = 0.01 if step < 20 else 0.0
            values = {
                name: np.full(4, bound + (inside if end == "low" else -inside), dtype)
                for name, (dtype, end, bound) in bounds.items()
            }
            with log.step(step):
                log.observe(**values, beyond=np.full(4, 0.3 if inside else 0.3001))
    page = opened(written(tmp_path)).page
    assert [text for text in texts(page, "#badges *") if "out of range" in text] == ["1 out of range"]
    assert ["beyond" in text for text in texts(page, "#onsets li")] == [True]


def test_the_head_says_which_metrics_are_inactive(folders: dict[str, Path], opened: Open) -> None:
    """Class: a metric that is silently not there. Each reason with its metrics, as `log.missing` has them."""
    run = read(folders["well"])
    page = opened(written(folders["well"])).page
    badge = page.locator(".badge", has_text="inactive")
    assert badge.inner_text() == f"{len(run.info['missing'])} metrics inactive"
    badge.hover()
    lines = page.inner_text("#tip").split("\n")
    told = {
        metric: reason
        for reason, _, metrics in (line.rpartition(": ") for line in lines)
        for metric in metrics.split(", ")
    }
    assert told == run.info["missing"] != {}


def test_gaps_are_gaps(folders: dict[str, Path], opened: Open) -> None:
    """A card's small curve ends where its numbers end, and its area with it."""
    page = opened(written(folders["broke"])).page
    ends = page.eval_on_selector_all(".card svg", "all => all.map((one) => one.getBBox().width)")
    titles = [text.split("\n")[0] for text in page.locator(".card").all_inner_texts()]
    widths = dict(zip(titles, ends, strict=True))
    assert widths["Loss"] == pytest.approx(260 * 229 / 249, abs=4)
    assert widths["Reward"] == pytest.approx(260, abs=2)


def test_runs_are_compared_at_the_same_steps(folders: dict[str, Path], opened: Open) -> None:
    """Class: the end of one run beside the middle of another. Equal runs, one at its half: no difference."""
    page = opened(written(folders["well"], folders["half"])).page
    assert "steps 108 to 119" in page.inner_text("#results")
    assert "No value that they all logged differs there." in page.inner_text("#results")


def test_three_runs(folders: dict[str, Path], opened: Open) -> None:
    """The colour is the run, everywhere; a difference is the other run less this one."""
    found = opened(written(folders["well"], folders["broke"], folders["half"]))
    page = found.page
    heads = texts(page, "#results th")
    assert heads[2:] == [
        "well",
        "broke",
        "broke \u2212 well",
        "\u00d7 noise",
        "half",
        "half \u2212 well",
        "\u00d7 noise",
    ]
    names = page.locator(f"{chart(page, 'reward')} >> .legend > span").all_inner_texts()
    assert [text.split()[0] for text in names][:3] == ["well", "broke", "half"]
    colour = "all => all.map((one) => getComputedStyle(one.querySelector('.swatch')).borderTopColor)"
    in_chart = page.locator(f"{chart(page, 'reward')} >> .legend > span").evaluate_all(colour)
    assert page.eval_on_selector_all("#comparedruns p", colour) == in_chart[:3]
    assert len(set(in_chart[:3])) == 3
    assert found.said == []


def test_a_difference_within_the_noise_is_neither_good_nor_bad(folders: dict[str, Path], opened: Open) -> None:
    """Class: a colour that says more than the numbers. Equal at these steps: no colour, and no sign before a zero."""
    page = opened(written(folders["well"], folders["broke"], folders["half"])).page
    rows = [row.locator("td").all() for row in page.locator("#results tbody tr").all()]
    cells = [(row[at], float(row[at + 1].inner_text())) for row in rows for at in (4, 7)]
    assert any(effect < 1 for _, effect in cells)
    assert not [cell for cell, effect in cells if effect < 1 and (cell.get_attribute("class") or "").split() != ["n"]]
    assert {row[7].inner_text().split()[0] for row in rows} == {"0"}


def test_configurations_that_nobody_recorded_are_not_equal(folders: dict[str, Path], opened: Open) -> None:
    """Class: silence taken for equality."""
    page = opened(written(folders["well"], folders["half"])).page
    said = page.inner_text("#differences")
    assert "not recorded for well, half" in said
    assert "equal" not in said


def test_a_link_to_a_step_leaves_the_chosen_mode(folders: dict[str, Path], opened: Open) -> None:
    """An onset's samples are shown, whatever mode was looked at before."""
    page = opened(written(folders["broke"])).page
    page.select_option("#bymode", "eval")
    page.locator("#onsets .link", has_text="step 180").click()
    settled(page, "4 of 1004")
    assert page.input_value("#bymode") == ""


def test_joiners_are_part_of_a_text(tmp_path: Path, opened: Open) -> None:
    """Persian, Hindi and families of emoji need zero-width joiners; what only hides or turns text is shown as marks."""
    family = "\U0001f469\u200d\U0001f469\u200d\U0001f467"
    prompt = f"\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 {family} \u0915\u094d\u200d\u0937"
    with declog.start("grpo", ["sinks=[jsonl]"], output_dir=tmp_path / "run") as log, log.step(0):
        log.observe(reward=[0.0, 1.0], prompt=[prompt, "a\u200bb\u202ec"], completion=["x", "y"])
    page = opened(written(tmp_path / "run"), "#sample=samples/0").page
    assert page.text_content(".prompt .txt") == prompt
    page.evaluate("location.hash = 'sample=samples/1'")
    page.wait_for_selector(".prompt .ctl")
    assert page.text_content(".prompt .txt") == "aU+200BbU+202Ec"


def test_a_long_conversation(tmp_path: Path, opened: Open) -> None:
    """Turns have an index; long texts and thoughts are folded to their ends, and whole while something is searched."""
    call = {"id": "7", "function": {"name": "run", "arguments": '{"code": "a = 1\\nprint(a)"}'}}
    late = {"id": "8", "name": "run", "arguments": {"code": "b"}}
    answer = [
        {
            "role": "assistant",
            "content": f"<think>{'hm ' * 400}</think>I run it.",
            "tool_calls": [call, late],
            "latency": 1.25,
        },
        {"role": "tool", "content": "second", "tool_call_id": "8"},
        {"role": "tool", "content": f"begin {'words ' * 800} end", "tool_call_id": "7"},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": "It prints 1.", "tokens": 4},
    ]
    profile = {
        "signals": {"any": {"completion": {"axis": "completion", "type": "object"}}}, "sinks": ["jsonl"],
        "schemas": {"s": {"completion": "object"}}, "tables": {"t": {"schema": "s"}},
    }  # fmt: skip
    with declog.start(profile, output_dir=tmp_path / "run") as log, log.step(0):
        log.observe(completion=[[{"role": "system", "content": "S"}, *answer]])
    found = opened(written(tmp_path / "run"), "#sample=t/0")
    page = found.page
    assert texts(page, ".turns .btn") == ["1 system", "2 assistant \u2192 run, run", "3 user", "4 assistant"]
    assert texts(page, ".call .arguments") == ["code: a = 1\nprint(a)", "code: b"]
    results = page.locator(".call .result")
    assert results.nth(1).inner_text() == "second"
    seen = results.nth(0).inner_text()
    assert len(seen) < 1500
    assert set(seen.split()) == {"begin", "words", "end"}  # none is cut
    results.nth(0).locator("summary").click()
    assert results.nth(0).inner_text().count("words") == 800
    assert page.inner_text(".thought").count("hm") < 120
    assert page.locator(".turn >> nth=1").locator("> .label").inner_text().split() == ["assistant", "1.25", "s"]
    assert page.inner_text("#list .text") == "It prints 1."
    page.fill("#search", "hm hm")
    page.wait_for_selector("#detail mark")
    assert page.locator("#detail .thought details").count() == 0
    assert found.said == []
