"""Wraps functions and methods of five modules of verl, as soon as verl imports them.

If a module is imported already, it is wrapped at once, and so are the references that other modules imported from it.
Each of verl's functions is called exactly once, even if declog fails. Imports neither verl nor torch.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import declog
from declog.imports import after
from declog.integrations.verl import run
from declog.integrations.verl.run import Run

BACKEND = "declog"  # a name that `trainer.logger` may list


def install() -> None:
    """Wrap the modules that verl has imported, and those that it will import."""
    for name, wrap in WRAPPED.items():
        after(name, wrap)


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Call ``around(original, *args, **kwargs)`` instead of a function, also in modules that have imported it."""
    original = vars(owner)[name]

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    modules = [
        module for module in list(sys.modules.values()) if module is not None and vars(module).get(name) is original
    ]
    for module in (owner, *modules):
        setattr(module, name, wrapper)


def _report(
    owner: Any, name: str, take: Callable[..., None], run_of: Callable[..., Run | None] = lambda *args: run.latest()
) -> None:
    """Call ``take(run, result, *args, **kwargs)`` after a function, if verl has a run."""

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if (current := run_of(*args)) is not None:
            with current.recorder.guard(f"what verl gives `{name}` could not be recorded"):
                take(current, result, *args, **kwargs)
        return result

    if name in vars(owner):
        _wrap(owner, name, around)


# -- verl.utils.tracking


def _tracking(module: ModuleType) -> None:
    tracking: Any = module.Tracking
    if BACKEND not in tracking.supported_backend:
        tracking.supported_backend = [*tracking.supported_backend, BACKEND]
    _wrap(tracking, "__init__", _begin)
    _report(tracking, "log", _log, run_of=_run)
    for name in ("finish", "__del__"):  # `finish` exists since 0.9
        if name in vars(tracking):
            _wrap(tracking, name, _finish)
    _report(module.ValidationGenerationsLogger, "log", Run.generations)


def _begin(
    original: Callable[..., Any], tracking: Any, project_name: Any, experiment_name: Any,
    default_backend: Any = "console", config: Any = None, **options: Any,
) -> None:  # fmt: skip
    original(tracking, project_name, experiment_name, default_backend, config, **options)
    tracking.declog = run.begin(project_name, experiment_name, config, default_backend)


def _log(current: Run, result: Any, tracking: Any, data: Any, step: Any, backend: Any = None, **options: Any) -> None:
    if backend is None or BACKEND in backend:
        current.log(data, step)


def _finish(original: Callable[..., Any], tracking: Any, exit_code: int = 0, **options: Any) -> None:
    try:
        original(tracking, **({"exit_code": exit_code} if exit_code else {}), **options)
    finally:
        if (current := _run(tracking)) is not None:
            current.close(failed=bool(exit_code))


def _run(tracking: Any, *args: Any) -> Run | None:
    """The run of a ``Tracking``; None if its construction did not pass through ``_begin``, or failed there."""
    current: Run | None = vars(tracking).get("declog")
    return current


# -- verl.trainer.ppo.metric_utils


def _metrics(module: ModuleType) -> None:
    _report(module, "compute_data_metrics", Run.batch)
    _report(module, "compute_timing_metrics", Run.timing)
    _report(module, "compute_throughout_metrics", Run.throughput)
    _report(module, "compute_variance_proxy_metrics", Run.variance)  # since 0.7.1
    _report(module, "get_metric_data_with_optional_routed_experts", Run.stored)  # only v1 trainers call it


# -- verl.experimental.fully_async_policy.detach_utils


def _aggregator(module: ModuleType) -> None:
    if "MetricsAggregator" in vars(module):  # verl calls this module experimental: it may change
        _report(module.MetricsAggregator, "add_step_metrics", Run.added)


# -- verl.trainer.ppo.ray_trainer


def _trainer(module: ModuleType) -> None:
    """Wrap ``fit``, to close the run at its end.

    The legacy trainers do not finish their ``Tracking``, and Ray ends their process without running exit handlers.
    """
    trainer: Any = module.RayPPOTrainer
    _fit(trainer)
    original = vars(trainer).get("__init_subclass__")

    def of_a_subclass(subclass: Any, /, **kwargs: Any) -> None:
        later_bases: Any = super(trainer, subclass)  # they learn of the subclass, too
        (later_bases.__init_subclass__ if original is None else original.__get__(None, subclass))(**kwargs)
        if "fit" in vars(subclass):
            _fit(subclass)

    trainer.__init_subclass__ = classmethod(of_a_subclass)


def _fit(trainer: Any) -> None:
    original = trainer.fit

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        with run.training(self):
            return original(self, *args, **kwargs)

    @functools.wraps(original)
    async def fit_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        with run.training(self):
            return await original(self, *args, **kwargs)

    trainer.fit = fit_async if inspect.iscoroutinefunction(original) else fit


# -- verl.utils.config


def _config(module: ModuleType) -> None:
    _wrap(module, "validate_config", _validate)


def _validate(original: Callable[..., Any], config: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(config, *args, **kwargs)
    declog.plan(run.config_named_by(config))  # before models are loaded
    return result


WRAPPED: dict[str, Callable[[ModuleType], None]] = {
    "verl.utils.tracking": _tracking,
    "verl.trainer.ppo.metric_utils": _metrics,
    "verl.experimental.fully_async_policy.detach_utils": _aggregator,
    "verl.trainer.ppo.ray_trainer": _trainer,
    "verl.utils.config": _config,
}
