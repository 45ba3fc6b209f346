"""Kept columns: one value per completion that no metric of the run reads, kept for later questions.

They are declared signals of which no metric reads rows, and columns of `log.keep`. They never open, close or refuse a
batch: a column that does not fit the batch is left out, which is reported once. The training thread copies them, each
rank redacts their texts before it sends them, and rank 0 writes them beside the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine import groups
from declog.engine.blocks import texts_of
from declog.engine.frame import GROUP_ID, Frame, Projection
from declog.engine.layout import KEPT
from declog.language.dtypes import Axis, DType
from declog.language.patterns import redacted
from declog.plans.ops import Plan
from declog.sinks._shared import clean_text

PREFIX = KEPT  # the prefix of kept columns' names in frames
SIGNALS = PREFIX + "signals/"  # the prefix of kept columns that are signals
TEXT, FLOAT = "text", "float"
HOW_TO_KEEP = ": call `log.keep` in `with log.step(k):`, once beside the `log.observe` of each batch"
# the type of a signal, by the kind of numpy's dtype
_TYPES = {"b": "bool", "i": "int", "u": "int", "f": FLOAT}


def plain_name(name: str) -> str:
    """The name of a kept column as it was passed, without its prefix."""
    return name.removeprefix(SIGNALS).removeprefix(PREFIX)


def type_of(dtype: np.dtype[Any]) -> str:
    """The type that a signal with values of this dtype would be declared with."""
    return _TYPES.get(dtype.kind, TEXT)


def redacted_texts(plan: Plan, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return the texts of a column, redacted as the config redacts the signal of its name."""
    patterns = tuple(plan.redactions.get(plain_name(name), ()))
    texts = [None if item is None else clean_text(str(item)) for item in values]
    return texts_of([redacted(item, patterns) if item is not None and patterns else item for item in texts])


def with_kept_groups(frame: Frame) -> Frame:
    """Return the frame with group ids as a kept column, if it has ids that no metric reads.

    Texts of ids become digests, so the texts are not sent.
    """
    names = [] if frame.grouping is None else [name for of in frame.grouping.of if frame.has(name := SIGNALS + of)]
    ids = next((ids for name in names if (ids := frame.column(name, exact=True)) is not None), None)
    if ids is None:
        return frame
    grouped = frame.with_column(SIGNALS + GROUP_ID, Axis.COMPLETION, groups.digests(ids), DType.INT)
    return replace(grouped, texts={key: column for key, column in frame.texts.items() if key[0] not in names})


_WITHOUT_KEPT = Projection(lambda layout, name, dtype: None if name.startswith(PREFIX) else name)


def without_kept(frames: Mapping[str, Frame]) -> dict[str, Frame]:
    """Return the frames without kept columns, as metrics read them."""
    return {name: _WITHOUT_KEPT.of(frame) for name, frame in frames.items()}
