"""Records the run of one ``Tracking``: the batches that verl passes to its metrics wait for the step that verl logs.

A step ends with the call of ``Tracking.log`` that has the metrics of its batch. If verl logs a step in several calls,
as its SFT and fully asynchronous trainers do, the step ends with the first call of another step, or with the run.
"""

from __future__ import annotations

import atexit
import logging
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import declog
from declog.errors import InputError
from declog.integrations.open_step import go_back
from declog.integrations.verl import columns
from declog.records import names_of

logger = logging.getLogger("declog")
PRESET = "verl_ppo"
FOLDER = "declog"  # below verl's checkpoints
VAL = "val"  # the mode of validation generations
MOST = 256  # the most batches that wait for the call of their step
TRACKERS = ("wandb", "trackio")  # kinds of sinks that have a project and a name, which verl calls alike

_open: list[Run] = []  # this process's runs that are not closed
_training: list[Any] = []  # this process's trainers that are training, each once for each `fit` that it is in


def latest() -> Run | None:
    """The open run of this process's latest ``Tracking``; None if no run is open."""
    return _open[-1] if _open else None


@contextmanager
def training(trainer: Any) -> Iterator[None]:
    """A block in which a trainer trains. The runs that it has begun or logged to end with its outermost block.

    A run that has logged nothing before was begun for this training.
    """
    failed = True
    _training.append(trainer)
    for run in _open:
        if run.unused:
            run.trainer = trainer
    try:
        yield
        failed = False
    finally:
        _training.remove(trainer)
        for run in list(_open):
            if run.trainer is trainer and trainer not in _training:
                run.close(failed=failed)


def config_named_by(config: Any) -> declog.Composed:
    """The config in verl's configuration: its node ``declog``, else the preset ``verl_ppo``."""
    node = None if config is None else config.get("declog")
    composed = declog.compose(PRESET if node is None else node)
    # The node does not show which metrics `~declog.metrics.kl` deleted, but the preset's alerts need to know.
    metrics = composed.data.get("metrics") or {}
    deleted = declog.config_of(PRESET)["metrics"].keys() - metrics.keys() if node is not None else ()
    return replace(composed, data={**composed.data, "metrics": {**metrics, **dict.fromkeys(sorted(deleted))}})


def begin(project: Any, experiment: Any, config: Any, backends: str | Sequence[str] = ()) -> Run:
    """Start the run of a ``Tracking``. Raises ``ConfigError`` and ``SinkError``, as ``declog.start`` does."""
    composed = config_named_by(config)
    data = dict(composed.data)
    settings = {key: value for key, value in (config or {}).items() if key != "declog"}
    joined = [backends] if isinstance(backends, str) else backends
    options, sinks = data.get("sink_options") or {}, data.get("sinks")
    said = {name: {"kind": name, **(options.get(name) or {})} for name in (sinks if isinstance(sinks, list) else ())}
    data["sink_options"] = {
        **options,
        **{name: named(sink, project, experiment, joined) for name, sink in said.items()},
    }
    composed = replace(composed, data=data)
    trainer = settings.get("trainer") or {}
    folder = Path(trainer["default_local_dir"]) / FOLDER if trainer.get("default_local_dir") else None
    plan = declog.plan(composed)
    adds = plan.append and plan.output_dir is None
    log = declog.start(
        composed, rank=0, world_size=1, output_dir=folder if adds else None, base_dir=None if adds else folder,
        run_config={"project": project, "experiment": experiment, "verl": settings},
    )  # fmt: skip
    run = Run(log)
    atexit.register(run.close)  # before the recorder's own
    _open.append(run)
    return run


def named(sink: Any, project: Any, experiment: Any, backends: Sequence[str]) -> Any:
    """Give a tracker of declog's verl's project and experiment, unless it has its own or joins verl's run."""
    kind = sink.get("kind") if isinstance(sink, Mapping) else None
    return sink if kind not in TRACKERS or kind in backends else {"project": project, "name": experiment, **sink}


@dataclass(eq=False)
class Batch:
    """The values that verl passed to its metric functions for one batch, and the names of the metrics they returned.

    ``together`` is observed in one call, ``apart`` column by column.
    """

    rows: int = 0
    together: dict[str, Any] = field(default_factory=dict)
    apart: dict[str, Any] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    added: bool = False  # whether a fully asynchronous trainer has added it to the metrics that it logs next


class Run:
    """A recorder, and the batches and numbers that wait for its next step."""

    def __init__(self, log: declog.Recorder) -> None:
        self.recorder = log
        self.trainer: Any = _training[-1] if _training else None  # whose training the run ends with
        self._lock = threading.RLock()
        self._batches: list[Batch] = []  # batches that have no step yet
        self._aggregates = False
        self._stored: columns.Stored | None = None
        self._absent: set[str] = set()  # columns that the v1 trainer's store does not have
        self._number: int | None = None  # the open step
        self._calls = 0  # calls of Tracking.log for the open step
        self._rows: list[Batch] = []  # batches of the open step
        self._last_rows: list[Batch] = []  # batches of the step that ended last
        self._last_reported: Mapping[str, Any] = {}
        self._reported: dict[str, Any] = {}
        self._parts = False  # whether a step came in several calls
        self._left_out: set[str] = set()
        templates = [item.template for _, item in log.plan.shown_names]
        self._metrics = re.compile("|".join(names_of(name) for name in templates if name[:1] != "{") or "(?!)")

    @property
    def unused(self) -> bool:
        """Whether verl has not logged to it yet."""
        return self._number is None and self.recorder.last_step is None

    def close(self, *, failed: bool = False) -> None:
        """Log the open window, and close the recorder; idempotent."""
        if self.recorder.closed:
            return
        with self._lock:
            with self.recorder.guard("the last step could not be ended"):
                self._end()
            self.recorder.close(failed=failed)
            self.trainer = None
            atexit.unregister(self.close)
            if self in _open:
                _open.remove(self)

    # -- arguments of verl's metric functions

    def stored(self, result: Any, keys: Any, partition_id: Any, *args: Any, kv_batch_get: Any, **kwargs: Any) -> None:
        """Note the stored rows of a v1 trainer's next batch: its other columns can be read from the store."""
        get = partial(kv_batch_get, keys=keys, partition_id=partition_id)
        with self._lock:
            self._stored = columns.Stored(list(keys), get, self._absent)

    def batch(self, result: Collection[str], batch: Any, *args: Any, **kwargs: Any) -> None:
        """Take the columns of a batch whose metrics verl has computed."""
        plan = self.recorder.plan
        with self._lock:
            rows = Batch(len(batch), names=set(result))
            rows.together = columns.tensors(batch, plan.observed)
            rows.apart = columns.others_of(batch, plan.observed)
            if self._stored is not None:
                stored, self._stored = self._stored, None
                for name in sorted(plan.sources.keys() - {*rows.together, *rows.apart, *columns.VARIANCE}):
                    with self.recorder.guard(f"the column `{name}` of verl's store", "it is left out"):
                        column = stored.column(name, rows.rows)
                        if column is not None:
                            rows.apart[name] = column
            self._batches.append(rows)
            if len(self._batches) > MOST:
                del self._batches[0]
                self._leave_out("batches", "verl computes metrics of batches and does not log them")

    def timing(self, result: Collection[str], batch: Any, timing_raw: Mapping[str, float], **kwargs: Any) -> None:
        """Take the times of a step's stages, and the numbers of tokens by which verl divides them."""
        prompts, responses = (float(lengths.sum()) for lengths in columns.lengths(batch))
        stages = [name.partition("/")[2] for name in result if name.startswith("timing_per_token_ms/")]
        self._add(
            result, timing=dict(timing_raw),
            timing_tokens={name: responses if name == "gen" else prompts + responses for name in stages},
        )  # fmt: skip

    def throughput(self, result: Collection[str], batch: Any, timing_raw: Any, n_gpus: int, **kwargs: Any) -> None:
        """Take the number of tokens of a step's batch, and the number of GPUs."""
        self._add(result, total_num_tokens=sum(batch.meta_info["global_token_num"]), n_gpus=n_gpus)

    def variance(self, result: Collection[str], batch: Any, gradient_norm: float | None = None, **kwargs: Any) -> None:
        """Take the gradient norm, if verl computes variance proxies from it."""
        if result and gradient_norm is not None:
            self._add(result, gradient_norm=gradient_norm)

    def _add(self, result: Collection[str], **numbers: Any) -> None:
        """Add numbers to the latest batch."""
        with self._lock:
            if not self._batches:
                self._batches.append(Batch())
            self._batches[-1].together |= numbers
            self._batches[-1].names.update(result)

    def added(self, result: Any, aggregator: Any, metrics: Collection[str], *args: Any, **kwargs: Any) -> None:
        """Mark the batches whose metrics verl has added to those that it logs next; later batches wait."""
        with self._lock:
            for batch in self._batches:
                batch.added = batch.added or not batch.names.isdisjoint(metrics)
                self._aggregates = self._aggregates or batch.added

    # -- calls by which verl logs

    def generations(self, result: Any, tracker: Any, loggers: Any, samples: Sequence[Any], step: Any) -> None:
        """Record the validation generations of a step, each (input, output, score)."""
        log, scored = self.recorder, [sample for sample in samples if len(sample) >= 3]
        if not scored or VAL not in log.plan.modes or "val_output" not in log.plan.sources:
            return
        with self._lock, log.guard("validation generations could not be recorded"), log.mode(VAL, int(step)):
            log.observe(
                val_input=[str(sample[0]) for sample in scored], val_output=[str(sample[1]) for sample in scored],
                val_score=[sample[2] for sample in scored],
            )  # fmt: skip

    def log(self, data: Mapping[str, Any], step: Any) -> None:
        """Record a call of ``Tracking.log``, and end the step if the call has the metrics of its batch."""
        if self.recorder.closed:
            return
        with self._lock, self.recorder.guard("what verl logs could not be recorded"):
            self.trainer = _training[-1] if _training else self.trainer
            self._at(int(step))
            ready = [batch for batch in self._batches if batch.added or not self._aggregates]
            logged = [batch for batch in ready if not batch.names.isdisjoint(data)]
            self._batches = [batch for batch in self._batches if batch not in logged]
            self._rows += logged
            self._reported |= data
            self._calls += 1
            if logged and self._calls == 1 and not self._parts:
                self._end()

    def _at(self, number: int) -> None:
        """Open the step ``number``, and end any other."""
        if self._number is not None and number != self._number:
            self._end()
        self._number = number

    def _end(self) -> None:
        """End the open step: observe its batches and log verl's numbers."""
        if self._number is None:
            return
        log, number = self.recorder, self._number
        rows, reported = self._rows, self._reported
        self._number, self._calls, self._rows, self._reported = None, 0, [], {}
        last = log.last_step
        if last is not None and number == last:  # verl logs more of the last step: record the step again, as a whole
            self._parts = True
            rows, reported = [*self._last_rows, *rows], {**self._last_reported, **reported}
            log.rewind(number - 1)
        elif last is not None and number < last:
            go_back(log, number)
        self._last_rows, self._last_reported = rows, reported
        with log.step(number):
            for batch in rows:
                with log.batch():
                    self._observe(batch)
            self._report(reported, {name for batch in rows for name in batch.names})
        if log.should_stop and self.trainer is not None:  # make the next step its last: it validates, saves and returns
            self.trainer.total_training_steps = min(self.trainer.total_training_steps, number + 1)
        if not log.plan.modes["train"].every:  # `every: trainer`: each logged step is a log event
            log.flush()

    def _observe(self, batch: Batch) -> None:
        log = self.recorder
        together = {name: value for name, value in batch.together.items() if name in log.plan.observed}
        try:
            log.observe(**together)
        except InputError:  # one column is wrong: observe the others
            self._observe_apart(together)
        self._observe_apart(batch.apart)

    def _observe_apart(self, signals: Mapping[str, Any]) -> None:
        for name, value in signals.items():
            with self.recorder.guard(f"the column `{name}` of verl's batch", "it is left out"):
                self.recorder.observe(**{name: value})

    def _report(self, reported: Mapping[str, Any], computed: Set[str]) -> None:
        """Log verl's numbers, except those that declog computes from the same batches."""
        log = self.recorder
        metrics = {name for name in reported if self._metrics.fullmatch(name)}  # names of the config's metrics
        numbers = {name: value for name, value in reported.items() if name not in metrics & computed}
        rest = log.scalars(numbers, note=False)
        for name in rest:
            self._leave_out(name, "it is no number")
        for name in (reported.keys() & log.plan.signal_names) - metrics - rest.keys():  # log a signal's number, too
            log.log_metric(name, reported[name])

    def _leave_out(self, name: str, why: str) -> None:
        if name not in self._left_out:
            self._left_out.add(name)
            logger.warning("`%s` is left out: %s", name, why)
