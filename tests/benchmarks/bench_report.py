"""What a report of a long run takes: beside reading the run, and until a browser shows it.

python tests/benchmarks/bench_report.py
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from declog.runs.report.page import write
from declog.runs.run import read
from tests.runs.report import runs


def main() -> None:
    """5,000 steps of 60 scalars, 2,000 samples of 4,000 characters."""
    with tempfile.TemporaryDirectory() as folder:
        run = runs.long(Path(folder) / "long")
        started = time.perf_counter()
        whole = read(run)
        rows = len(whole.scalars.rows()) + sum(len(frame.rows()) for frame in whole.tables.values())
        reading = time.perf_counter() - started
        file = run / "report.html"
        started = time.perf_counter()
        write(file, read(run))
        writing = time.perf_counter() - started
        print(f"{file.stat().st_size / 1e6:.2f} MB of {rows:,} rows")
        ratio = writing / reading
        print(f"written in {ratio:.2f} x the time that reading its rows takes ({writing:.1f} s, {reading:.1f} s)")
        if (chromium := shutil.which("chromium")) is None:
            print("there is no Chromium: it is not shown")
            return
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox"])
            page = browser.new_page()
            page.goto(file.as_uri())
            page.wait_for_selector("html[data-ready]", state="attached")
            shown = float(page.get_attribute("html", "data-ready") or "nan") / 1000
            print(f"shown after {shown / writing:.2f} x the time that writing it takes ({shown:.1f} s)")
            browser.close()


if __name__ == "__main__":
    main()
