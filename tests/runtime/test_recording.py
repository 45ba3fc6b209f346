"""What `observe` does with what it is given: one call is one batch, everything is copied, nothing wraps, and what
cannot be read is refused. The numbers are those of plain Python and numpy."""

from __future__ import annotations

import gc
import itertools
import math
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

import declog
from declog.language import functions
from declog.runtime.recording.recorder import Recorder
from tests.conftest import examples
from tests.running import logged, profile, rows, run

SLOW = examples(20, HealthCheck.function_scoped_fixture)

# ---- one call is one batch, whatever the order of its keywords

TWO_EVENTS = profile(
    {},
    {
        "ab": {"expr": "a * b", "reduce": "sum"}, "cd": {"expr": "c * d", "reduce": "sum"},
        "some_a": {"expr": "a", "where": "b > 2", "reduce": "sum"}, "n": "count(a)", "parts": "sum(part)",
        "words": {"expr": "a", "where": "seen == 'x'", "reduce": "sum"},
    },
    signals={
        "rollout": {"a": "completion", "b": "completion", "part": "completion family", "seen": "completion text"},
        "update": {"c": "completion", "d": "completion"},
    },
    run={"strict": False},
)  # fmt: skip
Call = dict[str, Any]


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    """Calls of some signals each, in any order; all have two rows, so that only their names open batches."""
    number = st.integers(1, 9).map(float)
    values: Mapping[str, st.SearchStrategy[Any]] = {
        **{name: st.lists(number, min_size=2, max_size=2) for name in "abcd"},
        "part": st.dictionaries(st.sampled_from("uv"), st.lists(number, min_size=2, max_size=2), min_size=1),
        "seen": st.lists(st.sampled_from("xy"), min_size=2, max_size=2),
    }
    found = []
    for _ in range(draw(st.integers(1, 6))):
        names = draw(st.permutations(sorted(draw(st.sets(st.sampled_from(sorted(values)), min_size=1)))))
        found.append({name: draw(values[name]) for name in names})
    return found


def batches_of(given_calls: Sequence[Call]) -> dict[str, list[Call]]:
    """The batches of each phase: a call joins the open one unless it gives a signal, or a member, of it again."""
    phases = {"rollout": ("a", "b", "part", "seen"), "update": ("c", "d")}
    found: dict[str, list[Call]] = {}
    for phase, names in phases.items():
        made: list[Call] = []
        for call in given_calls:
            mine = {name: value for name, value in call.items() if name in names}
            again = {name for name in mine if made and name in made[-1]}
            if "part" in again and not made[-1]["part"].keys() & mine["part"].keys():  # other members complete a family
                again.remove("part")
            if mine and (not made or again):
                made.append({})
            if mine:
                both = {"part": {**made[-1].get("part", {}), **mine["part"]}} if "part" in mine else {}
                made[-1].update({**mine, **both})
        found[phase] = made
    return found


def by_hand(given_calls: Sequence[Call]) -> dict[str, float]:
    """What the profile logs: sums over the batches that have what is needed."""
    rollout, update = batches_of(given_calls).values()
    both = [batch for batch in rollout if {"a", "b"} <= batch.keys()]
    terms = {
        "ab": [a * b for batch in both for a, b in zip(batch["a"], batch["b"], strict=True)],
        "cd": [c * d for batch in update if {"c", "d"} <= batch.keys()
               for c, d in zip(batch["c"], batch["d"], strict=True)],
        "some_a": [a for batch in both for a, b in zip(batch["a"], batch["b"], strict=True) if b > 2],
        "words": [a for batch in rollout if {"a", "seen"} <= batch.keys()
                  for a, seen in zip(batch["a"], batch["seen"], strict=True) if seen == "x"],
    }  # fmt: skip
    found = {name: sum(values) for name, values in terms.items() if values}
    if n := sum(len(batch.get("a", ())) for batch in rollout):
        found["n"] = n
    for member in "uv":
        values = [one for batch in rollout for one in batch.get("part", {}).get(member, ())]
        if values:
            found[f"parts/{member}"] = sum(values)
    return found


@SLOW
@given(calls())
@example([{"a": [1.0, 2.0]}, {"b": [3.0, 3.0], "a": [5.0, 6.0]}])
@example([{"a": [1.0, 2.0], "c": [1.0, 1.0]}, {"b": [3.0, 3.0], "d": [2.0, 2.0], "c": [5.0, 6.0]}])
def test_one_call_is_one_batch_of_each_phase(tmp_path: Path, made: list[Call]) -> None:
    """Values of one call are never spread over two batches, in whatever order its keywords stand."""
    expected = by_hand(made)
    assert logged(TWO_EVENTS, made, tmp_path) == expected
    turned = [dict(reversed(call.items())) for call in made]
    assert logged(TWO_EVENTS, turned, tmp_path) == expected


def test_signals_of_several_phases_go_together(tmp_path: Path) -> None:
    """A call whose signals all belong to two phases is taken by one batch, not by one for each keyword."""
    signals = {"first": dict.fromkeys("xyu", "completion"), "second": dict.fromkeys("xyv", "completion")}
    metrics = {
        "first": {"expr": "x * y * u", "reduce": "sum"},
        "second": {"expr": "x * y * v", "reduce": "sum"},
    }
    for names in (("x", "y"), ("y", "x")):
        both = {"x": [2.0], "y": [3.0]}
        given_calls = [{"u": [5.0]}, {name: both[name] for name in names}, {"v": [7.0]},
                       {name: [both[name][0] + 1] for name in names}]  # fmt: skip
        found = logged(profile({}, metrics, signals=signals), given_calls, tmp_path)
        assert found == {"first": 2.0 * 3.0 * 5.0, "second": 3.0 * 4.0 * 7.0}


@pytest.mark.parametrize("place", range(3))
def test_a_call_with_a_wrong_value_is_in_no_batch(place: int, tmp_path: Path) -> None:
    """Whichever keyword is the wrong one, nothing of the call is kept, in none of its phases."""
    config = profile(
        {"a": {"axis": "completion"}, "b": {"axis": "completion"}}, {"a": "sum(a)", "n": "count(b)", "c": "sum(c)"},
        signals={"update": {"c": {"axis": "completion"}}},
    )  # fmt: skip
    items = [("a", [1.0, 2.0]), ("c", [9.0, 9.0])]
    items.insert(place, ("b", [1.0, 2.0, 3.0]))

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(a=[10.0, 20.0])
            with pytest.raises(declog.InputError):
                log.observe(**dict(items))

    assert run(config, body, tmp_path).scalars == {0: {"a": 30.0}}


# ---- narrow dtypes

NARROW = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
EXTREMES: Mapping[torch.dtype, list[list[int]]] = {
    torch.bool: [[0, 1, 1], [1, 0, 1]], torch.uint8: [[0, 5, 100], [1, 200, 255]],
    torch.int8: [[0, -5, 100], [1, -128, 127]], torch.int16: [[0, 5, -30000], [1, 100, 32767]],
    torch.int32: [[0, 5, 70000], [1, -100, 2000000000]], torch.int64: [[0, 5, -(2**33)], [1, 100, 3 * 10**9]],
}  # fmt: skip
# of a column `q`, of one `r` per completion, and of one `f` that is declared a float and comes as the same integers
EXPRESSIONS = [
    "q - 1", "1 - q", "-q", "q * q", "square(q)", "abs(q)", "q + 100", "q * 1000", "q / 7", "q ** 2", "2 ** (q / 1e10)",
    "f - 1", "-f", "f * f", "f + f", "f * q", "f + q + q", "f / 3", "f - q * 2", "abs(f)", "square(f)",
    "r * q", "q + r", "f * r", "r - f", "clip(q, -5, 300)", "clip(f, -5.5, 300.25)", "minimum(q, -3)",
    "maximum(q, 300)", "minimum(f, q - 1)", "maximum(q, 0.1)", "q if q > 3 else 1000", "1000 if q > 3 else f",
    "0.1 if q > 3 else 0.7",
    "16777217.0 if q > 3 else 1", "1 if q == 256 else 0", "1 if q > -1 else 0", "1 if q < 300 else 0",
    "1 if f == q else 0", "1 if f != 300 else 0", "1 if q >= 0.5 else 0", "exp(q / 1e10)", "log(abs(q) + 1)",
    "sqrt(abs(q))", "1 if isclose(q, f) else 0", "1 if q <= f - 1 else 0", "q - r * r", "1 if isfinite(f) else 0",
]  # fmt: skip
PER_TOKEN = {
    "m": {"axis": "token", "type": "bool"}, "q": {"axis": "token", "type": "int"}, "f": {"axis": "token"},
    "r": {"axis": "completion", "type": "int"},
}  # fmt: skip
PER_ROW = {"q": {"axis": "completion", "type": "int"}, "f": {"axis": "completion"}, "r": PER_TOKEN["r"]}


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_a_value_per_token_is_that_per_completion(dtype: torch.dtype, packed: bool, tmp_path: Path) -> None:
    """Integers and bools do not wrap in any operator: one token per completion gives what the completion gives."""
    values = torch.tensor(EXTREMES[dtype]).flatten().to(dtype)
    per_row = torch.tensor([1, 0, 1, 1, 0, 1] if dtype is torch.bool else [100, 120, 3, 7, 100, 120]).to(dtype)
    metrics = {f"m{place}": {"expr": expr, "reduce": ["sum", "min", "max"]} for place, expr in enumerate(EXPRESSIONS)}
    if packed:
        signals = {name: op for name, op in PER_TOKEN.items() if name != "m"} | {"n": PER_TOKEN["r"]}
        tokens = {"q": values, "f": values, "r": per_row, "n": torch.ones(6, dtype=torch.int8)}
        config = profile(signals, metrics, axes={"token": {"lengths": "n"}})
    else:
        tokens = {"q": values[:, None], "f": values[:, None], "r": per_row, "m": torch.ones(6, 1, dtype=torch.bool)}
        config = profile(PER_TOKEN, metrics, axes={"token": {"mask": "m"}})
    exact = logged(
        profile(PER_ROW, metrics), [{"q": values.long(), "f": values.double(), "r": per_row.long()}], tmp_path
    )
    found = logged(config, [tokens], tmp_path)
    assert found.keys() == exact.keys()
    assert found == pytest.approx(exact, rel=1e-15)
    plain = values.double().numpy()
    assert found["m0/sum"] == (plain - 1).sum()
    assert found[f"m{EXPRESSIONS.index('f + f')}/max"] == 2 * plain.max()
    assert found[f"m{EXPRESSIONS.index('q * q')}/max"] == np.square(plain).max()


@SLOW
@given(
    st.sampled_from(NARROW), st.sampled_from(NARROW), st.integers(0, 2**32),
    st.sampled_from(["x + y", "x - y", "x * y", "minimum(x, y)", "1 if x < y else 0", "x / (abs(y) + 1)",
                     "x if x >= y else y", "1 if x == y else 0", "-x - y"]),
)  # fmt: skip
def test_dtypes_mix(tmp_path: Path, first: torch.dtype, second: torch.dtype, seed: int, expr: str) -> None:
    """Two signals of any two dtypes combine as their float64 values do, in aggregates over tokens as well."""
    generator = torch.Generator().manual_seed(seed)

    def tensor(dtype: torch.dtype) -> torch.Tensor:
        if dtype is torch.bool:
            return torch.rand(3, 4, generator=generator) > 0.5
        info = torch.iinfo(dtype if dtype is not torch.int64 else torch.int32)
        return torch.randint(info.min, info.max + 1, (3, 4), generator=generator, dtype=torch.int64).to(dtype)

    x, y, mask = tensor(first), tensor(second), torch.rand(3, 4, generator=generator) > 0.3
    signals = {
        "x": {"axis": "token", "type": "int"}, "y": {"axis": "token"}, "mask": {"axis": "token", "type": "bool"}
    }  # fmt: skip
    metrics = {
        "z": {"expr": expr, "reduce": ["sum", "min", "max", "count"]},
        "row": {"expr": f"sum({expr}, over=token)", "reduce": "max"},
    }
    a, b = x.double().numpy(), y.double().numpy()
    right: Mapping[str, Callable[[], Any]] = {
        "x + y": lambda: a + b, "x - y": lambda: a - b, "x * y": lambda: a * b,
        "minimum(x, y)": lambda: np.minimum(a, b), "1 if x < y else 0": lambda: (a < b) * 1.0,
        "x / (abs(y) + 1)": lambda: a / (abs(b) + 1), "x if x >= y else y": lambda: np.maximum(a, b),
        "1 if x == y else 0": lambda: (a == b) * 1.0, "-x - y": lambda: -a - b,
    }  # fmt: skip
    whole, there = right[expr](), mask.numpy()
    expected = {}
    if there.any():
        per_row = [row[exists].sum() for row, exists in zip(whole, there, strict=True) if exists.any()]
        picked = whole[there]
        expected = {"z/sum": picked.sum(), "z/min": picked.min(), "z/max": picked.max(), "z/count": picked.size,
                    "row": max(per_row)}  # fmt: skip
    config = profile(signals, metrics, axes={"token": {"mask": "mask"}})
    assert logged(config, [{"x": x, "y": y, "mask": mask}], tmp_path) == pytest.approx(expected, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_computed_in_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    """An expression rounds its inputs once, when they came, and not after each operation."""
    torch.manual_seed(0)
    x = torch.randn(4, 64).to(dtype)
    config = profile({"x": {"axis": "token"}}, {"y": "mean(exp(x) * 3 - x)"}, axes={"token": {"mask": "all"}})
    exact = x.double().numpy()
    assert logged(config, [{"x": x}], tmp_path)["y"] == pytest.approx((np.exp(exact) * 3 - exact).mean(), rel=1e-6)


def test_lists_of_tokens_hold_all_their_dtypes(tmp_path: Path) -> None:
    """Integers in the first list do not make integers of the others, padded and packed."""
    lists = {"x": [[0, 0], [0.5, 1.5]], "n": [2, 2]}
    signals = {"x": {"axis": "token"}, "n": {"axis": "completion", "type": "int"}}
    for token in ({"lengths": "n"}, {"mask": "all"}):
        config = profile(signals, {"x": "sum(x)", "n": "sum(n)"}, axes={"token": token})
        assert logged(config, [lists], tmp_path) == {"x": 2.0, "n": 4}


# ---- copied when observed


def through_list(value: float) -> Callable[[float], Any]:
    """One list, written to again and again."""
    buffer = [value] * 4

    def fill(number: float) -> list[float]:
        buffer[:] = [number] * 4
        return buffer

    return fill


def through(buffer: torch.Tensor, shown: Any) -> Callable[[float], Any]:
    """One buffer that is filled; ``shown`` is what is observed."""

    def fill(number: float) -> Any:
        with torch.inference_mode(buffer.is_inference()), torch.no_grad():
            buffer.fill_(number)
        return shown

    return fill


def buffers() -> dict[str, Callable[[float], Any]]:
    """Ways in which a trainer uses memory again without a new tensor."""
    tensor, array = torch.zeros(4), np.zeros(4)
    with torch.inference_mode():
        inference = torch.zeros(4)
    leaf = torch.zeros(4, requires_grad=True)
    wide, one = torch.zeros(4, 3), torch.zeros(())
    shared = torch.zeros(4)
    return {
        "tensor": through(tensor, tensor),
        "data": through(leaf.data, leaf),
        "detached": through(leaf.detach(), leaf),
        "numpy view": through(shared, shared.numpy()),
        "array": through(torch.from_numpy(array), array),
        "array backwards": through(torch.from_numpy(array), array[::-1]),
        "tensor of an array": through(torch.from_numpy(array), torch.from_numpy(array)),
        "dlpack": through(tensor, torch.utils.dlpack.from_dlpack(tensor)),
        "view": through(wide, wide[:, 1]),
        "expanded": through(one, one.expand(4)),
        "inference": through(inference, inference),
        "half": through(half := torch.zeros(4, dtype=torch.bfloat16), half),
        "list": through_list(0.0),
        "list of tensors": through(tensor, list(tensor.unbind())),
        "parameter": through((parameter := torch.nn.Parameter(torch.zeros(4))).data, parameter),
    }


@pytest.mark.parametrize("kind", buffers())
@pytest.mark.parametrize("where", ["completion", "token", "waiting", "family", "step"])
def test_a_buffer_that_is_used_again_is_logged_as_it_was(kind: str, where: str, tmp_path: Path) -> None:
    """Three micro-batches of 1, 2 and 3 through one buffer, which holds 99 when the step ends, have the mean 2."""
    fill = buffers()[kind]
    tokens: dict[str, Any] = {"x": {"axis": "token"}, "w": {"axis": "completion"}}
    others: dict[str, dict[str, Any]] = {
        "completion": {"x": {"axis": "completion"}},
        "family": {"x": {"axis": "completion", "family": True}},
        "step": {"x": {"axis": "step"}},
    }
    signals = others.get(where, tokens)
    metric = {"waiting": "mean(x * w)", "family": "mean(member(x, 'a'))"}.get(where, "mean(x)")
    config = profile(signals, {"x": metric}, axes={"token": {"mask": "all"}})

    def shaped(value: Any) -> Any:
        if where == "step":
            return value[0]
        if where in ("token", "waiting"):
            return value[:, None] if isinstance(value, torch.Tensor | np.ndarray) else [value] * 4
        return {"a": value} if where == "family" else value

    def body(log: Recorder) -> None:
        with log.step(0):
            for number in (1.0, 2.0, 3.0):
                log.observe(x=shaped(fill(number)))
                if where == "waiting":
                    fill(50.0)
                    log.observe(w=[1.0] * 4)
            fill(99.0)

    assert run(config, body, tmp_path).scalars == {0: {"x": 2.0}}


@pytest.mark.parametrize("what", ["text", "object", "extra", "metric", "numpy text"])
def test_other_values_are_copied_as_well(what: str, tmp_path: Path) -> None:
    """Lists, mappings and columns that are changed after the call, deep inside too, are logged as they were."""
    signals = {
        "x": {"axis": "completion"}, "t": {"axis": "completion", "type": "text"},
        "o": {"axis": "completion", "type": "object"},
    }  # fmt: skip
    schema = {"t": {"type": "text"}, "o": {"type": "object"}}
    schemas = {"s": {**schema, "more": {"undeclared": "keep"}}}
    config = profile(signals, {"x": "sum(x)"}, schemas=schemas, tables={"t": {"schema": "s"}})
    texts, array, objects = ["a", "b"], np.array(["a", "b"]), [{"deep": [1]}, {"deep": [2]}]
    column, number = [[1], [2]], torch.tensor(1.0)

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(x=[1.0, 2.0])
            if what == "text":
                log.observe(t=texts)
                texts[0] = "changed"
            elif what == "numpy text":
                log.observe(t=array)
                array[0] = "c"
            elif what == "object":
                log.observe(o=objects)
                objects[0]["deep"].append(99)
            elif what == "extra":
                log.log_extra("col", column)
                column[0].append(99)
            else:
                log.log_metric("m", number)
                number.fill_(99.0)

    sink = run(config, body, tmp_path)
    [(_, table)] = sink.tables("t")
    first = rows(table)[0]
    expected: dict[str, dict[str, Any]] = {
        "text": {"t": "a"}, "numpy text": {"t": "a"}, "object": {"o": {"deep": [1]}}, "extra": {"col": [1]},
    }  # fmt: skip
    nothing = {"t": None, "o": None}
    assert {**first, "x": 0} == {**nothing, **expected.get(what, {}), "x": 0}
    assert sink.scalars[0].get("m") == (1.0 if what == "metric" else None)


def watched() -> tuple[dict[str, torch.Tensor], list[weakref.ref[torch.Tensor]]]:
    """Signals of tokens and completions, and weak references to them."""
    made = {
        "mask": torch.ones(2, 3, dtype=torch.bool), "p": torch.rand(2, 3), "q": torch.rand(2, 3).bfloat16(),
        "old": torch.rand(2, 3), "w": torch.rand(2), "n": torch.tensor([3, 3]), "s": torch.tensor(1.0),
    }  # fmt: skip
    return made, [weakref.ref(value) for value in made.values()]


@pytest.mark.parametrize("split", [1, 2, 3, 7])
@pytest.mark.parametrize("broken", [False, True], ids=["well", "broken"])
def test_nothing_of_the_trainer_is_kept(split: int, broken: bool, tmp_path: Path) -> None:
    """Each observed tensor is free when its call is over: in one call or in several, folds that wait included, and
    those that fail. No collection of cycles is needed."""
    registry = functions.Functions(functions.DEFAULT)

    @functions.function(registry=registry)
    def fails(x: torch.Tensor) -> torch.Tensor:
        if x.numel() == 6:
            raise IndexError("mine")
        return x

    signals = {
        "mask": {"axis": "token", "type": "bool"}, "p": {"axis": "token"}, "q": {"axis": "token"},
        "old": {"axis": "token"}, "w": {"axis": "completion"},
        "n": {"axis": "completion", "type": "int"}, "s": {"axis": "step"}, "never": {"axis": "token"},
    }  # fmt: skip
    metrics = {
        "ratio": "mean(exp(p - q))", "kl": "mean(p - old)", "w": "mean(p * w)", "n": "sum(n)", "s": "mean(s)",
        "never": "mean(p * never)", **({"fails": "mean(fails(p))"} if broken else {}),
    }  # fmt: skip
    config = profile(signals, metrics, axes={"token": {"mask": "mask"}}, run={"strict": False})

    def body(log: Recorder) -> None:
        for step in range(2):
            with log.step(step):
                for _ in range(2):
                    values, alive = watched()
                    names = list(values)
                    for start in range(0, len(names), -(-len(names) // split)):
                        part = {name: values.pop(name) for name in names[start : start + -(-len(names) // split)]}
                        log.observe(**part)
                        del part
                    assert [reference() for reference in alive] == [None] * 7

    gc.collect()
    gc.disable()
    try:
        found = run(config, body, tmp_path, functions=registry).scalars
    finally:
        gc.enable()
    assert [sorted(values) for values in found.values()] == [["kl", "n", "ratio", "s", "w"]] * 2


@SLOW
@given(st.permutations(["mask", "p", "q", "w"]), st.sets(st.integers(1, 3)), st.integers(0, 2**20))
def test_folds_are_the_same_in_however_many_calls(
    tmp_path: Path, order: Sequence[str], cuts: set[int], seed: int
) -> None:
    """A batch whose signals come in several calls, in any order, and whose tensors are overwritten after each."""
    generator = torch.Generator().manual_seed(seed)
    values = {
        "mask": torch.rand(3, 5, generator=generator) > 0.3, "p": torch.rand(3, 5, generator=generator).double(),
        "q": torch.randint(0, 255, (3, 5), generator=generator).to(torch.uint8),
        "w": torch.rand(3, generator=generator).double(),
    }  # fmt: skip
    signals = {
        "mask": {"axis": "token", "type": "bool"}, "p": {"axis": "token"}, "q": {"axis": "token", "type": "int"},
        "w": {"axis": "completion"},
    }  # fmt: skip
    config = profile(
        signals, {"pq": "sum(p * q)", "pw": "sum(p * w)", "w": "sum(w)", "n": "sum(size(token))"},
        axes={"token": {"mask": "mask"}},
    )  # fmt: skip
    m, p, q, w = (values[name].double().numpy() for name in ("mask", "p", "q", "w"))
    expected = {"pq": (m * p * q).sum(), "pw": (m * p * w[:, None]).sum(), "w": w.sum(), "n": m.sum()}
    if not m.any():
        del expected["pq"], expected["pw"]

    def body(log: Recorder) -> None:
        with log.step(0):
            for start, end in itertools.pairwise([0, *sorted(cuts), 4]):
                part = {name: values[name] for name in order[start:end]}
                log.observe(**part)
                for value in part.values():
                    value.zero_()

    assert run(config, body, tmp_path).scalars[0] == pytest.approx(expected, rel=1e-12)


# ---- tensors of every kind: right, or refused where they are given

Y = [1.0, 2.0]


class Mine(torch.Tensor):
    """A subclass that only has a name of its own."""


def masked(values: Sequence[Any], mask: Sequence[bool], dtype: Any = None) -> np.ma.MaskedArray[Any, Any]:
    """A masked array."""
    return np.ma.MaskedArray(np.array(values, dtype), mask=mask)


RIGHT: Mapping[str, tuple[Callable[[], Any], float]] = {
    "float8": (lambda: torch.tensor(Y).to(torch.float8_e4m3fn), 3.0),
    "float8 e5m2": (lambda: torch.tensor(Y).to(torch.float8_e5m2), 3.0),
    "sparse": (lambda: torch.tensor([0.0, 2.0]).to_sparse(), 2.0),
    "quantised": (lambda: torch.quantize_per_tensor(torch.tensor(Y), 0.5, 0, torch.qint8), 3.0),
    "uint16": (lambda: torch.tensor([1, 65535]).to(torch.uint16), 65536.0),
    "uint32": (lambda: torch.tensor([1, 4000000000]).to(torch.uint32), 4000000001.0),
    "uint64": (lambda: torch.from_numpy(np.array([1, 2**64 - 1], np.uint64)), float(2**64)),
    "array of uint64": (lambda: np.array([1, 2**64 - 1], np.uint64), float(2**64)),
    "conjugate view": (lambda: torch.tensor([1 + 1j, 2.0]).conj().real, 3.0),
    "negative view": (lambda: torch.tensor([1 + 1j, 2.0]).conj().imag, -1.0),
    "expanded": (lambda: torch.tensor(1.5).expand(2), 3.0),
    "subclass": (lambda: torch.tensor(Y).as_subclass(Mine), 3.0),
    "strided": (lambda: torch.tensor([Y, [9.0, 9.0]]).T[:, 0], 3.0),
    "masked array": (lambda: masked(Y, [False, True]), 1.0),
    "masked array of ints": (lambda: masked([1, 2], [True, False]), 2.0),
    "masked array, nothing masked": (lambda: masked(Y, [False, False]), 3.0),
    "array of objects": (lambda: np.array([1.5, None], object), 1.5),
    "array of longdouble": (lambda: np.array(Y, np.longdouble), 3.0),
    "great integers in a list": (lambda: [2**70, 1], float(2**70)),
    "list of tensors of two dtypes": (
        lambda: [torch.tensor(2**53, dtype=torch.int64), torch.tensor(0.0)],
        float(2**53),
    ),
}
REFUSED: Mapping[str, tuple[Callable[[], Any], str]] = {
    "meta": (lambda: torch.empty(2, device="meta"), "is on the meta device and has no values"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "is a nested tensor"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
        "is a NestedTensor, whose values only its own class can read",
    ),
    "masked tensor": (
        lambda: torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False])),
        "is a MaskedTensor, whose values only its own class can read",
    ),
    "complex": (lambda: torch.tensor(Y).to(torch.complex64), "complex64"),
    "bits": (lambda: torch.zeros(2, dtype=torch.uint8).view(torch.bits8), "holds bits8"),
    "float4": (lambda: torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "holds float4_e2m1fn_x2"),
    "dates": (lambda: np.array(["2020-01-01", "2020-01-02"], "datetime64[D]"), "datetime64"),
    "texts": (lambda: np.array(["1", "2"]), "<U1"),
    "array of complex": (lambda: np.array(Y, complex), "complex128"),
    "records": (lambda: np.zeros(2, [("a", float)]), "array"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # of prototypes in torch, when the tensor is made
@pytest.mark.parametrize("kind", [*RIGHT, *REFUSED])
@pytest.mark.parametrize("axis", ["completion", "token"])
def test_strange_values_are_right_or_refused(kind: str, axis: str, tmp_path: Path) -> None:
    """Either the number is that of the values, or `observe` names the signal; the log event is there in both cases."""
    make, expected = RIGHT.get(kind) or REFUSED[kind]
    signals = {"x": {"axis": "completion"}, "y": {"axis": axis}}
    config = profile(signals, {"x": "sum(x)", "y": "sum(y)"}, axes={"token": {"mask": "all"}})

    def value() -> Any:
        made: Any = make()
        if axis == "completion" or (isinstance(made, torch.Tensor) and made.is_nested):
            return made
        if not isinstance(made, torch.Tensor | np.ndarray) or made.dtype == object:
            return [[item] for item in made] if None not in made else [[1.5], [math.nan]]
        if isinstance(made, torch.Tensor) and kind == "quantised":
            return made.dequantize().unsqueeze(1)
        if isinstance(made, torch.Tensor) and kind != "masked tensor":
            return made.unsqueeze(1)
        return made if kind == "masked tensor" else made[:, None]

    def body(log: Recorder) -> None:
        with log.step(0):
            if kind in REFUSED:
                with pytest.raises(declog.InputError, match=re.escape(str(expected))) as error:
                    log.observe(x=Y, y=value())
                assert "`y` is declared" in str(error.value)
            else:
                log.observe(x=Y, y=value())
        with log.step(1):
            log.observe(x=Y)

    first = {} if kind in REFUSED else {0: {"x": 3.0, "y": expected}}
    assert run(config, body, tmp_path).scalars == first | {1: {"x": 3.0}}


@pytest.mark.parametrize("make", [torch.tensor, np.array, list], ids=["tensor", "array", "list"])
def test_an_integer_beyond_63_bits_is_refused(make: Callable[..., Any], tmp_path: Path) -> None:
    """It would come out negative."""
    value = [1, 2**64 - 1] if make is list else np.array([1, 2**64 - 1], np.uint64)
    config = profile({"i": {"axis": "completion", "type": "int"}}, {"i": "max(i)"})

    def body(log: Recorder) -> None:
        with log.step(0):
            with pytest.raises(declog.InputError, match=r"\[DL504\] `i`"):
                log.observe(i=torch.from_numpy(value) if make is torch.tensor else value)
            log.observe(i=np.array([1, 2**63 - 1], np.uint64))

    assert run(config, body, tmp_path).scalars == {0: {"i": float(2**63 - 1)}}


@pytest.mark.parametrize("kind", ["int", "bool"])
def test_masked_arrays_of_integers_and_bools_are_missing_there(kind: str, tmp_path: Path) -> None:
    """Per completion; per token, where nothing can be missing, they are refused."""
    config = profile({"i": {"axis": "completion", "type": kind}}, {"i": {"reduce": ["count", "max"]}})
    found = logged(config, [{"i": masked([1, 0, 1], [True, False, False], kind)}], tmp_path)
    assert found == {"i/count": 2, "i/max": 1}
    per_token = profile({"i": {"axis": "token", "type": kind}}, {"i": "count(i)"}, axes={"token": {"mask": "all"}})
    with pytest.raises(declog.InputError, match=rf"\[DL504\] `i` .* no {kind} per token is missing"):
        logged(per_token, [{"i": masked([[1, 0]], [[True, False]], kind)}], tmp_path)  # type: ignore[list-item]


# ---- a function that raises


def test_a_function_that_raises_takes_its_own_metrics_only(tmp_path: Path) -> None:
    """As an expression, inside one, inside an aggregate and as a mask; others, also of the same signal, are logged."""
    registry = functions.Functions(functions.DEFAULT)
    calls: list[int] = []

    @functions.function(registry=registry)
    def crash(x: torch.Tensor) -> torch.Tensor:
        if x.numel() == 6:
            calls.append(1)
            raise IndexError("mine")
        return x

    @functions.function(registry=registry)
    def mine(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)

    metrics = {
        "kl": "mean(kl)", "row": "mean(mean(kl, over=token))", "twice": "mean(mine(kl))", "reward": "mean(reward)",
        "p": {"expr": "kl", "reduce": "p50"}, "bad": "mean(crash(kl))", "deep": "mean(exp(crash(kl)) - kl)",
        "of_rows": "mean(sum(crash(kl), over=token))", "some": {"expr": "kl", "where": "crash(kl) > 0"},
        "n": "sum(size(token))",
    }  # fmt: skip
    signals = {"m": {"axis": "token", "type": "bool"}, "kl": {"axis": "token"}, "reward": {"axis": "completion"}}
    config = profile(signals, metrics, axes={"token": {"mask": "m"}}, run={"strict": False})
    kl = torch.ones(2, 3)

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(m=torch.ones(2, 3, dtype=torch.bool), kl=kl, reward=[1.0, 2.0])
        assert list(log.failures) == [
            f"[DL605] `{what}` of phase `default` could not be computed per token: IndexError: mine"
            for what in ("crash(kl)", "exp(crash(kl)) - kl", "m` and `crash(kl) > 0")
        ]

    expected = {"kl": 1.0, "row": 1.0, "twice": 2.0, "reward": 1.5, "p": pytest.approx(1.0), "n": 6}
    assert run(config, body, tmp_path, functions=registry).scalars == {0: expected}
    assert (calls, kl.unique().tolist()) == ([1], [1.0])


# ---- quantiles of bools


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_quantiles_and_histograms_of_token_bools(packed: bool, tmp_path: Path) -> None:
    """They are those of 0 and 1, exact, of a signal and of a comparison."""
    mask = torch.tensor([[True, True, False], [True, True, True]])
    flag = torch.tensor([[True, False, True], [True, True, False]])
    signals = {
        "m": {"axis": "token", "type": "bool"}, "n": {"axis": "completion", "type": "int"},
        "flag": {"axis": "token", "type": "bool"}, "x": {"axis": "token"},
    }  # fmt: skip
    reduce = ["p5", "p25", "p50", "p95", "min", "max", "histogram"]
    metrics = {"flag": {"expr": "flag", "reduce": reduce}, "over": {"expr": "x > 0", "reduce": reduce}}
    there = flag[mask].double().numpy()
    expected = {f"p{level}": np.quantile(there, level / 100) for level in (5, 25, 50, 95)} | {"min": 0.0, "max": 1.0}
    given_values = {"flag": flag, "x": flag * 3.0 - 1}
    if packed:
        config = profile(signals, metrics, axes={"token": {"lengths": "n"}})
        values = {name: value[mask] for name, value in given_values.items()} | {"n": mask.sum(1)}
    else:
        config = profile(signals, metrics, axes={"token": {"mask": "m"}})
        values = given_values | {"m": mask}

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(**values)

    sink = run(config, body, tmp_path)
    assert sink.scalars[0] == {f"{name}/{stat}": pytest.approx(value, rel=1e-12) for name in ("flag", "over")
                               for stat, value in expected.items()}  # fmt: skip
    histograms = [histogram for _, records in sink.events for histogram in records.histograms]
    assert [(one.name, int(one.counts[0]), int(one.counts[-1]), int(sum(one.counts))) for one in histograms] == [
        (f"{name}/histogram", 2, 3, 5) for name in ("flag", "over")
    ]


@pytest.mark.parametrize("lost", ["a1", "b1", "c1", "a2", "b2", "c2", "a3", "b3", "c3"])
def test_a_piece_that_is_lost_is_told(lost: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A batch that lacks a value which others of its step have is told; where another comes again no rows shift."""
    signals: dict[str, Any] = {name: {"axis": "completion", "required": True} for name in "abc"}
    config = profile(signals, {"whole": "sum(a + b + c)", **{name: f"count({name})" for name in "abc"}})

    pieces = [(batch, place) for batch in range(5) for place in range(3) if f"{'abc'[place]}{batch}" != lost]
    with caplog.at_level("WARNING", logger="declog"):
        values = logged(config, [{"abc"[place]: [10.0**place * (batch + 1)]} for batch, place in pieces], tmp_path)
    assert {name: values[name] for name in "abc"} == {name: 5 - (name == lost[0]) for name in "abc"}
    if lost[0] != "a":  # what comes after it completes the batch: only the last one shows that something is missing
        assert values["whole"] == sum(111.0 * (batch + 1) for batch in range(5) if batch != int(lost[1]))
    told = [record.getMessage() for record in caplog.records if "cannot be paired" in record.getMessage()]
    assert len(told) == 1 and told[0].startswith(f"`{lost[0]}`: in one step some batches of phase `default` have it")


@pytest.mark.parametrize(
    "call", [{"lr": 2.0}, {"norms": {"a": 2.0, "b": 2.0}}, {"lr": 2.0, "norms": {"b": 2.0}}, "log_metric"]
)
def test_numbers_per_step_have_no_rows_to_miss(call: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Numbers per step, declared, in families or logged by name, may come in some batches of a step only."""
    signals = {"x": "completion", "lr": {"axis": "step"}, "norms": {"axis": "step", "family": True}}
    config = profile(signals, {"x": "sum(x)", "lr": "last(lr)", "norms": "last(norms)"})

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(x=[1.0], lr=1.0, norms={"a": 1.0})
            log.observe(x=[2.0], norms={"a": 1.0})
            log.log_metric("a", 1.0)
            log.observe(x=[3.0], **({} if call == "log_metric" else call))
            if call == "log_metric":
                log.log_metric("a", 2.0)
                log.log_metric("b", 2.0)

    with caplog.at_level("WARNING", logger="declog"):
        sink = run(config, body, tmp_path)
    assert sink.scalars[0]["x"] == 6.0
    assert not [record.getMessage() for record in caplog.records if "cannot be paired" in record.getMessage()]


@pytest.mark.parametrize("how", ["once", "often"])
def test_a_call_of_two_phases_is_in_both_or_nowhere(how: str, tmp_path: Path) -> None:
    """Where its rows do not go with what is open in the second phase, the first has nothing of it, and goes on."""
    config = {**TWO_EVENTS, "metrics": {"a": "sum(a)", "n": "count(a)", "c": "sum(c)", "d": "sum(d)"}}
    steps = 4 if how == "often" else 1

    def body(log: Recorder) -> None:
        for step in range(steps):
            with log.step(step):
                log.observe(c=[1.0, 2.0])
                with pytest.raises(declog.InputError, match="`d` has 3"):
                    log.observe(a=[100.0, 200.0, 300.0], d=[1.0, 2.0, 3.0])
                log.observe(a=[5.0], b=[1.0])
                log.observe(d=[10.0, 20.0])

    expected = {"a": 5.0, "n": 1, "c": 3.0, "d": 30.0}
    assert [*run(config, body, tmp_path).scalars.values()] == [expected] * steps
