"""What pip calls this project is said in one place, and the other project of the name `declog` is told apart."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

import declog
from declog import distribution
from declog.cli import main
from tests import forks

ROOT = Path(__file__).parents[1]
TEXTS = [
    file
    for pattern in ("*.md", "Makefile", "*.txt", "docs/*.md", "examples/**/*.*", "conf/**/*.yaml", "declog/**/*.py")
    for file in ROOT.glob(pattern)
    if file.is_file() and file.suffix != ".pyc"
]
OF_OURS = "[console_scripts]\ndeclog = declog.cli:main\n"
LOOP = """
import logging, declog

logging.basicConfig(level=logging.WARNING)
for _ in range(2):
    with declog.start() as log, log.step(0):
        log.observe(loss=0.5)
"""


def install(site: Path, name: str, version: str, entry_points: str = "", kind: str = "dist-info") -> None:
    """What pip leaves of a distribution that is installed."""
    info = site / f"{name}-{version}.{kind}"
    info.mkdir(parents=True)
    file = "METADATA" if kind == "dist-info" else "PKG-INFO"
    (info / file).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")


def run(site: Path, *words: str) -> str:
    """What a process that has the folder of packages says, on both streams."""
    path = os.pathsep.join([str(site), str(ROOT)])
    done = forks.run(words, cwd=site, env=forks.environment({"PYTHONPATH": path}))
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_pyproject_reads_name_and_version_from_the_constant() -> None:
    """The project and its extras have the constant's name, and the version is nowhere else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["name"] == distribution.NAME
    assert project["project"]["dynamic"] == ["version"]
    assert ROOT / project["tool"]["hatch"]["version"]["path"] == Path(distribution.__file__)
    extras = [line for lines in project["project"]["optional-dependencies"].values() for line in lines]
    assert [line for line in extras if re.match(r"declog\b(?!-rl\[)", line)] == []
    assert declog.__version__ == distribution.VERSION


def test_no_text_installs_the_other_project() -> None:
    """Docs, errors, examples and the Makefile install, and depend on, `declog-rl`."""
    other = re.compile(r"(?<!un)install(?: +-\S+)* +['\"]?declog(?![-\w])|['\"]declog(?:\[\w|[<>=~]=)")
    texts = {file: file.read_text(encoding="utf-8") for file in TEXTS}
    assert len(texts) > 300
    assert [(file.name, found[0]) for file, text in texts.items() for found in other.finditer(text)] == []
    assert all(map(other.search, ("pip install -U declog", "pip install 'declog[trl]'", '["declog>=0.1"]')))


def test_a_package_that_init_begins_depends_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under its own name, from this minor version on."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "acme-logging", "--package"]) == 0
    project = tomllib.loads((tmp_path / "acme-logging/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dependencies"] == ["declog-rl>=0.9"]


@pytest.mark.parametrize(
    ("name", "version", "entry_points", "kind", "told"),
    [
        ("declog", "0.5.0", "", "dist-info", "0.5.0"),
        ("declog", "0.4.0", "", "egg-info", "0.4.0"),
        ("declog", "9.0", "[console_scripts]\ndeclog = declog.core:main\n", "dist-info", "9.0"),
        ("declog", "0.1.0", OF_OURS, "dist-info", None),  # a checkout of ours that was installed under the old name
        ("declog_rl", "0.1.0", OF_OURS, "dist-info", None),
        ("declog_extras", "1.0", "", "dist-info", None),
    ],
)
def test_the_other_distribution_is_told_apart(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    version: str,
    entry_points: str,
    kind: str,
    told: str | None,
) -> None:
    """By what it installs: a distribution `declog` without our command is another project's, whatever its version."""
    install(tmp_path, name, version, entry_points, kind)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert distribution.namesake() == told


def test_check_and_start_say_once_that_it_is_installed(tmp_path: Path) -> None:
    """With what to type; standard output stays the report, and a second run of a process is started without it."""
    assert "DL610" not in run(tmp_path, "-m", "declog", "check", "grpo") + run(tmp_path, "-c", LOOP)
    install(tmp_path, "declog", "0.5.0")
    for words in (("-m", "declog", "check", "grpo", "rloo"), ("-c", LOOP)):
        said = run(tmp_path, *words)
        assert said.count("DL610") == 1
        assert "declog 0.5.0 is installed, too" in said
        assert "pip uninstall -y declog && pip install --force-reinstall --no-deps declog-rl" in said


def test_nothing_depends_on_being_installed(tmp_path: Path) -> None:
    """From a checkout, whose metadata is under an older name or nowhere, versions are the constant's."""
    program = "import sys; sys.path[:] = [p for p in sys.path if p != {!r}]; from declog.cli import main; main()"
    site = next(path for path in sys.path if path.endswith("site-packages"))
    said = run(tmp_path, "-c", f"import sys; sys.argv[1:] = ['--version']; {program.format(site)}")
    assert said == f"{distribution.NAME} {distribution.VERSION}\n"
