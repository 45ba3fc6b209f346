"""Tests on a GPU: where there is none each is skipped by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without CUDA a report with ``-rs`` names what was not tried."""
    for item in items if not torch.cuda.is_available() else ():
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"no CUDA device for {item.name}"))
