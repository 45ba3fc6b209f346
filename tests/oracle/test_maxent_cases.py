"""The metrics of MaxEnt-GRPO, computed by profiles: each case passes, or its source is wrong and says why.

``maxent.json`` is data: what that system's own tests and code compute. A case that records a defect of its source
is asserted with the right value and the reason.
"""

from __future__ import annotations

import pytest

from tests.oracle import maxent_executed, maxent_repository
from tests.oracle.maxent import CASES, ELSEWHERE, MAXENT


@pytest.mark.parametrize("id", sorted(MAXENT))
def test_a_case_of_maxent(id: str) -> None:
    """The case passes through the public API, or stands in the table of what another part executes."""
    assert (id in CASES) != (id in ELSEWHERE)
    if id in CASES:
        CASES[id](MAXENT[id])


def test_no_case_is_forgotten() -> None:
    """Every case is asserted here or named with the part that it belongs to."""
    assert sorted({*CASES, *ELSEWHERE}) == sorted(MAXENT)


def test_both_sets_are_asserted() -> None:
    """Cases register where their module is imported."""
    assert {run.__module__ for run in CASES.values()} == {maxent_executed.__name__, maxent_repository.__name__}
