"""Images, sounds and other binary data inside values: kept as images or short descriptions, not as megabytes of text.

An image becomes a ``records.Image``: a mapping with its size, and the picture for sinks that show it. The picture is
held as the training code passed it. It is shrunk and encoded when a sink asks for it or its row is sent to rank 0,
never on the training thread; only that imports Pillow. Other data becomes a description.
"""

from __future__ import annotations

import base64
import binascii
import io
import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from declog.records import Image, images_in
from declog.runtime.values.tensors import described_array

log = logging.getLogger("declog")
EDGE = 384  # the most pixels of a shown image's longer side
LONG = 200  # the most characters or bytes of data that are kept as they are
HELD_BYTES = 512 * 2**20  # the most bytes of images that are held at once; further images are only described
SIGNATURE = re.compile(  # the first bytes of encoded images
    rb"(?P<png>\x89PNG\r\n\x1a\n)|(?P<jpeg>\xff\xd8\xff)|(?P<gif>GIF8)|(?P<bmp>BM.{62})|(?P<webp>RIFF.{4}WEBP)",
    re.DOTALL,
)
PARTS = frozenset({"image", "image_url", "input_image", "video", "video_url", "audio", "audio_url", "input_audio"})

Opened = Callable[[], Any]  # returns a Pillow image


class _Memory:
    """Counts the bytes of all held pictures, as long as they live or until they are encoded."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = threading.RLock()  # the garbage collector may forget a picture while this thread holds the lock
        self._reported = False

    def add(self, size: int) -> None:
        """Count the bytes of a picture; a negative ``size`` releases them."""
        with self._lock:
            self.total += size

    def has_room(self, size: int) -> bool:
        """Whether another picture fits; logs a warning at the first that does not."""
        if self.total + size <= HELD_BYTES:
            return True
        if not self._reported:
            self._reported = True
            log.warning(
                "images of more than %d MB wait for a log event: further ones are not shown", HELD_BYTES // 2**20
            )
        return False


_MEMORY = _Memory()


class _Picture:
    """A picture that is held until it is encoded, or forgotten."""

    def __init__(self, opened: Opened, size: int) -> None:
        self._opened: Opened | None = opened
        self._size = size
        self._encoded: bytes | None = None
        self._encoding = threading.Lock()
        self._memory = _MEMORY  # when the interpreter ends, the module's names may be gone
        self._memory.add(size)

    def encoded(self) -> bytes | None:
        """Return the image as PNG or JPEG, no side longer than ``EDGE``; None, with a warning, if it cannot be read."""
        with self._encoding:
            if self._opened is not None:
                opened, self._opened = self._opened, None
                try:
                    self._encoded = shrunk(opened())
                except Exception as error:  # noqa: BLE001  (a file that is no image may raise anything)
                    log.warning("an image cannot be shown: %s: %s", type(error).__name__, error)
                self._release()
        return self._encoded

    def _release(self) -> None:
        self._memory.add(-self._size)
        self._size = 0

    __del__ = _release


def shrunk(image: Any) -> bytes:
    """Shrink and encode a Pillow image: as PNG if it is transparent or small, else as JPEG."""
    image.draft("RGB", (EDGE, EDGE))
    if image.mode not in ("RGB", "RGBA", "L"):
        image = image.convert("RGBA" if "transparency" in image.info or "A" in image.mode else "RGB")
    factor = max(image.size) / EDGE
    if factor > 1:
        image = image.resize([max(1, round(side / factor)) for side in image.size], reducing_gap=2.0)
    file = io.BytesIO()
    if image.mode == "RGBA" or image.width * image.height <= 64 * 64:
        image.save(file, "PNG")
    else:
        image.save(file, "JPEG", quality=85)
    return file.getvalue()


def picture(item: Any) -> Image | None:
    """Return the image that a value is: a Pillow image, encoded bytes, or a data URL; None for any other value."""
    if isinstance(item, Image):
        return item
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(item, pillow.Image):
        width, height = item.size
        return _image({"width": width, "height": height}, lambda: item.copy(), width * height * len(item.getbands()))
    if isinstance(item, str):
        link = _url(item)
        return None if link is None else _encoded(*link)
    if isinstance(item, bytes | bytearray | memoryview):
        start, original = SIGNATURE.match(bytes(item[:64])), item
        return None if start is None else _encoded(f"image/{start.lastgroup}", len(item), lambda: bytes(original))
    return None


def described(value: Any) -> Any:
    """Return a description of data that is too long for a table; other values stay as they are."""
    if isinstance(value, str) and len(value) > LONG and value.startswith("data:") and ";base64," in value[:LONG]:
        return f"{value[: value.index(',') + 1]}… ({len(value)} characters)"
    if isinstance(value, bytes | bytearray | memoryview) and len(value) > LONG:
        return f"0x{bytes(value[:8]).hex()}… ({len(value)} bytes)"
    return value


def without_data(item: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return a mapping; in a message's part other than text, with its data as images or descriptions."""
    kind = item.get("type")
    if (isinstance(kind, str) and kind in PARTS) or ("array" in item and "sampling_rate" in item):
        return {key: _short(value) for key, value in item.items()}
    data = item.get("data")
    is_base64 = isinstance(data, str) and len(data) > LONG and ("media_type" in item or "format" in item)
    return _base64(item) if is_base64 else item


def image_part(item: dict[str, Any]) -> dict[str, Any]:
    """Return a message's part with one image, in any of the usual spellings, as that image; else the mapping."""
    if item.get("type") in ("image", "image_url", "input_image"):
        images = [image for _, image in images_in(item)]
        if len(images) == 1:
            nothing = (dict, list, type(None))  # values to drop: data sets give each part the keys of all parts
            rest = {key: value for key, value in item.items() if key != "type" and not isinstance(value, nothing)}
            return images[0].with_keys(rest)
    return item


def _short(value: Any) -> Any:
    """Return a value of a part: an array as an image if it has pixels, else described; other values may be images."""
    if not isinstance(value, torch.Tensor | np.ndarray):
        return picture(value) or value
    pixels = value.ndim > 1 and value.shape[2:] in ((), (3,), (4,))
    if pixels and isinstance(value, np.ndarray) and value.dtype == np.uint8:
        height, width = value.shape[:2]
        return _image({"width": width, "height": height}, lambda: _pillow().fromarray(value), value.nbytes)
    return described_array(value)


def _base64(item: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return a mapping with ``data`` in base64, as chat APIs have it, with an image or a description as ``data``."""
    media, data = str(item.get("media_type") or item.get("format")), item["data"]
    image = _encoded(media, len(data) * 3 // 4, lambda: _decoded(data)) if media.startswith("image/") else None
    return {**item, "data": f"… ({len(data)} characters)" if image is None else image}


def _url(text: str) -> tuple[str, int, Callable[[], bytes]] | None:
    """The media type of the image in a data URL, its number of bytes, and a function that decodes it; else None."""
    head, comma, _ = text[:LONG].partition(";base64,")
    if not comma or not head.startswith("data:image"):
        return None
    start = len(head) + len(comma)
    return head.removeprefix("data:"), (len(text) - start) * 3 // 4, lambda: _decoded(text[start:])


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error as error:
        raise ValueError(f"its base64 is broken: {error}") from error


def _encoded(media: str, size: int, data: Callable[[], bytes]) -> Image:
    return _image({"media_type": media, "bytes": size}, lambda: _pillow().open(io.BytesIO(data())), size)


def _image(what: dict[str, Any], opened: Opened, size: int) -> Image:
    return Image(what, _Picture(opened, size).encoded if _MEMORY.has_room(size) else None)


def _pillow() -> Any:
    import PIL.Image

    return PIL.Image
