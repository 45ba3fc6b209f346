"""An entry that a project completes, uses or deletes, and that the presets below it no longer have."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import declog
from declog.cli import main
from tests.cli.conftest import Cli

BEFORE = """\
defaults: [grpo, _self_]
run: {name: acme}
signals: {rollout: {difficulty: {axis: completion}}}
metrics: {solved: {expr: reward > 0.5, name: acme/solved}}
filters: {hard: {key: difficulty, top: 4}}
schemas: {worst: {prompt: {type: text}, reward: {type: float}}}
tables: {worst: {schema: worst, filter: hard}}
alerts: {low: {when: solved < 0.1}}
sinks: [mirror]
sink_options: {mirror: {kind: jsonl}}
modes: {replay: {prefix: replay/}}
profiles: {short: {only: [reward]}}
"""
NOW = "defaults: [grpo, _self_]\nrun: {name: acme}\n"
COMPLETIONS = {
    "tables": "worst: {every: 10}", "filters": "hard: {top: 8}", "alerts": "low: {below: 0.2}",
    "metrics": "solved: {tags: mine}", "signals": "rollout: {difficulty: {help: from 0 to 1}}",
}  # fmt: skip
MINE = "conf/declog/mine.yaml"


def install(site: Path, version: str, preset: str) -> None:
    """A package with one preset, as pip leaves it."""
    conf = site / "acme_logging" / "conf"
    (conf / "declog").mkdir(parents=True)
    for folder in (conf.parent, conf):
        (folder / "__init__.py").touch()
    (conf / "declog" / "acme.yaml").write_text(preset, encoding="utf-8")
    info = site / f"acme_logging-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-logging\nVersion: {version}\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[declog.presets]\nacme = acme_logging.conf\n", encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two versions of a package, and the lock that a project wrote with the first."""
    folder = tmp_path_factory.mktemp("site")
    for version, preset in (("1.0", BEFORE), ("2.0", NOW)):
        install(folder / version, version, preset)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder / "1.0"))
        write("", "")
        assert main(["check", MINE, "--lock"]) == 0
    forget()  # an upgrade begins another process
    return folder


@pytest.fixture
def project(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A project whose lock was written with version 1.0 of a package; 2.0 is installed now, and has less."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(site / "2.0"))
    shutil.copy(site / "declog.lock", tmp_path)
    yield
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("acme_logging")]:
        del sys.modules[name]


def write(section: str, entry: str) -> None:
    file = Path(MINE)
    file.parent.mkdir(parents=True, exist_ok=True)
    text = f"{section}: {{{entry}}}\n" if section else ""
    file.write_text(f"defaults: [acme, _self_]\nrun: {{name: mine}}\n{text}", encoding="utf-8")


@pytest.mark.parametrize("section", COMPLETIONS)
def test_the_lock_says_who_had_it(project: None, cli: Cli, section: str) -> None:
    """Of each kind of entry: that it is gone, since which version of which package, and what to do."""
    write(section, COMPLETIONS[section])
    found = cli("check", MINE)
    name, what = COMPLETIONS[section].removeprefix("rollout: {").partition(":")[0], section[:-1]
    said = " ".join(found.err.split())
    assert found.code == 2
    assert f"`{name}` completes a {what} that acme-logging 2.0 and declog-rl {declog.__version__} no longer has" in said
    assert f"declog.lock has it, of acme-logging 1.0 and declog-rl {declog.__version__}" in said
    assert "fix: delete it, or write all of it" in said
    assert f"{MINE}:3:" in said and "^" in said


def test_a_null_for_it(project: None, cli: Cli) -> None:
    """What was deleted of the preset, and is gone by itself."""
    write("tables", "worst: null")
    assert "no longer has: declog.lock has it, of acme-logging 1.0" in " ".join(cli("check", MINE).err.split())


@pytest.mark.parametrize(
    ("section", "entry", "what"),
    [
        ("metrics", "difficulty_max: max(difficulty)", "signal"),
        ("alerts", "solved_late: {when: solved < 0.1 and step > 100}", "metric"),
        ("tables", "mine: {schema: samples, filter: hard}", "filter"),
        ("tables", "mine: {schema: worst}", "schema"),
    ],
)
def test_a_use_of_it(project: None, cli: Cli, section: str, entry: str, what: str) -> None:
    """A name in an expression, a condition or a key, which is unknown now, and was not."""
    write(section, entry)
    found = " ".join(cli("check", MINE).err.split())
    assert f"unknown {what} `" in found or f"there is no {what} `" in found
    assert f"declog.lock has the {what} of acme-logging 1.0" in found


@pytest.mark.parametrize("section", COMPLETIONS)
def test_without_a_lock_the_versions_say_that_it_is_not_there(project: None, cli: Cli, section: str) -> None:
    """An entry that says nothing of what it is may be one to write whole, or one to delete."""
    Path("declog.lock").unlink()
    write(section, COMPLETIONS[section])
    name = COMPLETIONS[section].removeprefix("rollout: {").partition(":")[0]
    said = " ".join(cli("check", MINE).err.split())
    no = f"acme-logging 2.0 and declog-rl {declog.__version__} have no {section[:-1]} `{name}`"
    assert f"or delete it: {no}" in said


@pytest.mark.parametrize(
    ("section", "entry"),
    [
        ("tables", "mine: {schema: nowhere}"), ("metrics", "a: {expr: rewrad}"), ("alerts", "a: {when: solvde > 1}"),
        ("filters", "a: {random: }"), ("filters", "a: {key: rewrad, bottom: 4}"),
    ],
)  # fmt: skip
def test_an_entry_of_ones_own_is_not_said_to_be_gone(project: None, cli: Cli, section: str, entry: str) -> None:
    """It says what it is, and no version ever had it: only the mistake is named."""
    write(section, entry)
    found = cli("check", MINE)
    assert found.code == 2
    assert "delete it" not in found.err and "declog.lock" not in found.err


@pytest.mark.parametrize(
    "text", ["lock: 1\nconfigs: 3\n", "[", "lock: 1\nconfigs: {mine: {entries: [a], packages: 1}}"]
)
def test_a_lock_that_is_none_is_passed_over(project: None, cli: Cli, text: str) -> None:
    """Who compares with it says what is wrong with it; here it says nothing."""
    Path("declog.lock").write_text(text, encoding="utf-8")
    write("tables", "worst: {every: 10}")
    found = cli("check", MINE)
    assert found.code == 2
    assert "or delete it" in found.err


def test_writing_a_lock_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """Of one config or of several, behind what each logs; a config with an error writes none, and says none."""
    monkeypatch.chdir(tmp_path)
    for words in (["grpo"], ["grpo", "every=2"]):
        assert cli("check", *words, "--lock").out.splitlines()[-1] == "wrote ./declog.lock"
    assert "wrote" not in cli("check", "grpo", "every=-1", "--lock").out
    assert "wrote" not in cli("check", "--locked").out
