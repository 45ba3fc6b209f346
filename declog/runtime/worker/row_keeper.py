"""Keeps rows for later questions: the numbers and labels of every log event, in the run's folder.

Rank 0's worker writes the rows before their evaluation. ``rows.json`` has the runs that wrote the rows, and for each
signal whether it is kept, or why not. See ``row_files`` for the files, and ``declog.late`` for the questions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from declog.distribution import VERSION
from declog.engine.frame import Frame, Projection
from declog.engine.layout import FAILURE, KIND, Layout
from declog.engine.log_event import EventFacts
from declog.errors import InputError, RuntimeFailure
from declog.language.dtypes import Axis, DType
from declog.language.nodes import definition
from declog.plans.ops import TRACE, FoldOp, LocalOp, Plan, SignalOp
from declog.records import RunInfo
from declog.runtime.rows.kept import FLOAT, PREFIX, SIGNALS, TEXT, redacted_texts, type_of
from declog.runtime.worker import row_files
from declog.runtime.worker.row_files import RowEvent
from declog.sinks._files import replace_text

log = logging.getLogger("declog")

FORMAT = 1
FOLDER, FACTS = "rows", "rows.json"
KEPT, ABSENT = "kept", "it never came"
CHUNK_EVENTS = 512
CHUNK_BYTES = 8 * 2**20  # the size of the journal at which it becomes a chunk


class RowKeeper:
    """Keeps the rows of log events in the folder of ``run()``, which is called at the first log event.

    At most ``limit`` bytes are kept: the oldest chunks are removed. Runs on the worker thread.
    """

    def __init__(self, plan: Plan, run: Callable[[], RunInfo | None], limit: int) -> None:
        self.count = 0  # the number of log events so far, also of earlier processes of the run
        self._plan = plan
        self._run = run
        self._limit = limit
        self._labels = {
            name: phase.sent
            | {op.name for op in phase.locals if op.expr.type.dtype is DType.TEXT}
            | {op.name + FAILURE for op in phase.locals}
            for name, phase in plan.phases.items()
        }
        self._folder: Path | None = None
        self._facts: dict[str, Any] = {}
        self._open: list[RowEvent] = []
        self._chunk = 0
        self._bytes = 0
        self._sizes: dict[int, int] = {}  # the bytes of finished chunks
        self._journal: BinaryIO | None = None
        self._came: dict[str, set[str]] = {name: set() for name in plan.phases}
        # types of the columns of `log.keep`, by phase
        self._kept_types: dict[str, dict[str, str]] = {name: {} for name in plan.phases}
        self._left_out: set[str] = set()
        self._projections = {name: Projection(partial(self._kept_name, name)) for name in plan.phases}
        self._outdated = False  # whether `rows.json` lacks columns of a new layout
        self._after: int | None = None  # the number of log events after which a resumed run continues

    def add(self, facts: EventFacts, frames: Mapping[str, Frame]) -> RowEvent:
        """Keep a log event, and return it as it is kept. Raises ``OSError`` if it cannot be written."""
        folder = self._folder or self._begin()
        event = RowEvent(replace(facts, number=self.count), {name: self._kept(frame) for name, frame in frames.items()})
        if self._outdated:  # usually because signals arrived for the first time
            self._write()
        entry = row_files.journal_entry(event)
        if self._journal is None:
            self._journal = row_files.tail_of(folder, self._chunk).open("wb")
        self._journal.write(entry)
        self._journal.flush()
        self._open.append(event)
        self._bytes += len(entry)
        self.count += 1
        if len(self._open) >= CHUNK_EVENTS or self._bytes >= CHUNK_BYTES:
            self._end_chunk(folder)
        return event

    def go_on(self, count: int, *, branch: bool) -> None:
        """Continue after the first ``count`` log events of the folder, or as a branch of a run in another folder.

        Later log events that are already in the run's own folder no longer belong to any run.
        """
        self._after = count
        self.count = 0 if branch else count

    def stop(self) -> None:
        """Stop keeping rows; the rows so far stay."""
        if self._journal is not None:
            with suppress(OSError):  # the rows that it could not write are lost anyway
                self._journal.close()
            self._journal = None

    def close(self) -> None:
        """Write the open log events as a chunk. Raises ``OSError`` if it cannot be written."""
        if self._folder is not None:
            self._end_chunk(self._folder)

    # -- the kept columns

    def _kept(self, frame: Frame) -> Frame:
        """Return the columns to keep: numbers and labels; no sketches, traces, or texts that only tables use."""
        rows = self._projections[frame.phase].of(frame)
        texts = {key: (axis, redacted_texts(self._plan, key[0], values)) for key, (axis, values) in rows.texts.items()}
        return replace(rows, texts=texts)

    def _kept_name(self, phase: str, layout: Layout, name: str, dtype: np.dtype[Any]) -> str | None:
        """Return the name of a column in the files, and note it for `rows.json`; None: the column is not kept."""
        plain = self._name(phase, layout, name, dtype)
        if plain is not None:
            self._came[phase].add(plain)
            self._outdated = True
        return plain

    def _name(self, phase: str, layout: Layout, name: str, dtype: np.dtype[Any]) -> str | None:
        """Return the name of a column in the files, without the prefixes of kept columns; None: the column is not kept.

        A column of `log.keep` is not kept if a signal of its name is kept, or if it has texts after numbers or the
        reverse.
        """
        type = type_of(dtype)
        label = name in self._labels[phase] and not name.endswith((TRACE, ".hist"))
        if type == TEXT and not label and not name.startswith(PREFIX):
            return None
        plain = name.removeprefix(SIGNALS)
        if not plain.startswith(PREFIX):
            return plain
        plain = plain.removeprefix(PREFIX)
        signals = {op.name for op in self._plan.phases[phase].signals if op.dtype not in (DType.TEXT, DType.OBJECT)}
        of = plain.removesuffix(KIND)
        if SIGNALS + of in layout.names or of in signals | self._labels[phase]:
            return None
        if of != plain:
            return plain
        types = self._kept_types[phase]
        declared = types.setdefault(plain, type)
        if declared != type and TEXT in (declared, type):
            if plain not in self._left_out:
                self._left_out.add(plain)
                error = InputError.of("DL509.kept_ranks", before=declared, now=type)
                log.warning("`%s` is left out: %s", plain, error.message)
            return None
        types[plain] = type if declared == type else FLOAT
        return plain

    # -- files

    def _begin(self) -> Path:
        run = self._run()
        assert run is not None
        folder = self._folder = run.output_dir / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        before: dict[str, Any] = {}
        with suppress(FileNotFoundError):
            before = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        numbers = row_files.chunks(folder)
        files = {chunk: row_files.chunk_of(folder, chunk) for chunk in numbers}
        self._sizes = {chunk: file.stat().st_size for chunk, file in files.items() if file.exists()}
        self._chunk = 0 if not numbers else numbers[-1] + (numbers[-1] in self._sizes)
        path, end = row_files.tail_of(folder, self._chunk), 0
        if path.exists():  # a killed process has left it
            self._open, end = row_files.journal(path, self._plan.grouping)
        if end:
            self._journal = path.open("r+b")
            self._journal.truncate(end)
            self._journal.seek(end)
        self._bytes = end
        total = 0
        if self._open:
            total = self._open[-1].facts.number + 1
        elif self._sizes:
            *_, last_event = row_files.read_chunk(folder, max(self._sizes), None, ())
            total = last_event.facts.number + 1
        run_ids = [one["run_id"] for one in before.get("runs", ())]
        cuts = list(before.get("cuts", ()))
        if self._after is not None and run.run_id in run_ids and self._after < total:
            cuts.append([self._after, total])
        for phase, columns in (before["runs"][-1]["columns"] if run.run_id in run_ids[-1:] else {}).items():
            if phase in self._kept_types:
                self._kept_types[phase] = {**columns["kept"], **self._kept_types[phase]}
        facts = {
            "run_id": run.run_id, "from": total, "after": self._after, "fingerprint": self._plan.fingerprint,
            "declog": VERSION, "world_size": run.world_size, "config": self._plan.config,
            "constants": dict(self._plan.offered), "columns": {}, "late": self._plan.late,
        }  # fmt: skip
        self._facts = {"format": FORMAT, "cuts": cuts, "runs": [*before.get("runs", ()), facts]}
        self.count = total
        self._write()
        return folder

    def _end_chunk(self, folder: Path) -> None:
        if self._open:
            self._sizes[self._chunk] = row_files.write_chunk(folder, self._chunk, self._open)
            self.stop()
            row_files.tail_of(folder, self._chunk).unlink()
            self._chunk += 1
            self._open, self._bytes = [], 0
            self._thin(folder)
        self._write()

    def _thin(self, folder: Path) -> None:
        """Remove the oldest chunks until the rest fits the limit."""
        while len(self._sizes) > 1 and sum(self._sizes.values()) > self._limit:
            chunk = min(self._sizes)
            del self._sizes[chunk]
            row_files.chunk_of(folder, chunk).unlink()
            if not chunk:
                log.warning("%s", RuntimeFailure.of("DL611.thinned", folder=folder, bytes=f"{self._limit:,}"))

    def _write(self) -> None:
        assert self._folder is not None
        self._facts["runs"][-1]["columns"] = columns_of(self._plan, self._came, self._kept_types)
        replace_text(self._folder / FACTS, json.dumps(self._facts, default=str))
        self._outdated = False


def columns_of(plan: Plan, came: Mapping[str, set[str]], kept_types: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Return the facts about a plan's kept rows, by phase.

    They have for each signal whether it is kept, or why not; the types of kept columns; and definitions of folds and
    local columns. ``kept_types`` are the types of the columns of `log.keep`, by phase: later questions read these
    columns as signals.
    """
    return {
        phase.name: {
            "signals": {
                **{
                    op.name: _reason(op, came.get(phase.name, set()), phase.sent | {plan.ids})
                    for op in (*(op for op in phase.signals if op.recorded), *phase.unread)
                },
                **dict.fromkeys(kept_types.get(phase.name, ()), KEPT),
            },
            "kept": dict(kept_types.get(phase.name, {})),
            "folds": {op.name: {"key": fold_key(op), "stats": list(op.stats)} for op in phase.folds},
            "locals": {op.name: local_key(op) for op in phase.locals},
        }
        for phase in plan.phases.values()
    }


def fold_key(op: FoldOp) -> str:
    """The definition of a fold. It identifies the fold in every plan; the fold's name is a number that differs."""
    parts = [None if node is None else definition(node) for node in (op.expr, op.of)]
    return json.dumps([*parts, sorted(map(definition, op.mask)), op.trace])


def local_key(op: LocalOp) -> str:
    """The definition of a local column: its expression and its source."""
    return json.dumps([definition(op.expr), op.source])


def _reason(op: SignalOp, came: Set[str], labels: Set[str | None]) -> str:
    """Return ``KEPT`` for a kept signal, else why it is not kept; ``labels`` are the texts that may be kept."""
    if op.name in came:
        return KEPT
    if op.axis is Axis.TOKEN:
        return "it is per token, and only what metrics compute from it per completion is kept"
    if not op.recorded and op.axis is not Axis.COMPLETION:
        return f"it is per {op.axis.label}, and nothing that the run logged reads it"
    if op.dtype is DType.OBJECT:
        return "it is an object"
    if op.dtype is DType.TEXT and op.name not in labels:
        return f"it is a text that nothing uses as a label: `log.keep({op.argument})` beside `log.observe` keeps it"
    return ABSENT if op.recorded else "no metric reads anything of its completions"
