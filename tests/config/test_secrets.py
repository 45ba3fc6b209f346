"""What the environment gave to a profile is used, and written nowhere: files, run configs, captures, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import declog
from declog.cli import main
from declog.config.compose import compose
from declog.errors import ConfigError
from declog.replay import capture_reader
from declog.testing import MemorySink

KEY, SHORT = "hunter2-very-secret", "q7"
BASE = {"signals": {"any": {"reward": {"axis": "completion"}}}, "metrics": {"reward": "mean(reward)"}}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv("MY_SHORT", SHORT)
    monkeypatch.setenv("MY_PERIOD", "2")
    monkeypatch.delenv("MY_NOTHING", raising=False)


def configuration(**profile: Any) -> Any:
    """An application's configuration, with a secret beside the profile."""
    return OmegaConf.create({"vault": {"key": "${oc.env:MY_KEY}"}, "declog": {**BASE, **profile}})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${oc.env:MY_KEY}", "${oc.env:MY_KEY}"),
        ("begin ${oc.env:MY_KEY} end", "begin ${oc.env:MY_KEY} end"),
        ("${oc.env:MY_SHORT}", "${oc.env:MY_SHORT}"),
        ("${oc.decode:${oc.env:MY_PERIOD}}", "${oc.decode:${oc.env:MY_PERIOD}}"),
        ("${oc.env:MY_NOTHING,${oc.env:MY_KEY}}", "${oc.env:MY_NOTHING,${oc.env:MY_KEY}}"),
        ("${vault.key}", "${oc.env:MY_KEY}"),
        ("${oc.select:vault.key}", "${oc.env:MY_KEY}"),
        ("${vault}", {"key": "${oc.env:MY_KEY}"}),
        ("${oc.dict.values:vault}", ["${oc.env:MY_KEY}"]),
        ("${oc.create:${oc.env:MY_KEY}}", "${oc.create:${oc.env:MY_KEY}}"),
        (["a", {"b": "${vault.key}"}], ["a", {"b": "${oc.env:MY_KEY}"}]),
        ("${oc.env:MY_NOTHING,written here}", "written here"),
        ("${declog.run.name}", "plain"),
        (3, 3),
    ],
)
def test_the_way_by_which_a_value_came_from_the_environment_does_not_matter(value: Any, expected: Any) -> None:
    """Through a text, a key, a resolver, a list or a map: it is masked, and nothing else is."""
    shown = compose(configuration(run={"name": "plain", "config": {"value": value}})).shown
    assert expected == shown["run"]["config"]["value"]


def test_a_mapping_and_a_node_are_masked_like_a_configuration() -> None:
    """What `start` takes in its other shapes is masked as well."""
    profile = {**BASE, "run": {"config": {"key": "${oc.env:MY_KEY}"}}}
    node = OmegaConf.create({"declog": profile}).declog
    assert (
        {"key": "${oc.env:MY_KEY}"} == compose(profile).shown["run"]["config"] == compose(node).shown["run"]["config"]
    )


def test_no_file_of_a_run_holds_what_the_environment_gave(tmp_path: Path) -> None:
    """The files of sinks, their run configs and the capture: the secret works, and is in none of them."""
    config = configuration(
        every="${oc.decode:${oc.env:MY_PERIOD}}",
        schemas={"rows": {"reward": "float"}},
        tables={"rows": {"schema": "rows"}},
        alerts={"high": {"when": "reward > 100", "text": "tell ${oc.env:MY_KEY}"}},
        sinks=["jsonl", "parquet", "tensorboard"],
        run={
            "config": {"key": "${vault.key}", "nested": {"list": ["x-${oc.env:MY_KEY}"]}},
            "capture": {"enabled": True},
        },
    )
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log:
        for step in range(4):
            with log.step(step):
                log.observe(reward=[1.0, 3.0])
        assert log.plan.every == 2
    assert sink.run is not None
    kept = {"key": "${oc.env:MY_KEY}", "nested": {"list": ["x-${oc.env:MY_KEY}"]}}
    assert sink.run.config == {**kept, "vault": {"key": "${oc.env:MY_KEY}"}}
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 3
    assert [file.name for file in files if KEY.encode() in file.read_bytes()] == []


def test_a_capture_is_replayed_with_the_environment_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a plan needs comes from the environment again; what only describes the run may be missing."""
    config = configuration(
        every="${oc.decode:${oc.env:MY_PERIOD}}",
        run={"config": {"key": "${oc.env:MY_KEY}"}, "capture": {"enabled": True}},
    )
    with declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log:
        for step in range(4):
            with log.step(step):
                log.observe(reward=[1.0, 3.0])
    monkeypatch.delenv("MY_KEY")
    phases = capture_reader.replay(tmp_path / "capture")["<code>"]
    assert [(step, records.scalars[0].value) for step, records in phases if records.scalars] == [(1, 2.0), (3, 2.0)]


@pytest.mark.parametrize(
    "profile",
    [
        {"profile": "${oc.env:MY_SHORT}"},
        {"sinks": ["s"], "sink_options": {"s": {"kind": "${vault.key}"}}},
        {"sinks": ["jsonl"], "sink_options": {"jsonl": {"fsync_s": "${oc.env:MY_KEY}"}}},
        {"metrics": {"reward": "mean(${oc.env:MY_KEY})"}},
        {"metrics": {"reward": "mean(${oc.env:MY_SHORT})"}},
        {"axes": {"group": {"of": "${oc.env:MY_KEY}"}}},
        {"every": "${oc.env:MY_KEY}"},
        {"every": "${oc.decode:-${oc.env:MY_PERIOD}}"},
        {"schemas": {"rows": {"reward": {"type": "text", "redact": {"me": "(${oc.env:MY_KEY}"}}}}},
    ],
)
def test_no_error_holds_what_the_environment_gave(profile: dict[str, Any]) -> None:
    """A wrong profile is reported with what was written, whatever the message quotes."""
    with pytest.raises(ConfigError) as raised:
        declog.plan(configuration(**profile))
    assert "fix:" in str(raised.value) or raised.value.code != "DL302"
    assert KEY not in str(raised.value)
    assert f"`{SHORT}`" not in str(raised.value)


@pytest.mark.parametrize("verb", ["show", "why", "ls", "show-json", "show-plan"])
def test_no_verb_shows_what_the_environment_gave(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line shows a profile as it is in effect, and such values as they were written."""
    folder = tmp_path / "declog"
    folder.mkdir()
    (folder / "mine.yaml").write_text(
        "defaults: [grpo, _self_]\nrun: {config: {key: '${oc.env:MY_KEY}'}}\nalerts:\n"
        "  far: {when: reward > 1, text: 'x ${oc.env:MY_KEY}', help: '${oc.env:MY_KEY}'}\n"
    )
    words = {
        "show": ["show", "--yaml"],
        "why": ["show", "--why", "run.config.key"],
        "ls": ["ls", "alerts"],
        "show-json": ["show", "--yaml", "--format", "json"],
        "show-plan": ["show", "--plan"],
    }[verb]
    place = [str(folder / "mine.yaml")]
    assert main([*words, *place]) == 0
    reported = capsys.readouterr().out
    assert KEY not in reported
    assert ("${oc.env:MY_KEY}" in reported) == (verb != "show-plan")


def test_in_an_application_an_answer_of_hydra_takes_no_secret_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A text that asks Hydra and the environment gets Hydra's answer only."""
    (tmp_path / "config.yaml").write_text(
        "defaults: [{declog: grpo}, _self_]\ndeclog: {run: {config: {key: '${hydra:job.name}-${oc.env:MY_KEY}'}}}\n"
    )
    assert main(["show", "--config-dir", str(tmp_path), "--config-name", "config", "--key", "run.config"]) == 0
    reported = capsys.readouterr().out
    assert "config-${oc.env:MY_KEY}" in reported
    assert KEY not in reported


EVERYWHERE = """defaults: [grpo, _self_]
run: {name: 'n-${oc.env:MY_KEY}', config: {key: '${oc.env:MY_KEY}', quoted: '${oc.env:MY_QUOTES}'}}
constants: {secret: '${oc.env:MY_KEY}'}
metrics:
  mine:
    expr: mean(reward)
    name: 'x/${oc.env:MY_KEY}'
    tags: ['${oc.env:MY_KEY}']
about:
  mine:
    title: 'T ${oc.env:MY_KEY}'
    help: 'H ${oc.env:MY_KEY} ${oc.env:MY_QUOTES}'
    unit: '${oc.env:MY_KEY}'
    runbook: 'https://x/${oc.env:MY_KEY}'
signals: {any: {extra: {axis: completion, help: 'S ${oc.env:MY_KEY}'}}}
alerts: {far: {when: reward > 1, text: 'x ${oc.env:MY_KEY}', help: '${oc.env:MY_KEY}'}}
sinks: [jsonl]
sink_options: {jsonl: {prefix: '${oc.env:MY_KEY}/'}}
modes: {eval: {prefix: 'e-${oc.env:MY_KEY}/'}}
tables: {samples: {name: 'tab-${oc.env:MY_KEY}'}}
"""
QUOTES = 'tell "nobody"\\of größe'
LISTED = ("metrics", "alerts", "signals", "tables", "filters", "constants", "modes", "profiles", "tags", "sinks")


@pytest.mark.parametrize(
    "words",
    [
        ["check"], ["show"], ["show", "--yaml"], ["show", "--plan"], ["show", "--format", "json"],
        ["show", "--yaml", "--format", "json"], ["show", "--why=metrics.mine"], ["show", "--why=alerts.far"],
        ["show", "--why=name"], ["show", "--why=x/"], ["diff", "grpo"], ["diff", "--format", "json", "grpo"],
        ["check", "--lock"], ["test"], ["ls"],
        *(["ls", word] for word in LISTED), *(["ls", word, "--format", "json"] for word in LISTED),
        ["check", "metrics.mine.expr=nothing"], ["check", "--format", "json", "metrics.mine.name=7"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_verb_says_a_secret_wherever_it_stands(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In names, titles, tags and prefixes, in texts and in JSON, in errors, and in `declog.lock`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_QUOTES", QUOTES)
    (tmp_path / "declog").mkdir()
    (tmp_path / "declog" / "mine.yaml").write_text(EVERYWHERE)
    options = [word for word in words[1:] if word[0] == "-" or word == "json"]
    rest = [word for word in words[1:] if word not in options]
    overrides = [word for word in rest if "=" in word]
    behind = [word for word in rest if word not in overrides] if words[0] == "diff" else []
    before = [word for word in rest if word not in overrides and word not in behind]
    main([words[0], *options, *before, "declog/mine.yaml", *behind, *overrides])
    printed = "".join(capsys.readouterr())
    assert printed
    written = "".join(file.read_text() for file in tmp_path.glob("declog.lock"))
    for secret in (KEY, QUOTES, QUOTES.replace("\\", "\\\\").replace('"', '\\"')):
        assert secret not in printed and secret not in written
    if "--lock" in words:
        assert "${oc.env:MY_KEY}" in written
        assert main(["check", "--locked", "declog/mine.yaml"]) == 0
