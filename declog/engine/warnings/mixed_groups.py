"""Warns once of a group whose rows have different labels, where a metric by group takes the first: it mixes prompts.

This happens if an evaluation has another number of completions per prompt than ``axes.group.size``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np

from declog.engine.evaluator import View
from declog.engine.frame import Frame
from declog.engine.groups import id_signal
from declog.errors import RuntimeFailure
from declog.language.dtypes import Axis, DType
from declog.language.nodes import CARRIED, SIGNAL, Node, walk
from declog.language.segmented import present
from declog.plans.ops import Plan

log = logging.getLogger("declog")
LABELS = (DType.TEXT, DType.INT, DType.OBJECT)
LOOKS = 20  # labels are compared in the first so many log events of a mode


def _is_label(node: Node) -> bool:
    """Whether a node is an observed label of a row. To take the first of computed values may be intended."""
    return node.op == SIGNAL and node.type.axis is Axis.COMPLETION and node.type.dtype in LABELS


class MixedGroups:
    """The labels of metrics that are the first value of a group's rows, until a group has different values."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        joined = {op.name: op for op in plan.joins}

        def labels(node: Node, phase: str) -> Iterator[tuple[Node, str]]:
            """The parts of a label that are the first value of a group's rows, with the phase of these rows."""
            for part in walk(node):
                if part.op == CARRIED and (join := joined.get(part.leaf)) is not None:
                    yield from labels(join.expr, join.source)
                elif part.op == "first" and part.over is Axis.COMPLETION and _is_label(part.args[0]):
                    yield part, phase

        self._labels = {
            (op.id, part): phase for op in plan.metrics if op.by is not None for part, phase in labels(op.by, op.phase)
        }  # fmt: skip
        self._looks = Counter[str]()

    def judge(self, mode: str, frames: Mapping[str, Frame]) -> None:
        """Warn of a log event's groups whose rows have several labels."""
        self._looks[mode] += 1
        for (id, node), phase in [*self._labels.items()] if self._looks[mode] <= LOOKS else ():
            frame = frames.get(phase)
            with suppress(RuntimeFailure):  # the metric itself reports what cannot be computed
                if frame is not None and frame.grouping is not None and self._mixed(node, frame):
                    del self._labels[id, node]
                    size, name = frame.grouping.size, id_signal(frame.grouping)
                    why = f" of `axes.group.size`, {size} rows on end," if size and not frame.by_ids else ""
                    log.warning(
                        "%s: in mode `%s` the groups%s have rows of different `%s`, and the first one labels them all:"
                        " observe of which prompt each row is, %s=...", id, mode, why, node.args[0], name,
                    )  # fmt: skip

    def _mixed(self, node: Node, frame: Frame) -> bool:
        """Whether the rows of any group have different values; missing values do not count."""
        values = np.asarray(View(frame, self._plan.function).rows(node.args[0], Axis.COMPLETION))
        there = present(values)
        groups, values = frame.parts(Axis.COMPLETION, Axis.GROUP).index[there], values[there]
        _, firsts, index = np.unique(groups, return_index=True, return_inverse=True)
        return bool((values != values[firsts][index]).any())
