"""``pytest --declog``: profile tests of files and of installed packages among a project's own tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests import forks

PROFILE = """\
signals: {any: {reward: {axis: completion}}}
metrics: {reward: mean(reward)}
tests:
  right: {observe: {reward: [1, 3]}, expect: {reward: 2}}
  wrong: {observe: {reward: [1, 3]}, expect: {reward: 3}}
"""
PLUGIN = "declog.replay.pytest_plugin"
ROOT = Path(__file__).parents[2]


def write(folder: Path, **files: str) -> None:
    """Files by their paths, `__` for `/`."""
    for name, text in files.items():
        file = folder / name.replace("__", "/").replace("_yaml", ".yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def pytest_in(folder: Path, *arguments: str, path: str = "") -> list[str]:
    """What pytest prints with the plugin in a folder of its own, without how long it took."""
    env = forks.environment(
        {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(filter(None, (path, str(ROOT))))}
    )
    command = ["-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-rA", "--rootdir", str(folder), *arguments]
    done = forks.run(command, cwd=folder, env=env)
    assert done.stderr == ""
    return [re.sub(r" in [\d.]+s", "", line).strip("= ") for line in done.stdout.splitlines()]


def test_tests_of_files_are_items(tmp_path: Path) -> None:
    """Those of profiles, and of no other YAML; what differs is shown without a traceback."""
    write(tmp_path, conf__declog__mine_yaml=PROFILE, conf__other_yaml="{lr: 1, tests: {a: 1}}", conf__c_yaml="a: [")
    lines = pytest_in(tmp_path, "--declog", "conf")
    assert lines[-3:] == [
        "PASSED conf/declog/mine.yaml::right",
        "FAILED conf/declog/mine.yaml::wrong - FAIL wrong",
        "1 failed, 1 passed",
    ]
    start = lines.index("FAIL wrong")
    assert lines[start : start + 4] == ["FAIL wrong", "expect.reward", "expected 3 (within 1e-06)", "got      2"]
    assert pytest_in(tmp_path, "--declog", "conf", "-k", "right")[-1] == "1 passed, 1 deselected"


def test_a_file_beside_no_folder_of_that_name_is_known_by_its_tests(tmp_path: Path) -> None:
    """A profile by its path; one that is wrong is an error of the collection, with its place."""
    write(tmp_path, mine_yaml=PROFILE, odd_yaml=PROFILE.replace("mean(reward)", "maen(reward)"))
    lines = pytest_in(tmp_path, "--declog")
    assert lines[-1] == "1 error" or lines[-1].endswith("1 error")
    assert "error[DL303] odd.yaml:2:19 in metrics.reward" in lines


def test_presets_of_installed_packages_come_behind(tmp_path: Path) -> None:
    """Of the entry points `declog.presets`, under the name of the package."""
    write(
        tmp_path / "site",
        **{
            "acme__conf__declog__acme_core_yaml": PROFILE,
            "acme_logging-1.0.dist-info__METADATA": "Metadata-Version: 2.1\nName: acme-logging\nVersion: 1.0\n",
            "acme_logging-1.0.dist-info__entry_points.txt": "[declog.presets]\nacme = acme.conf\n",
        },
    )
    (tmp_path / "site" / "acme" / "__init__.py").write_text("")
    (tmp_path / "site" / "acme" / "conf" / "__init__.py").write_text("")
    (tmp_path / "empty").mkdir()
    lines = pytest_in(tmp_path / "empty", "--declog", path=str(tmp_path / "site"))
    assert lines[-3:] == [
        "PASSED acme-logging:acme_core::right",
        "FAILED acme-logging:acme_core::wrong - FAIL wrong",
        "1 failed, 1 passed",
    ]


def test_without_the_option_nothing_is_loaded(tmp_path: Path) -> None:
    """Every pytest of an environment with declog imports the plugin: it costs neither torch nor Hydra nor a parser."""
    write(tmp_path, mine_yaml=PROFILE)
    heavy = "{'torch', 'hydra', 'omegaconf', 'yaml', 'pydantic', 'declog.config.fold'}"
    program = f"import sys, pytest; pytest.main(['-q', '-p', {PLUGIN!r}]); print(sorted({heavy} & set(sys.modules)))"
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_it_is_an_entry_point() -> None:
    """Whoever installs declog has the option."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"declog": PLUGIN}
