"""The shorter forms: each says what its long form says, mixes with it, and is known by the places that were written."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

import declog
from declog.config.long_form import with_nulls, without_nulls
from declog.errors import ConfigError
from declog.language import spec
from declog.language.dtypes import AXES
from declog.language.keys import keys
from declog.language.notation import TYPES
from declog.language.shorthand import long
from declog.language.spec import MetricSpec, SignalSpec
from declog.language.tree import over, tree_of
from tests.language import count


def _long(data: Any) -> Any:
    """Plain data in the long form."""
    return long(tree_of(data))[0].plain


SAME = {
    "a signal's axis": ("signals: {any: {reward: completion}}", "signals: {any: {reward: {axis: completion}}}"),
    "a signal's type": ("signals: {any: {n: completion int}}", "signals: {any: {n: {axis: completion, type: int}}}"),
    "one that may be missing": (
        "signals: {any: {source: 'completion text'}}",
        "signals: {any: {source: {axis: completion, type: text}}}",
    ),
    "in a word": (
        "signals: {any: {source: completion text}}",
        "signals: {any: {source: {axis: completion, type: text}}}",
    ),
    "a family": (
        "signals: {any: {rewards: completion family}}",
        "signals: {any: {rewards: {axis: completion, family: true}}}",
    ),
    "an expression": ("derived: {ratio: exp(a - b)}", "derived: {ratio: {expr: exp(a - b)}}"),
    "an expression that begins with an axis": (
        "derived: {late: step > 10}",
        "derived: {late: {expr: step > 10}}",
    ),
    "a number": ("derived: {one: 1}", "derived: {one: {expr: 1}}"),
    "signals of a phase": (
        "signals: {rollout: {reward: completion, text: {axis: completion, type: text}}, update: {loss: step}}",
        "signals: {rollout: {reward: {axis: completion}, text: {axis: completion, type: text}},"
        " update: {loss: {axis: step}}}",
    ),
    "a phase of one signal, whatever it is called": (
        "signals: {rollout: {final: completion}, update: {mask: token bool}, late: {loss_mask: completion}}",
        "signals: {rollout: {final: {axis: completion}}, update: {mask: {axis: token, type: bool}},"
        " late: {loss_mask: {axis: completion}}}",
    ),
    "a derived signal of a phase": (
        "signals: {update: {a: token, b: {axis: token}}}\nderived: {ratio: exp(a - b)}",
        "signals: {update: {a: {axis: token}, b: {axis: token}}}\nderived: {ratio: {expr: exp(a - b)}}",
    ),
    "a phase and signals without": (
        "signals: {rollout: {reward: completion}, any: {loss: {axis: step}}}\nderived: {twice: 2 * reward}",
        "signals: {rollout: {reward: {axis: completion}}, any: {loss: {axis: step}}}\n"
        "derived: {twice: {expr: 2 * reward}}",
    ),
    "a signal that is called as a key is": (
        "signals: {update: {mask: token bool, logprobs: token}}",
        "signals: {update: {mask: {axis: token, type: bool}, logprobs: {axis: token}}}",
    ),
    "a condition of bools": (
        "tables: {t: {columns: [reward], filter: not solved}}",
        "tables: {t: {columns: [reward], filter: {where: not solved}}}",
    ),
    "a reduction": ("metrics: {p: p95(reward)}", "metrics: {p: {expr: reward, reduce: p95}}"),
    "with a parameter": ("metrics: {h: 'histogram(x, bins=5)'}", "metrics: {h: {expr: x, reduce: histogram(bins=5)}}"),
    "of two": ("metrics: {c: 'corr(x, y)'}", "metrics: {c: {expr: [x, y], reduce: corr}}"),
    "no reduction": ("metrics: {m: 2 * reward}", "metrics: {m: {expr: 2 * reward}}"),
    "a function over an axis": (
        "metrics: {m: 'mean(x, over=token)'}",
        "metrics: {m: {expr: 'mean(x, over=token)'}}",
    ),
    "lists and words of a metric": (
        "metrics: {m: {by: [source], tags: core slow}}",
        "metrics: {m: {by: source, tags: [core, slow]}}",
    ),
    "several reductions in a word": (
        "metrics: {a: quantiles(2 * x)}",
        "metrics: {a: {expr: 2 * x, reduce: [p05, p25, p50, p75, p95]}}",
    ),
    "alerts": (
        "alerts: {kl: '> 0.5', reward: < 0.1 for 20 steps, loss: nan, n: '>= 3', mine: kl > 1 and reward < 0,"
        " long: kl > 2 * reward for 3 log events}",
        "alerts: {kl: {above: 0.5}, reward: {below: 0.1, for: 20},"
        " loss: {when: not isfinite(loss)}, n: {when: n >= 3}, mine: {when: kl > 1 and reward < 0},"
        " long: {when: kl > 2 * reward, for: 3}}",
    ),
    "a reduction of its own signal": (
        "metrics: {lr: last, n: p95, turns: mean max}",
        "metrics: {lr: {reduce: last}, n: {reduce: p95}, turns: {reduce: [mean, max]}}",
    ),
    "a reduction whose name a signal has, too": (
        "signals: {update: {count: {axis: step}, n: {axis: step}}}\nmetrics: {n: count}",
        "signals: {update: {count: {axis: step}, n: {axis: step}}}\nmetrics: {n: {reduce: count}}",
    ),
    "a signal that is called as a type is": (
        "signals: {any: {float: {axis: step}, row: {axis: step}}}\nderived: {a: float, b: row}",
        "signals: {any: {float: {axis: step}, row: {axis: step}}}\nderived: {a: {expr: float}, b: {expr: row}}",
    ),
    "a list of one label, and of one expression": (
        "metrics: {a: {expr: [p95(reward)], by: ['bucket(reward, 1)']}}",
        "metrics: {a: {expr: p95(reward), by: 'bucket(reward, 1)'}}",
    ),
    "axes": (
        "axes: {group: 4, token: mask, completion: {ids: id}}",
        "axes: {group: {size: 4}, token: {mask: mask}, completion: {ids: id}}",
    ),
    "groups by name": ("axes: {group: prompt_id}", "axes: {group: {of: prompt_id}}"),
    "a sink": ("sinks: console", "sinks: [console]"),
    "no sink": ("sinks: none", "sinks: []"),
    "what is deleted": (
        "signals: {rollout: {n: completion}}\nderived: {reward: null}\nmetrics: {kl: null}",
        "signals: {rollout: {n: {axis: completion}}}\nderived: {reward: null}\nmetrics: {kl: null}",
    ),
    "what comes from elsewhere": (
        "derived: {a: '${b}', b: '???'}\nmetrics: {a: '${b}'}\nalerts: {a: '${b}'}",
        "derived: {a: '${b}', b: '???'}\nmetrics: {a: '${b}'}\nalerts: {a: '${b}'}",
    ),
}


@pytest.mark.parametrize(("short", "written_out"), SAME.values(), ids=SAME)
def test_a_short_form_is_its_long_form(short: str, written_out: str) -> None:
    """Each form, and its long form, which stays as it is."""
    expected = yaml.safe_load(written_out)
    assert (_long(yaml.safe_load(short)), _long(expected)) == (expected, expected)


def test_the_words_are_those_of_the_models() -> None:
    """Axes and types of the short forms."""
    assert (set(AXES), set(TYPES)) == (
        set(spec.AxisName.__args__),  # type: ignore[attr-defined]
        {str(each) for each in spec.SignalSpec.model_fields["type"].annotation},  # type: ignore[union-attr]
    )


def test_a_key_knows_where_it_was_written() -> None:
    """A word holds all that it says; a key below what was moved is below it there, too."""
    layer = yaml.safe_load("signals: {rollout: {a: completion text, b: {type: int}}}\nmetrics: {p: p95(a)}")
    made, _ = long(tree_of(layer))
    keys = [("signals", "rollout", "a", "type"), ("signals", "rollout", "b", "type"), ("metrics", "p", "expr")]
    assert [node.location for key in keys if (node := made.at(key)) is not None] == [
        ("signals", "rollout", "a"), ("signals", "rollout", "b", "type"), ("metrics", "p"),
    ]  # fmt: skip


BELOW = yaml.safe_load("""
signals: {any: {kl: {axis: token, mask: all}}}
derived: {reward: {expr: a + b, help: the sum}}
axes: {group: {of: prompt_id}}
metrics: {reward: {expr: a, where: a > 0, observe: {axis: step}}}
tables: {worst: {filter: {key: reward, bottom: 4}}}
alerts: {kl: {above: 1, for: 3}}
""")


@pytest.mark.parametrize(
    ("layer", "path", "expected"),
    [
        ("signals: {any: {kl: completion}}", "signals.any.kl", {"axis": "completion"}),
        ("derived: {reward: a}", "derived.reward", {"expr": "a"}),
        ("derived: {reward: {help: mine}}", "derived.reward", {"expr": "a + b", "help": "mine"}),
        ("axes: {group: 4}", "axes.group", {"size": 4}),
        ("metrics: {reward: p95(b)}", "metrics.reward", {"expr": "b", "reduce": "p95"}),
        ("metrics: {reward: {observe: token}}", "metrics.reward.observe", {"axis": "token"}),
        ("tables: {worst: {filter: reward > 1}}", "tables.worst.filter", {"where": "reward > 1"}),
        ("tables: {worst: {filter: {bottom: 8}}}", "tables.worst.filter", {"key": "reward", "bottom": 8}),
        ("alerts: {kl: '> 2'}", "alerts.kl", {"above": 2}),
    ],
)
def test_a_text_replaces_an_entry_and_a_map_completes_it(layer: str, path: str, expected: dict[str, Any]) -> None:
    """The class: each form of an entry, laid over the layers below by declog, and by whoever merges maps only."""
    made, _ = long(tree_of(yaml.safe_load(layer)))
    merged = OmegaConf.to_container(OmegaConf.merge(BELOW, with_nulls(made)))
    for data in (over(tree_of(BELOW), made).plain, without_nulls(merged)):
        for key in path.split("."):
            data = data[key]
        assert data == expected


def test_a_text_has_every_key_of_its_entry() -> None:
    """For whoever merges maps only, so that each of them can be overridden as it is."""
    made, _ = long(tree_of({"metrics": {"p": "p95(reward)"}, "signals": {"any": {"a": "step"}}}))
    data = with_nulls(made)
    assert data["metrics"]["p"].keys() == keys(MetricSpec).keys()
    assert data["signals"]["any"]["a"].keys() == keys(SignalSpec).keys()


@pytest.mark.parametrize(
    ("profile", "problem"),
    [
        (
            "signals: {any: {source: completion txt}}",
            ("signals.any.source", "`txt` says nothing of a signal", "did you mean `text`?"),
        ),
        (
            "signals: {rollout: {reward: completion}, reward: step}",
            ("signals.reward", "the signal `reward` stands under its phase, or under `any`",
             "signals: {any: {reward: step}}"),
        ),
        (
            "signals: {any: {reward: float}}",
            ("signals.any.reward",
             "a signal begins with its axis, step, group, completion or token, and `float` has none",
             "reward: completion float"),
        ),
        (
            "signals: {update: {a: step, kl: per_token required}}",
            ("signals.update.kl",
             "a signal begins with its axis, step, group, completion or token, and `per_token required` has none",
             "kl: token required"),
        ),
        (
            "signals: [reward, kl]",
            ("signals", "`signals` must be a map", "signals: {any: {reward: completion, kl: completion}}"),
        ),
        (
            "signals: {any: {a: step}}\nmetrics: [a, 'p95(a)', a * 2, a]",
            ("metrics", "`metrics` must be a map", "metrics: {a: mean, p95_a: p95(a), a: \"a * 2\", ...}"),
        ),
        (
            "signals: {any: {a: step}}\nmetrics: {a: mean}\nalerts: ['a > 0.5', a < 1 and a > 0]",
            ("alerts", "`alerts` must be a map", "alerts: {a: \"> 0.5\", a_and_a: \"a < 1 and a > 0\"}"),
        ),
        (
            "signals: {any: {reward: {axs: completion, axis: step}}}",
            ("signals.any.reward.axs", "unknown key `axs`", "did you mean `axis`?"),
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(profile: str, problem: tuple[str, str, str]) -> None:
    """A word too many, two declarations of one signal, no axis, a list: each with the edit that works, once."""
    with pytest.raises(ConfigError) as caught:
        declog.validate(yaml.safe_load(profile))
    assert [(each.key, each.message, each.fix) for each in caught.value.problems] == [problem]


def test_a_mapping_is_read_as_a_file_is() -> None:
    """A profile in Python: errors name the keys that were written."""
    profile: dict[str, Any] = {
        "signals": {"rollout": {"reward": "completion"}},
        "metrics": {"p": "p95(reward)"},
        "sinks": ["console"],
    }
    made = declog.plan(profile)
    assert ([op.key for op in made.metrics if op.shown and op.id != "logged"], [sink.id for sink in made.sinks]) == (
        ["p"], ["console"],
    )  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        declog.plan({**profile, "metrics": {"p": "p95(rewrad)"}})
    assert [each.key for each in caught.value.problems] == ["metrics.p"]


@pytest.mark.parametrize(
    ("config", "fixes"),
    [
        ("signals: {any: {a: text completion}}", ["a: completion text"]),
        ("signals: {any: {a: int required step}}", ["a: step int required"]),
        (
            "alerts: {kl: 0.5}",
            ['kl: "> 0.5", where it must not be greater  or  kl: "< 0.5", where it must not be less'],
        ),
        ("signals: {any: {count: step}}\nmetrics: {m: count}", ["to reduce the signal `count`: `m: {expr: count}`"]),
        ("metrics: {a: [p95, std, reward]}", ["a: {expr: reward, reduce: [p95, std]}"]),
        ("metrics: a = p95(reward)", ["a key needs a colon and a blank: `a: p95(reward)`"]),
        ("alerts: {high: {expr: kl > 1}}", ['when: "kl > 1"']),
        ("alerts: {high: {condition: kl > 1}}", ['when: "kl > 1"']),
        ("metrics: {a: {expr: reward, condition: reward > 1}}", ["did you mean `where`?"]),
        ("alerts: {kl: {greater: 1}}", ["did you mean `above`?"]),
        ("axes: {group: {num_generations: 4}}", ["size: 4"]),
        ("loggers: [wandb]", ["did you mean `sinks`?"]),
        ("tables: {t: {columns: [a], filter: {key: a, lowest: 4}}}", ["filter: {key: a, bottom: 4}"]),
    ],
)
def test_words_and_forms_of_elsewhere_are_answered_with_the_edit(config: str, fixes: list[str]) -> None:
    """Classes: words of a signal in another order, values for maps, other tools' words; each mistake is said once."""
    with pytest.raises(ConfigError) as caught:
        declog.plan(yaml.safe_load(config))
    said = [each.fix for each in caught.value.problems]
    assert [fix for fix in said if fix in fixes] == fixes  # others are of the signals that the few lines lack


def test_a_phase_that_is_nearly_rollout_or_update_is_told() -> None:
    """Class: a slip in the name of a phase is a phase of its own, in which nothing else is observed."""
    for name, close in (("rolout", "rollout"), ("updates", "update"), ("policy_update", None), ("rollout", None)):
        made = declog.plan({"signals": {name: {"a": "completion"}}, "metrics": {"a": "mean(a)"}})
        told = [warning for warning in made.warnings if "did you mean that one?" in warning]
        assert [close is not None and f"`{close}`" in warning for warning in told] == [True] * (close is not None)


ONE_OR_SEVERAL = {  # each key that takes a text or a list of texts, with a config of it and a text
    "MetricSpec.expr": ("metrics: {m: {expr: TEXT}}", "p95(a)"),
    "MetricSpec.by": ("metrics: {m: {expr: a, by: TEXT}}", "bucket(a, 1, 2)"),
    "MetricSpec.tags": ("metrics: {m: {expr: a, tags: TEXT}}", "core"),
    "FilterSpec.within": ("tables: {t: {columns: [a], filter: {first: 1, within: TEXT}}}", "source"),
    "GroupAxis.of": ("axes: {group: {of: TEXT}}\nmetrics: {m: 'a - mean(a, over=completion)'}", "source"),
    "Named.renamed": ("metrics: {m: {expr: a, renamed: TEXT}}", "earlier"),
    "LogSpec.sinks": ("metrics: {m: a}\nsinks: TEXT", "console"),
}


def test_a_list_of_one_text_says_what_the_text_says() -> None:
    """The class: a key that takes a text or a list of texts. Only `reduce` differs: a list of it has suffixes."""
    both = {
        f"{count.declared_by(model, name)}.{name}"
        for model in count.models()
        for name, field in model.model_fields.items()
        if {str, list} <= {*_forms(field.annotation), *(form for each in field.metadata for form in _forms(each))}
    }
    assert both == {*ONE_OR_SEVERAL, "MetricSpec.reduce"}
    signals = "signals: {any: {a: completion, source: completion text}}\n"
    for key, (config, text) in ONE_OR_SEVERAL.items():
        one, several = (
            declog.plan(yaml.safe_load(signals + config.replace("TEXT", written)))
            for written in (f'"{text}"', f'["{text}"]')
        )
        assert one.fingerprint == several.fingerprint, key
    one, several = (declog.plan(yaml.safe_load(f"{signals}metrics: {{a: {{reduce: {r}}}}}")) for r in ("max", "[max]"))
    assert (one.metrics[0].key, several.metrics[0].key) == ("a", "a.max")


def _forms(type_: Any) -> Iterator[Any]:
    """`str` and `list`, where a value of the type may be a text or a list of anything."""
    type_ = getattr(type_, "type", type_)  # of a short form
    if typing.get_origin(type_) in (typing.Union, types.UnionType):
        for part in typing.get_args(type_):
            yield from _forms(part)
    elif typing.get_origin(type_) is typing.Annotated:
        yield from _forms(type_.__origin__)
    else:
        yield typing.get_origin(type_) or type_


@pytest.mark.parametrize(
    ("config", "fix"),
    [
        ("metrics: {m: {formula: ['a / b']}}", "formula: a / b"),
        ("metrics: {m: {expr: a, where: ['b > 0']}}", 'where: "b > 0"'),
        ("metrics: {m: {expr: a, max_labels: [3]}}", "max_labels: 3"),
        ("run: {strict: [true]}", "strict: true"),
        ("filters: {f: {key: [reward], top: 2}}", "key: reward"),
        ("output_dir: [runs]", "output_dir: runs"),
    ],
)
def test_a_list_of_one_where_one_value_belongs_is_answered_with_the_value(config: str, fix: str) -> None:
    """The class: a key that takes no list has a list of one item; the edit is the item, of whatever type."""
    with pytest.raises(ConfigError) as error:
        declog.plan(yaml.safe_load(config))
    assert error.value.problems[0].fix == fix
