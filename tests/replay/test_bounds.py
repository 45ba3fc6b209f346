"""Captures stay within their bounds, and whatever ends them leaves whole steps."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.errors import ConfigError, SinkError, UsageError
from declog.replay import capture_reader
from declog.replay.playback import Events
from declog.runtime.recording.recorder import Recorder
from tests import forks
from tests.replay.keeping import captured, timeless

SMALL: dict[str, Any] = {
    "run": {"name": "small"}, "modes": {"train": {}, "eval": {"prefix": "eval_", "every": "end"}},
    "signals": {
        "any": {
            "score": {"axis": "completion"}, "text": {"axis": "completion", "type": "text"},
            "chat": {"axis": "completion", "type": "object"},
        },
    },
    "metrics": {"score": "mean(score)"},
}  # fmt: skip


def steps(log: Recorder, rank: int = 0, count: int = 8, rows: int = 100) -> None:
    """Steps whose mean score is their number."""
    for step in range(count):
        with log.step(step):
            log.observe(score=torch.full((rows,), float(step)))


def scores(events: Events) -> dict[int, float]:
    """What was logged, by step."""
    return {step: item.value for step, records in events for item in records.scalars if item.name == "score"}


def replayed(folder: Path) -> dict[int, float]:
    return scores(capture_reader.replay(folder)["<code>"])


def test_it_ends_at_its_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With whole steps, one warning, and a file that is not larger; the run goes on."""
    live = captured(SMALL, steps, tmp_path, capture={"limit": 4000})
    file = tmp_path / "capture" / "rank-00000.declog"
    assert file.stat().st_size <= 4000
    found = replayed(tmp_path)
    assert 1 < len(found) < 8 and found == {step: float(step) for step in range(len(found))}
    assert scores(live.events) == {step: float(step) for step in range(8)}
    reported = [record.getMessage() for record in caplog.records if "capture" in record.getMessage()]
    assert len(reported) == 1 and f"its limit of 4,000 bytes after {len(found)} steps" in reported[0]


def test_the_ranks_of_a_capture_end_together(tmp_path: Path) -> None:
    """Where a rank reached its limit before others, what all ranks hold is replayed."""

    def body(log: Recorder, rank: int) -> None:
        for step in range(8):
            with log.step(step):
                log.observe(score=torch.full((10 + 90 * rank,), float(step)))

    live = captured(SMALL, body, tmp_path, world_size=2, capture={"limit": 4000})
    found = capture_reader.replay(tmp_path)["<code>"]
    assert 1 < len(found) < 8 and timeless(found) == timeless(live.events[: len(found)])


def test_steps_that_do_not_fit_the_queue_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whole, with one warning; those that fit are there."""

    def body(log: Recorder, rank: int) -> None:
        for step in range(6):
            with log.step(step):
                log.observe(score=torch.full((1000 if step in (1, 4) else 10,), float(step)))

    live = captured(SMALL, body, tmp_path, capture={"queue": 3000})
    assert len(scores(live.events)) == 6
    assert replayed(tmp_path) == {0: 0.0, 2: 2.0, 3: 3.0, 5: 5.0}
    assert capture_reader.load(tmp_path).gaps == 2
    reported = [record.getMessage() for record in caplog.records if "capture" in record.getMessage()]
    assert reported == ["the capture leaves steps out: its queue is full: training is faster than the disk"]


def test_each_nth_log_event_is_captured_with_all_its_steps(tmp_path: Path) -> None:
    """`every` counts log events: their windows are whole, and their values those of the run."""
    live = captured({**SMALL, "every": 2}, steps, tmp_path, capture={"every": 2})
    whole = scores(live.events)
    assert whole == {1: 0.5, 3: 2.5, 5: 4.5, 7: 6.5}
    assert replayed(tmp_path) == {1: 0.5, 5: 4.5}


@pytest.mark.parametrize("back", [-1, 0, 1, 4, 6])
def test_a_run_that_goes_back_in_a_log_event_that_is_left_out(back: int, tmp_path: Path) -> None:
    """The way back is kept whatever it falls into: the steps behind it come again."""

    def body(log: Recorder, rank: int) -> None:
        steps(log)
        log.rewind(back)
        for step in range(back + 1, back + 5):
            with log.step(step):
                log.observe(score=[10.0 + step])

    captured({**SMALL, "every": 2}, body, tmp_path, capture={"every": 2})
    events = capture_reader.replay(tmp_path)["<code>"]
    again = [(step, item.value) for step, records in events for item in records.scalars if item.name == "score"]
    assert all(value in (step - 0.5, step + 9.5) for step, value in again)  # of two steps, before or behind
    assert len(again) >= 3 and again[-1][1] > 9


def test_one_mode_is_captured(tmp_path: Path) -> None:
    """`mode: eval` keeps the blocks of evaluation only."""

    def body(log: Recorder, rank: int) -> None:
        steps(log)
        with log.mode("eval"):
            log.observe(score=[3.0])
        log.rewind(-1)
        steps(log)

    captured(SMALL, body, tmp_path, capture={"mode": "eval"})
    found = capture_reader.replay(tmp_path)["<code>"]
    assert [(item.name, item.value) for _, records in found for item in records.scalars] == [("eval_score", 3.0)]


def test_any_prefix_of_a_file_is_readable(tmp_path: Path) -> None:
    """Wherever a crash cut it, and whatever stands behind the cut, the whole steps before are there."""
    captured(SMALL, lambda log, rank: steps(log, rank, rows=2), tmp_path)
    file = tmp_path / "capture" / "rank-00000.declog"
    data = file.read_bytes()
    found = []
    for end in range(len(data) // 4, len(data) + 1, 97):
        file.write_bytes(data[:end] + b"DECLOG\1\0garbage"[: end % 20])
        found.append(replayed(tmp_path))
    assert all(part == {step: float(step) for step in range(len(part))} for part in found)
    assert [len(part) for part in found] == sorted(len(part) for part in found) and len(found[-1]) == 8


KILLED = """
import sys, time, torch, declog
with declog.start({config!r}, output_dir=sys.argv[1], capture=True) as log:
    for step in range(1000000):
        with log.step(step):
            log.observe(score=torch.full((50,), float(step)))
        print(step, flush=True)
        time.sleep(0.002)
"""


def test_a_run_that_is_killed_leaves_whole_steps(tmp_path: Path) -> None:
    """kill -9 in the middle of training."""
    run = forks.start(["-c", KILLED.format(config=SMALL), tmp_path])
    assert run.stdout is not None
    while int(run.stdout.readline()) < 30:
        pass
    time.sleep(0.1)
    run.kill()
    run.wait()
    run.stdout.close()
    found = replayed(tmp_path)
    assert len(found) > 20 and found == {step: float(step) for step in range(len(found))}


def test_texts_are_redacted_before_they_are_written(tmp_path: Path) -> None:
    """As the schemas of the profile say, in texts, conversations and kept columns, with no table active."""
    card = {"card": r"\d{2}-\d{4}", "name": "Ann"}
    config = {
        **SMALL,
        "derived": {"shout": "text"},
        "schemas": {
            "s": {"mine": {"type": "text", "expr": "shout", "redact": card}},
            "t": {"chat": {"type": "object", "redact": card}, "extra": {"undeclared": "keep", "redact": card}},
        },
    }

    def body(log: Recorder, rank: int) -> None:
        with log.step(0):
            chat = [[{"content": "Ann 12-3456"}], [["12-3456"]]]
            log.observe(score=[1.0, 2.0], text=["Ann pays 12-3456", None], chat=chat)
            log.log_extra("note", ["12-3456", "fine"])

    captured(config, body, tmp_path)
    data = (tmp_path / "capture" / "rank-00000.declog").read_bytes()
    assert b"12-3456" not in data and b"Ann" not in data.replace(b'"name": "Ann"', b"")
    (given,) = [call.what[0] for call in capture_reader.load(tmp_path).calls(0) if call.name == "observe"]
    assert given["text"] == ["[name] pays [card]", None]
    assert given["chat"] == [[{"content": "[name] [card]"}], [["[card]"]]]


def test_a_second_capture_does_not_write_over_the_first(tmp_path: Path) -> None:
    """A run that is added to a folder starts another capture beside the first; one is then chosen by name."""
    for count in (2, 3):

        def body(log: Recorder, rank: int, count: int = count) -> None:
            steps(log, rank, count)

        captured({**SMALL, "run": {"append": True}}, body, tmp_path, world_size=2)
    assert len(replayed(tmp_path / "capture")) == 2 and len(replayed(tmp_path / "capture-2")) == 3
    with pytest.raises(UsageError, match="has several captures"):
        capture_reader.load(tmp_path)


def test_where_it_goes_can_be_said(tmp_path: Path) -> None:
    """`folder` is for ranks without a shared disk, and large captures; one that cannot be made is an error at start."""
    captured(SMALL, steps, tmp_path / "run", capture={"folder": str(tmp_path / "mine")})
    assert os.listdir(tmp_path / "mine") == ["rank-00000.declog"] and len(replayed(tmp_path / "mine")) == 8
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="the capture cannot be opened"):
        declog.start(SMALL, output_dir=tmp_path / "run", capture={"folder": str(tmp_path / "file" / "x")})


def test_a_rank_whose_file_is_missing(tmp_path: Path) -> None:
    """What the others captured is replayed, and marked as partial."""
    captured(SMALL, lambda log, rank: steps(log, rank, rows=1 + rank), tmp_path, world_size=2)
    (tmp_path / "capture" / "rank-00001.declog").unlink()
    loaded = capture_reader.load(tmp_path)
    assert (loaded.world_size, loaded.missing) == (2, [1])
    (first, *_) = capture_reader.replay(tmp_path)["<code>"]
    assert {item.name: (item.value, item.partial) for item in first[1].scalars}["score"] == (0.0, True)


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"limit": "much"}, ("run", "capture", "limit")),
        ({"evry": 2}, ("run", "capture", "evry")),
        ({"every": 0}, ("run", "capture", "every")),
    ],
)
def test_what_is_wrong_with_a_capture_is_reported(wrong: dict[str, Any], path: tuple[str, ...], tmp_path: Path) -> None:
    """In the profile and in code, with the place."""
    for config, given in (({**SMALL, "run": {"capture": wrong}}, None), (SMALL, wrong)):
        with pytest.raises(ConfigError) as caught:
            declog.start(config, output_dir=tmp_path, capture=given)
        assert [problem.path for problem in caught.value.problems] == [path]


def test_what_is_no_capture_is_refused(tmp_path: Path) -> None:
    """An empty folder, a file of something else, files of two runs."""
    with pytest.raises(UsageError, match=r"\[DL607\] there is no capture"):
        capture_reader.load(tmp_path)
    (tmp_path / "rank-00000.declog").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match="is no capture that this version reads"):
        capture_reader.load(tmp_path)
    captured(SMALL, steps, tmp_path / "a", world_size=2)
    captured({**SMALL, "run": {"name": "other"}}, steps, tmp_path / "b", world_size=2)
    (tmp_path / "a/capture/rank-00001.declog").write_bytes((tmp_path / "b/capture/rank-00001.declog").read_bytes())
    with pytest.raises(UsageError, match="files of different runs"):
        capture_reader.load(tmp_path / "a")


def test_no_thread_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The end of a run waits for its capture."""
    import threading

    caplog.set_level(logging.INFO)
    captured(SMALL, lambda log, rank: steps(log, rank, rows=100_000), tmp_path)
    assert not [thread for thread in threading.enumerate() if thread.name == "declog-capture"]
    assert len(replayed(tmp_path)) == 8
