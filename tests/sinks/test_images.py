"""Images in conversations and columns: shown where the tracker shows them, described in a few words elsewhere."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import declog
from declog.records import Image, images_in
from declog.runtime.ranks.fake_comm import run_ranks
from declog.runtime.values import media
from declog.runtime.values.extras import plain_column, plain_value
from declog.testing import MemorySink
from tests.forks import python
from tests.running import profile, rows
from tests.sinks.wandb_reader import read_runs

RED, BLUE = (255, 0, 0), (0, 0, 255)
PROFILE = profile(
    {"chat": {"axis": "completion", "type": "object"}, "score": {"axis": "completion"}},
    schemas={"s": {"chat": {"type": "object"}, "extra": {"undeclared": "keep"}}},
    filters={"best": {"key": "score", "top": 2, "within": "step"}},
    tables={"chats": {"schema": "s", "filter": "best"}},
)


def drawn(colour: tuple[int, int, int] = RED, size: tuple[int, int] = (20, 10)) -> PIL.Image.Image:
    return PIL.Image.new("RGB", size, colour)


def file_of(image: PIL.Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def message(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "what is it?"}]}]


def url(image: PIL.Image.Image) -> str:
    return f"data:image/png;base64,{base64.b64encode(file_of(image)).decode()}"


def seen(image: Image) -> tuple[tuple[int, int], Any]:
    """The size of an image as a tracker gets it, and the colour in its middle."""
    found = PIL.Image.open(io.BytesIO(image.encoded() or b"")).convert("RGB")
    return found.size, found.getpixel((found.width // 2, found.height // 2))


SPELLINGS: dict[str, Callable[[], Any]] = {
    "transformers": lambda: {"type": "image", "image": drawn()},
    "an array": lambda: {"type": "image", "image": np.asarray(drawn())},
    "a data URL": lambda: {"type": "image", "image": url(drawn())},
    "OpenAI": lambda: {"type": "image_url", "image_url": {"url": url(drawn())}},
    "OpenAI's responses": lambda: {"type": "input_image", "image_url": url(drawn())},
    "datasets, not decoded": lambda: {"type": "image", "image": {"bytes": file_of(drawn()), "path": None}},
    "JPEG": lambda: {"type": "image", "image": file_of(drawn(), "JPEG")},
    "WebP": lambda: {"type": "image", "image": file_of(drawn(), "WEBP")},
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_part_that_is_an_image(spelling: str) -> None:
    """In each of the usual spellings: as data a few words, and the picture is at hand."""
    value = plain_value(message(SPELLINGS[spelling]()))
    ((_, image),) = images_in(value)
    assert value[0]["content"][0] is image
    assert image["type"] == "image" and len(json.dumps(image)) < 100
    size, (red, green, blue) = seen(image)
    assert (size, red > 250, green < 5, blue < 5) == ((20, 10), True, True, True)


def test_anthropics_spelling() -> None:
    """The base64 stands in a map of its own."""
    noise = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8))
    data = base64.b64encode(file_of(noise)).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    ((_, image),) = images_in(plain_value(message({"type": "image", "source": source})))
    assert seen(image)[0] == (40, 30)


def test_what_is_no_image_is_described() -> None:
    """Sounds, videos, tensors of pixels and long bytes take no room; what is short is what it was."""
    noise = np.zeros(16_000, np.float32)
    long = "A" * 100_000
    parts = [
        {"type": "audio", "audio": noise},
        {"type": "input_audio", "input_audio": {"data": long, "format": "wav"}},
        {"type": "audio", "audio": {"array": noise, "sampling_rate": 16_000, "path": "a.wav"}},
        {"type": "image", "image": "https://example.org/cat.png"},
        f"data:audio/wav;base64,{long}", b"\xff\x00" * 500, b"\xff\x00",
    ]  # fmt: skip
    assert plain_value(parts) == [
        {"type": "audio", "audio": "an array of float32 with shape (16000,)"},
        {"type": "input_audio", "input_audio": {"data": "… (100000 characters)", "format": "wav"}},
        {
            "type": "audio",
            "audio": {"array": "an array of float32 with shape (16000,)", "sampling_rate": 16_000, "path": "a.wav"},
        },
        {"type": "image", "image": "https://example.org/cat.png"},
        "data:audio/wav;base64,… (100022 characters)",
        "0xff00ff00ff00ff00… (1000 bytes)",
        "0xff00",
    ]


def test_a_column_of_images() -> None:
    """As `log_extra` and a reward function give it, among missing ones."""
    found = plain_column("picture", [drawn(), None, url(drawn(BLUE))])
    assert found[:2] == [{"type": "image", "width": 20, "height": 10}, None]
    assert [seen(each)[1] for each in found if isinstance(each, Image)] == [RED, BLUE]


def test_a_great_image_is_shown_small() -> None:
    """The longer side has so many pixels at most; the training code's own image is as it was."""
    image = drawn(size=(1500, 300))
    ((_, found),) = images_in([plain_value(image)])
    assert found == {"type": "image", "width": 1500, "height": 300}
    assert (seen(found)[0], image.size) == ((384, 77), (1500, 300))


def test_what_is_broken_is_described(caplog: pytest.LogCaptureFixture) -> None:
    """A file that is no image has a warning, and the row is there."""
    value = plain_value(message({"type": "image", "image": b"\x89PNG\r\n\x1a\n" + b"?" * 20}))
    ((_, image),) = images_in(value)
    assert (image.encoded(), image) == (None, {"type": "image", "media_type": "image/png", "bytes": 28})
    assert "an image cannot be shown: UnidentifiedImageError" in caplog.text


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Beyond it images are described only, which is said once; what was shown or forgotten makes room."""
    before = media._MEMORY.total
    monkeypatch.setattr(media, "HELD_BYTES", before + 1500)
    monkeypatch.setattr(media._MEMORY, "_reported", False)
    first, *others = (plain_value(drawn()) for _ in range(4))  # 600 bytes each
    assert [each.encoded() is None for each in others] == [False, True, True]
    assert media._MEMORY.total == before + 600
    assert first.encoded() is not None
    assert media._MEMORY.total == before
    assert len(caplog.records) == 1


def test_a_picture_that_is_forgotten_while_another_is_counted() -> None:
    """The garbage collector may run anywhere on the training thread: it must not wait for a lock of that thread."""
    before, held = media._MEMORY.total, [plain_value(drawn())]

    def forget() -> None:
        with media._MEMORY._lock:
            held.clear()

    thread = threading.Thread(target=forget, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert media._MEMORY.total == before


def test_images_of_another_rank(tmp_path: Path) -> None:
    """A row that is picked on another rank brings its image along."""
    sink = MemorySink()

    def rank(comm: Any) -> None:
        sinks = [sink] if comm.rank == 0 else []
        with declog.start(PROFILE, sinks=sinks, comm=comm, output_dir=tmp_path) as log, log.step(0):
            chats = [message({"type": "image", "image": drawn(colour)}) for colour in (RED, BLUE)]
            log.observe(chat=chats, score=[0.0, 1.0 + comm.rank])
            log.log_extra("picture", [None, drawn(size=(9, 9))])

    run_ranks(2, rank)
    ((_, table),) = sink.tables("chats")
    assert [seen(image) for row in rows(table) for _, image in images_in(row)] == 2 * [((20, 10), BLUE), ((9, 9), RED)]


PROGRAM = """
import json, sys
from pathlib import Path
import declog
from tests.sinks.test_images import BLUE, PROFILE, RED, drawn, message

folder = Path(sys.argv[1])
chats = {"schema": "s", "as": "trace"}
sinks = {"jsonl": {}, "parquet": {}, "tensorboard": {}, "trackio": {"dir": "board"}, "wandb": {"mode": "offline"}}
profile = {**PROFILE, "tables": {**PROFILE["tables"], "traces": chats}, "sinks": [*sinks], "sink_options": sinks}
with declog.start(profile, output_dir=folder) as log:
    for step in range(2):
        with log.step(step):
            part = {"type": "image", "image": drawn(BLUE if step else RED)}
            log.observe(chat=[message(part), message()], score=[1.0, 0.0])
from trackio.sqlite_storage import SQLiteStorage as Storage
import trackio
(run,) = trackio.Api().runs("small")
print(json.dumps([Storage.get_logs("small", run.name, run_id=run.id), Storage.get_traces("small", run.name)]))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """What a run into five sinks left, and what trackio has of it."""
    home = tmp_path_factory.mktemp("images")
    names = ("HOME", "HF_HOME", "WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR")
    env = {**dict.fromkeys(names, str(home)), "TRACKIO_DIR": "", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
    return home, json.loads(python(PROGRAM, str(home / "run"), env=env).splitlines()[-1])


@pytest.mark.slow  # the run into five sinks
def test_files_have_a_few_words(written: tuple[Path, Any]) -> None:
    """A row of jsonl says that there was an image, and how great it was."""
    lines = (written[0] / "run" / "jsonl" / "tables" / "chats.jsonl").read_text().splitlines()
    assert [json.loads(line)["chat"] for line in lines] == 2 * [
        message({"type": "image", "width": 20, "height": 10}), message()
    ]  # fmt: skip


def test_tensorboard_shows_images(written: tuple[Path, Any]) -> None:
    """Under the table's name, the column's and a number."""
    found = EventAccumulator(str(written[0] / "run" / "tensorboard"))
    found.Reload()
    assert found.Tags()["images"] == ["chats/chat/0", "traces/chat/0"]
    images = [PIL.Image.open(io.BytesIO(each.encoded_image_string)) for each in found.Images("chats/chat/0")]
    assert [(image.size, image.getpixel((5, 5))) for image in images] == [((20, 10), RED), ((20, 10), BLUE)]


def test_trackio_shows_images(written: tuple[Path, Any]) -> None:
    """In a table in a column beside; in a trace where they are in the conversation."""
    home, (logs, traces) = written
    media_folder = home / "run" / "board" / "media"
    found = [row["chat_images"] for log in logs for row in log["chats"]["_value"]]
    assert [None if each is None else len(each) for each in found] == [1, None, 1, None]
    files = [PIL.Image.open(media_folder / each[0]["file_path"]).convert("RGB") for each in found if each]
    assert [image.getpixel((5, 5)) for image in files] == [RED, BLUE]
    kinds = [[part.get("_type", part.get("type")) for part in trace["messages"][0]["content"]] for trace in traces]
    assert sorted(kinds) == [["text"]] * 2 + [["trackio.image", "text"]] * 2


def test_wandb_shows_images(written: tuple[Path, Any]) -> None:
    """In a column beside, in each increment of the table."""
    (run,) = read_runs(written[0])
    assert [row["chat_images"] for row in run.table("chats")] == [["Image"], None] * 2
    staged = [file for file in (written[0] / "artifacts").rglob("*") if file.is_file()]
    images = [PIL.Image.open(file) for file in staged if file.read_bytes().startswith(b"\x89PNG")]
    assert {image.convert("RGB").getpixel((5, 5)) for image in images} == {RED, BLUE}
