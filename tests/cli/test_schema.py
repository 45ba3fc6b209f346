"""``declog init --editor``: every YAML that is shipped or documented fits the schema, and 20 mistakes do not."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

import declog
from declog.cli import main
from declog.cli.json_schema import json_schema, parts, short_forms
from declog.config.files import YamlLoader
from declog.language import spec
from declog.language.keys import SECTIONS, keys, models
from declog.language.shorthand import long
from declog.language.spec import (
    AlertSpec,
    CompletionAxis,
    DerivedSpec,
    GroupAxis,
    LogSpec,
    MetricSpec,
    ProfileSpec,
    SelectorSpec,
    SinkSpec,
    TokenAxis,
)
from declog.language.spec_of_tables import FilterSpec, TableSpec
from declog.language.tree import tree_of
from tests.docs.markdown import ALL, ROOT


def _long(data: Any) -> Any:
    """Plain data in the long form."""
    return long(tree_of(data))[0].plain


CONF = ROOT / "conf" / "declog"
PRESETS = sorted(CONF.glob("*.yaml"))
OPTIONS = sorted(CONF.glob("*/*.yaml"))
GOLDEN = sorted(
    file
    for file in (ROOT / "tests" / "data" / "golden").glob("*.yaml")
    if not file.with_suffix(".txt").read_text(encoding="utf-8").startswith("error[DL2")
)
DOCUMENTED = [block for block in ALL if block.language == "yaml"]
APPLICATIONS = [ROOT / "examples" / "conf" / "grpo_arithmetic.yaml", ROOT / "tests/data/compose/app/conf/config.yaml"]


@cache
def validator(part: str = "config") -> Draft202012Validator:
    return Draft202012Validator(json_schema(part))


def complaints(data: Any, part: str = "config") -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in validator(part).iter_errors(data)]


def read(file: Path) -> Any:
    return yaml.load(file.read_text(encoding="utf-8"), YamlLoader)


@pytest.mark.parametrize("part", parts())
def test_it_is_a_json_schema(part: str) -> None:
    """Each part is a schema of the dialect that it names."""
    Draft202012Validator.check_schema(json_schema(part))


@pytest.mark.parametrize("file", [*PRESETS, *GOLDEN], ids=lambda file: file.stem)
def test_profiles_fit(file: Path) -> None:
    """Every shipped preset, and every golden profile whose shape is right."""
    assert complaints(read(file)) == []


@pytest.mark.parametrize("file", OPTIONS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_options_of_groups_fit(file: Path) -> None:
    """A file of a section's group fits the section's schema, another one the profile's."""
    section = file.parent.name
    assert complaints(read(file), section if section in SECTIONS else "config") == []


@pytest.mark.parametrize("file", APPLICATIONS, ids=lambda file: file.stem)
def test_applications_fit(file: Path) -> None:
    """An application's configuration: what stands beside its profile is its own."""
    assert complaints(read(file), "application") == []


@pytest.mark.parametrize("block", DOCUMENTED, ids=str)
def test_documented_profiles_fit(block: Any) -> None:
    """Every YAML block of the docs that is not there to show a mistake of composition or in shape."""
    codes = re.findall(r"^error\[(DL\d+)\]", block.result or "", re.MULTILINE)
    if any(code[:3] in ("DL1", "DL2") for code in codes):
        assert "DL201" not in codes or complaints(yaml.safe_load(block.text)) != []
        return
    data = yaml.safe_load(block.text)
    part = "application" if block.title and Path(block.title).parent.name != "declog" else "config"
    assert complaints(data, part) == []


MISTAKES = {
    "unknown key": "metric: {reward: mean(reward)}",
    "unknown key of a metric": "metrics: {reward: {expr: reward, recude: mean}}",
    "unknown key of a signal": "signals: {any: {reward: {axes: completion}}}",
    "unknown key of a filter": "filters: {hard: {count: 4}}",
    "unknown key of a table": "tables: {samples: {schema: samples, filters: hard}}",
    "unknown key of an axis": "axes: {group: {sise: 8}}",
    "unknown axis": "signals: {any: {reward: {axis: sample}}}",
    "unknown type": "signals: {any: {reward: {axis: completion, type: str}}}",
    "a kind of filter": "filters: {hard: {kind: top_bottom, key: reward}}",
    "unknown pool": "metrics: {reward: {expr: reward, pool: batches}}",
    "unknown level": "alerts: {kl: {above: 1, level: fatal}}",
    "an id with a slash": "metrics: {rewards/mean: mean(reward)}",
    "an id with a capital": "signals: {any: {Reward: {axis: completion}}}",
    "a list for a map": "metrics: [reward, kl]",
    "a map for a list": "metrics: {reward: {expr: reward, tags: {core: true}}}",
    "text for a number": "axes: {group: {size: eight}}",
    "no positive number": "metrics: {reward: {expr: reward, every: 0}}",
    "a fraction above 1": "filters: {some: {fraction: 1.5}}",
    "text for a truth value": "metrics: {reward: {expr: reward, log: never}}",
    "another version": "spec: 2",
    "an option that the sink lacks": "sinks: [jsonl]\nsink_options: {jsonl: {kind: jsonl, fsyncs: true}}",
    "an option of another sink": "sinks: [console]\nsink_options: {console: {fsync: true}}",
    "an option's wrong type": "sinks: [mine]\nsink_options: {mine: {kind: jsonl, fsync: always}}",
    "one bound": "about: {reward: {healthy: [1]}}",
    "bounds in words": "about: {reward: {healthy: [low, high]}}",
    "an unknown direction": "about: {reward: {good: higher}}",
    "an unknown key of a test": "tests: {a: {observe: {reward: [1]}, expects: {reward: 1}}}",
    "an unknown profile key": "profiles: {slim: {includes: {core: 'tag:core'}}}",
}


@pytest.mark.parametrize("text", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_do_not_fit(text: str) -> None:
    """What a person mistypes is marked in the editor, and the models refuse it as well."""
    data = yaml.safe_load(text)
    assert len(complaints(data)) >= 1
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(data)
    assert "DL2" in {problem.code[:3] for problem in caught.value.problems}  # others may be behind it


PARTIAL = {
    "nothing": "{}",
    "a deleted entry": "metrics: {kl: null}",
    "a reset leaf": "tables: {samples: {every: null}}",
    "a table's leaf without its schema": "tables: {samples: {every: 50}}",
    "a filter's leaf without its kind": "filters: {extremes: {top: 4}}",
    "an interpolation for a number": "axes: {group: {size: '${group_size}'}}",
    "a value to be given": "axes: {group: {size: '???'}}",
    "defaults": "defaults: [grpo, _self_]",
    "reductions": "metrics: {length: {reduce: [mean, {std: pstd}]}, kl: {reduce: p95}}",
    "a whole section from elsewhere": "sinks: '${my.sinks}'",
    "a sink of somebody else's with its options": "sink_options: {mine: {kind: 'team.sinks:Mine', colour: red}}",
    "tests": "tests: {a: {observe: {reward: [1]}, expect: {reward: 1, kl: null}, tables: {rows: 2}}}",
    "tests with steps and ranks": "tests: {a: {steps: [{reward: [1]}, [{reward: [1]}], {ranks: [{reward: [1]}, {}]}]}}",
    "a capture": "run: {capture: true}",
    "a bounded capture": "run: {capture: {every: 10, limit: 256MB}}",
    "short columns": "schemas: {samples: {reward: float, gone: null}}",
    "signals by phase": "signals: {rollout: {reward: completion, source: 'completion text'}, update: {logp: token}}",
    "a table with its columns": "tables: {worst: {columns: [prompt], filter: {key: reward, bottom: 4}}}",
    "sinks of a table": "tables: {worst: {schema: s, to: {jsonl: true}}}",
    "lists": "metrics: {a: {expr: x, by: [s], tags: core, alias: [b, c]}}",
    "what metrics share": "metrics: {lr: {<<: &last {reduce: last, tags: core}, name: LR}, tau: {<<: *last, expr: x}}",
    "what a metric means": "about: {kl: {title: KL, unit: nats, good: down, healthy: [null, 0.2], runbook: go}}",
    "sinks by kind": "sinks: [console, jsonl]",
    "alerts in a word": "alerts: {kl: '> 0.5', loss: nan}",
    "selectors": "profiles: {slim: {only: [reward, 'tag:core'], show: [{select: kl, when: kl > 1}]}}",
}


@pytest.mark.parametrize("text", PARTIAL.values(), ids=PARTIAL)
def test_parts_of_profiles_fit(text: str) -> None:
    """A file says what is different, nothing more."""
    assert complaints(yaml.safe_load(text)) == []


LONG = {  # of which entry of which section a model is
    DerivedSpec: ("derived", "it"), MetricSpec: ("metrics", "it"), FilterSpec: ("filters", "it"),
    TableSpec: ("tables", "it"), ProfileSpec: ("profiles", "it"), AlertSpec: ("alerts", "it"),
    SinkSpec: ("sink_options", "it"), GroupAxis: ("axes", "group"), CompletionAxis: ("axes", "completion"),
    TokenAxis: ("axes", "token"),
}  # fmt: skip


@pytest.mark.parametrize("value", ["float", 3, 0.5, True, ["a"], [{"reward": [1]}]], ids=str)
def test_short_forms_are_those_of_the_models(value: object) -> None:
    """What a model takes instead of a map, or its long form, is what the schema allows."""

    def taken(model: type[BaseModel]) -> bool:
        if model is SelectorSpec:
            return isinstance(value, str)
        section, id = LONG.get(model, ("signals", ""))
        profile: dict[str, dict[str, Any]] = {"signals": {"any": {"float": {}}}}
        profile.setdefault(section, {})[id] = value
        given = _long(profile)[section][id] if id else value  # a signal, which needs its axis: see above
        try:
            model.model_validate(given)
        except ValidationError:
            return False
        return True

    allowed = {name for name, short in short_forms().items() if Draft202012Validator(short).is_valid(value)}
    assert {model.__name__ for model in models() if taken(model) and model is not LogSpec} == allowed


def test_keys_have_the_models_descriptions() -> None:
    """What an editor shows is what the reference says."""
    schema = json_schema()
    assert schema["properties"]["every"]["description"] == keys(LogSpec)["every"].help
    described = schema["$defs"]["MetricSpec"]["properties"]["over"]["description"]
    assert described == keys(spec.MetricSpec)["over"].help
    assert schema["$defs"]["FilterSpec"]["description"].startswith("Which rows of a table")


def test_the_verb_writes_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a file here, with the line that makes an editor use it; a part to a file of its own."""
    monkeypatch.chdir(tmp_path)
    for words, name, part in (
        ([], "declog.schema.json", "config"),
        (["metrics"], "declog.metrics.schema.json", "metrics"),
    ):
        assert main(["init", "--editor", *words]) == 0
        assert f"put `# yaml-language-server: $schema={name}` at the top of a YAML file" in capsys.readouterr().out
        assert json.loads(Path(name).read_text(encoding="utf-8")) == json_schema(part)
    Path("declog.tables.schema.json").mkdir()
    assert main(["init", "--editor", "tables"]) == 2
    assert "cannot be written" in capsys.readouterr().err
