"""``pytest --declog conf/``: it runs the config tests of YAML files, and of the presets in installed packages.

The plugin is an entry point: every pytest in an environment with declog imports it. So it loads nothing before
``--declog`` is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from declog.replay.config_tests import ConfigTest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--declog``."""
    text = "collect the tests of declog's configs: of YAML files, and of the presets of installed packages"
    parser.getgroup("declog").addoption("--declog", action="store_true", help=text)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a YAML file that is a config."""
    if not parent.config.getoption("--declog") or file_path.suffix != ".yaml" or not _is_config(file_path):
        return None
    return ProfileFile.from_parent(parent, path=file_path)


@pytest.hookimpl(tryfirst=True)  # before other plugins select tests by name and by mark
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the tests of the presets of installed packages."""
    if not config.getoption("--declog"):
        return
    from declog.config.search_path import teams

    for team in teams():
        for file in sorted(file for folder in team.folders for file in (folder / "declog").glob("*.yaml")):
            name = f"{team.name}:{file.stem}"
            items.extend(Preset.from_parent(session, name=name, nodeid=name).collect())


def _is_config(file: Path) -> bool:
    """Whether a YAML file is a config.

    A config lies in a folder ``declog``, or has the key `tests` and one of `metrics`, `signals` and `defaults`.
    """
    from declog.config.files import keys_at_top

    if file.parent.name == "declog":
        return True
    keys = keys_at_top(file.read_text(encoding="utf-8", errors="replace"))
    return "tests" in keys and bool(keys & {"metrics", "signals", "defaults"})


def _items(parent: Any, config: str | Path) -> Iterator[ConfigItem]:
    from declog.errors import ConfigError
    from declog.replay.config_tests import config_tests

    try:
        tests = config_tests(config)
    except ConfigError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    for test in tests:
        yield ConfigItem.from_parent(parent, name=test.name, test=test)


class ProfileFile(pytest.File):
    """The tests of a config in a file."""

    def collect(self) -> Iterable[pytest.Item]:
        """One item for each of its tests."""
        yield from _items(self, self.path)


class Preset(pytest.Collector):
    """The tests of an installed preset; its name is `PACKAGE:PRESET`."""

    def collect(self) -> Iterable[pytest.Item]:
        """One item for each of its tests."""
        yield from _items(self, self.name.rpartition(":")[2])


class ConfigItem(pytest.Item):
    """One test of a config."""

    def __init__(self, *, test: ConfigTest, **node: Any) -> None:
        super().__init__(**node)
        self._test = test

    def runtest(self) -> None:
        """Run the test on real recorders, and compare the logged values with the expected values."""
        result = self._test.run()
        if not result.passed:
            raise _Differs(str(result))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The differences only, without a traceback: no line of code is at fault."""
        if isinstance(excinfo.value, _Differs):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The name of the test, after the name of its file or preset."""
        return self.path, None, f"{self.parent.name if self.parent else ''}: {self.name}"


class _Differs(Exception):
    """The logged values differ from those that the config's test expects."""
