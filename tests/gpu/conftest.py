"""Tests on a GPU: where there is none each is skipped by its name."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without CUDA a report with ``-rs`` names what was not tried."""
    for item in items if not torch.cuda.is_available() else ():
        if item.nodeid.startswith("tests/gpu/"):
            item.add_marker(pytest.mark.skip(reason=f"no CUDA device for {item.name}"))
