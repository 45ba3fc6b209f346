"""The language stays as small as it is: what the count says of it has ceilings, which a smaller language lowers."""

from __future__ import annotations

from tests.language import count

CEILINGS = {"top keys": 22, "keys": 154, "short forms": 25, "longest line": 204}


def test_the_language_grows_in_nothing_that_has_a_ceiling() -> None:
    """More keys, more short forms or a longer line of a preset are a decision: it is made here. Less lowers it."""
    assert count.counted() == CEILINGS


def test_every_key_counts_once_and_is_one_of_yaml() -> None:
    """A key is counted by the name that YAML has, not by Python's, and none twice."""
    keys = count.keys()
    assert len(keys) == len(set(keys))
    assert {"MetricSpec.expr", "SignalSpec.from", "TableSpec.schema", "LogSpec.metrics"} <= set(keys)
    assert not [key for key in keys if key.endswith("_")]
