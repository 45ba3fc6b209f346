"""provenance: every composed key and the files and overrides that set it, the winning one last."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore

from declog.config.compose import compose, config_of
from declog.config.source_map import FileLocation, OverrideLocation, Provenance, shown_path
from declog.errors import Path as KeyPath
from tests.conftest import WritePreset

REPOSITORY = Path(__file__).parents[2]


def provenance(name: str, overrides: Sequence[str] = (), *, config_dir: Path) -> Provenance:
    """The layers of a preset with overrides."""
    return compose(name, overrides, config_dir=config_dir).provenance


def places(known: Provenance, *path: str | int) -> list[str]:
    """The layers of one key, each as its file, line and column, or as its override."""
    shown = []
    for layer in known.layers[("declog", *path)]:
        if isinstance(layer.location, FileLocation):
            at = layer.location.key or layer.location.value
            shown.append(f"{shown_path(layer.location.file)}:{at.line}:{at.column}")
        else:
            location = layer.location
            shown.append(location.text if isinstance(location, OverrideLocation) else str(location.where))
    return shown


@pytest.fixture
def layered(write_preset: WritePreset) -> Path:
    """Two presets, one on top of the other."""
    write_preset(
        "base",
        """
        sinks: [console]
        profile: full

        metrics:
          reward: {expr: reward, reduce: mean}
          kl: mean(kl)
        run: {config: {slim: {include: [tag:core, kl]}}}
        """,
    )
    return write_preset(
        "team",
        """
        defaults: [base, _self_]
        metrics:
          reward: {reduce: p95}
          kl: {expr: kl}
        run:
          config:
            slim:
              include: [reward]
        """,
    )


def test_a_key_knows_every_file_and_override_that_set_it(layered: Path) -> None:
    """Layers come in the order of composition: files of the defaults list, then overrides."""
    known = provenance("team", ["declog.metrics.reward.reduce=last", "+declog.seed=1"], config_dir=layered)
    assert {
        "reduce": places(known, "metrics", "reward", "reduce"),
        "expr": places(known, "metrics", "reward", "expr"),
        "profile": places(known, "profile"),
        "seed": places(known, "seed"),
        "include": places(known, "run", "config", "slim", "include", 0),
    } == {
        "reduce": ["declog/base.yaml:5:26", "declog/team.yaml:3:12", "declog.metrics.reward.reduce=last"],
        "expr": ["declog/base.yaml:5:12"],
        "profile": ["declog/base.yaml:2:1"],
        "seed": ["+declog.seed=1"],
        "include": ["declog/base.yaml:7:33", "declog/team.yaml:8:17"],
    }


def test_the_composed_keys_are_the_known_ones(layered: Path) -> None:
    """Nothing that was composed is unknown, and nothing is known that was not composed."""

    def keys(value: object, path: KeyPath) -> set[KeyPath]:
        inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return {path}.union(*(keys(each, (*path, key)) for key, each in inside))

    overrides = ["+declog.metrics.long={expr: reward, tags: [core]}", "declog.run.config.slim.include=[a,b,c]"]
    composed = keys(config_of(compose("team", overrides, config_dir=layered)), ("declog",))
    known = provenance("team", overrides, config_dir=layered)
    assert set(known.layers) == composed - {("declog",)}  # the node that the package makes
    assert places(known, "sinks") == ["declog/base.yaml:1:1"]


@pytest.mark.parametrize(
    ("path", "overrides", "expected"),
    [
        (("metrics", "reward", "reduce"), [], (("metrics", "reward", "reduce"), "declog/team.yaml:3:12")),
        # A key that nobody wrote: the innermost parent that somebody did.
        (("metrics", "reward", "where"), [], (("metrics", "reward"), "declog/team.yaml:3:3")),
        # A list replaces the list below it: its second entry is not base's.
        (("run", "config", "slim", "include", 1), [], (("run", "config", "slim", "include"), "declog/team.yaml:8:7")),
        # An override that sets a whole list, a text or null takes what the files had below it.
        (
            ("metrics", "reward", "reduce"),
            ["declog.metrics.reward=null"],
            (("metrics", "reward"), "declog.metrics.reward=null"),
        ),
        (("metrics", "reward", "expr"), ["~declog.metrics.reward"], (("metrics", "reward"), "~declog.metrics.reward")),
        # A mapping given as an override merges: what it does not name is still the file's.
        (
            ("metrics", "reward", "expr"),
            ["++declog.metrics.reward={reduce: max}"],
            (("metrics", "reward", "expr"), "declog/base.yaml:5:12"),
        ),
        (
            ("metrics", "reward", "reduce"),
            ["++declog.metrics.reward={reduce: max}"],
            (("metrics", "reward", "reduce"), "++declog.metrics.reward={reduce: max}"),
        ),
        (("nothing",), [], ((), None)),
    ],
)
def test_find_gives_the_place_that_still_holds(
    layered: Path, path: KeyPath, overrides: list[str], expected: tuple[KeyPath, str | None]
) -> None:
    """The winning layer of the innermost key that was written and not replaced since."""
    known = provenance("team", overrides, config_dir=layered)
    found, layers = known.find(("declog", *path))
    shown = places(known, *found[1:])[-1] if layers else None
    assert (found[1:], shown) == expected


def test_a_missing_value_in_a_file_takes_nothing_away(layered: Path, write_preset: WritePreset) -> None:
    """OmegaConf lets ??? leave an earlier value in place, so that value's file is the winning one."""
    write_preset("open", "defaults: [base, _self_]\nprofile: ???\nmetrics:\n  kl: ???\n")
    known = provenance("open", config_dir=layered)
    assert (places(known, "profile")[-1], places(known, "metrics", "kl")[-1]) == (
        "declog/base.yaml:2:1",
        "declog/base.yaml:6:3",
    )
    assert config_of(compose("open", config_dir=layered))["profile"] == "full"


def test_anchors_and_merges_lead_to_where_the_value_is_written(write_preset: WritePreset) -> None:
    """A key that `<<` brings stands at its anchor; the mapping's own key wins over it."""
    directory = write_preset(
        "anchored",
        """
        metrics:
          a: &one {expr: kl, reduce: mean}
          b: {reduce: max, <<: *one}
        """,
    )
    known = provenance("anchored", config_dir=directory)
    assert (places(known, "metrics", "b", "expr"), places(known, "metrics", "b", "reduce")[-1]) == (
        ["declog/anchored.yaml:2:12"],
        "declog/anchored.yaml:3:7",
    )


def test_keys_are_texts_as_in_problems(write_preset: WritePreset) -> None:
    """YAML 1.1 reads `on` as true and 2 as a number: the path has them as text, as a problem's path does."""
    directory = write_preset("odd", "metrics:\n  on: kl\n  2: kl\n  '3': kl\n")
    composed = config_of(compose("odd", config_dir=directory))["metrics"]
    known = provenance("odd", config_dir=directory)
    assert [path[-1] for path in known.layers if len(path) == 3] == list(map(str, composed)) == ["True", "2", "3"]


def test_a_relocated_group_has_its_own_prefix(layered: Path) -> None:
    """`+declog@eval_log=team` composes the preset a second time, under another node."""
    known = provenance("base", ["+declog@eval_log=team"], config_dir=layered)
    found = {path: len(known.layers[path]) for path in [("declog", "profile"), ("eval_log", "profile")]}
    assert found == {("declog", "profile"): 1, ("eval_log", "profile"): 1}


def test_a_configuration_that_is_no_file_has_its_name(layered: Path) -> None:
    """A preset in Hydra's ConfigStore is a layer too, shown by its name."""
    store = ConfigStore.instance()
    store.store(group="declog", name="stored", node={"defaults": ["team"], "profile": "slim"})
    try:
        known = provenance("stored", config_dir=layered)
    finally:
        del store.repo["declog"]  # the process' other tests list the shipped presets
    assert places(known, "profile") == ["declog/base.yaml:2:1", "structured://declog/stored"]


def test_a_mapping_with_a_defaults_list_is_a_layer(layered: Path) -> None:
    """As a file of the same lines; it is one's own, and overrides, pickles and overrides later are laid over it."""
    data = {"defaults": ["team", "_self_"], "profile": "slim", "metrics": {"kl": "max(kl)"}}
    config = compose(data, config_dir=layered)
    assert places(config.provenance, "profile") == ["declog/base.yaml:2:1", "config"]
    assert (config.home(("profile",)), config.data["profile"], data["profile"]) == (None, "slim", "slim")
    for again in (compose(data, ["profile=full"], config_dir=layered), compose(config, ["profile=full"])):
        assert places(again.provenance, "profile")[1:] == ["config", "declog.profile=full"]
        assert pickle.loads(pickle.dumps(again)).data == again.data


def test_lines_and_columns_count_characters(write_preset: WritePreset) -> None:
    """Columns are those of an editor, also behind text that is not ASCII."""
    directory = write_preset("text", 'metrics: {"é": a, 奖励: b, last: c}\n')
    assert places(provenance("text", config_dir=directory), "metrics", "last") == ["declog/text.yaml:1:26"]
