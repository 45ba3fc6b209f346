"""trackio's dashboard of a run, in a browser: its samples can be read whole, and the best told from the worst."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser

from tests.forks import python
from tests.runs.report.shots import trackio

ENDING = "therefore the answer is 42."
TRAIN = f"""
import sys
import declog

overrides = [
    "run.name=samples_in_trackio", "sinks=[trackio]", "sink_options.trackio.dir=trackio", "axes.group.size=2",
    "schemas.samples.completion.max_chars=null",
]
with declog.start("grpo", overrides, output_dir=sys.argv[1]) as log, log.step(0):
    texts = [f"{{row}}: " + "I think. " * 500 + "{ENDING}" for row in range(8)]
    log.observe(prompt=["6 * 7?"] * 8, completion=texts, rewards={{"right": [row / 4 for row in range(8)]}})
"""


def test_a_whole_sample_is_read_and_the_best_told_from_the_worst(tmp_path: Path, browser: Browser) -> None:
    """The list of traces says which end each is of, and its reward; a click shows a row, another a long text of it."""
    python(TRAIN, str(tmp_path), env={"HF_HOME": str(tmp_path / "hf")})
    with trackio(tmp_path, "samples_in_trackio") as address:
        page = browser.new_page(viewport={"width": 1360, "height": 850})
        page.goto(address)
        page.get_by_role("button", name="Traces").click()
        page.wait_for_selector("tr.trace-row")
        pills = page.locator("tr.trace-row .status-pill")
        said = [text.split() for text in pills.all_inner_texts()]
        ends = {end.lower(): [float(number) for word, number in said if word == end] for end, _ in said}
        assert min(ends["best"]) > max(ends["worst"])
        assert (max(ends["best"]), min(ends["worst"])) == (1.75, 0)
        for pill in pills.all():
            inside, cell = pill.bounding_box(), pill.locator("xpath=ancestor::td").bounding_box()
            assert inside is not None and cell is not None
            assert inside["x"] + inside["width"] <= cell["x"] + cell["width"]
        page.locator("tr.trace-row", has_text="worst").last.click()
        page.locator(".conversation summary", has_text="Expand content").click()
        shown = page.locator(".message-content").all_inner_texts()
        assert shown == ["6 * 7?", "0: " + "I think. " * 500 + ENDING]
        page.close()
