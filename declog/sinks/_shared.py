"""Helpers of several sinks: importing a backend, values for every format, the run's folder and config."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from declog.distribution import install
from declog.errors import SinkError
from declog.records import Column, DType, Number, RunInfo, Table
from declog.sinks.locks import Held, Lock
from declog.sinks.run_folder import in_use

# The step of the log event and the run's id, in files of a table that has a column `step` or `run_id` of its own.
EVENT_STEP, EVENT_RUN = "declog_step", "declog_run_id"
WRITER = ".writer"  # held by the sink that writes into a folder


def require(module: str, *, kind: str, extra: str | None = None) -> Any:
    """Import a backend's module, or say which pip extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise _missing(module, kind, extra, str(cause)) from cause


def require_installed(module: str, *, kind: str, extra: str) -> None:
    """The same check without the import, for a backend that may only be imported later."""
    if importlib.util.find_spec(module) is None:
        raise _missing(module, kind, extra, "it is not installed")


def _missing(module: str, kind: str, extra: str | None, reason: str) -> SinkError:
    package = module.partition(".")[0]
    return SinkError.of(
        "DL601.package", kind=kind, package=package, reason=reason,
        fix=install(extra) if extra else f"pip install {package}",
    )  # fmt: skip


class SinkFolder:
    """The folder of a file sink: ``folder`` (below ``output_dir`` if relative), or one named after the sink's id.

    The sink holds it until ``release``: no file ever has two writers. Each rank other than 0 has its own folder.
    Raises ``SinkError``: DL601 for a relative folder outside of the run's, DL609 for a folder in use.
    """

    def __init__(self, run: RunInfo, folder: str | None, kind: str) -> None:
        base = below(run.output_dir, folder or run.sink or kind)
        self.path = base / f"rank{run.rank}" if run.rank else base
        self.path.mkdir(parents=True, exist_ok=True)
        inside = self.path.resolve().is_relative_to(run.output_dir.resolve())
        try:  # the run holds its folder alone: a lock of a dead process on another machine may be taken over
            self._lock = Lock(self.path / WRITER, takeover=inside)
        except Held as held:
            raise in_use(self.path, self.path / WRITER, held, "give each sink a `dir` of its own") from None

    def release(self) -> None:
        """Let another sink write there; removes the folder if it is empty."""
        self._lock.release()
        with contextlib.suppress(OSError):
            self.path.rmdir()


def below(output_dir: Path, folder: str) -> Path:
    """A folder of the run: a relative one lies below ``output_dir``, an absolute one stays as it is.

    ``SinkError`` DL601 for ``..``, for a link out of the folder, and for an impossible path.
    """
    if "\0" in folder:
        raise SinkError.of("DL601.nul")
    path = output_dir / folder
    leaves = ".." in Path(folder).parts or not path.resolve().is_relative_to(output_dir.resolve())
    if leaves and not Path(folder).is_absolute():
        raise SinkError.of("DL601.leaves", folder=folder, output_dir=output_dir)
    return path


def origins(table: Table, step: int) -> dict[str, Sequence[Any]]:
    """Where each row comes from: its step, its group, its number and the reason why it was picked.

    A column of the table with such a name wins. If a row's step is not the log event's, both are there.
    """
    own, places = {column.name for column in table.columns}, table.places
    event: Sequence[int] = [step] * table.rows
    if places is None:
        return dict.fromkeys(("step", EVENT_STEP) if "step" in own else ("step",), event)
    known: dict[str, Sequence[Any] | None] = {
        "step": places.step,
        "group": places.group,
        "row": places.row,
        "why": places.why,
    }
    found = {name: values for name, values in known.items() if values is not None and name not in own}
    apart = "step" in own or any(at != step for at in places.step)
    ahead: dict[str, Sequence[Any]] = {"step": found.pop("step", event)}
    return ahead | ({EVENT_STEP: event} if apart else {}) | found


def with_why(table: Table) -> Table:
    """The table with a first column ``why``, the reasons why a filter picked each row; unchanged without a filter."""
    places = table.places
    if places is None or places.why is None or any(column.name == "why" for column in table.columns):
        return table
    columns = (Column("why", DType.TEXT), *table.columns)
    return replace(table, columns=columns, data={"why": places.why, **table.data})


def end_of(why: str) -> str:
    """``best`` or ``worst``, from the last filter of extremes among a row's reasons; else empty."""
    return {":top": "best", ":bottom": "worst"}.get("".join(re.findall(r":(?:top|bottom)\b", why)[-1:]), "")


def run_column(table: Table) -> str:
    """The name of the column with the run's id."""
    return EVENT_RUN if any(column.name == "run_id" for column in table.columns) else "run_id"


def tracker_config(run: RunInfo) -> dict[str, Any]:
    """The run config that trackers show: the config's run metadata, and declog's own under one key."""
    declog = {
        "name": run.name,
        "run_id": run.run_id,
        "fingerprint": run.fingerprint,
        "version": run.version,
        "world_size": run.world_size,
        "config": dict(run.config),
    }
    return {**run.run_config, "declog": declog}


def json_text(value: Any) -> str:
    """Strictly valid JSON on one line: NaN and infinities are the strings ``NaN``, ``Infinity``, ``-Infinity``.

    Python's ``float()`` reads all three back. Integers keep every digit, text stays as it is.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)
    except ValueError:
        return json.dumps(strict(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)


def strict(value: Any) -> Any:
    """The same value with non-finite numbers as strings, at any depth."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value


def clean_text(text: str) -> str:
    r"""Text that UTF-8 can hold: a lone surrogate, as a broken tokenizer makes, becomes its escape ``\udXXX``."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def as_float(value: Number) -> float:
    """A number as a float; an integer beyond its range is an infinity, as it would be in numpy."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
