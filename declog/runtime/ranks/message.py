"""Encode a rank's window as bytes for rank 0, in one container, and decode it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.engine.blocks import PARTS, Batches, Block, texts_of
from declog.engine.frame import Frame
from declog.errors import CommError
from declog.language.dtypes import Axis
from declog.plans.ops import Grouping
from declog.records import Image, images_in
from declog.runtime.ranks.wire import UNREADABLE, VERSION, Container, Packer

__all__ = ["VERSION", "decode", "encode"]


def encode(frames: Mapping[str, Frame], meta: Mapping[str, Any]) -> bytes:
    """Encode frames by phase, and a small JSON-serialisable ``meta``, as bytes."""
    packer = Packer()
    phases = {}
    for name, frame in frames.items():
        phases[name] = {
            "batches": {part: packer.put(getattr(frame.batches, part)) for part in PARTS},
            "blocks": [
                {"axis": block.axis, "keys": block.keys, "data": packer.put(block.data)}
                | ({} if block.valid is None else {"valid": packer.put(block.valid)})
                for block in frame.blocks
            ],
            "texts": [[*key, axis, _sparse(packer, values)] for key, (axis, values) in frame.texts.items()],
        }
    return packer.seal({"meta": dict(meta), "phases": phases})


def _sparse(packer: Packer, values: NDArray[Any]) -> dict[str, Any]:
    """Encode an object column: its length, the values that are not None with their rows, and the images in them."""
    rows = [row for row, item in enumerate(values) if item is not None]
    items = [values[row] for row in rows]
    images = [
        [row, path, packer.put(np.frombuffer(data, np.uint8))]
        for row, item in enumerate(items)
        if isinstance(item, list | dict)
        for path, image in images_in(item)
        if (data := image.encoded()) is not None
    ]
    items = [_listed(item) if isinstance(item, np.ndarray) else item for item in items]  # the tokens of a completion
    return {"rows": len(values), "places": rows, "values": items} | ({"images": images} if images else {})


def _listed(row: NDArray[Any]) -> list[Any]:
    """Return an array as a list; a float32 gets only the digits that it holds."""
    return [float(text) for text in row.astype(str)] if row.dtype == np.float32 else list(row.tolist())


def decode(data: bytes, grouping: Grouping | None) -> tuple[dict[str, Frame], dict[str, Any]]:
    """Decode frames by phase, and the ``meta``; raises ``CommError`` for anything but a complete message."""
    return frames_of(Container(data), grouping)


def frames_of(message: Container, grouping: Grouping | None) -> tuple[dict[str, Frame], dict[str, Any]]:
    """Decode frames by phase, and the ``meta``, from a container that has been read already."""
    try:
        frames = {}
        for name, phase in message.header["phases"].items():
            batches = Batches(*(message.get(phase["batches"][part]) for part in PARTS))
            blocks = [
                Block(
                    Axis(block["axis"]),
                    tuple((key, member) for key, member in block["keys"]),
                    message.get(block["data"]),
                    message.get(block["valid"]) if "valid" in block else None,
                )
                for block in phase["blocks"]
            ]
            texts = {
                (key, member): (Axis(axis), _dense(message, sparse)) for key, member, axis, sparse in phase["texts"]
            }
            frames[name] = Frame(name, batches, blocks, texts, grouping)
        return frames, message.header["meta"]
    except UNREADABLE as error:
        raise CommError.of("DL603.unreadable", error=str(error)[:400]) from error


def _dense(message: Container, sparse: Mapping[str, Any]) -> NDArray[Any]:
    values = np.full(sparse["rows"], None, object)
    items = sparse["values"]
    for position, path, item in sparse.get("images", ()):
        data = message.get(item).tobytes()
        keys, inside = [position, *path], items  # an image that is a whole value has an empty path
        for key in keys[:-1]:
            inside = inside[key]
        inside[keys[-1]] = Image(inside[keys[-1]], partial(bytes, data))
    values[sparse["places"]] = texts_of(items)
    return values
