"""Logs tinker-cookbook's numbers with declog, by a Logger beside tinker-cookbook's own. Add two lines before training:

    from examples.tinker_logger import with_declog
    ml_log.setup_logging = with_declog(ml_log.setup_logging)

An evaluation that runs beside training reports an earlier step (`log_metrics_event`). declog records it as a block of
the mode `eval` at that step, with names that begin with `eval/`, so later training steps do not drop its values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tinker_cookbook.utils import ml_log

import declog

OVERRIDES = ("modes.eval.prefix=eval/",)


class DeclogLogger(ml_log.Logger):  # type: ignore[misc]  # not typed here
    """A logger that passes tinker-cookbook's numbers to a config with its alerts and sinks."""

    def __init__(self, config: Any = "tee", overrides: tuple[str, ...] = OVERRIDES, **options: Any) -> None:
        self.recorder = declog.start(config, overrides, **{"rank": 0, "world_size": 1, "steps": "commit", **options})

    def log_hparams(self, config: Any) -> None:
        """Do nothing: tinker-cookbook's own logger keeps the hyperparameters."""

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log the numbers of a training step."""
        self.recorder.scalars(metrics, step)

    def log_metrics_event(
        self, metrics: Mapping[str, Any], step: int, step_metric: str, metric_axes: dict[str, str] | None = None
    ) -> None:
        """Log the numbers of an evaluation at the step of its model."""
        with self.recorder.mode("eval", step=step):
            self.recorder.scalars(metrics)

    def close(self) -> None:
        """Log the last step, and close the sinks."""
        self.recorder.close()


def with_declog(setup: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``ml_log.setup_logging`` with one more logger, whose files are in ``declog`` in the same folder."""

    def setup_logging(log_dir: str, *args: Any, **kwargs: Any) -> Any:
        logger = setup(log_dir, *args, **kwargs)
        logger.loggers.append(DeclogLogger(**{"output_dir": f"{log_dir}/declog", **options}))
        return logger

    return setup_logging
