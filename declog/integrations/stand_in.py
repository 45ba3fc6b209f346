"""Stand-ins for a logger, a run or a writer that pass as the original. Standard library and errors."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

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


def tell_no_numbers(names: Iterable[str], told: set[str], folder: object, wraps: object) -> None:
    """Say once of each name that it went to the logger alone, since declog keeps numbers only; ``told`` gets them.

    Names with other digits are one, as those that hold a step.
    """
    kinds = {re.sub(r"\d+", "0", name): name for name in names}
    untold = sorted(kinds[kind] for kind in kinds.keys() - told)
    told.update(kinds)
    if untold:
        shown = ", ".join(f"`{name}`" for name in untold)
        log.warning("declog keeps numbers, in %s; %s went to %s alone", folder, shown, wraps)
