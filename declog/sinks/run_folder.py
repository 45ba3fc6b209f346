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
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from declog.errors import SinkError
from declog.sinks.locks import Held, Lock

log = logging.getLogger("declog")

RUN, LOCK, CONFIG, PLAN = "run.json", "run.lock", "config.yaml", "plan.json"
KIND = "declog-run"  # what `run.json` says of itself, so that nobody else's file of that name is taken for one


class RunFolder:
    """The folder of one run, which this process has until ``end`` or ``abandon``."""

    def __init__(self, path: Path, lock: Lock, earlier: Mapping[str, Any] | None, *, made: bool) -> None:
        self.path = path
        self._lock = lock
        self._earlier = earlier
        self._made = made
        self._before = frozenset(entry.name for entry in path.iterdir())
        self._facts: dict[str, Any] = {}

    def begin(self, facts: Mapping[str, Any], profile: str, plan: str) -> None:
        """Write ``run.json``, the profile's effective YAML and what it compiled to: when all sinks are open."""
        files = {entry.name for entry in self.path.iterdir()} - self._before - {RUN, LOCK, CONFIG, PLAN}
        earlier = dict(self._earlier or {})
        runs = [*earlier.pop("earlier", []), earlier] if earlier else []
        self._facts = {
            "kind": KIND, **facts, "config": self._keep(CONFIG, profile), "plan": self._keep(PLAN, plan),
            "state": "running", "ended": None, "files": sorted(files | set(earlier.get("files", ()))), "earlier": runs,
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

    def renamed(self, run_id: str) -> None:
        """Say that the run is one that goes on, under its own id."""
        self._facts["run_id"] = run_id
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
        texts = [(self.path / self._facts[key]).read_text(encoding="utf-8") for key in ("config", "plan")]
        other.begin(self._facts | {"run_id": run_id}, *texts)
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
        draft = self.path / f"{RUN}.part"
        draft.write_text(json.dumps(self._facts, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
        os.replace(draft, self.path / RUN)


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


def run_of(path: Path) -> dict[str, Any] | None:
    """What ``run.json`` says of the run that the folder is of; None where there is none."""
    try:
        found = json.loads((path / RUN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise SinkError.of("DL609.file", path=path / RUN)
    return found


def in_use(path: Path, file: Path, held: Held, fix: str) -> SinkError:
    """DL609 for a folder that somebody else writes to, as its lock ``file`` says."""
    if held.holder is not None and not held.holder.here:
        fix += f"; where that process is dead, remove {file}"
    return SinkError.of("DL609.in_use", path=path, held=held, fix=fix)
