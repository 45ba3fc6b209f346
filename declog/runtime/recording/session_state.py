"""Saves a session's position in its run for a checkpoint, and restores it."""

from __future__ import annotations

from collections.abc import Mapping

from declog.engine.frame import Frame
from declog.errors import UsageError
from declog.runtime.recording.session import Session
from declog.runtime.rows.scopes import Scope
from declog.runtime.run.checkpoint import RecorderState


def state(session: Session, scope: Scope | None, rank: int) -> tuple[RecorderState, dict[str, Frame]]:
    """Return this rank's position in the run, and the rows of its open windows up to the last step.

    Raises ``UsageError`` inside a step. Leaves out the rows that other tasks are still recording.
    """
    if session.step is None:
        session.cut_logged()
    if session.step is not None or scope is not None:
        raise UsageError.of("DL510.state_in_step")
    plan, train = session.plan, session.train
    frames: dict[str, Frame] = {}
    for mode, stream in session.streams.items():
        window = stream.window(*stream.ended(session.logged))
        rows = window.frames(plan, rank, session.failures.report)
        frames |= {f"window/{mode}/{phase}": frame for phase, frame in rows.items()}
    begun, counts = (
        {mode: count for mode, count in by_mode.items() if mode in session.modes}
        for by_mode in (session.begun_by_mode, session.counts)
    )
    progress = RecorderState(
        session.last_step, begun, session.intake.order, counts, sorted(session.intake.seen),
        session.clock.elapsed(), train.last, train.watermark, train.seconds(None),
    )  # fmt: skip
    return progress, frames


def load(
    session: Session,
    progress: RecorderState,
    frames: Mapping[str, Frame],
    ranks: Mapping[str, Mapping[str, int]] | None,
) -> None:
    """Continue from a position that ``state`` returned; ``ranks`` has all ranks' counts, from ``checkpoint.of_all``.

    ``ranks`` is None if only this rank's counts are known.
    """
    train = session.train
    with session.lock:
        session.last_step, session.intake.order = progress.step, progress.order
        of_all: Mapping[str, Mapping[str, int]] = {"sent": {}, "counts": {}, "open": {}} if ranks is None else ranks
        session.load_counts({**of_all["sent"], **progress.sent}, {**of_all["counts"], **progress.counts})
        session.intake.seen.update(progress.seen)
        session.clock.resume(progress.elapsed)
        if progress.train is not None or progress.counts.get("train"):
            train.last = session.start = progress.step if progress.train is None else progress.train
            train.watermark, train.spent = progress.edge, progress.spent
        session.modes.update(progress.sent, progress.counts)
        session.open_modes.update(of_all["open"])
        for name, frame in frames.items():
            kind, mode, phase = (*name.split("/", 2), "", "")[:3]
            if kind == "window":
                session.streams[mode].earlier[phase] = frame
                session.open_modes.update({mode} if len(frame.batches) else ())
