"""`python -m tests.benchmarks.bench_report`: what a report of a long run takes, beside reading the run."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from declog.runs.report.page import write
from declog.runs.run import read
from tests.benchmarks.measure import section
from tests.runs.report import runs

# curves, samples, characters of each
SIZES = ((60, 2_000, 4_000), (300, 10_000, 2_000))


def main() -> None:
    """5,000 steps of 60 scalars and 2,000 samples; of 300 scalars and 10,000 samples."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows = []
    for names, samples, characters in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            run = runs.long(Path(folder) / "long", names=names, samples=samples, characters=characters)
            rows.append((f"{names} curves, {samples:,} samples", *_row(run)))
    section(
        "A report",
        ("of 5,000 steps", "rows", "MB", "reading its rows, s", "writing / reading", "shown / writing", "shown, s"),
        rows, "Samples of 4,000 and 2,000 characters; `shown`: until Chromium has drawn it.",
    )  # fmt: skip


def _row(run: Path) -> tuple[str, ...]:
    """What reading, writing and showing one run takes."""
    started = time.perf_counter()
    whole = read(run)
    rows = len(list(whole.scalars)) + sum(len(list(frame)) for frame in whole.tables.values())
    reading = time.perf_counter() - started
    del whole
    file = run / "report.html"
    started = time.perf_counter()
    write(file, read(run))
    writing = time.perf_counter() - started
    shown = _shown(file)
    times = ("", "") if shown is None else (f"{shown / writing:.2f}", f"{shown:.1f}")
    return f"{rows:,}", f"{file.stat().st_size / 1e6:.2f}", f"{reading:.1f}", f"{writing / reading:.2f}", *times


def _shown(file: Path) -> float | None:
    """Seconds until a browser shows it, where there is one."""
    if (chromium := shutil.which("chromium")) is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox"])
        page = browser.new_page()
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        shown = float(page.get_attribute("html", "data-ready") or "nan") / 1000
        browser.close()
    return shown


if __name__ == "__main__":
    main()
