"""Folders outside of the run's: for a user to ask for in a file of his own, not for the preset of an installed package.

Imports errors and the composer's own modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from declog.config.provenance import package_of
from declog.errors import Path, Problem


def asked_outside(config: object, data: Mapping[str, Any], prefix: Path) -> list[Problem]:
    """DL202 for each folder outside of the run's that somebody else's preset sets."""
    return [
        Problem(
            "DL202", f"`{path[-1]}: {text}` is outside of the run's folder, and {package}'s preset asks for it", path,
            "where it is wanted, say it in a file of your own, or as an override",
        )
        for path, text in _folders(data)
        if isinstance(text, str) and (PurePosixPath(text).is_absolute() or ".." in PurePosixPath(text).parts)
        if (package := package_of(config, (*prefix, *path))) is not None
    ]  # fmt: skip


def _folders(data: Mapping[str, Any]) -> Iterator[tuple[Path, object]]:
    yield ("output_dir",), data.get("output_dir")
    for section, names in (("sinks", data.get("sinks")), ("capture", {"": data.get("capture")})):
        for name, entry in names.items() if isinstance(names, Mapping) else ():
            key = "folder" if section == "capture" else "dir"
            if isinstance(entry, Mapping):
                yield tuple(filter(None, (section, str(name), key))), entry.get(key)
