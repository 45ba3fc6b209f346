"""Folds on a device that cannot be asked: fakes of CUDA tensors have shapes and dtypes, and no values to look at."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import declog
from declog.runtime.recording.recorder import Recorder
from declog.runtime.tokens import fold as token_fold
from declog.runtime.values import inputs
from tests.running import logged, profile, run

ROWS, LENGTH, TOKENS = 3, 5, 11
STATS = "mean std min max count p50"
SIGNALS: dict[str, Any] = {
    "x": {"axis": "token"}, "y": {"axis": "token"}, "n": {"axis": "token", "type": "int"},
    "hit": {"axis": "token", "type": "bool"}, "weight": {"axis": "completion"}, "scale": {"axis": "step"},
    "mask": {"axis": "token", "type": "bool"},
}  # fmt: skip
EXPRESSIONS = (
    "x", "n", "hit", "exp(x - y)", "x * scale", "x * weight", "x > 0.5", "x if x > 0 else -x", "clip(x, -1, 1)",
)  # fmt: skip
METRICS = {
    f"m{place}": {"expr": expr, "reduce": STATS.split(), "name": f"m{place}/{{reduce}}"}
    for place, expr in enumerate(EXPRESSIONS)
} | {
    "clipped": {"expr": "x > 1.2", "reduce": "mean", "where": "y < 0"},
    "last": "mean(last(x, over=token))",
    "first": "mean(first(x, over=token))",
    "spread": "max(std(x, over=token) / mean(y, over=token))",
}
PADDED = profile(SIGNALS, METRICS, axes={"token": {"mask": "mask"}})
PACKED = profile(
    {**SIGNALS, "lengths": {"axis": "completion", "type": "int"}},
    METRICS,
    axes={"token": {"lengths": "lengths", "mask": "mask"}},
)
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def signals(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    """A batch's signals, as they come out of the check of what was given."""
    return {
        "x": torch.zeros(shape, dtype=dtype, device=device), "y": torch.zeros(shape, dtype=dtype, device=device),
        "n": torch.zeros(shape, dtype=torch.int64, device=device),
        "hit": torch.zeros(shape, dtype=torch.bool, device=device),
        "weight": torch.zeros(ROWS, dtype=dtype, device=device), "scale": torch.zeros((), dtype=dtype, device=device),
        "mask": torch.zeros(shape, dtype=torch.bool, device=device),
        "lengths": torch.zeros(ROWS, dtype=torch.int64, device=device),
    }  # fmt: skip


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("came", ["all", "without y", "mask of the host", "lengths of the host", "mask of floats"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_folds_never_wait_for_the_device(packed: bool, came: str, dtype: str) -> None:
    """Whatever they are of: nothing is read from it, and what they come to stays there."""
    phase = declog.plan(PACKED if packed else PADDED).phases["default"]
    with FakeTensorMode():
        given = signals((TOKENS,) if packed else (ROWS, LENGTH), DTYPES[dtype], "cuda")
        if came == "without y":
            del given["y"]
        if came.endswith("of the host"):
            name = came.split()[0]
            given[name] = torch.zeros(given[name].shape, dtype=given[name].dtype)
        if came == "mask of floats":
            given["mask"] = torch.zeros(given["mask"].shape, device="cuda")
        folded = token_fold.run(phase.folds, given, given["x"].shape, given["x"].device, phase.lengths)
    assert folded.failed == {}
    assert folded.columns and folded.sketches
    found = {(tuple(column.shape), column.device.type) for column in folded.columns.values()}
    assert found == {((ROWS,), "cuda")}
    assert {column.device.type for column in folded.sketches.values()} == {"cuda"}


def test_a_look_at_a_value_is_noticed() -> None:
    """What the test above stands on: a fake that is asked for a value fails."""
    with FakeTensorMode():
        values = torch.zeros(ROWS, device="cuda")
        for look in (torch.Tensor.item, torch.nonzero, torch.Tensor.tolist):
            with pytest.raises(Exception, match=r"aten\.(_local_scalar_dense|nonzero|item)|tolist|device"):
                look(values[0] if look is torch.Tensor.item else values)


def test_observed_tokens_are_let_go_of_with_the_step_s_last_call(tmp_path: Path) -> None:
    """They are folded at once: no reference to what the trainer gave outlives the call."""
    config = profile(
        {"x": {"axis": "token"}, "y": {"axis": "token"}, "mask": {"axis": "token", "type": "bool"}},
        {"x": "mean(x)", "gap": "max(x - y)", "clipped": "mean(x > 0.5)"}, axes={"token": {"mask": "mask"}},
    )  # fmt: skip
    alive: list[list[bool]] = []

    def body(log: Recorder) -> None:
        for step in range(3):
            with log.step(step):
                watched = []
                for name in ("x", "y", "mask"):
                    value = torch.ones(ROWS, LENGTH, dtype=torch.bool if name == "mask" else torch.float32)
                    watched.append(weakref.ref(value))
                    log.observe(**{name: value})
                    del value
                gc.collect()
                alive.append([one() is not None for one in watched])

    run(config, body, tmp_path)
    assert alive == [[False] * 3] * 3


def test_observe_in_a_compiled_function_is_one_break_of_its_graph(tmp_path: Path) -> None:
    """What is before it and what is after it are compiled, and nothing of declog is; a full graph names the call."""
    from torch._dynamo.exc import Unsupported
    from torch._dynamo.testing import CompileCounter

    config = profile({"x": {"axis": "completion"}}, {"x": "mean(x)"})
    counter = CompileCounter()

    def body(log: Recorder) -> None:
        def step_function(x: torch.Tensor) -> torch.Tensor:
            doubled = x * 2
            log.observe(x=doubled)
            return doubled + 1

        compiled = torch.compile(step_function, backend=counter)
        for step in range(2):
            with log.step(step):
                compiled(torch.full((2,), float(step)))
        whole = torch.compile(step_function, backend="eager", fullgraph=True)
        with log.step(2), pytest.raises(Unsupported, match=r"Observing\.observe"):
            whole(torch.ones(2))

    sink = run(config, body, tmp_path)
    assert (counter.frame_count, counter.op_count) == (2, 2)
    assert sink.scalars == {0: {"x": 0.0}, 1: {"x": 2.0}}


def test_small_floats_are_observed(tmp_path: Path) -> None:
    """Of eight bits, too."""
    config = profile({"x": {"axis": "completion"}}, {"x": "mean(x)"})
    values = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)
    assert logged(config, [{"x": values}], tmp_path) == {"x": 1.5}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_rows_of_tokens_on_a_device(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor for each completion, of different lengths: padded there, and nothing is read."""
    monkeypatch.setattr(inputs, "readable", lambda value: value)  # which refuses fakes
    name = {torch.int64: "n", torch.bool: "hit"}.get(dtype, "x")
    [op] = [op for op in declog.plan(PADDED).phases["default"].signals if op.name == name]
    with FakeTensorMode():
        rows = [torch.zeros(length, dtype=dtype, device="cuda") for length in (3, 1)]
        padded = inputs.accept(op, name, rows)
    assert isinstance(padded, torch.Tensor)
    assert (padded.device.type, padded.shape, padded.is_floating_point()) == ("cuda", (2, 3), True)


def test_the_default_device_of_torch_is_not_where_lists_go(tmp_path: Path) -> None:
    """``torch.set_default_device`` changes no number: meta tensors have none at all."""
    signals = {**SIGNALS, "name": {"axis": "completion", "type": "text"}}
    values = {
        "x": [[1.0, 2.0, 3.0], [1.0]], "y": [[1, 0, 1], [2]], "mask": [[True] * 3, [True]], "weight": [0.5, None],
        "scale": 2.0, "name": ["a", "b"],
    }  # fmt: skip
    config = profile(
        signals, METRICS, axes={"token": {"mask": "mask"}}, schemas={"s": {"extra": {"undeclared": "keep"}}},
        tables={"t": {"rows": "completion", "schema": "s"}},
    )  # fmt: skip

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(**values)
            log.log_extra("place", [1.0, None])
            log.keep(kept=[1.5, None])

    expected = run(config, body, tmp_path / "usual").scalars
    torch.set_default_device("meta")
    try:
        scalars = run(config, body, tmp_path / "meta").scalars
    finally:
        torch.set_default_device(None)
    assert repr(scalars) == repr(expected)
    assert len(expected[0]) > 20
