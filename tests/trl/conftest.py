"""TRL's trainers in tests: one tiny model for all, and the warnings of other libraries are theirs."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What transformers deprecates in itself fails no test of ours."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for warning in ("FutureWarning", "UserWarning", "DeprecationWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{warning}"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model."""
    from tests.trl import tiny

    return tiny.build(tmp_path_factory.mktemp("model"))
