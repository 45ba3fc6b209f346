"""The wheel: built, installed into a fresh environment, and composed from there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from declog.config.compose import compose, config_of
from declog.distribution import VERSION
from declog.errors.pages import CODES

REPOSITORY = Path(__file__).parents[1]
APP = Path(__file__).parent / "data" / "compose" / "app" / "train.py"


def run(*command: str | Path, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout with the tools that are installed."""
    target = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, REPOSITORY, cwd=target)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel in it; only the dependencies are shared."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home, with_pip=False, symlinks=True)
    interpreter = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", interpreter, "install", "--no-deps", "--no-index", wheel, cwd=home)
    # A directory that a .pth file adds is searched last and its own .pth files are not read, so that the
    # editable install of the checkout is not among what is shared.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "shared.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("site-packages")))
    return interpreter


def evaluate(python: Path, code: str) -> Any:
    """What ``code`` prints as JSON, run by ``python`` away from the checkout."""
    return json.loads(run(python, "-I", "-c", code, cwd=python.parent))


def test_the_wheel_holds_the_package_and_the_presets_in_it(wheel: Path) -> None:
    """`conf` is installed as `declog/conf`, with every preset; only a plugin that Hydra finds is beside it."""
    names = zipfile.ZipFile(wheel).namelist()
    presets = {f"declog/{file.relative_to(REPOSITORY)}" for file in (REPOSITORY / "conf").rglob("*.yaml")}
    assert {"declog/conf/declog/grpo.yaml", "declog/conf/declog/packs/rewards.yaml"} < presets
    assert {name for name in names if name.endswith(".yaml")} == presets
    info = wheel.name.rsplit("-", 3)[0] + ".dist-info"
    assert {name.split("/")[0] for name in names} == {"declog", "hydra_plugins", info}
    assert [name for name in names if name.startswith("hydra_plugins/")] == ["hydra_plugins/declog_presets.py"]
    assert {"declog/conf/__init__.py", "declog/cli/templates/preset.yaml.template"} < set(names)
    assert {name for name in names if name.endswith(".md")} == {f"declog/errors/pages/{code}.md" for code in CODES}


def test_the_wheel_says_where_its_parts_come_from(wheel: Path) -> None:
    """Each file of other people's is beside its licence, and an index shows the README with whole addresses."""
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    vendored = {name for name in names if "/vendor/" in name}
    assert {Path(name).name.partition(".")[0] for name in vendored} == {"uPlot", "uPlot-LICENSE"}
    info = wheel.name.rsplit("-", 3)[0] + ".dist-info"
    licences = {name.removeprefix(f"{info}/licenses/") for name in names if name.startswith(f"{info}/licenses/")}
    assert licences == {"LICENSE", "declog/runs/report/assets/vendor/uPlot-LICENSE"}
    metadata, _, readme = archive.read(f"{info}/METADATA").decode().partition("\n\n")
    assert f"Version: {VERSION}\n" in metadata and "License-Expression: Apache-2.0 AND MIT\n" in metadata
    assert {"Repository", "Documentation", "Changelog", "Issues"} == set(
        re.findall(r"^Project-URL: (\w+)", metadata, re.M)
    )
    assert readme.startswith("# declog\n") and not re.search(r"\]\((?!https://|#)", readme)


def test_the_installed_package_is_the_wheels(python: Path) -> None:
    """What is imported in the fresh environment is not the checkout, and its presets are inside the package."""
    found = evaluate(
        python,
        "import json, declog, declog.config.search_path as s; print(json.dumps([declog.__file__, s.conf_location()]))",
    )
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    assert found == [str(site / "declog" / "__init__.py"), "pkg://declog.conf"]


@pytest.mark.parametrize("preset", ["grpo", "rloo"])
def test_a_preset_composes_from_the_wheel(python: Path, preset: str) -> None:
    """A preset and an override give the same profile from the wheel as from the checkout."""
    overrides = ["declog.sinks=[console,trackio]", "declog.metrics.reward.reduce=p95", "~declog.metrics.kl"]
    installed = evaluate(
        python,
        "import json; from declog.config.compose import compose, config_of;"
        f"print(json.dumps(config_of(compose({preset!r}, {overrides!r}))))",
    )
    assert json.dumps(installed) == json.dumps(config_of(compose(preset, overrides)))  # a test of it gives NaN
    assert list(installed["sinks"]) == ["console", "trackio"]


def test_a_place_in_a_shipped_file_is_the_installed_file(python: Path) -> None:
    """Provenance reads the presets of a package as it reads files."""
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    found = evaluate(
        python,
        "import json; from declog.config.compose import compose;"
        "print(json.dumps(compose().provenance.layers['declog', 'metrics', 'reward', 'expr'][0].location.file))",
    )
    assert found == str(site / "declog" / "conf" / "declog" / "packs" / "rewards.yaml")


def test_the_command_line_is_installed(python: Path) -> None:
    """Beside the interpreter, with the presets and the pages of the error codes."""
    assert run(python.with_name("declog"), "check", "rloo", cwd=python.parent).startswith("ok rloo: ")
    assert run(python.with_name("declog"), "explain", "DL310", cwd=python.parent).startswith("# DL310: ")


def test_an_application_finds_the_presets_of_the_wheel(python: Path, tmp_path: Path) -> None:
    """A user's own `@hydra.main` sees the shipped groups, with declog installed."""
    printed = run(python, APP, f"hydra.run.dir={tmp_path}", "declog.sinks=[jsonl]", cwd=APP.parent)
    profile = json.loads(printed.removeprefix("profile "))
    assert (profile["run"]["name"], list(profile["sinks"])) == ("app", ["jsonl"])
