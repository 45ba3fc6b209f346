"""The benchmark of samples runs: declog and both ways to gather objects pick the same rows, which it asserts."""

from __future__ import annotations

from tests.forks import python


def test_every_way_picks_the_same_rows() -> None:
    """On few rows, in two real processes."""
    code = """
import sys
from tests.benchmarks.bench_samples import main
sys.argv = ["bench", "--rows", "300", "--rounds", "2"]
if __name__ == "__main__":
    main()
"""
    printed = python(code)
    assert "### 8 samples of 300" in printed
    assert [line.split("|")[2].strip() for line in printed.splitlines() if line.startswith("|")][2:] == [
        "columns",
        "rows",
    ] * 2
