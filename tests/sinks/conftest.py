"""Fixtures that several files of this folder use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import wandb


@pytest.fixture
def wandb_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for everything that wandb writes, and a wandb without a memory of earlier tests."""
    settings = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB__DISABLE_STATS": "true"}
    for name in ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        settings[name] = str(tmp_path)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    wandb.teardown()
    yield tmp_path
    if wandb.run is not None:
        wandb.run.finish()
    wandb.teardown()
    gc.collect()
