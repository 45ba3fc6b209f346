"""The files that ``declog init`` writes: of a package of presets, or of a config in a project.

Their texts are in the folder `templates`, with ``$name`` where a fact stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

TABLE = '[tool.declog]\nconfig_dir = "conf"\n'

# By path, the name of the template; a file without one is empty.
PACKAGE_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "$module/__init__.py": None,
    "$module/conf/__init__.py": None,
    "$module/conf/declog/$config.yaml": "preset.yaml",
    "tests/test_presets.py": "test_presets.py",
    ".github/workflows/test.yml": "test.yml",
    ".pre-commit-config.yaml": "pre-commit-config.yaml",
}
CONFIG_FILE = {"conf/declog/$config.yaml": "preset.yaml"}


def filled(files: Mapping[str, str | None], facts: Mapping[str, str]) -> dict[str, str]:
    """Paths and texts with their facts."""
    folder = Path(__file__).parent / "templates"
    texts = {path: (folder / f"{name}.template").read_text("utf-8") if name else "" for path, name in files.items()}
    return {Template(path).substitute(facts): Template(text).substitute(facts) for path, text in texts.items()}
