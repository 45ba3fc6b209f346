"""Which profiles a command line names: several names and files, folders, the presets of a package, the jobs of a sweep.

Imports Hydra where there is a sweep.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from declog.cli import suggestions
from declog.cli.arguments import DIVIDER, Wrong

PACKAGE = "pkg://"
GROUP = "declog"
MOST_JOBS = 256


def is_name(word: str) -> bool:
    """Whether a word of a command line names a profile, and is no override."""
    return "=" not in word and word[:1] not in ("+", "~")


def targets(words: Sequence[str], *, sweep: bool = False) -> list[list[str]]:
    """The words of each profile: a name, if one is given, and the overrides; ``sweep`` takes `every=1,2` apart."""
    if DIVIDER in words:
        raise Wrong("`--` divides the two profiles of `declog diff`", "leave it out")
    names = list(itertools.takewhile(is_name, words))
    spaced = words[len(names) : len(names) + 1] == ["="]
    for name in names:
        strange = not name.strip() or name[0] in suggestions.DASHES or re.fullmatch(r"[\w.]+:[^/]\S*", name) is not None
        if strange or spaced:
            raise Wrong(f"`{names[-1] if spaced else name}` is no profile", suggestions.override(name, words))
    overrides = list(words[len(names) :])
    if odd := next((word for word in overrides if is_name(word)), None):
        raise Wrong(f"`{odd}` is no override", suggestions.override(odd, words))
    found = list(dict.fromkeys(each for name in names for each in _profiles(name))) if names else [""]
    jobs = list(_jobs(overrides)) if sweep else [overrides]
    if len(found) * len(jobs) > MOST_JOBS:
        raise Wrong(f"these are {len(found) * len(jobs)} profiles; at most {MOST_JOBS} are checked at once", "fewer")
    return [[*([name] if name else []), *job] for name in found for job in jobs]


def _profiles(name: str) -> Iterator[str]:
    """What a name stands for: the profiles of a folder or a package; a preset's option for its presets; else itself."""
    if name.startswith(PACKAGE) and "/" not in name.removeprefix(PACKAGE):
        yield from _of_package(name)
        return
    path = Path(name)
    if path.is_dir():
        found = sorted({*path.glob(f"**/{GROUP}/*.yaml"), *(path.glob("*.yaml") if path.name == GROUP else ())})
        if not found:
            raise Wrong(f"{name} has no profile: no `{GROUP}/NAME.yaml`", "give a YAML file, or a preset's name")
        yield from map(str, found)
        return
    above = path.parent.parent
    if path.is_file() and above.name == GROUP and path.parent.name != GROUP:  # an option of a group, such as a sink
        yield from map(str, sorted(above.glob("*.yaml")))
        return
    yield name


def _of_package(name: str) -> list[str]:
    module = name.removeprefix(PACKAGE)
    try:
        spec = find_spec(module)
    except (ImportError, ValueError) as error:
        raise Wrong(f"there is no package `{module}`: {error}", "install it: pip install -e .") from None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = sorted(file.stem for place in places for file in (Path(place) / GROUP).glob("*.yaml"))
    if not found:
        fix = "it is installed, and its `conf` holds a folder `declog`: pkg://acme_logging.conf"
        raise Wrong(f"the package `{module}` has no `{GROUP}/NAME.yaml`", fix)
    return [f"{name}/{each}" for each in found]


def _jobs(overrides: Sequence[str]) -> Iterator[list[str]]:
    """The overrides of each job, as Hydra's own sweeper makes them."""
    from declog.config.overrides import parsed

    choices: list[list[str]] = []
    for word in overrides:
        override = parsed(word)
        if override is None or not override.is_sweep_override():
            choices.append([word])
            continue
        if not override.is_discrete_sweep():
            raise Wrong(f"`{word}` is no list of values", "key=1,2,4 or key=range(1,5)")
        key = word.partition("=")[0]
        choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
    yield from map(list, itertools.product(*choices))
