"""`index(token)`: the place of a token among those of its completion, padded and packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.errors import ConfigError
from tests.running import logged, profile

SIGNALS = {"u": "token", "m": "token bool", "n": "completion int"}
METRICS: dict[str, Any] = {
    "first_two": {"expr": "u", "where": "index(token) < 2", "reduce": "sum"}, "place": "max(index(token))",
    "by_place": "mean(u * index(token))", "last": "sum(u if index(token) == size(token) - 1 else 0)",
    "late": "mean(any(u > 20 and index(token) > 0, over=token))",
}  # fmt: skip
PADDED = {"u": [[1.0, 2.0, 4.0], [9.0, 9.0, 9.0], [8.0, 16.0, 32.0]], "m": [[0, 1, 1], [0, 0, 0], [1, 0, 1]],
          "n": [3] * 3}  # fmt: skip
PACKED = {
    "u": torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]), "m": torch.tensor([0, 1, 1, 1, 0, 1]).bool(), "n": [3, 0, 3],
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
def test_tokens_are_counted_under_their_mask(packed: bool, tmp_path: Path) -> None:
    """What the mask leaves out has no place, also before and between the others."""
    axes = {"token": {"mask": "m", **({"lengths": "n"} if packed else {})}}
    assert logged(profile(SIGNALS, METRICS, axes=axes), [PACKED if packed else PADDED], tmp_path) == pytest.approx(
        {"first_two": 46.0, "place": 1, "by_place": 9.0, "last": 36.0, "late": 0.5}
    )


def test_without_a_mask_nothing_says_which_tokens_there_are() -> None:
    """As for `size(token)`."""
    with pytest.raises(ConfigError) as caught:
        declog.plan(profile({"u": {"axis": "token", "mask": "all"}}, {"m": "max(index(token) * u)"}))
    assert [each.code for each in caught.value.problems] == ["DL306"]
