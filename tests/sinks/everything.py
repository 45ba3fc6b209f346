"""One run with several tables into every sink that keeps them; what it logs is known here without declog.

Run as a program, since trackio decides at its import where its data is: ``python -m tests.sinks.everything FOLDER``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.running import profile
from tests.sinks.samples import EXACT

STEPS, EVERY, ROWS = 6, 2, 3
COLUMNS = {
    "step": {"type": "int", "expr": "step"}, "id": {"type": "int"}, "score": {"type": "float"},
    "ok": {"type": "bool"}, "text": {"type": "text"},
    "rewards": {"type": "float", "name": "reward/{member}"}, "extra": {"undeclared": "keep"},
}  # fmt: skip
PROFILE = profile(
    {
        "score": {"axis": "completion"}, "id": {"axis": "completion", "type": "int"},
        "ok": {"axis": "completion", "type": "bool"}, "text": {"axis": "completion", "type": "text"},
        "chat": {"axis": "completion", "type": "object"}, "rewards": {"axis": "completion", "family": True},
    },
    {"score": {"expr": "score", "reduce": ["mean", "max"]}, "rewards": "sum(rewards)", "least": {
        "expr": "score", "reduce": "min", "name": "größe/漢字"}},
    schemas={"s": COLUMNS, "c": {"chat": {"type": "object"}, "id": {"type": "int"}}},
    filters={"best": {"key": "score", "top": 1, "bottom": 1, "within": "step"}},
    tables={
        "samples": {"schema": "s", "name": "train/samples"}, "best": {"schema": "s", "filter": "best"},
        "chats": {"schema": "c", "as": "trace"},
    },
    sinks=["parquet", "jsonl", "tensorboard", "console", "trackio", "wandb"],
    sink_options={"console": {"max_rows": 1}, "trackio": {"dir": "board"}, "wandb": {"mode": "offline"}},
    every=EVERY,
)  # fmt: skip


def completions(step: int) -> list[dict[str, Any]]:
    """The rows of a step: nulls, integers beyond 2**53, text that is not ASCII, a family and a column that grow."""
    found = []
    for row in range(ROWS):
        one: dict[str, Any] = {"step": step, "id": (EXACT + step, -7, 0)[row], "ok": row != 1}
        one["score"] = (step + 0.5, None, step + 0.25)[row]
        one["text"] = ("größer 漢字\nzwei | drei", "", "x" * 300)[row]
        one["reward/correct"] = float(row)
        one["reward/stil größe"] = 0.5 if step >= 3 else None  # a member that comes later, amid a window
        one["late"] = (2**60 + step, None, 1)[row] if step >= 4 else None  # a column of log_extra that comes later
        found.append(one)
    return found


def chat(step: int, row: int) -> list[dict[str, Any]]:
    """A row's conversation."""
    call = {"type": "function", "function": {"name": "add", "arguments": {"größe": EXACT + row}}}
    return [
        {"role": "user", "content": f"Frage {step} 漢字"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "ja"},
    ]


def best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first row has the greatest score of its step and the last the smallest; the second has none."""
    return [rows[0], rows[2]]


def windows() -> list[list[int]]:
    """The steps of each log event, which happens at the last of them."""
    return [list(range(first, first + EVERY)) for first in range(0, STEPS, EVERY)]


def scalars(steps: list[int]) -> dict[str, float]:
    """What a window logs."""
    rows = [row for step in steps for row in completions(step)]
    scores = [row["score"] for row in rows if row["score"] is not None]
    found = {"score/mean": sum(scores) / len(scores), "score/max": max(scores), "größe/漢字": min(scores)}
    for member in ("correct", "stil größe"):
        values = [row[f"reward/{member}"] for row in rows if row[f"reward/{member}"] is not None]
        if values:
            found[f"rewards/{member}"] = sum(values)
    return found


def main(folder: Path) -> None:
    """Log it all, then print what trackio has, which only its own process can read."""
    import declog

    with declog.start(PROFILE, output_dir=folder) as log:
        for step in range(STEPS):
            with log.step(step):
                rows = completions(step)
                columns = {name: [row[name] for row in rows] for name in rows[0]}
                members = {
                    name.removeprefix("reward/"): values
                    for name, values in columns.items()
                    if name.startswith("reward/") and values[0] is not None
                }
                log.observe(
                    **{name: columns[name] for name in ("id", "ok", "text", "score")},
                    rewards=members,
                    chat=[chat(step, row) for row in range(ROWS)],
                )
                if step >= 4:
                    log.log_extra("late", columns["late"])

    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = trackio.Api().runs("small")
    logs = SQLiteStorage.get_logs("small", run.name, run_id=run.id)
    traces = SQLiteStorage.get_traces("small", run.name, sort="step_asc")
    print(json.dumps({"logs": logs, "traces": traces}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
