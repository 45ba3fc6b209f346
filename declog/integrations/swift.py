"""ms-swift: ``declog.attach`` from the command line.

    # plugin.py
    from declog.integrations import swift
    swift.register("trl_grpo", ["declog.sinks=[console,parquet]"])

    swift rlhf --rlhf_type grpo --external_plugins plugin.py --callbacks declog ...

ms-swift constructs a callback for each name, and passes it the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swift.callbacks import TrainerCallback, callbacks_map

import declog

__all__ = ["register"]


def register(config: Any = None, overrides: Sequence[str] = (), *, name: str = "declog", **options: Any) -> None:
    """Let ``--callbacks declog`` attach declog; the arguments are those of ``declog.attach``."""

    class DeclogCallback(TrainerCallback):  # type: ignore[misc]  # ms-swift is not typed here
        """Attaches when training begins: the trainer is not complete when ms-swift constructs its callbacks."""

        def on_init_end(self, *args: Any, **kwargs: Any) -> None:
            trainer = self.trainer

            def train(*args: Any, **kwargs: Any) -> Any:
                del trainer.train
                declog.attach(trainer, config, overrides, **options)
                try:
                    return trainer.train(*args, **kwargs)
                finally:
                    declog.detach(trainer)
                    trainer.train = train

            trainer.train = train

    callbacks_map[name] = DeclogCallback
