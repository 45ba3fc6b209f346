"""The folder of a run: it is found or created, and held while the run lasts.

``run.json`` has the facts of the run, ``run.lock`` exists while the run lasts, and ``config.yaml`` and ``plan.json``
define what the run logs.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from declog.errors import SinkError
from declog.sinks._files import open_regular, replace_text
from declog.sinks.locks import Held, Lock

log = logging.getLogger("declog")

FORMAT = 2  # of `run.json` and the files beside it: 2 has `format` and `parent`
LATE = "late"  # the folder of the metrics that `declog add` added
RUN, LOCK, CONFIG, PLAN, RUN_CONFIG = "run.json", "run.lock", "config.yaml", "plan.json", "run_config.yaml"
KEPT = {CONFIG: "config", PLAN: "plan", RUN_CONFIG: "run_config"}  # files of texts, and their keys in `run.json`
MOST_BYTES = 64 * 2**20  # of `run.json`
KIND = "declog-run"  # the `kind` in `run.json`; a `run.json` of another program does not have it


@dataclass(frozen=True)
class Origin:
    """The run and the folder in which a state was saved, and the step after which it was saved."""

    run_id: str
    output_dir: str | None
    step: int

    @property
    def key(self) -> str:
        """The key in ``Choice.runs`` of a branch that begins here."""
        return f"{self.run_id}@{self.step}"


@dataclass(frozen=True)
class Choice:
    """Whether the caller named the run's folder, and the runs in the named folders.

    ``runs`` has pairs (folder, run id) by run id; a branch is also there under the key of its origin. Folders that the
    caller did not name stay as they are: a state of a run that is in no named folder begins a branch.
    """

    named: bool = False
    runs: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def target(self, origin: Origin) -> tuple[Path, str] | None:
        """The folder in which a state's run continues, and the run's id; None if no folder holds that run."""
        if self.named:
            pair = self.runs.get(origin.run_id) or self.runs.get(origin.key)
            return None if pair is None else (Path(pair[0]), pair[1])
        folder = Path(origin.output_dir or "")
        return (folder, origin.run_id) if origin.output_dir and _holds(folder, origin.run_id) else None

    def replaces(self, origin: Origin, folder: Path) -> bool:
        """Whether ``folder`` takes the place of the run's folder: the caller named none, or named this same path."""
        return not self.named or str(folder) == origin.output_dir

    def branches(self, origin: Origin, folder: Path) -> bool:
        """Whether a run in this folder is a branch of the state's run."""
        return self.target(origin) is None and not self.replaces(origin, folder)


class RunFolder:
    """The folder of one run, which this process holds until ``end`` or ``abandon``."""

    def __init__(self, path: Path, lock: Lock, earlier: Mapping[str, Any] | None, *, created: bool) -> None:
        self.path = path
        self._lock = lock
        self._earlier = earlier
        self._created = created
        self._before = frozenset(entry.name for entry in path.iterdir())
        self._facts: dict[str, Any] = {}
        self._writing = threading.Lock()

    def begin(self, facts: Mapping[str, Any], texts: Mapping[str, str]) -> None:
        """Write ``run.json``, and ``texts`` by their names in ``KEPT``. Call this when all sinks are open."""
        files = {entry.name for entry in self.path.iterdir()} - self._before - {RUN, LOCK, *KEPT}
        earlier = dict(self._earlier or {})
        runs = [*earlier.pop("earlier", []), earlier] if earlier else []
        self._facts = {
            "kind": KIND, "format": FORMAT, **facts, **self._parent_of(str(facts["run_id"])),
            **{KEPT[name]: self._keep(name, text) for name, text in texts.items()}, "state": "running", "ended": None,
            "missing": {}, "files": sorted(files | set(earlier.get("files", ()))), "earlier": runs,
        }  # fmt: skip
        self.write_facts()

    def write_facts(self, **facts: Any) -> None:
        """Write more facts to ``run.json``. Raises the ``OSError`` of the disk."""
        with self._writing:
            self._facts |= facts
            text = json.dumps(self._facts, indent=2, ensure_ascii=False, default=str)
            replace_text(self.path / RUN, f"{text}\n")

    def try_write_facts(self, **facts: Any) -> None:
        """Write more facts to ``run.json``, as ``write_facts``, but never raise: a refusal of the disk is logged."""
        try:
            self.write_facts(**facts)
        except OSError as error:
            log.warning("%s is not up to date in %s: %s", self.path / RUN, ", ".join(facts), error)

    def end(self, state: str, failures: Mapping[str, int]) -> None:
        """Write how the run ended, and release the folder. Never raises."""
        self.try_write_facts(state=state, ended=time.strftime("%Y-%m-%dT%H:%M:%S%z"), failures=dict(failures))
        self._lock.release()

    def save_config(self, text: str) -> None:
        """Save the trainer's configuration, in place of this process's earlier one; other runs keep their file."""
        earlier = {facts.get(KEPT[RUN_CONFIG]) for facts in segments(self._earlier)}
        file = self._facts.get(KEPT[RUN_CONFIG])
        if file is not None and file not in earlier:
            replace_text(self.path / file, text)
        else:
            self.write_facts(**{KEPT[RUN_CONFIG]: self._keep(RUN_CONFIG, text)})

    def take_run_id(self, run_id: str) -> None:
        """Write that the run continues an earlier one, and has the earlier run's id."""
        self.write_facts(run_id=run_id, **self._parent_of(run_id))

    def move_to(self, path: Path, run_id: str) -> RunFolder:
        """Begin in the folder of the run that this run continues; returns it. Call this before this run logs anything.

        ``SinkError`` DL609 if that folder is in use: then this folder stays the run's.
        """
        other = open_named(path, resume=True, append=False)
        files = {name: self._facts[key] for name, key in KEPT.items() if key in self._facts}
        texts = {name: (self.path / file).read_text(encoding="utf-8") for name, file in files.items()}
        other.begin(self._facts | {"run_id": run_id}, texts)
        return other

    def abandon(self) -> None:
        """Release the folder as if there had been no run: its start failed, or it continues in another folder."""
        if self._facts and not self._earlier:
            for name in (RUN, self._facts["config"], self._facts["plan"]):
                (self.path / name).unlink(missing_ok=True)
        self._lock.release()
        if self._created:
            with suppress(OSError):
                self.path.rmdir()  # if the sinks left nothing there

    def _parent_of(self, run_id: str) -> dict[str, Any]:
        """The parent of a branch that continues here, as its earlier processes wrote it."""
        parents = [
            facts["parent"] for facts in segments(self._earlier) if facts["run_id"] == run_id and "parent" in facts
        ]
        return {"parent": parents[-1]} if parents else {}

    def _keep(self, name: str, text: str) -> str:
        """Write a text to a file of this name, with a number if the name has another text; returns the file's name."""
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


def open_named(path: Path, *, resume: bool, append: bool) -> RunFolder:
    """Take the folder that the caller named. ``SinkError`` DL609 if it is in use, or holds an earlier run's files.

    ``resume`` continues a run of the folder, ``append`` adds another run.
    """
    created = not path.exists()
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
            files = [name for name in earlier.get("files", ()) if (path / name).exists()]
            if files:
                what = f"holds the run {earlier.get('run_id')} ({earlier.get('state')}): {', '.join(files)}"
                raise SinkError.of("DL609.folder", path=path, what=what)
        return RunFolder(path, lock, earlier, created=created)
    except BaseException:
        lock.release()
        raise


def make_new(base: Path, *, inside: bool) -> RunFolder:
    """Make a folder without a run: ``base``, or the next one with a number, beside it or ``inside`` it."""
    for number in itertools.count(1):
        path = base if number == 1 else base / str(number) if inside else base.with_name(f"{base.name}-{number}")
        created = True
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not inside or path != base:
                continue
            created = False  # Hydra created it
        try:
            lock = Lock(path / LOCK)
        except Held:
            continue
        if not (path / RUN).exists():
            return RunFolder(path, lock, None, created=created)
        lock.release()
    raise AssertionError("there is no last number")


def choice(named: Path | None, base: Path | None) -> Choice:
    """The runs in the folder that the caller named, or in ``base`` and its numbered folders."""
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
    """Whether a folder is the run's: its ``run.json`` names the run, or it has no ``run.json``."""
    if not path.is_dir():
        return False
    earlier = run_of(path)
    return earlier is None or any(facts["run_id"] == run_id for facts in segments(earlier))


def segments(facts: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The facts in ``run.json`` of each process that wrote there, the oldest first."""
    earlier = [] if facts is None else facts.get("earlier", [])
    return [] if facts is None else [*(earlier if isinstance(earlier, list) else [None]), facts]


def run_of(path: Path) -> dict[str, Any] | None:
    """The facts in a folder's ``run.json``; None without the file. ``SinkError`` DL609 if the file is not of a run."""
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
    """Whether a value has the form of the facts of one process: a run id, and for a branch a parent."""
    if not isinstance(facts, dict) or not isinstance(facts.get("run_id"), str):
        return False
    parent = facts.get("parent", {"run_id": "", "output_dir": None, "step": 0})
    return isinstance(parent, dict) and parent.keys() == {item.name for item in fields(Origin)}


def newer(facts: Mapping[str, Any]) -> str:
    """The problem with a folder that a later version of declog wrote; empty for a format that this version knows."""
    written = facts.get("format", 1)
    if written in range(FORMAT + 1):
        return ""
    later = f"declog {facts.get('declog')}, which wrote it, or a later one"
    return f"has format {written}, and this declog knows formats up to {FORMAT}: use {later}"


def in_use(path: Path, file: Path, held: Held, fix: str) -> SinkError:
    """The error DL609 for a folder whose lock ``file`` another run holds, in another process or in this one."""
    if held.holder is not None and held.holder.is_this_process:
        return SinkError.of("DL609.still_open", path=path, held=held)
    if held.holder is not None and not held.holder.here:
        fix += f"; where that process is dead, remove {file}"
    return SinkError.of("DL609.in_use", path=path, held=held, fix=fix)
