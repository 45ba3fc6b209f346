"""``declog.read``: reads a run from disk: its folder, and the files of its parquet and jsonl sinks.

The run may be running, killed, empty or resumed, and have several modes and ranks. Values that both sinks wrote appear
once. Reading writes nothing, and the run does not wait for it.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

from declog.errors import UsageError, did_you_mean, nearest
from declog.errors.habits import meant, no_attribute, no_key
from declog.records import SELF
from declog.runs.declared import NO_FILES, NO_VALUE, Declared
from declog.runs.files import Source, sources
from declog.runs.folder import (
    DEPTH,
    RUNNING,
    below,
    config_of,
    facts_and_life,
    nearest_run,
    plan_of,
    runs_below,
    what_to_give,
    yaml_of,
)  # fmt: skip
from declog.runs.frame import Frame, by_step, joint, merged
from declog.runs.guarded import unsaid
from declog.runs.prompts import PROMPTS, RANK, prompt_column, prompts_of, score_column
from declog.runs.series import TRAIN, LoggedName, Series, logged_names, name_of, series_by_name, wide_table
from declog.runs.tables import Tables
from declog.sinks._rows import EVENT_RUN, schema, with_event_steps
from declog.sinks.run_folder import RUN, run_of

log = logging.getLogger("declog")
KILLED = "killed"


@runtime_checkable
class _Recorder(Protocol):
    @property
    def output_dir(self) -> Path | None: ...

    @property
    def closed(self) -> bool: ...

    def written(self, wait_s: float = 30.0) -> bool: ...


@runtime_checkable
class _HasRecorder(Protocol):
    @property
    def recorder(self) -> _Recorder | None: ...


def read(
    run: str | os.PathLike[str] | _Recorder | _HasRecorder | Run, *, run_id: str | None = None, sink: str | None = None
) -> Run:
    """A run on disk; ``run`` is its folder, a folder of a sink, or a file in one.

    ``run`` may also be the run's recorder, open or closed, or an object with the attribute ``recorder``, such as a tee,
    a shadow or a callback: ``read`` then waits until the log events so far are written. A ``Run`` is read again.
    The folder above a run means that run if it is the only one there. ``run_id`` chooses among runs that were appended
    to one folder; the default is the last. ``sink`` restricts the reading to one sink: its folder relative to the
    run's, which is the sink's id unless the config has a ``dir``. Each part is read once, at its first use: call
    ``read`` again to see how a run goes on. Raises ``UsageError`` DL607 if there is no run, or no run of that id or
    sink.
    """
    if isinstance(run, Run):
        run_id = run_id or run.id or None
        run = run.path
    path = Path(run) if isinstance(run, str | os.PathLike) else _folder_of(run)
    folder = Path(os.path.realpath(path.parent if os.path.isfile(path) else path))
    if not os.path.isdir(folder):
        raise UsageError.of("DL607.no_run", path=path, fix=nearest_run(path))
    if len(runs := runs_in(folder)) == 1:
        folder = runs[0]
    home = next(_homes(folder), folder)
    if sink is None:  # the folder may be a sink's
        for parent in (folder, *folder.parents):
            if home in parent.parents and sources(parent):
                sink = os.path.relpath(parent, home)
    return Run(home, run_id, sink)


def _folder_of(run: object) -> Path:
    """The folder of a recorder, or of an object that has one, once its log events so far are written."""
    recorder = run.recorder if isinstance(run, _HasRecorder) else run
    if recorder is None and run is not None:
        raise UsageError.of("DL607.not_begun", type=type(run).__name__)
    if not isinstance(recorder, _Recorder):
        raise UsageError.of("DL607.stands", type=type(run).__name__)
    if not recorder.closed:
        recorder.written()
    if recorder.output_dir is None:
        raise UsageError.of("DL607.no_run", path="this rank", fix="read on rank 0, which has the run's folder")
    return recorder.output_dir


def runs_in(folder: Path) -> list[Path]:
    """The folders of the runs below a folder, the latest first; empty if the folder itself is a run's or in one."""
    if not folder.is_dir() or any(_homes(folder)) or any(map(sources, below(folder, unsaid))):
        return []
    return runs_below(folder)


def _homes(folder: Path) -> Iterator[Path]:
    """The folders of runs among a folder and those above it, the nearest first."""
    return (path for path in (folder, *folder.parents[:DEPTH]) if os.path.lexists(path / RUN))


class Run:
    """A run on disk: ``scalars``, ``histograms``, ``alerts`` and ``tables``, and the facts of the run.

    ``path`` is its folder, and ``id`` its id. ``problems`` lists the unreadable parts of everything read so far.
    """

    def __init__(self, path: Path, run_id: str | None, sink: str | None) -> None:
        self.path = path
        self.problems: list[str] = []
        self._all, self._held = facts_and_life(path, self._report)
        self._sinks = self._sources(sink)
        if run_id is not None and run_id not in self.ids:
            fix = "runs of this folder: " + (", ".join(self.ids) or "it does not say")
            raise UsageError.of("DL607.run_id", path=path, run_id=run_id, fix=fix)
        self.id = run_id or (self.ids[-1] if self.ids else self._latest())

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            public = [member for member in dir(type(self)) if not member.startswith("_")]
            if not name.startswith("_") and name in self._series:
                raise no_attribute(f"'Run' object has no attribute {name!r}\n  fix: a scalar is run[{name!r}]")
            raise no_attribute(f"'Run' object has no attribute {name!r}{meant(name, public, 'run', 'run')}")

    def __repr__(self) -> str:
        return f"<run {self.name} {self.id} ({self.state}) in {self.path}>"

    @property
    def segments(self) -> list[dict[str, Any]]:
        """The facts of each process of the run, in order: a resumed run has several."""
        return [facts for facts in self._all if facts["run_id"] == self.id]

    @property
    def info(self) -> dict[str, Any]:
        """The facts of the last process: versions, packages, overrides, commit, host. Empty if unknown."""
        return self.segments[-1] if self.segments else {}

    @property
    def name(self) -> str:
        """The name of the config, or else of the folder."""
        return str(self.info.get("name", self.path.name))

    @property
    def state(self) -> str:
        """The state that the run wrote, such as ``failed``; ``killed`` if it wrote ``running`` and no process lives."""
        said = str(self.info.get("state", "unknown"))
        lives = self._held and self.info in self._all[-1:]  # only the last process of a folder can be alive
        return KILLED if said == RUNNING and not lives else said

    def stamp(self) -> str:
        """A short text that changes when the run grows, ends or changes; take it before reading anything of the run."""
        kept = [str(self.info[key]) for key in ("config", "plan", "run_config") if self.info.get(key)]
        files = [self.path / Path(name).name for name in kept]
        files += [file for ranks in self._sinks for one in ranks for file in one.files()]
        facts: list[object] = [self.id, self.state, self._all]
        for file in files:
            with suppress(OSError):  # the file does not exist, or was merged into another
                status = file.stat()
                facts.append((str(file), status.st_size, status.st_mtime_ns))
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        ranks = [source.rank for sink in self._sinks for source in sink]
        return int(self.info.get("world_size", 1 + max(ranks, default=0)))

    @property
    def failures(self) -> dict[str, int]:
        """The failures of all segments with their counts, lost log events included."""
        counts: Counter[str] = Counter()
        for facts in self.segments:
            counts.update(facts.get("failures", {}))
        return dict(counts)

    @cached_property
    def declog(self) -> dict[str, Any]:
        """The declog config in effect, resolved, as plain data; empty if it was not kept."""
        return config_of(self.path, self.info, self._report)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The plan as data: outputs with their meanings, alerts, tables; empty if it was not kept.

        The outputs include the metrics of ``declog add``.
        """
        return plan_of(self.path, self.info, self._report)

    @property
    def ids(self) -> list[str]:
        """The ids of the runs that were written to this folder, the oldest first."""
        return list(dict.fromkeys(facts["run_id"] for facts in self._all))

    @property
    def constants(self) -> dict[str, Any]:
        """The config's constants, with their values in this run."""
        constants = self.declog.get("constants") or {}
        return {name: spec.get("default") if isinstance(spec, dict) else spec for name, spec in constants.items()}

    @cached_property
    def config(self) -> dict[str, Any]:
        """`run.config` of the YAML, with the trainer's configuration if that was recorded (``configured``)."""
        name = self.info.get("run_config")
        if name:
            return yaml_of(self.path / Path(name).name, self._report)
        return dict((self.declog.get("run") or {}).get("config") or {})

    @property
    def configured(self) -> bool:
        """Whether the run recorded its trainer's configuration."""
        return "run_config" in self.info

    @property
    def redactions(self) -> dict[str, dict[str, list[str]]]:
        """The keys of the patterns whose matches were redacted before writing, by schema and column."""
        redacted: dict[str, dict[str, list[str]]] = {}
        for name, columns in (self.declog.get("schemas") or {}).items():
            for column, spec in (columns if isinstance(columns, dict) else {}).items():
                if isinstance(spec, dict) and isinstance(spec.get("redact"), dict | list):
                    redacted.setdefault(name, {})[column] = list(spec["redact"])
        return redacted

    def _left_to_logger(self, name: str) -> str:
        """Say that the values of a name are no numbers and went to the loop's logger alone; empty for other names."""
        for logger, names in (self.info.get("left_to_logger") or {}).items():
            if name in names:
                edit = names[name] if isinstance(names, dict) else ""  # earlier versions wrote a list of names
                said = f"{logger} alone has it: " if logger else "it was left out: "
                said += "declog keeps the numbers of a loop that logs by itself"
                return f"{said}; its rows too with {edit}" if edit else said
        return ""

    @property
    def _no_files(self) -> str:
        """The advice for a run without a sink that writes files; empty if it has one."""
        return "" if self._sinks or self._declared.sinks else NO_FILES

    @property
    def _declared(self) -> Declared:
        return Declared(self.declog, self.plan)

    @cached_property
    def scalars(self) -> Frame:
        """One row per value, with ``step, mode, name, metric, value, int_value, partial, time, run_id``."""
        frame = self._events("scalars")
        if not len(frame) and not self._no_files and (why := self._declared.rare()):
            self._report(why)
        return frame

    @cached_property
    def histograms(self) -> Frame:
        """One row per histogram, with ``step, mode, name, metric, counts, edges, time, run_id``."""
        return self._events("histograms")

    @cached_property
    def alerts(self) -> Frame:
        """One row per alert, with ``step, mode, name, level, text, time, run_id``."""
        return self._events("alerts")

    @cached_property
    def tables(self) -> Mapping[str, Frame]:
        """The tables by id, or by the name that trackers show: the table's columns and ``step, mode, run_id``.

        A table that several ranks wrote also has ``declog_rank``. A table without rows yet is included.
        If a table has its own column ``step`` or ``run_id``, the log event's is ``declog_step`` or ``declog_run_id``.
        """
        written = {name for ranks in self._sinks for one in ranks for name in one.tables()}
        no_files = self._no_files
        if no_files:
            self._report(no_files)
        frames = {**self._declared.empty_tables, **dict.fromkeys(written)}
        ids = {str(table.get("name")): table["id"] for table in self._declared.plan.get("tables", ())}
        return Tables(frames, self._table, lambda name: self._left_to_logger(name) or no_files, ids)

    def names(self, mode: str | None = None) -> list[str]:
        """The names of the scalars, in the order in which they were first logged."""
        return list(dict.fromkeys(name for name, _, of in self._logged if mode in (None, of)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._series)

    def __contains__(self, name: object) -> bool:
        return name in self._series or name_of(self._logged, name) is not None

    def __getitem__(self, name: str) -> Series:
        """The steps and values of a scalar, such as ``run["reward"].values``, by its name, or by the id of its metric.

        The id stands for the metric's name if it has only one. A name of several modes is that of training, or else of
        the mode that logged it first. Raises ``KeyError``, which tells where the values of that name are, or the
        nearest name.
        """
        shown = name if name in self._series else name_of(self._logged, name)
        if shown is None:
            raise no_key(f"{name}; {self._instead_of(name)}")
        return self._series[shown]

    def _instead_of(self, name: str) -> str:
        """Explain a name that no scalar has: where its values are, why none were logged, or the nearest name."""
        if self._no_files:
            return self._no_files
        metrics = {key for _, key, _ in self._logged}
        for section, rows in {"histograms": self.histograms, "alerts": self.alerts}.items():
            if name not in metrics and name in rows.arrow()["name"].to_pylist():
                return f"it is in `run.{section}`: {rows.with_name(name)}"
        if name in self.tables:
            return f'it is a table: run.tables["{name}"].pandas()'
        declared = self._declared.instead_of(name, self._logged) or self._left_to_logger(name)
        names = [one for one in self._series if not one.startswith(SELF)] or self._series
        if declared == NO_VALUE and (close := nearest(name, names)) is not None:
            return f"{declared}; did you mean `{close}`?"
        return declared or did_you_mean(name, names, what="scalars of this run")

    def wide(self, mode: str | None = None) -> Frame:
        """All scalars in one table: a row for each step and a column for each name, null if not logged at the step.

        ``mode`` selects the scalars of one mode. Without it, each column is the series ``run[name]``.
        """
        return Frame(wide_table(self._series if mode is None else series_by_name(self.scalars.arrow(), mode)))

    @cached_property
    def _logged(self) -> list[LoggedName]:
        return logged_names(self.scalars.arrow())

    @cached_property
    def _series(self) -> dict[str, Series]:
        return series_by_name(self.scalars.arrow())

    def prompts(
        self, table: str | None = None, *, by: str | None = None, solved: float | None = None, mode: str | None = None
    ) -> Frame:
        """The prompts of a table's rows, the never solved ones first: ``prompt, attempts, mean, best, solved,
        first_solved, trend, first_step, last_step``.

        ``by`` is the column of scores, by default `reward`, `score` or a similar name. ``solved`` is the least score of
        a solved row, by default the best score of all rows. ``table`` is by default the first with prompts and scores,
        and ``mode`` is training, or else the first mode of the rows. Raises ``UsageError`` DL607 if no table has both.
        """
        import pyarrow as pa

        for name in self.tables if table is None else [table]:
            rows = list(self.tables[name])
            modes = [row.get("mode", TRAIN) for row in rows]
            wanted = mode or (TRAIN if TRAIN in modes else next(iter(modes), TRAIN))
            rows = [row for row, of in zip(rows, modes, strict=True) if of == wanted]
            prompt, score = prompt_column(rows), score_column(rows) if by is None else by
            if prompt is not None and score is not None and any(score in row for row in rows):
                types = {name: getattr(pa, type_)() for name, type_ in PROMPTS.items()}
                return Frame(pa.Table.from_pylist(prompts_of(rows, prompt, score, solved), pa.schema(types)))
        what = f"the table `{table}` lacks" if table is not None else "no table of the run has"
        raise UsageError.of("DL607.prompts", what=what)

    @property
    def modes(self) -> list[str]:
        """The modes of the scalars, in the order in which they were first logged."""
        return list(dict.fromkeys(mode for _, _, mode in self._logged))

    def _events(self, kind: str) -> Frame:
        tables = [table for ranks in self._sinks if (table := ranks[0].read(kind, self._report)) is not None]
        parts = [self._of_run(table, "run_id") for table in tables]
        rows = merged(parts, ("step", "mode", "name", "time")) if parts else schema(kind).empty_table()
        if self._no_files:
            self._report(self._no_files)
        return Frame(rows, f"run.{kind}")

    def _table(self, name: str) -> Frame:
        import pyarrow as pa

        parts = []
        for ranks in self._sinks:
            tables = {source.rank: source.read(f"tables/{name}", self._report) for source in ranks}
            tables = {rank: table for rank, table in tables.items() if table is not None}
            if len(tables) > 1:
                for rank, table in tables.items():
                    tables[rank] = table.append_column(RANK, pa.array([rank] * len(table), pa.int64()))
            if tables:
                rows = joint(list(tables.values()))
                rows = self._of_run(rows, EVENT_RUN if EVENT_RUN in rows.column_names else "run_id")
                parts.append(by_step(rows) if len(tables) > 1 else rows)
        return Frame(with_event_steps(merged(parts, ("step", "mode"))) if parts else pa.table({}))

    def _of_run(self, table: Any, column: str) -> Any:
        """The rows of this run, and rows that name no run."""
        import pyarrow.compute as compute

        if self.id == "" or column not in table.column_names:
            return table
        return table.filter(compute.fill_null(compute.equal(table[column], self.id), True))

    def _report(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
            log.warning("%s", problem)

    def _sources(self, sink: str | None) -> list[list[Source]]:
        """The ranks of each sink that wrote files; parquet sinks come first, because parquet keeps types."""
        folders = [self.path / sink] if sink is not None else self._folders()
        ranks: dict[tuple[str, Path], list[Source]] = {}
        seen: set[tuple[str, str]] = set()  # real paths: a link to a folder is not another rank
        for folder in folders:
            for source in sources(folder):
                if (key := (source.kind, os.path.realpath(source.folder))) not in seen:
                    seen.add(key)
                    ranks.setdefault((source.kind, folder), []).append(source)
        if sink is not None and not ranks:
            names = sorted({os.path.relpath(folder, self.path) for folder in self._folders() if sources(folder)})
            fix = f"sinks that wrote files: {', '.join(names)}" if names else "none wrote files"
            raise UsageError.of("DL607.sink", path=self.path, sink=sink, fix=fix)
        if not ranks and not self._all:
            if os.path.isfile(self.path / RUN):
                run_of(self.path)  # raises if the file is damaged
            raise UsageError.of("DL607.no_run", path=self.path, fix=what_to_give(self.path))
        return [ranks[key] for key in sorted(ranks, key=lambda key: key[0] != "parquet")]

    def _folders(self) -> list[Path]:
        """The folders in which sinks may have written: those below the run's folder, and those in the config."""
        config = config_of(self.path, self._all[-1], self._report) if self._all else {}
        options = [spec for spec in (config.get("sink_options") or {}).values() if isinstance(spec, dict)]
        folders = [spec["dir"] for spec in options if isinstance(spec.get("dir"), str)]
        outside = [Path(folder) for folder in folders if os.path.isabs(folder) and os.path.isdir(folder)]
        return list(dict.fromkeys([*below(self.path, self._report), *outside]))

    def _latest(self) -> str:
        """The id of the run that wrote the last scalar; only used if the folder has no facts of a run."""
        for ranks in self._sinks:
            table = ranks[0].read("scalars", self._report)
            if table is not None and len(table) and "run_id" in table.column_names:
                return str(table["run_id"][-1].as_py() or "")
        return ""
