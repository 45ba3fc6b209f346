"""Profiles handed over in every way: a program that writes the plan of each, for ``test_one_meaning.py``.

``handing_over.py FOLDER compose`` composes and plans in one process, ``apply`` runs applications of Hydra, and
``receive`` gets what the first one pickled, as a worker and as an actor do. ``FOLDER/profiles.json`` lists the
profiles; what comes of them is written beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

import declog

Plans = dict[str, dict[str, dict[str, str]]]  # by profile and way of handing over


@dataclass(frozen=True)
class Handed:
    """A preset in the folder ``declog`` of ``folder``, or the application's configuration ``name`` in ``folder``.

    ``words`` are overrides, as of a command line; ``module`` is the package that has the folder.
    """

    label: str
    folder: str
    name: str
    module: str = ""
    application: bool = False
    words: tuple[str, ...] = ()

    @property
    def place(self) -> Path:
        """Its folder."""
        return Path(self.folder)

    @property
    def hydras(self) -> list[str]:
        """Its overrides, and its choice, as an application of Hydra takes them."""
        return [*([] if self.application else [f"+declog={self.name}"]), *self.words]


def written(folder: Path, profiles: list[Handed]) -> None:
    """List the profiles for the program."""
    (folder / "profiles.json").write_text(json.dumps([asdict(one) for one in profiles]))


def read(folder: Path) -> list[Handed]:
    """The profiles that are listed."""
    return [
        Handed(**{**one, "words": tuple(one["words"])}) for one in json.loads((folder / "profiles.json").read_text())
    ]


# -- ways, in the process that composes


def by_name(one: Handed) -> Any:
    """A preset's name, with the folder of one's own presets."""
    return declog.compose(one.name, list(one.words), config_dir=one.folder or None)


def by_file(one: Handed) -> Any:
    """The path of the YAML file."""
    file = one.place / f"{one.name}.yaml" if one.application else one.place / "declog" / f"{one.name}.yaml"
    return declog.compose(str(file), list(one.words))


def by_package(one: Handed) -> Any:
    """``pkg://``, the package that has the folder."""
    return declog.compose(f"pkg://{one.module}/{one.name}", list(one.words))


def by_data(one: Handed) -> Any:
    """The lines of the file as a mapping, with its defaults list."""
    data = OmegaConf.to_container(OmegaConf.load(one.place / "declog" / f"{one.name}.yaml"), resolve=False)
    assert isinstance(data, dict)
    return declog.compose({"defaults": ["_self_"], **data}, list(one.words), config_dir=one.folder or None)


def by_loaded(one: Handed) -> Any:
    """The same as OmegaConf has it."""
    loaded = OmegaConf.load(one.place / "declog" / f"{one.name}.yaml")
    config = OmegaConf.merge({"defaults": ["_self_"]}, loaded)
    return declog.compose(config, list(one.words), config_dir=one.folder or None)


def by_hydra(one: Handed) -> DictConfig:
    """Hydra's compose API, as notebooks, tests and Ray's drivers have it."""
    with hydra.initialize_config_dir(one.folder, version_base="1.3"):
        return hydra.compose(one.name if one.application else None, overrides=one.hydras)


def changed(config: DictConfig) -> DictConfig:
    """The same, an entry taken out and put back by code, and a value set to what it is."""
    OmegaConf.set_struct(config, False)
    for section in ("metrics", "signals"):
        entries = config.declog.get(section) or {}
        for name in [name for name, entry in entries.items() if isinstance(entry, DictConfig)][-1:]:
            entry = OmegaConf.to_container(entries[name])
            del entries[name]
            entries[name] = entry
    config.declog.every = config.declog.get("every", 1)
    return config


def plain(config: DictConfig) -> Any:
    """``OmegaConf.to_container``."""
    return OmegaConf.to_container(config, resolve=True)


def node(config: DictConfig) -> Any:
    """The node ``declog`` alone, as plain data that went through JSON."""
    return json.loads(json.dumps(plain(config)["declog"]))


PRESETS: dict[str, Callable[[Handed], Any]] = {
    "name": by_name,
    "pkg://": by_package,
    "data": by_data,
    "OmegaConf": by_loaded,
}
OF_HYDRA: dict[str, Callable[[DictConfig], Any]] = {
    "compose API": lambda config: config, "to_container": plain, "node by JSON": node, "changed in code": changed,
}  # fmt: skip


def composed(folder: Path, plans: Plans) -> None:
    """Every way of one process, and a pickle for another one."""
    for place, one in enumerate(read(folder)):
        os.chdir(one.folder)
        plans[one.label] |= {way: canonical(hand(one)) for way, hand in PRESETS.items() if not one.application}
        mine = by_file(one)
        plans[one.label]["file"] = canonical(mine)
        plans[one.label]["driver"] = dict(declog.plan(mine, profiles=(mine.profile,)).canonical)
        config = by_hydra(one)
        (folder / f"{place}.pickle").write_bytes(pickle.dumps((config, mine)))
        for way, change in OF_HYDRA.items():
            plans[one.label][way] = canonical(change(config))


def canonical(config: Any) -> dict[str, str]:
    """The plan as plain data."""
    return dict(declog.plan(config).canonical)


# -- ways, in applications of Hydra


def applied(folder: Path, plans: Plans) -> None:
    """A run for each profile; those of one folder in one run with several jobs."""
    profiles = read(folder)
    quiet = ["hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null"]
    for place in dict.fromkeys(one.folder for one in profiles):
        os.chdir(place)
        here = [one for one in profiles if one.folder == place]
        swept = {one.name: one for one in here if not one.application and not one.words}
        for one in [one for one in here if one.name not in swept or swept[one.name] is not one or len(swept) == 1]:
            named = ["--config-name", one.name] if one.application else []
            words = ["--config-dir", place, *named, *quiet, f"hydra.run.dir={folder}/run", *one.hydras]
            run(plans, {one.name: one}, words)
        if len(swept) > 1:
            words = ["--config-dir", place, "--multirun", *quiet, f"hydra.sweep.dir={folder}/sweep"]
            run(plans, swept, [*words, f"+declog={','.join(swept)}"])


def run(plans: Plans, profiles: dict[str, Handed], words: list[str]) -> None:
    """Run an application of Hydra's with a command line; its jobs note their plans."""

    @hydra.main(version_base="1.3", config_path=None)
    def main(config: DictConfig) -> None:
        known = HydraConfig.get()
        chosen = str(known.runtime.choices.get("declog"))
        one = profiles[chosen if chosen in profiles else str(known.job.config_name)]
        plans[one.label][f"@hydra.main ({str(known.mode).rpartition('.')[2].lower()})"] = canonical(config)

    sys.argv = ["app.py", *words]
    main()


# -- ways, in a process that gets it


def received(folder: Path, plans: Plans) -> None:
    """What was pickled, as a worker plans it and as an actor starts with it."""
    for place, one in enumerate(read(folder)):
        os.chdir(one.folder)
        config, by_declog = pickle.loads((folder / f"{place}.pickle").read_bytes())
        plans[one.label] |= {"pickled": canonical(config), "pickled by declog": canonical(by_declog)}
        with declog.start(config, role="actor", rank=0, world_size=1, output_dir=folder / "actor") as log:
            plans[one.label]["actor"] = dict(log.plan.canonical)


def main(folder: Path, part: str) -> None:
    """Run one of the parts."""
    sys.path[:0] = [str(folder), str(folder / "team_0"), str(Path(__file__).parents[2])]
    plans: Plans = {one.label: {} for one in read(folder)}
    with contextlib.redirect_stdout(sys.stderr):
        {"compose": composed, "apply": applied, "receive": received}[part](folder, plans)
    (folder / f"{part}.json").write_text(json.dumps(plans))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
