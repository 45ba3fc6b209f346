"""Windows as bytes: what ranks send to rank 0, each in one container.

Imports numpy, frames and the container only.
"""

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
from declog.runtime.wire import UNREADABLE, VERSION, Container, Packer

__all__ = ["VERSION", "decode", "encode"]
EMPTY_CELLS = 2**25  # values that a message may say are there, besides those that its own bytes hold


def encode(frames: Mapping[str, Frame], meta: Mapping[str, Any]) -> bytes:
    """Frames by phase, and a small JSON-able ``meta``, as bytes."""
    packer = Packer()
    phases = {}
    for name, frame in frames.items():
        phases[name] = {
            "batches": {part: packer.put(getattr(frame.batches, part)) for part in PARTS},
            "blocks": [
                {"axis": block.axis.value, "keys": block.keys, "data": packer.put(block.data)}
                | ({} if block.valid is None else {"valid": packer.put(block.valid)})
                for block in frame.blocks
            ],
            "texts": [[*key, axis.value, _sparse(packer, values)] for key, (axis, values) in frame.texts.items()],
        }
    return packer.seal({"meta": dict(meta), "phases": phases})


def _sparse(packer: Packer, values: NDArray[Any]) -> dict[str, Any]:
    """An object column as its length, its distinct values with where they stand, and the images in them."""
    places = [place for place, item in enumerate(values) if item is not None]
    given = [values[place] for place in places]
    images = [
        [place, path, packer.put(np.frombuffer(data, np.uint8))]
        for place, item in enumerate(given)
        if isinstance(item, list | dict)
        for path, image in images_in(item)
        if (data := image.encoded()) is not None
    ]
    given = [_listed(item) if isinstance(item, np.ndarray) else item for item in given]  # the tokens of a completion
    return {"rows": len(values), "places": places, "values": given} | ({"images": images} if images else {})


def _listed(row: NDArray[Any]) -> list[Any]:
    """An array as a list; a float32 with no more digits than it holds."""
    return [float(text) for text in row.astype(str)] if row.dtype == np.float32 else list(row.tolist())


def decode(data: bytes, grouping: Grouping | None) -> tuple[dict[str, Frame], dict[str, Any]]:
    """Frames by phase, and the meta; raises ``CommError`` for anything that is not a whole message."""
    return frames_of(Container(data), grouping)


def frames_of(message: Container, grouping: Grouping | None) -> tuple[dict[str, Frame], dict[str, Any]]:
    """``decode`` of a container that was read already."""
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
            _check(batches, blocks, phase["texts"], 64 * message.size + EMPTY_CELLS)
            texts = {
                (key, member): (Axis(axis), _dense(message, sparse)) for key, member, axis, sparse in phase["texts"]
            }
            frames[name] = Frame(name, batches, blocks, texts, grouping)
        return frames, message.header["meta"]
    except UNREADABLE as error:
        raise CommError.of("DL603.unreadable", error=str(error)[:400]) from error


def _check(batches: Batches, blocks: list[Block], texts: list[Any], most: int) -> None:
    """Raise ``ValueError`` where columns are not of the batches' rows, or there are more than ``most`` values."""
    parts = [batches.__dict__[part] for part in PARTS]
    if any(part.shape != (len(batches),) for part in parts):
        raise ValueError("its batches have no number, or several")
    if any(part.dtype.kind != ("f" if name == "elapsed" else "i") for name, part in zip(PARTS, parts, strict=True)):
        raise ValueError("its batches are not counted in integers")
    if (batches.rows < 0).any() or (batches.rows > most).any() or int(batches.rows.sum()) > most:
        raise ValueError("its batches have no number of rows that could be")
    rows = int(batches.rows.sum())

    def check(axis: Axis, count: object) -> None:
        exact = {Axis.COMPLETION: rows, Axis.STEP: len(batches)}.get(axis)
        if type(count) is not int or not (0 <= count <= max(rows, len(batches)) if exact is None else count == exact):
            raise ValueError(f"a column per {axis.label} has {count} values, and its batches {rows} rows")

    keys = [key for block in blocks for key in block.keys] + [(name, member) for name, member, _, _ in texts]
    if not all(isinstance(name, str) and (member is None or isinstance(member, str)) for name, member in keys):
        raise ValueError("its columns have no names")
    for block in blocks:
        shape = block.data.shape
        if len(shape) != 2 or shape[0] != len(block.keys):
            raise ValueError(f"{len(block.keys)} columns have the shape {shape}")
        if block.valid is not None and (block.valid.shape != shape or block.valid.dtype != bool):
            raise ValueError("it does not say of each value whether it is there")
        check(block.axis, shape[1])
    for _, _, axis, sparse in texts:
        check(Axis(axis), sparse["rows"])
    if sum(sparse["rows"] for _, _, _, sparse in texts) > most:
        raise ValueError("its texts have more rows than could be")


def _dense(message: Container, sparse: Mapping[str, Any]) -> NDArray[Any]:
    values = np.full(sparse["rows"], None, object)
    given = {0: sparse["values"]}  # so that an image that is a whole value has a place, too
    for place, path, item in sparse.get("images", ()):
        data = message.get(item).tobytes()
        *above, last = 0, place, *list(path)
        inside: Any = given
        for key in above:
            inside = inside[key]
        inside[last] = Image(inside[last], partial(bytes, data))
    values[sparse["places"]] = texts_of(given[0])
    return values
