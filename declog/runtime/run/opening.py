"""Opens a run: the ranks agree on the plan and get a folder, open sinks, a capture, and the state of a resumed run.

Every rank does this when a run starts, in the same order. ``declog.api`` calls this module, which knows the plan, and
nothing of how its config was composed.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from declog import sinks as sink_kinds
from declog.distribution import NAME, VERSION, namesake
from declog.engine.publish import CODE, Route
from declog.errors import PlanMismatchError, Problem, RuntimeFailure, SinkError, UsageError, error_text
from declog.plans import fingerprint
from declog.plans.ops import Plan, SinkOp
from declog.plans.words import explain
from declog.records import ResumePoint, RunInfo
from declog.runtime.ranks import store_comm as comms
from declog.runtime.ranks.actors import ActorComm, DriverComm
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.runtime.rows import context
from declog.runtime.rows.batches import Locate
from declog.runtime.run import checkpoint, manifest
from declog.runtime.run.capture import CaptureLog, free_folder
from declog.runtime.run.outlets import Outlets, origin_of, rewind_files
from declog.runtime.worker.background import MakeLive
from declog.sinks import Sink, run_folder
from declog.sinks._folder import below
from declog.sinks.run_folder import CONFIG, PLAN, RUN_CONFIG, Choice, Origin, RunFolder
from declog.sinks.runner import SinkRunner

log = logging.getLogger("declog")
_runs = itertools.count()  # numbers the runs of a process; every rank starts its runs in the same order


@dataclass(frozen=True)
class Start:
    """The options of a run's start, besides its plan.

    ``application`` is the folder that Hydra made for the run. ``modules`` registered parts of the plan. The plan's
    config was composed with presets of ``packages`` and with ``overrides``; ``arguments`` of a call compose it again,
    as text. ``places`` has the location where each metric was declared, and ``mask`` removes values of the environment
    from a text. ``notes`` are about lines of the config that are probably mistakes.
    """

    sinks: Sequence[Sink]
    output_dir: str | Path | None
    base_dir: str | Path | None
    application: Path | None
    resume: Mapping[str, Any] | None
    wait_s: float
    start_s: float
    modules: Sequence[str]
    packages: Sequence[str]
    overrides: Sequence[str]
    arguments: Sequence[str]
    locate: Locate
    places: Callable[[], Mapping[str, str]]
    mask: Callable[[str], str]
    notes: Sequence[str] = ()
    commits: bool = False  # the run has `steps="commit"`: commits end steps, not blocks
    live: MakeLive | None = None  # makes the metrics that are added during the run
    run_config: Mapping[str, Any] = field(default_factory=dict)  # the trainer's configuration


def open_run(plan: Plan, channel: Comm, options: Start) -> Recorder:
    """Open a run: return a recorder of the plan with open sinks. A failure on one rank raises on every rank."""
    start_s = options.start_s
    agree(channel, plan, start_s)
    resume = _resumed(channel, plan, options.resume, start_s)
    # the number of ranks of the resumed run
    before = 0 if options.resume is None else options.resume.get("world_size", 0)
    origin = None if resume is None else origin_of(resume)
    named, parent = _asked(plan, options)
    wanted = [named or (parent if resume is not None else None)]
    if origin is not None and origin.output_dir is not None and channel.world_size == 1:
        wanted.append(Path(origin.output_dir))
    context.close_ended(channel.rank, filter(None, wanted))
    outlets = _open(channel, plan, options, origin)
    if not isinstance(channel, ActorComm):  # an actor has no folder: its driver has
        outlets.asked = named or parent
    if channel.collects:
        if (version := namesake()) is not None:
            _warn_of_namesake(version)
        for warning in plan.warnings:
            log.warning("%s", warning)
        for note in options.notes:
            log.warning("note: %s", note)
        for what, why in plan.inactive:
            log.debug("%s is inactive: %s", what, why)
    try:
        capture = _capture(channel, plan, outlets, start_s)
        if outlets.folder is not None and (run := outlets.run) is not None:
            modules = [*options.modules, *(type(sink).__module__ for sink in options.sinks)]
            facts = manifest.facts(plan, run.run_id, run.world_size, modules, options.packages, options.overrides)
            texts = {
                CONFIG: manifest.yaml_text(run.declog),
                PLAN: manifest.plan_text(plan, options.places(), options.mask),
            }
            if options.run_config:
                texts[RUN_CONFIG] = manifest.yaml_text(run.config)
            outlets.folder.begin(facts, texts)
        recorder = Recorder(
            plan, channel, outlets, wait_s=options.wait_s, locate=options.locate,
            capture=capture, commits=options.commits, live=options.live, arguments=options.arguments,
        )  # fmt: skip
    except BaseException:
        outlets.abandon()
        raise
    if resume is not None:
        try:
            recorder.load_state_dict(resume)
            missing_ranks = range(channel.world_size, before)
            if outlets.run is not None and channel.collects and not outlets.branch:
                _rewind_others(plan, outlets.run, missing_ranks, resume["step"], start_s)
        except BaseException:
            recorder.close(failed=True)
            raise
    return recorder


@functools.cache  # once per process
def _warn_of_namesake(version: str) -> None:
    log.warning("%s", RuntimeFailure.of("DL610.two_versions", version=version, package=NAME))


def connect(
    plan: Plan, role: str, rank: int | None, world_size: int | None, process_group: Any, start_s: float
) -> Comm:
    """Connect this process with the others; ``role`` is rank, actor or driver."""
    if role == "rank":
        return comms.connect(rank, world_size, process_group, namespace=str(next(_runs)), deadline_s=start_s)
    if world_size is None or (role == "actor" and rank is None):
        needed = "`rank` and `world_size`" if role == "actor" else "`world_size`"
        raise UsageError.of("DL510.role", role=role, needed=needed)
    return DriverComm(world_size) if role == "driver" else ActorComm(rank or 0, world_size)


def _resumed(channel: Comm, plan: Plan, state: Mapping[str, Any] | None, start_s: float) -> Mapping[str, Any] | None:
    """Return this rank's state to resume from; None if no run is resumed. A rank that is new gets rank 0's position.

    Raises ``UsageError`` if the states of all ranks do not fit together.
    """
    saved: dict[str, Any] | None = None
    refusal: UsageError | None = None
    try:
        saved = None if state is None else checkpoint.position(plan, state, channel.rank)
    except UsageError as error:
        refusal = error
        saved = {"error": str(error)}
    states = [json.loads(text) for text in channel.agree("resume", json.dumps(saved), start_s)]
    wrong = refusal or checkpoint.mismatch(states, channel.world_size, alone=channel.by_exports)
    if wrong is not None:
        channel.close()
        raise wrong
    if state is None and states[0] is not None and not channel.by_exports:
        state = checkpoint.joined(plan, channel, states[0])
    return state if state is None or channel.by_exports else {**state, "ranks": checkpoint.of_all(states)}


def _rewind_others(plan: Plan, run: RunInfo, ranks: Iterable[int], step: int, start_s: float) -> None:
    """Remove rows of later steps from the files of ranks that the resumed run no longer has."""
    for op in _local_sinks(plan):
        for rank in ranks if sink_kinds.traits(op.kind).per_rank else ():
            sink = sink_kinds.make_sink(op.kind, dict(op.options))
            rewind_files(op.id, sink, replace(run, rank=rank), ResumePoint(step), start_s)


def _local_sinks(plan: Plan) -> list[SinkOp]:
    """The sinks to which each rank writes its own rows of a table."""
    return [op for op in plan.sinks if any(op.id in table.local for table in plan.tables)]


def _capture(channel: Comm, plan: Plan, outlets: Outlets, start_s: float) -> CaptureLog | None:
    """Return this rank's capture, if it makes one, in the folder that rank 0 chooses.

    On disks that ranks do not share, each rank has its own folder of this path.
    """
    op, folder = plan.capture, outlets.output_dir
    named = None if op is None else op.folder
    base = folder and folder / "capture"
    if named is not None:
        base = Path(named) if folder is None else below(folder, named)
    offered = "" if base is None else str(free_folder(Path(base).absolute(), channel.rank))
    chosen = channel.agree("capture", offered, start_s)[0]
    if op is None or channel.replica or isinstance(channel, DriverComm):  # a driver's actors capture what they observe
        return None
    try:
        if not chosen:
            raise SinkError.of("DL601.capture_folder")
        return CaptureLog(plan, op, Path(chosen), channel.rank, channel.world_size)
    except SinkError:
        channel.close()
        raise


def agree(channel: Comm, plan: Plan, start_s: float) -> None:
    """Raise ``PlanMismatchError`` on every rank if the ranks' plans or versions of declog differ."""
    facts = {"declog": VERSION, **plan.canonical}
    if len(set(channel.agree("plan", fingerprint.digest(facts), start_s))) == 1:
        return
    plans = [json.loads(text) for text in channel.agree("parts", json.dumps(facts), start_s)]
    channel.close()  # rank 0 waits here until all ranks have read the others' answers
    raise PlanMismatchError([Problem.of("DL604.ranks", difference=fingerprint.difference(plans))])


def _asked(plan: Plan, options: Start) -> tuple[Path | None, Path | None]:
    """The folder that the caller or the config named, and the base folder for a new one; None: not named."""
    path = options.output_dir or (plan.output_dir if options.base_dir is None else None)
    parent = options.base_dir or options.application
    return None if path is None else Path(path).absolute(), None if parent is None else Path(parent).absolute()


def _folder(plan: Plan, options: Start, origin: Origin | None) -> tuple[RunFolder, Choice, str]:
    """Return the run's folder, the caller's choice of the folder, and the run's id.

    The folder is the named one, the folder of the run to continue, or a new one: by ``base_dir``, else by Hydra's
    folder, else under ``outputs/``.
    """
    folder, parent = _asked(plan, options)
    base = parent or Path("outputs") / plan.project / time.strftime("%Y-%m-%d_%H-%M-%S")
    new = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    try:
        choice = run_folder.choice(folder, None if options.base_dir is None else Path(options.base_dir).absolute())
        target = None if origin is None else choice.target(origin)
        if target is not None:
            return run_folder.open_named(target[0], resume=True, append=plan.append), choice, target[1]
        if folder is not None:
            home = run_folder.open_named(folder, resume=False, append=plan.append)
        else:
            home = run_folder.make_new(base.absolute(), inside=parent is not None)
    except OSError as error:
        raise SinkError.of("DL601.run_folder", error=error) from error
    return home, choice, origin.run_id if origin is not None and choice.replaces(origin, home.path) else new


def _open(channel: Comm, plan: Plan, options: Start, origin: Origin | None) -> Outlets:
    """Open rank 0's folder and sinks, then the sinks of the other ranks; a failure on one rank raises on every rank."""
    start_s = options.start_s
    outlets = Outlets()
    # in a run of one process or of actors, all rows are in the process that has the sinks
    per_rank = _local_sinks(plan) if channel.world_size > 1 and not channel.by_exports else []

    def begin(folder: Path, run_id: str, ops: Sequence[SinkOp], sinks: Sequence[Sink] = ()) -> None:
        run = outlets.run = RunInfo(
            name=plan.name, project=plan.project, run_id=run_id, output_dir=folder, fingerprint=plan.fingerprint,
            rank=channel.rank, world_size=channel.world_size, declog=plan.config,
            config={**manifest.plain(options.run_config), **plan.run_config}, plan=explain(plan), version=VERSION,
            user_metrics=plan.user_metrics,
        )  # fmt: skip
        until = time.monotonic() + start_s  # for all sinks together
        for op in ops:
            outlets.open_sink(plan, op, _seconds(until), gathers=bool(per_rank))
        for index, sink in enumerate(sinks):
            runner = outlets.runners[f"{CODE}{index}"] = SinkRunner(f"{CODE}{index}", sink)
            runner.open(run, _seconds(until))
            outlets.routes.append(Route(CODE, min(plan.requested), 1, "", sink.accepts, runner.submit))

    def rank_0() -> None:
        outlets.folder, outlets.choice, run_id = _folder(plan, options, origin)
        begin(outlets.folder.path, run_id, plan.sinks, options.sinks)

    def other_ranks() -> None:
        folder, run_id, choice = json.loads(opened)
        outlets.choice = Choice(**choice)
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkError.of("DL601.run_folder", error=error) from error
        begin(Path(folder), run_id, per_rank)

    try:
        _all_or_none(channel, "open", rank_0 if channel.collects else None, 2 * start_s)
        if per_rank:
            run = outlets.run
            text = "" if run is None else json.dumps([str(run.output_dir), run.run_id, asdict(outlets.choice)])
            opened = channel.agree("folder", text, start_s)[0]
            # another process writes the rows of a replica
            _all_or_none(channel, "each", None if channel.collects or channel.replica else other_ranks, 2 * start_s)
    except BaseException:
        outlets.abandon()
        raise
    return outlets


def _seconds(until: float) -> float:
    return max(0.1, until - time.monotonic())


def _all_or_none(channel: Comm, topic: str, action: Callable[[], None] | None, wait_s: float) -> None:
    """Run ``action`` on the ranks that have one; a failure on one rank raises on every rank."""
    failure: BaseException | None = None
    try:
        if action is not None:
            action()
    except BaseException as error:  # noqa: BLE001  (raised below, when the other ranks know)
        failure = error
    answers = channel.agree(topic, "" if failure is None else error_text(failure), wait_s)
    failed = next((rank for rank, text in enumerate(answers) if text), None)
    if failed is not None:
        channel.close()
        raise failure or SinkError.of("DL601.rank", rank=failed, cause=answers[failed].removeprefix("[DL601] "))
