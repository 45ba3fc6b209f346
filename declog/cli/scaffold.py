"""The files that ``declog init`` writes: of a package of presets, or of a config in a project, as templates."""

from __future__ import annotations

from string import Template

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "$name"
version = "0.1.0"
description = "What our runs log."
requires-python = ">=3.11"
dependencies = ["$declog"]

# Where the presets are: the package whose folder `declog` has them.
[project.entry-points."declog.presets"]
$module = "$module.conf"

# Functions, reducers, columns and sinks are said in the same way; each names an object:
# [project.entry-points."declog.functions"]
# margin = "$module.functions:margin"

[tool.hatch.build.targets.wheel]
only-include = ["$module"]

[tool.declog]
config_dir = "$module/conf"
"""

PRESET = """\
# What our runs log. (The first line is what `declog ls presets` shows.)
defaults: [$preset, _self_]

spec: 1
name: $config

metrics:
  reward_p95: {expr: reward, reduce: p95, name: $prefix/reward_p95}

about:
  reward_p95: {help: what the best completions get}

alerts:
  reward_p95: {below: 0.01, for: 5, text: "p95 of the reward is {reward_p95:.3f}."}

tests:
  reward_p95:
    with: {axes: {group: {size: 4}}}
    observe: {reward: [0, 0, 0, 1]}
    expect: {$prefix/reward_p95: 0.85}
"""

TEST = '''\
"""The presets compile, and pass their own tests."""

import pytest

import declog
from declog.testing import run_config_tests


@pytest.mark.parametrize("preset", ["$config"])
def test_a_preset(preset):
    """All of its tests."""
    run_config_tests(declog.compose(f"pkg://$module.conf/{preset}"))
'''

CI = """\
name: test
on: [push, pull_request]
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {python-version: "3.12"}
      - run: pip install torch --index-url https://download.pytorch.org/whl/cpu
      - run: pip install -e . pytest
      - run: declog check pkg://$module.conf --strict --format github
      - run: pytest tests
"""

README = """\
# $name

Presets for [declog](https://github.com/declog/declog): `declog=$config` in any application, once this is installed.

```sh
pip install -e .
declog check $config
declog test $config
pytest tests
```

When you rename a metric, write its old name under `renamed:`. An error then tells users of the old name the new one.
"""

HOOK = """\
repos:
  - repo: local
    hooks:
      - id: declog-check
        name: declog check
        entry: declog check --strict
        language: system
        files: (^|/)declog/.*\\.yaml$$
"""

TABLE = """\
[tool.declog]
config_dir = "conf"
"""

PACKAGE_FILES = {
    "pyproject.toml": PYPROJECT,
    "README.md": README,
    "$module/__init__.py": "",
    "$module/conf/__init__.py": "",
    "$module/conf/declog/$config.yaml": PRESET,
    "tests/test_presets.py": TEST,
    ".github/workflows/test.yml": CI,
    ".pre-commit-config.yaml": HOOK,
}
CONFIG_FILE = {"conf/declog/$config.yaml": PRESET}


def filled(files: dict[str, str], facts: dict[str, str]) -> dict[str, str]:
    """Paths and texts with their facts."""
    return {Template(path).substitute(facts): Template(text).substitute(facts) for path, text in files.items()}
