"""Warns once of a label that an alert, a formula or a condition reads and that its metric does not have."""

from __future__ import annotations

import logging

from declog.engine.cells import MetricValues
from declog.language.functions.text import BETWEEN, OTHER
from declog.plans.needs import sources
from declog.plans.ops import FormulaOp, Plan

log = logging.getLogger("declog")
MOST = 8  # how many labels a message names


class UnseenLabels:
    """The labels that expressions of a plan read, until their metrics come. A misspelt label would never fire."""

    def __init__(self, plan: Plan) -> None:
        self._waiting: dict[tuple[str, str], dict[str, None]] = {}  # by metric and label: the readers
        readers = [(f"the alert `{alert.id}`", alert.reads) for alert in plan.alerts]
        for op in plan.outputs:
            nodes = (op.expr if isinstance(op, FormulaOp) else None, op.when)
            readers.append((f"the metric `{op.id}`", tuple(node for node in nodes if node is not None)))
        for reader, expressions in readers:
            for key, label in sources(*expressions):
                if label is not None and not label.startswith(OTHER):
                    self._waiting.setdefault((key, label), {})[reader] = None

    def judge(self, results: MetricValues) -> None:
        """Warn of labels that are missing although their metrics have other labels in this log event."""
        for (key, label), readers in [*self._waiting.items()]:
            if key in results and (labels := results[key].labels):
                del self._waiting[key, label]
                if results[key].label_shown(label) is None:
                    shown = [name.replace(BETWEEN, "/") for name in labels]
                    log.warning(
                        "%s has no label `%s` yet, which is read by %s: it has %s", key, label, " and ".join(readers),
                        ", ".join([*shown[:MOST], *["..."] * (len(shown) > MOST)]),
                    )  # fmt: skip
