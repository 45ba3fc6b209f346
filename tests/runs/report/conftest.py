"""Tests of this folder look at reports in one Chromium."""

from tests.browser import browser, opened, pytest_runtest_teardown

__all__ = ["browser", "opened", "pytest_runtest_teardown"]
