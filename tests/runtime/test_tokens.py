"""Per-token signals: padded, packed and ragged layouts, folds and sketches, against numpy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import declog
from declog.language import quantile_sketch as sketch
from declog.runtime.tokens.layout import Packed, Padded
from declog.testing import MemorySink
from tests.conftest import examples

STATS = ("n", "total", "m2", "min", "max", "first", "last")
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]


def expected(rows: list[np.ndarray[Any, Any]]) -> dict[str, list[float]]:
    """The statistics of each completion's existing tokens, in float64."""
    found: dict[str, list[float]] = {stat: [] for stat in STATS}
    for row in rows:
        known = row[~np.isnan(row)]
        found["n"].append(len(known))
        found["total"].append(known.sum())
        with np.errstate(invalid="ignore"):
            found["m2"].append(((known - known.mean()) ** 2).sum() if len(known) else 0.0)
        found["min"].append(known.min() if len(known) else math.inf)
        found["max"].append(known.max() if len(known) else -math.inf)
        found["first"].append(known[0] if len(known) else math.nan)
        found["last"].append(known[-1] if len(known) else math.nan)
    return found


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and a mask of one shape; the padding, and now and then a token, holds what is not finite."""
    rows, tokens = draw(st.integers(1, 6)), draw(st.integers(0, 9))
    seed = draw(st.integers(0, 2**20))
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, tokens, generator=generator) > draw(st.sampled_from([0.1, 0.5, 0.9]))
    value = torch.randn(rows, tokens, generator=generator, dtype=torch.float64) * 10
    padding = draw(st.sampled_from([0.0, math.nan, math.inf, -math.inf]))
    value[~mask] = padding
    if draw(st.booleans()) and tokens:
        value[0, 0] = math.nan  # missing, where it exists
    return value, mask


@examples(150)
@given(batches())
def test_padded_statistics_are_those_of_the_tokens_that_exist(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Whatever the padding holds, and with NaN inside the mask as missing."""
    value, mask = batch
    found = Padded(value.shape).fold(value, mask, STATS)
    right = expected([value[row][mask[row]].numpy() for row in range(len(value))])
    for stat in STATS:
        np.testing.assert_allclose(found[stat].double().numpy(), right[stat], rtol=1e-12, atol=1e-9, err_msg=stat)


@examples(150)
@given(batches())
def test_packed_statistics_are_those_of_padded_ones(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The same tokens without their padding, found by their lengths."""
    value, mask = batch
    padded = Padded(value.shape).fold(value, mask, STATS)
    packed = Packed(value[mask].shape, mask.sum(1)).fold(value[mask], None, STATS)
    for stat in STATS:
        np.testing.assert_allclose(packed[stat].double().numpy(), padded[stat].double().numpy(), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_folds_to_its_own_values(dtype: torch.dtype) -> None:
    """float32 rows to 1e-5 relative; halves, ints and bools exactly what their rounded values say."""
    torch.manual_seed(0)
    value = (torch.randn(4, 64) * 3).to(dtype)
    mask = torch.rand(4, 64) > 0.3
    plain = value.float() if dtype in (torch.bfloat16, torch.float16) else value
    found = Padded(value.shape).fold(plain, mask, STATS)
    right = expected([value[row][mask[row]].double().numpy() for row in range(4)])
    for stat in STATS:
        np.testing.assert_allclose(found[stat].double().numpy(), right[stat], rtol=1e-5, atol=1e-5, err_msg=stat)


def test_the_variance_of_great_numbers_survives() -> None:
    """1e8 + {0, 1, 2} given as float64: a difference of squares would be wrong."""
    value = torch.tensor([[1e8, 1e8 + 1, 1e8 + 2]], dtype=torch.float64)
    assert Padded(value.shape).fold(value, None, ("m2",))["m2"].item() == 2.0


def test_a_shared_mask_costs_its_buffers_once() -> None:
    """Folds of many values under one mask share the mask's weights and the scratch buffer."""
    layout, mask = Padded(torch.Size((4, 8))), torch.rand(4, 8) > 0.5
    for _ in range(5):
        layout.fold(torch.randn(4, 8), mask, STATS)
    assert sorted(what for what, *_ in layout._of_masks) == ["number", "wall", "weight"]
    assert len(layout._scratch) == 1


@examples(60)
@given(st.integers(1, 400), st.integers(0, 2**20), st.floats(0, 1), st.sampled_from([1e-6, 1.0, 1e5]))
def test_a_sketch_quantile_is_within_its_error(count: int, seed: int, level: float, scale: float) -> None:
    """Relative to the neighbouring values, between which numpy interpolates."""
    values = np.random.default_rng(seed).standard_normal(count) * scale
    counts = sketch_of(torch.from_numpy(values)[None])
    found = sketch.Sketch.merge([sketch.sparse(counts)], values.min(), values.max()).quantile(level)
    below, above = np.quantile(values, level, method="lower"), np.quantile(values, level, method="higher")
    slack = 1.01 * sketch.ERROR * max(abs(below), abs(above)) + sketch.SMALLEST
    assert min(below, above) - slack <= found <= max(below, above) + slack


def sketch_of(values: torch.Tensor) -> np.ndarray[Any, Any]:
    """The histogram that the device makes."""
    counts = Padded(values.shape).fold(values, None, ("hist",))["hist"].numpy()
    assert counts.shape == (sketch.SIZE,)
    return counts


def profile(**axes: Any) -> dict[str, Any]:
    """A profile of one token signal with every kind of value that is made of tokens."""
    return {
        "run": {"strict": True},
        "axes": {"token": axes},
        "signals": {
            "any": {
                "mask": {"axis": "token", "type": "bool"},
                "lengths": {"axis": "completion", "type": "int"},
                "x": {"axis": "token"},
                "good": {"axis": "completion", "type": "bool"},
            }
        },
        "metrics": {
            "x": {"reduce": ["mean", "std", "pstd", "var", "sum", "count", "min", "max", "p50", "p95"]},
            "positive": "mean(x > 0)",
            "good_x": {"expr": "x", "where": "good"},
            "good_p50": {"expr": "x", "reduce": "p50", "where": "good"},
            "high": {"expr": "x", "reduce": "count", "where": "x > 1"},
            "longest": "max(size(token))",
            "first": "mean(first(x, over=token))",
            "peak": "mean(max(abs(x), over=token))",
            "centred": "mean(abs(x - mean(x, over=token)))",
        },
    }


def logged(config: dict[str, Any], folder: Path, **signals: Any) -> dict[str, float]:
    """What one step of these signals logs."""
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=folder) as log, log.step(0):
        log.observe(**signals)
    return sink.scalars[0]


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values, mask and a bool per completion; the padding is NaN."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([7, 1, 12, 5])
    mask = torch.arange(12) < lengths[:, None]
    value = torch.randn(4, 12, generator=generator, dtype=torch.float64)
    return torch.where(mask, value, math.nan), mask, torch.tensor([True, False, True, True])


def test_padded_tokens_give_what_numpy_gives(tmp_path: Path) -> None:
    """Each metric by hand, over all tokens that exist."""
    value, mask, good = data()
    rows = [value[row][mask[row]].numpy() for row in range(4)]
    x, kept = np.concatenate(rows), np.concatenate([rows[row] for row in range(4) if good[row]])
    found = logged(profile(mask="mask"), tmp_path, mask=mask, x=value, good=good)
    right = {
        "x/mean": x.mean(), "x/std": x.std(ddof=1), "x/pstd": x.std(), "x/var": x.var(ddof=1), "x/sum": x.sum(),
        "x/count": len(x), "x/min": x.min(), "x/max": x.max(), "positive": (x > 0).mean(), "good_x": kept.mean(),
        "high": (x > 1).sum(), "longest": 12, "first": np.mean([row[0] for row in rows]),
        "peak": np.mean([np.abs(row).max() for row in rows]),
        "centred": np.concatenate([np.abs(row - row.mean()) for row in rows]).mean(),
    }  # fmt: skip
    estimates = {"x/p50": np.quantile(x, 0.5), "x/p95": np.quantile(x, 0.95), "good_p50": np.quantile(kept, 0.5)}
    assert {name: found[name] for name in right} == pytest.approx(right, rel=1e-12)
    assert {name: found[name] for name in estimates} == pytest.approx(estimates, rel=0.011)
    assert set(found) == {*right, *estimates}


@pytest.mark.parametrize("layout", ["packed", "lists", "packed lists"])
def test_other_layouts_give_what_padding_gives(tmp_path: Path, layout: str) -> None:
    """Packed tensors, one list of tokens per completion, and such lists packed."""
    value, mask, good = data()
    right = logged(profile(mask="mask"), tmp_path / "padded", mask=mask, x=value, good=good)
    lists = [value[row][mask[row]].tolist() for row in range(4)]
    true = [[True] * len(row) for row in lists]
    if layout == "packed":
        lengths = mask.sum(1)
        ones = torch.ones(int(lengths.sum()), dtype=torch.bool)
        config = profile(mask="mask", lengths="lengths")
        found = logged(config, tmp_path / "packed", mask=ones, x=value[mask], good=good, lengths=lengths)
    elif layout == "lists":
        found = logged(profile(mask="mask"), tmp_path / "lists", mask=true, x=lists, good=good)
    else:
        config = profile(mask="mask", lengths="lengths")
        found = logged(config, tmp_path / "both", mask=true, x=lists, good=good, lengths=[len(row) for row in lists])
    assert found == pytest.approx(right, rel=1e-12)


def test_lists_of_different_lengths_need_a_mask(tmp_path: Path) -> None:
    """Without one, nobody could tell a token from what fills up a row."""
    config = {"signals": {"any": {"x": {"axis": "token", "mask": "all"}}}, "metrics": {"x": "mean(x > 0)"}}
    with pytest.raises(declog.InputError) as caught:
        logged(config, tmp_path, x=[[1.0, 2.0], [3.0]])
    assert str(caught.value) == (
        "[DL503] `x` came as lists of different lengths, and the config says that every token exists\n"
        "  fix: drop `mask: all`, and observe completion_mask=[[True] * len(row) for row in x] in the same call"
    )


def test_lengths_that_do_not_add_up_are_an_error(tmp_path: Path) -> None:
    """Packed tokens and their lengths must describe the same tokens."""
    with pytest.raises(declog.InputError) as caught:
        logged(
            profile(lengths="lengths") | {"metrics": {"x": "mean(x)"}},
            tmp_path,
            x=torch.zeros(5),
            lengths=torch.tensor([2, 2]),
        )
    assert str(caught.value) == (
        "[DL503] `x` has 5 tokens, and the lengths add up to 4\n  fix: check axes.token.lengths"
    )


@pytest.mark.parametrize(("lengths", "shown"), [(torch.tensor([-1, 6]), "-1"), ([5, None], "nan")])
def test_lengths_that_are_none_are_an_error(lengths: Any, shown: str, tmp_path: Path) -> None:
    """Also where they add up to as many tokens as there are: another completion would have them."""
    config = profile(lengths="lengths") | {"metrics": {"x": "mean(x)"}}
    with pytest.raises(declog.InputError) as caught:
        logged(config, tmp_path, x=torch.zeros(5), lengths=lengths)
    assert str(caught.value) == (
        f"[DL503] `lengths` holds {shown}, which is no number of tokens\n  fix: check axes.token.lengths"
    )


def test_tokens_of_different_shapes_are_an_error(tmp_path: Path) -> None:
    """Signals of one batch describe the same tokens."""
    value, mask, good = data()
    with pytest.raises(declog.InputError) as caught:
        logged(profile(mask="mask"), tmp_path, mask=mask[:, :5], x=value, good=good)
    assert str(caught.value) == (
        "[DL503] `mask` has shape (4, 5), and `x` (4, 12)\n  fix: observe signals of the same tokens together; "
        "`x` has 7 tokens more; if those are the prompt's, which come first: x=x[:, -5:]"
    )


def test_quantiles_of_tokens_are_pooled_over_batches_and_steps(tmp_path: Path) -> None:
    """A window's sketch is the sum of its batches'."""
    value, mask, good = data()
    config = profile(mask="mask") | {"every": 2}
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log:
        for step in range(2):
            with log.step(step):
                for half in (slice(0, 1), slice(1, 4)):
                    log.observe(mask=mask[half], x=(value[half] + step), good=good[half])
    x = np.concatenate([value[mask].numpy() + step for step in range(2)])
    assert sink.scalars[1]["x/p95"] == pytest.approx(np.quantile(x, 0.95), rel=0.011)
    assert sink.scalars[1]["x/count"] == len(x)


def test_expressions_of_many_tokens_are_folded_block_by_block(tmp_path: Path) -> None:
    """More tokens than one block takes, the last block smaller, NaN in the padding of one: as numpy over all."""
    rows, tokens = 19, 4096
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(2, rows, tokens, generator=generator)
    mask = torch.arange(tokens) < torch.randint(1, tokens, (rows, 1), generator=generator)
    scale = torch.rand(rows, generator=generator)
    x[9] = x[9].masked_fill(~mask[9], math.nan)
    profile = {
        "run": {"strict": True},
        "axes": {"token": {"mask": "m"}},
        "signals": {
            "any": {
                "x": {"axis": "token"}, "y": {"axis": "token"}, "m": {"axis": "token", "type": "bool"},
                "scale": {"axis": "completion"}, "shift": {"axis": "step"},
            },
        },
        "derived": {"gap": "(x - y) * scale + shift"},
        "metrics": {
            "gap": {"expr": "gap", "reduce": ["mean", "std", "min", "max", "count", "p50"]},
            "positive": {"expr": "gap > 0", "reduce": "mean"},
            "longest": {"expr": "size(token)", "reduce": "max"},
        },
    }  # fmt: skip
    sink = MemorySink()
    with declog.start(profile, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(x=x, y=y, m=mask, scale=scale, shift=0.25)
    whole = ((x - y) * scale.unsqueeze(1) + 0.25)[mask].double().numpy()

    logged = sink.scalars[0]
    assert logged.pop("gap/p50") == pytest.approx(np.median(whole), rel=2 * sketch.ERROR)
    assert logged == pytest.approx(
        {
            "gap/mean": whole.mean(), "gap/std": whole.std(ddof=1), "gap/min": whole.min(), "gap/max": whole.max(),
            "gap/count": len(whole), "positive": (whole > 0).mean(), "longest": int(mask.sum(1).max()),
        },
        rel=1e-5,
    )  # fmt: skip


def test_a_missing_bool_of_a_completion_is_false_among_its_tokens() -> None:
    """As it is among completions: what chooses by it takes the other side, whether tokens are read or not."""
    sink = MemorySink()
    signals = {
        "b": {"axis": "completion", "type": "bool"}, "x": {"axis": "completion"}, "t": {"axis": "token"},
    }  # fmt: skip
    metrics = {"rows": "mean(x if b else 7)", "tokens": "mean(t if t > 9 else (x if b else 7))"}
    profile = {
        "run": {"name": "p"},
        "axes": {"token": {"mask": "all"}},
        "signals": {"any": signals},
        "metrics": metrics,
    }
    with declog.start(profile, sinks=[sink]) as log, log.step(0):
        log.observe(b=[None, True, False], x=[1.0, 2.0, 3.0], t=torch.ones(3, 2))
    assert sink.scalars == {0: {"rows": pytest.approx(16 / 3), "tokens": pytest.approx(16 / 3)}}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("limit", [0.8, 1, -(2**53) - 1])
def test_comparisons_are_torchs_own(dtype: torch.dtype, limit: float, tmp_path: Path) -> None:
    """With a constant, a number of the step and other tokens: at the limit, beside it, and of what is no number."""
    edge = torch.tensor([limit], dtype=torch.float64).to(torch.float32 if dtype is torch.bfloat16 else dtype)
    near = [edge, edge + 1, edge.to(torch.int64) - 1]
    if edge.is_floating_point():
        near += [torch.nextafter(edge, edge + 1), torch.nextafter(edge, edge - 1), torch.tensor([math.nan])]
    x = torch.cat([one.to(dtype) for one in near]).repeat(2, 1)
    others = x.flip(1).contiguous()
    signs = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
    beside = {"constant": str(limit), "step": "s", "tokens": "y"}
    kind = "int" if dtype is torch.int64 else "float"
    sink = MemorySink()
    profile = {
        "run": {"name": "compare"}, "axes": {"token": {"mask": "all"}},
        "signals": {"any": {"x": f"token {kind}", "y": f"token {kind}", "s": "step"}},
        "metrics": {f"{name}_{what}": f"sum(x {sign} {other})" for name, sign in signs.items()
                    for what, other in beside.items()},
    }  # fmt: skip
    with declog.start(profile, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(x=x, y=others, s=limit)
    wide = x.float() if dtype is torch.bfloat16 else x.double() if dtype is torch.int64 else x
    exact = x if dtype is torch.int64 and isinstance(limit, int) else wide  # whole numbers with whole ones
    known = torch.isnan(wide).logical_not()
    for name in signs:
        right = {
            "constant": getattr(torch, name)(exact, limit) & known,
            "step": getattr(torch, name)(wide, torch.tensor(limit, dtype=torch.float64)) & known,
            "tokens": getattr(torch, name)(x, others) & known & known.flip(1),
        }
        found = {what: sink.scalars[0][f"{name}_{what}"] for what in right}
        assert found == {what: float(one.sum()) for what, one in right.items()}, name
