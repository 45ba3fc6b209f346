"""``declog samples``: samples of a run, to be read in a terminal: whole texts, the best and worst marked.

RUN is a run's folder, also while it is being written. Tokens are coloured where a column is of `type: tokens`.

  declog samples outputs/grpo/2026-11-22_08-00
  declog samples RUN --step 120 --worst 4
  declog samples RUN --step 120 --group 3        all that was kept of one group, the best first
  declog samples RUN --table chats --mode eval --json
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import write_json
from declog.errors import did_you_mean

Row = Mapping[str, Any]

SUMMARY = "read a run's samples in a terminal"
KEYS = ("reward", "score", "rewards", "advantages", "advantage", "mean")  # what samples are better or worse by
RANK = "declog_rank"
STAMPS = ("step", "mode", "declog_step", RANK, "group", "row", "why", "run_id", "declog_run_id")
LIMIT = 8


def arguments(parser: Parser) -> None:
    """A run, and which of its samples."""
    parser.add("run", metavar="RUN", help="the run's folder")
    parser.add("--step", type=int, metavar="N", help="of this step; by default of the last that has any")
    parser.add("--mode", metavar="MODE", help="of this mode; by default train, or what there is")
    parser.add("--table", metavar="NAME", help="of this table; by default the first with texts")
    parser.add("--by", metavar="COLUMN", help=f"what makes one better; by default {', '.join(KEYS[:2])} or the like")
    parser.add("--worst", type=int, metavar="N", help="the N worst")
    parser.add("--best", type=int, metavar="N", help="the N best")
    parser.add("--group", type=int, metavar="G", help="of this group, the best first")
    parser.add(
        "--rank", type=int, metavar="R", help="of this rank, where each wrote its own rows and counts its own groups"
    )
    parser.add("--limit", type=int, default=LIMIT, metavar="N", help=f"at most so many; 0: all, {LIMIT} by default")
    parser.add("--color", metavar="VALUE", help="the value of tokens that colours them; by default the first")
    parser.add("--json", action="store_true", help="for programs: rows as they were written")


def run(given: argparse.Namespace) -> int:
    """Print them."""
    from declog.runs.run import read

    found = read(given.run)
    if not found.tables:
        raise Wrong(
            f"the run in {found.path} has no tables yet", "a sink that writes files, and a table in its profile"
        )
    name, rows = _table(found.tables, given.table)
    rows, mode = _of_mode(rows, given.mode)
    rows, step = _of_step(rows, given.step)
    rows = _of_rank(rows, given.rank)
    key = _key(rows, given.by)
    chosen = _chosen(rows, key, given)
    if given.json:
        write_json([_strict(row) for row in chosen])
        return 0
    from declog.cli.sample_cards import printed

    left = len(rows) - len(chosen)
    head = f"{found.name} · {name} · {mode} · step {step} · {len(chosen)} of {len(rows)} rows"
    printed(head, chosen, key=key, colour=given.color, by_place=_ends(chosen, rows, key))
    if left and given.worst is None and given.best is None and given.group is None:
        print(f"and {left} more: --worst N, --best N, --group G, or --limit 0")
    return 0


def _table(tables: Mapping[str, Any], name: str | None) -> tuple[str, Sequence[Row]]:
    if name is not None:
        if name not in tables:
            raise Wrong(f"the run has no table `{name}`", did_you_mean(name, list(tables), what="tables"))
        return name, tables[name].rows()
    read = {each: tables[each].rows() for each in tables}
    texts = {
        each: max((_reads(value) for key, value in rows[-1].items() if key not in STAMPS), default=0)
        for each, rows in read.items()
        if rows
    }
    if not texts:
        raise Wrong("no table of the run has a row yet")
    first = max(texts, key=lambda each: texts[each])
    return first, read[first]


def _reads(value: Any) -> int:
    """How much a cell is to be read: a text or a conversation most, then tokens."""
    return 2 if isinstance(value, str | list) else 1 if isinstance(value, dict) else 0


def _of_mode(rows: Sequence[Row], mode: str | None) -> tuple[Sequence[Row], str]:
    modes = list(dict.fromkeys(str(row.get("mode")) for row in rows))
    if mode is None:
        mode = "train" if "train" in modes or not modes else modes[0]
    elif mode not in modes:
        raise Wrong(f"the table has no rows of the mode `{mode}`", did_you_mean(mode, modes, what="modes"))
    return [row for row in rows if str(row.get("mode")) == mode], mode


def _of_step(rows: Sequence[Row], step: int | None) -> tuple[Sequence[Row], int]:
    steps = sorted({int(row["step"]) for row in rows})
    if not steps:
        raise Wrong("the table has no rows")
    if step is None:
        step = steps[-1]
    elif step not in steps:
        near = sorted(sorted(steps, key=lambda each: abs(each - step))[:4])
        raise Wrong(f"the table has no rows of step {step}", f"steps that have some: {', '.join(map(str, near))}, ...")
    return [row for row in rows if int(row["step"]) == step], step


def _of_rank(rows: Sequence[Row], rank: int | None) -> Sequence[Row]:
    if rank is None:
        return rows
    ranks = sorted({row[RANK] for row in rows if row.get(RANK) is not None})
    if rank not in ranks:
        wrote = f"ranks here: {', '.join(map(str, ranks))}" if ranks else "this table's rows say no rank: leave it out"
        raise Wrong(f"rank {rank} wrote no rows of this step", wrote)
    return [row for row in rows if row.get(RANK) == rank]


def _key(rows: Sequence[Row], name: str | None) -> str | None:
    """The column by which rows are better or worse; None where there is no number."""
    numbers = [
        key for key in dict.fromkeys(key for row in rows for key in row)
        if key not in STAMPS and any(_number(row.get(key)) is not None for row in rows)
    ]  # fmt: skip
    if name is not None and name not in numbers:
        raise Wrong(f"`{name}` is no column of numbers here", did_you_mean(name, numbers, what="columns"))
    return name or next((key for key in KEYS if key in numbers), next(iter(numbers), None))


def _number(value: Any) -> float | None:
    """A number that can be compared."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return float(value) if number else None


def _chosen(rows: Sequence[Row], key: str | None, given: argparse.Namespace) -> list[Row]:
    if given.group is not None:
        groups = sorted({row["group"] for row in rows if row.get("group") is not None})
        if given.group not in groups:
            fix = f"groups here: {', '.join(map(str, groups))}" if groups else "this table's rows say no group"
            raise Wrong(f"there is no group {given.group}", fix)
        rows = [row for row in rows if row.get("group") == given.group]
        ranks = sorted({row[RANK] for row in rows if row.get(RANK) is not None})
        if len(ranks) > 1:
            said = ", ".join(map(str, ranks))
            raise Wrong(f"ranks {said} each have a group {given.group}", f"--group {given.group} --rank {ranks[0]}")
    ordered = _ordered(rows, key)
    if given.best is None and given.worst is None:
        shown = ordered if given.group is not None else list(rows)
        return shown[: given.limit] if given.limit and given.group is None else shown
    if key is None:
        raise Wrong("nothing says which rows are better", "--by COLUMN")
    best, worst = given.best or 0, given.worst or 0
    known = [row for row in ordered if _number(row.get(key)) is not None]
    return known[:best] + known[max(len(known) - worst, min(best, len(known))) :]


def _ordered(rows: Sequence[Row], key: str | None) -> list[Row]:
    """The best first; those without a number last."""

    def place(row: Row) -> tuple[bool, float]:
        number = None if key is None else _number(row.get(key))
        return number is None, 0.0 if number is None else -number

    return sorted(rows, key=place)


def _ends(chosen: Sequence[Row], rows: Sequence[Row], key: str | None) -> list[str]:
    """For each row `best` or `worst`: where its filter said so, or its number is the greatest or smallest."""
    from declog.sinks._shared import end_of

    numbers = [number for row in rows if key is not None and (number := _number(row.get(key))) is not None]
    ends = {max(numbers): "best", min(numbers): "worst"} if len(set(numbers)) > 1 else {}

    def end(row: Row) -> str:
        number = None if key is None else _number(row.get(key))
        return end_of(str(row.get("why") or "")) or ("" if number is None else ends.get(number, ""))

    return list(map(end, chosen))


def _strict(row: Row) -> dict[str, Any]:
    from declog.sinks._shared import strict

    made: dict[str, Any] = strict(dict(row))
    return made
