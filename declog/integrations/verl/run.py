"""The run of one ``Tracking``: the batches that verl passes to its metrics wait for the step that verl logs.

A step ends with the call of ``Tracking.log`` that has the metrics of its batch. Where verl logs a step in several
calls, as its SFT and fully asynchronous trainers do, it ends with the first call of another step, or with the run.
"""

from __future__ import annotations

import atexit
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import declog
from declog.errors import InputError
from declog.integrations.verl import columns
from declog.records import names_of

logger = logging.getLogger("declog")
PRESET = "verl_ppo"
FOLDER = "declog"  # below verl's checkpoints
VAL = "val"  # the mode of validation generations
MOST = 256  # batches that wait for their step's call
TRACKERS = ("wandb", "trackio")  # kinds of sinks that have a project and a name, and verl's names of them

_open: list[Run] = []  # those of this process that are not closed
_training: list[Any] = []  # trainers of this process that train


def latest() -> Run | None:
    """The run of the latest ``Tracking`` of this process; None where there is none."""
    return _open[-1] if _open else None


@contextmanager
def training(trainer: Any) -> Iterator[None]:
    """A block in which a trainer trains, and at whose end that is over."""
    failed = True
    _training.append(trainer)
    try:
        yield
        failed = False
    finally:
        _training.remove(trainer)
        for run in list(_open):
            run.close(failed=failed)


def config_named_by(config: Any) -> declog.Composed:
    """The config that verl's configuration names: its node ``declog``, else the preset ``verl_ppo``."""
    node = None if config is None else config.get("declog")
    composed = declog.compose(PRESET if node is None else node)
    # What `~declog.metrics.kl` took out is not said any more in the process that trains: the preset's alerts ask.
    metrics = composed.data.get("metrics") or {}
    gone = declog.config_of(PRESET)["metrics"].keys() - metrics.keys() if node is not None else ()
    return replace(composed, data={**composed.data, "metrics": {**metrics, **dict.fromkeys(sorted(gone))}})


def begin(project: Any, experiment: Any, config: Any, backends: str | Sequence[str] = ()) -> Run:
    """Start the run of a ``Tracking``. Raises ``ConfigError`` and ``SinkError`` as ``declog.start`` does."""
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
    made = declog.plan(composed)
    adds = made.append and made.output_dir is None
    log = declog.start(
        composed, rank=0, world_size=1, output_dir=folder if adds else None, base_dir=None if adds else folder,
        run_config={"project": project, "experiment": experiment, "verl": settings},
    )  # fmt: skip
    run = Run(log)
    atexit.register(run.close)  # before the recorder's own
    _open.append(run)
    return run


def named(sink: Any, project: Any, experiment: Any, backends: Sequence[str]) -> Any:
    """A tracker of declog's own gets verl's project and experiment, unless it says its own or joins verl's run."""
    kind = sink.get("kind") if isinstance(sink, Mapping) else None
    return sink if kind not in TRACKERS or kind in backends else {"project": project, "name": experiment, **sink}


@dataclass(eq=False)
class Batch:
    """What verl gave its functions of metrics for one batch, and the names of what they returned."""

    rows: int = 0
    tensors: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    added: bool = False  # to the metrics that a fully asynchronous trainer logs together


class Run:
    """A recorder, and what waits for its next step."""

    def __init__(self, log: declog.Recorder) -> None:
        self.recorder = log
        self._lock = threading.RLock()
        self._batches: list[Batch] = []  # of no step yet
        self._aggregates = False
        self._stored: columns.Stored | None = None
        self._absent: set[str] = set()  # columns that a v1 trainer does not have
        self._number: int | None = None  # the step that is open
        self._calls = 0  # of Tracking.log for it
        self._rows: list[Batch] = []
        self._reported: dict[str, Any] = {}
        self._parts = False  # whether a step came in several calls
        self._left_out: set[str] = set()
        templates = [item.template for op in log.plan.outputs if op.shown for item in op.names]
        self._named = {each for each in templates if "{" not in each}
        self._patterns = [re.compile(names_of(each)) for each in templates if "{" in each and not each.startswith("{")]

    def guard(self, what: str) -> AbstractContextManager[None]:
        """A block of declog's own code; if it fails, verl goes on."""
        return self.recorder.guard(what)

    def close(self, *, failed: bool = False) -> None:
        """Log the open window, and close the recorder; idempotent."""
        if self.recorder.closed:
            return
        with self._lock:
            with self.guard("the last step could not be ended"):
                self._end()
            self.recorder.close(failed=failed)
            atexit.unregister(self.close)
            if self in _open:
                _open.remove(self)

    # -- what verl's functions of metrics are given

    def stored(self, keys: Sequence[str], get: Callable[..., Any]) -> None:
        """The next batch is one of a v1 trainer, whose other columns can be read."""
        with self._lock:
            self._stored = columns.Stored(list(keys), get, self._absent)

    def batch(self, batch: Any, result: Collection[str]) -> None:
        """A batch whose metrics verl has computed."""
        plan = self.recorder.plan
        with self._lock:
            found = Batch(len(batch), names=set(result))
            found.tensors = columns.tensors(batch, plan.observed)
            found.others = columns.others(batch, plan.observed)
            if self._stored is not None:
                stored, self._stored = self._stored, None
                for name in sorted(plan.sources.keys() - {*found.tensors, *found.others, *columns.VARIANCE}):
                    with self.recorder.guard(f"the column `{name}` of verl's store", "it is left out"):
                        column = stored.column(name, found.rows)
                        if column is not None:
                            found.others[name] = column
            self._batches.append(found)
            if len(self._batches) > MOST:
                del self._batches[0]
                self._leave_out("batches", "verl computes metrics of batches and does not log them")

    def timing(self, batch: Any, seconds: Mapping[str, float], result: Collection[str]) -> None:
        """How long the stages of a step took, and how many tokens verl divides that by."""
        prompts, responses = (float(each.sum()) for each in columns.lengths(batch))
        stages = [name.partition("/")[2] for name in result if name.startswith("timing_per_token_ms/")]
        self._give(
            result, timing=dict(seconds),
            timing_tokens={name: responses if name == "gen" else prompts + responses for name in stages},
        )  # fmt: skip

    def throughput(self, batch: Any, gpus: int, result: Collection[str]) -> None:
        """How many tokens a step's batch has, and how many GPUs."""
        self._give(result, total_num_tokens=sum(batch.meta_info["global_token_num"]), n_gpus=gpus)

    def variance(self, gradient_norm: float | None, result: Collection[str]) -> None:
        """The norm of the gradient, where verl makes variance proxies of it."""
        if result and gradient_norm is not None:
            self._give(result, gradient_norm=gradient_norm)

    def _give(self, result: Collection[str], **numbers: Any) -> None:
        """What is of the batch that came last."""
        with self._lock:
            if not self._batches:
                self._batches.append(Batch())
            self._batches[-1].numbers |= numbers
            self._batches[-1].names.update(result)

    def added(self, names: Collection[str]) -> None:
        """verl has added the metrics of its batches to those that it logs next; of later batches it logs them later."""
        with self._lock:
            for batch in self._batches:
                batch.added = batch.added or not batch.names.isdisjoint(names)
                self._aggregates = self._aggregates or batch.added

    # -- what verl logs

    def generations(self, samples: Sequence[Sequence[Any]], step: Any) -> None:
        """Validation generations, each (input, output, score), of a step."""
        log, found = self.recorder, [sample for sample in samples if len(sample) >= 3]
        if not found or VAL not in log.plan.modes or "val_output" not in log.plan.sources:
            return
        with self._lock, self.guard("validation generations could not be recorded"), log.mode(VAL, int(step)):
            log.observe(
                val_input=[str(sample[0]) for sample in found], val_output=[str(sample[1]) for sample in found],
                val_score=[sample[2] for sample in found],
            )  # fmt: skip

    def log(self, data: Mapping[str, Any], step: Any) -> None:
        """A call of ``Tracking.log``."""
        if self.recorder.closed:
            return
        with self._lock, self.guard("what verl logs could not be recorded"):
            self._at(int(step))
            ready = [batch for batch in self._batches if batch.added or not self._aggregates]
            mine = [batch for batch in ready if not batch.names.isdisjoint(data)]
            self._batches = [batch for batch in self._batches if batch not in mine]
            self._rows += mine
            self._reported |= data
            self._calls += 1
            if mine and self._calls == 1 and not self._parts:
                self._end()

    def _at(self, number: int) -> None:
        """A step is open; another one is not any more."""
        if self._number is not None and number != self._number:
            self._end()
        self._number = number

    def _end(self) -> None:
        """The open step ends."""
        if self._number is None:
            return
        log, number = self.recorder, self._number
        rows, reported = self._rows, self._reported
        self._number, self._calls, self._rows, self._reported = None, 0, [], {}
        last = log.last_step
        if last is not None and number <= last:  # verl goes back, or logs more of a step
            self._parts = self._parts or number == last
            log.rewind(number - 1)
        with log.step(number):
            for batch in rows:
                with log.batch():
                    self._observe(batch)
            self._report(reported, {name for batch in rows for name in batch.names})
        if log.should_stop:  # verl ends with the next step: it validates, saves and returns
            for trainer in _training:
                trainer.total_training_steps = min(trainer.total_training_steps, number + 1)
        if not log.plan.modes["train"].every:  # `every: trainer`: each step that is logged
            log.flush()

    def _observe(self, batch: Batch) -> None:
        log = self.recorder
        needed = log.plan.observed
        together = {name: value for name, value in {**batch.tensors, **batch.numbers}.items() if name in needed}
        try:
            log.observe(**together)
        except InputError:  # of one column: the others count
            self._each(together)
        self._each(batch.others)

    def _each(self, signals: Mapping[str, Any]) -> None:
        for name, value in signals.items():
            with self.recorder.guard(f"the column `{name}` of verl's batch", "it is left out"):
                self.recorder.observe(**{name: value})

    def _report(self, reported: Mapping[str, Any], computed: Set[str]) -> None:
        """Numbers that verl has computed, but those that declog computes of the same batch."""
        log = self.recorder
        made = {name for name in reported if self._made(name)}
        rest = log.scalars({name: value for name, value in reported.items() if name not in made & computed})
        for name in rest:
            self._leave_out(name, "it is no number")
        for name in (
            (reported.keys() & log.plan.signal_names) - made - rest.keys()
        ):  # a signal of the config's: its number, too
            log.log_metric(name, reported[name])

    def _made(self, name: str) -> bool:
        """Whether a metric of the config has the name."""
        return name in self._named or any(each.fullmatch(name) for each in self._patterns)

    def _leave_out(self, name: str, why: str) -> None:
        if name not in self._left_out:
            self._left_out.add(name)
            logger.warning("`%s` is left out: %s", name, why)
