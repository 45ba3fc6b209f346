"""What several test files share: presets of a test's own, in a working directory of its own; Hypothesis' settings."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("declog", max_examples=50, deadline=None)  # no test depends on the machine's speed
settings.load_profile("declog")

WritePreset = Callable[[str, str], Path]


@pytest.fixture
def write_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WritePreset:
    """Writes ``declog/<name>.yaml`` below the working directory, and returns the directory to compose from."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> Path:
        file = tmp_path / "declog" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return tmp_path

    return write
