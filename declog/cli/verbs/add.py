"""``declog add``: ask a run for a metric that it does not log, from its first step on.

declog computes the metric from the rows that the run kept, exactly as if it had been in the config. It writes the
values into the run's folder, `late/`, where `declog report` and `declog.read` read them. The run may go on, have ended,
or have been killed.

  declog add outputs/run 'by_source: {expr: reward, by: source}'
  declog add outputs/run 'spread: std(reward)' 'hard: {expr: reward, where: "solved < 0.1"}'
  declog add outputs/run more.yaml                 the entries of its `metrics`
  declog add outputs/run 'spread: std(reward)' --to wandb,trackio
  declog add outputs/run 'spread: std(reward)' --dry-run

A job with `run: {late: true}` checks the line itself and logs the metric from its next log event on.

declog refuses a metric of values that the run did not keep, and says why. `rows/rows.json` in its folder lists them.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import DIM, GREEN, answer, counted, paint
from declog.errors import in_flow

if TYPE_CHECKING:
    from declog.late import Late

WAIT_S = 60.0  # the longest wait for the answer of a running job
GROUP = "runs"
SUMMARY = "ask a run for a metric from its first step on"


def arguments(parser: Parser) -> None:
    """Add the run and the metrics to ask for."""
    parser.add("run", metavar="RUN", help="the run's folder")
    parser.add("lines", nargs="+", metavar="LINE", help="`NAME: what YAML says of it`, or a YAML file with `metrics`")
    parser.add("--to", metavar="SINKS", default="", help="bring it to trackers, too: `wandb,trackio`")
    parser.add("--dry-run", action="store_true", help="print the values, and write nothing")
    parser.formats()


def run(args: argparse.Namespace) -> int:
    """Compute the metrics, and write them into the run's folder."""
    from declog.late import ask, rows_of, write
    from declog.late.live import hand_over
    from declog.runs.folder import RUNNING
    from declog.runs.run import read

    if len(args.lines) == 2 and re.fullmatch(r"\w+:?", args.lines[0]):
        line = shlex.quote(f"{args.lines[0].rstrip(':')}: {args.lines[1]}")
        raise Wrong("a metric is one word of the shell, `NAME: EXPR`, and two came", line)
    if re.match(r"\w+ *[:=]", args.run) and not os.path.exists(args.run) and os.path.isdir(args.lines[-1]):
        raise Wrong("the run comes first", f"declog add {args.lines[-1]} {shlex.quote(args.run)}")
    if re.fullmatch(r"\w+", args.run) and not os.path.exists(args.run) and not re.search(r":|^\w+ *=", args.lines[0]):
        line = shlex.quote(f"{args.run}: {args.lines[0]}")
        raise Wrong(f"there is no run `{args.run}`: the run comes first", f"declog add RUN {line}")
    reading = read(args.run)
    folder = reading.path
    goes_on = reading.state == RUNNING and rows_of(folder)["runs"][-1]["late"] and not args.dry_run
    lines, files = dict[str, str](), dict[str, Path]()
    for part in itertools.chain.from_iterable(map(_parts, args.lines)):
        asked, file = _metrics(part)
        lines |= asked
        files |= {} if file is None else dict.fromkeys(asked, file)
    for name in lines.keys() & (reading.info.get("late") or {}).keys() if goes_on else ():
        raise Wrong(f"the run logs `{name}` since it was asked", "give the metric another name")
    to = [name.strip() for name in args.to.split(",") if name.strip()]
    late = ask(folder, lines, to=to, files=files, goes_on=goes_on)
    file = None if args.dry_run else write(folder, late)
    answered = hand_over(folder, late, WAIT_S) if goes_on else None
    series = _series(late)
    data = {"file": None if file is None else str(file), "answer": answered, "series": series}
    answer(args, data, _lines(late, series, file, answered, goes_on=goes_on))
    return int(answered is not None and "refused" in answered)


def _lines(
    late: Late, series: Mapping[str, Sequence[tuple[int, Any]]], file: Path | None,
    answered: Mapping[str, Any] | None, *, goes_on: bool,
) -> Iterator[str]:  # fmt: skip
    """Lines with the values, the written files, and the answer of a running job."""
    for name, values in series.items():
        (first, _), (last, value) = values[0], values[-1]
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        about = f"{counted(len(values), 'value')}, {steps}"
        yield f"{name:<32} {value:<12.6g} {paint(about, DIM)}"
    yield from (f"{name:<32} {paint('no value yet', DIM)}" for name in late.empty)
    if late.first:
        yield f"the first {late.first} log events of the run are not kept any more"
    yield from (f"warning: {message} (x{count})" for message, count in late.failures.items())
    if file is not None:
        yield f"{paint('wrote', GREEN)} {file}"
        yield from (f"{paint('wrote', GREEN)} a run of its own in {op.id}" for op in late.plan.sinks)
    if answered is not None and "refused" in answered:
        yield f"the job does not go on with it:\n{answered['refused']}"
    elif answered is not None:
        yield f"the job goes on with it, from step {answered['step']} on"
    elif goes_on:
        yield "the job goes on with it at its next log event, and answers beside it"


def _parts(word: str) -> list[str]:
    """Split a word of several lines into its metrics."""
    from declog.config.files import keys_at_top

    return re.split(r"\n(?=\w+\s*:)", word.strip("\n")) if len(keys_at_top(word)) > 1 else [word]


def _metrics(word: str) -> tuple[dict[str, str], Path | None]:
    """The YAML of each metric by its id, and the file that has it; None if the word is the YAML itself."""
    name, colon, text = word.partition(":")
    if re.fullmatch(r"\w+", name.strip()) and colon and text.strip():
        return {name.strip(): text.rstrip() if "\n" in text.rstrip() else text.strip()}, None
    if word.endswith((".yaml", ".yml")):
        return dict(_of_file(Path(word))), Path(word)
    name, equals, text = word.partition("=")
    named = re.fullmatch(r"(?:\+*(?:declog\.)?metrics\.)?(\w+) *", name) if equals else None
    id, text = ("my_id", word) if named is None else (named[1], text.strip())
    if (condition := re.fullmatch(r"(\w+)\((.+)\)\s+(?:where|if|when|for)\s+(.+)", text)) is not None:
        text = in_flow({"expr": condition[2], "reduce": condition[1], "where": condition[3]})
    line = f"{id}: {text}"
    raise Wrong(f"`{word}` is no metric", f"{shlex.quote(line)}, or a YAML file with `metrics`")


def _of_file(path: Path) -> Iterator[tuple[str, str]]:
    import yaml

    from declog.config.problems.file_errors import not_yaml
    from declog.errors import CompositionError

    try:
        with path.open(encoding="utf-8") as file:
            data = yaml.safe_load(file)
    except OSError as error:
        raise Wrong(f"{path}: {error.strerror}", "name a file with `metrics`") from None
    except yaml.MarkedYAMLError as error:
        raise CompositionError([not_yaml(error)]) from None
    metrics = data.get("metrics") if isinstance(data, Mapping) else None
    if not isinstance(metrics, Mapping):
        raise Wrong(f"{path} has no `metrics`", "metrics: {spread: std(reward)}")
    for name, value in metrics.items():
        text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=2**20)
        yield str(name), text.removesuffix("\n...\n").strip()


def _series(late: Late) -> dict[str, list[tuple[int, Any]]]:
    """The steps and values of each scalar, by name."""
    series: dict[str, list[tuple[int, Any]]] = {}
    for step, records in late.events:
        for scalar in records.scalars:
            series.setdefault(scalar.name, []).append((step, scalar.value))
    return series
