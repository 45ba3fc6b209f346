"""A row that is compared with all rows of its batch: the edit of the answer has numpy's value, over ranks, too.

The class: quantiles, means, extremes, sums and counts of all completions, in conditions and in expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import declog
from declog.errors import ConfigError
from tests.language.runs import values

Array = NDArray[np.float64]
LENGTH: Array = np.random.default_rng(29).permutation(24).astype(np.float64) + 1
REWARD: Array = np.random.default_rng(30).random(24)
CASES: dict[str, tuple[dict[str, Any], Callable[[Array, Array], Any]]] = {
    "a quantile": ({"where": "length >= p75(length)"}, lambda r, n: r[n >= np.quantile(n, 0.75)].mean()),
    "a low quantile": ({"where": "length < p10(length)"}, lambda r, n: r[n < np.quantile(n, 0.1)].mean()),
    "at most a quantile": ({"where": "length <= p75(length)"}, lambda r, n: r[n <= np.quantile(n, 0.75)].mean()),
    "of a sum": ({"where": "length + 1 >= p75(length + 1)"}, lambda r, n: r[n >= np.quantile(n, 0.75)].mean()),
    "the median": ({"where": "length > median(length)"}, lambda r, n: r[n > np.median(n)].mean()),
    "a mean": ({"where": "length > mean(length)"}, lambda r, n: r[n > n.mean()].mean()),
    "a part of the most": ({"where": "length > 0.5 * max(length)"}, lambda r, n: r[n > 0.5 * n.max()].mean()),
    "beside the least": ({"expr": "reward - min(reward)"}, lambda r, n: (r - r.min()).mean()),
    "beside the mean": ({"expr": "square(reward - mean(reward))"}, lambda r, n: r.var()),
    "a share of the sum": ({"expr": "length / sum(length)", "reduce": "max"}, lambda r, n: n.max() / n.sum()),
    "of so many": ({"expr": "length / count(length)"}, lambda r, n: n.mean() / len(n)),
}  # fmt: skip


def profile(metric: dict[str, Any]) -> dict[str, Any]:
    signals = {"any": {"length": "completion", "reward": "completion"}}
    return {"axes": {"group": {"size": 4}}, "signals": signals, "metrics": {"a": {"expr": "reward", **metric}}}


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("most", [24, 20, 14])  # of the lengths: above it they are ties, as those of truncated rows
def test_the_edit_is_of_all_rows(case: str, ranks: int, most: int) -> None:
    length = np.minimum(LENGTH, most)
    written, expected = CASES[case]
    with pytest.raises(ConfigError) as refused:
        declog.plan(profile(written))
    (problem,) = refused.value.problems
    edit = re.search(r"`([^`]+)`", str(problem.fix))
    assert edit is not None and ("over=step" in edit[1] or "with over=step: of all rows" in str(problem.fix))
    text_of_all = edit[1].replace("over=completion", "over=step")
    key = str(problem.path[-1])
    text = written[key]
    start, end = problem.span or (0, len(text))
    entire = text_of_all if str(problem.fix).startswith("write") else f"{text[:start]}{text_of_all}{text[end:]}"
    rows = np.array_split(np.arange(24), 6)
    of_ranks = [np.concatenate(rows[rank::ranks]) for rank in range(ranks)]
    steps = [[[{"length": length[some], "reward": REWARD[some]}]] for some in of_ranks]
    want = expected(REWARD, length)
    logged = values(profile({**written, key: entire}), *steps)
    assert logged["a"] == pytest.approx(want) if np.isfinite(want) else "a" not in logged
