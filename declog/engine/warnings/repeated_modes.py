"""Warns once of a mode that logs values of the same names again in one step, of which a reader gets the last ones."""

from __future__ import annotations

import logging
from collections.abc import Collection, Set

from declog.errors.messages import listed
from declog.plans.modes import one_more
from declog.plans.ops import Plan
from declog.records import SELF

log = logging.getLogger("declog")


class RepeatedModes:
    """The names that each mode with a log event per block has logged in its latest step."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._modes = {mode for mode, op in plan.modes.items() if mode != "train" and not op.every}
        self._logged: dict[str, tuple[int, Set[str]]] = {}

    def judge(self, mode: str, step: int, logged: Collection[str]) -> None:
        """Note the names that a log event logged, and warn of those that the mode has in this step already."""
        if mode not in self._modes:
            return
        names = {name for name in logged if not name.startswith(SELF)}
        at, before = self._logged.get(mode, (step, frozenset()))
        before = before if at == step else frozenset()
        self._logged[mode] = step, before | names
        if again := sorted(before & names):
            self._modes = set()
            log.warning(
                "step %d has several log events of the mode `%s`: where the run is read, %s of the last one hide those"
                " before. Observe all batches in one block, `with log.mode(\"%s\"):` around them. Several data sets are"
                " one block with a text signal, `signals: {rollout: {dataset: completion text}}` and `by: dataset`, or"
                " a mode each: `modes: {%s}` is `log.mode(\"%s_math\")`, and a trainer's eval_dataset={\"math\": ...}",
                step, mode, listed(again, 2), mode, one_more(f"{mode}_math", self._plan.modes), mode,
            )  # fmt: skip

    def rewind(self) -> None:
        """Forget all names: steps may be logged anew."""
        self._logged.clear()
