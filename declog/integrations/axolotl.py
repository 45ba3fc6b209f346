"""Axolotl: ``declog.attach`` from a configuration file.

    plugins:
      - declog.integrations.axolotl.DeclogPlugin
    declog:
      config: trl_grpo                                # by default the preset of the trainer
      overrides: ["declog.sinks=[console,parquet]"]

Axolotl imports this module, which uses declog's public API only.
"""

from __future__ import annotations

from typing import Any

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel

import declog

__all__ = ["DeclogArgs", "DeclogPlugin"]


class Options(BaseModel, extra="forbid"):
    """The arguments of ``declog.attach`` in Axolotl's configuration."""

    config: str | None = None
    overrides: list[str] = []
    merge: str | None = "replace"
    output_dir: str | None = None


class DeclogArgs(BaseModel):
    """The key that the plugin adds to Axolotl's configuration."""

    declog: Options | None = None


class DeclogPlugin(BasePlugin):  # type: ignore[misc]  # Axolotl is not typed here
    """Attaches declog to the trainer that Axolotl makes, on every rank; the recorder is closed when training ends."""

    trainer: Any = None

    def get_input_args(self) -> str:
        """The path of the model that extends Axolotl's configuration."""
        return f"{__name__}.DeclogArgs"

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Attach declog to the trainer."""
        options = Options.model_validate(dict(cfg.declog or {}))
        declog.attach(trainer, **options.model_dump())
        self.trainer = trainer

    def post_train(self, cfg: Any, model: Any) -> None:
        """Close the recorder."""
        if self.trainer is not None:
            declog.detach(self.trainer)
