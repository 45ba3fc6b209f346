"""Sums over tokens as dot products, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import declog
from declog.plans.ops import FoldOp
from declog.runtime.tokens.layout import Padded
from declog.runtime.tokens.sums import LONGEST, fold_sums
from tests.benchmarks import tokens


def folds(signals: int) -> tuple[FoldOp, ...]:
    """The folds of the mean of some signals under one mask."""
    (phase,) = (one for one in declog.plan(tokens.profile(signals, tokens.MEANS, 1)).phases.values() if one.folds)
    return phase.folds


@pytest.mark.parametrize("length", [0, 1, 7, LONGEST, LONGEST + 1, 2 * LONGEST + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sums_are_those_of_the_tokens_that_exist(length: int, dtype: torch.dtype) -> None:
    """Of rows of any length, of values that lie in any order in memory."""
    generator = torch.Generator().manual_seed(length)
    mask = torch.rand(3, length, generator=generator) < 0.5
    values = torch.randn(length, 3, generator=generator, dtype=dtype).T
    found = fold_sums(folds(2), {"x0": values, "x1": values * 2, "mask": mask}, values.shape)
    assert found is not None
    columns = {key[0]: row for _, keys, sums in found for key, row in zip(keys, sums, strict=True)}
    right = [values[row][mask[row]].double().sum().item() for row in range(3)]
    totals = {name: row for name, row in columns.items() if name.endswith(".total")}
    assert len(totals) == 2
    for place, row in enumerate(totals.values()):
        np.testing.assert_allclose(row, np.multiply(right, place + 1), rtol=1e-4, atol=1e-3)
    counts = [row.tolist() for name, row in columns.items() if name.endswith(".n")]
    assert counts == [mask.sum(1).tolist()] * len(counts)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_seen_in_the_padding_too(broken: float) -> None:
    """Then the sums are left to who looks at each token."""
    mask = torch.tensor([[True, False], [True, True]])
    values = torch.tensor([[1.0, broken], [2.0, 3.0]])
    given = {"x0": values, "x1": torch.ones(2, 2), "mask": mask}
    assert fold_sums(folds(2), given, values.shape) is None


def test_sums_that_are_too_great_together_are_numbers() -> None:
    """Each is one, and they are all that is asked for, by whoever finds it out."""
    values = torch.tensor([[3e38, 0.0], [3e38, 1.0]])
    mask = torch.ones(2, 2, dtype=torch.bool)
    found = Padded(values.shape).fold(values, mask, ("n", "total"))
    assert {stat: column.tolist() for stat, column in found.items()} == {"n": [2, 2], "total": values.sum(1).tolist()}


def test_a_mask_that_never_came_leaves_the_fold_to_others() -> None:
    """Nothing says which tokens exist."""
    values = torch.ones(2, 3)
    assert fold_sums(folds(1), {"x0": values}, values.shape) is None
