"""``--where``: what it means of rows that were written is what a filter means of the same rows in training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.errors import ConfigError
from declog.language.dtypes import DType
from declog.runs.row_conditions import dtype_of, matching, named_columns
from declog.runs.run import read

SHARED = json.loads((Path(__file__).parents[1] / "data" / "where.json").read_text(encoding="utf-8"))
ROWS = [{"step": 0, **row} for row in SHARED["rows"]]
SIGNALS = {
    "reward": {"axis": "completion"}, "length": {"axis": "completion", "type": "int"},
    "completion": {"axis": "completion", "type": "text"}, "ok": {"axis": "completion", "type": "bool"},
    "prompt_id": {"axis": "completion", "type": "int"}, "chat": {"axis": "completion", "type": "object"},
}  # fmt: skip
QUESTIONS = (
    "reward < mean(reward, over=completion)",
    "rank(-reward, within=group) == 1 and step > 1",
    "reward == max(reward, over=completion) or not ok",
    "len(completion) > 6 and length - 3 * floor(length / 3) != 1",
    "matches(completion, '^a+ [12]') and not contains(completion, '0')",
    "step == 1 or (reward - 0.5) * length > limit",
    "isnan(reward)",
    "std(reward, over=completion) < 0.3",
    "(1 if ok else 0) + length > 7",
)


@pytest.mark.parametrize(("question", "expected"), SHARED["cases"])
def test_the_cases_that_the_page_shares(question: str, expected: list[int]) -> None:
    """The same rows as on the page and in a table's filter."""
    assert matching(ROWS, question) == [ROWS[place] for place in expected]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of two groups of four, all rows of which a table keeps; for each question a filter's rows."""
    folder = tmp_path_factory.mktemp("conditions") / "run"
    schema: dict[str, Any] = {name: {"type": spec.get("type", "float")} for name, spec in SIGNALS.items()}
    profile: dict[str, Any] = {
        "signals": {"any": SIGNALS}, "axes": {"group": {"of": "prompt_id"}}, "constants": {"limit": 2.5},
        "schemas": {"s": schema},
        "filters": {f"f{place}": {"where": question} for place, question in enumerate(QUESTIONS)},
        "tables": {f"t{place}": {"schema": "s", "filter": f"f{place}"} for place in range(len(QUESTIONS))},
        "sinks": ["parquet"],
    }  # fmt: skip
    profile["tables"]["all"] = {"schema": "s"}
    with declog.start(profile, output_dir=folder) as log:
        for step in range(3):
            with log.step(step):
                log.observe(
                    reward=[math.nan if place == step else ((5 * place + step) % 8) / 8 for place in range(8)],
                    length=[place + step for place in range(8)], ok=[place % 3 != step for place in range(8)],
                    completion=["a" * (place + 1) + f" {step}{place}" for place in range(8)],
                    prompt_id=[place // 4 for place in range(8)],
                    chat=[[{"role": "user", "content": "x"}] for _ in range(8)],
                )  # fmt: skip
    return folder


@pytest.mark.parametrize("place", range(len(QUESTIONS)), ids=lambda place: QUESTIONS[place])
def test_the_whole_language_means_what_it_means_in_training(place: int, recorded: Path) -> None:
    """Functions, groups, steps, constants, missing values: the rows that the profile's own filter took."""
    run = read(recorded)
    expected = list(run.tables[f"t{place}"])
    chosen = matching(list(run.tables["all"]), QUESTIONS[place], run.constants)
    assert [(row["step"], row["row"]) for row in chosen] == [(row["step"], row["row"]) for row in expected]
    assert 0 < len(chosen) < 24


def test_rows_of_ranks_and_steps_in_any_order_stay_in_it() -> None:
    """`step` and `rank` are each row's own, and groups of two ranks are two."""
    rows = [
        {"step": step, "declog_rank": rank, "group": 0, "reward": float(10 * rank + place)}
        for place in range(2) for rank in (1, 0) for step in (4, 2)
    ]  # fmt: skip
    assert matching(rows, "step == 2 and rank == 1") == [row for row in rows if row["step"] == 2 and row["declog_rank"]]
    assert matching(rows, "reward > mean(reward, over=completion)") == rows[4:]
    assert matching([], "step > 1") == []


@pytest.mark.parametrize(
    ("question", "lines"),
    [
        ("rewrd < 1", ["unknown column `rewrd`", "  rewrd < 1", "  ^^^^^", "did you mean `reward`?  columns: "]),
        ("zzz < 1", ["unknown column `zzz`", "  ^^^", "columns: completion, length, ok, rank, reward, source, step"]),
        ("reward < 1 and source == math", ["`math` is no column", "                         ^^^^", "source == 'math'"]),
        ("reward <", ["cannot be parsed", "a value is missing"]),
        ("reward", ["needs bool", "reward > 0"]),
        ("lenth(completion) > 3", ["unknown function `lenth`", "did you mean"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_shown_where_it_is(question: str, lines: list[str]) -> None:
    """At the option, with a caret, the nearest name, and the columns that there are."""
    with pytest.raises(ConfigError) as caught:
        matching(ROWS, question)
    text = str(caught.value)
    assert text.splitlines()[0].endswith("--where")
    assert [line for line in lines if line not in text] == [], text


def test_columns_have_names_and_types() -> None:
    """As on the page `reward/correct` is `reward_correct`; a type is that of all values."""
    assert named_columns([{"reward/correct": 1, "step": 0, "1st": 2, "not": 3}, {"größe": 4}]) == {
        "reward_correct": "reward/correct", "größe": "größe",
    }  # fmt: skip
    for values, expected in (
        ([True, None], DType.BOOL), ([1, None], DType.INT), ([1, 2.5], DType.FLOAT), ([None], DType.FLOAT),
        ([2**70], DType.FLOAT), (["a", None], DType.TEXT), (["a", 1], DType.OBJECT), ([[1]], DType.OBJECT),
        ([True, 1], DType.OBJECT),
    ):  # fmt: skip
        assert dtype_of(values) == expected
