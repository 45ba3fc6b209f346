"""Windows as bytes: what ranks send to rank 0, each in one container.

Imports numpy, frames and the container only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declog.axes import Axis
from declog.container import VERSION, Container, Packer
from declog.errors import CommError
from declog.frame import PARTS, Batches, Block, Frame, Grouping, texts_of

__all__ = ["VERSION", "decode", "encode"]


def encode(frames: Mapping[str, Frame], meta: Mapping[str, Any]) -> bytes:
    """Frames by event, and a small JSON-able ``meta``, as bytes."""
    packer = Packer()
    events = {}
    for name, frame in frames.items():
        events[name] = {
            "batches": {part: packer.put(getattr(frame.batches, part)) for part in PARTS},
            "blocks": [
                {"axis": block.axis.value, "keys": block.keys, "data": packer.put(block.data)}
                | ({} if block.valid is None else {"valid": packer.put(block.valid)})
                for block in frame.blocks
            ],
            "texts": [[*key, axis.value, _sparse(values)] for key, (axis, values) in frame.texts.items()],
        }
    return packer.seal({"meta": dict(meta), "events": events})


def _sparse(values: NDArray[Any]) -> dict[str, Any]:
    """An object column as its length, and its distinct values with where they stand."""
    places = [place for place, item in enumerate(values) if item is not None]
    return {"rows": len(values), "places": places, "values": [values[place] for place in places]}


def decode(data: bytes, grouping: Grouping | None) -> tuple[dict[str, Frame], dict[str, Any]]:
    """Frames by event, and the meta; raises ``CommError`` for anything that is not a whole message."""
    message = Container(data)
    try:
        frames = {}
        for name, event in message.header["events"].items():
            batches = Batches(*(message.get(event["batches"][part]) for part in PARTS))
            blocks = [
                Block(
                    Axis(block["axis"]),
                    tuple((key, member) for key, member in block["keys"]),
                    message.get(block["data"]),
                    message.get(block["valid"]) if "valid" in block else None,
                )
                for block in event["blocks"]
            ]
            texts = {(key, member): (Axis(axis), _dense(sparse)) for key, member, axis, sparse in event["texts"]}
            frames[name] = Frame(name, batches, blocks, texts, grouping)
        return frames, message.header["meta"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise CommError("DL603", f"a message cannot be read: {error}") from error


def _dense(sparse: Mapping[str, Any]) -> NDArray[Any]:
    values = np.full(sparse["rows"], None, object)
    values[sparse["places"]] = texts_of(sparse["values"])
    return values
