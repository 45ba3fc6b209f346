"""Conversations, byte limits, and tables that nothing takes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.errors import ConfigError
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.sinks._conversations import conversation
from declog.testing import MemorySink, run_ranks
from tests.running import run, scores, tables_of

MESSAGES: dict[str, Any] = {"messages": {"axis": "completion", "type": "object"}}
TRACE: dict[str, Any] = {"as": "trace"}
CONVERSATION: list[Any] = [
    {"role": "system", "content": "Mail a@b.c when done, naïvely."},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "function": {"name": "mail", "arguments": {"to": ["a@b.c", "d@e.f"], "n": 2**62 + 1, "x": 0.5}}}]},
    {"role": "tool", "tool_call_id": "1", "content": "é" * 30},
]  # fmt: skip


def test_conversations_survive_ranks_and_filters(tmp_path: Path) -> None:
    """Lists of messages with tool calls: sent for picked rows, distinguished, and the same on rank 0."""
    filters = {"distinct": {"unique": "messages", "within": "window"}}
    made = scores({"key": "score", "top": 2, "from": "distinct"}, filters=filters,
                  schema={"messages": {"type": "object"}}, signals=MESSAGES, **TRACE)  # fmt: skip

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        other = [*CONVERSATION, {"role": "user", "content": str(comm.rank)}]
        with declog.start(made, sinks=[sink], output_dir=tmp_path, comm=comm) as log, log.step(0):
            log.observe(score=[1.0, float(comm.rank + 2)], messages=[CONVERSATION, other])
        return sink

    [(_, table)] = run_ranks(2, rank)[0].tables("t")
    assert table.as_trace
    assert [column.type for column in table.columns] == ["object"]
    assert table.data["messages"] == [[*CONVERSATION, {"role": "user", "content": str(rank)}] for rank in range(2)]


def test_texts_inside_conversations_are_redacted_and_shortened(tmp_path: Path) -> None:
    """Every text at any depth; keys, numbers and the rest stay."""
    schema = {"messages": {"type": "object", "max_chars": 20, "redact": {"mail": r"\S+@\S+"}}}
    made = scores(None, schema=schema, signals=MESSAGES)
    [(_, table)] = tables_of(made, [[{"score": [0.0], "messages": [CONVERSATION]}]], tmp_path)
    [found] = table.data["messages"]
    assert found[0] == {"role": "system", "content": "Mail [mail] when do…"}
    assert found[1]["tool_calls"][0]["function"]["arguments"] == {"to": ["[mail]", "[mail]"], "n": 2**62 + 1, "x": 0.5}
    assert found[2]["content"] == "é" * 19 + "…"
    assert "@" in CONVERSATION[0]["content"]


class Named:
    """An object of some library's class."""

    def __repr__(self) -> str:
        return "<named>"


@pytest.mark.parametrize(
    ("value", "expected"),
    [({2, 1}, [1, 2]), ([Named()], ["<named>"]), ({"k": [b"bytes"]}, {"k": ["bytes"]})],
    ids=["set", "object", "bytes"],
)
def test_an_object_that_json_cannot_hold_is_made_readable(value: Any, expected: Any, tmp_path: Path) -> None:
    """So that it can be sent and written: no rank's rows are lost for it."""
    made = scores(None, schema={"messages": {"type": "object"}}, signals=MESSAGES)

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(score=[0.0, 0.0, 0.0], messages=[{"n": (1, 2)}, None, value])

    [(_, table)] = run(made, body, tmp_path).tables("t")
    assert table.data == {"messages": [{"n": [1, 2]}, None, expected]}


def test_a_trace_without_a_conversation_is_refused() -> None:
    """`as: trace` needs a column of objects."""
    with pytest.raises(ConfigError) as caught:
        declog.plan(scores(None, **TRACE))
    [problem] = caught.value.problems
    assert (problem.code, problem.path, problem.fix) == (
        "DL203", ("tables", "t", "as"),
        "a column of `type: object`, whose values are lists of messages, or of text with a `role: user`",
    )  # fmt: skip


def test_texts_are_messages_of_those_whom_their_columns_name(tmp_path: Path) -> None:
    """A prompt and a completion that are plain texts make a conversation; a text without a role is about it."""
    schema: dict[str, Any] = {
        "text": {"type": "text", "role": "user"},
        "score": {"type": "float"},
        "answer": {"type": "text", "role": "assistant", "expr": "text"},
        "note": {"type": "text", "expr": "text"},
    }
    given = {"score": [1.0, 2.0], "text": ["a", None]}
    [(_, table)] = run(scores(None, schema=schema, **TRACE), lambda log: _observe(log, given), tmp_path).tables("t")
    assert table.as_trace
    assert [conversation(table, row) for row in range(2)] == [
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}], {"score": 1.0, "note": "a"}),
        ([], {"text": None, "score": 2.0, "answer": None, "note": None}),
    ]


def _observe(log: Recorder, given: dict[str, Any]) -> None:
    with log.step(0):
        log.observe(**given)


def test_a_role_is_of_a_text() -> None:
    """Messages of `object` columns say theirs, and a number says nothing."""
    with pytest.raises(ConfigError) as caught:
        declog.plan(scores(None, schema={"score": {"type": "float", "role": "user"}}))
    assert [(problem.code, problem.path) for problem in caught.value.problems] == [
        ("DL202", ("schemas", "s", "score", "role"))
    ]


# ---- bytes


@pytest.mark.parametrize(("limit", "kept"), [(10_000, 5), (3 * 25, 3), (3 * 25 - 1, 2), (25, 1), (24, 0)])
def test_rows_beyond_the_limit_are_cut_from_the_end(
    limit: int, kept: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each row here has 8 bytes for its number, 6 of text and 11 of JSON; the cut is counted, and reported once."""
    made = scores(None, schema={"score": {"type": "float"}, "text": {"type": "text"}, "messages": {"type": "object"}},
                  signals=MESSAGES, max_bytes=limit)  # fmt: skip
    values = {"score": [0.0] * 5, "text": ["éèê"] * 5, "messages": [{"k": "é"}] * 5}
    assert len(json.dumps({"k": "é"}, ensure_ascii=False).encode()) == 11
    with caplog.at_level(logging.WARNING, logger="declog"):
        found = tables_of(made, [[values], [values]], tmp_path)
    assert [(table.rows, table.cut) for _, table in found] == ([(kept, 5 - kept)] * 2 if kept else [])
    assert all(len(column) == kept for _, table in found for column in table.data.values())
    reported = (
        [f"the table `t` is cut to {kept} of 5 rows: its `max_bytes` is {limit} (reported once)"] if kept < 5 else []
    )
    assert [record.getMessage() for record in caplog.records] == reported


# ---- destinations


def test_a_table_that_no_sink_takes_is_reported_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason; the run goes on, and what only the table needs is not recorded."""
    made = scores(None, sinks=["board"], sink_options={"board": {"kind": "tests.compiler.golden:Numbers"}})
    (tmp_path / "pyproject.toml").write_text('[tool.declog]\nimports = ["tests.compiler.golden"]\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert declog.plan(made).warnings == ("tables.t: no sink takes this table; board takes no tables",)
    assert not any(phase.signals for name, phase in declog.plan(made).phases.items() if name != "logged")
    made |= {"sinks": ["files"], "sink_options": {"files": {"kind": "jsonl"}}}
    made["tables"]["t"]["to"] = {"files": False}
    assert declog.plan(made).warnings == (
        "tables.t: no sink takes this table; add one that takes tables, or `enabled: false`",
    )
    with caplog.at_level(logging.WARNING, logger="declog"):
        declog.start(made, output_dir=tmp_path).close()
    assert "tables.t: no sink takes this table" in caplog.text
