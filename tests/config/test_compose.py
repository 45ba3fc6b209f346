"""compose: Hydra YAML and overrides to one profile, outside of an application and inside of one."""

from __future__ import annotations

import copy
import json
import pickle
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf

import declog
from declog.config.compose import compose, config_of, presets
from declog.config.composed import Composed
from declog.config.plugin import DeclogSearchPath
from declog.config.search_path import conf_location
from declog.errors import CompositionError, ConfigError, Problem, Where
from declog.language.shorthand import long
from declog.language.tree import tree_of
from tests import forks
from tests.conftest import WritePreset


def _long(data: Any) -> Any:
    """Plain data in the long form."""
    return long(tree_of(data))[0].plain


REPOSITORY = Path(__file__).parents[2]
APP = Path(__file__).parents[1] / "data" / "compose" / "app"

BASE = """
    spec: 1
    run: {name: base}
    profile: full
    sinks: [console, parquet]
    metrics:
      reward: {expr: reward, reduce: mean}
      kl: mean(kl)
      gone: null
"""

BASE_PROFILE = {
    "sinks": ["console", "parquet"],
    "spec": 1,
    "run": {"name": "base"},
    "profile": "full",
    "metrics": {"reward": {"expr": "reward", "reduce": "mean"}, "kl": {"expr": "kl", "reduce": "mean"}, "gone": None},
}


def dedent(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


@pytest.fixture
def base(write_preset: WritePreset) -> Path:
    """A directory with one preset, ``base``."""
    return write_preset("base", BASE)


def composed(directory: Path, *overrides: str, name: str = "base") -> dict[str, Any]:
    return config_of(compose(name, overrides, config_dir=directory))


def refusal(directory: Path, *overrides: str, name: str = "base") -> str:
    with pytest.raises(CompositionError) as caught:
        compose(name, overrides, config_dir=directory)
    return str(caught.value)


@pytest.fixture
def application(base: Path) -> Path:
    """A configuration that chooses the preset ``base``; its overrides are in Hydra's words."""
    file = base / "train.yaml"
    file.write_text("defaults: [{declog: base}]\n")
    return file


def test_a_preset_is_composed_with_its_default_sinks(base: Path) -> None:
    """A preset stands under `declog`, with the sinks that it lists."""
    config = compose("base", config_dir=base)
    assert (config.data, config.prefix, config.overrides) == (BASE_PROFILE, ("declog",), ())


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("declog.profile=slim", {"profile": "slim"}),
        (
            "declog.metrics.reward.reduce=p95",
            {
                "metrics": {
                    "reward": {"expr": "reward", "reduce": "p95"},
                    "kl": {"expr": "kl", "reduce": "mean"},
                    "gone": None,
                }
            },
        ),
        (
            "~declog.metrics.kl",
            {"metrics": {"reward": {"expr": "reward", "reduce": "mean"}, "kl": None, "gone": None}},
        ),
        (
            "declog.metrics.kl=null",
            {"metrics": {"reward": {"expr": "reward", "reduce": "mean"}, "kl": None, "gone": None}},
        ),
        ("declog.sinks=[console,trackio]", {"sinks": ["console", "trackio"]}),
        ("declog.sinks=[]", {"sinks": []}),
        ("declog.sink_options.console.every=10", {"sink_options": {"console": {"every": 10}}}),
        (
            '+declog.metrics.long={expr: reward, where: "length > 512"}',
            {"metrics": {**BASE_PROFILE["metrics"], "long": {"expr": "reward", "where": "length > 512"}}},  # type: ignore[dict-item]
        ),
    ],
)
def test_one_override_changes_one_thing(base: Path, override: str, changed: dict[str, Any]) -> None:
    """Each kind of edit that a user makes on a command line, and nothing beside it."""
    assert composed(base, override) == {**BASE_PROFILE, **changed}


def test_a_preset_extends_another_by_its_flat_name(base: Path, write_preset: WritePreset) -> None:
    """A preset names another in its defaults list, adds keys, and replaces a list."""
    write_preset("team", "defaults: [base, _self_]\nsinks: [trackio]\nmetrics: {reward_p95: p95(reward)}\n")
    expected = {
        **BASE_PROFILE,
        "sinks": ["trackio"],
        "metrics": {**BASE_PROFILE["metrics"], "reward_p95": {"expr": "reward", "reduce": "p95"}},  # type: ignore[dict-item]
    }
    assert composed(base, name="team") == expected


def test_your_own_files_win_over_shipped_ones(base: Path) -> None:
    """`config_dir` stands before the shipped presets in the search path."""
    own = base / "declog" / "packs" / "rewards.yaml"
    own.parent.mkdir()
    own.write_text("metrics: {mine: mean(reward)}\n")
    (base / "declog" / "team.yaml").write_text("defaults: [base, packs: [rewards], _self_]\n")
    assert [*composed(base, name="team")["metrics"]] == [*BASE_PROFILE["metrics"], "mine"]  # type: ignore[misc]


def text(data: Any) -> str:
    """Data as text, so that NaN is equal to NaN."""
    return json.dumps(data, sort_keys=True)


def test_grpo_is_what_its_file_says() -> None:
    """The shipped preset composes to its own file, and the packs that its defaults list names."""
    written = OmegaConf.to_container(OmegaConf.load(REPOSITORY / "conf" / "declog" / "grpo.yaml"))
    assert isinstance(written, dict)
    packs = ["rewards", "groups", "completions", "advantages", "policy", "optimisation", "throughput"]
    assert written.pop("defaults") == [{"packs": packs}, "_self_"]
    layers: list[Any] = []
    for file in (*(f"packs/{name}" for name in packs), "grpo"):
        layer = OmegaConf.to_container(OmegaConf.load(REPOSITORY / "conf" / "declog" / f"{file}.yaml"))
        assert isinstance(layer, dict)
        layers.append(_long({key: value for key, value in layer.items() if key != "defaults"}))
    assert text(config_of(compose())) == text(OmegaConf.to_container(OmegaConf.merge(*layers)))


def test_rloo_is_grpo_with_what_its_file_changes() -> None:
    """The other preset is an extension: what its file does not name is GRPO's."""
    changes = OmegaConf.load(REPOSITORY / "conf" / "declog" / "rloo.yaml")
    assert isinstance(changes, DictConfig)
    assert changes.pop("defaults") == ["grpo", "_self_"]
    short = OmegaConf.to_container(changes)
    assert isinstance(short, dict)
    merged = OmegaConf.merge(config_of(compose("grpo")), _long(short))
    assert text(config_of(compose("rloo"))) == text(OmegaConf.to_container(merged))


@pytest.mark.parametrize("preset", ["grpo", "rloo"])
def test_every_shipped_metric_takes_a_plain_override(preset: str) -> None:
    """Shipped presets spell out `expr` and `reduce`, so that no `+` and no quoting is needed to change them."""
    written = config_of(compose(preset))["metrics"]
    metrics = [name for name, metric in written.items() if metric is not None]
    changed = composed(REPOSITORY / "conf", *(f"declog.metrics.{name}.reduce=p95" for name in metrics), name=preset)
    assert {name: changed["metrics"][name]["reduce"] for name in metrics} == dict.fromkeys(metrics, "p95")
    assert {name: metric["expr"] for name, metric in changed["metrics"].items() if metric} == {
        name: written[name]["expr"] for name in metrics
    }
    assert "reward" in metrics


def test_presets_lists_own_and_shipped_ones(base: Path, write_preset: WritePreset) -> None:
    """`presets` names what `compose` takes: a new file is one more."""
    before = presets(base)
    write_preset("another", "spec: 1\n")
    assert set(presets(base)) - set(before) == {"another"}
    assert "base" in before


def test_composing_leaves_hydras_state_as_it_was(base: Path) -> None:
    """Hydra's singletons hold the same before and after, also when composing fails."""

    def state() -> tuple[object, ...]:
        job = JobRuntime.instance().get("name")
        return GlobalHydra.instance(), GlobalHydra.instance().is_initialized(), VersionBase.instance().getbase(), job

    before = state()
    first = composed(base)
    refusal(base, "declog.nothing=1")
    assert (composed(base), state()) == (first, before)


def test_hydra_finds_one_plugin_of_declogs() -> None:
    """In `hydra_plugins`, as Hydra finds all plugins that are installed: nobody registers it."""
    plugins = [each for each in Plugins.instance().discover(SearchPathPlugin) if each is DeclogSearchPath]
    assert plugins == [DeclogSearchPath]


BESIDE = """
import sys

if "with" in sys.argv:
    import declog
    declog.compose("grpo")
import hydra
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf


def state():
    plugins = Plugins.instance()
    classes = {kind.__name__: [each.__qualname__ for each in found] for kind, found in
               plugins.plugin_type_to_subclass_list.items()}
    registered = {scheme: f"{each.__module__}.{each.__qualname__}" for scheme, each in
                  SourcesRegistry.instance().types.items()}
    return sorted(classes.items()), sorted(plugins.class_name_to_class), registered, len(sys.meta_path)


with hydra.initialize_config_dir(sys.argv[1], version_base="1.3"):
    for words in ([], ["db.port=1"], ["db=other"], ["db.prt=1"], ["db=none_such"]):
        try:
            print(OmegaConf.to_container(hydra.compose("config", words, return_hydra_config=False)))
        except Exception as error:
            print(type(error).__name__, error)
    for source in GlobalHydra.instance().config_loader().get_sources():
        print(source)
print(state())
"""


def test_another_application_is_as_without_declog(tmp_path: Path) -> None:
    """Hydra's registries, results, errors and search path are equal, whether declog was used before or not."""
    (tmp_path / "db").mkdir()
    (tmp_path / "config.yaml").write_text("defaults: [{db: main}, _self_]\nmetrics: {p: p95(reward)}\n")
    (tmp_path / "db/main.yaml").write_text("port: 5\nsinks: {console: slim}\n")
    (tmp_path / "db/other.yaml").write_text("port: 6\nsinks: [console]\n")
    (tmp_path / "app.py").write_text(BESIDE)
    printed = []
    for words in (["with"], []):
        line = [sys.executable, str(tmp_path / "app.py"), str(tmp_path), *words]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert "'port': 6, 'sinks': ['console']" in printed[0] and "ConfigCompositionException" in printed[0]


def test_a_checkout_finds_its_presets_beside_the_package() -> None:
    """In an editable install the presets are the repository's own files, not a copy."""
    assert conf_location() == f"file://{REPOSITORY / 'conf'}"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "declog.metrics.rewrd.reduce=p95",
            """
            error[DL101] override 'declog.metrics.rewrd.reduce=p95'
              there is no key `rewrd` in declog.metrics; + adds one
                declog.metrics.rewrd.reduce=p95
                               ^^^^^
              fix: declog.metrics.reward.reduce=p95  or  +declog.metrics.rewrd.reduce=p95
            """,
        ),
        (
            "profile=slim",
            """
            error[DL101] override 'profile=slim'
              there is no key `profile` at the top
                profile=slim
                ^^^^^^^
              fix: declog.profile=slim
            """,
        ),
        (
            "~declog.metrics.lk",
            """
            error[DL101] override '~declog.metrics.lk'
              there is no key `lk` in declog.metrics
                ~declog.metrics.lk
                                ^^
              fix: one of the known keys: gone, kl, reward
            """,
        ),
        (
            "~declog.metrics.gone",
            """
            error[DL101] override '~declog.metrics.gone'
              declog.metrics.gone is null already: an earlier layer deleted it
                ~declog.metrics.gone
                ^^^^^^^^^^^^^^^^^^^^
              fix: leave this override out
            """,
        ),
        (
            "~declog.profile=slim",
            """
            error[DL101] override '~declog.profile=slim'
              declog.profile has another value here, and `~key=value` deletes the value that it names
                ~declog.profile=slim
                ^^^^^^^^^^^^^^^^^^^^
              fix: ~declog.profile
            """,
        ),
        (
            "+declog.profile=slim",
            """
            error[DL101] override '+declog.profile=slim'
              declog.profile is there already, and + only adds
                +declog.profile=slim
                ^^^^^^^^^^^^^^^^^^^^
              fix: declog.profile=slim
            """,
        ),
        (
            "+declog/packs@declog=[rewards,grups]",
            """
            error[DL101] override '+declog/packs@declog=[rewards,grups]'
              there is no `grups` in the group declog/packs
                +declog/packs@declog=[rewards,grups]
                                              ^^^^^
              fix: did you mean `groups`?
            """,
        ),
        (
            "declog.sinks.trackio.every=3",
            """
            error[DL101] override 'declog.sinks.trackio.every=3'
              `sinks` is a list of names; options of a sink go into `sink_options`
                declog.sinks.trackio.every=3
                             ^^^^^^^
              fix: declog.sinks=[console,parquet,trackio] ++declog.sink_options.trackio.every=3
            """,
        ),
        (
            "declog/sinks=[console]",
            """
            error[DL101] override 'declog/sinks=[console]'
              there is no group `declog/sinks`
                declog/sinks=[console]
                ^^^^^^^^^^^^
              fix: declog.sinks=[console]
            """,
        ),
        (
            "declog/pack=[rewards]",
            """
            error[DL101] override 'declog/pack=[rewards]'
              there is no group `declog/pack`
                declog/pack=[rewards]
                ^^^^^^^^^^^
              fix: did you mean `declog/packs`?
            """,
        ),
        (
            "declog.profile=slim,full",
            """
            error[DL101] override 'declog.profile=slim,full'
              `slim,full` is a sweep over several values, which needs --multirun
                declog.profile=slim,full
                               ^^^^^^^^^
              fix: --multirun declog.profile=slim,full
            """,
        ),
        (
            "+declog.metrics.long.where=length > 512",
            """
            error[DL101] override '+declog.metrics.long.where=length > 512'
              Hydra cannot read `length > 512` without quotes
                +declog.metrics.long.where=length > 512
                                           ^^^^^^^^^^^^
              fix: '+declog.metrics.long.where="length > 512"'
            """,
        ),
        (
            "+declog.metrics.size.expr=abs(kl)",
            """
            error[DL101] override '+declog.metrics.size.expr=abs(kl)'
              Hydra cannot read `abs(kl)` without quotes
                +declog.metrics.size.expr=abs(kl)
                                          ^^^^^^^
              fix: '+declog.metrics.size.expr="abs(kl)"'
            """,
        ),
        (
            '+declog.metrics.math.where=task == "math"',
            r"""
            error[DL101] override '+declog.metrics.math.where=task == "math"'
              Hydra cannot read `task == "math"` without quotes
                +declog.metrics.math.where=task == "math"
                                           ^^^^^^^^^^^^^^
              fix: '+declog.metrics.math.where="task == \"math\""'
            """,
        ),
        (
            "+declog.metrics.by_task={name: reward/{label}}",
            """
            error[DL101] override '+declog.metrics.by_task={name: reward/{label}}'
              inside [...] and {...}, Hydra wants a text that is more than words in quotes
                +declog.metrics.by_task={name: reward/{label}}
                                        ^^^^^^^^^^^^^^^^^^^^^^
              fix: '+declog.metrics.by_task={name: "reward/{label}"}'
            """,
        ),
        (
            "++declog.metrics.rewards/x.reduce=mean",
            """
            error[DL101] override '++declog.metrics.rewards/x.reduce=mean'
              a key cannot hold `/`: `rewards/x` may be the entry's `name`, its id is an identifier
                ++declog.metrics.rewards/x.reduce=mean
                                 ^^^^^^^^^
              fix: ++declog.metrics.rewards_x.reduce=mean
            """,
        ),
        (
            "declog=bse",
            """
            error[DL104] override 'declog=bse'
              there is no preset `bse`
                declog=bse
                       ^^^
              fix: did you mean `base`?
            """,
        ),
    ],
)
def test_a_wrong_override_says_what_to_type_instead(application: Path, override: str, expected: str) -> None:
    """Every way in which Hydra refuses an override becomes a place, a plain cause and a fix."""
    with pytest.raises(CompositionError) as caught:
        compose(application, [override])
    assert str(caught.value) == dedent(expected)


@pytest.mark.parametrize(
    "fix",
    [
        "declog.metrics.reward.reduce=p95",
        "+declog.metrics.rewrd.reduce=p95",
        "declog.sinks=[console]",
        "declog.sinks=[]",
        '+declog.metrics.long.where="length > 512"',
        r'+declog.metrics.math.where="task == \"math\""',
    ],
)
def test_the_fixes_can_be_pasted(base: Path, fix: str) -> None:
    """What the errors above propose is accepted."""
    assert composed(base, fix) != BASE_PROFILE


def test_all_wrong_overrides_are_reported_at_once_and_in_order(application: Path) -> None:
    """Hydra stops at the first; here each wrong override is one problem, and the good ones are none."""
    overrides = ["declog.metrics.rewrd=1", "declog.profile=slim", "+declog.x=a > b", "declog/sinks=[wandb]"]
    with pytest.raises(CompositionError) as caught:
        compose(application, overrides)
    assert [(each.code, each.source) for each in caught.value.problems] == [
        ("DL101", "declog.metrics.rewrd=1"),
        ("DL101", "+declog.x=a > b"),
        ("DL101", "declog/sinks=[wandb]"),
    ]


def test_an_override_may_need_one_that_stands_behind_it(application: Path) -> None:
    """Groups are chosen before keys are set, so a good pair is not blamed for another's mistake."""
    overrides = ["declog.metrics.reward.reduce=p95", "declog.sinks=[trackio]", "declog.wrong=1"]
    with pytest.raises(CompositionError) as caught:
        compose(application, overrides)
    assert [each.source for each in caught.value.problems] == ["declog.wrong=1"]


def test_an_unknown_preset_names_the_nearest(base: Path) -> None:
    """DL104 for the name that `compose` itself is given."""
    expected = "error[DL104] config\n  there is no preset `basse`\n  fix: did you mean `base`?"
    assert refusal(base, name="basse") == expected


def test_a_preset_beside_the_group_is_told_where_to_go(base: Path) -> None:
    """A file in `config_dir` itself is no preset: the error says which folder it belongs in."""
    (base / "mine.yaml").write_text("spec: 1\n")
    expected = """
        error[DL104] config
          there is no preset `mine`
          fix: move mine.yaml into a folder `declog` of that directory: presets are Hydra's group `declog`
    """
    assert refusal(base, name="mine") == dedent(expected)


def test_a_directory_that_is_not_there(base: Path) -> None:
    """A wrong `config_dir` is reported as such, not as a missing preset."""
    assert refusal(Path("nowhere")) == dedent("""
        error[DL101] config_dir
          there is no directory nowhere
          fix: give the directory that holds your `declog` folder
    """)


def test_one_text_is_no_list_of_overrides() -> None:
    """A forgotten pair of brackets is not read as an override per character."""
    with pytest.raises(CompositionError) as caught:
        compose("grpo", "declog.profile=slim")
    assert caught.value.problems == (
        Problem(
            "DL101.overrides",
            "overrides are a list of texts, and a str came",
            fix="['declog.profile=slim']",
            where=Where(name="overrides"),
        ),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "run: {name: x}\nmetrics:\n  x: 1\n  x: 2\n",
            """
            error[DL101] declog/broken.yaml:4:3
              this is not valid YAML: the key `x` stands here a second time
                4 |   x: 2
                  |   ^
              fix: keep one of the two
            """,
        ),
        (
            "run: {name: x}\nmetrics:\n  x: mean: kl\n",
            """
            error[DL101] declog/broken.yaml:3:10
              this is not valid YAML: a colon and a space start a map, and this is inside a text
                3 |   x: mean: kl
                  |          ^
              fix: x: 'mean: kl'
            """,
        ),
        (
            "defaults:\n  - packs: [rewards, grups]\n  - _self_\nrun: {name: x}\n",
            """
            error[DL101] declog/broken.yaml:2:22
              there is no `grups` in the group declog/packs
                2 |   - packs: [rewards, grups]
                  |                      ^^^^^
              fix: did you mean `groups`?
            """,
        ),
        (
            "defaults: [bse, _self_]\nrun: {name: x}\n",
            """
            error[DL104] declog/broken.yaml:1:12
              there is no `bse` in the group declog
                1 | defaults: [bse, _self_]
                  |            ^^^
              fix: did you mean `base`?
            """,
        ),
        (
            'metrics:\n  x: "mean ${kl"\n',
            r"""
            error[DL103] declog/broken.yaml:2:12 in metrics.x
              this `${` is not closed
                2 |   x: "mean ${kl"
                  |            ^^^^
              fix: close it with `}`, or write \${ for a text that holds it as it is
            """,
        ),
        (
            "# @package logging\nrun: {name: x}\n",
            """
            error[DL101] declog/broken.yaml:1:1
              this line takes the preset `broken` out of the node `declog`
                1 | # @package logging
                  | ^^^^^^^^^^^^^^^^^^
              fix: delete it, and write the keys of a config at the top, without `declog:`
            """,
        ),
    ],
)
def test_a_broken_file_is_shown_at_its_line(base: Path, write_preset: WritePreset, text: str, expected: str) -> None:
    """What is wrong in a file itself has the file's line and column, though Hydra's message has not."""
    write_preset("broken", text)
    assert refusal(base, name="broken") == dedent(expected)


def test_profile_of_takes_a_whole_configuration_a_node_and_a_mapping(base: Path) -> None:
    """The profile is found in an application's configuration, as its node, or as plain data."""
    config = OmegaConf.create({"batch": 16, "declog": {"run": {"name": "x", "config": {"batch": "${batch}"}}}})
    plain = {"run": {"name": "x", "config": {"batch": 16}}}
    given: list[Any] = [config, config.declog, plain, {"declog": plain}]
    assert [config_of(each) for each in given] == [plain] * 4


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ({"metrics": {"a": "p95(rewrad)"}}, "config in metrics.a"),
        ({"metrics": {"a": {"exp": "x"}}}, "config in metrics.a.exp"),
        ({"profil": "slim"}, "config"),
        ({"every": "${oc.env:DECLOG_NOT_SET}"}, "config in every"),
        ({"metrics": {"no_such": None}}, "config in metrics.no_such"),
        ({"every": None, "sinks": ["nowhere"]}, "config in sinks.0"),
    ],
)
def test_a_mapping_over_a_preset_is_answered_as_a_file(
    write_preset: WritePreset, lines: dict[str, Any], name: str
) -> None:
    """The same mistakes with the same fixes; in place of a file's line stands the argument."""
    data = {"defaults": ["grpo", "_self_"], **lines}
    folder = write_preset("mine", yaml.safe_dump(data, sort_keys=False))
    problems = []
    for config in ("mine", data):
        with pytest.raises(ConfigError) as caught:
            declog.plan(compose(config, config_dir=folder))
        problems.append(caught.value.problems)
    said = [[(one.code, one.path, one.message, one.fix) for one in each] for each in problems]
    assert said[0] == said[1]
    assert problems[1][0].text().splitlines()[0] == f"error[{problems[1][0].code}] {name}"


def test_prefix_of_follows_the_node() -> None:
    """A profile that was composed elsewhere, or that `declog` points to, has that place."""
    config = OmegaConf.create(
        {"eval_log": {"run": {"name": "x"}}, "logging": {"declog": {"run": {"name": "y"}}}, "declog": "${eval_log}"}
    )
    given: list[Any] = [config.eval_log, config.logging, config, {"run": {"name": "z"}}]
    assert [compose(each).prefix for each in given] == [("eval_log",), ("logging", "declog"), ("eval_log",), ()]


def test_everything_that_does_not_resolve_is_reported_with_its_place(base: Path, write_preset: WritePreset) -> None:
    """`???` and interpolations that lead nowhere, all at once, each at its line."""
    write_preset(
        "open",
        """
        defaults: [base, _self_]
        seed: ???
        output_dir: ${oc.env:DECLOG_NOT_SET}
        run: {config: {method: "${declog.profil}", self: "${declog.run.config}"}}
        """,
    )
    with pytest.raises(CompositionError) as caught:
        composed(base, "+declog.axes.group.size=???", name="open")
    assert str(caught.value) == dedent("""
        error[DL102] declog/open.yaml:2:7
          seed has no value yet (???)
            2 | seed: ???
              |       ^^^
          fix: give one: declog.seed=...

        error[DL103] declog/open.yaml:3:13 in output_dir
          the variable `DECLOG_NOT_SET` of the environment is not set
            3 | output_dir: ${oc.env:DECLOG_NOT_SET}
              |             ^^^^^^^^^^^^^^^^^^^^^^^^
          fix: ${oc.env:DECLOG_NOT_SET,null}, with a default, or in the shell `export DECLOG_NOT_SET=...`

        error[DL103] declog/open.yaml:4:25 in run.config.method
          there is no key `declog.profil`
            4 | run: {config: {method: "${declog.profil}", self: "${declog.run.config}"}}
              |                         ^^^^^^^^^^^^^^^^
          fix: did you mean `${declog.profile}`?

        error[DL103] declog/open.yaml:4:51 in run.config.self
          Interpolation to parent node detected
            4 | run: {config: {method: "${declog.profil}", self: "${declog.run.config}"}}
              |                                                   ^^^^^^^^^^^^^^^^^^^^

        error[DL102] override '+declog.axes.group.size=???'
          axes.group.size has no value yet (???)
            +declog.axes.group.size=???
                                    ^^^
          fix: give one: declog.axes.group.size=...
    """)


def test_relative_interpolations_are_reported_as_they_were_written() -> None:
    """A relative key that exists at the top of the configuration is not proposed for one that is missing."""
    config = OmegaConf.create({"name": "top", "declog": {"a": {"b": "${.name}", "c": "${..d.e}"}, "d": "${nowhere}"}})
    with pytest.raises(CompositionError) as caught:
        config_of(config)
    assert [(each.path, each.source, each.fix) for each in caught.value.problems] == [
        (("a", "b"), "${.name}", None),
        (("a", "c"), "${..d.e}", None),
        (
            ("d",),
            "${nowhere}",
            "an interpolation starts at the top of the whole configuration; a signal stands alone: `nowhere`",
        ),
    ]


def test_interpolations_that_lead_into_each_other_end() -> None:
    """Two nodes that contain each other are one problem, not an endless profile."""
    config = OmegaConf.create({"a": {"b": "${c}"}, "c": {"d": "${a}"}})
    with pytest.raises(CompositionError) as caught:
        config_of(config)
    assert {each.code for each in caught.value.problems} == {"DL103"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"declog": None},
            "error[DL202]\n  the config is empty; a config is a map, such as `metrics: {reward: mean}`\n  "
            "fix: `defaults: [grpo, _self_]` extends a preset; an application has `defaults: [declog: grpo]`",
        ),
        (
            {"declog": "???"},
            "error[DL102]\n  the node `declog` has no value yet (???)\n  fix: choose a preset: declog=grpo",
        ),
        ({"declog": "${x}"}, "error[DL103]\n  Interpolation key 'x' not found"),
        (
            ["name"],
            "error[DL202] config\n  a config is a mapping, and a value of type list came\n"
            "  fix: a preset's name, a YAML file, a mapping, or what `declog.compose` returns",
        ),
        ({"name": object()}, "error[DL202] name\n  Value 'object' is not a supported primitive type"),
    ],
)
def test_what_is_no_profile_is_refused(given: Any, expected: str) -> None:
    """A node that is empty, missing or no mapping is reported as such before anything is validated."""
    with pytest.raises(ConfigError) as caught:
        config_of(given)
    assert str(caught.value) == expected


@pytest.mark.parametrize("overrides", [[], ["every=2"]])
@pytest.mark.parametrize("call", [compose, declog.plan, declog.start, declog.callback])
def test_none_is_no_config(call: Any, overrides: list[str]) -> None:
    """Whoever has overrides only is told what to name before them, and not that a configuration was composed."""
    with pytest.raises(ConfigError, match=r'\[DL202\] config\n  None is no config\n  fix: "minimal" in its place'):
        call(None, overrides)


@pytest.mark.parametrize("lines", ["every: 3", "{metrics: {x: mean(x)}, signals: {any: {x: completion}}}", "sinks: []"])
@pytest.mark.parametrize("override", ["every=2", "metrics.x={expr: x, reduce: max}", "signals.any.x=completion"])
def test_overrides_of_a_mapping(lines: str, override: str, tmp_path: Path) -> None:
    """A mapping of code takes overrides as a file of its lines does."""
    file = tmp_path / "mine.yaml"
    file.write_text(lines)
    assert compose(yaml.safe_load(lines), [override]).data == compose(file, [override]).data
    assert compose({}, [override]).data.keys() == {override.partition("=")[0].partition(".")[0]}


def test_places_survive_a_copy_and_a_pickle(base: Path) -> None:
    """A configuration keeps where it came from when a launcher copies it to a worker."""
    config = compose("base", config_dir=base)
    error = ConfigError([Problem("DL201", "unknown key `metrics`", ("metrics",))])
    expected = dedent("""
        error[DL201] declog/base.yaml:5:1
          unknown key `metrics`
            5 | metrics:
              | ^^^^^^^
    """)
    given: list[Composed] = [config, copy.deepcopy(config), pickle.loads(pickle.dumps(config))]
    assert [str(each.located(error)) for each in given] == [expected] * 3


def test_places_are_those_that_were_composed(base: Path) -> None:
    """A file that is edited, or broken, since it was composed does not change what an error shows of it."""
    config = compose("base", config_dir=base)
    error = ConfigError([Problem("DL201", "unknown key `metrics`", ("metrics",))])
    before = str(config.located(error))
    (base / "declog" / "base.yaml").write_text("a: b: c\n")
    assert before.startswith("error[DL201] declog/base.yaml:5:1\n")
    assert str(config.located(error)) == before


def run_app(tmp_path: Path, *arguments: str) -> list[str]:
    """The lines that the application in data/compose/app prints, run as its user would, from its directory."""
    directories = [f"hydra.run.dir={tmp_path / 'run'}", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    done = forks.run(["train.py", *arguments, *directories], cwd=APP)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


APP_PROFILE = {
    "sinks": ["console", "parquet"],
    "spec": 1,
    "profile": "full",
    "run": {"name": "app", "config": {"batch": 16}},
    "metrics": {"reward": {"expr": "reward", "reduce": "mean"}},
    "filters": {"hard": {"where": "kl > 1", "random": 4}},
}


def test_an_applications_own_main_finds_the_presets(tmp_path: Path) -> None:
    """`import declog` is enough for `@hydra.main`: its own preset composes, with a list of sinks from the shell."""
    (line,) = run_app(tmp_path, "declog.sinks=[trackio]")
    assert json.loads(line.removeprefix("profile ")) == {
        **APP_PROFILE,
        "sinks": ["trackio"],
    }


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("declog.metrics.p90=p90(reward)", "'+declog.metrics.p90=\"p90(reward)\"'"),
        (
            "+declog.metrics.long={expr: reward, where: length > 512}",
            "'+declog.metrics.long={expr: reward, where: \"length > 512\"}'",
        ),
    ],
)
def test_an_applications_quoting_mistake_gets_the_edit_that_works(tmp_path: Path, word: str, fix: str) -> None:
    """Hydra ends the process for it, with words about its lexer; the fix is printed before, and can be pasted."""
    run = f"hydra.run.dir={tmp_path / 'run'}"
    refused = forks.run(["train.py", word, "do=print", run], cwd=APP)
    assert refused.returncode == 1 and f"\n  fix: {fix}\n" in refused.stderr
    (pasted,) = shlex.split(fix)
    path = pasted.lstrip("+").partition("=")[0].split(".")[-1]
    (line,) = [line for line in run_app(tmp_path, pasted, "do=print") if line.startswith("profile")]
    assert path in json.loads(line.removeprefix("profile "))["metrics"]


def test_an_error_inside_an_application_has_its_file_and_line(tmp_path: Path) -> None:
    """In a running application the places are those of its own configuration."""
    assert "\n".join(run_app(tmp_path, "do=fail")) == dedent("""
        error[DL310] conf/declog/app.yaml:9:12 in filters.hard.where
          it is per token
            9 |     where: kl > 1
              |            ^^
    """)


def test_each_job_of_a_multirun_has_its_own_overrides(tmp_path: Path) -> None:
    """Under multirun a place is the override of this job, and what it beat in the file."""
    lines = run_app(tmp_path, "-m", "do=fail", 'declog.filters.hard.where="kl > 1","mean(kl > 1)"')
    assert "\n".join(line for line in lines if "[HYDRA]" not in line) == dedent("""
        error[DL310] override 'declog.filters.hard.where="kl > 1"'
          it is per token
            declog.filters.hard.where="kl > 1"
                                       ^^
          also set in: conf/declog/app.yaml:9:5
        error[DL310] override 'declog.filters.hard.where="mean(kl > 1)"'
          it is per token
            declog.filters.hard.where="mean(kl > 1)"
                                            ^^
          also set in: conf/declog/app.yaml:9:5
    """)


def test_each_job_of_a_multirun_has_its_own_profile(tmp_path: Path) -> None:
    """A sweep over a profile composes one configuration per job."""
    lines = run_app(tmp_path, "-m", "declog.profile=slim,full")
    profiles = [json.loads(line.removeprefix("profile ")) for line in lines if line.startswith("profile ")]
    assert profiles == [{**APP_PROFILE, "profile": "slim"}, APP_PROFILE]


def test_composing_inside_an_application_does_not_disturb_it(tmp_path: Path) -> None:
    """Hydra's globals, the job's name and its `version_base` are the same objects and values afterwards."""
    (line,) = run_app(tmp_path, "do=compose")
    assert json.loads(line.removeprefix("inner ")) == {"profile": "slim", "same": [True] * 4, "base": "1.2"}


@pytest.mark.parametrize("preset", presets())
def test_a_preset_says_what_its_metrics_mean(preset: str) -> None:
    """In a line each; it has an evaluation, and alerts and a slim profile where it knows metrics by name."""
    profile = config_of(preset)
    shown = [name for name, entry in profile["metrics"].items() if entry and entry.get("log", True)]
    said = {name: profile["about"].get(name, {}).get("help", "") for name in shown}
    assert [name for name, help in said.items() if not help or "\n" in help] == []
    assert len(profile["modes"]) == 2 - (preset == "trl_async_grpo")  # its evaluations are the trainer's own
    if preset not in ("minimal", "trainer"):
        assert "slim" in profile["profiles"] and profile["alerts"]


def test_the_slim_profile_of_grpo_is_slim() -> None:
    """At most 15 scalars, whatever is observed."""
    plan = declog.plan("grpo", ["profile=slim", "sinks=[console]"])
    assert len(plan.profiles["slim"].outputs) == 10
