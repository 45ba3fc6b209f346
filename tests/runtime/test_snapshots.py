"""What is given comes back as it was given, whatever is done to it later; what cannot be kept says so."""

from __future__ import annotations

import math
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from declog.runtime.ranks.wire import Packer, read
from declog.runtime.recording.timing import Timed
from declog.runtime.values.snapshots import Full, Snapshot, Uncaptured, decode, encode

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def back(value: Any) -> Any:
    """A value after it was copied, written and read."""
    snapshot = Snapshot(10**9)
    copied = snapshot.copy(value)
    snapshot.wait()
    packer = Packer()
    container = read(BytesIO(packer.seal({"value": encode(copied, packer)})))
    assert container is not None
    return decode(container.header["value"], container)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0)])
def test_tensors_keep_dtype_shape_and_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Of every dtype that may be observed, without rounding."""
    given = (torch.rand(shape, dtype=torch.float64) * 7 - 2).to(dtype)
    found = back(given)
    assert found.dtype == dtype and found.shape == given.shape and torch.equal(found, given)


def test_odd_tensors() -> None:
    """Views with strides, those that need gradients, inference tensors, NaN and infinity."""
    whole = torch.arange(24.0).reshape(4, 6)
    assert torch.equal(back(whole.t()[1:, ::2]), whole.t()[1:, ::2])
    assert torch.equal(back(torch.ones(2, requires_grad=True) * 2), torch.full((2,), 2.0))
    with torch.inference_mode():
        assert torch.equal(back(torch.ones(2)), torch.ones(2))
    assert np.array_equal(back(torch.tensor([math.nan, math.inf])).numpy(), [math.nan, math.inf], equal_nan=True)


@pytest.mark.parametrize("dtype", ["f8", ">f4", "f2", "i8", ">i2", "u1", "u4", "?"])
def test_arrays_keep_their_values(dtype: str) -> None:
    """In the machine's byte order; strings are lists."""
    given = np.arange(6).reshape(2, 3).astype(dtype)
    found = back(given[:, ::2])
    assert found.dtype == given.dtype.newbyteorder("=") and np.array_equal(found, given[:, ::2])
    assert back(np.array(["a", "é"])) == ["a", "é"] and back(np.array([None, "x"], object)) == [None, "x"]


@given(PLAIN)
def test_plain_data_comes_back(value: Any) -> None:
    """Numbers to the last bit, texts with broken surrogates, conversations of any depth."""
    assert repr(back(value)) == repr(value)


def test_families_and_lists_of_tensors() -> None:
    """A mapping of members, one tensor per completion, numpy's own numbers."""
    found = back({"a": torch.ones(2), "b": [0.5, None], "c": np.float32(0.1), "d": (1, 2)})
    assert torch.equal(found["a"], torch.ones(2)) and found["b"] == [0.5, None]
    assert (found["c"], found["d"]) == (float(np.float32(0.1)), [1, 2])
    assert [part.tolist() for part in back([torch.ones(1), np.zeros(2)])] == [[1.0], [0.0, 0.0]]


def test_later_changes_do_not_show() -> None:
    """In a tensor, an array, a list, a message of a conversation."""
    tensor, array, texts, chat = torch.zeros(2), np.zeros(2), ["a"], [[{"content": "a", "parts": [1]}]]
    copied = Snapshot(10**6).copy({"tensor": tensor, "array": array, "texts": texts, "chat": chat})
    tensor.add_(1)
    array += 1
    texts[0] = "b"
    chat[0][0]["content"] = "b"
    chat[0][0]["parts"].append(2)  # type: ignore[attr-defined]
    assert copied["tensor"].tolist() == copied["array"].tolist() == [0, 0]
    assert (copied["texts"], copied["chat"]) == (["a"], [[{"content": "a", "parts": [1]}]])


class Odd:
    def __repr__(self) -> str:
        return "odd"


def test_a_duration_is_kept_as_its_seconds() -> None:
    """The class: values that declog itself makes, as for `timers`; who writes the copy reads the clock."""
    timed = Timed()
    timed.add(lambda: 0.25)
    timed.add(lambda: 0.5)
    assert back({"timers": {"generate": timed}}) == {"timers": {"generate": 0.75}}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Odd(), "Odd odd"),
        (torch.zeros(2, dtype=torch.complex64), "a tensor of complex64 with shape (2,)"),
        (torch.eye(2).to_sparse(), "a tensor of float32 with shape (2, 2)"),
        (np.zeros(1, "M8[s]"), "an array of datetime64[s] with shape (1,)"),
        ({1: 2}, "dict {1: 2}"),
    ],
)
def test_what_cannot_be_kept_is_reported_in_words(value: Any, text: str) -> None:
    """It is refused again where a profile reads it, as it was or would have been in the run."""
    found = back([value, 1])
    assert isinstance(found[0], Uncaptured) and repr(found[0]) == text and found[1] == 1


@pytest.mark.parametrize(
    ("value", "size"),
    [(torch.zeros(100), 400), (np.zeros(50), 400), (["x" * 392], 400), ([1.0] * 50, 400), ("x" * 400, 400)],
)
def test_a_copy_that_has_no_room(value: Any, size: int) -> None:
    """Is not made; what has just room is."""
    assert Snapshot(size).copy(value) is not None
    with pytest.raises(Full):
        Snapshot(size - 1).copy(value)
