"""A headless Chromium for tests that look at pages; nothing in it can reach the network.

A folder of such tests imports the fixtures and the hook into its ``conftest.py``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.forks import PATIENCE_S

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update")  # fmt: skip
FOLDERS = tuple(Path(__file__).parent / folder for folder in ("docs", "runs/report"))  # their tests share one Chromium
WIDE = {"width": 1480, "height": 950}
REPORT = "html[data-ready], html[data-failed]"  # what a report has once it is shown


@dataclass
class Opened:
    """A page that was opened, with what it asked for and said since."""

    page: Page
    requests: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


Open = Callable[..., Opened]


def _chromium(config: pytest.Config) -> str:
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        reason = "there is no Chromium (Debian: apt-get install chromium)"
        if config.getoption("--require-browser"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


_running = ExitStack()  # Chromium, and the event loop that talks to it
_browsers: list[Browser] = []


@pytest.fixture
def browser(request: pytest.FixtureRequest) -> Browser:
    """Chromium; where there is none, the test is skipped, or fails under ``--require-browser``."""
    if not _browsers:
        executable = _chromium(request.config)
        playwright = _running.enter_context(sync_playwright())
        _browsers.append(playwright.chromium.launch(executable_path=executable, args=list(FLAGS)))
        _running.callback(lambda: _browsers.pop().close())
    return _browsers[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Chromium ends before a test of another folder, which may run an event loop of its own in this thread."""
    if nextitem is None or not any(map(nextitem.path.is_relative_to, FOLDERS)):
        _running.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Opens a page, at a link into it, and waits for ``ready``. ``script`` runs before those of the page.

    The pages share a context, since a new one takes longer than a page does; reports store nothing in it.
    """
    pages: list[Page] = []

    def open_page(file: Path, link: str = "", script: str = "", ready: str = REPORT, **options: Any) -> Opened:
        page = _context(browser).new_page()
        pages.append(page)
        page.set_viewport_size(options.pop("viewport", WIDE))
        page.emulate_media(**options)
        page.add_init_script(script)
        found = Opened(page)
        page.on("request", lambda asked: found.requests.append(asked.url))
        page.on("console", lambda message: found.said.append(message.text))
        page.on("pageerror", lambda error: found.said.append(str(error)))
        page.on("dialog", lambda dialog: found.said.append(dialog.message))
        page.goto(f"{file.as_uri()}{link}")
        page.wait_for_selector(ready, state="attached")
        return found

    yield open_page
    for page in pages:
        page.close()


def _context(browser: Browser) -> BrowserContext:
    """Without a network; an empty page stays open in it, whose process draws all others."""
    if not browser.contexts:
        context = browser.new_context(offline=True)
        context.set_default_timeout(1000 * PATIENCE_S)
        context.new_page()
    return browser.contexts[0]
