"""The texts of a run's samples, and a summary of each prompt: its attempts, its scores, and when it was solved."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from declog.records import is_conversation

Rows = Sequence[Mapping[str, Any]]
RANK = "declog_rank"  # the column of the rank whose sink wrote a row, if several ranks wrote the table
STAMPS = ("step", "mode", "declog_step", RANK, "group", "row", "why", "run_id", "declog_run_id")

# patterns of the names of columns
COMPLETION = re.compile(r"completion|response|answer|output", re.I)
PROMPT = re.compile(r"prompt|question|query|input", re.I)
SCORE = re.compile(r"reward|score", re.I)

PROMPTS = {
    "prompt": "string", "attempts": "int64", "mean": "float64", "best": "float64", "solved": "float64",
    "first_solved": "int64", "trend": "float64", "first_step": "int64", "last_step": "int64",
}  # the columns of prompts, and their Arrow types  # fmt: skip


def is_long(value: Any) -> bool:
    """Whether a cell is shown below its row: true for texts, conversations and tokens, false for numbers and bools."""
    return isinstance(value, str | list | dict | tuple)


def text_of(value: Any) -> str:
    """The text of a value: all messages of a conversation, or the joined pieces of tokens."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        if isinstance(value.get("tokens"), list):
            return "".join(map(str, value["tokens"]))
        if isinstance(value.get("text"), str):  # a content part of a message
            return str(value["text"])
        return text_of(value["content"]) if "content" in value else " ".join(map(text_of, value.values()))
    if isinstance(value, list | tuple):
        return "\n".join(map(text_of, value))
    return "" if value is None else str(value)


def last_said(value: Any, role: str) -> str:
    """The last text of a role in a conversation, or else of any role but `system`; for other values, their text."""
    if not is_conversation(value):
        return text_of(value)
    texts = [(one["role"], text_of(one.get("content"))) for one in value]
    said = [text for who, text in texts if who == role and text] or [text for who, text in texts if who != "system"]
    return said[-1] if said else ""


def prompt_column(rows: Rows) -> str | None:
    """The column of prompts: the first of texts or conversations that matches ``PROMPT``; None if there is none."""
    texts = [key for key in _keys(rows) if any(isinstance(row.get(key), str | list) for row in rows)]
    return next((key for key in texts if PROMPT.search(key)), None)


def score_column(rows: Rows, preferred: str | None = None) -> str | None:
    """The column of numbers that rates rows: ``preferred``, `reward`, `score`, or a similar name; else None."""
    numbers = numeric_columns(rows)
    names = (preferred, "reward", "score", *filter(SCORE.search, numbers))
    return next((name for name in names if name in numbers), None)


def numeric_columns(rows: Rows) -> list[str]:
    """The columns that have a number in some row."""
    return [key for key in _keys(rows) if any(as_number(row.get(key)) is not None for row in rows)]


def step_of(row: Mapping[str, Any]) -> int:
    """The row's own step if the table has such a column, else the step of the log event."""
    step = row.get("step")
    return int(step if isinstance(step, int) else row.get("declog_step") or 0)


def prompt_of(value: Any) -> str:
    """A prompt as a text; of a conversation, the user's last message."""
    return last_said(value, "user")


def prompts_of(rows: Rows, prompt: str, score: str, solved: float | None = None) -> list[dict[str, Any]]:
    """A map for each prompt, the never solved prompts first, then by the mean score.

    Its keys are ``prompt``; ``attempts``; ``mean`` and ``best`` score; ``solved``, the share of the attempts whose
    score is at least ``solved`` (by default the best score of all rows); ``first_solved``, the step of the first such
    attempt, or None; ``trend``, the mean score of the later half of the attempts minus that of the earlier half;
    ``first_step`` and ``last_step``. Rows without a score count as attempts. ``mean`` and ``best`` are None without
    scores, and ``trend`` with fewer than two.
    """
    scores = [number for row in rows if (number := as_number(row.get(score))) is not None]
    enough = solved if solved is not None else max(scores, default=math.inf)
    attempts: dict[str, list[tuple[int, float | None]]] = {}
    for row in rows:
        attempts.setdefault(prompt_of(row.get(prompt)), []).append((step_of(row), as_number(row.get(score))))
    summaries = [_summary(text, tries, enough) for text, tries in attempts.items()]
    return sorted(summaries, key=lambda one: (one["solved"] > 0, one["mean"] is None, one["mean"] or 0.0))


def _summary(prompt: str, tries: list[tuple[int, float | None]], enough: float) -> dict[str, Any]:
    tries = sorted(tries, key=lambda one: one[0])
    scores = [score for _, score in tries if score is not None]
    solved = [step for step, score in tries if score is not None and score >= enough]
    half = len(scores) // 2
    return {
        "prompt": prompt, "attempts": len(tries), "mean": _mean(scores), "best": max(scores, default=None),
        "solved": len(solved) / len(tries), "first_solved": solved[0] if solved else None,
        "trend": _mean(scores[half:]) - _mean(scores[:half]) if half else None,  # type: ignore[operator]
        "first_step": tries[0][0], "last_step": tries[-1][0],
    }  # fmt: skip


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def as_number(value: Any) -> float | None:
    """The value as a float if it is a number; None for anything else, also for bools and NaN."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return float(value) if number else None


def _keys(rows: Rows) -> list[str]:
    return [key for key in dict.fromkeys(key for row in rows for key in row) if key not in STAMPS]
