"""Broken profiles: each a mistake that a person makes, what declog says of it, and the profile once it is mended.

A case is one text of sections in ``tests/data/broken``: files, ``overrides``, the ``error``, and behind ``fixed`` the
files and overrides that are other ones once the advice is taken. Without a file ``declog/mine.yaml`` the overrides are
those of the preset ``grpo``, in Hydra's words. Cases ``app_*`` run in an application with ``@hydra.main``, cases
``team_*`` beside an installed package, ``tests/data/team``. ``python -m tests.config.broken --update`` writes the
errors; read the difference before it is committed: these texts are what people see.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import declog
from declog.errors import Problem
from tests import forks

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parents[1] / "data"
FOLDER = DATA / "broken"
WELL = "nothing is wrong\n"
_SECTION = re.compile(r"^== (.+)\n", re.MULTILINE)
_SHIPPED = re.compile(rf"{re.escape(str(ROOT))}/(conf/declog/\S+\.yaml):(\d+):(\d+)")

APPLICATION = """
import hydra

import declog


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    try:
        declog.plan(cfg)
    except declog.ConfigError as error:
        print(error)
    else:
        print("nothing is wrong")


main()
"""


APPLICATIONS = """
import contextlib, io, json, os, runpy, sys

printed = []
for folder, overrides in json.load(sys.stdin):
    os.chdir(folder)
    sys.argv = ["train.py", *overrides]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path(f"{folder}/train.py", run_name="__main__")
    printed.append(output.getvalue())
print(json.dumps(printed))
"""


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


def cases() -> list[Case]:
    """All cases, by name."""
    return [read(path) for path in sorted(FOLDER.glob("*.txt"))]


@contextmanager
def laid_out(files: Mapping[str, str]) -> Iterator[Path]:
    """The files in a working directory of their own."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        _write(files, Path(folder))
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def _write(files: Mapping[str, str], folder: Path) -> None:
    for name, text in files.items():
        if "." in name:
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


def plan(files: Mapping[str, str]) -> declog.Plan:
    """The plan of a case's files and overrides."""
    overrides = files.get("overrides", "").splitlines()
    with laid_out(files) as folder:
        name = "mine" if (folder / "declog").is_dir() else "grpo"
        if overrides:
            (folder / "train.yaml").write_text(f"defaults: [{{declog: {name}}}]\n", encoding="utf-8")
            return declog.plan("train.yaml", overrides)
        return declog.plan(declog.compose(name, config_dir="."))


def written(files: Mapping[str, str]) -> str:
    """What declog says of files and overrides."""
    try:
        plan(files)
    except declog.ConfigError as error:
        return shipped_lines(f"{error}\n")
    return WELL


def shipped_lines(text: str) -> str:
    """Places in shipped presets by their keys: their lines move with every preset that is extended."""

    def named(place: re.Match[str]) -> str:
        line = (ROOT / place[1]).read_text(encoding="utf-8").splitlines()[int(place[2]) - 1]
        word = re.match(r"[\w.]+", line[int(place[3]) - 1 :])
        assert word is not None, f"{place[0]} is no place of a key"
        return f"<declog>/{place[1]}:<{word[0]}>"

    return _SHIPPED.sub(named, text)


def in_applications(files: Sequence[Mapping[str, str]]) -> list[str]:
    """The same in applications of a user's own, one after the other in a process."""
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder, str(number)) for number in range(len(files))]
        for place, each in zip(places, files, strict=True):
            _write({**each, "train.py": APPLICATION}, place)
        overrides = [each.get("overrides", "").splitlines() for each in files]
        given = json.dumps([[str(place), words] for place, words in zip(places, overrides, strict=True)])
        found: list[str] = json.loads(_run(["-c", APPLICATIONS], Path(folder), given).splitlines()[-1])
        return list(map(shipped_lines, found))


def beside_a_package(files: Sequence[Mapping[str, str]]) -> list[str]:
    """The same where a team's package is installed, in one process of its own."""
    program = (
        "import json, sys; from tests.config.broken import written; "
        "print(json.dumps([written(f) for f in json.load(sys.stdin)]))"
    )
    shown = _run(["-c", program], ROOT, json.dumps(files), path=str(_site()))
    found: list[str] = json.loads(shown.splitlines()[-1])
    return [text.replace(f"{_site()}/", "<site>/") for text in found]


@cache
def _site() -> Path:
    """A folder with the team's package installed in it."""
    site = Path(tempfile.mkdtemp(prefix="declog_site_"))
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--target", str(site)]
    _run([*pip, *options, str(DATA / "team")], site)
    return site


def _run(command: Sequence[str], folder: Path, given: str = "", path: str = "") -> str:
    environment = forks.environment({"PYTHONPATH": os.pathsep.join([*([path] if path else []), str(ROOT)])})
    done = forks.run(command, cwd=folder, env=environment, input=given)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


KINDS: Mapping[str, Callable[[Sequence[Mapping[str, str]]], list[str]]] = {
    "app": in_applications,
    "team": beside_a_package,
    "": lambda files: [written(each) for each in files],
}


def kind(case: Case) -> str:
    """Where a case runs: a key of ``KINDS``."""
    head = str(case).partition("_")[0]
    return head if head in KINDS else ""


def shown(several: Sequence[Mapping[str, str]], where: str) -> list[str]:
    """What declog says of each."""
    return KINDS[where](several)


def pasted(case: Case, problems: Sequence[Problem]) -> Mapping[str, str] | None:
    """The files and overrides with every fix pasted where it says; None where one of them is advice in words.

    ``did you mean `x`?`` takes the place of what is marked, a whole override that of the override.
    """
    files = {name: text.splitlines(keepends=True) for name, text in case.files.items()}
    for problem in reversed(problems):  # from the end, so that columns stay what they are
        where, fix = problem.where, (problem.fix or "").split("  or  ")[0]
        intended = re.fullmatch(r"did you mean `(.+)`\?", fix)
        if where is None or where.excerpt is None:
            return None
        lines = files["overrides"] if where.override is not None else files[str(where.file)]
        if intended is not None:
            start, end = where.excerpt.start, where.excerpt.end
            row = lines.index(f"{where.override}\n") if where.line is None else where.line - 1
            lines[row] = lines[row][:start] + intended[1] + lines[row][end:]
        elif where.override is not None and re.match(r"'?[+~]*declog[./]", fix) and f"{where.override}\n" in lines:
            row = lines.index(f"{where.override}\n")
            lines[row : row + 1] = [f"{word}\n" for word in shlex.split(fix)]
        else:
            return None
    return {name: "".join(lines) for name, lines in files.items()}


def _updated(case: Case, error: str) -> None:
    text = case.path.read_text(encoding="utf-8")
    before, _, after = text.partition("== error\n")
    later = re.search(r"^== fixed", after, re.MULTILINE)
    rest = after[later.start() :] if later else ""
    case.path.write_text(f"{before}== error\n{error}\n{rest}".rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    for where in KINDS:
        some = [each for each in cases() if kind(each) == where]
        for each, new in zip(some, shown([each.files for each in some], where), strict=True):
            if new != each.error:
                print(("updated " if "--update" in sys.argv else "differs ") + each.path.name)
                if "--update" in sys.argv:
                    _updated(each, new)
    forks.close()
