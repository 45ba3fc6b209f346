"""Names that changed: `renamed` and `deprecated` of metrics and signals, and who still uses the old ones.

Imports the layers of a composed configuration, which say what is a package's and what is one's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from declog.config.composed import Composed
from declog.config.search_path import provider_of
from declog.config.uses import Use, declared, old_names, uses
from declog.errors import Problem
from declog.language.keys import sections_with

SECTIONS = [section for section in sections_with("renamed") if section != "derived"]  # which are of `signals`


def renamed(config: Composed) -> Iterator[Problem]:
    """DL408 for every use of a name that a metric or a signal had before; of its own package's entries none."""
    for section in SECTIONS:
        for old, new in old_names(config.data, section).items():
            paths = [path for path, _ in declared(config.data, section)]
            home = next((config.home((*path, "renamed")) for path in paths if path[-1] == new), None)
            if home is not None and any(path[-1] == old and config.home(path) == home for path in paths):
                continue  # the package has a new entry of the old name
            by = f" ({home})" if home is not None else ""
            for use in uses(config.data, section, old):
                yield Problem.of(
                    "DL408.renamed", use.path, source=use.source, span=use.span, replacement=(old, new),
                    name=old, new=new, by=by,
                )  # fmt: skip


def deprecated(config: Composed) -> Iterator[str]:
    """A warning for every use of what is deprecated, in a file of one's own or an override."""
    notes = [
        (section, str(path[-1]), entry["deprecated"])
        for section in SECTIONS
        for path, entry in declared(config.data, section)
        if isinstance(entry, Mapping) and entry.get("deprecated")
    ]
    for section, name, why in notes:
        for use in uses(config.data, section, name):
            if (location := _own_place(config, use)) is not None:
                yield f"{location}: `{name}` is deprecated: {why}"


def _own_place(config: Composed, use: Use) -> str | None:
    """Where somebody uses it who is no installed package; None where nobody does."""
    paths = [use.path]
    if use.source is None:  # an entry: any key of it
        paths = [path for path in config.layers if path[: len(use.path)] == use.path]
    for path in paths:
        for layer in config.layers.get(path, config.deciding(path)[-1:]):
            if layer.file is None:
                return ".".join(map(str, use.path))
            if provider_of(layer.file) is None:
                return str(layer.location.where)
    return None
