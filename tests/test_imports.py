"""What waits for the import of another package: ``declog.imports.after``."""

from __future__ import annotations

import importlib
import importlib.resources
import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from declog.imports import after


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a test writes packages; afterwards none is imported, and nothing waits."""
    finders, modules = list(sys.meta_path), set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.meta_path[:] = finders
    for name in sys.modules.keys() - modules:
        del sys.modules[name]


def test_once_when_it_is_imported(packages: Path) -> None:
    """Each that waits is called once, with a module or a package's own whose code has run; then none is left."""
    (packages / "theirs").mkdir()
    (packages / "theirs/__init__.py").write_text("from theirs import inner\nvalue = inner.value + 1\n")
    (packages / "theirs/inner.py").write_text("value = 1\n")
    seen: list[object] = []
    finders = list(sys.meta_path)
    for name in ("theirs", "theirs.inner", "theirs"):
        after(name, lambda module: seen.append((module.__name__, module.value)))
    assert seen == []
    theirs = importlib.import_module("theirs")
    assert seen == [("theirs.inner", 1), ("theirs", 2), ("theirs", 2)]
    assert sys.meta_path == finders
    after("theirs", seen.append)
    assert seen[3:] == [theirs]
    importlib.reload(theirs)
    assert seen[4:] == []


def test_who_only_asks(packages: Path) -> None:
    """A look at where the module is, as packages do to see what is installed, is no import: what waits goes on to."""
    (packages / "asked.py").write_text("value = 1\n")
    seen: list[str] = []
    after("asked", lambda module: seen.append(module.__name__))
    after("absent_one", lambda module: seen.append(module.__name__))
    spec = importlib.util.find_spec("asked")
    assert (
        spec is not None
        and spec.origin == str(packages / "asked.py")
        and importlib.util.find_spec("absent_one") is None
    )
    assert spec.loader is not None and spec.loader.get_filename("asked") == spec.origin  # type: ignore[attr-defined]
    assert seen == []
    importlib.import_module("asked")
    assert seen == ["asked"]


def test_an_import_that_fails(packages: Path) -> None:
    """Nothing is called; it is when the module is imported after all."""
    (packages / "broken.py").write_text("raise ImportError('not yet')\n")
    seen: list[str] = []
    after("broken", lambda module: seen.append(module.__name__))
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module("broken")
    assert seen == []
    (packages / "broken.py").write_text("value = 'now it is there'\n")
    importlib.invalidate_caches()
    importlib.import_module("broken")
    assert seen == ["broken"]


def test_the_module_is_as_ever(packages: Path) -> None:
    """Its loader, its source and its resources are its own, also while its code runs."""
    (packages / "own").mkdir()
    (packages / "own/data.txt").write_text("a resource")
    text = "import importlib.resources\nread = importlib.resources.files(__name__).joinpath('data.txt').read_text()\n"
    (packages / "own/__init__.py").write_text(text)
    after("own", lambda module: None)
    own: Any = importlib.import_module("own")
    assert (own.read, inspect.getsource(own)) == ("a resource", text)
    assert own.__loader__ is own.__spec__.loader and type(own.__loader__).__module__ != after.__module__


def test_hydra_knows_the_presets_however_it_comes() -> None:
    """Also where somebody has asked whether Hydra is installed, and it is not imported for it."""
    program = """
import importlib.util, sys
import declog
assert "hydra" not in sys.modules
importlib.util.find_spec("hydra")
import hydra
from hydra import compose, initialize
with initialize(version_base=None):
    print(compose(overrides=["+declog=grpo"]).declog.run.project)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("grpo\n", 0), done.stderr
