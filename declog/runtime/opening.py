"""From a plan to a recorder that executes it: ranks that agree, a folder, open sinks, a capture, a run to continue.

What every rank does when a run starts, in the same order on all of them. Knows the plan, and nothing of how it came to
be; ``declog.api`` calls it.
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
from functools import partial
from pathlib import Path
from typing import Any

from declog import sinks as sink_kinds
from declog.distribution import VERSION, namesake
from declog.engine.publish import CODE, Route
from declog.errors import PlanMismatchError, Problem, RuntimeFailure, SinkError, UsageError, error_text
from declog.language.functions import Functions
from declog.plans import fingerprint
from declog.plans.ops import Plan, SinkOp
from declog.records import RunInfo
from declog.runtime import checkpoint, manifest
from declog.runtime import comm as comms
from declog.runtime.actors import ActorComm, DriverComm
from declog.runtime.batches import Locate
from declog.runtime.capture import CaptureLog, free_folder
from declog.runtime.comm import Comm
from declog.runtime.recorder import Recorder
from declog.sinks import Sink, run_folder
from declog.sinks._shared import below
from declog.sinks.run_folder import CONFIG, PLAN, RUN_CONFIG, Choice, Origin, RunFolder
from declog.sinks.runner import SinkRunner

log = logging.getLogger("declog")
_runs = itertools.count()  # every rank starts its runs in the same order: the number names them


@dataclass(frozen=True)
class Start:
    """What a run is started with, beside its plan. ``application`` is the folder that Hydra made for it.

    ``modules`` registered what the plan uses; ``packages`` and ``overrides`` it was composed of; ``places`` says where
    each metric was declared, and ``mask`` takes out of a text what the environment gave.
    """

    sinks: Sequence[Sink]
    output_dir: str | Path | None
    base_dir: str | Path | None
    application: Path | None
    resume: Mapping[str, Any] | None
    wait_s: float
    start_s: float
    functions: Functions
    modules: Sequence[str]
    packages: Sequence[str]
    overrides: Sequence[str]
    locate: Locate
    places: Callable[[], Mapping[str, str]]
    mask: Callable[[str], str]
    commits: bool = False  # steps are committed, and no blocks
    run_config: Mapping[str, Any] = field(default_factory=dict)  # how the trainer is configured


def open_run(made: Plan, channel: Comm, given: Start) -> Recorder:
    """A recorder of the plan, its sinks open. What one rank cannot do raises on every rank."""
    start_s = given.start_s
    agree(channel, made, start_s)
    resume = _resumed(channel, made, given.resume, start_s)
    before = 0 if given.resume is None else given.resume.get("world_size", 0)  # ranks of the run that is continued
    origin = None
    if resume is not None and resume.get("run_id"):
        origin = Origin(resume["run_id"], resume["output_dir"], resume["step"])
    chosen = partial(_folder, made, given, origin)
    runners, routes, run, home, choice = _open(channel, made, given, chosen)
    folder = None if run is None else run.output_dir
    if channel.collects:
        if (version := namesake()) is not None:
            _warn_of_namesake(version)
        for warning in made.warnings:
            log.warning("%s", warning)
        for what, why in made.inactive:
            log.debug("%s is inactive: %s", what, why)
    try:
        capture = _capture(channel, made, folder, runners.values(), start_s)
        if home is not None and run is not None:
            modules = [*given.modules, *(type(sink).__module__ for sink in given.sinks)]
            facts = manifest.facts(made, run.run_id, run.world_size, modules, given.packages, given.overrides)
            texts = {CONFIG: manifest.yaml_text(run.config), PLAN: manifest.plan_text(made, given.places(), given.mask)}
            if given.run_config:
                texts[RUN_CONFIG] = manifest.yaml_text(run.run_config)
            home.begin(facts, texts)
        recorder = Recorder(
            made, channel, runners, routes, folder, run_id="" if run is None else run.run_id, functions=given.functions,
            wait_s=given.wait_s, locate=given.locate, clock=capture, hooks=[capture] if capture else [], home=home,
            run=run, choice=choice, commits=given.commits,
        )  # fmt: skip
    except BaseException:
        if home is not None:
            home.abandon()
        raise
    if resume is not None:
        try:
            recorder.load_state_dict(resume)
            others = range(channel.world_size, before)
            if run is not None and channel.collects and not (origin and choice.branches(origin, run.output_dir)):
                _rewind_others(channel, made, run, others, resume["step"], start_s)
        except BaseException:
            recorder.close(failed=True)
            raise
    return recorder


@functools.cache  # once in a process
def _warn_of_namesake(version: str) -> None:
    log.warning("%s", RuntimeFailure.of("DL610", version=version))


def connect(
    made: Plan, role: str, rank: int | None, world_size: int | None, process_group: Any, start_s: float
) -> Comm:
    """How this process reaches the others; ``role`` is rank, actor or driver."""
    if role == "rank":
        return comms.connect(rank, world_size, process_group, namespace=str(next(_runs)), deadline_s=start_s)
    if world_size is None or (role == "actor" and rank is None):
        needed = "`rank` and `world_size`" if role == "actor" else "`world_size`"
        raise UsageError.of("DL510.role", role=role, needed=needed)
    return DriverComm(world_size) if role == "driver" else ActorComm(rank or 0, world_size)


def _resumed(channel: Comm, made: Plan, state: Mapping[str, Any] | None, start_s: float) -> Mapping[str, Any] | None:
    """This rank's state, when those of all ranks go together; ranks that the run had not before begin where it is."""
    found: dict[str, Any] | None = None
    own: UsageError | None = None
    try:
        found = None if state is None else checkpoint.place(made, state, channel.rank)
    except UsageError as error:
        own = error
        found = {"error": str(error)}
    states = [json.loads(text) for text in channel.agree("resume", json.dumps(found), start_s)]
    alone = isinstance(channel, DriverComm | ActorComm)  # they hear nobody
    wrong = own or checkpoint.mismatch(states, channel.world_size, alone=alone)
    if wrong is not None:
        channel.close()
        raise wrong
    if state is None and states[0] is not None and not alone:
        return checkpoint.joined(made, channel, states[0])
    return state


def _rewind_others(channel: Comm, made: Plan, run: RunInfo, gone: Iterable[int], step: int, start_s: float) -> None:
    """Ranks that are no more left rows of steps that will be made again in files of their own."""
    local = {sink for table in made.tables for sink in table.local}
    for rank in gone:
        for op in made.sinks:
            if op.id in local and sink_kinds.traits(op.kind).per_rank:
                runner = SinkRunner(op.id, sink_kinds.make_sink(op.kind, dict(op.options)))
                runner.open(replace(run, rank=rank), start_s)
                runner.rewind(step, start_s)
                runner.close(start_s)


def _capture(
    channel: Comm, made: Plan, folder: Path | None, runners: Iterable[SinkRunner], start_s: float
) -> CaptureLog | None:
    """The capture of this rank, in the folder that rank 0 chooses; where ranks share no disk, each has its own."""
    op = made.capture
    named = None if op is None else op.folder
    base = folder and folder / "capture"
    if named is not None:
        base = Path(named) if folder is None else below(folder, named)
    offered = "" if base is None else str(free_folder(Path(base).absolute(), channel.rank))
    chosen = channel.agree("capture", offered, start_s)[0]
    replica = isinstance(channel, comms.StoreComm) and channel.replica
    if op is None or replica or isinstance(channel, DriverComm):  # its actors capture what they observe
        return None
    try:
        if not chosen:
            raise SinkError.of("DL601.capture_folder")
        return CaptureLog(made, op, Path(chosen), channel.rank, channel.world_size)
    except SinkError:
        channel.close()
        for runner in runners:
            runner.close(5.0)
        raise


def agree(channel: Comm, made: Plan, start_s: float) -> None:
    """Refuse on every rank alike where plans differ, or the versions of declog that made them."""
    mine = {"declog": VERSION, **made.canonical}
    if len(set(channel.agree("plan", fingerprint.digest(mine), start_s))) == 1:
        return
    plans = [json.loads(text) for text in channel.agree("parts", json.dumps(mine), start_s)]
    channel.close()  # rank 0 waits here until all have read what the others have
    raise PlanMismatchError([Problem.of("DL604.ranks", difference=fingerprint.difference(plans))])


def _folder(made: Plan, given: Start, origin: Origin | None) -> tuple[RunFolder, Choice, str]:
    """The run's folder, what the caller said of it, and the run's id.

    The folder is the one that is named, that of the run which goes on, or a new one: Hydra's own, or under outputs/.
    """
    named = given.output_dir or (made.output_dir if given.base_dir is None else None)
    own = given.base_dir or given.application
    folder = None if named is None else Path(named).absolute()
    base = Path(own) if own else Path("outputs") / made.name / time.strftime("%Y-%m-%d_%H-%M-%S")
    new = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    try:
        choice = run_folder.choice(folder, None if given.base_dir is None else Path(given.base_dir).absolute())
        target = None if origin is None else choice.target(origin)
        if target is not None:
            return run_folder.named(target[0], resume=True, append=made.append), choice, target[1]
        if folder is not None:
            home = run_folder.named(folder, resume=False, append=made.append)
        else:
            home = run_folder.fresh(base.absolute(), beside=own is None)
    except OSError as error:
        raise SinkError.of("DL601.run_folder", error=error) from error
    return home, choice, origin.run_id if origin is not None and choice.replaces(origin, home.path) else new


def _open(
    channel: Comm,
    made: Plan,
    given: Start,
    chosen: Callable[[], tuple[RunFolder, Choice, str]],
) -> tuple[dict[str, SinkRunner], list[Route], RunInfo | None, RunFolder | None, Choice]:
    """Open rank 0's folder and sinks, then those that are on every rank; where one refuses, every rank raises."""
    start_s = given.start_s
    runners: dict[str, SinkRunner] = {}
    routes: list[Route] = []
    run: RunInfo | None = None
    home: RunFolder | None = None  # rank 0 has it for all
    choice = Choice()
    each = {sink for table in made.tables for sink in table.local} if _gathers(channel) else set()

    def rank_0() -> None:
        nonlocal run, home, choice
        until = time.monotonic() + start_s  # all sinks together
        home, choice, run_id = chosen()
        run = _run_info(channel, made, home.path, run_id, given.run_config)
        for op in made.sinks:
            _open_sink(op, made, run, runners, routes, _left(until), gathers=bool(each))
        for place, sink in enumerate(given.sinks):
            runner = runners[f"{CODE}{place}"] = SinkRunner(f"{CODE}{place}", sink)
            runner.open(run, _left(until))
            routes.append(Route(CODE, min(made.requested), 1, "", sink.accepts, runner.submit))

    def others() -> None:
        nonlocal run, choice
        until = time.monotonic() + start_s
        folder, run_id, chosen = json.loads(opened)
        choice = Choice(**chosen)
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkError.of("DL601.run_folder", error=error) from error
        run = _run_info(channel, made, Path(folder), run_id, given.run_config)
        for op in made.sinks:
            if op.id in each:
                _open_sink(op, made, run, runners, routes, _left(until), gathers=True)

    replica = isinstance(channel, comms.StoreComm) and channel.replica  # another process writes its rows
    try:
        _all_or_none(channel, "open", rank_0 if channel.collects else None, runners, 2 * start_s)
        if each:
            place = "" if run is None else json.dumps([str(run.output_dir), run.run_id, asdict(choice)])
            opened = channel.agree("folder", place, start_s)[0]
            _all_or_none(channel, "each", None if channel.collects or replica else others, runners, 2 * start_s)
    except BaseException:
        if home is not None:
            home.abandon()
        raise
    return runners, routes, run, home, choice


def _left(until: float) -> float:
    return max(0.1, until - time.monotonic())


def _gathers(channel: Comm) -> bool:
    """Whether there are other ranks, each with a disk of its own or the same one. An actor only exports."""
    return channel.world_size > 1 and not isinstance(channel, DriverComm | ActorComm)


def _open_sink(
    op: SinkOp, made: Plan, run: RunInfo, runners: dict[str, SinkRunner], routes: list[Route], left_s: float, *,
    gathers: bool,
) -> None:  # fmt: skip
    sink = sink_kinds.make_sink(op.kind, dict(op.options))
    runner = runners[op.id] = SinkRunner(
        op.id, sink, overflow=op.overflow, max_bytes=op.queue_bytes, on_error=op.on_error
    )
    runner.open(run, left_s)
    local = frozenset(table.id for table in made.tables if gathers and op.id in table.local)
    traits = sink_kinds.traits(op.kind)
    most, last = traits.unfiltered_bytes, traits.shows_last
    routes.append(Route(op.id, op.profile, op.every, op.prefix, op.accepts, runner.submit, local, most, last))


def _all_or_none(
    channel: Comm, topic: str, action: Callable[[], None] | None, runners: Mapping[str, SinkRunner], wait_s: float
) -> None:
    """Do something on the ranks that have something to do; where it fails on one, every rank raises."""
    failure: BaseException | None = None
    try:
        if action is not None:
            action()
    except BaseException as error:  # noqa: BLE001  (raised below, when the other ranks know)
        failure = error
    answers = channel.agree(topic, "" if failure is None else error_text(failure), wait_s)
    failed = next((rank for rank, text in enumerate(answers) if text), None)
    if failed is not None:
        for runner in runners.values():
            runner.close(5.0)
        channel.close()
        raise failure or SinkError.of("DL601.rank", rank=failed, cause=answers[failed].removeprefix("[DL601] "))


def _run_info(channel: Comm, made: Plan, folder: Path, run_id: str, run_config: Mapping[str, Any]) -> RunInfo:
    return RunInfo(
        name=made.name,
        run_id=run_id,
        output_dir=folder,
        fingerprint=made.fingerprint,
        rank=channel.rank,
        world_size=channel.world_size,
        config=made.config,
        run_config={**manifest.plain(run_config), **made.run_config},
        plan=made.explain(),
        version=VERSION,
    )
