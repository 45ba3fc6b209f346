"""``declog init``: a package of presets with a test and CI, or a profile in the project that one works in.

Nothing that is there is written over.

  declog init package acme-logging         the package acme_logging in the folder acme-logging
  declog init profile mine                 conf/declog/mine.yaml, and where it is in pyproject.toml
  declog init profile mine --preset rloo
"""

from __future__ import annotations

import argparse
import keyword
import re
from pathlib import Path

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import GREEN, paint
from declog.distribution import NAME, VERSION
from declog.errors.visible import visible

SUMMARY = "begin a package of presets, or a profile in a project"
KINDS = ("package", "profile")


def arguments(parser: Parser) -> None:
    """What to begin, and its name."""
    parser.add("what", nargs="?", metavar="WHAT", help="package or profile")
    parser.add("name", nargs="?", metavar="NAME", help="acme-logging, say, or mine")
    parser.add("--preset", default="grpo", help="what it extends; grpo by default")


def run(given: argparse.Namespace) -> int:
    """Write it."""
    from declog.config.compose import presets
    from declog.errors import did_you_mean

    if given.what not in KINDS:
        raise Wrong(
            "init begins a package or a profile", "declog init package acme-logging, or declog init profile mine"
        )
    if given.preset not in (known := presets()):
        raise Wrong(f"there is no preset `{given.preset}`", did_you_mean(given.preset, known, what="presets"))
    name = given.name or ("acme-logging" if given.what == "package" else "mine")
    module = re.sub(r"[-.]+", "_", name).lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or keyword.iskeyword(module):
        fix = "letters, digits, - and _, with a letter first: acme-logging"
        raise Wrong(f"`{name}` is no name of a {given.what}", fix)
    return _package(name, module, given.preset) if given.what == "package" else _profile(module, given.preset)


def _package(name: str, module: str, preset: str) -> int:
    from declog.cli.scaffold import PACKAGE_FILES, filled

    short = module.removesuffix("_logging")
    facts = {"name": name, "module": module, "preset": preset, "profile": f"{short}_{preset}", "prefix": short,
             "declog": f"{NAME}>={'.'.join(VERSION.split('.')[:2])}"}  # fmt: skip
    _write(Path(name), filled(PACKAGE_FILES, facts))
    print(f"next: cd {name} && pip install -e . && declog test {facts['profile']}")
    return 0


def _profile(name: str, preset: str) -> int:
    from declog.cli.scaffold import PROFILE_FILES, TABLE, filled
    from declog.config.compose import project_folder

    folder = project_folder()
    root = Path(".") if folder is None else folder.parent
    files = filled(PROFILE_FILES, {"profile": name, "preset": preset, "prefix": name})
    if folder is not None:  # the project has a place for it
        files = {str(Path(folder.name) / Path(path).relative_to("conf")): text for path, text in files.items()}
    _write(root, files)
    if folder is None:
        file = Path("pyproject.toml")
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if "[tool.declog]" in text:
            print('note: pyproject.toml has [tool.declog] already: add config_dir = "conf"')
        else:
            file.write_text(f"{text.rstrip()}\n\n{TABLE}".lstrip(), encoding="utf-8")
            print(f"{paint('wrote', GREEN)} pyproject.toml: [tool.declog]")
    print(f"next: declog test {name}")
    return 0


def _write(root: Path, files: dict[str, str]) -> None:
    taken = [path for path in files if (root / path).exists()]
    if taken:
        raise Wrong(f"{root / taken[0]} exists already", "give another name, or move it away")
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        print(f"{paint('wrote', GREEN)} {visible(str(file))}")
