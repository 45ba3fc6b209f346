"""The data of one run for a page: its state, steps, constants and alerts, with its series and tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from declog.runs.report.blobs import Blobs
from declog.runs.report.curves import Meanings, core_names, curves_of, series
from declog.runs.report.step_time import step_time
from declog.runs.report.tables import table
from declog.runs.run import Run

MOST_COLUMNS = 160  # the most log events of a histogram that are shown


def run_facts(run: Run, blobs: Blobs, *, label: str, samples: bool) -> dict[str, Any]:
    """One run as plain data for the page; long data are added to ``blobs``."""
    plan = run.plan
    scalars = run.scalars.arrow()
    meanings = Meanings(plan)
    curves = list(curves_of(scalars, meanings))
    tables = sorted(_tables(run, plan, blobs), key=lambda one: -one["rows"]) if samples else []
    reads = {one["id"]: one["reads"] for one in plan.get("alerts", [])}
    alerts = [
        {**{key: row[key] for key in ("step", "name", "level", "text")}, "reads": reads.get(row["name"], [])}
        for row in run.alerts
    ]
    times = [time for time in scalars["time"].to_pylist() if time is not None]
    steps = scalars["step"].to_pylist()
    return {
        "name": run.name, "label": label, "path": run.path.name, "id": run.id, "state": run.state,
        "started": min([*started(run), *times], default=None), "seconds": max(times) - min(times) if times else None,
        "span": [min(steps), max(steps)] if steps else None, "ranks": run.world_size, "constants": run.constants,
        "core": core_names(curves),
        "alerts": alerts, "rules": len(plan.get("alerts", [])), "failures": run.failures,
        "resumed": [one["resumed_after"] + 1 for one in run.segments if "resumed_after" in one],
        "time": step_time(scalars, meanings),
        "tables": tables, "histograms": list(_histograms(run, meanings, blobs)), **series(curves, blobs),
        "config": _config(run), "configured": run.configured, "settings": list(_leaves(run.config)),
        "missing": dict(run.info.get("missing") or {}), "parent": run.info.get("parent"),
        "foot": _foot(run), "notes": [*run.problems, *_other_runs(run)],
    }  # fmt: skip


def started(run: Run) -> Iterator[float]:
    """The start of a run's first process in seconds since 1970, if the folder has it."""
    for one in run.segments[:1]:
        if isinstance(one.get("started"), str):
            yield datetime.fromisoformat(one["started"]).timestamp()


def _tables(run: Run, plan: Mapping[str, Any], blobs: Blobs) -> Iterator[dict[str, Any]]:
    facts = {one["id"]: one for one in plan.get("tables", [])}
    for name, frame in run.tables.items():
        if len(frame):
            yield table(name, list(frame), facts.get(name, {}), blobs)


def _histograms(run: Run, meanings: Meanings, blobs: Blobs) -> Iterator[dict[str, Any]]:
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in run.histograms:
        rows.setdefault((row["name"], row["mode"]), []).append(row)
    for (name, mode), events in rows.items():
        thin = events[:: -(-len(events) // MOST_COLUMNS)]
        data = {key: [row[key] for row in thin] for key in ("step", "counts", "edges")}
        title = meanings.of(name, mode, events[0].get("metric"))["title"]
        yield {"name": name, "mode": mode, "title": title, "data": blobs.add_json(data)}


def _config(run: Run) -> str:
    import yaml

    return yaml.safe_dump(run.declog, sort_keys=False, allow_unicode=True, width=110) if run.declog else ""


def _foot(run: Run) -> str:
    """The versions and ids at the foot of a page."""
    info = run.info
    commit = info.get("git") or {}
    changed = " with changes" if commit.get("dirty") else ""
    facts = [
        f"run {run.id}" if run.id else "",
        f"declog {info['declog']}" if "declog" in info else "",
        f"plan {info['fingerprint']}" if "fingerprint" in info else "",
        f"commit {commit['commit'][:12]}{changed}" if commit.get("commit") else "",
        f"torch {info['torch']}" if info.get("torch") else "",
        "this file holds its data and asks nothing of the network",
    ]
    return " · ".join(filter(None, facts))


def _other_runs(run: Run) -> Iterator[str]:
    """A note about other runs in the same folder, if there are any."""
    if ids := [run_id for run_id in run.ids if run_id != run.id]:
        yield f"the folder holds {len(ids)} other run{'s' * (len(ids) > 1)}: {', '.join(ids)}"


def differences(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The keys of configurations that differ, each with every run's value as text; None if a run does not set it."""
    settings = [dict(_leaves(_settings(run))) for run in runs]
    keys = dict.fromkeys(key for one in settings for key in one)
    rows = [{"key": key, "values": [one.get(key) for one in settings]} for key in keys]
    return [row for row in rows if len(set(row["values"])) > 1]


def _settings(run: Run) -> dict[str, Any]:
    """A run's settings: its config and constants, the trainer's configuration, versions and the commit."""
    info = run.info
    ran = {key: info[key] for key in ("declog", "torch", "python", "world_size") if info.get(key) is not None}
    ran |= {"commit": info["git"]["commit"]} if info.get("git") else {}
    kept = {key: value for key, value in (run.declog.get("run") or {}).items() if key != "config"}
    return {**run.config, "declog": {**run.declog, "run": kept, "constants": run.constants}, "run": ran}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
