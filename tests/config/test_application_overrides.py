"""Overrides that an application's Hydra refuses whatever the application is: declog's line stands above Hydra's."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from declog.config.override_errors import of_application
from tests import forks

APP = """\
import hydra, declog
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    print(sorted(sink.id for sink in declog.plan(cfg).sinks))
main()
"""


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("declog.metrics=[reward,kl]", "'declog.metrics={entry: ...}'"),
        ("declog.alerts=[]", "'declog.alerts={entry: ...}'"),
    ],
)
def test_a_list_for_a_map(line: str, fix: str) -> None:
    """Sections are maps: a list cannot be merged over them."""
    problem = of_application(line)
    assert problem is not None and (problem.code, problem.fix) == ("DL101", fix)
    assert problem.where is not None and problem.where.override == line


@pytest.mark.parametrize(
    "line",
    ["declog.sinks=[console]", "declog.metrics.reward.reduce=[mean,p95]", "declog.every=10", "~declog.sinks",
     "model=[a]", "declog.profiles.slim.only=[reward]", "declog.sinks=[]", "declog.sinks=[console,jsonl]"],
)  # fmt: skip
def test_what_hydra_may_take_has_no_line(line: str) -> None:
    """Nobody knows the application's files here: only what is refused in all of them is said."""
    assert of_application(line) is None


def test_the_line_stands_above_hydras_and_its_edit_works(tmp_path: Path) -> None:
    """In a process of its own; what is to be typed is taken, and does it."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("defaults: [{declog: grpo}, _self_]\n", encoding="utf-8")
    (tmp_path / "train.py").write_text(APP, encoding="utf-8")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return forks.run(["train.py", *words], cwd=tmp_path)

    refused = run("declog.sinks={console: {}, wandb: {project: x}}")
    ours, _, hydras = refused.stderr.partition("Error merging override")
    assert refused.returncode == 1 and hydras
    assert ours.startswith("error[DL101] override 'declog.sinks={console: {}, wandb: {project: x}}'\n")
    fix = ours.partition("fix: ")[2].strip()
    assert run(*shlex.split(fix)).stdout == "['console', 'wandb']\n"
