"""Windows as bytes: what comes back is what was sent, and anything else is refused."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declog.engine.blocks import Block, batches_of
from declog.engine.frame import Frame
from declog.errors import CommError
from declog.language.dtypes import Axis
from declog.plans.ops import Grouping
from declog.runtime.ranks.message import VERSION, decode, encode
from tests.engine.frames import assert_equal, frame, frames


def sealed(header: Any, body: bytes = b"") -> bytes:
    """A message with a valid head around any header: what a faulty writer would send."""
    text = json.dumps(header).encode()
    rest = text + b"\0" * (-len(text) % 8) + body
    return struct.pack("<6sHII", b"DECLOG", VERSION, len(text), zlib.crc32(rest)) + rest


@given(frames(phase="rollout"), frames(phase="update"), st.dictionaries(st.text(), st.integers() | st.text()))
def test_what_is_sent_comes_back(rollout: Frame, update: Frame, meta: dict[str, Any]) -> None:
    """Frames of several phases and the meta survive the bytes: dtypes, NaN, None, texts, members, order."""
    decoded, reported = decode(encode({"rollout": rollout, "update": update}, meta), None)
    assert list(decoded) == ["rollout", "update"] and reported == meta
    assert_equal(decoded["rollout"], rollout)
    assert_equal(decoded["update"], update)


def test_integers_keep_all_their_bits() -> None:
    """An int64 that no float64 holds comes back as it was."""
    sent = frame([(0, 0, 0, 2)], {"row": [2**53 + 1, -(2**63)]})
    column = decode(encode({"update": sent}, {}), None)[0]["update"].column("row")
    assert column is not None and column.dtype == np.int64 and column.tolist() == [2**53 + 1, -(2**63)]


def test_a_text_that_is_no_text_comes_back() -> None:
    """A lone surrogate, which UTF-8 has no bytes for, does not lose the window."""
    sent = frame([(0, 0, 0, 3)], {"completion": ["ok", "\ud800", None]})
    assert_equal(decode(encode({"update": sent}, {}), None)[0]["update"], sent)


def test_big_endian_columns_are_sent_little_endian() -> None:
    """What travels has one byte order: the values are the same, the type is the reader's own."""
    block = Block(Axis.STEP, (("lr", None),), np.array([[0.1, np.inf]], ">f8"))
    sent = Frame("update", batches_of([(0, 0, 0, 1, 0.0, 0), (1, 0, 0, 1, 0.0, 1)]), [block])
    column = decode(encode({"update": sent}, {}), None)[0]["update"].column("lr")
    assert column is not None and column.dtype == np.dtype("<f8") and column.tolist() == [0.1, np.inf]


def test_buffers_stay_aligned() -> None:
    """Columns of odd sizes do not shift the ones behind them."""
    sent = frame([(0, 0, 0, 3)], {"a": [True, False, True], "b": [1.5, 2.5, 3.5]})
    message = encode({"update": sent}, {"text": "é"})
    assert len(message) % 8 == 0
    assert_equal(decode(message, None)[0]["update"], sent)


def test_the_reader_says_how_rows_are_grouped() -> None:
    """The grouping is the plan's, and does not travel."""
    grouping = Grouping(size=2)
    decoded, _ = decode(encode({"update": frame([(0, 0, 0, 2)])}, {}), grouping)
    assert decoded["update"].grouping is grouping


MESSAGE = encode({"update": frame([(3, 0, 1, 2)], {"reward": [0.5, np.nan], "text": ["a", None]})}, {"step": 3})


def refused(data: bytes) -> bool:
    """Whether a message raises ``CommError``; another exception passes through and fails the test."""
    try:
        decode(data, None)
    except CommError as error:
        return error.code == "DL603"
    return False


def test_a_message_that_was_cut_is_refused() -> None:
    """However much is missing at the end, it is a ``CommError``."""
    assert not refused(MESSAGE)
    assert [length for length in range(len(MESSAGE)) if not refused(MESSAGE[:length])] == []


def test_a_changed_byte_is_refused() -> None:
    """Whichever byte is changed, the message is refused instead of read wrongly."""
    changed = (MESSAGE[:place] + bytes([MESSAGE[place] ^ 0x20]) + MESSAGE[place + 1 :] for place in range(len(MESSAGE)))
    assert [place for place, data in enumerate(changed) if not refused(data)] == []


def test_bytes_behind_the_message_are_refused() -> None:
    """Two messages run together are none."""
    with pytest.raises(CommError, match="cut or changed"):
        decode(MESSAGE + bytes(8), None)


def test_something_else_is_distinguished_from_a_damaged_message() -> None:
    """Bytes that are no message of declog's say so."""
    with pytest.raises(CommError, match="does not begin as declog's do"):
        decode(b"PAR1" + MESSAGE, None)


def test_another_version_is_reported() -> None:
    """Ranks with different versions of declog learn which, and what to do."""
    other = MESSAGE[:6] + struct.pack("<H", VERSION + 1) + MESSAGE[8:]
    with pytest.raises(CommError, match=rf"version {VERSION + 1}, and this process reads {VERSION}\n  fix: use one"):
        decode(other, None)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    """No bytes raise anything but ``CommError``."""
    with pytest.raises(CommError):
        decode(data, None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ARRAY = st.fixed_dictionaries({"at": JSON, "dtype": st.sampled_from(["<f8", "|O", "<i8"]), "shape": JSON})
EVENT = st.fixed_dictionaries(
    {"batches": st.dictionaries(st.sampled_from(["step", "batch", "rank", "rows", "elapsed", "order"]), ARRAY | JSON)}
)


@given(JSON | st.fixed_dictionaries({"sizes": JSON, "phases": st.dictionaries(st.just("update"), EVENT | JSON)}))
def test_a_whole_message_with_a_senseless_header_is_refused(header: Any) -> None:
    """A header that lacks its parts, or has something else in their place, is a ``CommError``, too."""
    with pytest.raises(CommError):
        decode(sealed(header), None)


def test_objects_are_never_read() -> None:
    """A message cannot make the reader build Python objects: types other than numbers are refused."""
    array = {"at": 0, "dtype": "|O", "shape": [1]}
    phase = {
        "batches": dict.fromkeys(("step", "batch", "rank", "rows", "elapsed", "order"), array),
        "blocks": [],
        "texts": [],
    }
    with pytest.raises(CommError, match="OBJECT"):
        decode(sealed({"meta": {}, "phases": {"update": phase}, "sizes": [8]}, bytes(8)), None)
