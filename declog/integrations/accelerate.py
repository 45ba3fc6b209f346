"""accelerate: a tracker by which ``Accelerator.log`` reaches declog's profiles and sinks, and a start on all processes.

accelerate's trackers live on the main process, so ``DeclogTracker`` is a recorder with one rank: it sees only what the
loop logs there. If the processes have rows of their own, call ``start`` and observe on each of them; the sink
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
    """``declog.start`` for a loop with an ``Accelerator``, on every process, after ``accelerator.init_trackers``.

    The ranks are the Accelerator's processes. A sink of the kind ``accelerate`` without ``trackers`` logs to those that
    the Accelerator has open. ``options`` are those of ``declog.start``. Close the recorder before
    ``accelerator.end_training()``, which finishes the trackers.
    """
    with open_trackers(accelerator.trackers if accelerator.is_main_process else ()):
        ranks = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
        return declog.start(config, overrides, **{**ranks, **options})


class DeclogTracker(GeneralTracker):  # type: ignore[misc]  # accelerate is not typed here
    """``Accelerator(log_with=[DeclogTracker("mine")])``: what the loop logs becomes signals, or numbers of their own.

    ``config`` is a preset's name with ``overrides``, or anything that ``declog.compose`` takes; ``sinks`` and
    ``output_dir`` are those of ``declog.start``. What is wrong with the config raises ``ConfigError`` here.

    ``accelerator.log(values, step=k)`` observes the values that the config declares as signals, such as a list of
    completions, and logs any other number under its name, as ``Recorder.scalars`` does. Calls with one ``step`` are
    one step, with everything observed before the first of them. A call with an earlier step counts for the last one.
    ``init_trackers``' config is the run config's ``accelerate``.
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
        """The recorder; None before the first call, and on all other processes."""
        return None if self._tee is None else self._tee.recorder

    tracker = recorder  # accelerate's name for it

    @on_main_process  # type: ignore[untyped-decorator]
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration of the run; accelerate calls this before the run begins."""
        self._run_config = dict(values)

    @on_main_process  # type: ignore[untyped-decorator]
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Observe signals and log numbers in ``step``, by default the step after the last."""
        if self._tee is None:
            self._tee = self._begin(run_config=self._run_config)
        self._tee.log(values, step)

    @on_main_process  # type: ignore[untyped-decorator]
    def finish(self) -> None:
        """Close the recorder."""
        if self._tee is not None:
            self._tee.close()
