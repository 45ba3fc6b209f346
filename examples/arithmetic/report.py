"""Prints the end of a demo: a plot of the reward from the run's own log, and where that log is."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from declog.cli import main

BARS = " ▁▂▃▄▅▆▇█"


def report(run: Path, project: str, reward: str = "reward") -> None:
    """Print a plot of the logged reward, and how to open the files of those of the run's sinks that wrote some.

    ``reward`` is the name under which the reward is logged.
    """
    run, commands = shown(run), shown(Path(sys.executable).parent)
    scalars, dataset, dashboard = run / "jsonl" / "scalars.jsonl", run / "parquet" / "scalars", run / "trackio"
    if scalars.exists():
        phases = [json.loads(line)["scalars"] for line in scalars.read_text().splitlines()]
        rewards = [phase[reward] for phase in phases if reward in phase]
        if rewards:
            first, last = mean(rewards[:10]), mean(rewards[-10:])
            print(f"\nreward by step\n{bar_plot(rewards)}\n")
            print(f"reward     {first:.2f} over the first 10 steps, {last:.2f} over the last 10")
    print(f"run        {run}")
    if scalars.exists() or dataset.exists():
        main(["report", str(run)])
    if scalars.exists():
        print(f"jsonl      {scalars}")
    if dataset.exists():
        print(f"parquet    {dataset}")
        table = f"pd.read_parquet('{dataset}').pivot(index='step', columns='name', values='value')"
        print(f"pandas     import pandas as pd; {table}")
    if dashboard.exists():
        print(f"dashboard  TRACKIO_DIR={dashboard} {commands / 'trackio'} show --project {project}")


def shown(path: Path) -> Path:
    """A path as one would type it: relative if it is below the current folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def bar_plot(values: Sequence[float], width: int = 80, height: int = 6) -> str:
    """Values as columns of block characters from 0 up, each the mean of equally many values."""
    size = math.ceil(len(values) / width)
    means = [mean(values[i : i + size]) for i in range(0, len(values), size)]
    top = max(max(means), 1e-6)
    lines = []
    for level in reversed(range(height)):
        eighths = [round((mean / top * height - level) * 8) for mean in means]
        label = f"{top * (level + 1) / height:6.2f} ┤"
        lines.append(label + "".join(BARS[min(8, max(0, count))] for count in eighths))
    return "\n".join([*lines, "  0.00 └" + "─" * len(means)])
