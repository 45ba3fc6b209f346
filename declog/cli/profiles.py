"""The profile that a command line names: a preset, a YAML file or an application's configuration, with overrides."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig


def composed(given: argparse.Namespace, words: Sequence[str] | None = None) -> DictConfig:
    """The configuration that ``words`` (by default all that were given) name; raises ``CompositionError``."""
    from declog.compose import compose

    words = given.words if words is None else words
    name, overrides = ("grpo", list(words))
    if words and "=" not in words[0] and words[0][:1] not in "+~":
        name, overrides = words[0], list(words[1:])
    return compose(name, overrides, config_dir=given.config_dir)
