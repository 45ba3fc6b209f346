"""A profile imports nothing that it names; the project that one works in may say what is imported for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import pytest
from omegaconf import OmegaConf

import declog
from declog.cli import main
from declog.config.project import load_imports
from declog.errors import ConfigError
from declog.language.functions import DEFAULT
from declog.replay.config_tests import config_tests

BASE: dict[str, Any] = {"signals": {"any": {"r": {"axis": "completion"}}}, "metrics": {"r": "mean(r)"}}
MODULE = "declog_test_own"
CODE = """
import declog
from declog.testing import MemorySink as Sink
imported = True

@declog.function
def declog_test_double(x):
    return x * 2
"""
YAML = """
signals: {any: {r: {axis: completion}}}
metrics: {r: mean(r)}
sinks: [s, t, u]
sink_options: {s: {kind: declog_test_own:Sink}, t: {kind: this:S}, u: {kind: multiprocessing.managers:SyncManager}}
run: {config: {_target_: declog_test_own.Sink, hydra: {_target_: this.s}}}
tests: {one: {observe: {r: [1]}, expect: {r: 1}}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module of the user's own, in which one works; nothing of it is on the path."""
    (tmp_path / f"{MODULE}.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "work" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "deep")
    yield tmp_path
    sys.modules.pop(MODULE, None)
    DEFAULT.discard("declog_test_double")


@pytest.fixture
def importable(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder's modules are on the path, as those of the working directory are by `--import`."""
    monkeypatch.syspath_prepend(project)


def says(folder: Path, text: str) -> None:
    """What the project's own file says."""
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("verb", ["check", "show", "show --yaml", "show --why", "diff", "ls", "test"])
def test_no_verb_imports_what_a_profile_names(
    verb: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a sink's kind nor Hydra's `_target_` does anything, whatever can be imported."""
    monkeypatch.syspath_prepend(str(project))
    file = project / "theirs.yaml"
    file.write_text(YAML, encoding="utf-8")
    says(project / "work", "")
    words = {
        "show --why": ["show", str(file), "--why", "sink_options.s"],
        "diff": ["diff", str(file), "--", str(file)],
        "ls": ["ls", "metrics", str(file)],
        "show --yaml": ["show", "--yaml", str(file)],
    }.get(verb, [verb, str(file)])
    before = set(sys.modules)
    code = main(words)
    reported = capsys.readouterr()
    assert not {MODULE, "this", "multiprocessing.managers"} & (set(sys.modules) - before)
    if verb in ("check", "diff", "show"):
        assert code == 2
        assert " ".join(reported.err.split()).count("names a module, and a config imports none") >= 3


@pytest.mark.parametrize("kind", ["mapping", "node", "start", "tests", "capture"])
def test_nor_does_the_library(kind: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile as data is refused like one in a file, also by its tests."""
    monkeypatch.syspath_prepend(str(project))
    profile = {
        **BASE,
        "sinks": ["s"],
        "sink_options": {"s": {"kind": f"{MODULE}:Sink"}},
        "tests": {"one": {"observe": {"r": [1]}, "expect": {"r": 1}}},
    }
    with pytest.raises(ConfigError, match="names a module, and a config imports none"):
        if kind == "mapping":
            declog.plan(profile)
        elif kind == "node":
            declog.plan(OmegaConf.create({"declog": profile}))
        elif kind == "start":
            declog.start(profile, output_dir=project)
        elif kind == "tests":
            config_tests(profile)
        else:
            declog.compile(declog.validate(profile))
    assert MODULE not in sys.modules


def test_the_project_says_what_is_imported(project: Path) -> None:
    """From the working directory upwards; its functions are known, and its classes of sinks."""
    says(project, f'[tool.other]\nx = 1\n[tool.declog]\nimports = ["{MODULE}"]\n')
    says(project / "work", "[project]\nname = 'inner'\n")
    profile = {
        **BASE,
        "metrics": {"r": "mean(declog_test_double(r))"},
        "sinks": ["s"],
        "sink_options": {"s": {"kind": f"{MODULE}:Sink"}},
    }
    made = declog.plan(profile)
    assert [op.kind for op in made.sinks] == [f"{MODULE}:Sink"]
    assert str(project) not in sys.path
    with declog.start(profile, output_dir=project / "run") as log, log.step(0):
        log.observe(r=[1.0, 2.0])
    assert dict(log.failures) == {}


def test_tests_of_a_config_know_the_imports(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`declog check` compiles a config for each of its tests, with the modules of the project."""
    says(project, f'[tool.declog]\nimports = ["{MODULE}"]\n')
    monkeypatch.chdir(project)
    (project / "mine.yaml").write_text(
        "signals: {any: {r: {axis: completion}}}\nmetrics: {r: mean(r)}\n"
        f"sinks: [s]\nsink_options: {{s: {{kind: '{MODULE}:Sink'}}}}\n"
        "tests: {one: {observe: {r: [1, 3]}, expect: {r: 2}}}\n",
        "utf-8",
    )
    assert main(["check", "mine.yaml"]) == 0


def test_a_module_beside_a_listed_one_is_refused(project: Path) -> None:
    """The list has modules, and not what they import."""
    says(project, f'[tool.declog]\nimports = ["{MODULE}"]\n')
    with pytest.raises(ConfigError, match=r"`declog\.testing:MemorySink` names a module"):
        declog.plan({**BASE, "sinks": ["s"], "sink_options": {"s": {"kind": "declog.testing:MemorySink"}}})


def test_a_profile_brings_no_project_along(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What stands beside a profile from elsewhere is not the project that one works in."""
    theirs = project / "theirs"
    theirs.mkdir()
    says(theirs, '[tool.declog]\nimports = ["declog_test_theirs"]\n')
    (theirs / "declog_test_theirs.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    profile = "signals: {any: {r: {axis: completion}}}\nmetrics: {r: mean(r)}\nsinks: [jsonl]\n"
    (theirs / "mine.yaml").write_text(profile, encoding="utf-8")
    assert main(["check", str(theirs / "mine.yaml")]) == 0
    assert "declog_test_theirs" not in sys.modules
    assert capsys.readouterr().out.startswith("ok")


def test_the_command_line_imports_what_it_is_reported(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--import` is the user's own word, too."""
    monkeypatch.chdir(project)
    (project / "mine.yaml").write_text(
        "signals: {any: {r: {axis: completion}}}\nmetrics: {r: mean(r)}\n"
        f"sinks: [s]\nsink_options: {{s: {{kind: '{MODULE}:Sink'}}}}\n",
        "utf-8",
    )
    assert [main(["check", "mine.yaml"]), main(["check", "mine.yaml", "--import", MODULE])] == [2, 0]
    sys.path.remove(str(project))


@pytest.mark.parametrize(
    ("text", "code", "written"),
    [
        ("[tool.declog]\nimport = []\n", "DL201", "unknown key `import`"),
        ("[tool.declog]\nimports = 'a'\n", "DL202", "is a list of modules"),
        ("[tool.declog]\nimports = [1]\n", "DL202", "is a list of modules"),
        ("[tool.declog\n", "DL202", "no TOML"),
        ("[tool.declog]\nimports = ['declog_test_not_there']\n", "DL403", "cannot be imported"),
    ],
)
def test_what_is_wrong_with_the_table_is_reported(text: str, code: str, written: str, project: Path) -> None:
    """With the file that has it."""
    says(project, text)
    with pytest.raises(ConfigError, match=written) as raised:
        declog.plan(BASE)
    assert raised.value.code == code
    assert str(project / "pyproject.toml") in str(raised.value)


def test_a_project_that_says_nothing(project: Path) -> None:
    """A table without the key, or no table."""
    says(project, "[tool.declog]\n")
    assert load_imports() == ()
    says(project, "[project]\n")
    assert load_imports() == ()


def test_an_installed_package_that_does_not_name_its_presets(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Class: a preset that is installed without an entry point; with the printed line in it the preset is found."""
    site, info = project / "site", project / "site" / "declog_test_team-1.0.dist-info"
    (site / "declog_test_team" / "conf" / "declog").mkdir(parents=True)
    info.mkdir()
    (site / "declog_test_team" / "conf" / "declog" / "team.yaml").write_text("metrics: {m: p50(reward)}\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declog-test-team\nVersion: 1.0\n", encoding="utf-8")
    (info / "RECORD").write_text("declog_test_team/conf/declog/team.yaml,,\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    Path("mine.yaml").write_text("defaults: [grpo, team, _self_]\n", encoding="utf-8")
    assert main(["check", "mine.yaml"]) != 0
    line = '[project.entry-points."declog.presets"] declog_test_team = "declog_test_team.conf"'
    printed = " ".join(capsys.readouterr().err.split())
    assert f"the package declog-test-team has it: in the pyproject.toml of its package write {line}" in printed
    (info / "entry_points.txt").write_text("[declog.presets]\ndeclog_test_team = declog_test_team.conf\n")
    monkeypatch.syspath_prepend(str(project / "work"))  # what is installed is read once for each path
    assert main(["check", "mine.yaml"]) == 0


@pytest.mark.parametrize("way", ["option", "table"])
@pytest.mark.parametrize("decorator", ["import hydra\n@hydra.main", "from hydra import main as start\n@start"])
def test_an_imported_script_does_not_run(way: str, decorator: str, project: Path, importable: None) -> None:
    """Class: functions stand in the script of an application that calls its decorated `main()` at the end."""
    script = project / f"{MODULE}.py"
    script.write_text(f"{CODE}\n{decorator}(version_base='1.3')\ndef run(cfg):\n    1 / 0\n\nrun()\n", "utf-8")
    says(project, f"[tool.declog]\nimports = ['{MODULE}']\n" if way == "table" else "")
    Path("mine.yaml").write_text(
        "signals: {any: {r: completion}}\nmetrics: {d: mean(declog_test_double(r))}\n", "utf-8"
    )
    assert main(["check", "mine.yaml", *(["--import", MODULE] if way == "option" else [])]) == 0
    assert hydra.main.__module__ == "hydra.main"


def test_an_imported_script_that_reads_the_command_line(project: Path, importable: None, capsys: Any) -> None:
    """Class: a script of another kind that runs at import; the answer is its guard."""
    code = "import argparse\nargparse.ArgumentParser().parse_args(['--import'])\n"
    (project / f"{MODULE}.py").write_text(code, encoding="utf-8")
    assert main(["check", "grpo", "--import", MODULE]) == 2
    assert 'fix: end it in `if __name__ == "__main__": main()`' in capsys.readouterr().err
