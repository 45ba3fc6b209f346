"""Imported by the servers of ``tests/forks.py``: what each process learns of what is installed and shipped."""

from __future__ import annotations

import declog
from declog.language import origins

origins.packages_of("tests")
declog.compose("grpo")
