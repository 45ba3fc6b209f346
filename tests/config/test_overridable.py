"""One key of any shipped entry can be overridden: from a file, from a shell, and inside an application of Hydra.

Stock merges are enough: an edit names the key and nothing that is already there.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

import declog
from declog.config.compose import compose, config_of
from declog.config.long_form import without_nulls
from declog.errors import Path as Keys
from tests import forks

PRESETS = sorted(file.stem for file in Path("conf/declog").absolute().glob("*.yaml"))
PACKS = sorted(file.stem for file in Path("conf/declog/packs").absolute().glob("*.yaml"))
# By section the key that is overridden in each of its entries. A metric with a formula has fewer keys.
EDITS: Mapping[str, tuple[str, Any]] = {
    "constants": ("help", "edited"), "modes": ("prefix", ""), "signals": ("help", "edited"),
    "derived": ("help", "edited"),
    "metrics": ("max_labels", 9), "about": ("help", "edited"), "filters": ("limit", 99), "schemas": ("help", "edited"),
    "tables": ("max_bytes", 123456), "profiles": ("self_metrics", True), "alerts": ("cooldown", 7),
    "sink_options": ("every", 2), "tests": ("help", "edited"),
}  # fmt: skip


def entries(section: str, data: Mapping[str, Any]) -> Iterator[Keys]:
    """The paths of a section's entries; columns of a schema, and signals of a phase, are entries, too."""
    for name, entry in data.items():
        if not isinstance(entry, Mapping):
            continue
        inside = section in ("schemas", "signals")
        yield from ((name, *path) for path in entries("", entry)) if inside else [(name,)]


def edits(preset: str, overrides: list[str]) -> dict[Keys, Any]:
    """An edit of every entry of a preset, by its path."""
    data = config_of(compose(preset, overrides))
    found: dict[Keys, Any] = {}
    for section, (key, value) in EDITS.items():
        for path in entries(section, data.get(section) or {}):
            entry: Any = data[section]
            for name in path:
                entry = entry[name]
            if section == "modes":
                value = f"edited_{path[0]}/"
            is_formula = section == "metrics" and entry.get("formula") is not None
            found[section, *path, "renamed" if is_formula else key] = "earlier" if is_formula else value
    return found


def nested(paths: Mapping[Keys, Any]) -> dict[str, Any]:
    """Values by their paths, as maps."""
    made: dict[str, Any] = {}
    for path, value in paths.items():
        inner = made
        for key in path[:-1]:
            inner = inner.setdefault(str(key), {})
        inner[str(path[-1])] = value
    return made


def planned(config: Any) -> tuple[Any, Mapping[str, str]]:
    """A config, less the nulls that an entry with all its keys has, and its plan without the config's name."""
    data = without_nulls(config_of(config))
    return data, declog.plan(config).canonical


DEFAULTS = yaml.safe_load(Path("conf/declog/grpo.yaml").read_text())["defaults"]
CHOSEN = {pack for entry in DEFAULTS if isinstance(entry, dict) for pack in entry["packs"]}
OTHERS = [pack for pack in PACKS if pack not in CHOSEN]
CASES: list[tuple[str, list[str]]] = [*((preset, []) for preset in PRESETS), ("grpo", OTHERS)]


@pytest.mark.parametrize(("preset", "others"), CASES, ids=lambda name: "packs" if name == OTHERS else name or "alone")
def test_a_key_of_every_entry_is_overridden(preset: str, others: list[str], tmp_path: Path) -> None:
    """By a file over it, by overrides, by an application's file and by its overrides: the same config and plan.

    Of packs beside a preset: the entries that the packs bring.
    """
    chosen = [f"+packs=[{','.join(others)}]"] if others else []
    wanted = edits(preset, chosen)
    if others:
        alone = edits(preset, [])
        assert all(wanted.keys() & edits(preset, [f"+packs={pack}"]).keys() - alone.keys() for pack in others)
        wanted = {path: value for path, value in wanted.items() if path not in alone}
    words = [f"{'.'.join(map(str, path))}={json.dumps(value)}" for path, value in wanted.items()]
    packs = [{"packs": others}] if chosen else []
    (tmp_path / "declog").mkdir()
    mine = {"defaults": [preset, *packs, "_self_"], **nested(wanted)}
    (tmp_path / "declog/mine.yaml").write_text(yaml.safe_dump(mine, sort_keys=False))
    applied = {"defaults": [{"declog": "mine"}, "_self_"]}
    own = {"defaults": [{"declog": "base"}, "_self_"], "declog": nested(wanted)}
    (tmp_path / "declog/base.yaml").write_text(yaml.safe_dump({"defaults": [preset, *packs, "_self_"]}))
    for name, config in (("applied", applied), ("own", own), ("words", {"defaults": [{"declog": "base"}, "_self_"]})):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    ways = {
        "file": planned(compose("mine", config_dir=tmp_path)),
        "shell": planned(compose("base", words, config_dir=tmp_path)),
    }
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        ways["application"] = planned(hydra_compose("applied"))
        ways["application's file"] = planned(hydra_compose("own"))
        ways["application's shell"] = planned(hydra_compose("words", [f"++declog.{word}" for word in words]))
    data, plan = ways["file"]
    for path, value in wanted.items():
        inner = data
        for key in path:
            inner = inner[key]
        assert inner == value, path
    assert [way for way, (_, other) in ways.items() if other != plan] == []
    shown = json.dumps(data, sort_keys=True)  # in which NaN is NaN
    assert [way for way, (other, _) in ways.items() if json.dumps(other, sort_keys=True) != shown] == []


# What people change most, as they type it in a shell before an application with `@hydra.main`.
COMMON = """
declog=rloo
declog.profile=slim
declog.sinks=[console,wandb]
declog.sinks=none
declog.every=10
declog.run.name=mine
declog.output_dir=runs/mine
declog.metrics.reward.reduce=p95
declog.metrics.length.reduce=[mean,p95]
declog.metrics.entropy=null
declog.metrics.kl=null
declog.alerts.kl.above=0.5
declog.alerts.clip_ratio=null
declog.profiles.slim.show=[length]
declog.filters.extremes.top=8
declog.tables.samples.every=50
declog.run.capture=true
declog.modes.eval.prefix=val/
+declog.axes.group.size=8
+declog.sink_options.wandb.project=mine
'+declog.metrics.long={expr: length, reduce: p95}'
""".strip().splitlines()


def test_common_edits_need_few_quotes() -> None:
    """None has more than one level of quotes, and at most five a `+`."""
    assert len(COMMON) >= 20
    assert sum(line.strip("'").startswith("+") for line in COMMON) <= 5
    for line in COMMON:
        (word,) = shlex.split(line)
        assert not {"'", '"'} & set(word), line


@pytest.fixture(scope="session")
def application(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an application that chooses a preset."""
    folder = tmp_path_factory.mktemp("application")
    (folder / "app.yaml").write_text("defaults: [{declog: grpo}, _self_]\n")
    return folder


@pytest.fixture(scope="session")
def before(application: Path) -> Any:
    """What it composes without an edit."""
    with initialize_config_dir(str(application), version_base="1.3"):
        return OmegaConf.to_container(hydra_compose("app"))


@pytest.mark.parametrize("line", COMMON)
def test_a_common_edit_changes_the_plan(line: str, application: Path, before: Any) -> None:
    """Inside an application and on declog's own path alike."""
    (word,) = shlex.split(line)
    with initialize_config_dir(str(application), version_base="1.3"):
        after = hydra_compose("app", [word])
    assert OmegaConf.to_container(after) != before
    assert declog.plan(after).canonical == declog.plan(compose("grpo", [word])).canonical


APP = """
import hydra
import declog

@hydra.main(version_base="1.3", config_path=".", config_name="app")
def main(cfg):
    print(declog.plan(cfg).fingerprint)

main()
"""


def test_a_real_application_takes_them(application: Path, tmp_path: Path) -> None:
    """All at once, from a shell."""
    (tmp_path / "app.yaml").write_text((application / "app.yaml").read_text())
    (tmp_path / "app.py").write_text(APP)
    words = [word for line in COMMON[1:] for word in shlex.split(line) if word != "declog.sinks=none"]
    done = forks.run([str(tmp_path / "app.py"), *words], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == declog.plan(compose("grpo", words)).fingerprint
