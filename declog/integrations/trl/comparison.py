"""Compares declog's values with the numbers of a trainer that declog is not tested with: a subclass, or another TRL."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from declog.integrations.logged import number_of
from declog.records import THEIRS, names_of, other_numbers

log = logging.getLogger("declog")


class MetricNames:
    """A set of a plan's names; names of which a part is known only in a run are matched by their pattern."""

    def __init__(self, names: Iterable[str]) -> None:
        self._any = bool(names := list(names))
        patterns = map(names_of, names)
        self._pattern = re.compile("|".join(pattern for pattern in patterns if pattern != "(.+)") or "(?!)")

    def __bool__(self) -> bool:
        return self._any

    def __contains__(self, name: str) -> bool:
        return self._pattern.fullmatch(name) is not None


class Comparison:
    """The metric ``names`` of which a trainer may compute another value than declog, and those of which it did.

    ``cut`` are the halves of TRL's averages that a log by training code has emptied in this window: the trainer's
    numbers then cover another window than declog's.
    """

    def __init__(self, trainer: Any, names: Iterable[str]) -> None:
        self.cut: set[str] = set()
        self._trainer = trainer
        self._names = MetricNames(names)
        self._differing: set[str] = set()  # with the prefix of their mode

    def __bool__(self) -> bool:
        return bool(self._names)

    def differs(self, name: str) -> bool:
        """Whether a value of this name, with the prefix of its mode, has differed: the trainer's own stays."""
        return name in self._differing

    def numbers(self, logs: Mapping[str, Any], computed: Mapping[str, str], half: str) -> dict[str, float]:
        """The trainer's numbers to compare, by names without prefix; ``computed`` has those names by those in ``logs``.

        ``half`` is the half of TRL's averages that the numbers are of.
        """
        if half in self.cut:
            return {}
        return {
            name: value for logged, name in computed.items()
            if name in self._names and (value := number_of(logs[logged])) is not None
        }  # fmt: skip

    def compare(self, numbers: Mapping[str, float], values: Mapping[str, float], prefix: str) -> None:
        """Warn once about each number that differs from declog's ``values``, which are by names with ``prefix``."""
        plain = {name.removeprefix(prefix): value for name, value in values.items()}
        different = {f"{prefix}{name}": number for name, number in other_numbers(numbers, plain).items()}
        new = {name: number for name, number in different.items() if not self.differs(name)}
        self._differing |= different.keys()
        if new and self._trainer.args.process_index == 0:
            differences = ", ".join(f"`{name}` ({values[name]:g}, the trainer {new[name]:g})" for name in new)
            log.warning(
                "%s has other numbers than declog, which stay in its logs, and are `%s` in declog's: %s",
                type(self._trainer).__name__, f"{THEIRS}NAME", differences,
            )  # fmt: skip
