"""The folder of a sink that writes files. Only one sink at a time writes there."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import ClassVar

from declog.errors import SinkError
from declog.records import RunInfo
from declog.sinks import ALERT, HISTOGRAM, SCALAR, TABLE, BaseSink
from declog.sinks.locks import Held, Lock
from declog.sinks.run_folder import in_use

WRITER = ".writer"  # held by the sink that writes into a folder


class FolderSink(BaseSink):
    """A sink that writes files into ``folder``: into ``dir``, or without one into a folder named after the sink's id.

    A relative ``dir`` is below the run's folder. The sink takes records of all kinds, and holds the folder from
    ``open`` to ``close``: no file ever has two writers. Each rank other than 0 has its own folder. A subclass starts
    its files in ``begin`` and finishes them in ``end``.
    """

    in_folder = True
    accepts: ClassVar[frozenset[str]] = frozenset({SCALAR, HISTOGRAM, TABLE, ALERT})

    def __init__(self, dir: str | None) -> None:
        self._dir = dir
        self._lock: Lock | None = None
        self.folder = Path()
        self.run_id = ""

    def open(self, run: RunInfo) -> None:
        """Take the folder, and begin or continue the files in it.

        ``SinkError`` DL601 for a relative folder outside of the run's, DL609 for a folder in use.
        """
        base = below(run.output_dir, self._dir or run.sink or self.kind)
        self.folder, self.run_id = base / f"rank{run.rank}" if run.rank else base, run.run_id
        self.folder.mkdir(parents=True, exist_ok=True)
        inside = self.folder.resolve().is_relative_to(run.output_dir.resolve())
        file = self.folder / WRITER
        try:  # the run holds its folder alone: a lock of a dead process on another machine may be taken over
            self._lock = Lock(file, takeover=inside)
        except Held as held:
            raise in_use(self.folder, file, held, "give each sink a `dir` of its own") from None
        self.begin(run)

    def move(self, run: RunInfo) -> None:
        """Leave the folder, and continue the files of ``run``."""
        self.close()
        self.open(run)

    def close(self) -> None:
        """Finish the files, and let another sink write there; removes the folder if it is empty. Idempotent."""
        if self._lock is None:
            return
        try:
            self.end()
        finally:
            self._lock.release()
            self._lock = None
            with contextlib.suppress(OSError):
                self.folder.rmdir()

    def begin(self, run: RunInfo) -> None:
        """Begin or continue the files in ``folder``."""
        raise NotImplementedError

    def end(self) -> None:
        """Finish the files."""
        raise NotImplementedError


def below(output_dir: Path, folder: str) -> Path:
    """A folder of the run: a relative one lies below ``output_dir``, an absolute one stays as it is.

    ``SinkError`` DL601 for ``..``, for a link out of the folder, and for an impossible path.
    """
    if "\0" in folder:
        raise SinkError.of("DL601.nul")
    path = output_dir / folder
    leaves = ".." in Path(folder).parts or not path.resolve().is_relative_to(output_dir.resolve())
    if leaves and not Path(folder).is_absolute():
        raise SinkError.of("DL601.leaves", folder=folder, output_dir=output_dir)
    return path
