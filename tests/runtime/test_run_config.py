"""How the trainer is configured is kept with the run, given to every tracker, and holds no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

import declog
from declog.language.secrets import names_secret
from declog.runs.report.facts import differences
from declog.runs.run import read
from declog.testing import MemorySink

PROFILE: dict[str, Any] = {"signals": {"any": {"x": "step"}}, "metrics": {"x": "mean(x)"}, "sinks": ["jsonl"]}


def read_yaml(file: Path) -> Any:
    """What a file of YAML says."""
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def logged(config: Any, folder: Path, **options: Any) -> tuple[MemorySink, declog.Run]:
    """A run of one step, and what was read of it."""
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=folder, **options) as log, log.step(0):
        log.observe(x=1.0)
    return sink, read(folder)


def test_the_rest_of_an_applications_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolved; what the environment gave stands as it was written, and what a key calls a secret is not there."""
    monkeypatch.setenv("RUN_TOKEN", "hunter2-of-the-environment")
    cfg = OmegaConf.create(
        {
            "declog": PROFILE, "lr": 1e-5, "twice": "${lr}", "seed": 3,
            "model": {"name": "tiny", "max_tokens": 64, "pad_token": "<pad>", "hub_token": "hunter2", "stop": ["a"]},
            "login": {"password": "hunter2", "url": "https://${oc.env:RUN_TOKEN}@host", "api_key": "hunter2"},
        }
    )  # fmt: skip
    expected = {
        "lr": 1e-5, "twice": 1e-5, "seed": 3,
        "model": {"name": "tiny", "max_tokens": 64, "pad_token": "<pad>", "stop": ["a"]},
        "login": {"url": "https://${oc.env:RUN_TOKEN}@host"},
    }  # fmt: skip
    sink, run = logged(cfg, tmp_path / "run")
    assert run.configured
    assert sink.run is not None
    assert run.config == expected == dict(sink.run.config)
    assert b"hunter2" not in b"".join(file.read_bytes() for file in (tmp_path / "run").rglob("*.*"))


@pytest.mark.parametrize("config", [{"declog": PROFILE, "lr": 2.0}, OmegaConf.create({"declog": PROFILE, "lr": 2.0})])
def test_what_is_said_in_code_wins(config: Any, tmp_path: Path) -> None:
    """Class: the same configuration as a mapping and as a DictConfig; `run_config=` adds to it, the profile's stays."""
    _, run = logged(config, tmp_path / "run", run_config={"lr": 3.0, "when": Path("here"), "run_password": "no"})
    assert run.config == {"lr": 3.0, "when": "here"}


def test_what_is_said_while_it_runs(tmp_path: Path) -> None:
    """Class: settings that are known late. They are merged, twice; no secret is kept, trackers have the first ones."""
    sink = MemorySink()
    given = {"optimizer": {"lr": 1.0, "betas": [0.9, 0.99]}, "seed": 1}
    with declog.start(PROFILE, sinks=[sink], output_dir=tmp_path / "run", run_config=given) as log:
        log.config({"optimizer": {"lr": 2.0, "api_key": "hunter2"}, "hub_token": "hunter2", "when": Path("here")})
        with log.step(0):
            log.observe(x=1.0)
            log.config({"optimizer": {"warmup": 5}, "seed": {"model": 2}})
        with pytest.raises(declog.UsageError, match="DL510"):
            log.config([("lr", 1.0)])  # type: ignore[arg-type]
    log.config({"late": True})
    expected = {"optimizer": {"lr": 2.0, "betas": [0.9, 0.99], "warmup": 5}, "seed": {"model": 2}, "when": "here"}
    assert read(tmp_path / "run").config == expected
    assert sorted(file.name for file in (tmp_path / "run").glob("run_config*")) == ["run_config.yaml"]
    assert sink.run is not None
    assert sink.run.config == given
    assert b"hunter2" not in b"".join(file.read_bytes() for file in (tmp_path / "run").rglob("*.*"))


def test_a_run_that_was_told_late_is_configured(tmp_path: Path) -> None:
    """Without `run_config=`; a run that goes on says its own, and what the processes before it said stays."""
    with declog.start(PROFILE, output_dir=tmp_path / "run") as log:
        with log.step(0):
            log.observe(x=1.0)
        log.config({"lr": 1.0})
        state = log.state_dict()
    assert read(tmp_path / "run").config == {"lr": 1.0}
    with declog.start(PROFILE, resume=state) as log:
        log.config({"lr": 2.0})
    run = read(tmp_path / "run")
    assert (run.configured, run.config) == (True, {"lr": 2.0})
    kept = [read_yaml(tmp_path / "run" / facts["run_config"]) for facts in run.segments]
    assert kept == [{"lr": 1.0}, {"lr": 2.0}]


@pytest.mark.parametrize("config", [PROFILE, OmegaConf.create(PROFILE), "minimal"], ids=["mapping", "node", "preset"])
def test_a_profile_alone_says_nothing_of_the_trainer(config: Any, tmp_path: Path) -> None:
    """A run that was told nothing is not said to be configured."""
    with declog.start(config, output_dir=tmp_path / "run") as log, log.step(0):
        log.observe(x=1.0)
    assert not read(tmp_path / "run").configured


def test_runs_differ_where_their_trainers_do(tmp_path: Path) -> None:
    """Class: runs of one profile that are not the same experiment; nested keys, keys that one run has not."""
    runs = [
        logged(PROFILE, tmp_path / name, run_config={"optimizer": {"lr": lr}, "seed": 0, **more})[1]
        for name, lr, more in (("a", 1e-3, {}), ("b", 1e-2, {"warmup": 5}))
    ]
    told = {row["key"]: row["values"] for row in differences(runs)}
    assert told == {"optimizer.lr": ["0.001", "0.01"], "warmup": [None, "5"]}


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("password", True), ("db_password", True), ("api_key", True), ("OPENAI_API_KEY", True), ("hub_token", True),
        ("token", True), ("auth", True), ("secret", True), ("client_secret_id", True), ("credentials", True),
        ("max_tokens", False), ("num_input_tokens", False), ("pad_token", False), ("eos_token", False), ("key", False),
        ("tokenizer", False), ("authors", False), ("monkey", False),
    ],
)  # fmt: skip
def test_which_keys_name_secrets(key: str, secret: bool) -> None:
    """What holds a password or a token to log in; not the tokens of a language model."""
    assert names_secret(key) is secret
