"""``declog init``: begin a config of your own, a package of presets for a team, or the schema for your editor.

It never overwrites a file.

  declog init mine                         conf/declog/mine.yaml, and where it is in pyproject.toml
  declog init mine --preset rloo
  declog init mine --from RUN              a config that logs the names of that run
  declog init --from metrics.jsonl         print it instead
  declog init acme-logging --package       the package acme_logging in the folder acme-logging
  declog init --editor                     declog.schema.json, for completion and help while you type

RUN is a run that was logged without declog: a wandb run, a .jsonl log, a trainer_state.json, a .txt of names, or a
folder with one of these, of which declog reads the newest. declog computes several statistics of one signal from its
values; a single number passes through. If a preset has most of the names, the config extends it. RUN may also be a
captured run of declog: the config then logs each signal that was observed.

The first line of a YAML file names its schema, for VS Code's YAML extension and every other yaml-language-server:

  # yaml-language-server: $schema=declog.schema.json

`--editor metrics` is the schema of files in a group's folder, `--editor application` that of your application's own
configuration, with its node `declog`.
"""

from __future__ import annotations

import argparse
import json
import keyword
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import GREEN, paint, write_file
from declog.cli.targets import DEFAULT
from declog.distribution import NAME, VERSION
from declog.errors import did_you_mean
from declog.errors.visible import visible, visible_lines

GROUP = "write"
SUMMARY = "begin a config, a package of presets, or the schema for your editor"
CONFIG = "config"  # the part of the schema for a config's file
TABLE = '[tool.declog]\nconfig_dir = "conf"\n'
TEMPLATES = Path(__file__).parent.parent / "templates"  # texts with ``$name`` in place of facts
# The name of the template by path; None: an empty file.
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


def arguments(parser: Parser) -> None:
    """Add the name and the kind of files to write."""
    parser.add("name", nargs="?", metavar="NAME", help="a name, such as mine, or acme-logging with --package")
    parser.add("--preset", help=f"the preset that it extends; {DEFAULT} by default")
    parser.add("--from", metavar="RUN", dest="run", help="log the same names as this run")
    parser.add("--package", action="store_true", help="a package of presets, with a test and CI")
    parser.add(
        "--editor", nargs="?", metavar="PART", const=CONFIG, help="the JSON Schema: of configs, or metrics, application"
    )


def run(args: argparse.Namespace) -> int:
    """Write the files of a config, a package or a schema."""
    options = {"--from": args.run, "--package": args.package, "--editor": args.editor}
    ways = [name for name, value in options.items() if value]
    if len(ways) > 1:
        raise Wrong(f"init begins one thing: {' and '.join(ways)} are two", "leave one out")
    if args.preset is not None and (args.run or args.editor):
        raise Wrong(f"--preset chooses what a config extends, and {ways[0]} has none to choose", "leave it out")
    if args.editor is not None:
        return _schema(args)
    if args.run is not None:
        return _of_run(args)
    if args.name is None:
        raise Wrong("init needs a name", "declog init mine, or declog init acme-logging --package")
    from declog.config.compose import presets
    from declog.config.packages import known_presets

    preset = args.preset or DEFAULT
    if preset not in (names := presets()):
        raise Wrong(f"there is no preset `{preset}`", known_presets(preset, names))
    module = _module(args)
    if args.package:
        short = module.removesuffix("_logging")
        facts = {"name": args.name, "module": module, "preset": preset, "config": f"{short}_{preset}", "prefix": short,
                 "declog": f"{NAME}>={'.'.join(VERSION.split('.')[:2])}"}  # fmt: skip
        _write(Path(args.name), _filled(PACKAGE_FILES, facts))
        print(f"next: cd {args.name} && pip install -e . && declog test {facts['config']}")
    else:
        if module in names:
            raise Wrong(f"`{module}` is a preset's name", f"a name of your own: declog init my_{module}")
        _in_project(_filled(CONFIG_FILE, {"config": module, "preset": preset, "prefix": module}))
        print(f"next: declog test {module}")
    return 0


def _filled(files: Mapping[str, str | None], facts: Mapping[str, str]) -> dict[str, str]:
    """Fill the facts into the paths and the texts of templates; return the texts by path."""
    texts = {path: (TEMPLATES / f"{name}.template").read_text("utf-8") if name else "" for path, name in files.items()}
    return {Template(path).substitute(facts): Template(text).substitute(facts) for path, text in texts.items()}


def _module(args: argparse.Namespace) -> str:
    """The name as an identifier for Python and Hydra; raises ``Wrong`` if it cannot be one."""
    module = re.sub(r"[-.]+", "_", args.name).lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or keyword.iskeyword(module):
        what, name = ("package", "acme-logging") if args.package else ("config", "mine")
        raise Wrong(f"`{args.name}` cannot be the name of a {what}", f"letters, digits, - and _: {name}")
    return module


def _of_run(args: argparse.Namespace) -> int:
    """Write or print a config for the names of a run, or for the signals of a captured run."""
    from declog.replay.capture_reader import holds_capture

    name = _module(args) if args.name is not None else "adopted"
    path = Path(args.run)
    text, calls = _captured(path) if holds_capture(path) else _adopted(path, name)
    if args.name is None:
        print(visible_lines(text), end="")
        return 0
    _in_project({f"conf/declog/{name}.yaml": text})
    for line in calls:
        print(visible(line))
    return 0


def _captured(path: Path) -> tuple[str, Sequence[str]]:
    from declog.replay.capture_reader import load
    from declog.replay.observed import config_text, observed

    capture = load(path)
    head = f"# The signals of {visible(str(capture.folder))}, {capture.steps} steps of it.\n"
    return head + config_text(capture, observed(capture)), ()


def _adopted(path: Path, name: str) -> tuple[str, Sequence[str]]:
    """The config, and lines with its counts and the calls that the training code must add."""
    from declog.config.compose import presets
    from declog.runs.adoption import adopted, names_by_preset, read

    ways = adopted(read(path), names_by_preset(tuple(presets())))
    calls = [f"  {ways.computed} names computed, {len(ways.passed)} passed through"]
    signals = ["mask"] if any(distribution.axis == "token" for distribution in ways.distributions) else []
    signals += [distribution.signal for distribution in ways.distributions]
    if signals:
        calls.append(f"  log.observe({', '.join(f'{signal}=...' for signal in signals)})")
    if ways.passed:
        calls.append(f"  log.log_metric({ways.passed[0]!r}, value)  # and the others that the file lists")
    return ways.text(name), calls


def _schema(args: argparse.Namespace) -> int:
    from declog.cli.json_schema import json_schema, parts

    part, file = args.editor, args.name
    if part not in parts():
        raise Wrong(f"there is no schema of `{part}`", did_you_mean(part, parts(), what="schemas"))
    if file is not None:
        raise Wrong(f"--editor writes its file here, and `{file}` is no part", "declog init --editor metrics")
    file = "declog.schema.json" if part == CONFIG else f"declog.{part}.schema.json"
    write_file(Path(file), json.dumps(json_schema(part), indent=2, ensure_ascii=False) + "\n")
    print(f"{paint('wrote', GREEN)} {file}: put `# yaml-language-server: $schema={file}` at the top of a YAML file")
    return 0


def _in_project(files: dict[str, str]) -> None:
    """Write the files of `conf` into the project's folder of configs.

    If there is none, create `conf` here, and name it in pyproject.toml.
    """
    from declog.config.compose import project_folder

    folder = project_folder()
    if folder is not None:
        _write(folder, {str(Path(path).relative_to("conf")): text for path, text in files.items()})
        return
    _write(Path("."), files)
    file = Path("pyproject.toml")
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if "[tool.declog]" in text:
        print('note: pyproject.toml has [tool.declog] already: add config_dir = "conf"')
    else:
        file.write_text(f"{text.rstrip()}\n\n{TABLE}".lstrip(), encoding="utf-8")
        print(f"{paint('wrote', GREEN)} pyproject.toml: [tool.declog]")


def _write(root: Path, files: dict[str, str]) -> None:
    taken = [path for path in files if (root / path).exists()]
    if taken:
        raise Wrong(f"{root / taken[0]} exists already", "give another name, or move it away")
    for path, text in files.items():
        write_file(root / path, text, folders=True)
        print(f"{paint('wrote', GREEN)} {visible(str(root / path))}")
