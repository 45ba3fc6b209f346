"""The fixes of DL504 are tried: pasted and run on the very values that were refused, each gives a column that fits."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import declog
from declog.errors import InputError
from declog.language.dtypes import Axis, DType
from declog.runtime.values.inputs import accept
from declog.testing import MemorySink

NAN = float("nan")
COLUMNS: dict[str, Any] = {
    "texts": ["a", "b"],
    "texts with None": ["a", None],
    "texts with NaN": ["a", NAN],
    "texts with both": ["a", None, NAN],
    "numbers as texts": ["1", "2"],
    "with None": ["1.5", None],
    "with NaN": ["1.5", NAN],
    "with an empty one": ["1", ""],
    "whole floats as texts": ["1.0", "2.0"],
    "truths as texts": ["True", "False"],
    "with a missing truth": ["True", None],
    "texts and numbers": ["a", 1, 2.5],
    "texts, numbers and None": ["a", 1, None, NAN],
    "bytes": [b"a", b"b"],
    "bytes with None": [b"a", None],
    "bytes of numbers": [b"1", b"2"],
    "bytes and texts": [b"a", "b"],
    "bytes, texts, NaN": [b"a", "b", NAN],
    "bytes and numbers": [b"a", 1],
    "bytes that are no text": [b"\xff", b"\xfe"],
    "floats": [1.0, 2.0],
    "floats with NaN": [1.0, NAN],
    "floats with None": [1.0, None],
    "halves": [0.5, 1.5],
    "an infinite float": [1.0, float("inf")],
    "ints": [1, 2],
    "ints with NaN": [1, NAN],
    "ints with both": [1, NAN, None],
    "bools": [True, False],
    "bools with NaN": [True, NAN],
    "complex": [1j, 2j],
    "decimals": [Decimal(1), Decimal("NaN")],
    "lists": [[1.0], [2.0]],
    "lists of texts": [["a"], ["b"]],
    "dicts": [{"a": 1}, {}],
    "tensors": [torch.ones(1), torch.zeros(1)],
    "rows": [torch.ones(2), torch.zeros(2)],
    "a tensor": torch.tensor([1.0, 2.0]),
    "a tensor with NaN": torch.tensor([1.0, NAN]),
    "a tensor of complex": torch.ones(2) * 1j,
    "an infinite tensor": torch.tensor([1.0, float("inf")]),
    "an array": np.array([1.0, 2.0]),
    "an array with NaN": np.array([1.0, NAN]),
    "an array of texts": np.array(["1", "2"]),
    "an array of bytes": np.array([b"a", b"b"]),
    "an array of objects": np.array(["a", None, NAN], object),
    "a series": pd.Series([1.0, 2.0]),
    "a series with NaN": pd.Series([1.0, NAN]),
    "a series of texts": pd.Series(["a", None]),
    "a series with NA": pd.Series([1, pd.NA], dtype="Int64"),
    "a list with NA": ["a", pd.NA],
    "numbers with NA": [1.5, pd.NA],
}
STEPS: dict[str, Any] = {
    "a text": "a",
    "a number as text": "1.5",
    "bytes": b"a",
    "bytes of a number": b"2",
    "NaN": NAN,
    "a float": 0.5,
    "complex": 1j,
    "a truth as text": "True",
    "an int": 3,
}
KEPT = torch.tensor([[True, False, False], [True, True, True]])
ADDED: dict[str, Any] = {  # masks that are added to logits: 0 keeps a token, and a very negative number drops it
    "an added mask": torch.where(KEPT, 0.0, float("-inf")),
    "an added mask of halves": torch.where(KEPT, 0.0, torch.finfo(torch.float16).min).half(),
    "an added mask of bfloat16": torch.where(KEPT, 0.0, torch.finfo(torch.bfloat16).min).bfloat16(),
    "an added array": np.where(KEPT.numpy(), 0.0, -1e9),
    "an added mask as lists": [[0.0, float("-inf"), float("-inf")], [0.0, 0.0, 0.0]],
    "an added mask as uneven lists": [[0.0], [0.0, -10000.0]],
    "an added mask as rows": [*torch.where(KEPT, 0.0, float("-inf"))],
}
TOKENS: dict[str, Any] = {
    "a tensor": torch.ones(2, 3),
    "a tensor with NaN": torch.tensor([[1.0, NAN], [1.0, 0.0]]),
    "an array": np.ones((2, 3)),
    "an array with NaN": np.array([[1.0, NAN], [0.0, 1.0]]),
    "lists": [[1.0, 0.0], [1.0, 1.0]],
    "uneven lists": [[1.0], [1.0, 0.0]],
    "lists with NaN": [[1.0, NAN], [1.0, 0.0]],
    "lists of halves": [[0.5, 1.5], [1.0, 2.0]],
    **ADDED,
}
TYPES = ("float", "int", "bool", "text")
CASES = [
    *(
        (axis, type_, kind)
        for axis, kinds in (("completion", COLUMNS), ("step", STEPS))
        for type_ in TYPES
        for kind in kinds
    ),
    *(("token", type_, kind) for type_ in ("float", "int", "bool") for kind in TOKENS),
]
VALUES = {"completion": COLUMNS, "step": STEPS, "token": TOKENS}
PLAN = declog.plan({"signals": {"any": {"value": "completion"}}, "metrics": {"value": "mean(value)"}})
AXES = {"completion": Axis.COMPLETION, "step": Axis.STEP, "token": Axis.TOKEN}


def is_missing(item: Any) -> bool:
    return item is None or item is pd.NA or (isinstance(item, float) and item != item) or item == ""


@pytest.mark.parametrize(("axis", "type_", "kind"), CASES)
def test_a_fix_fits_the_values_that_were_refused(axis: str, type_: str, kind: str) -> None:
    """Class: columns, numbers and tokens of any kind, for each type. What is missing stays missing."""
    value = VALUES[axis][kind]
    op = replace(PLAN.sources["value"][0], axis=AXES[axis], dtype=DType(type_))
    try:
        accept(op, "value", value)
        return
    except InputError as error:
        if error.code != "DL504":
            return
        fix = error.fix
    assert fix is not None, (axis, type_, kind)
    edits = [text for text in re.findall(r"`([^`]*)`", fix) if not text.startswith("signals:")]
    for edit in edits:
        converted = eval(edit.removeprefix("value="), {"torch": torch, "np": np, "pd": pd, "value": value})
        accept(op, "value", converted)
        if axis == "completion" and isinstance(converted, list) and len(converted) == len(list(value)):
            items = value.tolist() if isinstance(value, torch.Tensor) else list(value)
            assert [*map(is_missing, converted)] == [*map(is_missing, items)]
    for declared in re.findall(r"`(signals: [^`]*)`", fix):
        entry = yaml.safe_load(declared)["signals"]["any"]["value"]
        accept(replace(op, dtype=DType(entry["type"])), "value", value)


@pytest.mark.parametrize("kind", ADDED)
def test_a_mask_that_is_added_to_logits_is_compared_with_zero(kind: str) -> None:
    """Class: masks as attention takes them; `.bool()` would keep the tokens that they drop."""
    value = ADDED[kind]
    with pytest.raises(InputError) as caught:
        accept(replace(PLAN.sources["value"][0], axis=Axis.TOKEN, dtype=DType.BOOL), "value", value)
    (edit,) = re.findall(r"`value=([^`]*)`", str(caught.value.fix))
    kept = [[item == 0 for item in row] for row in value]
    assert [[bool(item) for item in row] for row in eval(edit, {"value": value})] == kept


SHOWN = [
    ("int", "ints with NaN", "[None if x != x else int(x) for x in value]"),
    ("int", "a tensor with NaN", "[None if x != x else int(x) for x in value.tolist()]"),
    ("int", "an array", "value.astype(int)"),
    ("int", "whole floats as texts", "[int(float(x)) for x in value]"),
    ("float", "with None", "[None if x is None else float(x) for x in value]"),
    ("bool", "truths as texts", "[x == 'True' for x in value]"),
    ("text", "texts with both", "[None if x is None or x != x else x for x in value]"),
    ("text", "texts, numbers and None", "[None if x is None or x != x else str(x) for x in value]"),
    ("text", "bytes with None", "[None if x is None else x.decode() for x in value]"),
    ("text", "bytes and texts", "[x.decode() if isinstance(x, bytes) else x for x in value]"),
    ("text", "a list with NA", "[None if pd.isna(x) else x for x in value]"),
]


@pytest.mark.parametrize(("type_", "kind", "edit"), SHOWN)
def test_the_edit_of_a_kind(type_: str, kind: str, edit: str) -> None:
    """It converts what is there, and no more."""
    with pytest.raises(InputError) as caught:
        accept(replace(PLAN.sources["value"][0], dtype=DType(type_)), "value", COLUMNS[kind])
    assert str(caught.value.fix).startswith(f"`{edit}`")


OF_FUNCTIONS = np.random.default_rng(0).random((8, 2))  # the rewards of two functions
MATRICES: dict[str, Any] = {
    "a tensor": torch.tensor(OF_FUNCTIONS),
    "a tensor of rows": torch.tensor(OF_FUNCTIONS.T.copy()),
    "an array": OF_FUNCTIONS,
    "a list of lists": OF_FUNCTIONS.tolist(),
    "a list of tensors": [*torch.tensor(OF_FUNCTIONS)],
    "a list by function": [*OF_FUNCTIONS.T],
    "a table": pd.DataFrame(OF_FUNCTIONS, columns=["fmt", "acc"]),
    "a table without names": pd.DataFrame(OF_FUNCTIONS),
    "many functions": np.tile(OF_FUNCTIONS, 3),
}


@pytest.mark.parametrize("other", [{}, {"reward": OF_FUNCTIONS[:, 0]}], ids=["alone", "with the rewards"])
@pytest.mark.parametrize("case", MATRICES)
def test_a_family_that_comes_as_a_matrix(case: str, other: dict[str, Any], tmp_path: Path) -> None:
    """The mapping that the edit makes has the members' own values, by the rows of the call or by the longer side."""
    rewards, sink = MATRICES[case], MemorySink()
    with declog.start("grpo", ["axes.group.size=4"], sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        with pytest.raises(InputError, match=r"`rewards` is a family: .* of several members") as error:
            log.observe(rewards=rewards, **other)
        assert error.value.fix is not None
        eval(f"log.observe({error.value.fix}, **other)", {"log": log, "rewards": rewards, "other": other})
    means = [value for name, value in sink.scalars[0].items() if name.startswith("rewards/") and "mean" in name]
    assert sorted(means) == pytest.approx(sorted([*OF_FUNCTIONS.mean(0)] * (len(means) // 2)))
    assert len(means) == (6 if case == "many functions" else 2)


def test_a_matrix_of_groups_is_one_member(tmp_path: Path) -> None:
    """With one value for each completion of the call it is [prompts, completions], under the name that came."""
    log = declog.start("grpo", ["axes.group.size=4"], sinks=[], output_dir=tmp_path)
    with log, log.step(0), pytest.raises(InputError, match=r"fix: `rewards\.flatten\(\)`"):
        log.observe(rewards=torch.rand(2, 4), reward=torch.rand(8))
