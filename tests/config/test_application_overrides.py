"""What an application's Hydra refuses: below Hydra's own lines stands what to type, and its edit works."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests import forks

APP = """\
import hydra, declog
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    print(sorted(sink.id for sink in declog.plan(cfg).sinks))
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
        ("declog.metrics=[reward,kl]", "'++declog.metrics={reward: mean, kl: mean}'"),
    ],
)
def test_what_hydra_refuses_is_answered(line: str, fix: str, tmp_path: Path) -> None:
    """The class: a key, a group, a form or a type that Hydra refuses, whose own lines name another edit, or none."""
    refused = run(tmp_path, *line.split())
    hydras, _, ours = refused.stderr.partition("error[DL")
    assert refused.returncode == 1 and "HYDRA_FULL_ERROR" in hydras
    assert f"override '{line}'\n" in ours and ours.partition("fix: ")[2].strip() == fix


def test_the_edit_works(tmp_path: Path) -> None:
    """What is to be typed is taken, and does it."""
    refused = run(tmp_path, "declog.sinks={console: {}, wandb: {project: x}}")
    fix = refused.stderr.partition("fix: ")[2].strip()
    assert run(tmp_path, *shlex.split(fix)).stdout == "['console', 'wandb']\n"


@pytest.mark.parametrize("words", [["lrr=2"], ["--cfg", "job"], ["declog.every=10"]])
def test_what_is_not_declogs_has_no_line(words: list[str], tmp_path: Path) -> None:
    """A mistake in the application's own keys, a question to Hydra, and a run that begins."""
    assert "error[DL" not in run(tmp_path, *words).stderr
