"""docs/recipes.md: each recipe is run, and adds to the logs of ``grpo`` what the page says below it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.testing import MemorySink
from tests.docs.markdown import ROOT, Block, blocks

STEPS = 8
PAGE = blocks(ROOT / "docs" / "recipes.md")
RECIPES = [block for block in PAGE if block.language == "yaml" and block.result is not None]  # others add no value


def train(log: declog.Recorder) -> None:
    """Eight steps of 16 completions, four of each prompt, with all that the recipes observe."""
    generator = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        solved = torch.rand(16, generator=generator) < torch.tensor([0.1, 0.5, 0.5, 0.95]).repeat_interleave(4)
        logprobs = -torch.rand(16, 6, generator=generator)
        reward = solved.float()
        with log.step(step):
            observe(
                log,
                prompt=[f"What is {number} * 7?" for number in range(4) for _ in range(4)],
                completion=[f"It is \\boxed{{{7 * row}}}" if row % 3 else "I do not know" for row in range(16)],
                reward=reward,
                length=torch.arange(16) % 7 + 3,
                source=["math", "math", "code", "code"] * 4,
            )
            observe(
                log,
                logprobs=logprobs,
                old_logprobs=logprobs - 0.01,
                ref_logprobs=logprobs - 0.1,
                completion_mask=torch.ones(16, 6, dtype=torch.bool),
                advantages=reward - reward.reshape(4, 4).mean(1).repeat_interleave(4),
                completion_ids=torch.arange(96).reshape(16, 6),
                version=torch.full((16,), step - 1),
                loss=0.5,
                grad_norms={"embed": 0.5, "layer_0": 1.5},
                gpu_memory=40.5,
            )


def observe(log: declog.Recorder, **values: Any) -> None:
    """Give what the config declares; a recipe declares what it needs beside ``grpo``."""
    log.observe(**log.plan.taken(values))


def logged(config: declog.Composed, folder: Path) -> set[str]:
    """What a run logs: names of numbers and histograms, and the ids of tables and alerts."""
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=folder) as log:
        train(log)
    names: set[str] = set()
    for _, records in sink.events:
        names |= {scalar.name for scalar in records.scalars} | {shape.name for shape in records.histograms}
        names |= {f"table {table.table}" for table in records.tables if table.rows}
        names |= {f"alert {alert.name}" for alert in records.alerts}
    return names


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What the preset logs by itself."""
    return logged(declog.compose("grpo", ["run.strict=true"]), tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("block", RECIPES, ids=str)
def test_a_recipe_adds_what_the_page_says(block: Block, plain: set[str], tmp_path: Path) -> None:
    """Beside what the preset logs by itself."""
    file = tmp_path / "declog" / "recipe.yaml"
    file.parent.mkdir()
    file.write_text(f"defaults: [grpo, _self_]\nrun: {{strict: true}}\n{block.text}", encoding="utf-8")
    added = logged(declog.compose("recipe", config_dir=tmp_path), tmp_path / "run") - plain
    assert block.result == "  ".join(sorted(added)) + "\n"


def test_there_are_enough_of_them() -> None:
    """The page is a cookbook."""
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert text.count("\n### I want") >= 25
