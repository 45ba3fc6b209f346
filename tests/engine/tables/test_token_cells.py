"""Columns of tokens: pieces of text with values of each, cut, redacted, on ranks, through files and checkpoints."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import declog
from declog.engine.tables.token_cells import cell, redacted
from declog.engine.tables.token_texts import pieces_of
from declog.errors import UsageError
from declog.language.dtypes import DType
from declog.plans.ops import ColumnOp, TokensOp
from declog.records import Table
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks
from tests.conftest import examples

Cell = dict[str, list[Any]]


def profile(**column: Any) -> dict[str, Any]:
    """A table of the tokens of all completions, of ids unless ``column`` says otherwise."""
    tokens = {"type": "tokens", "expr": "ids", "values": {"logprob": "logprobs", "advantage": "advantages"}, **column}
    return {
        "run": {"name": "tokens", "strict": True}, "axes": {"token": {"mask": "mask"}},
        "signals": {
            "any": {
                "advantages": {"axis": "completion"}, "mask": {"axis": "token", "type": "bool"},
                "ids": {"axis": "token", "type": "int"}, "logprobs": {"axis": "token"},
                "words": {"axis": "completion", "type": "object"},
            },
        },
        "filters": {"all": {"first": 1000000}}, "schemas": {"s": {"tokens": tokens}},
        "tables": {"t": {"schema": "s", "filter": "all"}}, "metrics": {"logprob": "logprobs"},
    }  # fmt: skip


def words(ids: Sequence[int]) -> list[str]:
    return [f"<{id}>" for id in ids]


def run(made: dict[str, Any], folder: Path, steps: Sequence[dict[str, Any]], tokenizer: Any = words) -> list[Table]:
    sink = MemorySink()
    with declog.start(made, sinks=[sink], output_dir=folder, tokenizer=tokenizer) as log:
        for step, values in enumerate(steps):
            with log.step(step):
                log.observe(**values)
    return [table for _, table in sink.tables("t")]


def batch(lengths: Sequence[int], tokens: int = 6, seed: int = 0) -> dict[str, Any]:
    """Completions of so many tokens, the first of which are padding; ids are their places."""
    shape = len(lengths), tokens
    mask = torch.arange(tokens)[None] >= tokens - torch.tensor(list(lengths), dtype=torch.long)[:, None]
    logprobs = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) - 2
    return {
        "ids": torch.arange(mask.numel()).reshape(shape) + 1000 * seed, "mask": mask, "logprobs": logprobs,
        "advantages": [float(place) for place in range(len(lengths))],
    }  # fmt: skip


def expected(values: dict[str, Any], head: int, tail: int) -> list[Cell]:
    """The cells of a batch, by numpy."""
    cells = []
    for ids, mask, logprobs, advantage in zip(
        values["ids"].numpy(), values["mask"].numpy(), values["logprobs"].numpy(), values["advantages"], strict=True
    ):
        texts, found, count = words(ids[mask].tolist()), logprobs[mask], int(mask.sum())
        known = [float(str(np.float32(one))) for one in found]
        whole: Cell = {"tokens": list(texts), "logprob": list(known), "advantage": [advantage] * count}
        if count > head + tail:
            left: Cell = {"tokens": [f"… {count - head - tail:,} tokens …"], "logprob": [None], "advantage": [None]}
            whole = {
                name: [*items[:head], *left[name], *(items[-tail:] if tail else [])] for name, items in whole.items()
            }
        cells.append(whole)
    return cells


@examples(40, HealthCheck.function_scoped_fixture)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=2, max_size=6), head=st.integers(0, 4), tail=st.integers(0, 4),
    ranks=st.sampled_from([1, 2]),
)  # fmt: skip
def test_cells_are_the_first_and_last_tokens_on_any_number_of_ranks(
    lengths: list[int], head: int, tail: int, ranks: int, tmp_path: Path
) -> None:
    """Of each completion the tokens of its mask, with their values; what is left out is said where it would be."""
    head = head or int(not tail)
    made = profile(max_tokens={"head": head, "tail": tail})

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        with declog.start(made, sinks=[sink], output_dir=tmp_path, comm=comm, tokenizer=words) as log, log.step(0):
            log.observe(**batch(lengths, seed=comm.rank))
        return sink

    [(_, table)] = run_ranks(ranks, rank)[0].tables("t")
    assert table.data["tokens"] == [
        cell for at in range(ranks) for cell in expected(batch(lengths, seed=at), head, tail)
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_values_are_those_of_their_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    """Halves as the float32 that they are, integers and bools as integers; a missing value is null."""
    values = batch([2, 3], 3)
    values["logprobs"] = (values["logprobs"] * 4).to(dtype)
    made = profile()
    made["signals"]["any"]["logprobs"]["type"] = {torch.int64: "int", torch.bool: "bool"}.get(dtype, "float")
    if dtype.is_floating_point:
        values["logprobs"][1, 1] = torch.nan
    (table,) = run(made, tmp_path, [values])
    numbers = values["logprobs"][1].tolist()
    assert table.data["tokens"][1]["logprob"] == [None if number != number else number for number in numbers]


def test_packed_tokens_are_those_of_their_completions(tmp_path: Path) -> None:
    """The tokens of all completions lie in one row."""
    made = profile(max_tokens={"head": 1, "tail": 1})
    made["axes"]["token"] = {"mask": "mask", "lengths": "size"}
    made["signals"]["any"]["size"] = {"axis": "completion", "type": "int"}
    values = {"ids": torch.arange(7), "mask": torch.tensor([1, 1, 0, 1, 1, 1, 1]) > 0, "logprobs": torch.arange(7.0)}
    (table,) = run(made, tmp_path, [{**values, "size": [4, 0, 3], "advantages": [1.0, 2.0, 3.0]}])
    assert table.data["tokens"] == [
        {"tokens": ["<0>", "… 1 tokens …", "<3>"], "logprob": [0, None, 3], "advantage": [1, None, 1]},
        {"tokens": [], "logprob": [], "advantage": []},
        {"tokens": ["<4>", "… 1 tokens …", "<6>"], "logprob": [4, None, 6], "advantage": [3, None, 3]},
    ]


def test_lists_of_texts_are_tokens_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whole lists are cut with their values; where they are not of the same tokens the cell is null, reported once."""
    made = profile(expr="words", max_tokens={"head": 1, "tail": 1})
    values = {"mask": torch.ones(3, 3) > 0, "logprobs": torch.arange(9.0).reshape(3, 3), "advantages": [0.0] * 3}
    with caplog.at_level(logging.WARNING, "declog"):
        (table,) = run(made, tmp_path, [{**values, "words": [["a", "b", "c"], ["a", "b"], None]}], None)
    cell = {"tokens": ["a", "… 1 tokens …", "c"], "logprob": [0, None, 2], "advantage": [0, None, 0]}
    assert table.data["tokens"] == [cell, None, None]
    assert [record.getMessage() for record in caplog.records] == [
        "the table `t`: the column `tokens` is null where it has 2 tokens, and 3 values of `logprob` (reported once)"
    ]


def test_without_a_tokenizer_ids_stand_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said when the run starts."""
    with caplog.at_level(logging.WARNING, "declog"):
        (table,) = run(profile(), tmp_path, [batch([1], 2)], None)
    assert table.data["tokens"][0]["tokens"] == ["1"]
    text = "the column `tokens` shows ids and no texts: give `declog.start` the `tokenizer`"
    assert [record.getMessage() for record in caplog.records] == [text]


def test_files_have_lists_by_name(tmp_path: Path) -> None:
    """In jsonl as a map, in parquet as a struct of lists, one type for all log events."""
    made = {**profile(), "output_dir": str(tmp_path), "sinks": ["jsonl", "parquet"]}
    batches = [batch([2, 0], seed=1), batch([6, 3], seed=2)]
    with declog.start(made, tokenizer=words) as log:
        for step, values in enumerate(batches):
            with log.step(step):
                log.observe(**values)
    cells = [cell for values in batches for cell in expected(values, 128, 384)]
    lines = (tmp_path / "jsonl" / "tables" / "t.jsonl").read_text().splitlines()
    assert [json.loads(line)["tokens"] for line in lines] == cells
    found = pq.read_table(tmp_path / "parquet" / "tables" / "t")
    assert [row["tokens"] for row in found.to_pylist()] == cells
    assert str(found.schema.field("tokens").type).startswith("struct<tokens: list<element: string>, logprob: list<")


def test_a_window_goes_on_after_a_checkpoint(tmp_path: Path) -> None:
    """Its first step was before the checkpoint; the cells are those of a run without a break."""
    made = {**profile(), "every": 2, "output_dir": str(tmp_path)}
    batches = [batch([2, 3], seed=1), batch([6, 1], seed=2)]
    with declog.start(made, sinks=[MemorySink()], tokenizer=words) as log:
        with log.step(0):
            log.observe(**batches[0])
        state = log.state_dict()
    sink = MemorySink()
    with declog.start(made, sinks=[sink], tokenizer=words, resume=state) as log, log.step(1):
        log.observe(**batches[1])
    [(_, table)] = sink.tables("t")
    assert table.data["tokens"] == [cell for values in batches for cell in expected(values, 128, 384)]


# ---- redactions


def test_the_two_ends_of_a_cut_text_are_redacted_apart() -> None:
    """Of ids the tokens between them are not recorded: a pattern that would span the cut finds nothing."""
    op = TokensOp(head=1, tail=1, pieces=lambda ids: [str(id) for id in ids])
    column = ColumnOp(id="t", template="t", type=DType.OBJECT, max_chars=None, redact=(("id", r"\d{4}"),), tokens=op)
    recorded = {count: cell(column, np.array([12, 34, count]), {}) for count in (2, 3)}
    assert recorded[2] == {"tokens": ["[id]", ""]}
    assert recorded[3] == {"tokens": ["12", "… 1 tokens …", "34"]}


def test_what_is_redacted_may_be_of_several_tokens() -> None:
    """The label stands where it begins; what is around it stays in its pieces."""
    pieces = ["call ", "12", "34", "5 now", "!"]
    assert redacted(pieces, [("number", r"\d{4,}")]) == ["call ", "[number]", "", " now", "!"]
    assert redacted(["a1", "b2"], [("digit", r"\d"), ("none", "x*")]) == ["a[digit]", "b[digit]"]


def test_what_is_cut_through_is_redacted_whole(tmp_path: Path) -> None:
    """A number of which the cut leaves two tokens is found by those that are recorded beyond it."""
    made = profile(max_tokens={"head": 2, "tail": 2}, redact={"card": "<1><2><3><4>"})
    (table,) = run(made, tmp_path, [{**batch([9], 9)}])
    tokens = table.data["tokens"][0]["tokens"]
    assert tokens == ["<0>", "[card]", "… 5 tokens …", "<7>", "<8>"]


# ---- tokenizers


def byte_level() -> Any:
    """A tokenizer of bytes, of which some characters have several."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({text: place for place, text in enumerate(alphabet)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return made


@pytest.mark.parametrize("whole", [False, True], ids=["tokenizers", "transformers"])
def test_characters_of_several_tokens_are_whole(whole: bool) -> None:
    """The first of their tokens has the character, the others nothing; bytes that are none stay marked."""
    made = byte_level()
    ids = made.encode("aé🙂b").ids
    if whole:
        from transformers import PreTrainedTokenizerFast

        made = PreTrainedTokenizerFast(tokenizer_object=made)
    assert pieces_of(made)(ids) == ["a", "é", "", "🙂", "", "", "", "b"]
    assert pieces_of(made)(ids[1:2]) == ["\ufffd"]


@pytest.mark.parametrize(
    ("wrong", "code"), [(3, "DL510"), (None, "DL510")], ids=["a number", "nothing"]
)  # fmt: skip
def test_what_makes_no_texts_is_refused(wrong: Any, code: str) -> None:
    """When the run starts, with what would do."""
    with pytest.raises(UsageError) as caught:
        pieces_of(wrong)
    assert caught.value.code == code


def test_a_function_gives_a_text_for_each_id() -> None:
    """Any other number of them is an error of the cell."""
    joined: Callable[[Any], list[str]] = lambda ids: ["".join(map(str, ids))]  # noqa: E731
    with pytest.raises(ValueError, match="2 ids, for which `tokenizer` gave 1 texts"):
        pieces_of(joined)([1, 2])
