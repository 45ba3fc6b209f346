"""Stand-ins for a logger, a run or a writer that pass as the original. What they leave to it is kept with the run."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

import declog
from declog.errors.habits import meant, no_attribute

log = logging.getLogger("declog")


class Stands:
    """A stand-in for a logger: other attributes come from the logger, and `isinstance` sees the logger's class."""

    _wraps: Any = None

    @property  # type: ignore[misc]  # as mocks and proxies do it
    def __class__(self) -> type[Any]:
        return type(self if self._wraps is None else self._wraps)

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._wraps, name)
        except AttributeError as error:
            if not (fix := meant(name, (), "logger", "stand_in")):
                raise
            raise no_attribute(f"{error}{fix}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if self._wraps is None or name in vars(self):
            object.__setattr__(self, name, value)
        else:
            setattr(self._wraps, name, value)

    def __enter__(self) -> Any:
        return self

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def alone(options: Mapping[str, Any]) -> dict[str, int]:
    """Options with this process as the only rank, unless they give a rank."""
    return {} if {"rank", "world_size", "comm", "role"} & options.keys() else {"rank": 0, "world_size": 1}


class LeftToLogger:
    """What went to a logger alone, since declog keeps numbers only: each name is told of once, and kept with the run.

    Names with other digits are one, as those that hold a step. ``logger`` is what it is called.
    """

    def __init__(self, logger: str) -> None:
        self._logger = logger
        self._kinds = dict[str, str]()

    def tell(self, names: Iterable[str], recorder: declog.Recorder) -> None:
        """Say it of names that are new."""
        kinds = {re.sub(r"\d+", "0", name): name for name in names}
        untold = sorted(kinds[kind] for kind in kinds.keys() - self._kinds.keys())
        self._kinds.update(kinds)
        if untold:
            shown = ", ".join(f"`{name}`" for name in untold)
            log.warning("declog keeps numbers, in %s; %s went to %s alone", recorder.output_dir, shown, self._logger)
            recorder.note(left_to_logger={self._logger: sorted(self._kinds.values())})
