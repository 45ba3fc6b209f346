"""Short and long forms through Hydra: files of either extend each other, and overrides address the long form."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import hydra
import pytest
from hydra import initialize_config_dir

import declog
from declog.cli import main
from declog.config.compose import compose, config_of
from declog.errors import ConfigError
from declog.language.spec_of_tables import FilterSpec
from tests import forks
from tests.conftest import WritePreset

LONG = """
sinks: [console, parquet]
run: {name: long}
axes: {group: {size: 2}}
signals:
  rollout:
    reward: {axis: completion}
    length: {axis: completion, type: int, help: in tokens}
  update:
    loss: {axis: step}
metrics:
  reward: {expr: reward, reduce: mean, tags: [core]}
  length: {expr: length, reduce: [mean, max], tags: [core]}
  loss: {expr: loss, reduce: mean}
filters:
  worst: {key: reward, bottom: 2}
schemas:
  worst: {reward: {type: float}, length: {type: int}}
tables:
  worst: {schema: worst, filter: worst, to: {parquet: true}}
profiles:
  slim: {only: ['tag:core']}
alerts:
  length: {when: length.max > 100}
"""
SHORT = """
run: {name: long}
axes: {group: {size: 2}}
signals:
  rollout:
    reward: completion
    length: {axis: completion, type: int, help: in tokens}
  update:
    loss: step
metrics:
  reward: {expr: reward, reduce: mean, tags: core}
  length: {reduce: [mean, max], tags: core, expr: length}
  loss: mean(loss)
filters:
  worst: {key: reward, bottom: 2}
schemas:
  worst: {reward: float, length: int}
tables:
  worst: {schema: worst, filter: worst, to: {parquet: true}}
profiles:
  slim: {only: ['tag:core']}
alerts:
  length: {when: length.max > 100}
sinks: [console, parquet]
"""
OWN_LONG = """
defaults: [base, _self_]
sinks: [jsonl]
signals:
  rollout:
    source: {axis: completion, type: text}
    length: {type: float}
metrics:
  loss: {tags: [core]}
  p: {expr: reward, reduce: p95}
filters: {worst: {bottom: 3}}
alerts: {loss: {above: 2}}
"""
OWN_SHORT = """
defaults: [base, _self_]
sinks: [jsonl]
signals:
  rollout:
    source: "completion text"
    length: {type: float}
metrics:
  loss: {tags: core}
  p: p95(reward)
filters: {worst: {bottom: 3}}
alerts: {loss: "> 2"}
"""


def plain(data: Any) -> Any:
    """A profile without nulls and without the order of keys, as the models read it."""
    spec = declog.validate(data).model_dump()
    return {key: value for key, value in spec.items() if key not in ("profiles",)}


@pytest.mark.parametrize("own", [OWN_LONG, OWN_SHORT], ids=["long", "short"])
@pytest.mark.parametrize("base", [LONG, SHORT], ids=["on long", "on short"])
def test_either_form_extends_either(write_preset: WritePreset, base: str, own: str) -> None:
    """One's own file over a preset, each in the long or the short form: one profile."""
    write_preset("base", LONG)
    directory = write_preset("own", OWN_LONG)
    expected = plain(config_of(compose("own", config_dir=directory)))
    write_preset("base", base)
    write_preset("own", own)
    assert plain(config_of(compose("own", config_dir=directory))) == expected


@pytest.mark.parametrize("base", [LONG, SHORT], ids=["on long", "on short"])
def test_overrides_address_the_long_form(write_preset: WritePreset, base: str) -> None:
    """Whatever was written, an override changes a key of the long form."""
    write_preset("base", base)
    directory = write_preset("own", OWN_SHORT)
    lines = [
        "declog.signals.rollout.source.type=int", "declog.metrics.p.reduce=p10", "declog.alerts.loss.above=3",
        "declog.filters.worst.bottom=9", "~declog.signals.rollout.length", "~declog.metrics.length",
            "~declog.alerts.length",
        "~declog.schemas.worst.length", "declog.sinks=[console]", "+declog.alerts.reward='< 0.1'",
    ]  # fmt: skip
    made = config_of(compose("own", lines, config_dir=directory))
    assert {
        "signals": {name: each and each.get("type") for name, each in made["signals"]["rollout"].items()},
        "p": made["metrics"]["p"],
        "alerts": made["alerts"],
        "bottom": made["filters"]["worst"]["bottom"],
        "sinks": list(made["sinks"]),
    } == {
        "signals": {"reward": None, "source": "int", "length": None},
        "p": {"expr": "reward", "reduce": "p10"},
        "alerts": {
            "loss": {"above": 3},
            "reward": {"below": 0.1},
            "length": None,
        },
        "bottom": 9,
        "sinks": ["console"],
    }


BELOW_TEXTS = [
    "signals.rollout.source.required=true", "derived.twice.help=mine", "metrics.p.max_labels=9",
    "metrics.p.tags=[core]", "alerts.p.cooldown=4", "tables.rows.filter.limit=3", "axes.group.of=source",
    "metrics.lr.observe.type=int",
]  # fmt: skip


@pytest.mark.parametrize("line", BELOW_TEXTS)
def test_a_key_below_a_text_is_overridden(line: str, tmp_path: Path) -> None:
    """The class: any key of an entry that a file says by a text, alike by declog and in an application of Hydra."""
    (tmp_path / "declog").mkdir()
    (tmp_path / "declog" / "mine.yaml").write_text(
        "defaults: [grpo, _self_]\n"
        "axes: {group: 2}\n"
        "signals: {rollout: {source: completion text}}\n"
        "derived: {twice: reward * 2}\n"
        "metrics: {p: p95(twice), lr: {observe: step, reduce: last}}\n"
        "alerts: {p: '> 3'}\n"
        "tables: {rows: {columns: [reward], filter: reward > 1}}\n"
    )
    (tmp_path / "app.yaml").write_text("defaults: [{declog: mine}, _self_]\n")
    by_declog = compose("mine", [line], config_dir=tmp_path)
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        by_hydra = hydra.compose("app", [f"declog.{line}"])
    by_file = compose(tmp_path / "app.yaml", [f"declog.{line}"])
    shown = {json.dumps(config_of(one), sort_keys=True) for one in (by_declog, by_hydra, by_file)}  # NaN is NaN
    assert len(shown) == 1
    assert declog.plan(by_hydra).canonical == declog.plan(by_declog).canonical


@pytest.mark.parametrize("base", [LONG, SHORT], ids=["on long", "on short"])
def test_a_word_replaces_and_a_list_replaces(write_preset: WritePreset, base: str) -> None:
    """A word over a map, a list over a map, a list over the chosen sinks: nothing is left of what they stand for."""
    write_preset("base", base)
    directory = write_preset(
        "own",
        """
        defaults: [base, _self_]
        sinks: [jsonl, wandb]
        signals: {rollout: {length: completion}}
        metrics: {reward: p95(length)}
        tables: {worst: {columns: [reward], filter: {random: 4}, to: {jsonl: true}}}
        profiles: {slim: {only: [loss]}}
        """,
    )
    made = declog.validate(config_of(compose("own", config_dir=directory)))
    assert (
        made.signals["rollout"]["length"].model_dump(exclude_defaults=True),
        made.metrics["reward"].model_dump(exclude_defaults=True),
        made.tables["worst"].columns,
        made.tables["worst"].to,
        [each.select for each in made.profiles["slim"].only or ()],
        list(made.sinks),
    ) == (
        {"axis": "completion"},
        {"expr": "length", "reduce": "p95"},
        ["reward"],
        {"parquet": True, "jsonl": True},
        ["loss"],
        ["jsonl", "wandb"],
    )


def test_errors_point_at_what_was_written(write_preset: WritePreset) -> None:
    """A word in its phase, a call of a reduction, a filter in its table: each at its own line and column."""
    directory = write_preset(
        "own",
        """
        signals:
          rollout:
            reward: completion
            source: completion txt
        """,
    )
    with pytest.raises(ConfigError) as caught:
        declog.plan(compose("own", config_dir=directory))
    assert [(str(each.where).rpartition("/")[2], each.key) for each in caught.value.problems] == [
        ("own.yaml:4:13", "signals.rollout.source")
    ]
    write_preset(
        "own",
        """
        signals:
          rollout: {reward: completion}
        metrics:
          p: p95(rewrad)
        tables:
          worst: {columns: [reward, lenght], filter: {key: rewarb, bottom: 4}}
        """,
    )
    with pytest.raises(ConfigError) as caught:
        declog.plan(compose("own", config_dir=directory))
    assert [(str(each.where).rpartition("/")[2], each.key, each.fix) for each in caught.value.problems] == [
        ("own.yaml:4:10", "metrics.p", "did you mean `reward`?"),
        (
            "own.yaml:6:29",
            "tables.worst.columns.1",
            "declare what you observe: signals: {rollout: {lenght: completion}} for numbers, "
            "`completion int` for labels, `completion text` for texts, `step` for one number per step\n"
            "signals: reward",
        ),
        ("own.yaml:6:52", "tables.worst.filter.key", "did you mean `reward`?"),
    ]


def test_show_prints_the_long_form(write_preset: WritePreset, capsys: pytest.CaptureFixture[str]) -> None:
    """Each key with the place of the word that says it."""
    directory = write_preset("own", "signals:\n  rollout: {reward: completion}\nmetrics: {p: p95(reward)}\n")
    assert main(["show", str(directory / "declog" / "own.yaml"), "--key", "signals"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["signals:"],
        ["rollout:"],
        ["reward:"],
        ["axis:", "completion", "#", "declog/own.yaml:2:13"],
    ]


APPLICATION = """
import hydra

import declog


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg):
    profile = declog.config_of(cfg)
    print(profile["signals"]["rollout"]["source"]["type"], profile["metrics"]["p"])
    print(list(profile["sinks"]), {key: value for key, value in profile["alerts"]["kl"].items() if value is not None})
    print(len(declog.plan(cfg).sinks))


main()
"""


def test_an_application_of_hydra_reads_them_too(tmp_path: Path) -> None:
    """``@hydra.main`` composes by itself: a preset in the short form, the application's own node, and its overrides."""
    (tmp_path / "conf" / "declog").mkdir(parents=True)
    (tmp_path / "conf/declog/mine.yaml").write_text(
        dedent("""
            defaults: [grpo, _self_]
            signals:
              rollout:
                source: completion text
            metrics: {p: p95(reward)}
            sinks: [jsonl]
            """)
    )
    (tmp_path / "conf/config.yaml").write_text(
        dedent("""
            defaults: [{declog: mine}, _self_]
            declog:
              alerts: {kl: "> 0.5"}
              sinks: [console, jsonl]
            """)
    )
    (tmp_path / "train.py").write_text(APPLICATION)
    line = ["train.py", "declog.signals.rollout.source.type=int", "declog.metrics.p.reduce=p10"]
    done = forks.run(line, cwd=tmp_path)
    assert (done.stdout.splitlines(), done.returncode) == (
        ["int {'expr': 'reward', 'reduce': 'p10'}", "['console', 'jsonl'] {'above': 0.5}", "2"], 0,
    ), done.stderr  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["--config-dir", "team"],
        ["--config-dir=team"],
        ["hydra.searchpath=[team]"],
        ["--config-dir", "empty", "++hydra.searchpath=[empty, 'file://team']"],
        ["hydra.searchpath=[pkg://team]"],
    ],
)
def test_an_applications_command_line_names_their_place(words: list[str], tmp_path: Path) -> None:
    """A preset in the short form, in each place that a command line of ``@hydra.main`` adds to its search path."""
    for each in ("conf", "empty", "team/declog"):
        (tmp_path / each).mkdir(parents=True)
    (tmp_path / "team/__init__.py").touch()
    (tmp_path / "team/declog/mine.yaml").write_text(
        dedent("""
            defaults: [grpo, _self_]
            signals: {rollout: {source: "completion text"}}
            metrics: {p: p95(reward)}
            alerts: {kl: "> 0.5"}
            sinks: [jsonl]
            """)
    )
    (tmp_path / "conf/config.yaml").write_text("defaults: [{declog: mine}, _self_]\ndeclog: {every: 2}\n")
    (tmp_path / "train.py").write_text(APPLICATION)
    line = ["train.py", *words, "declog.signals.rollout.source.type=int", "declog.metrics.p.reduce=p10"]
    done = forks.run(line, cwd=tmp_path)
    assert (done.stdout.splitlines(), done.returncode) == (
        ["int {'expr': 'reward', 'reduce': 'p10'}", "['jsonl'] {'above': 0.5}", "1"], 0,
    ), done.stderr  # fmt: skip


PACK = """
signals: {rollout: {judge: completion}}
metrics:
  judge: {expr: judge, reduce: mean, name: judges/mean}
"""


@pytest.mark.parametrize("entry", ["packs: [quality]", "packs: quality", "packs/quality", "packs@_here_: [quality]"])
def test_parts_of_a_profile(write_preset: WritePreset, entry: str) -> None:
    """A group that is no section of the profile holds parts of it; a preset's own packs stay."""
    write_preset("packs/quality", PACK)
    folder = write_preset("mine", f"defaults: [grpo, {entry if ':' not in entry else '{' + entry + '}'}, _self_]")
    metrics = config_of(compose("mine", config_dir=folder))["metrics"]
    assert metrics["judge"] == {"expr": "judge", "reduce": "mean", "name": "judges/mean"}
    assert {**config_of("grpo")["metrics"], "judge": metrics["judge"]} == metrics


@pytest.mark.parametrize("name", ["team/acme", "team/red/acme"])
@pytest.mark.parametrize("entry", ["/declog/grpo", "/declog/grpo@_here_"])
def test_a_part_in_a_folder_extends_a_preset_above_it(write_preset: WritePreset, name: str, entry: str) -> None:
    """Class: names from the folder of presets down, at any depth; the keys of both are the config's."""
    write_preset(name, f"defaults: [{entry}, /declog/packs: [sources], _self_]\nmetrics: {{reward_p95: p95(reward)}}")
    folder = write_preset("mine", f"defaults: [{name}, _self_]")
    metrics = config_of(compose("mine", config_dir=folder))["metrics"]
    assert {*config_of("grpo")["metrics"], "reward_p95", "reward_of_source"} <= metrics.keys()


def test_other_parts_than_the_presets(write_preset: WritePreset) -> None:
    """`override` chooses all of them anew, as Hydra's word does for every group."""
    folder = write_preset("mine", "defaults: [grpo, override packs: [rewards, optimisation], _self_]")
    assert set(config_of(compose("mine", config_dir=folder))["metrics"]) == {
        "reward", "reward_std", "rewards", "loss", "learning_rate", "grad_norm",
    }  # fmt: skip


@pytest.mark.parametrize("word", ["packs=[sources,tools]", "+packs=[sources,tools]"])
def test_more_parts_in_a_word(word: str) -> None:
    """On the command line they come on top of the preset's own."""
    metrics = config_of(compose("grpo", [word]))["metrics"]
    assert metrics.keys() > {"reward", "reward_of_source", "turns"}


def test_a_word_replaces_what_a_part_says(write_preset: WritePreset) -> None:
    """As it does what any layer below says of the entry."""
    write_preset("packs/quality", PACK)
    text = "defaults: [grpo, packs: [quality], _self_]\nmetrics: {judge: p95(judge), reward: p95(reward)}"
    folder = write_preset("mine", text)
    plan = declog.plan(compose("mine", config_dir=folder))
    assert {op.id: [name.template for name in op.names] for op in plan.metrics if op.id in ("judge", "reward")} == {
        "judge": ["judge"], "reward": ["reward"],
    }  # fmt: skip
    assert next(op for op in plan.metrics if op.id == "reward").tags == ()


def test_a_word_replaces_an_entry_of_a_preset_elsewhere_on_the_search_path(tmp_path: Path) -> None:
    """What a line says is the same wherever the preset lies that it extends, by Hydra and by declog."""
    team, own = tmp_path / "team" / "declog", tmp_path / "conf" / "declog"
    team.mkdir(parents=True)
    own.mkdir(parents=True)
    (team / "base.yaml").write_text(
        "signals: {any: {reward: {axis: completion}}}\n"
        "metrics: {reward: {expr: reward, where: reward > 0, tags: [core]}}\n"
        "schemas: {rows: {reward: {}, other: {expr: reward * 2}}}\n"
        "filters: {few: {random: 4}}\ntables: {rows: {schema: rows, filter: few}}\n"
    )
    (own / "mine.yaml").write_text(
        "defaults: [base, _self_]\nmetrics: {reward: max(reward)}\ntables: {rows: {filter: reward > 1}}\n"
    )
    (tmp_path / "conf" / "config.yaml").write_text(
        f"defaults: [{{declog: mine}}, _self_]\nhydra: {{searchpath: ['file://{tmp_path / 'team'}']}}\n"
    )
    with initialize_config_dir(str(tmp_path / "conf"), version_base="1.3"):
        by_hydra = declog.validate(config_of(hydra.compose("config")))
    by_declog = declog.validate(config_of(compose(tmp_path / "conf" / "config.yaml")))
    metric = by_declog.metrics["reward"]
    assert (metric.expr, metric.reduce, metric.where, metric.tags) == ("reward", "max", None, [])
    assert by_declog.tables["rows"].filter == FilterSpec(where="reward > 1")
    assert (by_hydra.metrics, by_hydra.tables) == (by_declog.metrics, by_declog.tables)
