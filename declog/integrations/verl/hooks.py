"""Hooks in verl: functions and methods of five of its modules, wrapped as soon as verl imports them.

A module that is imported already is wrapped at once, with the functions that other modules imported from it. Each of
verl's functions is called exactly once, even if declog fails. Imports neither verl nor torch.
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

BACKEND = "declog"  # which `trainer.logger` may name


def install() -> None:
    """Wrap what verl has imported, and what it will import."""
    for name, wrap in WRAPPED.items():
        after(name, wrap)


# -- verl.utils.tracking


def _tracking(module: ModuleType) -> None:
    tracking: Any = module.Tracking
    if BACKEND not in tracking.supported_backend:
        tracking.supported_backend = [*tracking.supported_backend, BACKEND]
    _method(tracking, "__init__", _made)
    _method(tracking, "log", _logged)
    for name in ("finish", "__del__"):  # the first is there since 0.9
        if name in vars(tracking):
            _method(tracking, name, _finished)
    _method(module.ValidationGenerationsLogger, "log", _generations)


def _method(owner: Any, name: str, around: Callable[..., Any]) -> None:
    own = vars(owner)[name]

    @functools.wraps(own)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(self, functools.partial(own, self), *args, **kwargs)

    setattr(owner, name, wrapper)


def _made(
    tracking: Any, own: Callable[..., Any], project_name: Any, experiment_name: Any, default_backend: Any = "console",
    config: Any = None, **others: Any,
) -> None:  # fmt: skip
    own(project_name, experiment_name, default_backend, config, **others)
    tracking.declog = run.begin(project_name, experiment_name, config, default_backend)


def _logged(tracking: Any, own: Callable[..., Any], data: Any, step: Any, backend: Any = None, **others: Any) -> None:
    own(data, step, backend, **others)
    if (found := _run(tracking)) is not None and (backend is None or BACKEND in backend):
        found.log(data, step)


def _finished(tracking: Any, own: Callable[..., Any], exit_code: int = 0, **others: Any) -> None:
    try:
        own(**({"exit_code": exit_code} if exit_code else {}), **others)
    finally:
        if (found := _run(tracking)) is not None:
            found.close(failed=bool(exit_code))


def _run(tracking: Any) -> run.Run | None:
    """None where it was not made as verl's are, or could not be made."""
    found: run.Run | None = vars(tracking).get("declog")
    return found


def _generations(logger: Any, own: Callable[..., Any], loggers: Any, samples: Any, step: Any) -> None:
    own(loggers, samples, step)
    if (found := run.latest()) is not None:
        found.generations(samples, step)


# -- verl.trainer.ppo.metric_utils


def _metrics(module: ModuleType) -> None:
    taken: dict[str, Callable[..., None]] = {
        "compute_data_metrics": _data,
        "compute_timing_metrics": _timing,
        "compute_throughout_metrics": _throughput,
        "compute_variance_proxy_metrics": _variance,  # since 0.7.1
        "get_metric_data_with_optional_routed_experts": _stored,  # of the v1 trainers
    }
    for name, takes in taken.items():
        if name in vars(module):
            _function(module, name, takes)


def _function(module: ModuleType, name: str, takes: Callable[..., None]) -> None:
    own = vars(module)[name]

    @functools.wraps(own)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = own(*args, **kwargs)
        if (found := run.latest()) is not None:
            with found.guard(f"what verl gives `{name}` could not be recorded"):
                takes(found, result, *args, **kwargs)
        return result

    _replace(name, own, wrapper)


def _replace(name: str, own: Any, wrapper: Any) -> None:
    """In its module, and where it was imported before."""
    for module in list(sys.modules.values()):
        if module is not None and vars(module).get(name) is own:
            setattr(module, name, wrapper)


def _data(found: run.Run, result: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    found.batch(batch, result)


def _timing(found: run.Run, result: Any, batch: Any, timing_raw: Any, **kwargs: Any) -> None:
    found.timing(batch, timing_raw, result)


def _throughput(found: run.Run, result: Any, batch: Any, timing_raw: Any, n_gpus: Any, **kwargs: Any) -> None:
    found.throughput(batch, n_gpus, result)


def _variance(found: run.Run, result: Any, batch: Any, gradient_norm: Any = None, **kwargs: Any) -> None:
    found.variance(gradient_norm, result)


def _stored(found: run.Run, result: Any, keys: Any, partition_id: Any, *args: Any, **kwargs: Any) -> None:
    found.stored(keys, functools.partial(kwargs["kv_batch_get"], keys=keys, partition_id=partition_id))


# -- verl.experimental.fully_async_policy.detach_utils


def _aggregator(module: ModuleType) -> None:
    if "MetricsAggregator" in vars(module):  # of an experiment of verl's, which may change
        _method(module.MetricsAggregator, "add_step_metrics", _added)


def _added(aggregator: Any, own: Callable[..., Any], metrics: Any, *args: Any, **kwargs: Any) -> None:
    own(metrics, *args, **kwargs)
    if (found := run.latest()) is not None:
        found.added(metrics)


# -- verl.trainer.ppo.ray_trainer


def _trainer(module: ModuleType) -> None:
    """The legacy trainers end no Tracking, and Ray ends their process without what Python does at an exit."""
    trainer: Any = module.RayPPOTrainer
    _fit(trainer)
    before = trainer.__init_subclass__

    def of_a_subclass(made: Any, /, **kwargs: Any) -> None:
        before(**kwargs)
        if "fit" in vars(made):
            _fit(made)

    trainer.__init_subclass__ = classmethod(of_a_subclass)


def _fit(trainer: Any) -> None:
    own = trainer.fit

    @functools.wraps(own)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        with run.training(self):
            return own(self, *args, **kwargs)

    @functools.wraps(own)
    async def fit_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        with run.training(self):
            return await own(self, *args, **kwargs)

    trainer.fit = fit_async if inspect.iscoroutinefunction(own) else fit


# -- verl.utils.config


def _config(module: ModuleType) -> None:
    own = module.validate_config

    @functools.wraps(own)
    def wrapper(config: Any, *args: Any, **kwargs: Any) -> Any:
        result = own(config, *args, **kwargs)
        declog.plan(run.config_named_by(config))  # before models are loaded
        return result

    _replace("validate_config", own, wrapper)


WRAPPED: dict[str, Callable[[ModuleType], None]] = {
    "verl.utils.tracking": _tracking,
    "verl.trainer.ppo.metric_utils": _metrics,
    "verl.experimental.fully_async_policy.detach_utils": _aggregator,
    "verl.trainer.ppo.ray_trainer": _trainer,
    "verl.utils.config": _config,
}
