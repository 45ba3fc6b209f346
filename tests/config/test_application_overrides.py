"""What an application's Hydra refuses: below Hydra's own lines stands what to type, and its edit works."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forks

APP = """\
import hydra, declog, sys
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    plan = declog.plan(cfg)
    print(sorted(sink.id for sink in plan.sinks))
    print(*plan.warnings, "", sep=chr(10), file=sys.stderr)
main()
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run an application in a process of its own."""
    (folder / "conf").mkdir(exist_ok=True)
    (folder / "conf" / "config.yaml").write_text("defaults: [{declog: grpo}, _self_]\nlr: 1\n", encoding="utf-8")
    (folder / "train.py").write_text(APP, encoding="utf-8")
    return forks.run(["train.py", *words], cwd=folder)


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("metrics.reward.reduce=p95", "declog.metrics.reward.reduce=p95"),
        ("declog.alert.kl.above=0.2", "declog.alerts.kl.above=0.2"),
        ("declog=slim", "declog.profile=slim"),
        ("~declog.metrics.entropi", "'~declog.metrics.entropy'"),
        ("declog.every = 10", "no spaces around `=`: declog.every=10"),
        ("+declog=ppo", "declog=ppo"),
        ("+declog@declog=ppo", "declog=ppo"),
        ("declog.sinks+=[jsonl]", "declog.sinks=[console,parquet,jsonl]"),
        ("sinks+=[parquet,jsonl]", "declog.sinks=[console,parquet,jsonl]"),
        ("sinks+=[jsonl]", "declog.sinks=[console,parquet,jsonl]"),
        ("declog.alerts.kl=>0.5", "'declog.alerts.kl=\">0.5\"'"),
        ("declog.metrics=[reward,kl]", "'++declog.metrics={reward: mean, kl: mean}'"),
    ],
)
def test_what_hydra_refuses_is_answered(line: str, fix: str, tmp_path: Path) -> None:
    """The class: a key, a group, a form or a type that Hydra refuses, whose own lines name another edit, or none."""
    refused = run(tmp_path, *line.split())
    hydras, _, ours = refused.stderr.partition("error[DL")
    assert refused.returncode == 1 and "HYDRA_FULL_ERROR" in hydras
    assert f"override '{line}'\n" in ours and ours.partition("fix: ")[2].strip() == fix


def test_a_config_that_is_no_yaml(tmp_path: Path) -> None:
    """Class: the calls of a library in which a mistake of a config was found, above what to write.

    A file of the application's own is said by Hydra as it was.
    """
    for file in ("mine", "other"):
        folder = tmp_path / file / "conf"
        (folder / "declog").mkdir(parents=True)
        (folder / "declog" / "mine.yaml").write_text("defaults: [grpo, _self_]\nrun: {name: a}\n", "utf-8")
        wrong = folder / ("declog/mine.yaml" if file == "mine" else "other.yaml")
        wrong.write_text("run: {name: s3-${seed}, config: {}}\n", "utf-8")
        refused = run(tmp_path / file, "declog=mine" if file == "mine" else "--config-name=other")
        assert refused.returncode == 1 and "expected ',' or '}'" in refused.stderr
        assert ("Traceback" in refused.stderr) == (file == "other")
        assert ('fix: "s3-${seed}"' in refused.stderr) == (file == "mine")


START = """\
import hydra, declog
@hydra.main(version_base=None, config_path=PATH, config_name=NAME)
def main(cfg):
    with declog.start(CONFIG) as log, log.step(0):
        log.observe(reward=[1.0])
main()
"""


def started(folder: Path, *words: str, path: str = "conf", name: str = "train", config: str = "cfg") -> str:
    """What an application that logs prints as it fails, or warns."""
    (folder / "conf" / "declog").mkdir(parents=True)
    (folder / "conf" / "declog" / "mine.yaml").write_text("defaults: [minimal, _self_]\nsinks: []\n", encoding="utf-8")
    (folder / "conf" / "train.yaml").write_text("defaults: [{declog: mine}, _self_]\n", encoding="utf-8")
    (folder / "conf" / "key.yaml").write_text("declog: mine\n", encoding="utf-8")
    script = START.replace("PATH", repr(path)).replace("NAME", repr(name)).replace("CONFIG", config)
    (folder / "train.py").write_text(script, encoding="utf-8")
    done = forks.run(["train.py", *words], cwd=folder)
    return done.stdout + done.stderr


def test_a_config_as_a_key_of_the_application(tmp_path: Path) -> None:
    """It is chosen in the defaults. The hook that explains what Hydra refuses does not fail on it."""
    said = started(tmp_path, name="key")
    assert "fix: `defaults: [{declog: mine}, _self_]` in place of the line `declog: mine`" in said
    assert "atexit" not in said and "Exception ignored" not in said


def test_the_folder_of_configs_as_that_of_the_application(tmp_path: Path) -> None:
    """Hydra reads it without declog's presets."""
    said = started(tmp_path, path="conf/declog", name="mine")
    assert 'fix: config_path="conf", config_name="train", and in conf/train.yaml: defaults: [{declog: mine}' in said


def test_a_config_that_leaves_its_node(tmp_path: Path) -> None:
    """Its header puts its keys at the top of the application's, which are not to blame."""
    started(tmp_path)
    (tmp_path / "conf" / "declog" / "all.yaml").write_text("# @package _global_\nsinks: [console]\n", encoding="utf-8")
    said = forks.run(["train.py", "declog=all"], cwd=tmp_path).stderr
    assert "fix: delete the line `# @package _global_` of declog/all.yaml" in said


def test_a_config_beside_the_configuration(tmp_path: Path) -> None:
    """It belongs into the folder `declog`; a file of the application's with a preset's name is nothing to declog."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "other.yaml").write_text("defaults: [grpo, _self_]\n", encoding="utf-8")
    (tmp_path / "train.py").write_text(START.replace("PATH", "'conf'").replace("NAME", "'other'"), encoding="utf-8")
    said = forks.run(["train.py"], cwd=tmp_path).stderr
    assert "mv conf/other.yaml conf/declog/" in said and "defaults: [{declog: other}, _self_]" in said
    (tmp_path / "conf" / "grpo.yaml").write_text("lr: 1\n", encoding="utf-8")
    assert "error[DL" not in forks.run(["train.py", "lrr=2"], cwd=tmp_path).stderr


def test_an_override_that_a_shell_cut_at_spaces(tmp_path: Path) -> None:
    """The words of one are put together, and quoted."""
    said = started(tmp_path, "declog.sinks=[console,", "jsonl]")
    assert said.endswith("fix: 'declog.sinks=[console, jsonl]'\n")


def test_overrides_of_the_application_for_another_config(tmp_path: Path) -> None:
    """A file or a preset that is started by name does not have them: said, once."""
    said = started(tmp_path, "declog.sinks=[jsonl]", config='"minimal", ["sinks=[]"]')
    assert said.count("declog.sinks=[jsonl] is for the application's configuration") == 1
    assert "is for the application" not in started(tmp_path / "other", "declog.sinks=[jsonl]")


def test_an_override_with_dashes_is_answered(tmp_path: Path) -> None:
    """Hydra's parser ends the process before it asks any plugin; what is not declog's has no line."""
    run(tmp_path)
    refused, others = (
        subprocess.run([sys.executable, "train.py", word], cwd=tmp_path, capture_output=True, text=True)
        for word in ("--declog.every=10", "--lr=2")
    )
    assert refused.returncode == others.returncode == 2
    assert refused.stderr.endswith("Hydra takes overrides, which have no dashes\n  fix: declog.every=10\n")
    assert "error[DL" not in others.stderr


def test_the_edit_works(tmp_path: Path) -> None:
    """What is to be typed is taken, and does it."""
    refused = run(tmp_path, "declog.sinks={console: {}, wandb: {project: x}}")
    fix = refused.stderr.partition("fix: ")[2].strip()
    assert run(tmp_path, *shlex.split(fix)).stdout == "['console', 'wandb']\n"


@pytest.mark.parametrize("words", [["lrr=2"], ["--cfg", "job"], ["declog.every=10"]])
def test_what_is_not_declogs_has_no_line(words: list[str], tmp_path: Path) -> None:
    """A mistake in the application's own keys, a question to Hydra, and a run that begins."""
    assert "error[DL" not in run(tmp_path, *words).stderr


def test_the_configuration_of_several(tmp_path: Path) -> None:
    """Where Hydra ends before it reads a file, the one that is named is known, and else nobody guesses."""
    run(tmp_path)
    (tmp_path / "conf" / "other.yaml").write_text("defaults: [{declog: minimal}, _self_]\n", encoding="utf-8")
    (tmp_path / "conf" / "broken.yaml").write_bytes(b"declog: [\xff")
    append = "declog.sinks+=[wandb]"
    assert "fix: declog.sinks=[console,jsonl,wandb]\n" in run(tmp_path, "--config-name=other", append).stderr
    assert "fix: declog.sinks=[console,parquet,wandb]\n" in run(tmp_path, "-cn", "config", append).stderr
    assert "fix: declog.sinks=[...,wandb]\n" in run(tmp_path, append).stderr


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("+every=10", "declog.every=10"),
        ("++sinks=[jsonl]", "'declog.sinks=[jsonl]'"),
        ("+metrics.kl.name=high", "+declog.metrics.kl.name=high"),
        ("+tables.mine.schema=samples", "+declog.tables.mine.schema=samples"),
    ],
)
def test_a_key_of_a_config_beside_its_node(line: str, fix: str, tmp_path: Path) -> None:
    """Hydra adds it to the application, where declog does not read it: a warning has the edit."""
    done = run(tmp_path, line)
    assert done.returncode == 0 and done.stderr.count("is nothing to declog") == 1
    assert f"`{line}` is nothing to declog, whose keys are below `declog`: {fix}\n" in done.stderr


@pytest.mark.parametrize("line", ["+epochs=3", "++lr=2", "+declog.metrics.x=reward", "++run.name=mine"])
def test_a_key_of_the_application_has_no_warning(line: str, tmp_path: Path) -> None:
    """One that a config has not, or that the application's own files have."""
    run(tmp_path)
    file = tmp_path / "conf" / "config.yaml"
    file.write_text(file.read_text("utf-8") + "run: {name: x}\n", encoding="utf-8")
    done = forks.run(["train.py", line], cwd=tmp_path)
    assert (done.returncode, "nothing to declog" in done.stderr) == (0, False)


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("declog.sink_options.wandb.every=2,3", "+declog.sink_options.wandb.every=2,3"),
        ("declog.axes.group.sise=4,8", "declog.axes.group.size=4,8"),
        ("declog.metrics.foo.every=2,3", "'+declog.metrics.foo={expr: reward, every: 2}'"),
    ],
)
def test_a_sweep_over_an_unknown_key(line: str, fix: str, tmp_path: Path) -> None:
    """Class: Hydra refuses a sweep over a key that no file has; the answer of the first run has all values."""
    done = run(tmp_path, "-m", line)
    assert done.returncode != 0 and done.stderr.rstrip().endswith(f"fix: {fix}")
