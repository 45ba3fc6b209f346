"""Images in the cells of a table, for trackers that show images. Imports Pillow only if there is an image."""

from __future__ import annotations

import io
from itertools import islice
from typing import Any

from declog.records import DType, Image, Table, images_in

PER_CELL = 4  # most images per cell


def shown(table: Table) -> dict[str, list[list[Image]]]:
    """The columns with images. Each row has a list of the images that can be shown, at most ``PER_CELL``."""
    names = [column.name for column in table.columns if column.type is DType.OBJECT]
    columns = {name: [_of_cell(value) for value in table.data[name]] for name in names}
    return {name: rows for name, rows in columns.items() if any(rows)}


def _of_cell(value: Any) -> list[Image]:
    images = (image for _, image in images_in(value) if image.encoded() is not None)
    return list(islice(images, PER_CELL))


def opened(image: Image) -> Any:
    """An image, opened by Pillow. ``encoded`` must not be None."""
    import PIL.Image

    return PIL.Image.open(io.BytesIO(image.encoded() or b""))


def column_name(name: str, table: Table) -> str:
    """The name of a new column for the images of a column, for trackers that show the images beside it."""
    names = {column.name for column in table.columns}
    images = f"{name}_images"
    while images in names:
        images += "_"
    return images
