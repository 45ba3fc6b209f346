"""Values that YAML changed in silence: `top: 010` is eight, `on:` is the key true.

Nothing in a composed configuration shows them, so the files are read once more: with one pattern each, and with their
marks only where it finds something. Imports Hydra and OmegaConf.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as FilePath

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from declog.config.diagnostics import written_key, written_value
from declog.config.provenance import ORIGIN, Origin, provenance_of
from declog.config.search_path import GROUP
from declog.config.source_map import FilePlace
from declog.config.yaml_lint import surprise, suspicious
from declog.errors import Path, Problem


def surprises(config: object, prefix: Path) -> list[Problem]:
    """Numbers with a zero in front (DL202), words as keys (DL204): those that are in effect."""
    if not any(suspicious(file.read_text(encoding="utf-8", errors="replace")) for file in own_files(config)):
        return []
    known = provenance_of(config)
    if known is None:
        return []
    problems = []
    for path, layers in known.layers.items():
        place = layers[-1].place
        if path[: len(prefix)] != prefix or known.find(path)[0] != path or not isinstance(place, FilePlace):
            continue
        below = path[len(prefix) :]
        if below[:1] != ("run_config",) and (told := surprise(written_key(place, known.texts[place.file]))) is not None:
            problems.append(Problem("DL204", told[0], below, told[1]))
        word = written_value(place, known.texts[place.file]) if place.style == "plain" else ""
        if word[:1].isdigit() or word[:1] in ("-", "+"):
            told = surprise(word)
            problems += [] if told is None else [Problem("DL202", told[0], below, told[1])]
    return problems


def own_files(config: object) -> Iterator[FilePath]:
    """The files that may hold a profile of one's own: what is installed was tested where it was made."""
    root = config._get_root() if isinstance(config, DictConfig) else None
    origin = OmegaConf.get_cache(root).get(ORIGIN) if isinstance(root, DictConfig) else None
    if isinstance(origin, Origin):
        place = str(origin.config_dir or "")
        folders = [FilePath(place.removeprefix("declog://"))] if place else []
    elif root is not None and HydraConfig.initialized():
        folders = [
            FilePath(source.path) for source in HydraConfig.get().runtime.config_sources if source.schema == "file"
        ]
    else:
        return
    for folder in folders:
        yield from folder.glob("*.yaml")
        yield from (folder / GROUP).rglob("*.yaml")
