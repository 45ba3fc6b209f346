"""The YAML of a config as pydantic models, nothing else; ``validation.py`` makes them from plain data.

What may be written shorter is ``shorthand.py``'s: the models know the long form.

Only shapes and literals are checked here: names, axes and expressions are the compiler's. Imports pydantic and dtypes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from declog.errors import Path
from declog.language.dtypes import DType
from declog.language.model import (
    Conditional,
    Constants,
    Described,
    Masked,
    Metrics,
    Model,
    Says,
    Scalar,
    Short,
    Signals,
    Switched,
    Windowed,
    refused,
)
from declog.language.spec_of_tables import ColumnSpec, FilterSpec, TableSpec
from declog.language.spec_of_tests import CaptureSpec, TestSpec

Every = int | Literal["trainer", "epoch"]
ANY = "any"  # the phase of signals that are observed wherever something needs them
AxisName = Literal["step", "group", "completion", "token"]
Over = Literal["window", "step", "batch", "rank", "rank_batch", "run", "run_step", "run_batch", "run_rank_batch"]
COMBINE = ("mean", "min", "max", "sum", "last", "var")
_EMA = re.compile(r"ema\(\s*(0?\.\d*[1-9]\d*)\s*\)\Z")  # the weight of the past

IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*\Z")


class ConstantSpec(Described):
    """A value known at compile time. A plain value in YAML pins it."""

    _plain = "value"
    default: Scalar | None = None
    """Used where neither the config nor an adapter gives a value."""
    value: Scalar | None = None
    """The pinned value."""

    @field_validator("default", "value")
    @classmethod
    def _number(cls, value: Any) -> Any:
        if isinstance(value, str) and re.fullmatch(r"[-+]?\d+,\d+", value):
            raise refused("DL202.decimal_comma", text=value, number=value.replace(",", "."))
        return value


class GroupAxis(Model):
    """What a group is: the completions of one id, or ``size`` consecutive completions."""

    _short = Annotated[int | str, Field(description="Completions per group, or the signal of its ids.")]
    size: int | None = Field(None, ge=1)
    """Completions per group, where groups are consecutive rows; beside `of` it is checked against the ids."""
    of: Signals | list[Signals] | None = None
    """The signal that names each completion's group; of a list the first that a batch has."""
    split: Literal["none", "batches", "ranks"] = "none"
    """How far a group may be spread: within one batch of one rank, over batches of a rank, or over ranks."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The signals that name groups, the preferred one first."""
        return (self.of,) if isinstance(self.of, str) else tuple(self.of or ())


class CompletionAxis(Model):
    """How completions are distinguished."""

    ids: Signals | None = None
    """The signal that names each completion in every phase."""


class TokenAxis(Model):
    """Which tokens exist."""

    _short = Annotated[str, Field(description="The signal that says which tokens exist.")]
    mask: Signals | None = None
    """A signal or expression that is true where a token exists; ``all``: every token."""
    lengths: Signals | None = None
    """Where per-token signals are packed, ``[tokens]``: the signal that says how many tokens each completion has."""


class AxesSpec(Model):
    """The axes of the config's values."""

    group: GroupAxis = GroupAxis()
    completion: CompletionAxis = CompletionAxis()
    token: TokenAxis = TokenAxis()
    rank: Literal["all", "each"] = "all"
    """`each`: a metric without a `by` has a value for each rank, `reward/rank0`, and none of all ranks."""


class ModeSpec(Model):
    """A mode has its own windows; its names get ``prefix``."""

    prefix: str = ""
    """Put before the names of its values."""
    every: Every | Literal["end"] | None = None
    """A log event each N steps of a block, or at its `end`, as without it; train has the config's."""
    first: int | None = Field(None, ge=1)
    """Of train: the first log event after so many steps already, `first: 1` beside the config's `every: 50`."""


class Observed(Masked):
    """What the training code gives, as `signals` and `observe` of a metric declare it."""

    _short = Annotated[str, Field(pattern=r"^(step|group|completion|token)\b", description="`completion text`.")]
    axis: AxisName
    """What it has one value for."""
    type: DType = DType.FLOAT
    """What its values are."""
    family: bool | list[str] = False
    """One value per member: a mapping of member to values is observed; a list names the only members that there are."""
    from_: str | None = Field(None, alias="from")
    """The name it is observed under."""
    required: bool = False
    """Each batch has it: the first is refused without it. Otherwise it may be absent, also for good."""
    any: bool = False
    """A family of what is observed under names that nobody declares, by name: per step numbers, per completion rows."""
    from_log_extra: bool = False
    """Whether a column of log_extra of its name is observed as it; otherwise that is a column of tables only."""

    @model_validator(mode="after")
    def _any_is_a_family(self) -> Self:
        if self.any and not (self.family is True and self.axis in ("step", "completion") and self.type is DType.FLOAT):
            raise refused("DL202.any")
        return self

    @property
    def members(self) -> tuple[str, ...]:
        """The members that it declares; none where any may come."""
        return tuple(self.family) if isinstance(self.family, list) else ()


class Named(Switched):
    """What signals, derived values and metrics have in common."""

    renamed: str | list[str] | None = None
    """What it was called before: an error names this one where it is still used."""
    deprecated: str | None = None
    """What to use instead: a warning for every other config that uses it."""

    @property
    def before(self) -> tuple[str, ...]:
        """The names that it had."""
        return (self.renamed,) if isinstance(self.renamed, str) else tuple(self.renamed or ())


class SignalSpec(Named, Observed, Described):
    """A signal of a phase."""


class DerivedSpec(Named, Masked, Described):
    """A value per completion, token or step that is computed from signals."""

    _plain = "expr"
    expr: Annotated[Scalar, Says("signals")]
    """What it is computed by; a text in place of the map says the same."""
    phase: str | None = None
    """The phase whose rows have it, where it is not that of its parts."""


class ObserveSpec(Observed):
    """The signal that a metric declares for itself."""

    phase: str | None = None
    """Where in the step it is observed; by default in any phase."""

    @model_validator(mode="before")
    @classmethod
    def _reported(cls, data: Any) -> Any:
        """`from` without `axis`: a number that the loop has computed, and logs by a name."""
        alone = isinstance(data, Mapping) and "from" in data and "axis" not in data
        return {"axis": "step", "phase": "reported", **data} if alone else data


class MetricSpec(Named, Conditional, Windowed):
    """A reduction of an expression, or a formula over other metrics."""

    _short = Scalar
    expr: Annotated[Scalar, Says("signals")] | list[Signals] | None = None
    """What is reduced; the default is the signal of the metric's own id."""
    reduce: Constants | list[Constants | dict[str, Constants]] | None = None
    """A reduction, or several; `{std: pstd}` is one whose suffix is another. The default is mean."""
    prefer: Signals | None = None
    """Stands for the value wherever it comes: a number that the trainer has computed already, or other rows."""
    formula: Metrics | None = None
    """An expression over other metrics' reduced values."""
    where: Signals | None = None
    """Which values count."""
    weight: Signals | None = None
    """How much each value counts."""
    by: Signals | list[Signals] | None = None
    """A label per row, or a list of tags; one value per label. Several: one value for each of their combinations."""
    max_labels: int = Field(64, ge=1)
    """How many labels have a value of their own; those of the others are one, `_other`."""
    name: str | None = None
    """What trackers show: a template of {id}, {reduce}, {member}, {label}, and the name of what `by` reads."""
    alias: list[str] = []
    """More names for the same value, tagged ``alias``."""
    tags: Annotated[list[str], Short(str)] = []
    """For selectors: `tag:core`."""
    log: bool = True
    """Whether it is shown; a formula can use it all the same."""
    over: Over | None = None
    """What one value covers, the window by default: each step, batch or rank of it; the run; each step of the run."""
    combine: str | None = None
    """How values of several steps, batches or ranks become one: mean, min, max, sum, last, var, or `ema(0.9)`."""
    empty: Scalar | None = None
    """What is logged where nothing counts; absent by default."""
    nan: Literal["skip", "propagate", "raise"] | None = None
    """What missing values do: they are left out, make the value missing, or are an error."""
    ranks: Literal["all", "main"] = "all"
    """Whose rows count: those of all ranks, or of rank 0."""
    observe: ObserveSpec | None = None
    """Declares the signal of the metric's id, as `signals` would: `step`, or `{axis: step, from: actor/kl_loss}`."""

    @field_validator("tags")
    @classmethod
    def _words(cls, tags: list[str]) -> list[str]:
        words = [word for tag in tags for word in re.split(r"[,\s]+", tag) if word]
        if words != tags:
            raise refused("DL202.tag", tag=next(tag for tag in tags if tag not in words), tags=", ".join(words))
        return tags

    @field_validator("combine")
    @classmethod
    def _combines(cls, combine: str | None) -> str | None:
        if combine is None or combine in COMBINE or _EMA.match(combine):
            return combine
        if combine.startswith("ema"):
            raise refused("DL202.ema", text=combine)
        raise refused("DL202.combine_name", name=combine, known=COMBINE)

    @property
    def ema(self) -> float | None:
        """The weight of the past in a moving average."""
        average = _EMA.match(self.combine or "")
        return None if average is None else float(average[1])

    @property
    def cumulative(self) -> bool:
        """Whether a value covers the run so far."""
        return self.over is not None and self.over.startswith("run")

    @property
    def pool(self) -> str:
        """What is reduced at once: the window, or each step, batch or rank."""
        if self.over is None:
            return "window" if self.ema is None else "step"
        return self.over.removeprefix("run").removeprefix("_") or "window"


class AboutSpec(Described):
    """What a metric is to whoever reads its curve; the section `metrics` says how it is computed."""

    title: str = ""
    """What stands above its curve; the default is its name."""
    unit: str = ""
    """What it is counted in, such as nats."""
    good: Literal["up", "down"] | None = None
    """Which way is better, where one is."""
    healthy: Annotated[tuple[float, float] | None, Short(tuple[float | None, float | None])] = None
    """The least and the greatest value of a run that is well; null where there is no bound."""
    runbook: str = ""
    """What to do where it is not."""
    chart: str = ""
    """The name of the chart of a report that its curve shares with all metrics that say it."""

    @field_validator("healthy", mode="before")
    @classmethod
    def _bounds(cls, healthy: Any) -> Any:
        if healthy is None:
            return None
        pair = healthy if isinstance(healthy, list | tuple) and len(healthy) == 2 else ("", "")
        low, high = (end if one is None else one for one, end in zip(pair, (-math.inf, math.inf), strict=True))
        if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in (low, high)):
            raise refused("DL202.healthy", example="0, 1")
        if not low <= high:
            raise refused("DL202.healthy", example=f"{high:g}, {low:g}")
        return low, high


class SelectorSpec(Conditional):
    """Metrics, reductions or tables by id, tag or glob; several are separated by spaces."""

    _plain, _plain_type = "select", str
    _short = str
    select: Annotated[str, Says("metrics", "selector")]
    """Ids, `id.suffix`, `tag:core`, globs, `table:samples`."""


class ProfileSpec(Described):
    """What is shown: everything, or a closed list. `slim` is `only: ["tag:core"]` unless it says otherwise."""

    only: list[SelectorSpec] | None = None
    """Only these: a closed list; by default everything, which is also `["*"]`."""
    hide: list[SelectorSpec] = []
    """Not these."""
    show: list[SelectorSpec] = []
    """These too, whatever `only` and `hide` say."""
    self_metrics: bool = False
    """Show what declog itself costs, under `declog/...`."""


class AlertSpec(Switched, Conditional, Described):
    """A condition over metrics that is worth a message: bounds of the metric of its own id, or `when`."""

    _short = str
    above: float | None = None
    """It fires where the metric of its id is above that."""
    below: float | None = None
    """It fires where the metric of its id is below that; with `above` too: outside of both."""
    for_: int = Field(1, alias="for", ge=1)
    """Log events in a row."""
    cooldown: int = Field(0, ge=0)
    """For so many log events after it fired it does not fire again."""
    level: Literal["info", "warn", "error"] = "warn"
    """How bad it is."""
    do: list[Literal["stop"]] = []
    """What else it does: `stop` ends training, on every rank after the same step."""
    text: Annotated[str, Says("metrics", "template")] = ""
    """What it says, with values by their ids: `KL is {kl:.3f}`."""

    @model_validator(mode="after")
    def _room(self) -> AlertSpec:
        if self.above is not None and self.below is not None and self.above <= self.below:
            raise refused("DL202.no_room", above=f"{self.above:g}", below=f"{self.below:g}")
        return self


class SinkSpec(Model):
    """A sink; keys that are not listed here are options of its kind."""

    model_config = ConfigDict(extra="allow")

    kind: str | None = None
    """Which sink; by default that of its name."""
    profile: str | None = None
    """The profile that it shows; by default the config's."""
    every: int = Field(1, ge=1)
    """Takes each N-th log event."""
    prefix: str = ""
    """Put before every name."""
    ranks: Literal["main", "each"] | None = None
    """Who writes a table without a filter: `each` rank its own rows, as file sinks do, or `main`: rank 0, all."""
    on_error: Literal["report", "raise"] = "report"
    """Whether a failure of it is a failure of the log event, too."""
    queue_bytes: int = Field(64 * 2**20, ge=1)
    """How much may wait for it; then log events wait for the sink."""


class RunSpec(Model):
    """How declog behaves in a run, and what is kept of it."""

    append: bool = False
    """Add this run to the folder `output_dir` where that holds an earlier one; rows say by `run_id` whose they are."""
    strict: bool = False
    """Raise declog's own later failures instead of reporting them: for tests."""
    blocking: bool = False
    """Finish each log event inside its step."""
    window_bytes: int = Field(256 * 2**20, ge=1)
    """What a window may hold on rank 0, in bytes, before the rows of its closed steps are folded to statistics."""
    backlog_bytes: int = Field(2**30, ge=1)
    """What may wait on a rank for its worker, in bytes of rows: beyond it steps wait."""
    keep_bytes: int = Field(2 * 10**9, ge=0)
    """How much of its rows the run keeps in its folder, in bytes, so that metrics can be asked late; 0: none."""
    late: bool = False
    """Whether metrics that are asked for while the run goes on are logged from then on, by the job itself."""
    capture: CaptureSpec = CaptureSpec(enabled=False)
    """What is kept of what the training code gives, for `declog preview`."""
    config: dict[str, Any] = {}
    """How the run is configured, sent once to every tracker."""


class LogSpec(Model):
    """A config."""

    spec: Literal[1] = 1
    """The version of the language."""
    name: str = "run"
    """Recorded with every run."""
    profile: str = "full"
    """The default profile; a sink may name another."""
    every: Every = 1
    """A log event each N optimizer steps; `trainer`: when the trainer logs; `epoch`: at the end of its epochs."""
    output_dir: str | None = None
    """Where local files go; by default a new folder: Hydra's run directory, else `outputs/<name>/<time>`."""
    run: RunSpec = RunSpec()
    """How declog behaves in a run; what is logged does not depend on it."""
    constants: dict[str, ConstantSpec] = {}
    """Values known at compile time."""
    axes: AxesSpec = AxesSpec()
    """What groups, completions and tokens are."""
    modes: dict[str, ModeSpec] = {}
    """Train and eval, each with its own windows."""
    signals: dict[str, dict[str, SignalSpec]] = {}
    """What the training code observes, by phase: `rollout`, `update`; `any`: in whichever phase needs it."""
    derived: dict[str, DerivedSpec] = {}
    """What is computed from signals: `ratio: exp(logprobs - old_logprobs)`."""
    metrics: dict[str, MetricSpec] = {}
    """What is logged."""
    about: dict[str, AboutSpec] = {}
    """What metrics are, by their ids: titles, units, what is healthy, what to do."""
    filters: dict[str, FilterSpec] = {}
    """Which rows tables take."""
    schemas: dict[str, dict[str, ColumnSpec]] = {}
    """Tables' columns."""
    tables: dict[str, TableSpec] = {}
    """Samples: rows of a schema, picked by a filter."""
    profiles: dict[str, ProfileSpec] = {}
    """What is shown, under a name."""
    alerts: dict[str, AlertSpec] = {}
    """Conditions worth a message."""
    sinks: Annotated[list[str], Short(str)] = []
    """Where it goes: kinds of sinks, or names from `sink_options`; `none` opens none."""
    sink_options: dict[str, SinkSpec] = {}
    """What is said of a sink, by its name."""
    tests: dict[str, TestSpec] = {}
    """Config tests."""
    deleted: frozenset[str] = Field(frozenset(), exclude=True)

    @property
    def declared(self) -> list[tuple[Path, SignalSpec | DerivedSpec]]:
        """All signals, those of phases and derived ones, with their paths."""
        observed = [
            (("signals", phase, name), spec)
            for phase, names in sorted(self.signals.items())
            for name, spec in names.items()
        ]
        return [*observed, *((("derived", name), spec) for name, spec in self.derived.items())]
