"""tinker-cookbook's own loggers, with the example's beside them."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from tinker_cookbook.utils import ml_log

from tests.integrations.test_examples_of_trainers import EXAMPLES, scalars, training


def test_all_values_of_the_json_logger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of training and of evaluations that end later, each at its step, as its own file has them."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    tinker = importlib.import_module("tinker_logger")
    logger = tinker.with_declog(ml_log.setup_logging)(str(tmp_path), do_configure_logging_module=False)
    assert [type(each).__name__ for each in logger.loggers] == ["JsonLogger", "PrettyPrintLogger", "DeclogLogger"]
    training(logger)
    own = {
        (row["step"], name if name.startswith("env/") else f"eval/{name}"): value
        for row in map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
        for name, value in row.items() if name not in ("step", "sampler/version") and isinstance(value, int | float)
    }  # fmt: skip
    assert len(own) == 400
    assert scalars(tmp_path / "declog") == pytest.approx(own)
    assert "tinker_cookbook" in sys.modules
