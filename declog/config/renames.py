"""Names that changed: `renamed` and `deprecated` of metrics and signals, and who still uses the old ones.

Imports the layers of a composed configuration, which say what is a package's and what is one's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from declog.config.composed import Composed
from declog.config.diagnostics import shown_place
from declog.config.search_path import provider_of
from declog.config.source_map import FilePlace, Provenance
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
    known = config.provenance if notes else None
    for section, name, why in notes if known is not None else ():
        assert known is not None
        for use in uses(config.data, section, name):
            if (place := _own_place(config, known, use)) is not None:
                yield f"{place}: `{name}` is deprecated: {why}"


def _own_place(config: Composed, known: Provenance, use: Use) -> str | None:
    """Where somebody uses it who is no installed package; None where nobody does."""
    paths = [(*config.prefix, *use.path)]
    if use.source is None:  # an entry: any key of it
        paths = [path for path in known.layers if path[: len(paths[0])] == paths[0]]
    for path in paths:
        for layer in known.layers.get(path, known.find(path)[1][-1:]):
            if not isinstance(layer.place, FilePlace):
                return ".".join(map(str, use.path))
            if provider_of(layer.place.file) is None:
                return shown_place(layer.place)
    return None
