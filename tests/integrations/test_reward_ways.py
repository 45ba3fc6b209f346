"""The example of a reward function's columns: answers, accuracy and calibration in each way, worked by hand."""

from __future__ import annotations

import pytest

from tests import forks

# 0.9 and 0.6 are right, 0.8 and 0 wrong; then 0.7, 0.95 and 0.55 are right, and 0.99, of 0.95's bin, is wrong
ECE = ((0.1 + 0.4 + 0.8 + 0.0) / 4, (0.3 + 2 * abs(0.97 - 0.5) + 0.45) / 4)
ANSWERS = ("['4', '5', '6', None]", "['10', '11', '12', '13']")


@pytest.mark.parametrize(("way", "calibrated", "unparsed"), [("returned", 1, 0), ("logged", 1, 1), ("called", 0, 0)])
def test_a_way(way: str, calibrated: int, unparsed: int) -> None:
    """Run as a stranger runs it."""
    done = forks.run([forks.ROOT / "examples" / "trl_reward_functions.py", way])
    values = []
    for accuracy, ece, share in zip((0.5, 0.75), ECE, (0.25, 0.0), strict=True):
        expected = {"accuracy": accuracy}
        if calibrated:
            expected["ece"] = round(ece, 4)
        if unparsed:
            expected["unparsed"] = share
        values.append(expected)
    lines = [f"  step {step} {found}" for step, found in enumerate(values)]
    lines += [f"  step {step} extracted {found}" for step, found in enumerate(ANSWERS)]
    assert (done.returncode, done.stdout.splitlines()) == (0, [way, *lines]), done.stderr
