"""Broken profiles: each a mistake that a person makes, what declog says of it, and the profile once it is mended.

A case is one text of sections in ``tests/data/broken``: files, ``overrides``, the ``error``, and behind ``fixed`` the
files and overrides that are other ones once the advice is taken. Without a file ``declog/mine.yaml`` the overrides are
those of the preset ``grpo``. ``python -m tests.broken --update`` writes the errors; read the difference before it is
committed: these texts are what people see.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import declog

FOLDER = Path(__file__).parent / "data" / "broken"
_SECTION = re.compile(r"^== (.+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """One mistake. ``files`` and ``fixed`` hold sections by name, ``overrides`` among them."""

    path: Path
    about: str
    files: Mapping[str, str]
    fixed: Mapping[str, str]
    error: str

    def __str__(self) -> str:
        return self.path.stem

    @property
    def mended(self) -> Mapping[str, str]:
        """All files, as they are once the advice is taken."""
        return {**self.files, **self.fixed}


def read(path: Path) -> Case:
    """A case from its text."""
    about, *parts = _SECTION.split(path.read_text(encoding="utf-8"))
    files: dict[str, str] = {}
    fixed: dict[str, str] = {}
    error = ""
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        body = text.rstrip("\n") + "\n"
        if name == "error":
            error = body
        elif name.startswith("fixed "):
            fixed[name.removeprefix("fixed ")] = body
        else:
            files[name] = body
    return Case(path, about.strip(), files, fixed, error)


def cases(kind: str = "") -> list[Case]:
    """The cases whose names begin with ``kind``."""
    return [read(path) for path in sorted(FOLDER.glob(f"{kind}*.txt"))]


@contextmanager
def laid_out(files: Mapping[str, str]) -> Iterator[Path]:
    """The files in a working directory of their own."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            if "." in name:
                file = Path(folder, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def plan(files: Mapping[str, str]) -> declog.Plan:
    """The plan of a case's files and overrides."""
    overrides = files.get("overrides", "").splitlines()
    with laid_out(files) as folder:
        if not (folder / "declog").is_dir():
            return declog.plan(declog.compose("grpo", overrides))
        return declog.plan(declog.compose("mine", overrides, config_dir="."))


def shown(case: Case) -> str:
    """What declog says of a case."""
    try:
        plan(case.files)
    except declog.ConfigError as error:
        return f"{error}\n"
    return "nothing is wrong\n"


def _updated(case: Case, error: str) -> None:
    text = case.path.read_text(encoding="utf-8")
    before, mark, after = text.partition("== error\n")
    later = re.search(r"^== fixed", after, re.MULTILINE)
    rest = after[later.start() :] if later else ""
    case.path.write_text(f"{before}== error\n{error}\n{rest}".rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    for each in cases():
        if (new := shown(each)) != each.error:
            print(("updated " if "--update" in sys.argv else "differs ") + each.path.name)
            if "--update" in sys.argv:
                _updated(each, new)
