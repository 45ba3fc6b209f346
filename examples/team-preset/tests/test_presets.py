"""The presets compile, and pass their own tests."""

from __future__ import annotations

import pytest

import declog
from declog.testing import run_config_tests


@pytest.mark.parametrize("preset", ["acme_grpo"])
def test_a_preset(preset: str) -> None:
    """All of its tests."""
    run_config_tests(declog.compose(f"pkg://acme_logging.conf/{preset}"))
