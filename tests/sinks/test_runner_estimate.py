"""The estimate that a sink's queue is bounded by."""

from __future__ import annotations

from declog.records import Records, Scalar
from declog.sinks.runner import estimate_bytes
from tests.sinks.samples import table


def test_the_estimate_grows_with_text_and_rows() -> None:
    """The bound is on bytes: long texts, more rows and more scalars all weigh."""
    empty = estimate_bytes(Records())
    scalars = estimate_bytes(Records(scalars=(Scalar("a", 1.0, "a"),) * 10))
    few, many = (estimate_bytes(Records(tables=(table(rows=rows),))) for rows in (3, 300))
    long = table(rows=3)
    wide = {**long.data, "prompt": ["x" * 100_000] * 3}
    text = estimate_bytes(Records(tables=(type(long)(long.name, long.table, long.columns, wide, 3),)))
    assert empty < scalars
    assert few < many
    assert 300_000 < text < 400_000
