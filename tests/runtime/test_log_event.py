"""A log event of a rank is one object: what rank 0 reads in a message is what the rank had."""

from __future__ import annotations

import json

import pytest

from declog.engine.spans import Span
from declog.errors import CommError
from declog.runtime.ranks.log_event import RARE, SENT, LogEvent

EVENT = LogEvent(
    3, 7, 5, "eval", tail=True, part=False, last=True, sent={"train": 2}, figures={"declog/late": 1.0}, intact=False,
    error="rank 1: no", arrivals={"update": {"loss": Span(1, 5, 2)}}, consumed=["a"], unused=[("b", "f.py:3", 4)],
    back=0,
)  # fmt: skip


@pytest.mark.parametrize("event", [EVENT, EVENT._replace(consumed=(), unused=(), back=None), LogEvent(0, 0, 0)])
def test_rank_0_reads_what_a_rank_sent(event: LogEvent) -> None:
    """All that is sent, and nothing else: what only the rank itself needs stays there."""
    own = event._replace(begun={"train": 9}, seconds=2.0, elapsed=3.0)
    read = LogEvent.read(json.loads(json.dumps(own.meta())))
    assert {name: getattr(read, name) for name in SENT} == {name: getattr(event, name) for name in SENT}
    rare = {name: getattr(event, name) for name in RARE}
    assert {name: getattr(read, name) for name in RARE} == json.loads(json.dumps(rare)) | {
        name: value for name, value in rare.items() if not value
    }
    for field in LogEvent._fields:
        if field not in (*SENT, *RARE):
            assert getattr(read, field) == getattr(LogEvent(0, 0, 0), field)
    assert read.key == (event.mode, event.event)


@pytest.mark.parametrize("name", SENT)
def test_a_message_that_does_not_say_all_is_refused(name: str) -> None:
    """Each of the fields is needed."""
    meta = EVENT.meta()
    del meta[name]
    with pytest.raises(CommError):
        LogEvent.read(meta)
