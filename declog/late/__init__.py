"""Late metrics: a user asks for them during or after a run, and declog computes them from the rows that the run kept.

    late = declog.late.ask("outputs/run", {"by_source": "{expr: reward, by: source}"})
    late.events                                           # [(step, Records), ...] from step 0 on

A line is composed and compiled with the run's config, and evaluated as during the run: ``tests/late/test_late.py``
compares both. A line that the rows cannot answer is refused with the reason.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml

from declog.compiler import compile
from declog.config.compose import compose
from declog.config.project import load_imports
from declog.distribution import VERSION
from declog.engine.evaluation import Evaluation
from declog.engine.frame import GROUP_ID, Frame, Projection, of_mode
from declog.engine.layout import FAILURE, KIND, Layout
from declog.engine.local_columns import with_locals
from declog.engine.log_event import undone
from declog.engine.publish import Dispatcher, Route, prefixed
from declog.engine.spans import PHASE, Span
from declog.errors import ConfigError, Problem, UsageError
from declog.language.dtypes import DType
from declog.language.validation import validate
from declog.late.lines import Line, places
from declog.late.unanswered import UNMATCHED, refuse_empty
from declog.late.unregistered import compiled
from declog.plans.ops import Grouping, Plan, SinkOp
from declog.records import Records, ResumePoint, RunInfo
from declog.runtime.ranks.message import encode
from declog.runtime.run.failures import Failures
from declog.runtime.run.manifest import now, plan_text, yaml_text
from declog.runtime.worker.row_files import RowEvent, chunks, read_chunk
from declog.runtime.worker.row_keeper import ABSENT as NEVER
from declog.runtime.worker.row_keeper import FACTS, FOLDER, KEPT, fold_key, local_key
from declog.sinks import Rewindable, make_sink, option_names, traits
from declog.sinks.parquet import ParquetSink
from declog.sinks.run_folder import CONFIG, LATE, PLAN, run_of

PROFILE = "late"
NO_PHASE, NO_SIGNAL = "no metric of the run reads anything of its phase", "the run had no signal of this name"
SHOWN = frozenset({"scalar", "histogram"})
ASKED = "late.yaml"


@dataclass
class Late:
    """The history of late metrics: their log events, from the first that the run kept, and failures."""

    lines: Mapping[str, str]  # the YAML of each metric, by id
    plan: Plan  # the plan of the metrics; `write` sends the values to its sinks, besides the run's folder
    first: int  # the number of log events before the first kept one
    events: list[tuple[int, Records]] = field(default_factory=list)
    failures: Mapping[str, int] = field(default_factory=dict)
    through: int = 0  # the number of log events in the folder that the history covers
    state: bytes = b""  # the state of the metrics after the last of these log events

    @property
    def names(self) -> tuple[str, ...]:
        """The ids of the metrics."""
        return tuple(self.lines)

    @property
    def empty(self) -> list[str]:
        """The ids of the metrics without a single value. Metrics that are read and not shown do not count."""
        logged = {scalar.metric for _, records in self.events for scalar in records.scalars}
        logged |= {histogram.metric for _, records in self.events for histogram in records.histograms}
        logged |= {op.key for op in self.plan.outputs if not op.shown}
        ids = {op.key: op.id for op in self.plan.outputs}
        there = {ids.get(metric, metric) for metric in logged}
        return [name for name in self.names if name not in there]


def ask(
    run: str | Path,
    lines: Mapping[str, str],
    *,
    to: Sequence[str] = (),
    files: Mapping[str, Path] = MappingProxyType({}),
    goes_on: bool = False,
) -> Late:
    """Compute the history of some metrics. ``lines`` holds the YAML of each metric, by id.

    ``to`` names sinks that also get the values, with their options in the run's config. ``files`` holds, by id, the
    file whose `metrics` contain a line: errors point into it. While the job ``goes_on``, a metric may have no value
    yet, for instance because its filter held for no row. Raises ``UsageError`` DL607 if the run kept no rows,
    ``ConfigError`` and ``CompositionError`` for wrong lines, and ``ConfigError`` DL612 for lines that the rows cannot
    answer.
    """

    def submit(step: int, records: Records) -> None:
        late.events.append((step, records))

    typed = [Line(name, text, files.get(name)) for name, text in lines.items()]
    answer = Answer(Path(run), typed, to, [Route(PROFILE, PROFILE, 1, "", SHOWN, submit)])
    late = Late(dict(lines), answer.plan, answer.kept[0].first, failures=answer.failures.counts)
    has_logged = False
    with np.errstate(all="ignore"):
        for event, reader in answer.history():
            answer.take(event, reader)
            late.through, has_logged = event.facts.number + 1, has_logged or bool(event.facts.count)
            if (back := undone(event.facts.back)) is not None:
                late.events = [item for item in late.events if item[0] <= back]
    late.state = encode(*answer.evaluation.state())
    with places(typed):
        declared = late.plan.config["metrics"]
        refuse_empty(
            {name: declared[name] for name in late.empty}, {**answer.inactive, **dict(late.plan.inactive)},
            answer.failures.first, has_logged=has_logged, goes_on=goes_on,
        )  # fmt: skip
    return late


class Answer:
    """The evaluation of some lines: their plan, and a reader of the rows of each process."""

    def __init__(self, folder: Path, lines: Sequence[Line], to: Sequence[str], routes: Sequence[Route]) -> None:
        self.kept = _rows(folder)
        segments = [segment for rows in self.kept for segment in rows.segments]
        with places(lines):
            self.plan, self.columns = _Question(folder, self.kept, lines, to).answerable(segments)
        self.failures = Failures(unlogged=[UNMATCHED])  # not logged, since `ask` raises it
        self.inactive: dict[str, str] = {}
        self._dispatcher = Dispatcher(self.plan, routes, self.failures.report, self.inactive.update)
        self.evaluation = Evaluation(self.plan, self._dispatcher, self.failures.report)

    def history(self, start: int | None = None, until: float = inf) -> Iterator[tuple[RowEvent, Columns]]:
        """The run's log events, each with the reader of its rows: numbers from ``start`` on and below ``until``."""
        latest = replace(self.kept[-1], until=until)
        if start is None:
            return _events([*self.kept[:-1], latest], self.plan.grouping, self.columns)
        events = _events([latest], self.plan.grouping, self.columns[-len(latest.segments) :])
        return ((event, reader) for event, reader in events if event.facts.number >= start)

    def take(self, event: RowEvent, reader: Columns) -> None:
        """Evaluate the next log event."""
        facts, frames = event.facts, reader.ready(of_mode(event.frames, event.facts.mode))
        if facts.mode in self.plan.modes:
            self._dispatcher.inactive.came(facts.mode, facts.event, facts.count, _came(frames, self.plan))
            self.evaluation.add(facts, frames, came=bool(event.frames))
            if facts.back is not None:
                self.evaluation.rewind(facts.back)


def write(run: str | Path, late: Late) -> Path:
    """Write the metrics below the run's folder, and replace earlier answers to the same lines. Returns their folder.

    A tracker gets the metrics as a second run, at the run's steps. Raises ``OSError`` and ``SinkError``.
    """
    folder = Path(run)
    path = folder / LATE / late.names[0]
    for file, lines in asked(folder):
        if lines.keys() & late.lines.keys():
            shutil.rmtree(file.parent, ignore_errors=True)
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    info = info_of(folder, path, late.plan, late.lines)
    sink = ParquetSink()
    sink.open(info)
    sink.write_many(late.events)
    sink.close()
    for op in late.plan.sinks:
        _bring(op, info if traits(op.kind).in_folder else replace(info, output_dir=folder), late)
    when = now()
    facts = {"metrics": dict(late.lines), "fingerprint": late.plan.fingerprint, "asked": when, "declog": VERSION}
    (path / ASKED).write_text(yaml_text(facts), encoding="utf-8")
    places = {f"metrics.{name}": f"asked late, {when}" for name in late.lines}
    (path / PLAN).write_text(plan_text(late.plan, places, mask=str), encoding="utf-8")
    return path


def info_of(folder: Path, path: Path, plan: Plan, lines: Mapping[str, str]) -> RunInfo:
    """The ``RunInfo`` for a sink of metrics that are written below the run's folder."""
    run = rows_of(folder)["runs"][-1]
    return RunInfo(
        name=path.name, run_id=run["run_id"], output_dir=path, fingerprint=plan.fingerprint,
        world_size=run["world_size"], declog={"metrics": dict(lines)}, version=VERSION,
    )  # fmt: skip


def _bring(op: SinkOp, info: RunInfo, late: Late) -> None:
    """Write all values to a sink. A sink that can rewind first drops the values of an earlier answer."""
    options = dict(op.options)
    name, group = options.get("name") or info.run_id, options.get("group") or info.run_id
    beside = {"run": "new", "name": f"{name} {late.names[0]}", "group": group, "resume": "allow"}
    options |= {key: value for key, value in beside.items() if key in option_names(op.kind)}
    options.pop("id", None)  # the id of the run, which has logged later steps already
    sink = make_sink(op.kind, options)
    sink.open(replace(info, name=late.plan.name, project=late.plan.project))
    if isinstance(sink, Rewindable) and late.events:
        sink.rewind(ResumePoint(min(step for step, _ in late.events) - 1))
    try:
        for step, records in late.events:
            scalars, histograms = prefixed(records.scalars, op.prefix), prefixed(records.histograms, op.prefix)
            sink.write(step, replace(records, scalars=tuple(scalars), histograms=tuple(histograms)))
    finally:
        sink.close()


def asked(folder: Path) -> Iterator[tuple[Path, Mapping[str, str]]]:
    """The files of the answered questions to a run, each with the YAML of its metrics, by id."""
    for file in sorted((folder / LATE).glob(f"*/{ASKED}")):
        yield file, yaml.safe_load(file.read_text(encoding="utf-8"))["metrics"]


def rows_of(folder: Path) -> dict[str, Any]:
    """The facts about the rows in a run's folder. Raises ``UsageError`` DL607 if the run kept no rows."""
    try:
        facts: dict[str, Any] = json.loads((folder / FOLDER / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UsageError.of("DL607.rows", path=folder) from None
    return facts


@dataclass
class _Rows:
    """The rows of a run in a folder, or of its parent before the branch.

    ``segments`` are the run's processes, each with the number of its first log event. Log events with numbers inside a
    pair of ``cuts`` do not count: the run was resumed before them. ``first`` is the number of the first kept one.
    """

    folder: Path
    segments: list[dict[str, Any]]
    cuts: list[list[int]]
    until: float
    first: int


def _rows(folder: Path, run_id: str | None = None, until: float = inf) -> list[_Rows]:
    """The rows of a run, by default the folder's last run, preceded by the rows of the runs that it branches from."""
    facts = rows_of(folder)
    run_id = run_id or str(facts["runs"][-1]["run_id"])
    segments = [segment for segment in facts["runs"] if segment["run_id"] == run_id]
    rows = folder / FOLDER
    numbers = (event.facts.number for chunk in chunks(rows) for event in read_chunk(rows, chunk, None, ()))
    # the run made later cuts only after the branch began
    cuts = [[low, high] for low, high in facts["cuts"] if high <= until]
    rows_here = _Rows(rows, segments, cuts, until, next(numbers, 0))
    parent, after = (run_of(folder) or {}).get("parent"), segments[0]["after"]
    if parent is None or after is None or parent["run_id"] == run_id:
        return [rows_here]
    try:
        return [*_rows(Path(parent["output_dir"] or ""), parent["run_id"], after), rows_here]
    except UsageError:  # the parent's rows are missing: the metrics begin at the branch
        return [replace(rows_here, first=after)]


class _Question:
    """Some lines, composed with the run's config and the earlier answered lines, which formulas may read."""

    def __init__(self, folder: Path, kept: Sequence[_Rows], lines: Sequence[Line], to: Sequence[str]) -> None:
        run = run_of(folder) or {}
        self._run = segment = kept[-1].segments[-1]
        self._logged = _logged(folder / run.get("plan", PLAN)) | {*(self._run["config"].get("metrics") or {})}
        self._lines = [line.name for line in lines]
        self._together = [earlier.keys() for _, earlier in asked(folder) if earlier.keys() & {*self._lines}]
        earlier = [Line(*item) for rows in kept for _, texts in asked(rows.folder.parent) for item in texts.items()]
        overrides = list({line.name: line.override for line in (*earlier, *lines)}.values())
        overrides.append(f"sinks=[{','.join(to)}]")
        self._config = compose(str(folder / run.get("config", CONFIG)), overrides)
        declared = self._config.data.get("signals") or {}
        homes = {name: phase for phase, signals in declared.items() for name in signals or ()}
        self._signals: dict[str, dict[str, Any]] = {}
        for phase, columns in segment["columns"].items():
            for name, type in columns["kept"].items():
                self._signals.setdefault(homes.get(name, phase), {})[name] = {"axis": "completion", "type": type}
        self._imports = load_imports()

    def answerable(self, segments: Sequence[Mapping[str, Any]]) -> tuple[Plan, list[Columns]]:
        """The plan of the lines, and a reader of each process's rows. Raises ``ConfigError`` with all problems."""
        self._refuse(Problem.of("DL612.logged", ("metrics", name), name=name)
                     for name in self._lines if name in self._logged)  # fmt: skip
        self._refuse(
            Problem.of("DL612.together", ("metrics", name), name=name, missing=missing)
            for names in self._together if (missing := sorted(names - {*self._lines}))
            for name in self._lines if name in names
        )  # fmt: skip
        plan = self._compiled(self._lines)
        self._refuse(
            Problem.of("DL612.logged", ("metrics", op.id, "name"), name=op.id)
            for op in plan.outputs if op.id in self._lines
            for item in op.names if item.template in self._logged
        )  # fmt: skip
        if any([*missing_rows(plan, segment, "")] for segment in segments):  # find the lines that read the missing rows
            plans = {name: self._compiled([name]) for name in self._lines}
            self._refuse(
                problem
                for name, alone in plans.items()
                for segment in segments
                for problem in missing_rows(alone, segment, name)
            )
        return replace(plan, strict=False), [Columns.of(plan, segment) for segment in segments]

    def _refuse(self, problems: Iterable[Problem]) -> None:
        """Raise the problems, if there are any."""
        if different := list(dict.fromkeys(problems)):
            raise self._config.located(ConfigError(different))

    def _compiled(self, names: Sequence[str]) -> Plan:
        """The plan of some of the lines."""
        signals = self._config.data.get("signals") or {}
        data = {
            **self._config.data, "profiles": {PROFILE: {"only": names}},
            "profile": PROFILE, "tables": {}, "alerts": {}, "tests": {}, "schemas": {}, "filters": {},
            "signals": {phase: {**signals.get(phase, {}), **self._signals.get(phase, {})}
                        for phase in {**signals, **self._signals}},
        }  # fmt: skip

        def compile_here(data: Mapping[str, Any]) -> Plan:
            return compile(
                validate(data), constants=self._run["constants"], profiles=[PROFILE], config=self._config.shown,
                imports=self._imports,
            )  # fmt: skip

        try:
            return compiled(data, self._lines, compile_here)
        except ConfigError as error:
            raise self._config.located(error) from None


def _logged(plan: Path) -> set[str]:
    """The names of the metrics that the run logs itself."""
    try:
        outputs = json.loads(plan.read_text(encoding="utf-8")).get("outputs", [])
    except (OSError, ValueError):
        return set()
    return {str(output.get("name")) for output in outputs}


def missing_rows(plan: Plan, segment: Mapping[str, Any], name: str) -> Iterator[Problem]:
    """The problems of a metric whose plan reads columns that the rows of a process do not have.

    Ids of groups that are objects, such as a prompt's messages, are no problem: rows have each completion's group.
    """
    ids = () if plan.grouping is None else plan.grouping.of
    for phase in plan.phases.values():
        columns = _columns(segment, phase.name)
        stats = {fold["key"]: fold["stats"] for fold in columns["folds"].values()}
        for fold in phase.folds:
            if "hist" in fold.stats or not {*fold.stats} <= {*stats.get(fold_key(fold), ())}:
                what = "the count of tokens" if fold.expr is None else f"`{fold.expr}`"
                yield Problem.of("DL612.tokens", ("metrics", name), what=what)
        computed = [op for op in phase.locals if local_key(op) not in columns["locals"].values()]
        read = frozenset[str]().union(*(op.reads for op in computed))
        for signal in phase.signals:
            text = signal.dtype is DType.TEXT and signal.name not in phase.sent
            grouped = signal.dtype is DType.OBJECT and signal.name in ids
            if signal.recorded and not grouped and (not text or signal.name in read):
                reason = columns["signals"].get(
                    signal.name, NO_SIGNAL if phase.name in segment["columns"] else NO_PHASE
                )
                if reason not in (KEPT, NEVER):  # a signal that was never observed may still be observed
                    why, _, kept = reason.partition(": `log.keep")
                    edit = f"`log.keep{kept}, in the next run" if kept else "ask for what `rows/rows.json` says is kept"
                    yield Problem.of("DL612.signal", ("metrics", name), name=signal.name, reason=why, fix=edit)


def _columns(segment: Mapping[str, Any], phase: str) -> Mapping[str, Mapping[str, Any]]:
    """The columns of a phase in the rows of a process, as ``rows.json`` describes them."""
    columns: Mapping[str, Mapping[str, Any]] = segment["columns"].get(phase, {"signals": {}, "folds": {}, "locals": {}})
    return columns


@dataclass(frozen=True)
class Columns:
    """The reader of one process's rows for a plan: the columns to read, and their names in the plan."""

    read: frozenset[str]
    names: Mapping[str, str]  # from names in the rows to names in the plan
    computed: Plan  # the plan with only those local columns that must be computed from labels

    @classmethod
    def of(cls, plan: Plan, segment: Mapping[str, Any]) -> Columns:
        """The reader of rows that have all columns of a plan."""
        names: dict[str, str] = {GROUP_ID: GROUP_ID}
        phases = {}
        for phase in plan.phases.values():
            columns = _columns(segment, phase.name)
            folds = {fold_key(fold): fold for fold in phase.folds}
            for name, kept in columns["folds"].items():
                if (fold := folds.get(kept["key"])) is not None:
                    names |= {f"{name}.{stat}": fold.column(stat) for stat in fold.stats}
            local = {local_key(op): op for op in phase.locals}
            names |= {name: local[key].name for name, key in columns["locals"].items() if key in local}
            names |= {signal.name: signal.name for signal in phase.signals if signal.recorded}
            computed = tuple(op for op in phase.locals if local_key(op) not in columns["locals"].values())
            phases[phase.name] = replace(phase, locals=computed)
        read = frozenset(name + end for name in names for end in ("", KIND, FAILURE))
        return cls(read, names, replace(plan, phases=phases))

    def ready(self, frames: Mapping[str, Frame]) -> dict[str, Frame]:
        """The frames with the columns and names of the plan."""
        read = {name: frame for name, frame in frames.items() if name in self.computed.phases}
        if any(name != plain for plain, name in self.names.items()):
            read = {phase: self._renamed.of(frame) for phase, frame in read.items()}
        return with_locals(read, self.computed)

    @cached_property
    def _renamed(self) -> Projection:
        def new(layout: Layout, name: str, dtype: np.dtype[Any]) -> str:
            of = name.removesuffix(KIND).removesuffix(FAILURE)
            return self.names.get(of, of) + name[len(of) :]

        return Projection(new)


def _events(
    kept: Sequence[_Rows], grouping: Grouping | None, columns: Sequence[Columns]
) -> Iterator[tuple[RowEvent, Columns]]:
    """The log events of the run in order, each with the reader of its process's rows from ``columns``."""
    names = frozenset[str]().union(*(reader.read for reader in columns))
    readers = iter(columns)
    for rows in kept:
        starts = [(segment["from"], next(readers)) for segment in rows.segments]
        for chunk in chunks(rows.folder):
            for event in read_chunk(rows.folder, chunk, grouping, names):
                number = event.facts.number
                processes = [reader for start, reader in starts if start <= number]
                if processes and number < rows.until and not any(low <= number < high for low, high in rows.cuts):
                    yield event, processes[-1]


def _came(frames: Mapping[str, Frame], plan: Plan) -> dict[str, dict[str, Span]]:
    """The steps at which signals were observed, by phase and signal, as ranks report them during a run."""
    arrivals = {}
    for phase, frame in frames.items():
        if not len(frame.batches):
            continue
        columns = frame.layout.names
        folds = [fold for fold in plan.phases[phase].folds if not columns.isdisjoint(map(fold.column, fold.stats))]
        local_columns = [op for op in plan.phases[phase].locals if op.name in columns]
        signals = columns.union(*(op.reads for op in folds), *(op.reads for op in local_columns))
        span = Span(int(frame.batches.step.min()), int(frame.batches.step.max()))
        arrivals[phase] = dict.fromkeys((PHASE, *signals), span)
    return arrivals
