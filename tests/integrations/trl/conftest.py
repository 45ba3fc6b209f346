"""TRL's trainers in tests: one tiny model for all, and the warnings of other libraries are theirs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What transformers deprecates in itself fails no test of ours."""
    for item in items:
        if item.nodeid.startswith("tests/integrations/trl/"):
            for warning in ("FutureWarning", "UserWarning", "DeprecationWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{warning}"))


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """A model this small is slower on two threads than on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model; what is imported for it stays, since each training collects all garbage."""
    import trl.trainer.grpo_trainer
    import trl.trainer.rloo_trainer  # noqa: F401

    from tests.integrations.trl import tiny

    folder = tiny.build(tmp_path_factory.mktemp("model"))
    gc.collect()
    gc.freeze()
    return folder
