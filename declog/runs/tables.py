"""The tables of a run by their names. An unknown name raises an error that tells where its rows are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from declog.errors import did_you_mean
from declog.errors.habits import no_key
from declog.runs.frame import Frame


class Tables(Mapping[str, Frame]):
    """The tables of a run by id, or by the name that trackers show, each read at its first use.

    ``frames`` has the frame of each table, or None for a table that ``read`` reads at its first use. ``instead_of``
    tells where the rows of an unknown name are. ``ids`` has the tables' ids by the names that trackers show.
    """

    def __init__(
        self, frames: Mapping[str, Frame | None], read: Callable[[str], Frame], instead_of: Callable[[str], str],
        ids: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._frames, self._read, self._instead_of, self._ids = dict(sorted(frames.items())), read, instead_of, ids

    def __getitem__(self, name: str) -> Frame:
        name = name if name in self._frames else self._ids.get(name, name)
        if name not in self._frames:
            near = did_you_mean(name, self, what="tables in files of this run")
            raise no_key(f"{name}; {self._instead_of(name) or near}")
        if (frame := self._frames[name]) is None:
            frame = self._frames[name] = self._read(name)
        return frame

    def __repr__(self) -> str:
        return f"<tables {', '.join(self)}>"

    def __iter__(self) -> Iterator[str]:
        return iter(self._frames)

    def __len__(self) -> int:
        return len(self._frames)
