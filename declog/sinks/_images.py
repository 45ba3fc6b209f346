"""Images in the cells of a table, for trackers that show them. Pillow is imported when there is one."""

from __future__ import annotations

import io
from typing import Any

from declog.records import DType, Image, Table, images_in

PER_CELL = 4  # most images per cell


def shown(table: Table) -> dict[str, list[list[Image]]]:
    """The columns with images, and for each row the images that can be shown, if any."""
    found = {}
    for column in table.columns:
        if column.type is DType.OBJECT:
            rows = [of(value) for value in table.data[column.name]]
            if any(rows):
                found[column.name] = rows
    return found


def of(value: Any) -> list[Image]:
    """The first images of a cell, as Pillow's."""
    found: list[Image] = []
    for _, image in images_in(value):
        if len(found) < PER_CELL and image.encoded() is not None:
            found.append(image)
    return found


def opened(image: Image) -> Any:
    """An image as one of Pillow's; None if it cannot be decoded."""
    import PIL.Image

    return PIL.Image.open(io.BytesIO(image.encoded() or b""))


def column_name(name: str, table: Table) -> str:
    """The name of the column with another column's images, in trackers that show them beside it."""
    taken = {column.name for column in table.columns}
    found = f"{name}_images"
    while found in taken:
        found += "_"
    return found
