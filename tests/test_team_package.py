"""The example package of a team: built, installed beside another team's, upgraded to one that renames a metric."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests import forks

REPOSITORY = Path(__file__).parents[1]
EXAMPLE = REPOSITORY / "examples" / "team-preset"
OTHER = Path(__file__).parent / "data" / "beta"
MINE = """\
defaults: [beta_grpo, _self_]
run: {name: mine}
alerts:
  solved: "< 0.1 for 2"
  low: {when: solved < 0.3}
profiles:
  short: {only: [solved, margin]}
"""
COMMANDS = """
import contextlib, io, json, sys
from declog.cli import main

found = []
for words in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(words)
    found.append([code, out.getvalue()])
print(json.dumps(found))
"""


def run(*command: str | Path, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def renamed(folder: Path) -> Path:
    """The example one major version later: its metric `solved` is called `solve_rate`."""
    source = folder / "acme-2"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", "dist"))
    edits = {
        "pyproject.toml": ('version = "1.0.0"', 'version = "2.0.0"'),
        "acme_logging/conf/declog/packs/acme_answers.yaml": (
            "solved: {expr: reward > 0.5, name: acme/solved",
            "solve_rate: {expr: reward > 0.5, renamed: solved, name: acme/solve_rate",
        ),
    }
    for name, (old, new) in edits.items():
        text = (source / name).read_text(encoding="utf-8")
        assert old in text
        (source / name).write_text(text.replace(old, new), encoding="utf-8")
    pack = source / "acme_logging/conf/declog/packs/acme_answers.yaml"
    pack.write_text(
        pack.read_text(encoding="utf-8").replace("  solved: {help", "  solve_rate: {help"), encoding="utf-8"
    )
    preset = source / "acme_logging/conf/declog/acme_grpo.yaml"
    text = preset.read_text(encoding="utf-8").replace("  solved:\n    below", "  solve_rate:\n    below")
    text = text.replace("{solved:", "{solve_rate:").replace("acme/solved", "acme/solve_rate")
    preset.write_text(text, encoding="utf-8")
    return source


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels of both versions, and of the other team's package, built with the tools that are installed."""
    folder = tmp_path_factory.mktemp("wheels")
    sources = {"acme 1": EXAMPLE, "acme 2": renamed(folder), "beta": OTHER}
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
    ]
    for name, source in sources.items():
        run(*pip, "--wheel-dir", folder / name, source, cwd=folder)
    return {name: next((folder / name).glob("*.whl")) for name in sources}


class Environment:
    """A fresh environment, in which only the dependencies are shared, and a folder of work."""

    def __init__(self, home: Path) -> None:
        self.work = home / "work"
        (self.work / "conf" / "declog").mkdir(parents=True)
        venv.create(home / "env", with_pip=False, symlinks=True)
        self.python = home / "env" / "bin" / "python"
        (site,) = (home / "env").glob("lib/python*/site-packages")
        shared = [path for path in sys.path if path.endswith("site-packages")]  # with what is installed for editing
        (site / "shared.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in shared))

    def install(self, *wheels: Path) -> None:
        """As pip would, without looking for dependencies."""
        pip: list[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.python,
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
        ]
        run(*pip, *wheels, cwd=self.work)

    def declog(self, *lines: str) -> list[tuple[int, str]]:
        """The exit code of each command line, and what it prints with single blanks."""
        words = json.dumps([line.split() for line in lines])
        found = json.loads(run(self.python, "-I", "-c", COMMANDS, words, cwd=self.work).splitlines()[-1])
        return [(code, re.sub(r"\s+", " ", text)) for code, text in found]


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Both teams' packages, in their first versions, and a profile of one's own on top."""
    made = Environment(tmp_path_factory.mktemp("fresh"))
    made.install(wheels["acme 1"], wheels["beta"])
    (made.work / "conf" / "declog" / "mine.yaml").write_text(MINE, encoding="utf-8")
    return made


@pytest.mark.slow  # three wheels and an environment
def test_two_teams_packages_and_an_upgrade(installed: Environment, wheels: dict[str, Path]) -> None:
    """Both are there by name; the upgrade says at its place what is called otherwise, and what is logged otherwise."""
    presets, strict, tested, why, checked, locked = installed.declog(
        "ls presets", "check beta_grpo --strict", "test acme_grpo", "show beta_grpo --why metrics.solved",
        "check conf/declog/mine.yaml", "check beta_grpo conf/declog/mine.yaml --lock",
    )  # fmt: skip
    assert "acme_grpo acme-logging 1.0.0 What every GRPO run of acme logs" in presets[1]
    assert "beta_grpo beta-logging 0.3.0 Another team's preset, on top of acme's" in presets[1]
    assert (strict[0], tested[0], checked[0], locked[0]) == (0, 0, 0, 0)
    assert tested[1].endswith(" tests: all passed ")
    assert "packs/acme_answers.yaml:3:3 (acme-logging 1.0.0)" in why[1]

    installed.install(wheels["acme 2"])
    broken, fixed, now, other, changed = installed.declog(
        "check conf/declog/mine.yaml", "check conf/declog/mine.yaml --fix", "check conf/declog/mine.yaml",
        "check beta_grpo", "check --locked beta_grpo",
    )  # fmt: skip
    assert broken[0] == 2
    assert broken[1].count("`solved` is called `solve_rate` now (acme-logging 2.0.0)") == 3
    assert "error[DL408] conf/declog/mine.yaml:4:3 in alerts.solved" in broken[1]

    assert (fixed[0], now[0], other[0], changed[0]) == (0, 0, 0, 1)
    mine = (installed.work / "conf" / "declog" / "mine.yaml").read_text(encoding="utf-8")
    assert mine == re.sub(r"\bsolved\b", "solve_rate", MINE)
    assert "acme-logging 1.0.0 -> 2.0.0" in changed[1]
    assert "acme/solved is called acme/solve_rate now" in changed[1]


def test_the_example_passes_its_own_tests() -> None:
    """What its CI runs: the presets of the package, from its checkout."""
    paths = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(EXAMPLE)])}
    words = ["check", "pkg://acme_logging.conf", "--strict"]
    done = forks.run(["-c", COMMANDS, json.dumps([words])], cwd=EXAMPLE, env=forks.environment(paths))
    assert done.returncode == 0, done.stderr
    ((code, text),) = json.loads(done.stdout.splitlines()[-1])
    assert (code, "note:" in text) == (0, False), text
