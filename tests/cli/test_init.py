"""``declog init``: a config, a package; what it writes is checked, passes its own tests, and replaces nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_package(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its preset is found by its package and by its project, is well, and passes its tests."""
    made = cli("init", "nova-logging", "--package")
    assert (made.code, made.err) == (0, "")
    monkeypatch.syspath_prepend(str(tmp_path / "nova-logging"))
    monkeypatch.chdir(tmp_path / "nova-logging")
    for words in (["check", "pkg://nova_logging.conf", "--strict"], ["check", "nova_grpo"],
                  ["test", "nova_grpo", "-k", "reward_p95"]):  # fmt: skip
        found = cli(*words)
        assert (found.code, found.err) == (0, ""), words
    for name in [name for name in sys.modules if name.partition(".")[0] == "nova_logging"]:
        del sys.modules[name]


def test_a_config_in_a_project(cli: Cli, tmp_path: Path) -> None:
    """It is found by its name, wherever in the project one works; what pyproject.toml had is kept."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "ours"\n')
    assert cli("init", "ours").code == 0
    assert (tmp_path / "pyproject.toml").read_text().startswith('[project]\nname = "ours"\n\n[tool.declog]\n')
    assert cli("check", "ours", "--strict").code == 0
    assert cli("init", "second", "--preset", "rloo").code == 0
    assert (tmp_path / "conf" / "declog" / "second.yaml").is_file()


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["init"], "init needs a name"),
        (["init", "9lives", "--package"], "`9lives` cannot be the name of a package"),
        (["init", "class"], "`class` cannot be the name of a config"),
        (["init", "mine", "--package", "--from", "run"], "init begins one thing: --from and --package are two"),
        (["init", "--editor", "metric"], "there is no schema of `metric`\n  fix: did you mean `metrics`?"),
        (["init", "mine", "--from", "nowhere.jsonl"], "there is no nowhere.jsonl"),
        (["init", "mine", "--preset", "rloo", "--from", "run"], "--preset chooses what a config extends, and --from"),
        (["init", "mine", "--preset", "grop"], "there is no preset `grop`\n  fix: did you mean `grpo`?"),
    ],
)
def test_what_cannot_be_begun(words: list[str], reported: str, cli: Cli, tmp_path: Path) -> None:
    """Nothing is written then."""
    found = cli(*words)
    assert (found.code, reported in found.err, list(tmp_path.iterdir())) == (2, True, [])


def test_nothing_is_written_over(cli: Cli, tmp_path: Path) -> None:
    """A file that is there stays what it is, and none is written beside it."""
    (tmp_path / "acme-logging").mkdir()
    (tmp_path / "acme-logging" / "README.md").write_text("mine")
    found = cli("init", "acme-logging", "--package")
    assert found.code == 2
    assert "acme-logging/README.md exists already" in found.err
    assert [path.name for path in (tmp_path / "acme-logging").iterdir()] == ["README.md"]
