"""Images in the cells of a table, for trackers that show them. Pillow is imported when there is one."""

from __future__ import annotations

import io
from typing import Any

from declog.records import DType, Image, Table, images_in

PER_CELL = 4  # most images that are shown of a cell


def shown(table: Table) -> dict[str, list[list[Image]]]:
    """The columns that have images, with those of each row that can be shown: a few, and some rows may have none."""
    found = {}
    for column in table.columns:
        if column.type is DType.OBJECT:
            rows = [of(value) for value in table.data[column.name]]
            if any(rows):
                found[column.name] = rows
    return found


def of(value: Any) -> list[Image]:
    """The first images of a cell that can be shown."""
    found: list[Image] = []
    for _, image in images_in(value):
        if len(found) < PER_CELL and image.encoded() is not None:
            found.append(image)
    return found


def opened(image: Image) -> Any:
    """An image that can be shown as one of Pillow's."""
    import PIL.Image

    return PIL.Image.open(io.BytesIO(image.encoded() or b""))


def column_name(name: str, table: Table) -> str:
    """What the images of a column are a column of, where a tracker has them beside it."""
    taken = {column.name for column in table.columns}
    found = f"{name}_images"
    while found in taken:
        found += "_"
    return found
