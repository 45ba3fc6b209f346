"""Values per token that come as lists, of some tokens or none: what is not there is missing, and no other value."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from declog.errors import InputError
from tests.language.runs import record

MASK = {"axes": {"token": {"mask": "mask"}}}
SIGNALS: dict[str, Any] = {
    "mask": {"axis": "token", "type": "bool"}, "u": {"axis": "token"}, "n": {"axis": "token", "type": "int"},
    "b": {"axis": "token", "type": "bool"},
}  # fmt: skip
EXPRS = ("u", "n", "b")


def values(observed: list[dict[str, Any]], metrics: dict[str, Any], **axes: Any) -> dict[str, float]:
    """What one step logs of what some calls gave."""
    read = {name: spec for name, spec in SIGNALS.items() if any(name in each for each in observed)}
    profile = {**(axes or MASK), "signals": {"any": read}, "metrics": metrics}
    return dict(record(profile, [observed]).scalars.get(0, {}))


def test_tokens_that_a_list_does_not_have_are_missing() -> None:
    """Of floats, integers and bools alike, whatever the mask says of them."""
    lists = {"u": [[1.0, 2.0], [3.0]], "n": [[1, 2], [3]], "b": [[True, True], [True]]}
    metrics = {name: {"expr": name, "reduce": ["mean", "count"]} for name in EXPRS}
    expected = {"u/mean": 2.0, "u/count": 3, "n/mean": 2.0, "n/count": 3, "b/mean": 1.0, "b/count": 3}
    assert values([{"mask": torch.ones(2, 2, dtype=torch.bool), **lists}], metrics) == expected


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", ["n", "b", "mask"])
def test_lists_of_other_tokens_are_refused(name: str, apart: bool) -> None:
    """They would be padded to the same shape; in one call and in two of one batch."""
    one, other = {"u": [[1.0, 2.0], [3.0]]}, {name: [[1], [1, 0]]}
    extra = {} if name == "mask" else {"mask": torch.ones(2, 2, dtype=torch.bool)}
    with pytest.raises(InputError) as raised:
        values([{**extra, **one}, other] if apart else [{**extra, **one, **other}], {"m": f"mean(u * {name})"})
    assert "has 2 tokens in completion 0" in str(raised.value) or "has 1 tokens in completion 0" in str(raised.value)


def test_bools_of_several_lengths_are_refused_where_every_token_exists() -> None:
    """As numbers are: nothing says which of them are there."""
    with pytest.raises(InputError, match="different lengths"):
        values([{"b": [[True], [True, False]]}], {"m": "mean(b)"}, axes={"token": {"mask": "all"}})


def test_great_integers_of_several_lengths_are_refused() -> None:
    """What is missing among them makes floats of them, which do not have all bits."""
    with pytest.raises(InputError, match="53 bits"):
        values([{"n": [[2**60], [1, 2]], "mask": [[1], [1, 1]]}], {"m": "mean(n)"})


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("name", EXPRS)
def test_lists_of_no_tokens_have_the_type_that_is_declared(name: str, rows: int) -> None:
    """Of no completions, or of completions without tokens, beside others that have some."""
    metrics = {"m": {"expr": f"count({name}, over=token)", "reduce": ["sum", "count"]}, "size": "sum(size(token))"}
    nothing: dict[str, Any] = {name: [[]] * rows, "mask": [[]] * rows}
    assert values([nothing], metrics) == ({"m/sum": 0, "m/count": rows, "size": 0} if rows else {})
    some = {name: [[], [1]], "mask": [[], [True]]}
    assert values([some], metrics) == {"m/sum": 1, "m/count": 2, "size": 1}


@pytest.mark.parametrize("expr", ["size(token)", "sum(mask, over=token)"])
@pytest.mark.parametrize("width", [0, 3])
def test_a_mask_without_tokens_counts_none(expr: str, width: int) -> None:
    """Whether or not there is room for some: a length is 0, and not missing."""
    assert values([{"mask": torch.zeros(2, width, dtype=torch.bool)}], {"m": f"max({expr})"}) == {"m": 0}
