"""Packs a run's tables for a page: short values of all rows together, long texts in chunks that are read when shown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from declog.records import strict
from declog.runs.prompts import COMPLETION, PROMPT, RANK, is_long, last_said, score_column, step_of, text_of
from declog.runs.report.blobs import Blobs

CHUNK = 64  # rows
LABEL = 40  # characters
STAMPS = ("step", "mode", "declog_step", "run_id", "declog_run_id")

Rows = Sequence[Mapping[str, Any]]


def table(name: str, rows: Rows, facts: Mapping[str, Any], blobs: Blobs) -> dict[str, Any]:
    """One table as data for the page.

    ``long`` and ``plain`` are the names of its columns; ``main`` is the column of completions, ``score`` of scores.
    """
    columns = list(rows[0]) if rows else []
    words = [column for column in columns if any(is_long(row[column]) for row in rows)]
    texts = [column for column in words if column not in (*STAMPS, "why")]
    long = [column for column in texts if not _is_label(column, rows)] or texts
    plain = [column for column in columns if column not in long]
    prompt = _first(long, PROMPT)
    main = _first([column for column in long if column != prompt and not _of_tokens(rows, column)], COMPLETION)
    main = main or next((column for column in reversed(long) if column != prompt), prompt)
    light: dict[str, Any] = {
        column: [strict(row[column]) for row in rows] for column in plain if column not in STAMPS[3:]
    }
    light["step"] = [step_of(row) for row in rows]
    light["mode"] = [row.get("mode", "train") for row in rows]
    light["_preview"] = [shortened(last_said(row[main], "assistant"), 22, 58) if main else "" for row in rows]
    light["_length"] = [len(text_of(row[main])) if main else 0 for row in rows]
    if prompt is not None:
        asked = [text_of(row[prompt]) for row in rows]
        light["_prompt"] = [shortened(last_said(row[prompt], "user"), 50) for row in rows]
        light["_asked"] = _numbered(asked)
    if (group := _groups(rows, light)) is not None:
        light["_group"] = group
    columns_of = {one["expr"]: one["name"] for one in facts.get("columns", []) if one["expr"]}
    key = facts.get("key")  # the filter's key, an expression
    heavy = [{column: strict(_compact(row[column])) for column in long} for row in rows]
    return {
        "name": name, "rows": len(rows), "long": long, "plain": plain, "main": main, "chunk": CHUNK,
        "score": score_column(rows, columns_of.get(key, key)), "light": blobs.add_json(light),
        "chunks": [blobs.add_json(heavy[start : start + CHUNK]) for start in range(0, len(rows), CHUNK)],
    }  # fmt: skip


def _is_label(column: str, rows: Rows) -> bool:
    """Whether a column has labels of rows, such as their source: short texts that several rows share."""
    values = [row[column] for row in rows if row[column] is not None]
    short = all(isinstance(value, str) and len(value) <= LABEL for value in values)
    return (
        short
        and len(set(values)) <= max(4, len(rows) // 2)
        and not (COMPLETION.search(column) or PROMPT.search(column))
    )


def _of_tokens(rows: Rows, column: str) -> bool:
    return any(isinstance(row[column], dict) and "tokens" in row[column] for row in rows)


def _compact(value: Any) -> Any:
    """Round the values of a cell of tokens to four digits, since colours show fewer; other cells stay unchanged."""
    if not (isinstance(value, dict) and isinstance(value.get("tokens"), list)):
        return value
    return {key: [_rounded(one) for one in item] if isinstance(item, list) else item for key, item in value.items()}


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) and math.isfinite(value) else value


def _first(columns: Sequence[str], pattern: re.Pattern[str]) -> str | None:
    return next((column for column in columns if pattern.search(column)), None)


def _groups(rows: Rows, light: Mapping[str, Any]) -> list[int] | None:
    """The number of each row's group; None if rows have no groups.

    A group is one of a mode, step and rank: by the column `group` if the table has it, else by the prompt.
    """
    keys: Any = [row["group"] for row in rows] if rows and "group" in rows[0] else light.get("_asked")
    if keys is None or any(key is None for key in keys):
        return None
    ranks = [row.get(RANK) for row in rows]
    return _numbered(list(zip(light["mode"], light["step"], ranks, map(str, keys), strict=True)))


def _numbered(values: Sequence[Any]) -> list[int]:
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def shortened(text: str, head: int, tail: int = 0) -> str:
    """Shorten a text to one line: its first ``head`` and last ``tail`` characters."""
    line = " ".join(text[: 8 * head].split()) if tail == 0 else " ".join(text.split())
    if len(line) <= head + tail + 4:
        return line
    return f"{line[:head]} … {line[-tail:]}" if tail else f"{line[:head]}…"
