"""A run's folder: found or made, held while the run lasts, and what the run left there distinguished from nothing.

``run.json`` says which run the folder is of; ``run.lock`` is there while it lasts; ``config.yaml`` and ``plan.json``
say what it logs. Standard library, errors and locks.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from declog.errors import SinkError
from declog.sinks._files import open_regular, replace_text
from declog.sinks.locks import Held, Lock

log = logging.getLogger("declog")

FORMAT = 2  # of `run.json` and the files beside it: 2 has `format` and `parent`
RUN, LOCK, CONFIG, PLAN, RUN_CONFIG = "run.json", "run.lock", "config.yaml", "plan.json", "run_config.yaml"
KEPT = {
    CONFIG: "config",
    PLAN: "plan",
    RUN_CONFIG: "run_config",
}  # and what `run.json` calls them
MOST_BYTES = 64 * 2**20  # of `run.json`
KIND = "declog-run"  # what `run.json` says of itself, so that nobody else's file of that name is taken for one


@dataclass(frozen=True)
class Origin:
    """Where a state was saved: in which run and folder, and after which step."""

    run_id: str
    output_dir: str | None
    step: int

    @property
    def key(self) -> str:
        """What a run that was branched off here is called among the ``Choice.runs`` of its folder."""
        return f"{self.run_id}@{self.step}"


@dataclass(frozen=True)
class Choice:
    """What the caller said of the run's folder, and the runs that are in the folders that it named.

    ``runs`` are pairs of folder and run id by run id, and those of branches by the key of their origin, too. A folder
    that was not named is not touched: a state of a run that is in none of them begins a branch of it.
    """

    named: bool = False
    runs: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def target(self, origin: Origin) -> tuple[Path, str] | None:
        """The folder in which the run of a state goes on, and its id; None where no folder holds that run."""
        if self.named:
            pair = self.runs.get(origin.run_id) or self.runs.get(origin.key)
            return None if pair is None else (Path(pair[0]), pair[1])
        folder = Path(origin.output_dir or "")
        return (folder, origin.run_id) if origin.output_dir and _holds(folder, origin.run_id) else None

    def replaces(self, origin: Origin, folder: Path) -> bool:
        """Whether a new folder stands for the run's own: where that is gone, or where nobody named another."""
        return not self.named or str(folder) == origin.output_dir

    def branches(self, origin: Origin, folder: Path) -> bool:
        """Whether a run in this folder is a branch of the state's run."""
        return self.target(origin) is None and not self.replaces(origin, folder)


class RunFolder:
    """The folder of one run, which this process has until ``end`` or ``abandon``."""

    def __init__(self, path: Path, lock: Lock, earlier: Mapping[str, Any] | None, *, made: bool) -> None:
        self.path = path
        self._lock = lock
        self._earlier = earlier
        self._made = made
        self._before = frozenset(entry.name for entry in path.iterdir())
        self._facts: dict[str, Any] = {}

    def begin(self, facts: Mapping[str, Any], texts: Mapping[str, str]) -> None:
        """Write ``run.json``, and the texts of ``KEPT`` by their names: when all sinks are open."""
        files = {entry.name for entry in self.path.iterdir()} - self._before - {RUN, LOCK, *KEPT}
        earlier = dict(self._earlier or {})
        runs = [*earlier.pop("earlier", []), earlier] if earlier else []
        self._facts = {
            "kind": KIND, "format": FORMAT, **facts, **self._parent_of(str(facts["run_id"])),
            **{KEPT[name]: self._keep(name, text) for name, text in texts.items()}, "state": "running", "ended": None,
            "missing": {}, "files": sorted(files | set(earlier.get("files", ()))), "earlier": runs,
        }  # fmt: skip
        self._write()

    def end(self, state: str, failures: Mapping[str, int]) -> None:
        """Say how the run ended, and let the folder go. Never raises: where the disk refuses, that is reported."""
        self._facts |= {"state": state, "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "failures": dict(failures)}
        try:
            self._write()
        except OSError as error:
            log.warning("%s does not say how the run ended: %s", self.path / RUN, error)
        self._lock.release()

    def configured(self, text: str) -> None:
        """Keep how the trainer is configured, instead of what this process said before; never over another run's."""
        earlier = {facts.get(KEPT[RUN_CONFIG]) for facts in segments(self._earlier)}
        file = self._facts.get(KEPT[RUN_CONFIG])
        if file is not None and file not in earlier:
            replace_text(self.path / file, text)
        else:
            self._facts[KEPT[RUN_CONFIG]] = self._keep(RUN_CONFIG, text)
            self._write()

    def missing(self, reasons: Mapping[str, str]) -> None:
        """Say which metrics have no values, and why. Never raises."""
        self._facts["missing"] = dict(reasons)
        try:
            self._write()
        except OSError as error:
            log.warning("%s does not say which metrics have no values: %s", self.path / RUN, error)

    def late(self, lines: Mapping[str, str]) -> None:
        """Say which metrics were asked for while the run goes on, and are logged since. Never raises."""
        self._facts["late"] = dict(lines)
        try:
            self._write()
        except OSError as error:
            log.warning("%s does not say which metrics were added: %s", self.path / RUN, error)

    def renamed(self, run_id: str) -> None:
        """Say that the run is one that goes on, under its own id."""
        self._facts |= {"run_id": run_id, **self._parent_of(run_id)}
        self._write()

    def branched(self, origin: Origin) -> None:
        """Say from which run, and behind which of its steps, this one begins."""
        self._facts["parent"] = asdict(origin)
        self._write()

    def resumed(self, step: int) -> None:
        """Say that what follows continues an earlier run, behind this step."""
        self._facts["resumed_after"] = step
        self._write()

    def moved(self, path: Path, run_id: str) -> RunFolder:
        """The folder of the run that goes on, instead of this one; for use before anything was logged here.

        ``SinkError`` DL609 where that folder is in use: then this one is kept.
        """
        other = named(path, resume=True, append=False)
        files = {name: self._facts[key] for name, key in KEPT.items() if key in self._facts}
        texts = {name: (self.path / file).read_text(encoding="utf-8") for name, file in files.items()}
        other.begin(self._facts | {"run_id": run_id}, texts)
        return other

    def abandon(self) -> None:
        """Let it go as if there had been no run: where its start failed, or it went on elsewhere."""
        if self._facts and not self._earlier:
            for name in (RUN, self._facts["config"], self._facts["plan"]):
                (self.path / name).unlink(missing_ok=True)
        self._lock.release()
        if self._made:
            with suppress(OSError):
                self.path.rmdir()  # if the sinks left nothing there

    def _parent_of(self, run_id: str) -> dict[str, Any]:
        """Where a run that goes on here was branched off, as its earlier processes said."""
        mine = [facts for facts in segments(self._earlier) if facts["run_id"] == run_id]
        parents = [facts["parent"] for facts in mine if "parent" in facts]
        return {"parent": parents[-1]} if parents else {}

    def _keep(self, name: str, text: str) -> str:
        """The name of the file that holds a text: never over one that is there and says something else."""
        stem, suffix = os.path.splitext(name)
        for number in itertools.count(1):
            file = self.path / (name if number == 1 else f"{stem}-{number}{suffix}")
            try:
                with open(file, "x", encoding="utf-8") as stream:
                    stream.write(text)
            except FileExistsError:
                if file.read_text(encoding="utf-8", errors="replace") != text:
                    continue
            return file.name
        raise AssertionError("there is no last number")

    def _write(self) -> None:
        text = json.dumps(self._facts, indent=2, ensure_ascii=False, default=str)
        replace_text(self.path / RUN, f"{text}\n")


def named(path: Path, *, resume: bool, append: bool) -> RunFolder:
    """The folder that somebody named. ``SinkError`` DL609 where it is in use, or holds what an earlier run logged.

    ``resume`` takes up a run that is there, ``append`` adds another one to it.
    """
    made = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = Lock(path / LOCK, takeover=resume)
    except Held as held:
        fix = "give this run another `output_dir`, or none: then it gets one of its own"
        raise in_use(path, path / LOCK, held, fix) from None
    try:
        earlier = run_of(path)
        if earlier is not None and (said := newer(earlier)):
            raise SinkError.of("DL609.format", path=path, said=said)
        if earlier is not None and not (resume or append):
            left = [name for name in earlier.get("files", ()) if (path / name).exists()]
            if left:
                what = f"holds the run {earlier.get('run_id')} ({earlier.get('state')}): {', '.join(left)}"
                raise SinkError.of("DL609.folder", path=path, what=what)
        return RunFolder(path, lock, earlier, made=made)
    except BaseException:
        lock.release()
        raise


def fresh(base: Path, *, beside: bool) -> RunFolder:
    """A folder that no run ever had: ``base``, or the next one with a number, ``beside`` it or inside it."""
    for path in _candidates(base, beside=beside):
        made = True
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if beside or path != base:
                continue
            made = False  # Hydra's own
        try:
            lock = Lock(path / LOCK)
        except Held:
            continue
        if not (path / RUN).exists():
            return RunFolder(path, lock, None, made=made)
        lock.release()
    raise AssertionError("there is no last number")


def _candidates(base: Path, *, beside: bool) -> Iterator[Path]:
    yield base
    for number in itertools.count(2):
        yield base.with_name(f"{base.name}-{number}") if beside else base / str(number)


def choice(named: Path | None, base: Path | None) -> Choice:
    """The folder that somebody named, or ``base`` and those with a number inside it, with the runs that they hold."""
    if named is not None:
        held = segments(run_of(named))
        branches = {Origin(**facts["parent"]).key: facts["run_id"] for facts in held if "parent" in facts}
        ids = branches | {facts["run_id"]: facts["run_id"] for facts in held}
        return Choice(named=True, runs={key: (str(named), run_id) for key, run_id in ids.items()})
    if base is None:
        return Choice()
    folders = [base, *(path for path in base.glob("*") if path.name.isdecimal())]
    pairs = [(str(folder), facts["run_id"]) for folder in folders for facts in segments(run_of(folder))]
    return Choice(named=True, runs={run_id: (folder, run_id) for folder, run_id in pairs})


def _holds(path: Path, run_id: str) -> bool:
    """Whether a folder is the run's: it says so, or nobody else does."""
    if not path.is_dir():
        return False
    earlier = run_of(path)
    return earlier is None or any(facts["run_id"] == run_id for facts in segments(earlier))


def segments(facts: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """What ``run.json`` says of each process that wrote there, the oldest first."""
    earlier = [] if facts is None else facts.get("earlier", [])
    return [] if facts is None else [*(earlier if isinstance(earlier, list) else [None]), facts]


def run_of(path: Path) -> dict[str, Any] | None:
    """What ``run.json`` says of the run that the folder is of; None where there is none."""
    try:
        with open_regular(path / RUN) as file:
            facts = json.loads(file.read(MOST_BYTES).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or facts.get("kind") != KIND or not all(map(_is_segment, segments(facts))):
        raise SinkError.of("DL609.file", path=path / RUN)
    return facts


def _is_segment(facts: Any) -> bool:
    """Whether it says which run a process wrote, and of which that is a branch."""
    if not isinstance(facts, dict) or not isinstance(facts.get("run_id"), str):
        return False
    parent = facts.get("parent", {"run_id": "", "output_dir": None, "step": 0})
    return isinstance(parent, dict) and parent.keys() == {item.name for item in fields(Origin)}


def newer(facts: Mapping[str, Any]) -> str:
    """What to do where a folder is of a later format than this declog writes; empty where it is not."""
    written = facts.get("format", 1)
    if written in range(FORMAT + 1):
        return ""
    later = f"declog {facts.get('declog')}, which wrote it, or a later one"
    return f"has format {written}, and this declog knows formats up to {FORMAT}: use {later}"


def in_use(path: Path, file: Path, held: Held, fix: str) -> SinkError:
    """DL609 for a folder that somebody else writes to, as its lock ``file`` says."""
    if held.holder is not None and not held.holder.here:
        fix += f"; where that process is dead, remove {file}"
    return SinkError.of("DL609.in_use", path=path, held=held, fix=fix)
