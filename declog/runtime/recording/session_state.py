"""Where a session is in its run, for a checkpoint, and a session that goes on from there. Imports the session."""

from __future__ import annotations

from collections.abc import Mapping

from declog.engine.frame import Frame
from declog.errors import UsageError
from declog.runtime.recording.session import Session
from declog.runtime.rows.scopes import Scope
from declog.runtime.run.checkpoint import RecorderState


def state(session: Session, scope: Scope | None, rank: int) -> tuple[RecorderState, dict[str, Frame]]:
    """Where this rank is, and the rows of its open windows up to the last step; between two steps only.

    Other tasks may be under way: what they record is not in it.
    """
    if session.step is None:
        session.cut_logged()
    if session.step is not None or scope is not None:
        raise UsageError.of("DL510.state_in_step")
    plan, train, events = session.plan, session.train, session.events
    frames: dict[str, Frame] = {}
    for mode, stream in session.streams.items():
        window = stream.window(*stream.ended(session.logged))
        rows = window.frames(plan.phases, rank, plan.grouping, session.failures.report)
        frames |= {f"window/{mode}/{phase}": frame for phase, frame in rows.items()}
    progress = RecorderState(
        session.last_step, dict(events.begun), session.intake.order, dict(events.counts), sorted(session.intake.seen),
        session.clock.elapsed(), train.last, train.watermark, train.seconds(None),
    )  # fmt: skip
    return progress, frames


def load(session: Session, progress: RecorderState, frames: Mapping[str, Frame]) -> None:
    """Continue where ``state`` was called."""
    train = session.train
    with session.lock:
        session.last_step, session.intake.order = progress.step, progress.order
        session.events.load(progress.sent, progress.counts)
        session.intake.seen.update(progress.seen)
        session.clock.resume(progress.elapsed)
        if progress.counts.get("train"):
            train.last = session.start = progress.step if progress.train is None else progress.train
            train.watermark, train.spent = progress.edge, progress.spent
        session.modes.update(session.plan.modes)  # other ranks may have rows of others
        for name, frame in frames.items():
            kind, mode, phase = (*name.split("/", 2), "", "")[:3]
            if kind == "window":
                session.streams[mode].earlier[phase] = frame
