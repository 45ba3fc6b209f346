"""Reads a run's folder: the facts of its run, and the folders in which its sinks may have written.

Damaged and foreign files are reported and left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from declog.errors import SinkError, nearest
from declog.runs.files import sources
from declog.runs.guarded import Report, entries, json_of, reason, text_of, unsaid
from declog.sinks.locks import alive
from declog.sinks.run_folder import CONFIG, LATE, LOCK, PLAN, RUN, newer, run_of, segments

RUNNING = "running"  # the state of a process until it has ended
DEPTH = 3  # the most levels from a run's folder down to a sink's
NODES = 200_000  # the most values of a configuration; a value counts once for each alias that names it
SECTIONS = ("constants", "run", "schemas", "sink_options")  # sections of a config that have to be maps
SHAPES: Mapping[str, type | tuple[type, ...]] = {
    "run_id": str, "name": str, "state": str, "started": str, "host": str, "pid": int, "world_size": int,
    "fingerprint": str, "declog": str, "python": str, "torch": str, "packages": dict, "overrides": list, "git": dict,
    "config": str, "run_config": str, "plan": str, "failures": dict, "missing": dict, "late": dict,
    "left_to_logger": dict, "resumed_after": int, "parent": dict, "ended": str,
}  # fmt: skip
ENTRIES: Mapping[str, Mapping[str, type]] = {  # the keys that entries of lists in plan.json need
    "outputs": {"name": str, "metric": str, "words": str, "formula": str, "tags": list},
    "alerts": {"id": str, "reads": list}, "tables": {"id": str},
}  # fmt: skip


def facts_of(path: Path, report: Report) -> list[dict[str, Any]]:
    """The facts of each process in ``run.json``, the oldest first; malformed entries are left out."""
    try:
        processes = segments(run_of(path))
    except (SinkError, OSError) as error:
        report(f"{path / RUN} is left out: {error.message if isinstance(error, SinkError) else reason(error)}")
        return []
    if processes and (said := newer(processes[-1])):
        report(f"{path / RUN} {said}")
    return [_shaped(facts, path / RUN, report) for facts in processes]


def _shaped(facts: Mapping[str, Any], file: Path, report: Report) -> dict[str, Any]:
    kept = {key: value for key, value in facts.items() if key not in ("kind", "format", "files", "earlier")}
    for key, shape in SHAPES.items():
        if kept.get(key) is not None and not isinstance(kept[key], shape):
            report(f"{file}: `{key}` is left out: it is {kept.pop(key)!r}"[:200])
    if "failures" in kept and not all(type(count) is int for count in kept["failures"].values()):
        report(f"{file}: `failures` is left out: they are no counts")
        del kept["failures"]
    return kept


def config_of(path: Path, facts: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """The config in effect that a run kept; empty if it kept none."""
    file = path / Path(facts.get("config") or CONFIG).name
    config = yaml_of(file, report)
    for key in SECTIONS:
        if not isinstance(config.get(key) or {}, dict):
            report(f"{file}: `{key}` is left out: it is no map")
            del config[key]
    return config


def yaml_of(file: Path, report: Report) -> dict[str, Any]:
    """The map in a YAML file; empty if there is none."""
    import yaml

    text = text_of(file, report)
    if text is None:
        return {}
    try:
        value = yaml.load(text, yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        report(f"{file} is left out: {reason(error)}")
        return {}
    if not isinstance(value, dict) or _nodes(value) > NODES:
        report(f"{file} is left out: it is no configuration")
        return {}
    return value


def _nodes(value: Any) -> int:
    """The number of values in a nested value, counted up to ``NODES`` + 1."""
    count, stack = 0, [value]
    while stack and count <= NODES:
        item = stack.pop()
        count += 1
        if isinstance(item, dict | list):
            stack += item.values() if isinstance(item, dict) else item
    return count


def plan_of(path: Path, facts: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """The plan that a run kept, with the outputs of ``declog add``; empty if it kept none."""
    plan = _plan(path / Path(facts.get("plan") or PLAN).name, report)
    for file in sorted(path.glob(f"{LATE}/*/{PLAN}")):
        names = {output["name"] for output in plan.get("outputs", ())}
        late = [output for output in _plan(file, report).get("outputs", ()) if output["name"] not in names]
        plan["outputs"] = [*plan.get("outputs", ()), *late]
    return plan


def _plan(file: Path, report: Report) -> dict[str, Any]:
    plan = json_of(file, report)
    for key, shape in ENTRIES.items():
        items = plan.get(key, [])
        right = [
            item for item in (items if isinstance(items, list) else ())
            if isinstance(item, dict) and all(isinstance(item.get(name), type_) for name, type_ in shape.items())
        ]  # fmt: skip
        if right != items:
            report(f"{file}: some of its {key} are left out: they are none")
            plan[key] = right
    for key in ("modes", "prefixes"):
        if not isinstance(plan.get(key, {}), dict if key == "modes" else list | dict):
            del plan[key]
    return plan


def below(folder: Path, report: Report) -> Iterator[Path]:
    """A folder and its subfolders, except other runs, the insides of a sink's folder, and links that lead outside."""
    yield from _below(folder, DEPTH, os.path.realpath(folder), set(), report)


def _below(folder: Path, depth: int, root: str, seen: set[str], report: Report) -> Iterator[Path]:
    seen.add(os.path.realpath(folder))
    yield folder
    if not depth or sources(folder):
        return
    for path in entries(folder, report):
        if path.name.startswith(".") or not os.path.isdir(path) or os.path.lexists(path / RUN):
            continue
        real = os.path.realpath(path)
        if not Path(real).is_relative_to(root):
            report(f"{path} is left out: it leads out of the run's folder")
        elif real not in seen:
            yield from _below(path, depth - 1, root, seen, report)


def runs_below(path: Path) -> list[Path]:
    """The folders of the runs below a folder, the latest first."""
    runs: list[tuple[float, Path]] = []
    folders = [path]
    for _ in range(DEPTH):
        folders = [
            child for folder in folders for child in entries(folder, unsaid)
            if os.path.isdir(child) and not os.path.islink(child)
        ]  # fmt: skip
        runs += [(os.lstat(child / RUN).st_mtime, child) for child in folders if os.path.lexists(child / RUN)]
    return [folder for _, folder in sorted(runs, reverse=True)]


def facts_and_life(path: Path, report: Report) -> tuple[list[dict[str, Any]], bool]:
    """The facts of a run's processes, and whether a process held the folder when they were read.

    A run writes its final state before it releases its folder. If it releases the folder during the read, the facts are
    read again.
    """
    facts = facts_of(path, report)
    while not (held := alive(path / LOCK)) and facts and facts[-1].get("state") == RUNNING:
        earlier, facts = facts, facts_of(path, report)
        if facts == earlier:
            break
    return facts, held


def nearest_run(absent: Path) -> str:
    """The fix for a folder that does not exist: a folder with a similar name, or a run in the working directory."""
    folders = absent.parent.iterdir() if absent.parent.is_dir() else ()
    beside = {path.name: path for path in folders if path.is_dir()}
    close = nearest(absent.name, beside)
    runs = [beside[close]] if close is not None else runs_below(Path())
    return f"did you mean `{runs[0]}`?" if runs else "give the folder of a run, its `output_dir`"


def what_to_give(path: Path) -> str:
    """The fix for a folder without a run."""
    runs = runs_below(path)
    if not runs:
        latest = "".join(f", such as the latest in this folder, {run}" for run in runs_below(Path())[:1])
        return f"give the folder of a run, its `output_dir`, with a parquet or jsonl sink{latest}"
    more = f" and {len(runs) - 3} more" * (len(runs) > 3)
    return f"give one of the runs below it, the latest first: {', '.join(map(str, runs[:3]))}{more}"
