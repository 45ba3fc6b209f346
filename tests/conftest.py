"""What several test files share: presets of a test's own, in a working directory of its own; Hypothesis' settings."""

from __future__ import annotations

import gc
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import forks

# No test depends on the machine's speed. `make soak` takes the long one: pytest --hypothesis-profile soak
USUAL, DEV = 15, 6  # examples of a test that says none: what counts are relative to, and those of `make test`
UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=DEV, derandomize=True, **UNTIMED)  # soak draws anew
settings.register_profile("soak", max_examples=1000, print_blob=True, **UNTIMED)
settings.load_profile("dev")

# What a CI, a terminal, a launcher or their user sets and the libraries under test obey: tests that want it set it.
FOREIGN = re.compile(
    "CI|BUILD_NUMBER|GITHUB_ACTIONS|(NO|FORCE)_COLOR|COLUMNS|LINES|PYTEST_ADDOPTS|PYTHONWARNINGS"
    "|(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|(WANDB|TRACKIO|HYDRA|TORCHELASTIC)_.*"
)
for name in filter(FOREIGN.fullmatch, list(os.environ)):
    del os.environ[name]

WritePreset = Callable[[str, str], Path]


def examples(count: int, *ignored: HealthCheck) -> settings:
    """So many examples for the usual 15, where one costs more or less than most do."""
    profile = settings.default
    assert profile is not None
    checks = (*profile.suppress_health_check, *ignored)
    return settings(max_examples=max(1, count * profile.max_examples // USUAL), suppress_health_check=checks)


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """A run that a test leaves open, and the packets that nobody consumed there, are nothing to the next test."""
    yield
    if "declog.runtime.rows.packets" in sys.modules:
        from declog.runtime.rows import context, packets

        context._running.clear()
        packets.fates.in_child()


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What this test logs: asyncio tells of a task that an earlier one left when it is collected."""
    caplog.handler.addFilter(lambda record: record.name != "asyncio")
    return caplog


@pytest.fixture
def write_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WritePreset:
    """Writes ``declog/<name>.yaml`` below the working directory, and returns the directory to compose from."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> Path:
        file = tmp_path / "declog" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return tmp_path

    return write


@pytest.fixture
def wandb_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for everything that wandb writes, and a wandb without a memory of earlier tests."""
    import wandb

    settings = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB__DISABLE_STATS": "true"}
    for name in ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        settings[name] = str(tmp_path)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    wandb.teardown()
    yield tmp_path
    if wandb.run is not None:
        wandb.run.finish()
    wandb.teardown()
    gc.collect()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--require-browser``: the tests that need Chromium fail where there is none, instead of being skipped."""
    parser.addoption("--require-browser", action="store_true", help="fail where there is no Chromium; else skip")


@pytest.fixture(scope="session", autouse=True)
def servers() -> Iterator[None]:
    """Those that start programs end with the tests."""
    yield
    forks.close()


def pytest_collection_finish() -> None:
    """What was imported by now stays: torch and transformers are not looked through at each collection of garbage.

    Tests make much that is soon gone, and those that depend on a collection ask for one. Fewer save a fourteenth of
    the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


# Other processes, trainings of TRL, clusters: what takes more than five seconds. `pytest -m 'not slow'` leaves it out.
SLOW = (
    "docs/test_demo", "engine/test_divergence", "faults/", "integrations/test_ray", "integrations/trl/",
    "replay/test_demo_capture", "runtime/test_exit", "runtime/test_fork", "runtime/test_ranks_processes",
    "sinks/test_everything", "sinks/test_parquet_crash", "sinks/test_trackio", "test_wheel",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, by module or folder; modules with such tests go first, so that none is left to the end."""
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


# ---- several workers: pytest -n auto ----------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """A worker for each core that this process may use, and one more, since tests wait for processes, too.

    More than sixteen would only wait for the longest test.
    """
    return min(16, len(os.sched_getaffinity(0)) + 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of a module go to one worker, which makes once what they have in common: fixtures, caches, imports.

    Modules keep the order of collection, which has slow ones first; xdist would take those with most tests first.
    """
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)
