"""accelerate: a tracker that passes ``Accelerator.log`` to declog, and ``start`` for loops that observe everywhere.

accelerate's trackers live on the main process, so ``DeclogTracker`` records with one rank, and sees only the values
that the loop logs there. If the processes have rows of their own, call ``start`` and observe on each of them; the sink
``accelerate`` then logs to the Accelerator's trackers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker, on_main_process

import declog
from declog.sinks import Sink
from declog.sinks.accelerate import open_trackers

__all__ = ["DeclogTracker", "start"]


def start(accelerator: Any, config: Any = "minimal", overrides: Sequence[str] = (), **options: Any) -> declog.Recorder:
    """Start a run for a loop with an ``Accelerator``; call it on every process, after ``accelerator.init_trackers``.

    The ranks are the Accelerator's processes. A sink of the kind ``accelerate`` without ``trackers`` logs to the
    trackers that the Accelerator has open. ``options`` are those of ``declog.start``. Close the recorder before
    ``accelerator.end_training()``, which finishes the trackers.
    """
    with open_trackers(accelerator.trackers if accelerator.is_main_process else ()):
        ranks = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
        return declog.start(config, overrides, **{**ranks, **options})


class DeclogTracker(GeneralTracker):  # type: ignore[misc]  # accelerate is not typed here
    """``Accelerator(log_with=[DeclogTracker("mine")])``: records the loop's logged values as signals or as numbers.

    ``config`` is a preset's name with ``overrides``, or anything that ``declog.compose`` takes; ``sinks`` and
    ``output_dir`` are those of ``declog.start``. A wrong config raises ``ConfigError`` here.

    ``accelerator.log(values, step=k)`` observes the values that the config declares as signals, such as a list of
    completions, and logs any other number under its name, as ``Recorder.scalars`` does. Calls with the same ``step``
    are one step, which includes everything observed before the first of them. A call with an earlier step is recorded
    at the last one. The config of ``init_trackers`` is the run config.
    """

    name = "declog"
    requires_logging_directory = False
    main_process_only = True

    def __init__(
        self, config: Any = "trainer", overrides: Sequence[str] = (), *, sinks: Sequence[Sink] = (),
        output_dir: str | Path | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        config = declog.compose(config, overrides)
        declog.plan(config)
        self._begin = partial(declog.tee, None, config, sinks=sinks, output_dir=output_dir, rank=0, world_size=1)
        self._run_config: dict[str, Any] = {}
        self._tee: Any = None

    @property
    def recorder(self) -> declog.Recorder | None:
        """The recorder; None before the first ``log``, and always on processes other than the main one."""
        return None if self._tee is None else self._tee.recorder

    tracker = recorder  # accelerate's name for it

    @on_main_process  # type: ignore[untyped-decorator]
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration of the run; accelerate calls this before the run begins."""
        self._run_config = dict(values)

    @on_main_process  # type: ignore[untyped-decorator]
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Observe signals and log numbers in ``step``, by default the step after the last one."""
        if self._tee is None:
            self._tee = self._begin(run_config=self._run_config)
        self._tee.log(values, step)

    @on_main_process  # type: ignore[untyped-decorator]
    def finish(self) -> None:
        """Close the recorder."""
        if self._tee is not None:
            self._tee.close()
