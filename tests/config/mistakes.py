"""Mistakes of a new user: what is written, what must be in the answer, and whether it is caught at all.

A list per kind in ``tests/data/mistakes``, written before the answers were looked at. A mistake is ``mine`` or
``keys``, a profile ``conf/declog/mine.yaml`` (``keys`` stand below ``defaults: [grpo, _self_]``), ``files`` beside
it, installed packages (``site``), and ``words``, a command line, ``code``, a training loop, or ``app``, an override
of a Hydra application that logs by grpo; by default the profile is checked. It is caught where the command or the
application ends with an error or prints a warning or a note, where the loop raises or declog logs one; it is answered
where each pattern of ``answer`` is found in that. ``python -m tests.config.mistakes`` prints the score, and what is not
answered; words behind it choose mistakes by their ids, whose answers are printed too.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import re
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from declog.config.files import YamlLoader
from declog.errors import FLOW_MAP
from tests import forks

FOLDER = Path(__file__).parents[1] / "data" / "mistakes"
MINE = "conf/declog/mine.yaml"
HEADER = "defaults: [grpo, _self_]\n"
APP = {
    "conf/config.yaml": "defaults: [{declog: grpo}, _self_]\nlr: 1e-6\n",
    "train.py": """\
import hydra, declog
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    declog.start(cfg, output_dir="outputs").close()
main()
""",
}
PROFILE: dict[str, Any] = {
    "run": {"name": "loop"},
    "modes": {"train": {}, "eval": {"prefix": "eval_"}},
    "axes": {"token": {"mask": "mask"}},
    "signals": {
        "rollout": {
            "reward": {"axis": "completion"},
            "length": {"axis": "completion", "type": "int"},
            "completion": {"axis": "completion", "type": "text"},
        },
        "update": {
            "kl": {"axis": "token"},
            "mask": {"axis": "token", "type": "bool"},
            "loss": {"axis": "step"},
        },
    },
    "metrics": {"reward": "mean(reward)", "length": "max(length)", "kl": "mean(kl)", "loss": "mean(loss)"},
}


@dataclass(frozen=True)
class Mistake:
    """One mistake; ``kind`` is the list that it stands in."""

    kind: str
    id: str
    answer: Sequence[str]
    keys: str | None = None
    mine: str | None = None
    bytes: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    site: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    words: str | Sequence[str] = ("check", MINE)
    code: str | None = None
    app: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}-{self.id}"


@dataclass(frozen=True)
class Answer:
    """What came of a mistake."""

    text: str
    caught: bool

    def right(self, mistake: Mistake) -> bool:
        """Whether the next move is in it, wherever lines end."""
        text = re.sub(r"\s+", " ", self.text)
        return self.caught and not self.unreadable and all(re.search(pattern, text) for pattern in mistake.answer)

    @property
    def unreadable(self) -> list[str]:
        """The maps of its fixes that YAML would not read as they are printed."""
        fixes = re.findall(r"^ +fix: (.+)", self.text, re.M)
        maps = (part for fix in fixes for part in re.findall(FLOW_MAP, fix) if re.match(r"\{\w+: ", part))
        return [part for part in maps if not _is_readable(part)]


def _is_readable(text: str) -> bool:
    """Whether YAML reads a map, and ends none of its texts at a comma."""

    def is_whole(value: object) -> bool:
        if isinstance(value, Mapping):
            keys = (str(key) for key, item in value.items() if item is None)
            return all(re.fullmatch(r"\w+|\.\.\.", key) for key in keys) and all(map(is_whole, value.values()))
        return not isinstance(value, list) or all(map(is_whole, value))

    try:
        return is_whole(yaml.load(text, YamlLoader))
    except yaml.YAMLError:
        return False


def kinds() -> list[str]:
    """The lists that there are."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def mistakes(kind: str) -> list[Mistake]:
    """The mistakes of a list."""
    listed = yaml.load((FOLDER / f"{kind}.yaml").read_text(encoding="utf-8"), YamlLoader)
    return [Mistake(kind, **entry) for entry in listed]


def answered(mistake: Mistake) -> Answer:
    """Make the mistake, in a folder of its own."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a run that is left open still writes
        _lay_out(mistake, Path(folder))
        os.chdir(folder)
        try:
            with _registered(), _installed(mistake.site, Path(folder) / "site"):
                found = _run(mistake)
        finally:
            os.chdir(before)
        return Answer(found.text.replace(f"{folder}/", ""), found.caught)


def _run(mistake: Mistake) -> Answer:
    if mistake.code is not None:
        return _run_code(mistake.code)
    return _run_words(mistake.words) if mistake.app is None else _run_app(mistake.app)


def _lay_out(mistake: Mistake, folder: Path) -> None:
    files = {**(APP if mistake.app is not None else {}), **mistake.files}
    if mistake.keys is not None or mistake.mine is not None:
        files[MINE] = mistake.mine if mistake.mine is not None else HEADER + str(mistake.keys)
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    if mistake.bytes is not None:
        (folder / MINE).parent.mkdir(parents=True)
        (folder / MINE).write_bytes(mistake.bytes.encode("latin-1"))


@contextmanager
def _installed(site: Mapping[str, Mapping[str, Any]], folder: Path) -> Iterator[None]:
    """Packages as pip would have installed them, for as long."""
    for package, what in site.items():
        name, version = package.split()
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
        lines = [
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
            for group, entries in what["entries"].items()
        ]
        (info / "entry_points.txt").write_text("\n".join(lines), "utf-8")
        for file, text in what["files"].items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")
    path, modules = list(sys.path), set(sys.modules)
    if site:
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        if site:
            for module in set(sys.modules) - modules:
                if str(folder) in str(getattr(sys.modules[module], "__file__", "")):
                    del sys.modules[module]


@contextmanager
def _registered() -> Iterator[None]:
    """Functions, reductions and columns that a mistake registers, for as long."""
    from declog.language import functions, reductions, row_functions

    registries: tuple[Any, ...] = (functions.DEFAULT, reductions.DEFAULT, row_functions.DEFAULT)
    before = [{*registry.names()} for registry in registries]
    try:
        yield
    finally:
        for registry, names in zip(registries, before, strict=True):
            for name in [name for name in registry.names() if name not in names]:
                registry.discard(name)


def _run_words(words: str | Sequence[str]) -> Answer:
    from declog.cli import main

    out = io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(out):
            code = main(shlex.split(words) if isinstance(words, str) else list(words))
    except Exception as error:  # noqa: BLE001  a traceback is no answer
        return Answer(f"{out.getvalue()}{type(error).__name__}: {error}", False)
    text = out.getvalue()
    return Answer(text, code != 0 or "warning" in text or "note: " in text)


def _run_app(override: str) -> Answer:
    """Run the application, as a process: Hydra's answer ends it."""
    done = forks.run(["train.py", override], cwd=Path.cwd())
    return Answer(done.stderr, done.returncode != 0 and ("Traceback" not in done.stderr or "error[DL" in done.stderr))


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _run_code(code: str) -> Answer:
    """Run a loop; what it raises, and what declog logs."""
    import numpy
    import torch

    import declog
    from declog.testing import MemorySink

    def start_with(**keys: Any) -> declog.Recorder:
        made = declog.start(PROFILE, **{"sinks": [MemorySink()], "output_dir": "outputs", **keys})
        opened.append(made)
        return made

    def start(**sections: Mapping[str, Any]) -> declog.Recorder:
        profile = {**PROFILE, **{key: {**PROFILE.get(key, {}), **value} for key, value in sections.items()}}
        made = declog.start(profile, sinks=[MemorySink()], output_dir="outputs")
        opened.append(made)
        return made

    opened: list[declog.Recorder] = []
    heard = _Records()
    logger = logging.getLogger("declog")
    logger.addHandler(heard)
    raised = ""
    names = {
        "declog": declog,
        "torch": torch,
        "np": numpy,
        "profile": PROFILE,
        "start": start,
        "start_with": start_with,
    }
    try:
        exec(compile(code, "train.py", "exec"), names)
    except Exception as error:  # noqa: BLE001  what a user sees is the subject
        raised = f"{type(error).__name__}: {error}"
    finally:
        for recorder in opened:
            try:
                recorder.close()
            except declog.DeclogError as error:
                raised += f"\n{type(error).__name__}: {error}"
        logger.removeHandler(heard)
    text = "\n".join([*heard.texts, raised]).strip()
    return Answer(text, bool(text))


def score(kind: str, every: int = 1) -> tuple[int, int, int, list[tuple[Mistake, Answer]]]:
    """How many of a list (of each ``every``-th) are answered and caught, of how many; and those not answered."""
    found = [(each, answered(each)) for each in mistakes(kind)[::every]]
    wrong = [(each, answer) for each, answer in found if not answer.right(each)]
    return len(found) - len(wrong), sum(answer.caught for _, answer in found), len(found), wrong


def main(words: Sequence[str]) -> None:
    """Print the score, or the answers to some."""
    total = [0, 0, 0]
    for kind in kinds():
        if words:
            for each in mistakes(kind):
                if str(each) in words or each.kind in words or each.id in words:
                    answer = answered(each)
                    mark = "ok" if answer.right(each) else "WRONG" if answer.caught else "UNCAUGHT"
                    print(f"== {each} {mark} {list(each.answer)}\n{textwrap.indent(answer.text.strip(), '   ')}")
            continue
        *counts, wrong = score(kind)
        total = [a + b for a, b in zip(total, counts, strict=True)]
        print(f"{kind:<12} answered {counts[0]:>3}  caught {counts[1]:>3}  of {counts[2]:>3}")
        for each, answer in wrong:
            print(f"  {'not answered' if answer.caught else 'NOT CAUGHT'}: {each}")
    if not words:
        print(f"{'all':<12} answered {total[0]:>3}  caught {total[1]:>3}  of {total[2]:>3}")


if __name__ == "__main__":
    main(sys.argv[1:])
