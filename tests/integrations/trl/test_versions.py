"""TRL 1.9, which Axolotl pins; the rest of this folder runs the newest one, and `make trl-matrix` all of them."""

from __future__ import annotations

from pathlib import Path

from tests.integrations.trl import versions


def test_an_older_trl(model: Path, tmp_path: Path) -> None:
    """Every key that it logs is there and equal, of cases for each way in which metrics are computed."""
    found = versions.counted("1.9.2", versions.FEW, model, tmp_path)
    assert (found.missing, found.differ, found.left_out) == ([], [], [])
    assert found.equal == found.compared > 700
