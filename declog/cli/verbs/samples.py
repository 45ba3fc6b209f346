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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import write_json
from declog.errors import did_you_mean
from declog.runs.prompts import PROMPTS, STAMPS, as_number, prompt_column, prompt_of, prompts_of

Row = Mapping[str, Any]

GROUP = "runs"
SUMMARY = "read a run's samples in a terminal"
KEYS = ("reward", "score", "rewards", "advantages", "advantage", "mean")  # columns that rank samples
RANK = "declog_rank"
LIMIT, PROMPT_LIMIT = 8, 20


def arguments(parser: Parser) -> None:
    """Add the run and the choice of samples."""
    parser.add("run", metavar="RUN", help="the run's folder")
    parser.add(
        "--step", type=int, metavar="N",
        help="of this step; by default of the last that has any, and of all with --where, --prompt or --by-prompt",
    )  # fmt: skip
    parser.add("--mode", metavar="MODE", help="of this mode; by default train, or what there is")
    parser.add("--table", metavar="NAME", help="of this table; by default the first with texts")
    parser.add("--by", metavar="COLUMN", help=f"what makes one better; by default {', '.join(KEYS[:2])} or the like")
    parser.add("--worst", type=int, metavar="N", help="the N worst")
    parser.add("--best", type=int, metavar="N", help="the N best")
    parser.add("--group", type=int, metavar="G", help="of this group, the best first")
    parser.add(
        "--rank", type=int, metavar="R", help="of this rank, where each wrote its own rows and counts its own groups"
    )
    parser.add("--where", metavar="EXPR", help="for which this is true: an expression as in a filter, over the columns")
    parser.add("--prompt", metavar="TEXT", help="whose prompt has this text, in any case of letters")
    parser.add("--by-prompt", action="store_true", help="a line for each prompt: attempts, scores, share solved, steps")
    parser.add(
        "--solved", type=float, metavar="X", help="with --by-prompt: solved is a score from X on; by default the best"
    )
    parser.add("--sort", metavar="COLUMN", help="by this column, missing values last")
    parser.add("--descending", action="store_true", help="with --sort: the greatest first")
    parser.add(
        "--limit", type=int, metavar="N", help=f"at most so many; 0: all, {LIMIT} by default, {PROMPT_LIMIT} prompts"
    )
    parser.add("--color", metavar="VALUE", help="the value of tokens that colours them; by default the first")
    parser.add("--json", action="store_true", help="for programs: rows as they were written")


def run(args: argparse.Namespace) -> int:
    """Print them."""
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
    asked = args.where is not None or args.prompt is not None or args.by_prompt
    if args.step is not None or not asked or args.group is not None:
        rows = _of_step(rows, args.step)
    rows = _of_rank(rows, args.rank)
    key = _key(rows, args.by)
    rows = _answering(rows, args, logged_run.constants)
    head = f"{logged_run.name} · {name} · {mode} · {_steps(rows)}"
    if args.by_prompt:
        _show_prompts(rows, key, args, head)
        return 0
    chosen = _chosen(rows, key, args)
    if args.json:
        write_json([_strict(row) for row in chosen])
        return 0
    from declog.cli.sample_cards import printed

    hidden = len(rows) - len(chosen)
    head = f"{head} · {len(chosen)} of {len(rows)} rows"
    printed(head, chosen, key=key, colour=args.color, by_place=_ends(chosen, rows, key))
    if hidden and args.worst is None and args.best is None and args.group is None:
        print(f"and {hidden} more: --worst N, --best N, --group G, or --limit 0")
    return 0


def _answering(rows: Sequence[Row], args: argparse.Namespace, constants: Mapping[str, Any]) -> Sequence[Row]:
    """The rows that --prompt and --where ask for, in the order of --sort."""
    if args.prompt is not None:
        column = _prompts(rows)
        text = args.prompt.casefold()
        rows = [row for row in rows if text in prompt_of(row.get(column)).casefold()]
        if not rows:
            raise Wrong(f"no prompt has the text `{args.prompt}`", "declog samples RUN --by-prompt lists the prompts")
    if args.where is not None:
        from declog.runs.row_conditions import matching

        rows = matching(rows, args.where, constants)
    return rows if args.sort is None or args.by_prompt else _sorted(rows, args, dict.fromkeys(_columns(rows)))


def _sorted(rows: Sequence[Row], args: argparse.Namespace, columns: Iterable[str]) -> list[Row]:
    """The rows in the order of a column: numbers, then texts by their letters, then missing values."""
    if args.sort not in columns and rows:
        raise Wrong(f"there is no column `{args.sort}` to sort by", did_you_mean(args.sort, columns, what="columns"))

    def order(row: Row) -> tuple[bool, float, str]:
        value = row.get(args.sort)
        number = float(value) if isinstance(value, bool) else as_number(value)
        return number is None, number or 0.0, "" if number is not None else str(value)

    def missing(row: Row) -> bool:
        value = row.get(args.sort)
        return value is None or value != value

    there = sorted((row for row in rows if not missing(row)), key=order, reverse=args.descending)
    return there + [row for row in rows if missing(row)]


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


def _prompts(rows: Sequence[Row]) -> str:
    column = prompt_column(rows)
    if column is None and rows:
        raise Wrong("the table has no column of prompts", "--table NAME of one that has, or `prompt` in its schema")
    return column or ""


def _show_prompts(rows: Sequence[Row], key: str | None, args: argparse.Namespace, head: str) -> None:
    if key is None:
        raise Wrong("nothing says how good a row is", "--by COLUMN")
    prompts: Sequence[Row] = prompts_of(rows, _prompts(rows), key, args.solved)
    total, never = len(prompts), sum(not one["solved"] for one in prompts)
    if args.sort is not None:
        prompts = _sorted(prompts, args, PROMPTS)
    if args.best is not None:
        prompts = prompts[::-1][: args.best]
    elif args.worst is not None:
        prompts = prompts[: args.worst]
    else:
        prompts = prompts[: (PROMPT_LIMIT if args.limit is None else args.limit) or None]
    if args.json:
        write_json([_strict(one) for one in prompts])
        return
    from declog.cli.sample_cards import print_prompts

    print_prompts(f"{head} · {len(prompts)} of {total} prompts, {never} never solved, by {key}", prompts)


def _table(tables: Mapping[str, Any], name: str | None) -> tuple[str, Sequence[Row]]:
    if name is not None:
        if name not in tables:
            raise Wrong(f"the run has no table `{name}`", did_you_mean(name, list(tables), what="tables"))
        return name, tables[name].rows()
    read = {id: tables[id].rows() for id in tables}
    texts = {
        id: max((_reads(value) for key, value in rows[-1].items() if key not in STAMPS), default=0)
        for id, rows in read.items()
        if rows
    }
    if not texts:
        raise Wrong("no table of the run has a row yet")
    first = max(texts, key=lambda id: texts[id])
    return first, read[first]


def _reads(value: Any) -> int:
    """The rank of a cell by how readable it is: texts and conversations first, then tokens."""
    return 2 if isinstance(value, str | list) else 1 if isinstance(value, dict) else 0


def _of_mode(rows: Sequence[Row], mode: str | None) -> tuple[Sequence[Row], str]:
    modes = list(dict.fromkeys(str(row.get("mode")) for row in rows))
    if mode is None:
        mode = "train" if "train" in modes or not modes else modes[0]
    elif mode not in modes:
        raise Wrong(f"the table has no rows of the mode `{mode}`", did_you_mean(mode, modes, what="modes"))
    return [row for row in rows if str(row.get("mode")) == mode], mode


def _steps(rows: Sequence[Row]) -> str:
    """The steps of rows, in words."""
    steps = [int(row["step"]) for row in rows]
    if not steps:
        return "no steps"
    return f"step {steps[0]}" if min(steps) == max(steps) else f"steps {min(steps)} to {max(steps)}"


def _of_step(rows: Sequence[Row], step: int | None) -> Sequence[Row]:
    steps = sorted({int(row["step"]) for row in rows})
    if not steps:
        raise Wrong("the table has no rows")
    if step is None:
        step = steps[-1]
    elif step not in steps:
        near = sorted(sorted(steps, key=lambda number: abs(number - step))[:4])
        raise Wrong(f"the table has no rows of step {step}", f"steps that have some: {', '.join(map(str, near))}, ...")
    return [row for row in rows if int(row["step"]) == step]


def _of_rank(rows: Sequence[Row], rank: int | None) -> Sequence[Row]:
    if rank is None:
        return rows
    ranks = sorted({row[RANK] for row in rows if row.get(RANK) is not None})
    if rank not in ranks:
        wrote = f"ranks here: {', '.join(map(str, ranks))}" if ranks else "this table's rows say no rank: leave it out"
        raise Wrong(f"rank {rank} wrote no rows of this step", wrote)
    return [row for row in rows if row.get(RANK) == rank]


def _key(rows: Sequence[Row], name: str | None) -> str | None:
    """The column that ranks rows; None without a column of numbers."""
    numbers = [
        key for key in dict.fromkeys(key for row in rows for key in row)
        if key not in STAMPS and any(as_number(row.get(key)) is not None for row in rows)
    ]  # fmt: skip
    if name is not None and name not in numbers:
        raise Wrong(f"`{name}` is no column of numbers here", did_you_mean(name, numbers, what="columns"))
    return name or next((key for key in KEYS if key in numbers), next(iter(numbers), None))


def _chosen(rows: Sequence[Row], key: str | None, args: argparse.Namespace) -> list[Row]:
    if args.group is not None:
        groups = sorted({row["group"] for row in rows if row.get("group") is not None})
        if args.group not in groups:
            fix = f"groups here: {', '.join(map(str, groups))}" if groups else "this table's rows say no group"
            raise Wrong(f"there is no group {args.group}", fix)
        rows = [row for row in rows if row.get("group") == args.group]
        ranks = sorted({row[RANK] for row in rows if row.get(RANK) is not None})
        if len(ranks) > 1:
            said = ", ".join(map(str, ranks))
            raise Wrong(f"ranks {said} each have a group {args.group}", f"--group {args.group} --rank {ranks[0]}")
    ordered = _ordered(rows, key)
    if args.best is None and args.worst is None:
        shown = ordered if args.group is not None else list(rows)
        limit = LIMIT if args.limit is None else args.limit
        return shown[:limit] if limit and args.group is None else shown
    if key is None:
        raise Wrong("nothing says which rows are better", "--by COLUMN")
    best, worst = args.best or 0, args.worst or 0
    ranked = [row for row in ordered if as_number(row.get(key)) is not None]
    return ranked[:best] + ranked[max(len(ranked) - worst, min(best, len(ranked))) :]


def _ordered(rows: Sequence[Row], key: str | None) -> list[Row]:
    """The best rows first; rows without a number last."""

    def order(row: Row) -> tuple[bool, float]:
        number = None if key is None else as_number(row.get(key))
        return number is None, 0.0 if number is None else -number

    return sorted(rows, key=order)


def _ends(chosen: Sequence[Row], rows: Sequence[Row], key: str | None) -> list[str]:
    """For each row `best`, `worst` or empty: by its filter, or by the greatest and smallest number."""
    from declog.sinks._rows import end_of

    numbers = [number for row in rows if key is not None and (number := as_number(row.get(key))) is not None]
    ends = {max(numbers): "best", min(numbers): "worst"} if len(set(numbers)) > 1 else {}

    def end(row: Row) -> str:
        number = None if key is None else as_number(row.get(key))
        return end_of(str(row.get("why") or "")) or ("" if number is None else ends.get(number, ""))

    return list(map(end, chosen))


def _strict(row: Row) -> dict[str, Any]:
    from declog.sinks._shared import strict

    cells: dict[str, Any] = strict(dict(row))
    return cells
