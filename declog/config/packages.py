"""Faults of installed packages whose entry points name presets:

    [project.entry-points."declog.presets"]
    acme = "acme_logging.conf"              # the package whose folder `declog` holds the YAML files

Errors about a preset that does not exist name these faults.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path as FilePath

from declog.config.search_path import GROUP, TEAMS, folders_of, preset_folders
from declog.config.source_map import shown_path
from declog.errors import elsewhere, error_text, nearest
from declog.registry import home

GROUPS = (TEAMS, "declog.functions", "declog.reducers", "declog.columns", "declog.sinks")


def faults() -> list[str]:
    """Each entry point for declog that has no preset, or is in a group that declog does not read, with its package."""
    groups = [group for group in entry_points().groups if group.startswith(f"{GROUP}.") or group == GROUP]
    every = [entry for group in sorted(groups) for entry in sorted(entry_points(group=group), key=home)]
    return list(dict.fromkeys(line for entry in every for line in _wrong(entry)))


def notes() -> str:
    """The faults as lines to put behind a message; empty if there are none."""
    return "".join(f"\n{line}" for line in faults())


def _wrong(entry: EntryPoint) -> Iterator[str]:
    if entry.group not in GROUPS:
        close = nearest(entry.group, GROUPS) or TEAMS
        yield f"{home(entry)} has an entry point in the group `{entry.group}`, which nobody reads: `{close}` is one"
        return
    if entry.group != TEAMS:
        return  # these are loaded when a config uses them
    named = f"{home(entry)} has presets in `{entry.value}`"
    if ":" in entry.value:
        yield f"{named}, and that is no package: write `{entry.module}`"
        return
    try:
        folders = folders_of(entry.value)
    except Exception as error:  # noqa: BLE001  an installed package may raise anything on import
        yield f"{named}, which cannot be imported: {error_text(error)}"
        return
    if not folders:
        yield f"{named}, which is not there"
    elif not any(any((folder / GROUP).glob("*.yaml")) for folder in folders):
        yield f"{named}, which has no preset: no `{GROUP}/NAME.yaml` came with the package"


def files_named(name: str) -> list[FilePath]:
    """The files of this name below the working directory that would be presets if their folder were searched."""
    file = f"{GROUP}/{glob.escape(name)}.yaml"
    return sorted(path for pattern in (file, f"*/{file}") for path in FilePath().glob(pattern))


def known_presets(name: str, names: Sequence[str], folder: FilePath | None = None) -> str:
    """The fix for an unknown preset: a file of its name, the preset of an algorithm, the nearest one, or all presets.

    ``folder`` holds the file that names the preset. The user's own presets are not listed. A name that shares only the
    last word with a preset, `acme_grpo` with `maxent_grpo`, is not near it: it is somebody's own.
    """
    if name.startswith("override "):
        return f"a config's defaults have no `override`: `- {name.split()[-1]}`"
    algorithm = re.sub(r"[\W_]", "", name.lower().replace("++", "pp"))
    of_algorithm = elsewhere.keys().get(f"presets.{algorithm}")
    if (fix := _not_searched(name, folder) or _moved(name) or of_algorithm) is not None:
        return fix
    head, _, method = name.rpartition("_")
    heads = {preset: preset.rpartition("_")[0] for preset in names if preset.rpartition("_")[2] == method and head}
    near = nearest(name, [preset for preset in heads or names if not heads or nearest(head, [heads[preset]])])
    if near is not None:
        return f"did you mean `{near}`?"
    shipped = {path.stem for _, conf in preset_folders() for path in (conf / GROUP).glob("*.yaml")}
    presets = ", ".join(sorted(shipped.intersection(names)))
    return _not_registered(name) or f"one of the presets: {presets}; those of a package are there once it is installed"


def _not_searched(name: str, folder: FilePath | None) -> str | None:
    """The fix for a preset whose file lies below the working directory, or below ``folder``; None without one."""
    patterns = [f"{'*/' * depth}{glob.escape(name)}.yaml" for depth in range(4)]
    below = [path for top in (FilePath(), folder or FilePath()) for pattern in patterns for path in top.glob(pattern)]
    if folder is not None and (folder / f"{name}.yaml").is_file():
        return f"`- {name}` alone in a config; an application has its configs in a folder `{GROUP}` beside its own file"
    if not (files := [*files_named(name), *below]):
        return None
    file, conf = files[0], files[0].parent
    advice, move = "put it beside the file that names it", f"move it to `{shown_path(conf / GROUP)}`, "
    if conf.name == GROUP:
        conf, move = conf.parent, ""
        advice = f"it is found from its own folder, or where `config_dir` is `{conf}`"
    elif folder is None:
        advice = f"a preset lies in a folder `{GROUP}` of `config_dir`"
    package = _package_of(conf.resolve())
    registered = f"; or {move}{_registered(package)}" if package else ""
    return f"there is the file `{shown_path(file)}`: {advice}{registered}"


def _not_registered(name: str) -> str | None:
    """The fix for a preset in an installed package whose entry points do not name it; None without one."""
    for distribution in distributions():
        for path in distribution.files or ():
            if path.parts[-2:] == (GROUP, f"{name}.yaml"):
                owner = distribution.metadata["Name"]
                return f"the package {owner} has it: {_registered('.'.join(path.parts[:-2]))}"
    return None


def _package_of(folder: FilePath) -> str | None:
    """The dotted name of a folder in a Python package; None for another folder."""
    top = folder if (folder / "__init__.py").is_file() else folder.parent
    if not (top / "__init__.py").is_file():
        return None
    while (top.parent / "__init__.py").is_file():
        top = top.parent
    return ".".join(folder.relative_to(top.parent).parts)


def _registered(package: str) -> str:
    """How a package says that it has presets in the package ``package``."""
    entry = f'[project.entry-points."{TEAMS}"] {package.partition(".")[0]} = "{package}"'
    return f"in the pyproject.toml of its package write {entry}, and install that: pip install -e ."


def _moved(name: str) -> str | None:
    """The fix for a preset that an installed package has in a folder that is not searched; None for another name."""
    for entry in entry_points(group=TEAMS):
        if ":" in entry.value:
            continue
        with suppress(Exception):  # an installed package may raise anything on import; `notes` reports it
            for folder in folders_of(entry.value):
                presets = folder / GROUP  # below it are packs and other groups, which have their own names
                for file in sorted(folder.rglob(f"{glob.escape(name)}.yaml")):
                    if presets not in file.parents:
                        return f"move {shown_path(file)} to {shown_path(presets / file.name)}, in the package's source"
    return None
