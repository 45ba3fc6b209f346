"""``declog.read``: a run on disk, from the files of its parquet and jsonl sinks and its folder.

The run may go on, be killed, empty or resumed, and have several modes and ranks. Values that both sinks wrote appear
once. Reading writes nothing and does not hold up the run.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from declog.errors import UsageError, did_you_mean, nearest
from declog.runs.files import KINDS, Source, schema, sources
from declog.runs.folder import DEPTH, below, config_of, facts_of, plan_of, runs_below, yaml_of
from declog.runs.frame import Frame
from declog.runs.guarded import Report
from declog.runs.prompts import PROMPTS, prompt_column, prompts_of, score_column
from declog.runs.series import TRAIN, Series, series_by_name, wide_table
from declog.sinks._shared import EVENT_RUN, EVENT_STEP
from declog.sinks.locks import alive
from declog.sinks.run_folder import LOCK, RUN, run_of

log = logging.getLogger("declog")

RANK = "declog_rank"  # which rank's sink wrote a row of a table, where several did
RUNNING, KILLED = "running", "killed"


def read(run: str | os.PathLike[str], *, run_id: str | None = None, sink: str | None = None) -> Run:
    """A run on disk; ``run`` is its folder, a folder of a sink, or a file in one.

    The folder above a run means that run if it is the only one there. ``run_id`` chooses among runs that were appended
    to one folder; the default is the last. ``sink`` restricts the reading to one sink: its folder relative to the
    run's, which is the sink's id unless the config has a ``dir``. Each part is read once, at its first use: call
    ``read`` again while the run goes on. Raises ``UsageError`` DL607 if there is no run, or no run of that id or sink.
    """
    given = Path(run)
    folder = Path(os.path.realpath(given.parent if os.path.isfile(given) else given))
    if not os.path.isdir(folder):
        raise UsageError.of("DL607.no_run", path=given, fix=_nearest_run(given))
    if len(runs := runs_in(folder)) == 1:
        folder = runs[0]
    home = next(_homes(folder), folder)
    within = [path for path in (folder, *folder.parents) if home in path.parents and sources(path)]  # of a sink
    return Run(home, run_id, os.path.relpath(within[-1], home) if within and sink is None else sink)


def runs_in(folder: Path) -> list[Path]:
    """The folders of the runs below a folder that is not itself a run's, the latest first; empty where it is one's."""
    if not folder.is_dir() or any(_homes(folder)) or any(map(sources, below(folder, DEPTH, _unsaid))):
        return []
    return runs_below(folder)


def _homes(folder: Path) -> Iterator[Path]:
    """The folders of runs that a folder lies in, or is, the nearest first."""
    return (path for path in (folder, *folder.parents[:DEPTH]) if os.path.lexists(path / RUN))


class Run:
    """A run that was read: ``scalars``, ``histograms``, ``alerts`` and ``tables``, and the facts of the run.

    ``path`` is its folder; ``id`` its id; ``problems`` lists unreadable parts of everything read so far.
    """

    def __init__(self, path: Path, run_id: str | None, sink: str | None) -> None:
        self.path = path
        self.problems: list[str] = []
        self._all, self._held = _facts_and_life(path, self._report)
        known = list(dict.fromkeys(facts["run_id"] for facts in self._all))
        self._chosen = run_id
        self._sinks = self._found(sink)
        if run_id is not None and run_id not in known:
            fix = "runs of this folder: " + (", ".join(known) or "it does not say")
            raise UsageError.of("DL607.run_id", path=path, run_id=run_id, fix=fix)
        self.id = run_id or (known[-1] if known else self._latest())

    def __repr__(self) -> str:
        return f"<run {self.name} {self.id} ({self.state}) in {self.path}>"

    # -- what the folder says

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
        """The config's name, or that of the folder."""
        return str(self.info.get("name", self.path.name))

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``failed``, ... from the run; ``killed`` if the run ended without a state."""
        said = str(self.info.get("state", "unknown"))
        lives = self._held and self.info in self._all[-1:]  # only the last process of a folder may
        return KILLED if said == RUNNING and not lives else said

    def stamp(self) -> str:
        """A short text that changes when the run grows, ends or changes."""
        kept = (RUN, *(str(self.info[key]) for key in ("config", "plan", "run_config") if self.info.get(key)))
        files = [self.path / Path(name).name for name in kept]
        files += [file for ranks in self._sinks for one in ranks for file in one.files()]
        facts: list[object] = [self.id, self.state]
        for file in files:
            with suppress(OSError):  # of a file that is not there, or was merged into another
                status = file.stat()
                facts.append((str(file), status.st_size, status.st_mtime_ns))
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    @property
    def world_size(self) -> int:
        """How many ranks it has."""
        return int(
            self.info.get("world_size", 1 + max((one.rank for found in self._sinks for one in found), default=0))
        )

    @property
    def failures(self) -> dict[str, int]:
        """The failures of all segments with their counts, lost log events included."""
        found: dict[str, int] = {}
        for facts in self.segments:
            for what, count in facts.get("failures", {}).items():
                found[what] = found.get(what, 0) + count
        return found

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config in effect, resolved, as plain data; empty if it was not kept."""
        return config_of(self.path, self.info, self._report)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The plan as data: outputs with their meanings, alerts, tables; empty if it was not kept.

        The outputs include the metrics of ``declog add``.
        """
        return plan_of(self.path, self.info, self._report)

    @property
    def ids(self) -> list[str]:
        """The runs that were written to this folder, the oldest first."""
        return list(dict.fromkeys(facts["run_id"] for facts in self._all))

    @property
    def constants(self) -> dict[str, Any]:
        """The config's constants, with their values in this run."""
        constants = self.config.get("constants") or {}
        return {name: spec.get("default") if isinstance(spec, dict) else spec for name, spec in constants.items()}

    @cached_property
    def run_config(self) -> dict[str, Any]:
        """The config's run metadata, and the trainer's configuration if the run recorded it (``configured``)."""
        name = self.info.get("run_config")
        if name:
            return yaml_of(self.path / Path(name).name, self._report)
        return dict((self.config.get("run") or {}).get("config") or {})

    @property
    def configured(self) -> bool:
        """Whether the run recorded its trainer's configuration."""
        return "run_config" in self.info

    @property
    def redactions(self) -> dict[str, dict[str, list[str]]]:
        """By schema and column: the keys of the patterns whose matches were redacted before writing."""
        found: dict[str, dict[str, list[str]]] = {}
        for name, columns in (self.config.get("schemas") or {}).items():
            for column, spec in (columns if isinstance(columns, dict) else {}).items():
                if isinstance(spec, dict) and isinstance(spec.get("redact"), dict | list):
                    found.setdefault(name, {})[column] = list(spec["redact"])
        return found

    # -- what the sinks wrote

    @cached_property
    def scalars(self) -> Frame:
        """``step, mode, name, metric, value, int_value, partial, time, run_id``: a row per value."""
        return self._events("scalars")

    @cached_property
    def histograms(self) -> Frame:
        """``step, mode, name, metric, counts, edges, time, run_id``: a row per histogram."""
        return self._events("histograms")

    @cached_property
    def alerts(self) -> Frame:
        """``step, mode, name, level, text, time, run_id``: a row per alert."""
        return self._events("alerts")

    @cached_property
    def tables(self) -> Mapping[str, Frame]:
        """By id: the table's columns and ``step, mode, run_id``; ``declog_rank`` where several ranks wrote it.

        A column ``step`` or ``run_id`` of its own stays its own: the log event's is ``declog_step``, ``declog_run_id``.
        """
        return _Tables(self)

    def names(self, mode: str | None = None) -> list[str]:
        """The names of its scalars, in the order in which they first came."""
        table = self.scalars.arrow()
        if mode is None:
            return list(dict.fromkeys(table["name"].to_pylist()))
        pairs = zip(table["name"].to_pylist(), table["mode"].to_pylist(), strict=True)
        return list(dict.fromkeys(name for name, of in pairs if of == mode))

    def __getitem__(self, name: str) -> Series:
        """The steps and values of a scalar: ``run["reward"].values``.

        Where several modes have one name it is that of training, or else of the mode that came first. Raises
        ``KeyError`` with the nearest name where nothing of that name was logged.
        """
        if name not in self._series:
            raise KeyError(f"{name}; {did_you_mean(name, self._series, what='scalars of this run')}")
        return self._series[name]

    def wide(self, mode: str | None = None) -> Frame:
        """All scalars beside each other: a row for each step and a column for each name, null where it was not logged.

        ``mode``: those of one mode. Otherwise each is what ``run[name]`` is.
        """
        return Frame(wide_table(self._series if mode is None else series_by_name(self.scalars.arrow(), mode)))

    @cached_property
    def _series(self) -> dict[str, Series]:
        return series_by_name(self.scalars.arrow())

    def prompts(
        self, table: str | None = None, *, by: str | None = None, solved: float | None = None, mode: str | None = None
    ) -> Frame:
        """The prompts of a table's rows, the never solved ones first: ``prompt, attempts, mean, best, solved,
        first_solved, trend, first_step, last_step``.

        ``by`` is the column that says how good a row is, by default `reward`, `score` or the like; ``solved`` the
        score from which on a row counts as solved, by default the best there is. ``table`` is by default the first
        with prompts and scores; ``mode`` is training, or else the first that there is. Raises ``UsageError`` DL607
        where no table has both.
        """
        import pyarrow as pa

        for name in self.tables if table is None else [table]:
            rows = self.tables[name].rows()
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
        """The modes of its scalars, in the order in which they first came."""
        return list(dict.fromkeys(self.scalars.arrow()["mode"].to_pylist()))

    def _events(self, kind: str) -> Frame:
        import pyarrow as pa

        columns = schema(pa, KINDS[kind])
        found = []
        for ranks in self._sinks:
            table = ranks[0].read(kind, self._report)
            if table is not None:
                missing = {name: type_ for name, type_ in columns if name not in table.column_names}
                for name, type_ in missing.items():  # of a version that wrote none
                    table = table.append_column(name, pa.nulls(len(table), type_))
                found.append(self._mine(table.select([name for name, _ in columns]), "run_id"))
        if not found:
            return Frame(pa.table({name: pa.array([], type_) for name, type_ in columns}))
        return Frame(_merged(found, ("step", "mode", "name", "time")))

    def _table(self, name: str) -> Frame:
        import pyarrow as pa

        found = []
        for ranks in self._sinks:
            read = [(one.rank, one.read(f"tables/{name}", self._report)) for one in ranks]
            parts = [(rank, table) for rank, table in read if table is not None]
            if len(parts) > 1:
                ranked = ((table, pa.array([rank] * len(table), pa.int64())) for rank, table in parts)
                parts = [(0, table.append_column(RANK, column)) for table, column in ranked]
            if parts:
                whole = _joint([table for _, table in parts])
                run = EVENT_RUN if EVENT_RUN in whole.column_names else "run_id"
                whole = self._mine(whole, run) if run in whole.column_names else whole
                found.append(_by_step(whole) if len(parts) > 1 else whole)
        if not found:
            return Frame(pa.table({}))
        return Frame(_merged(found, ("step", "mode")))

    def _mine(self, table: Any, column: str) -> Any:
        """The rows of the run that is read; those that do not say of which they are belong to it."""
        import pyarrow.compute as compute

        if self.id == "" or column not in table.column_names:
            return table
        return table.filter(compute.fill_null(compute.equal(table[column], self.id), True))

    def _report(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
            log.warning("%s", problem)

    def _found(self, sink: str | None) -> list[list[Source]]:
        """The ranks of each sink that wrote files: of parquet first, which keeps types."""
        folders = [self.path / sink] if sink is not None else self._folders()
        found: dict[tuple[str, Path], list[Source]] = {}
        seen: set[tuple[str, str]] = set()  # a link is no other rank
        for folder in folders:
            for one in sources(folder):
                if (key := (one.kind, os.path.realpath(one.folder))) not in seen:
                    seen.add(key)
                    found.setdefault((one.kind, folder), []).append(one)
        if sink is not None and not found:
            known = sorted({os.path.relpath(place, self.path) for place in self._folders() if sources(place)})
            fix = f"sinks that wrote files: {', '.join(known)}" if known else "none wrote files"
            raise UsageError.of("DL607.sink", path=self.path, sink=sink, fix=fix)
        if not found and not self._all:
            if os.path.isfile(self.path / RUN):
                run_of(self.path)  # says what is wrong with it
            raise UsageError.of("DL607.no_run", path=self.path, fix=_what_to_give(self.path))
        return [found[key] for key in sorted(found, key=lambda key: key[0] != "parquet")]

    def _folders(self) -> list[Path]:
        """Where sinks may have written: where the config says so, and below the run's folder."""
        config = config_of(self.path, self._all[-1], self._report) if self._all else {}
        said = (config.get("sink_options") or {}).values()
        named = [spec["dir"] for spec in said if isinstance(spec, dict) and isinstance(spec.get("dir"), str)]
        outside = [Path(folder) for folder in named if os.path.isabs(folder) and os.path.isdir(folder)]
        return list(dict.fromkeys([*below(self.path, DEPTH, self._report), *outside]))

    def _latest(self) -> str:
        """The id of the run that wrote last, where only its files say so."""
        for ranks in self._sinks:
            table = ranks[0].read("scalars", self._report)
            if table is not None and len(table) and "run_id" in table.column_names:
                return str(table["run_id"][-1].as_py() or "")
        return ""


def _facts_and_life(path: Path, report: Report) -> tuple[list[dict[str, Any]], bool]:
    """What a run's folder says of its processes, and whether somebody held it when it said that.

    A run says how it ended before it lets its folder go: one that is let go while this reads is read again.
    """
    facts = facts_of(path, report)
    while not (held := alive(path / LOCK)) and facts and facts[-1].get("state") == RUNNING:
        earlier, facts = facts, facts_of(path, report)
        if facts == earlier:
            break
    return facts, held


class _Tables(Mapping[str, Frame]):
    """The tables of a run by id, each read when it is asked for."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._names = sorted({name for ranks in run._sinks for one in ranks for name in one.tables()})
        self._read: dict[str, Frame] = {}

    def __getitem__(self, name: str) -> Frame:
        if name not in self._names:
            raise KeyError(f"{name}; tables of this run: {', '.join(self._names) or 'none'}")
        if name not in self._read:
            self._read[name] = self._run._table(name)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _unsaid(problem: str) -> None:
    """What cannot be listed is reported by the run that is read."""


def _nearest_run(given: Path) -> str:
    """What to give for a folder that is not there: one with nearly that name, or a run of this folder."""
    beside = {path.name: path for path in given.parent.iterdir() if path.is_dir()} if given.parent.is_dir() else {}
    close = nearest(given.name, beside)
    runs = [beside[close]] if close is not None else runs_below(Path())
    return f"did you mean `{runs[0]}`?" if runs else "give the folder of a run, its `output_dir`"


def _what_to_give(path: Path) -> str:
    found = runs_below(path)
    if not found:
        return "give the folder of a run, its `output_dir`, with a parquet or jsonl sink"
    more = f" and {len(found) - 3} more" * (len(found) > 3)
    return f"give one of the runs below it, the latest first: {', '.join(map(str, found[:3]))}{more}"


def _joint(tables: Sequence[Any]) -> Any:
    import pyarrow as pa

    return pa.concat_tables(tables, promote_options="permissive")


def _by_step(table: Any) -> Any:
    """By the step of the log event; rows of one stay as they are."""
    import pyarrow.compute as compute

    steps = _steps(table)
    return table.take(compute.sort_indices(steps)) if steps is not None else table


def _steps(table: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as compute

    names = [name for name in (EVENT_STEP, "step") if name in table.column_names]
    columns = [table[name] for name in names if pa.types.is_int64(table[name].type)]  # one of its own may be a text
    return compute.coalesce(*columns) if columns else None


def _merged(tables: Sequence[Any], key: Sequence[str]) -> Any:
    """What several sinks wrote, each thing once: of the first that has it."""
    whole = tables[0]
    for table in tables[1:]:
        there = set(_keys(whole, key))
        more = [place for place, one in enumerate(_keys(table, key)) if one not in there]
        if more:
            whole = _by_step(_joint([whole, table.take(more)]))
    return whole


def _keys(table: Any, key: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    columns = [(_steps(table) if name == "step" else table[name]).to_pylist() for name in key]
    return zip(*columns, strict=True)
