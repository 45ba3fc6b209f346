"""Reads files that anybody may have put into a run's folder: only regular files, within bounds. Others are reported.

No function here waits for a FIFO, reads a device, or takes more memory than its bound. Standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from declog.sinks._files import open_regular
from declog.sinks._shared import clean_text

Report = Callable[[str], None]
FILE_BYTES = 64 * 2**20  # the most bytes of run.json, plan.json, config.yaml
LINE_BYTES = 16 * 2**20
SKIPPED_BYTES = 256 * 2**20  # reading stops after so many bytes of too long lines
REPORTED = 3  # the most lines of one file that are reported one by one
MOVE = "move it out of the dataset, of which pandas and polars read every file"


def unsaid(problem: str) -> None:
    """Drop a problem of a search for files: it is reported again when the files are read."""


def reason(error: BaseException) -> str:
    """The text of an error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0] or type(error).__name__


def entries(folder: Path, report: Report) -> list[Path]:
    """The entries of a folder, sorted; empty, with a report, if the folder cannot be listed."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        report(f"{folder} is left out: {reason(error)}")
        return []


def text_of(path: Path, report: Report) -> str | None:
    """The text of a small file; None if it is absent, or, with a report, if it cannot be read."""
    try:
        with open_regular(path) as file:
            data = file.read(FILE_BYTES + 1)
        if len(data) > FILE_BYTES:
            raise ValueError(f"it has more than {FILE_BYTES} bytes")
        return data.decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        report(f"{path} is left out: {reason(error)}")
        return None


def json_of(path: Path, report: Report) -> dict[str, Any]:
    """The JSON object in a small file; empty if the file is absent, or, with a report, if it has none."""
    text = text_of(path, report)
    if text is None:
        return {}
    try:
        value = parsed(text)
    except (ValueError, RecursionError) as error:
        report(f"{path} is left out: {reason(error)}")
        return {}
    if not isinstance(value, dict):
        report(f"{path} is left out: it is no JSON object")
        return {}
    return value


def parsed(text: str) -> Any:
    """Parse JSON; a lone surrogate in a text, which UTF-8 cannot hold, becomes its escape."""
    value = json.loads(text)
    return _clean(value) if "\\ud" in text or "\\uD" in text else value


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): _clean(item) for key, item in value.items()}
    return value


def json_lines(path: Path, accepts: Callable[[dict[str, Any]], bool], report: Report) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines that ``accepts`` takes; lines written during the read are left out."""
    refused = 0
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            for number, line in _lines(file, size, path, report):
                value = _object(line, accepts)
                if not isinstance(value, str):
                    yield value
                    continue
                last = not line.endswith(b"\n") and file.tell() >= size
                refused += 1
                if refused <= REPORTED:
                    report(f"{path}:{number} is left out: it is {'cut off' if last and value == NO_JSON else value}")
    except FileNotFoundError:
        return
    except OSError as error:
        report(f"{path} is left out: {reason(error)}")
    if refused > REPORTED:
        report(f"{path}: {refused - REPORTED} more of its lines are left out")


NO_JSON = "no JSON"


def _object(line: bytes, accepts: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | str:
    """The object of a line, or the error as a text."""
    try:
        value = parsed(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return NO_JSON
    if not isinstance(value, dict):
        return "no JSON object"
    return value if accepts(value) else "no line of this file"


def _lines(file: Any, size: int, path: Path, report: Report) -> Iterator[tuple[int, bytes]]:
    """The lines of a file's first ``size`` bytes with their numbers; lines that are too long are left out."""
    number, skipped = 0, 0
    while (rest := size - file.tell()) > 0:
        line = file.readline(min(rest, LINE_BYTES + 1))
        number += 1
        if len(line) <= LINE_BYTES:
            if line.strip():
                yield number, line
            continue
        while not line.endswith(b"\n") and (rest := size - file.tell()) > 0:
            skipped += len(line)
            if skipped > SKIPPED_BYTES:
                report(f"{path}: from line {number} on it is left out: a line has more than {SKIPPED_BYTES} bytes")
                return
            line = file.readline(min(rest, LINE_BYTES))
        report(f"{path}:{number} is left out: it has more than {LINE_BYTES} bytes")


def strays(folder: Path, belongs: Callable[[str], object], report: Report) -> list[Path]:
    """The entries of a folder with names that ``belongs`` takes; the others are reported."""
    paths = entries(folder, report)
    unknown = [path for path in paths if not belongs(path.name)]
    for path in unknown[:REPORTED]:
        report(f"{path} is left out: it is no part of the dataset; {MOVE}")
    if len(unknown) > REPORTED:
        report(f"{folder}: {len(unknown) - REPORTED} more are left out")
    return [path for path in paths if belongs(path.name)]
