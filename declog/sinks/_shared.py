"""What several sinks need: importing a backend, values that every format takes, the run's folder and config.

Only the standard library and declog's contracts are imported here.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
from pathlib import Path
from typing import Any

from declog.errors import SinkError
from declog.records import Number, RunInfo, Table

# The step of the log event, in files of a table that has a column `step` of its own.
EVENT_STEP = "declog_step"


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
    install = f"pip install 'declog[{extra}]'" if extra else f"pip install {package}"
    return SinkError("DL601", f"the {kind} sink needs `{package}`, which cannot be imported: {reason}", install)


def run_folder(run: RunInfo, folder: str | None, kind: str) -> Path:
    """Where a file sink writes: ``folder`` (below ``output_dir`` if relative), or a folder named after the sink's id.

    Ranks other than 0 get a folder of their own, so that no file ever has two writers.
    """
    base = run.output_dir / (folder or run.sink or kind)
    return base / f"rank{run.rank}" if run.rank else base


def own_step(table: Table) -> bool:
    """Whether a table has its own column ``step``, which need not be the step of the log event."""
    return any(column.name == "step" for column in table.columns)


def tracker_config(run: RunInfo) -> dict[str, Any]:
    """The run config that trackers show: the profile's run metadata, and declog's own under one key."""
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
