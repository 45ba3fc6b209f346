"""What may be observed: every container and dtype gives the same numbers, and what does not fit says why."""

from __future__ import annotations

import array
import math
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from declog.runtime.recording.recorder import Recorder
from tests.running import logged, profile, run

SIGNALS = {
    "reward": {"axis": "completion"}, "length": {"axis": "completion", "type": "int"},
    "done": {"axis": "completion", "type": "bool"}, "loss": {"axis": "step"},
}  # fmt: skip
METRICS = {
    "reward": {"reduce": ["mean", "min", "max", "count"]}, "length": {"reduce": ["sum", "count"]},
    "done": {"reduce": ["mean", "count"]}, "loss": {"reduce": ["mean", "count"]},
}  # fmt: skip
CONFIG = profile(SIGNALS, METRICS)
VALUES = [1.0, 0.0, 3.0, 4.0]
EXPECTED = {"reward/mean": 2.0, "reward/min": 0.0, "reward/max": 4.0, "reward/count": 4}
SOME = {"reward/mean": 2.0, "reward/min": 1.0, "reward/max": 3.0, "reward/count": 2}


def given(**values: Any) -> dict[str, Any]:
    """A batch with a reward, so that it is complete."""
    return {"reward": torch.tensor(VALUES)} | values


# ---- containers and dtypes


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
     torch.uint8],
    ids=str,
)  # fmt: skip
def test_tensors_of_any_real_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    """The numbers are those of the values, whatever holds them."""
    assert (
        logged(profile(SIGNALS, {"reward": METRICS["reward"]}), [{"reward": torch.tensor(VALUES).to(dtype)}], tmp_path)
        == EXPECTED
    )


def of_inference() -> torch.Tensor:
    """A tensor that has no version counter."""
    with torch.inference_mode():
        return torch.tensor(VALUES) * 1.0


CONTAINERS: dict[str, Callable[[], Any]] = {
    "requires grad": lambda: torch.tensor(VALUES, requires_grad=True),
    "result of autograd": lambda: torch.tensor(VALUES, requires_grad=True) * 1.0,
    "parameter": lambda: torch.nn.Parameter(torch.tensor(VALUES)),
    "inference": of_inference,
    "strided view": lambda: torch.tensor([VALUES, [9.0] * 4]).T[:, 0],
    "expanded": lambda: torch.stack([torch.tensor(VALUES)] * 2, 1)[:, 1],
    "numpy": lambda: np.array(VALUES),
    "numpy of float32": lambda: np.array(VALUES, np.float32),
    "numpy of float16": lambda: np.array(VALUES, np.float16),
    "numpy of big-endian": lambda: np.array(VALUES, ">f8"),
    "numpy of longdouble": lambda: np.array(VALUES, np.longdouble),
    "numpy of uint32": lambda: np.array(VALUES, np.uint32),
    "numpy backwards": lambda: np.array(VALUES[::-1])[::-1],
    "numpy read-only": lambda: np.frombuffer(np.array(VALUES).tobytes()),
    "list": lambda: list(VALUES),
    "tuple": lambda: tuple(VALUES),
    "list of ints": lambda: [1, 0, 3, 4],
    "pandas": lambda: pd.Series(VALUES),
    "pandas of int8": lambda: pd.Series(VALUES, dtype="int8", index=list("abcd")),
    "polars": lambda: pl.Series(VALUES),
    "arrow": lambda: pa.chunked_array([VALUES[:1], VALUES[1:]]),
    "array of Python": lambda: array.array("d", VALUES),
    "deque": lambda: deque(VALUES),
    "values of a dict": lambda: dict(enumerate(VALUES)).values(),
    "list of numpy scalars": lambda: [np.float32(1), np.float64(0), np.int32(3), np.int16(4)],
    "list of 0-d tensors and numbers": lambda: [torch.tensor(1.0), 0, torch.tensor(3), 4.0],
    "list of 0-d tensors": lambda: [torch.tensor(value, requires_grad=True) for value in VALUES],
}


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS.keys())
def test_values_in_any_container(make: Callable[[], Any], tmp_path: Path) -> None:
    """Tensors, arrays and lists of every kind give the same numbers."""
    assert logged(profile(SIGNALS, {"reward": METRICS["reward"]}), [{"reward": make()}], tmp_path) == EXPECTED


def test_observing_inside_inference_mode(tmp_path: Path) -> None:
    """A rollout under `inference_mode` may observe there, tokens and lists included."""
    signals = SIGNALS | {"kl": {"axis": "token"}, "mask": {"axis": "token", "type": "bool"}}
    config = profile(
        signals,
        {"reward": METRICS["reward"], "kl": "mean(kl)", "length": "sum(length)"},
        axes={"token": {"mask": "mask"}},
    )

    def body(log: Recorder) -> None:
        with log.step(0), torch.inference_mode():
            log.observe(
                reward=torch.tensor(VALUES) * 1,
                length=[1, 2, None, 4],
                kl=torch.ones(4, 3),
                mask=torch.ones(4, 3).bool(),
            )

    assert run(config, body, tmp_path).scalars == {0: EXPECTED | {"kl": 1.0, "length": 7}}


@pytest.mark.parametrize(
    "value",
    [2.5, np.float32(2.5), np.array(2.5), np.array([[2.5]]), torch.tensor(2.5), torch.tensor([2.5]),
     torch.tensor(2.5, requires_grad=True) * 1, torch.tensor(2.5, dtype=torch.bfloat16), Decimal("2.5"),
     Fraction(5, 2), pd.Series([2.5])],
    ids=["float", "numpy", "0-d array", "one element", "0-d tensor", "one-element tensor", "grad", "bf16",
         "decimal", "fraction", "pandas"],
)  # fmt: skip
def test_one_number_per_step(value: Any, tmp_path: Path) -> None:
    """A per-step value is a number, or anything that holds just one."""
    assert logged(CONFIG, [given(loss=value)], tmp_path) == EXPECTED | {"loss/mean": 2.5, "loss/count": 1}


MISSING_INT, MISSING_BOOL = {"length/sum": 7, "length/count": 3}, {"done/mean": 0.5, "done/count": 2}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("length", pd.Series([2, None, 5, 0], dtype="Int64"), MISSING_INT),
        ("length", pd.Series([2, None, 5, 0], dtype="int64[pyarrow]"), MISSING_INT),
        ("length", pa.array([2, None, 5, 0]), MISSING_INT),
        ("length", pa.chunked_array([[2, None], [5, 0]]), MISSING_INT),
        ("length", pl.Series([2, None, 5, 0]), MISSING_INT),
        ("done", pd.Series([True, None, False, None], dtype="boolean"), MISSING_BOOL),
        ("done", pa.array([True, None, False, None]), MISSING_BOOL),
        ("done", pl.Series([True, None, False, None]), MISSING_BOOL),
        ("reward", pd.Series([1.0, None, 3.0, None]), SOME),
        ("reward", pd.Series([1.0, None, 3.0, None], dtype="Float64"), SOME),
        ("reward", pa.array([1.0, None, 3.0, None]), SOME),
        ("reward", pl.Series([1.0, None, 3.0, None]), SOME),
        ("reward", [Decimal("1"), None, Fraction(3, 1), None], SOME),
        ("reward", pa.array([Decimal("1"), None, Decimal("3"), None]), SOME),
    ],
)
def test_what_is_missing_in_a_column(name: str, value: Any, expected: dict[str, float], tmp_path: Path) -> None:
    """Whatever stands for it there: integers with missing ones stay integers."""
    found = logged(CONFIG, [given(**{name: value})], tmp_path)
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    "value",
    [pd.Series(["a", None, "b"]), pd.Series(["a", math.nan, "b"], dtype=object),
     pd.Series(["a", None, "b"], dtype="string"), pd.Series(["a", None, "b"], dtype="category"),
     pa.array(["a", None, "b"]), pa.array(["a", None, "b"]).dictionary_encode(), pl.Series(["a", None, "b"])],
)  # fmt: skip
def test_a_missing_text_in_a_column(value: Any, tmp_path: Path) -> None:
    """It is None, whatever pandas calls it."""
    signals = {"x": {"axis": "completion"}, "env": {"axis": "completion", "type": "text"}}
    found = logged(profile(signals, {"x": {"by": "env"}}), [{"x": [1.0, 2.0, 3.0], "env": value}], tmp_path)
    assert found == {"x/a": 1.0, "x/b": 3.0}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("reward", [1.0, None, 3.0, None], SOME),
        ("reward", [1.0, math.nan, 3.0, math.nan], SOME),
        ("reward", [torch.tensor(1.0), None, 3.0, torch.tensor(math.nan)], SOME),
        ("length", [2, None, 5, 0], {"length/sum": 7, "length/count": 3}),
        ("done", [True, None, False, None], {"done/mean": 0.5, "done/count": 2}),
        ("done", [1, 0, 0, 0], {"done/mean": 0.25, "done/count": 4}),
        ("loss", None, {}),
        ("loss", math.nan, {"loss/mean": math.nan, "loss/count": 0, "nonfinite/loss": 1}),
        ("length", [None] * 4, {"length/sum": math.nan, "length/count": 0, "nonfinite/length": 4}),
    ],
)  # fmt: skip
def test_none_and_nan_are_missing(name: str, value: Any, expected: dict[str, float], tmp_path: Path) -> None:
    """Missing values are left out; where all are missing the metric is NaN, and where none came absent."""
    found = logged(profile(SIGNALS, {name: METRICS[name]}), [given(**{name: value})], tmp_path)
    assert found == pytest.approx(expected, nan_ok=True)
    assert {key: type(item) for key, item in found.items()} == {key: type(item) for key, item in expected.items()}


def test_a_list_with_none_joins_the_tensors_of_other_batches(tmp_path: Path) -> None:
    """One signal may come as a tensor in one batch and as a list with holes in the next."""
    batches = [given(length=torch.tensor([1, 2, 3, 4])), given(length=[10, None, None, 20]), given()]
    assert logged(profile(SIGNALS, {"length": METRICS["length"]}), batches, tmp_path) == {
        "length/sum": 40,
        "length/count": 6,
    }


def test_integers_keep_all_their_bits(tmp_path: Path) -> None:
    """An id beyond 2**53 comes out as it went in."""
    great = 2**62 + 1
    signals = {"row": {"axis": "completion", "type": "int"}}
    config = profile(signals, {}, schemas={"s": {"row": {"type": "int"}}}, tables={"t": {"schema": "s"}})

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(row=torch.tensor([great, 3]))
            log.observe(row=torch.zeros(0, dtype=torch.int64))
            log.observe(row=[great + 2, 4])

    [(_, table)] = run(config, body, tmp_path).tables("t")
    assert table.data == {"row": [great, 3, great + 2, 4]}


# ---- nothing there


def test_batches_without_rows(tmp_path: Path) -> None:
    """A batch of no completions adds nothing, with tokens, groups and text."""
    signals = SIGNALS | {
        "kl": {"axis": "token"}, "mask": {"axis": "token", "type": "bool"},
        "text": {"axis": "completion", "type": "text"},
    }  # fmt: skip
    metrics = {
        "reward": "count(reward)", "best": "mean(max(reward, over=completion))",
        "kl": {"expr": "kl", "reduce": ["mean", "min"]}, "words": "sum(len(text))", "length": "sum(length)",
    }  # fmt: skip
    config = profile(signals, metrics, axes={"group": {"size": 2}, "token": {"mask": "mask"}})
    none = {
        "reward": [],
        "length": torch.zeros(0, dtype=torch.int32),
        "kl": torch.zeros(0, 5),
        "mask": torch.zeros(0, 5).bool(),
        "text": [],
    }
    some = {
        "reward": [1.0, 5.0], "length": [3, 4], "kl": torch.ones(2, 2), "text": ["ab", "c"],
        "mask": torch.tensor([[True, False], [True, True]]),
    }  # fmt: skip
    expected = {"reward": 2, "best": 5.0, "kl/mean": 1.0, "kl/min": 1.0, "words": 3, "length": 7}
    assert logged(config, [none], tmp_path) == {}
    assert logged(config, [none, some, none], tmp_path) == expected


def test_masks_that_hide_everything(tmp_path: Path) -> None:
    """Completions without tokens, and batches of width 0, have no value: nothing is counted."""
    signals = {"kl": {"axis": "token"}, "mask": {"axis": "token", "type": "bool"}}
    metrics = {"kl": {"expr": "kl", "reduce": ["mean", "std", "min", "count"]}, "rows": "count(mean(kl, over=token))"}
    config = profile(signals, metrics, axes={"token": {"mask": "mask"}})
    hidden = {"kl": torch.ones(2, 3), "mask": torch.zeros(2, 3).bool()}
    narrow = {"kl": torch.ones(2, 0), "mask": torch.zeros(2, 0).bool()}
    seen = {"kl": torch.tensor([[2.0, 7.0], [4.0, 9.0]]), "mask": torch.tensor([[True, False], [True, False]])}
    found = logged(config, [hidden, narrow], tmp_path)
    assert found == {"rows": 0}
    assert logged(config, [hidden, seen, narrow], tmp_path) == {
        "kl/mean": 3.0, "kl/std": pytest.approx(math.sqrt(2.0), rel=1e-15), "kl/min": 2.0, "kl/count": 2, "rows": 2,
    }  # fmt: skip


@pytest.mark.parametrize("nothing", [[], (), np.array([]), torch.tensor([])], ids=lambda one: type(one).__name__)
def test_of_nothing_no_dtype_is_asked(nothing: Any, tmp_path: Path) -> None:
    """What holds no value is a float to numpy and torch: a rank without rows, a completion without tokens."""
    signals = {
        "length": SIGNALS["length"], "done": SIGNALS["done"], "ids": {"axis": "token", "type": "int"},
        "mask": {"axis": "token", "type": "bool"},
    }  # fmt: skip
    config = profile(
        signals, {name: f"sum({name})" for name in ("length", "done", "ids")}, axes={"token": {"mask": "mask"}}
    )
    rows = {"length": [2, 3], "done": [True, True], "ids": [nothing, [4, 5]], "mask": [nothing, [1, 0]]}
    none = {"length": nothing, "done": nothing, "ids": torch.zeros(0, 2), "mask": np.zeros((0, 2))}
    assert logged(config, [rows, none, rows, none], tmp_path) == {"length": 10, "done": 4, "ids": 8}


@pytest.mark.parametrize("second", [[False, None], [0, None], pd.array([False, None], dtype="boolean")], ids=str)
@pytest.mark.parametrize("first", [[2, 0], [True, False], torch.tensor([3, 0]), np.array([5, 0], np.uint8)], ids=str)
def test_a_bool_is_true_or_false_whatever_number_it_came_as(first: Any, second: Any, tmp_path: Path) -> None:
    """Also beside missing ones, in the same list or in another batch: a sum counts what is true."""
    reduce = ["sum", "mean", "max", "last"]
    config = profile(SIGNALS, {"done": {"reduce": reduce}, "as_number": "sum(1 if done else 0)"})
    both = [*first, *second] if isinstance(first, list) and isinstance(second, list) else None
    for batches in ([first, second], *([] if both is None else [[both]])):
        found = logged(config, [{"reward": [1.0] * len(one), "done": one} for one in batches], tmp_path)
        assert found == {"done/sum": 1, "done/mean": 1 / 3, "done/max": 1, "done/last": 0, "as_number": 1}


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_padding_is_never_read(junk: float, dtype: torch.dtype, tmp_path: Path) -> None:
    """Whatever stands in the padding, statistics are those of the tokens that exist."""
    signals = {"logprobs": {"axis": "token"}, "mask": {"axis": "token", "type": "bool"}}
    metrics = {"p": {"expr": "logprobs", "reduce": ["mean", "std", "min", "max", "count"]}, "e": "mean(exp(logprobs))"}
    mask = torch.tensor([[True, True, False], [True, False, False]])
    values = torch.where(mask, torch.tensor([[0.0, -1.0, 0.0], [-2.0, 0.0, 0.0]]), junk).to(dtype)
    there = values.double()[mask].numpy()
    found = logged(
        profile(signals, metrics, axes={"token": {"mask": "mask"}}), [{"logprobs": values, "mask": mask}], tmp_path
    )
    expected = {
        "p/mean": -1.0, "p/std": 1.0, "p/min": -2.0, "p/max": 0.0, "p/count": 3, "e": float(np.exp(there).mean()),
    }  # fmt: skip
    assert found == pytest.approx(expected, rel=1e-15 if dtype is torch.float64 else 1e-7)


def test_a_variance_far_from_zero_is_exact(tmp_path: Path) -> None:
    """1e8 + {0, 1, 2} has variance 1, over rows, tokens, micro-batches and steps."""
    signals = {"x": {"axis": "completion"}, "y": {"axis": "token", "mask": "all"}}
    config = profile(signals, {"x": "var(x)", "y": "var(y)"}, every=2)
    values = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64) + 1e8

    def body(log: Recorder) -> None:
        for step in range(2):
            with log.step(step):
                for part in (values[:1], values[1:]):
                    log.observe(x=part, y=part.unsqueeze(1).expand(-1, 2))

    exact = {"x": 2 * 2 / 5, "y": 4 * 2 / 11}  # two (four) of each of the three values
    assert run(config, body, tmp_path).scalars == {1: pytest.approx(exact, rel=1e-12)}
