"""Windows as bytes: what ranks send to rank 0. A plain binary layout, never pickle.

    b"DECLOG"  version:u16  header length:u32  crc32 of what follows:u32
    header (JSON)  buffers, each aligned to 8 bytes

Imports numpy and frames only.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.axes import Axis
from declog.errors import CommError
from declog.frame import PARTS, Batches, Block, Frame, Grouping, texts_of

MAGIC = b"DECLOG"
VERSION = 1
_HEAD = struct.Struct("<6sHII")
_DTYPES = frozenset({"<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "|u1", "<u2", "<u4", "<u8", "|b1"})


def encode(frames: Mapping[str, Frame], meta: Mapping[str, Any]) -> bytes:
    """Frames by event, and a small JSON-able ``meta``, as bytes."""
    buffers: list[NDArray[Any]] = []

    def put(array: NDArray[Any]) -> dict[str, Any]:
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        buffers.append(array)
        return {"at": len(buffers) - 1, "dtype": array.dtype.str, "shape": array.shape}

    events = {}
    for name, frame in frames.items():
        events[name] = {
            "batches": {part: put(getattr(frame.batches, part)) for part in PARTS},
            "blocks": [
                {"axis": block.axis.value, "keys": block.keys, "data": put(block.data)} for block in frame.blocks
            ],
            "texts": [[*key, axis.value, _sparse(values)] for key, (axis, values) in frame.texts.items()],
        }
    header = json.dumps(
        {"meta": dict(meta), "events": events, "sizes": [array.nbytes for array in buffers]}, ensure_ascii=False
    ).encode("utf-8", "surrogatepass")  # a broken text is logged, too
    parts = [header, b"\0" * (-(_HEAD.size + len(header)) % 8)]
    for array in buffers:
        parts += [array.tobytes(), b"\0" * (-array.nbytes % 8)]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"".join([_HEAD.pack(MAGIC, VERSION, len(header), checksum), *parts])


def _sparse(values: NDArray[Any]) -> dict[str, Any]:
    """An object column as its length, and its distinct values with where they stand."""
    places = [place for place, item in enumerate(values) if item is not None]
    return {"rows": len(values), "places": places, "values": [values[place] for place in places]}


def decode(data: bytes, grouping: Grouping | None) -> tuple[dict[str, Frame], dict[str, Any]]:
    """Frames by event, and the meta; raises ``CommError`` for anything that is not a whole message."""
    try:
        magic, version, length, checksum = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise CommError("DL603", "a message does not begin as declog's do")
        if version != VERSION:
            raise CommError(
                "DL603",
                f"a message has version {version}, and this process reads {VERSION}",
                "use one version of declog on all ranks",
            )
        if zlib.crc32(memoryview(data)[_HEAD.size :]) != checksum:
            raise CommError("DL603", "a message was cut or changed on its way")
        header = json.loads(data[_HEAD.size : _HEAD.size + length])
        at = _HEAD.size + length + -(_HEAD.size + length) % 8
        starts = []
        for size in header["sizes"]:
            starts.append(at)
            at += size + -size % 8
        if at != len(data):
            raise CommError("DL603", f"a message has {len(data)} bytes, and its header says {at}")

        def get(item: Mapping[str, Any]) -> NDArray[Any]:
            if item["dtype"] not in _DTYPES:
                raise CommError("DL603", f"a message holds the type {item['dtype']!r}")
            shape = tuple(item["shape"])
            return np.frombuffer(data, np.dtype(item["dtype"]), int(np.prod(shape)), starts[item["at"]]).reshape(shape)

        frames = {}
        for name, event in header["events"].items():
            batches = Batches(*(get(event["batches"][part]) for part in PARTS))
            blocks = [
                Block(Axis(block["axis"]), tuple((key, member) for key, member in block["keys"]), get(block["data"]))
                for block in event["blocks"]
            ]
            texts = {(key, member): (Axis(axis), _dense(sparse)) for key, member, axis, sparse in event["texts"]}
            frames[name] = Frame(name, batches, blocks, texts, grouping)
        return frames, header["meta"]
    except (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise CommError("DL603", f"a message cannot be read: {error}") from error


def _dense(sparse: Mapping[str, Any]) -> NDArray[Any]:
    values = np.full(sparse["rows"], None, object)
    values[sparse["places"]] = texts_of(sparse["values"])
    return values
