"""``make shots``: the pictures of README and docs: the demo's report, console and dashboard, and made-up runs.

    python -m tests.runs.report.shots            runs the demo and writes docs/images/*.png
    python -m tests.runs.report.shots RUN        of a demo's run that is there
    python -m tests.runs.report.shots late       the film of a question that is asked late, alone

Needs Chromium. Each picture is a PNG of 128 colours, and the film a GIF of 64, small enough to be in git.
"""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

import declog
from declog.cli import main
from tests.runs.report.runs import small as run_with_tokens
from tests.runs.report.runs import train

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "docs" / "images"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu"]
WIDTH = 104  # of the console
TERMINAL = """<meta charset="utf-8"><body style="margin:0;background:#15181c"><pre style="margin:0;padding:22px 26px;
color:#e6e4df;font:15px/1.5 'DejaVu Sans Mono',monospace;display:inline-block">$ make demo
{code}</pre>"""


def small(file: Path) -> None:
    """A PNG of few colours instead of the one that is there."""
    Image.open(file).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)
    print(f"{file.relative_to(ROOT)}  {file.stat().st_size / 1000:.0f} kB")


def report(page: Page, run: Path) -> None:
    """The head of the report, its curves, and a group of samples."""
    main(["report", str(run)])
    opened(page, run / "report.html")
    page.screenshot(path=IMAGES / "report.png")
    page.evaluate("document.querySelector('#samples').scrollIntoView()")
    page.locator("#detail .btn", has_text="side by side").click()
    page.wait_for_selector(".side")
    page.wait_for_timeout(200)
    page.screenshot(path=IMAGES / "report-samples.png")


def terminal(page: Page, output: str) -> None:
    """The end of what the demo prints, from its last log event on."""
    lines = output.replace(str(Path(sys.executable).parent), ".venv/bin").splitlines()
    start = max(place for place, line in enumerate(lines) if re.match(r"(\x1b\[[0-9;]*m)*step ", line))
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines[start:]:
        console.print(Text.from_ansi(line), no_wrap=True, overflow="ellipsis")
    page.set_content(console.export_html(theme=DIMMED_MONOKAI, inline_styles=True, code_format=TERMINAL))
    page.locator("pre").screenshot(path=IMAGES / "terminal.png")


def made_up(page: Page, folder: Path) -> None:
    """A run that broke, the same beside one that is well, and a completion token by token."""
    broke, well = train(folder / "broke", 250, breaks=True), train(folder / "well", 250)
    main(["report", str(broke)])
    opened(page, broke / "report.html")
    page.screenshot(path=IMAGES / "report-broke.png")
    main(["report", str(broke), "--compare", str(well)])
    opened(page, broke / "report.html")
    page.evaluate("document.querySelector('#curves').scrollIntoView()")
    page.screenshot(path=IMAGES / "report-compare.png")
    run = run_with_tokens(folder / "tokens")
    main(["report", str(run)])
    opened(page, run / "report.html", "#sample=samples%2F100")
    page.locator(".tools .btn", has_text="kl").click()
    page.locator("#detail").screenshot(path=IMAGES / "report-tokens.png")


def film(page: Page, folder: Path) -> None:
    """Twenty seconds: a run without a metric by data source, the question, and the answer from step 0."""
    run = folder / "outputs" / "math_and_code"
    config = declog.compose("grpo", ["sinks=[parquet]", "axes.group.size=4", "run.name=math_and_code"])
    random = np.random.default_rng(0)
    with declog.start(config, output_dir=run) as log:
        for step in range(0, 40_000, 100):
            done = step / 40_000
            chances = {"math": 0.3 + 0.5 * done, "code": 0.2 + 0.6 * done**2, "logic": 0.5 - 0.45 * done}
            source = [name for name in chances for _ in range(64)]
            with log.step(step):
                log.keep(source=source)
                log.observe(reward=[float(random.random() < chances[name]) for name in source])
    line = "by_source: {expr: reward, by: source}"
    shown = f"declog add outputs/math_and_code '{line}'"
    with contextlib.redirect_stdout(io.StringIO()) as output:
        main(["add", str(run), line])
    answer = output.getvalue().replace(str(folder) + "/", "")
    scenes = ["<b># step 40,000. What was the reward by data source, from step 0?</b>\n$ "]
    frames = [(_screen(page, scenes[0]), 3000)]
    frames += [(_screen(page, scenes[0] + shown[:end]), 90) for end in range(2, len(shown) + 1, 2)]
    frames += [(_screen(page, f"{scenes[0]}{shown}\n\n{html.escape(answer)}"), 5000)]
    main(["report", str(run)])
    opened(page, run / "report.html", "#metric=by_source%2Flogic")
    page.wait_for_timeout(500)
    frames += [(Image.open(io.BytesIO(page.screenshot())), 8000)]
    pictures = [
        frame.convert("RGB").resize((1000, 625), Image.Resampling.LANCZOS).quantize(64, dither=Image.Dither.NONE)
        for frame, _ in frames
    ]
    file = IMAGES / "late.gif"
    pictures[0].save(
        file, save_all=True, append_images=pictures[1:], duration=[wait for _, wait in frames], loop=0, optimize=True
    )
    print(f"{file.relative_to(ROOT)}  {file.stat().st_size / 1000:.0f} kB")


def _screen(page: Page, text: str) -> Image.Image:
    """A terminal that shows a text."""
    page.set_content(TERMINAL.replace("$ make demo\n{code}", text).replace("15px", "24px"))
    return Image.open(io.BytesIO(page.screenshot()))


def opened(page: Page, file: Path, place: str = "") -> None:
    """Open a report, and wait until it is drawn."""
    page.goto("about:blank")
    page.goto(file.as_uri() + place)
    page.wait_for_selector("html[data-ready]", state="attached")
    page.wait_for_timeout(500)


@contextmanager
def trackio(run: Path, project: str = "arithmetic_grpo") -> Iterator[str]:
    """Trackio's dashboard of a run, while it is served here."""
    command: list[str | Path] = [Path(sys.executable).parent / "trackio", "show", "--project", project]
    own = {"TRACKIO_DIR": str(run / "trackio"), "GRADIO_SERVER_PORT": str(free_port()), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        try:
            lines = (re.sub(r"\x1b\[[0-9;]*m", "", line) for line in served.stdout)
            yield next(found.group() for line in lines if (found := re.search(r"http://\S+", line)))
        finally:
            served.terminate()


def free_port() -> int:
    """One that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def dashboard(page: Page, run: Path) -> None:
    """The demo's pages of trackio: its curves, and its samples, of which the worst is open."""
    with trackio(run) as address:
        page.goto(address)
        page.wait_for_timeout(6000)
        page.screenshot(path=IMAGES / "dashboard.png")
        page.locator("button", has_text="Traces").click()
        page.locator("tr.trace-row", has_text="worst").first.click()
        page.wait_for_timeout(500)
        page.screenshot(path=IMAGES / "dashboard-samples.png")


def demo(folder: Path) -> tuple[Path, str]:
    """Run it; its folder and what it printed."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "grpo_arithmetic.py"],
        cwd=folder,
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)},
        capture_output=True,
        text=True,
        check=True,
    )
    (run,) = folder.glob("outputs/*/*")
    return run, done.stdout


def shoot(run: Path | None) -> None:
    """All pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        output = ""
        if run is None:
            run, output = demo(Path(folder))
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1360, "height": 850})
        report(page, run.resolve())
        made_up(page, Path(folder))
        film(page, Path(folder))
        dashboard(page, run.resolve())
        if output:
            terminal(page, output)
        browser.close()
    for file in sorted(IMAGES.glob("*.png")):
        small(file)


def shoot_film() -> None:
    """The film alone."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        film(browser.new_page(viewport={"width": 1360, "height": 850}), Path(folder))
        browser.close()


if __name__ == "__main__" and sys.argv[1:] == ["late"]:
    shoot_film()
elif __name__ == "__main__":
    shoot(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
