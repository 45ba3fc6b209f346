"""Captures of runs, and configs executed over them: the core of ``declog preview``.

    events = replay("outputs/run/capture", "grpo")      # {"console": [(step, Records), ...], ...}

The config is compiled as for a run, and real recorders play the captured calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from declog.api import locate
from declog.api import plan as plan_of_data
from declog.config.compose import compose
from declog.config.composed import Composed
from declog.errors import UsageError
from declog.replay.playback import Events, Rehearsal, rehearse
from declog.runtime.ranks.wire import Container, read
from declog.runtime.run.capture import FORMAT, SUFFIX, Call
from declog.runtime.run.manifest import yaml_text
from declog.runtime.values.snapshots import decode

if TYPE_CHECKING:
    from declog.plans.ops import Plan


@dataclass(frozen=True)
class Capture:
    """The files of a run's ranks. ``parts`` are the steps, blocks and flushes that are complete in every file."""

    folder: Path
    run: Mapping[str, Any]
    files: Mapping[int, Path]
    parts: tuple[int, ...]
    steps: int
    bytes: int

    @property
    def world_size(self) -> int:
        """The number of ranks of the run."""
        return int(self.run["world_size"])

    @property
    def missing(self) -> list[int]:
        """The ranks without a file in the folder."""
        return [rank for rank in range(self.world_size) if rank not in self.files]

    @property
    def gaps(self) -> int:
        """The number of parts that were lost because the disk was slower than training; 0 unless all should be kept."""
        if self.run["every"] != 1 or self.run["mode"] is not None or not self.parts:
            return 0
        return self.parts[-1] + 1 - len(self.parts)

    def calls(self, rank: int) -> Iterator[Call]:
        """The calls of a rank, in order."""
        complete = frozenset(self.parts)
        for part, containers in _parts(self.files[rank]):
            if part in complete:
                for one in containers:
                    what = tuple(decode(node, one) for node in one.header["what"])
                    yield Call(
                        one.header["call"], what, one.header["at"], part, one.header["failed"],
                        scope=one.header["scope"], origin=one.header["origin"],
                    )  # fmt: skip


def load(path: str | Path) -> Capture:
    """Load the capture in a folder, in a run's folder, or beside a file.

    Raises ``UsageError`` DL607 if there is not exactly one capture, or if its files do not belong together.
    """
    folders = _folders(Path(path))
    if not folders:
        raise UsageError.of("DL607.none", path=path)
    if len(folders) > 1:
        raise UsageError.of("DL607.several", path=path, shown=", ".join(map(str, folders)))
    (folder,) = folders
    runs: dict[int, Mapping[str, Any]] = {}
    files: dict[int, Path] = {}
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        with file.open("rb") as stream:
            first = read(stream)
        if first is None or first.header.get("capture") != FORMAT:
            raise UsageError.of("DL607.version", file=file)
        runs[first.header["rank"]], files[first.header["rank"]] = first.header, file
    if len({(run["name"], run["fingerprint"], run["world_size"]) for run in runs.values()}) > 1:
        raise UsageError.of("DL607.runs", folder=folder)
    steps_of: list[dict[int, int]] = [
        {part: sum(one.header["call"] == "end" for one in calls) for part, calls in _parts(file)}
        for file in files.values()
    ]
    parts = tuple(part for part in steps_of[0] if all(part in steps for steps in steps_of))
    steps = sum(steps_of[0][part] for part in parts)
    size = sum(file.stat().st_size for file in files.values())
    return Capture(folder, runs[min(runs)], files, parts, steps, size)


def replay(path: str | Path, config: Any = None, **registries: Any) -> dict[str, Events]:
    """The log events that each sink of a config would have got from a captured run: (step, records) by the sink's id.

    ``config`` is a config as for ``start``: an application's configuration, a mapping, or a preset's name. None means
    the run's own config. ``registries`` are ``functions``, ``reductions`` and ``columns``, as for ``start``. If the
    config has no sink, or code passed a sink to the run, the default profile's records are under ``<code>``. Raises the
    errors that ``start`` and the run would raise.
    """
    capture = load(path)
    composed = config_of(capture) if config is None else compose(config)
    chosen = plan_for(capture, composed, **registries)
    return execute(capture, chosen, composed).events


def config_of(capture: Capture) -> Composed:
    """The config of the run. The capture does not hold values from the environment, so these may be missing now."""
    return replace(compose(capture.run["profile"]), problems=())


def text_of(capture: Capture) -> str:
    """The config of the run as YAML."""
    return yaml_text(capture.run["profile"])


def plan_for(capture: Capture, config: Composed, **registries: Any) -> Plan:
    """The plan of a config, with the constants that the run's adapter gave."""
    run = capture.run
    shown = [config.profile] if run["requested"] or (config.data.get("sinks") or "none") == "none" else []
    return plan_of_data(config, constants=run["constants"], profiles=shown, **registries)


def execute(capture: Capture, plan: Plan, config: Composed) -> Rehearsal:
    """Execute a plan over a capture."""
    profile = config.profile if capture.run["requested"] or not plan.sinks else None
    scripts = {rank: partial(capture.calls, rank) for rank in capture.files}
    plan_of = partial(plan_of_data, constants=capture.run["constants"])
    return rehearse(plan, scripts, capture.world_size, profile=profile, locate=partial(locate, config, plan_of))


def holds_capture(path: Path) -> bool:
    """Whether there is a capture to ``load``."""
    return bool(_folders(path))


def _folders(path: Path) -> list[Path]:
    """The folders of captures at a path: the folder of a file, the folder itself, or folders below a run's folder."""
    if path.is_file() and path.suffix == SUFFIX:
        return [path.parent]
    if any(path.glob(f"*{SUFFIX}")):
        return [path]
    return sorted({file.parent for file in path.glob(f"capture*/*{SUFFIX}")})


def _parts(file: Path) -> Iterator[tuple[int, list[Container]]]:
    """The complete parts of a file, in order. The file may be cut at its end."""
    with file.open("rb") as stream:
        read(stream)
        calls: list[Container] = []
        while (one := read(stream)) is not None:
            if calls and calls[0].header["part"] != one.header["part"]:
                calls = []  # the previous part has no end
            calls.append(one)
            if one.header["last"]:
                yield one.header["part"], calls
                calls = []
