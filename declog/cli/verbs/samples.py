"""``declog samples``: read samples of a run in a terminal: complete texts, with the best and worst marked.

RUN is the folder of a run, which may go on. Columns of `type: tokens` are coloured by their values.

  declog samples outputs/grpo/2026-11-22_08-00
  declog samples RUN --step 120 --worst 4
  declog samples RUN --step 120 --group 3        all samples of one group, the best first
  declog samples RUN --where "reward < 0.2 and length > 800" --sort length --descending
  declog samples RUN --prompt "2 + 2"            every attempt at the prompts that have this text
  declog samples RUN --by-prompt                 how often each prompt was tried and solved, the never solved first
  declog samples RUN --table chats --mode eval --json
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import write_json
from declog.errors import did_you_mean
from declog.records import strict
from declog.runs.prompts import RANK, STAMPS, as_number, numeric_columns, prompt_column, prompt_of, prompts_of, step_of

Row = Mapping[str, Any]

GROUP = "runs"
SUMMARY = "read a run's samples in a terminal"
KEYS = ("reward", "score", "rewards", "advantages", "advantage", "mean")  # columns that rank samples
LIMIT, PROMPT_LIMIT = 8, 20


def arguments(parser: Parser) -> None:
    """Add the run and the choice of samples."""
    parser.add("run", metavar="RUN", help="the run's folder")
    parser.add(
        "--step", type=int, metavar="N",
        help="only this step; by default the last one, or all steps with --where, --prompt and --by-prompt",
    )  # fmt: skip
    parser.add("--mode", metavar="MODE", help="only this mode; by default train, or else the first mode that has rows")
    parser.add("--table", metavar="NAME", help="this table; by default the first that has texts")
    parser.add("--by", metavar="COLUMN", help=f"the column that ranks rows; by default {' or '.join(KEYS[:2])}")
    parser.add("--worst", type=int, metavar="N", help="the N worst")
    parser.add("--best", type=int, metavar="N", help="the N best")
    parser.add("--group", type=int, metavar="G", help="only this group, the best rows first")
    parser.add("--rank", type=int, metavar="R", help="only this rank, if each rank wrote its own rows and groups")
    parser.add("--where", metavar="EXPR", help="rows for which this expression over the columns is true")
    parser.add("--prompt", metavar="TEXT", help="rows whose prompt contains this text, in upper or lower case")
    parser.add("--by-prompt", action="store_true", help="a line for each prompt: attempts, scores, share solved, steps")
    parser.add(
        "--solved", type=float, metavar="X", help="with --by-prompt: the least solved score; by default the best"
    )
    parser.add("--sort", metavar="COLUMN", help="sort by this column, missing values last")
    parser.add("--descending", action="store_true", help="with --sort: the greatest first")
    parser.add(
        "--limit", type=int, metavar="N", help=f"at most N, 0: all; by default {LIMIT} rows, {PROMPT_LIMIT} prompts"
    )
    parser.add("--color", metavar="VALUE", help="the value of tokens that colours them; by default the first")
    parser.add("--json", action="store_true", help="print JSON for programs: the rows as they were written")


def run(args: argparse.Namespace) -> int:
    """Print the samples, or the prompts with ``--by-prompt``."""
    from declog.cli.sample_cards import print_prompts, print_samples
    from declog.runs.run import read

    if args.solved is not None and not args.by_prompt:
        raise Wrong("`--solved` says of prompts when they are solved", f"--by-prompt --solved {args.solved}")
    if args.descending and args.sort is None:
        raise Wrong("`--descending` has no column", "--sort COLUMN --descending")
    logged_run = read(args.run)
    if not logged_run.tables:
        raise Wrong(
            f"the run in {logged_run.path} has no tables yet", "a sink that writes files, and a table in its profile"
        )
    name, rows = _table(logged_run.tables, args.table)
    rows, mode = _of_mode(rows, args.mode)
    searched = args.where is not None or args.prompt is not None or args.by_prompt
    if args.step is not None or args.group is not None or not searched:
        rows = _of_step(rows, args.step)
    if args.rank is not None:
        rows = _with(rows, RANK, args.rank, f"rank {args.rank} wrote no rows of this step")
    score = _score(rows, args.by)
    rows = _searched(rows, args, logged_run.constants)
    head = f"{logged_run.name} · {name} · {mode} · {_steps(rows)}"
    if args.by_prompt:
        rows = _prompts(rows, score, args.solved)
    if args.sort is not None:
        rows = _sorted(rows, args.sort, descending=args.descending)
    most = (PROMPT_LIMIT if args.by_prompt else LIMIT) if args.limit is None else args.limit or None
    chosen = _chosen_prompts(rows, args, most) if args.by_prompt else _chosen(rows, score, args, most)
    if args.json:
        write_json(strict(chosen))
    elif args.by_prompt:
        never = sum(not one["solved"] for one in rows)
        count = f"{len(chosen)} of {len(rows)} prompts, {never} never solved, by {score}"
        print_prompts(f"{head} · {count}", chosen)
    else:
        head = f"{head} · {len(chosen)} of {len(rows)} rows"
        print_samples(head, chosen, score, colour=args.color, ends=_ends(chosen, rows, score))
        if len(chosen) < len(rows) and args.worst is None and args.best is None and args.group is None:
            print(f"and {len(rows) - len(chosen)} more: --worst N, --best N, --group G, or --limit 0")
    return 0


# -- the choice of rows


def _table(tables: Mapping[str, Any], name: str | None) -> tuple[str, Sequence[Row]]:
    """The table of a name and its rows; by default the first table with the most readable last row."""
    if name is not None and name not in tables:
        raise Wrong(f"the run has no table `{name}`", did_you_mean(name, list(tables), what="tables"))
    rows_of = {id: list(tables[id]) for id in (tables if name is None else [name])}
    if name is None:
        cells = {id: rows[-1].items() for id, rows in rows_of.items() if rows}
        if not cells:
            raise Wrong("no table of the run has a row yet")
        readable = {
            id: max((_readable(cell) for key, cell in items if key not in STAMPS), default=0)
            for id, items in cells.items()
        }
        name = max(readable, key=readable.__getitem__)
    if not rows_of[name]:
        raise Wrong(f"no row was written into the table `{name}`")
    return name, rows_of[name]


def _readable(value: Any) -> int:
    """A score for the readability of a cell: 2 for texts and conversations, 1 for tokens, 0 for others."""
    return 2 if isinstance(value, str | list) else 1 if isinstance(value, dict) else 0


def _of_mode(rows: Sequence[Row], mode: str | None) -> tuple[Sequence[Row], str]:
    modes = list(dict.fromkeys(str(row.get("mode")) for row in rows))
    if mode is None:
        mode = "train" if "train" in modes or not modes else modes[0]
    elif mode not in modes:
        raise Wrong(f"the table has no rows of the mode `{mode}`", did_you_mean(mode, modes, what="modes"))
    return [row for row in rows if str(row.get("mode")) == mode], mode


def _of_step(rows: Sequence[Row], step: int | None) -> Sequence[Row]:
    steps = sorted(set(map(step_of, rows)))
    if not steps:
        raise Wrong("the table has no rows")
    if step is None:
        step = steps[-1]
    elif step not in steps:
        near = sorted(sorted(steps, key=lambda number: abs(number - step))[:4])
        raise Wrong(f"the table has no rows of step {step}", f"steps that have some: {', '.join(map(str, near))}, ...")
    return [row for row in rows if step_of(row) == step]


def _steps(rows: Sequence[Row]) -> str:
    """The steps of rows, in words."""
    steps = list(map(step_of, rows))
    if not steps:
        return "no steps"
    return f"step {steps[0]}" if min(steps) == max(steps) else f"steps {min(steps)} to {max(steps)}"


def _with(rows: Sequence[Row], column: str, value: int, absent: str) -> list[Row]:
    """The rows with a value in a column; raises ``Wrong`` with the values that exist if no row has it."""
    noun = column.removeprefix("declog_")
    values = _values(rows, column)
    if value not in values:
        there = f"{noun}s here: {', '.join(map(str, values))}" if values else ""
        raise Wrong(absent, there or f"this table's rows say no {noun}: leave it out")
    return [row for row in rows if row.get(column) == value]


def _values(rows: Sequence[Row], column: str) -> list[int]:
    return sorted({row[column] for row in rows if row.get(column) is not None})


def _searched(rows: Sequence[Row], args: argparse.Namespace, constants: Mapping[str, Any]) -> Sequence[Row]:
    """The rows that match --prompt and --where."""
    if args.prompt is not None:
        column = _prompt_column(rows)
        text = args.prompt.casefold()
        rows = [row for row in rows if text in prompt_of(row.get(column)).casefold()]
        if not rows:
            raise Wrong(f"no prompt has the text `{args.prompt}`", "declog samples RUN --by-prompt lists the prompts")
    if args.where is not None:
        from declog.runs.row_conditions import matching

        rows = matching(rows, args.where, constants)
    return rows


def _prompt_column(rows: Sequence[Row]) -> str:
    column = prompt_column(rows)
    if column is None and rows:
        raise Wrong("the table has no column of prompts", "--table NAME of one that has, or `prompt` in its schema")
    return column or ""


def _score(rows: Sequence[Row], name: str | None) -> str | None:
    """The column that ranks rows; None if no column has numbers."""
    numbers = numeric_columns(rows)
    if name is not None and name not in numbers:
        raise Wrong(f"`{name}` is no column of numbers here", did_you_mean(name, numbers, what="columns"))
    return name or next((key for key in KEYS if key in numbers), next(iter(numbers), None))


# -- their number and order


def _prompts(rows: Sequence[Row], score: str | None, solved: float | None) -> Sequence[Row]:
    """A map for each prompt, the never solved prompts first."""
    if score is None:
        raise Wrong("nothing says how good a row is", "--by COLUMN")
    return prompts_of(rows, _prompt_column(rows), score, solved)


def _chosen_prompts(prompts: Sequence[Row], args: argparse.Namespace, most: int | None) -> Sequence[Row]:
    if args.best is not None:
        return prompts[::-1][: args.best]
    return prompts[: most if args.worst is None else args.worst]


def _chosen(rows: Sequence[Row], score: str | None, args: argparse.Namespace, most: int | None) -> Sequence[Row]:
    if args.group is not None:
        rows = _with(rows, "group", args.group, f"there is no group {args.group}")
        ranks = _values(rows, RANK)
        if len(ranks) > 1:
            said = ", ".join(map(str, ranks))
            raise Wrong(f"ranks {said} each have a group {args.group}", f"--group {args.group} --rank {ranks[0]}")
        rows = rows if score is None else _sorted(rows, score, descending=True)
    if args.best is None and args.worst is None:
        return rows[: most if args.group is None else None]
    if score is None:
        raise Wrong("nothing says which rows are better", "--by COLUMN")
    best, worst = args.best or 0, args.worst or 0
    scored = [row for row in rows if as_number(row.get(score)) is not None]
    ranked = _sorted(scored, score, descending=True)
    return ranked[:best] + ranked[max(len(ranked) - worst, min(best, len(ranked))) :]


def _sorted(rows: Sequence[Row], column: str, *, descending: bool) -> list[Row]:
    """Sort rows by a column: numbers first, then texts by their letters, then missing values."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if rows and column not in columns:
        raise Wrong(f"there is no column `{column}` to sort by", did_you_mean(column, columns, what="columns"))

    def order(row: Row) -> tuple[bool, float, str]:
        value = row.get(column)
        number = float(value) if isinstance(value, bool) else as_number(value)
        return number is None, number or 0.0, "" if number is not None else str(value)

    def missing(row: Row) -> bool:
        value = row.get(column)
        return value is None or value != value

    there = sorted((row for row in rows if not missing(row)), key=order, reverse=descending)
    return there + [row for row in rows if missing(row)]


def _ends(chosen: Sequence[Row], rows: Sequence[Row], score: str | None) -> list[str]:
    """`best`, `worst` or nothing for each chosen row: by its filter, else by the greatest and least of all scores."""
    from declog.sinks._rows import end_of

    def number(row: Row) -> float | None:
        return None if score is None else as_number(row.get(score))

    numbers = {value for value in map(number, rows) if value is not None}
    ends: dict[float | None, str] = {max(numbers): "best", min(numbers): "worst"} if len(numbers) > 1 else {}
    return [end_of(str(row.get("why") or "")) or ends.get(number(row), "") for row in chosen]
