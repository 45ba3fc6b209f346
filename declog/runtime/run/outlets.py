"""The outlets of a run in this process: its sinks, and on rank 0 the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from logging import getLogger
from pathlib import Path
from typing import Any

from declog.engine.publish import Route
from declog.errors import SinkError
from declog.language.secrets import without_secrets
from declog.language.tree import over, tree_of
from declog.plans.ops import Plan, SinkOp
from declog.records import Records, ResumePoint, RunInfo
from declog.runtime.run import manifest
from declog.sinks import Sink, make_sink, traits
from declog.sinks.run_folder import LATE, Choice, Origin, RunFolder
from declog.sinks.runner import SinkRunner

log = getLogger("declog")
# How the log message ends for a run that continues in the folder of its first part.
LOOP_GOES_ON = "; with declog.start(..., resume=state) it begins there"
TRAINER_GOES_ON = ", where the checkpoint is from; a trainer with another `output_dir` begins a branch"
ABANDON_S = 5.0  # the seconds that each sink may take to close if the run did not begin


@dataclass
class Outlets:
    """Sinks by id, the routes to them, the run, and its folder; ``choice`` is the caller's choice of the folder.

    ``run`` is None if this process writes nothing, ``folder`` is None on ranks other than 0. ``branch``: the run
    continues another run in its own folder, and the other run's rows stay as they are. ``asked`` is the folder that the
    caller named, or the base folder for a new one; every rank knows it.
    """

    runners: dict[str, SinkRunner] = field(default_factory=dict)
    routes: list[Route] = field(default_factory=list)
    run: RunInfo | None = None
    folder: RunFolder | None = None
    choice: Choice = field(default_factory=Choice)
    branch: bool = False
    asked: Path | None = None

    @property
    def output_dir(self) -> Path | None:
        """The run's folder of local files."""
        return None if self.run is None else self.run.output_dir

    @property
    def run_id(self) -> str:
        """The run's id; empty if this process does not know it."""
        return "" if self.run is None else self.run.run_id

    def open_sink(self, plan: Plan, op: SinkOp, seconds: float, *, gathers: bool) -> None:
        """Open a sink of the plan, and a route to it. Raises ``SinkError``."""
        assert self.run is not None
        sink = make_sink(op.kind, dict(op.options))
        runner = self.runners[op.id] = SinkRunner(op.id, sink, max_bytes=op.queue_bytes, on_error=op.on_error)
        runner.open(self.run, seconds)
        self.routes.append(route_to(plan, op, runner.submit, gathers=gathers))

    def abandon(self) -> None:
        """Undo the start of a run that did not begin: close its sinks, and release its folder."""
        for runner in self.runners.values():
            runner.close(ABANDON_S)
        if self.folder is not None:
            self.folder.abandon()

    # -- a run that goes on

    def go_on(self, state: Mapping[str, Any], close_s: float, *, trainer: bool) -> None:
        """Take the id and the folder of the run to continue, or note the run that this one is a branch of.

        Every rank decides alike, because ``choice`` has what rank 0 saw of the folders. ``trainer``: a trainer
        continues; it never passes its state to ``declog.start``. This decides only the words of the log message.
        """
        run, folder, origin = self.run, self.folder, origin_of(state)
        if run is None or origin is None:
            return
        self.branch = self.choice.branches(origin, run.output_dir)
        run_id = run.run_id if self.branch else origin.run_id
        path, run_id = self.choice.target(origin) or (run.output_dir, run_id)
        if folder is not None and path != run.output_dir:
            self.folder = folder.move_to(path, run_id)
            how = TRAINER_GOES_ON if trainer else LOOP_GOES_ON
            log.warning("the run %s goes on in %s%s", run_id, path, how)
        elif folder is not None and run_id != run.run_id:
            folder.take_run_id(run_id)
        if self.folder is not None and self.branch:
            self.folder.write_facts(parent=asdict(origin))
            log.info("the run %s is a branch of %s, behind its step %d", run_id, origin.run_id, origin.step)
        self.run = replace(run, output_dir=path, run_id=run_id)
        if self.run != run:
            for runner in self.runners.values():
                runner.move(self.run, close_s)
        if folder is not None and folder is not self.folder:
            folder.abandon()

    def rewind(self, point: ResumePoint, seconds: float) -> None:
        """Continue after a step: sinks drop the rows that will be logged again. A branch has no such rows."""
        if self.branch:
            return
        for runner in self.runners.values():
            runner.rewind(point, seconds)
        if self.folder is not None and self.run is not None:
            self.folder.write_facts(resumed_after=point.step)
        self._rewind_answers(point, seconds)

    def go_back(self, seconds: float, step: int, live: Collection[Path] = ()) -> None:
        """Let the sinks drop their rows of later steps, which the run makes again, after they took the rows so far.

        Answers to late questions drop these rows too, except those in the folders ``live``: live metrics rewind their
        own files.
        """
        for runner in self.runners.values():
            runner.go_back(ResumePoint(step))
        self._rewind_answers(ResumePoint(step), seconds, live)

    def _rewind_answers(self, point: ResumePoint, seconds: float, live: Collection[Path] = ()) -> None:
        """Drop later steps from the files of answers to late questions, except in the folders ``live``."""
        if self.folder is None or self.run is None:
            return
        for answer in (self.folder.path / LATE).glob("*/parquet"):
            if answer.parent in live:
                continue
            try:
                run = replace(self.run, output_dir=answer.parent)
                rewind_files(answer.name, make_sink(answer.name, {}), run, point, seconds)
            except SinkError as error:  # the run goes on: its own sinks could go back
                log.warning("%s has values behind step %d that the run has no more: %s", answer, point.step, error)

    def configure(self, values: Mapping[str, Any]) -> Callable[[], None] | None:
        """Add to the trainer's configuration; return a function that writes it into the run's folder.

        Returns None if this process has no folder.
        """
        run, folder = self.run, self.folder
        if run is None or folder is None:
            return None
        config = over(tree_of(run.config), tree_of(manifest.plain(without_secrets(values)))).plain
        self.run = replace(run, config=config)
        return lambda: folder.save_config(manifest.yaml_text(config))


def origin_of(state: Mapping[str, Any]) -> Origin | None:
    """The run and the folder that a state was saved in; None if the saving rank did not know them."""
    return Origin(state["run_id"], state["output_dir"], state["step"]) if state.get("run_id") else None


def rewind_files(id: str, sink: Sink, run: RunInfo, point: ResumePoint, seconds: float) -> None:
    """Let a sink that this process does not write to drop its rows of later steps. Raises ``SinkError``."""
    runner = SinkRunner(id, sink)
    runner.open(run, seconds)
    runner.rewind(point, seconds)
    runner.close(seconds)


def route_to(plan: Plan, op: SinkOp, submit: Callable[[int, Records], None], *, gathers: bool) -> Route:
    """Return the route to a sink of the plan; ``gathers``: other ranks also write tables of their own rows."""
    local = frozenset(table.id for table in plan.tables if gathers and op.id in table.local)
    kind = traits(op.kind)
    return Route(
        op.id, op.profile, op.every, op.prefix, op.accepts, submit, local, kind.unfiltered_bytes, kind.shows_last
    )
