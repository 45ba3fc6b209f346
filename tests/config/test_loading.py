"""Configuration files from elsewhere: bounded before they are read, whatever makes them large or endless."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import hydra
import pytest
import yaml
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf

import declog
from declog.cli import main
from declog.errors import CompositionError
from tests.conftest import WritePreset

LEVELS = "abcdefgh"
GOOD = "signals: {any: {x: {axis: completion}}}\nmetrics: {x: mean(x)}\n"


def exploding(first: str, again: str) -> str:
    """Nine of the level before on each level."""
    lines = [f"  a: {first}"]
    lines += [f"  {key}: {again.format(before=before, key=key)}" for before, key in itertools.pairwise(LEVELS)]
    return "run:\n config:\n" + "\n".join(lines) + "\n"


def interpolated(text: str) -> str:
    """A level that repeats the one before by an interpolation."""
    return text.replace("@", "${{declog.run.config.{before}}}")


FILES = {
    "aliases in lists": exploding("&a [x, x]", "&{key} [" + ", ".join(["*{before}"] * 9) + "]"),
    "aliases in maps": exploding("&a {x: 1}", "&{key} {{" + ", ".join(f"k{i}: *{{before}}" for i in range(9)) + "}}"),
    "merged keys": "run:\n config:\n  a: &a {"
    + ", ".join(f"k{i}: 1" for i in range(300))
    + "}\n"
    + "".join(f"  b{i}: {{<<: *a}}\n" for i in range(100)),
    "an alias inside its own list": "run: {config: {a: &a [*a]}}\n",
    "an alias inside its own map": "metrics: &m {k: *m}\n",
    "a merge of itself": "metrics: &m {<<: *m}\n",
    "brackets": "run: {config: " + "[" * 100_000,
    "braces": "run: {config: " + "{a: " * 50_000,
    "dashes": "run:\n config:\n " + "- " * 5_000 + "1\n",
    "questions": "run:\n config:\n " + "? " * 5_000 + "1\n",
    "many values": "run: {config: [" + "1, " * 30_000 + "1]}\n",
    "many bytes": "#" * (5 * 2**20),
    "interpolated lists": exploding("[x, x]", interpolated("[" + ", ".join(['"@"'] * 9) + "]")),
    "interpolated maps": exploding("{x: 1}", interpolated("{{" + ", ".join(f'k{i}: "@"' for i in range(9)) + "}}")),
    "interpolated texts": exploding("lol", interpolated("'" + "@" * 9 + "'")),
    "texts by a resolver": exploding("lol", "'" + "${{oc.select:declog.run.config.{before}}}" * 9 + "'"),
    "relative texts": exploding("lol", "'" + "${{.{before}}}" * 9 + "'"),
    "texts by names of texts": "run:\n config:\n  n: {"
    + ", ".join(f"{key}: {key}" for key in LEVELS)
    + "}\n"
    + exploding("lol", "'" + "${{declog.run.config.${{declog.run.config.n.{before}}}}}" * 9 + "'").split("\n", 2)[2],
}


@pytest.fixture
def store() -> Iterator[ConfigStore]:
    """Hydra's, in which other tests find nothing of it."""
    made = ConfigStore.instance()
    yield made
    made.repo.pop("declog", None)


def test_what_changes_between_two_compositions_is_read_again(write_preset: WritePreset, store: ConfigStore) -> None:
    """A file and a preset of Hydra's store are in effect as they are when one composes."""
    place = write_preset("written", "profile: slim\nmetrics: {x: mean(reward)}\n")
    found = [declog.compose("written", config_dir=place).data]
    found.append(declog.compose("written", config_dir=place).data)
    write_preset("written", "profile: full\nmetrics: {x: mean(reward)}\n")
    found.append(declog.compose("written", config_dir=place).data)
    for profile in ("slim", "full"):
        store.store(group="declog", name="stored", node={"profile": profile})
        found.append(declog.compose("stored").data)
    assert [each["profile"] for each in found] == ["slim", "slim", "full", "slim", "full"]


def test_composing_gives_data_of_its_own(write_preset: WritePreset) -> None:
    """Whoever changes what was composed changes nothing of what is composed next."""
    place = write_preset("mine", "metrics: {x: {expr: reward, reduce: mean}}\n")
    first = declog.compose("mine", config_dir=place)
    expected = copy.deepcopy(first.data)
    first.data["metrics"]["x"].clear()
    assert declog.compose("mine", config_dir=place).data == expected


def test_what_a_preset_says_of_hydra_is_not_the_profiles(write_preset: WritePreset) -> None:
    """Its profile is as without that, and each key keeps its place."""
    text = "  profile: slim\n  metrics: {x: mean(reward)}\n"
    plain = declog.compose("plain", config_dir=write_preset("plain", f"# @package _global_\ndeclog:\n{text}"))
    more = f"# @package _global_\nhydra: {{run: {{dir: elsewhere}}}}\ndeclog:\n{text}"
    other = declog.compose("other", config_dir=write_preset("other", more))
    assert other.data == plain.data
    assert plain.provenance.layers and other.provenance.layers
    assert {each for each in other.provenance.layers if each[0] == "declog"} == plain.provenance.layers.keys()


def test_the_store_may_hold_a_class_of_a_function(store: ConfigStore) -> None:
    """A preset that is a dataclass of Hydra's store composes wherever its class stands."""

    @dataclass
    class Mine:
        profile: str = "slim"

    store.store(group="declog", name="stored", node=Mine)
    assert declog.compose("stored").data["profile"] == "slim"


@dataclass
class StoredRun:
    """A part of a preset in the store."""

    strict: bool = False


@dataclass
class Stored:
    """A preset in the store."""

    every: int = 10
    run: StoredRun = field(default_factory=StoredRun)


@pytest.mark.parametrize(
    ("line", "value"), [("every=5", 5), ("every=often", None), ("run.strict=true", True), ("run.strict=perhaps", None)]
)
def test_types_of_the_store_hold_as_in_hydra(line: str, value: object, store: ConfigStore) -> None:
    """A value of another type than a dataclass declares is refused by declog's own path and by Hydra's alike."""
    store.store(group="declog", name="stored", node=Stored)

    def hydras() -> Any:
        with hydra.initialize(version_base="1.3", config_path=None):
            return hydra.compose(None, overrides=["+declog=stored", f"declog.{line}"])

    if value is None:
        with pytest.raises(HydraException, match="Error merging"):
            hydras()
        with pytest.raises(CompositionError, match=r"could not be converted|is not a valid bool"):
            declog.compose("stored", [line])
        return
    key = line.partition("=")[0]
    found = [OmegaConf.select(OmegaConf.create(dict(each)), key) for each in
             (hydras().declog, declog.compose("stored", [line]).data)]  # fmt: skip
    assert found == [value, value]


PARTS = {"packs/one": "metrics: {reward_max: max(reward)}", "metrics/more": "more: p95(reward)"}
STORED = {
    "short forms": """
        signals: {any: {reward: completion, loss: step}}
        metrics: {reward: mean(reward), loss: {expr: loss, reduce: mean, tags: core}}
        alerts: {loss: "> 3"}
        sinks: [console]
        """,
    "a preset, and what replaces an entry of it": """
        defaults: [grpo, _self_]
        metrics: {reward: p95(reward), kl: null}
        alerts: {kl: null}
        """,
    "a pack": "defaults: [grpo, packs: [one], _self_]\nmetrics: {reward: p95(reward)}",
    "a pack by its path": "defaults: [grpo, packs/one, _self_]\nmetrics: {reward: p95(reward)}",
    "a file of a section": "defaults: [grpo, metrics: [more], _self_]\nmetrics: {reward: p95(reward)}",
    "one of the store over another": "defaults: [base, _self_]\nmetrics: {reward: p95(reward)}",
}


@pytest.mark.parametrize("line", [None, "declog.metrics.reward.reduce=max"])
@pytest.mark.parametrize("kind", STORED)
def test_a_config_in_the_store_is_what_a_file_of_its_lines_is(
    kind: str, line: str | None, tmp_path: Path, store: ConfigStore
) -> None:
    """One plan, by declog and by Hydra: its short forms, its defaults list and its packs, and with an override."""
    texts = {**PARTS, "base": STORED["short forms"], "mine": STORED[kind]}
    for name, text in texts.items():
        file = tmp_path / "declog" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))

    def plans(folder: Path) -> list[str]:
        lines = [] if line is None else [line]
        with hydra.initialize_config_dir(version_base="1.3", config_dir=str(folder)):
            config = hydra.compose(None, overrides=["+declog=mine", *lines])
        return [declog.plan(each).fingerprint for each in (config, declog.compose("mine", lines, config_dir=folder))]

    of_files = plans(tmp_path)
    for name, text in texts.items():
        group, _, option = f"declog/{name}".rpartition("/")
        store.store(group=group, name=option, node=yaml.safe_load(dedent(text)))
    (tmp_path / "empty").mkdir()
    assert plans(tmp_path / "empty") == of_files and len(set(of_files)) == 1


@dataclass
class StoredInShortForms:
    """A preset in the store."""

    defaults: list[Any] = field(default_factory=lambda: ["grpo", {"packs": ["one"]}, "_self_"])
    every: int = 10
    metrics: dict[str, Any] = field(default_factory=lambda: {"reward": "p95(reward)"})


@dataclass
class StoredApplication:
    """An application's configuration in the store."""

    lr: float = 0.1
    declog: dict[str, Any] = field(
        default_factory=lambda: {"signals": {"any": {"x": "completion"}}, "metrics": {"x": "mean(x)"}}
    )


def test_dataclasses_of_the_store_in_short_forms(store: ConfigStore, tmp_path: Path) -> None:
    """A preset and an application's configuration; the types that they declare hold."""
    for name, text in PARTS.items():
        group, _, option = f"declog/{name}".rpartition("/")
        store.store(group=group, name=option, node=yaml.safe_load(text))
    store.store(group="declog", name="typed", node=StoredInShortForms)
    store.store(name="stored_application", node=StoredApplication)
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(tmp_path)):
        configs = [
            hydra.compose(None, overrides=["+declog=typed", "declog.metrics.reward.reduce=max"]),
            hydra.compose("stored_application", overrides=["declog.metrics.x.reduce=max"]),
        ]
        for words in (["+declog=typed", "declog.every=often"], ["lr=high"]):
            with pytest.raises(HydraException, match="Error merging"):
                hydra.compose(None if len(words) == 2 else "stored_application", overrides=words)
    store.repo.pop("stored_application.yaml")
    names = [declog.plan(config).names() for config in configs]
    assert {"reward", "reward_max"} <= set(names[0]) and "x" in names[1]
    assert [config.declog.metrics[name].reduce for config, name in zip(configs, ("reward", "x"), strict=True)] == [
        "max", "max",
    ]  # fmt: skip
    assert (
        declog.plan(configs[0]).fingerprint
        == declog.plan(declog.compose("typed", ["metrics.reward.reduce=max"])).fingerprint
    )


UNRESOLVED = [kind for kind in FILES if kind.startswith(("interpolated", "texts", "relative"))]


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("verb", ["check", "show --yaml"])
def test_a_file_that_explodes_is_refused(
    kind: str, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By aliases, depth, size or interpolations: an error of declog's, by file or by name, and never a long wait."""
    (tmp_path / "declog").mkdir()
    file = tmp_path / "declog" / "mine.yaml"
    file.write_text(FILES[kind] + ("" if kind in ("brackets", "braces") else GOOD.partition("\n")[0]), encoding="utf-8")
    words = verb.split()
    codes = {main([*words, str(file)]), main([*words, "mine", "--config-dir", str(tmp_path)])}
    assert codes == (
        {0} if verb != "check" and kind in UNRESOLVED else {3}
    )  # `show` has what does not resolve as it is
    reported = capsys.readouterr()
    assert "error[" in reported.err or "does not compile (DL103)" in reported.out


def test_ordinary_anchors_are_taken(tmp_path: Path) -> None:
    """Anchors, aliases and merged keys as people use them."""
    (tmp_path / "declog").mkdir()
    text = (
        "signals: {any: {x: &row {axis: completion}, y: *row, z: {<<: *row}}}\n"
        "metrics: {x: mean(x), y: mean(y), z: mean(z)}\n"
    )
    (tmp_path / "declog" / "mine.yaml").write_text(text, encoding="utf-8")
    made = declog.plan(declog.compose("mine", config_dir=tmp_path))
    assert [op.key for op in made.metrics] == ["x", "y", "z", "logged"]


def test_a_chain_of_interpolations_is_taken(tmp_path: Path) -> None:
    """Forty texts, each made of the one before and a word, are no explosion."""
    (tmp_path / "declog").mkdir()
    chain = "".join(f"  k{i}: '${{declog.run.config.k{i - 1}}} {i}'\n" for i in range(1, 40))
    (tmp_path / "declog" / "mine.yaml").write_text(f"{GOOD}run:\n config:\n  k0: '0'\n{chain}", encoding="utf-8")
    made = declog.plan(declog.compose("mine", config_dir=tmp_path))
    assert made.run_config["k39"] == " ".join(map(str, range(40)))


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system [true]", "!!python/name:os.system"])
def test_tags_make_no_objects(tag: str, tmp_path: Path) -> None:
    """YAML's own way to run code is no part of it."""
    (tmp_path / "declog").mkdir()
    (tmp_path / "declog" / "mine.yaml").write_text(f"{GOOD}run: {{config: {{a: {tag}}}}}\n", encoding="utf-8")
    with pytest.raises(CompositionError, match="python/"):
        declog.compose("mine", config_dir=tmp_path)


@pytest.mark.parametrize("verb", ["check", "show", "show --why=declog.run.name", "diff", "ls", "test"])
def test_a_package_on_hydras_search_path_is_read_and_not_imported(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An application's `hydra.searchpath` may name a package: its files are found without running it."""
    package = tmp_path / "declog_test_search"
    (package / "conf" / "declog").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    (package / "conf" / "__init__.py").touch()
    (package / "conf" / "declog" / "theirs.yaml").write_text(GOOD + "run: {name: theirs}\n", encoding="utf-8")
    app = tmp_path / "app"
    app.mkdir()
    text = "hydra: {searchpath: ['pkg://declog_test_search.conf']}\ndefaults: [{declog: theirs}, _self_]\n"
    (app / "config.yaml").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    place = str(app / "config.yaml")
    words = {"diff": [place, "--", place], "ls": ["metrics", place]}.get(verb, [place])
    assert main([*verb.split(), *words]) == (2 if verb == "test" else 0)
    assert "declog_test_search" not in sys.modules
    reported = capsys.readouterr()
    assert "imported" not in reported.out + reported.err
    assert "the config has no test" in reported.err if verb == "test" else reported.out != ""
