"""Imported by the servers of ``tests/forks.py``: what each process learns of what is installed and shipped."""

from __future__ import annotations

import hydra

import declog
from declog.language import origins

origins.packages_of("tests")
with hydra.initialize(version_base="1.3", config_path=None):  # Hydra looks for its plugins, and reads its grammar
    declog.plan(hydra.compose(overrides=["+declog=grpo", "declog.every=2"]))
